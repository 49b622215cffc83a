"""Blind tasks: scripts as people write them, by someone who did not know how rates are chosen here."""

from __future__ import annotations

from functools import partial

import torch
from torch import nn, optim

from benchmarks.rates import blind_data, blind_losses, blind_networks, blind_pretrained, blind_series, data
from benchmarks.rates.networks import Mixer, cnn, mlp
from benchmarks.rates.tasks import ADAM, ADAMW, CROSS, GAN_ADAM, MOMENTUM, MSE, NESTEROV, SGD, Task

BLIND: dict[str, Task] = {
    "convolutional vae adam": Task(
        blind_networks.ConvVAE,
        blind_losses.beta_bound,
        lambda: blind_data.pictures(32),
        ADAM,
        top=1.0,
        own=1e-3,
    ),
    "hinge discriminator adam": Task(
        blind_networks.Discriminator,
        blind_losses.hinge,
        lambda: data.images(64, flat=True),
        GAN_ADAM,
        top=3.0,
        own=2e-4,
    ),
    "q-learning rmsprop": Task(
        lambda: mlp([4, 64, 64, 2]),
        blind_losses.temporal_difference,
        lambda: blind_series.replay_buffer(32),
        partial(optim.RMSprop, alpha=0.95, eps=0.01),
        top=10.0,
        own=2.5e-4,
    ),
    "diffusion adam": Task(
        blind_networks.Denoiser,
        blind_losses.noise_error,
        lambda: blind_data.swiss_roll(64),
        ADAM,
        top=1.0,
        own=1e-3,
    ),
    "segmentation dice nesterov 0.99": Task(
        blind_networks.UNet,
        blind_losses.dice_and_cross,
        lambda: blind_data.discs(8),
        partial(optim.SGD, momentum=0.99, nesterov=True, weight_decay=3e-5),
        top=30.0,
        own=0.01,
    ),
    "fine-tuning momentum": Task(
        blind_pretrained.fine_tuned,
        CROSS,
        lambda: blind_data.five(32, later=True),
        MOMENTUM,
        top=30.0,
        own=1e-3,
    ),
    "low-rank adapters adamw": Task(
        blind_pretrained.adapted,
        CROSS,
        lambda: blind_data.mirrored(16),
        partial(optim.AdamW, weight_decay=0.01),
        top=3.0,
        own=2e-4,
    ),
    "contrastive momentum": Task(
        blind_networks.TwoViews,
        blind_losses.contrast,
        lambda: data.images(32),
        partial(optim.SGD, momentum=0.9, weight_decay=1e-4),
        top=30.0,
        own=0.03,
    ),
    "recommender adam": Task(
        blind_networks.Recommender,
        MSE,
        lambda: blind_data.ratings(64),
        ADAM,
        top=3.0,
        own=1e-3,
    ),
    "clicks adagrad, imbalanced": Task(
        blind_networks.WideAndDeep,
        nn.BCEWithLogitsLoss(pos_weight=torch.tensor(8.0)),
        lambda: blind_data.clicks(128),
        partial(optim.Adagrad),
        top=30.0,
        own=0.01,
    ),
    "forecasting lstm adam": Task(
        blind_networks.Forecaster,
        MSE,
        lambda: blind_series.passengers(32),
        ADAM,
        top=10.0,
        own=1e-3,
    ),
    "forecasting tcn quantiles nadam": Task(
        blind_networks.TemporalCNN,
        blind_losses.pinball,
        lambda: blind_series.demand(32),
        partial(optim.NAdam),
        top=3.0,
        own=2e-3,
    ),
    "oscillator with physics adam": Task(
        blind_networks.Oscillator,
        blind_losses.measured_and_physics,
        lambda: blind_series.oscillation(32),
        ADAM,
        top=1.0,
        own=1e-3,
    ),
    "cnn label smoothing nesterov decay": Task(
        lambda: cnn([8, 16, 16], "batch"),
        nn.CrossEntropyLoss(label_smoothing=0.1),
        lambda: data.images(32, noise=0.3),
        NESTEROV,
        top=100.0,
        own=0.1,
    ),
    "transformer encoder adamw": Task(
        blind_networks.Encoder,
        CROSS,
        lambda: blind_series.styles(16),
        partial(optim.AdamW),
        top=1.0,
        own=3e-4,
    ),
    "bidirectional gru tagger sgd": Task(
        blind_networks.Tagger,
        data.per_symbol,
        lambda: blind_series.tagged(16),
        SGD,
        top=100.0,
        own=0.1,
    ),
    "graph network adam decay": Task(
        blind_networks.GraphNetwork,
        CROSS,
        lambda: blind_data.graphs(32),
        partial(optim.Adam, weight_decay=5e-4),
        top=3.0,
        own=0.01,
    ),
    "autoencoder summed momentum": Task(
        lambda: mlp([64, 32, 8, 32, 64]),
        nn.MSELoss(reduction="sum"),
        lambda: data.own_images(32),
        MOMENTUM,
        top=0.1,
        own=1e-4,
    ),
    "house prices robust adam": Task(
        lambda: mlp([5, 64, 32, 1]),
        blind_losses.cauchy,
        lambda: blind_data.houses(32),
        ADAM,
        top=10.0,
        own=1e-3,
    ),
    "two heads adamw": Task(
        blind_networks.TwoHeads,
        blind_losses.two_heads,
        lambda: blind_data.labels_and_ink(32),
        partial(optim.AdamW),
        top=1.0,
        own=1e-3,
    ),
    "mixer adamw": Task(
        lambda: Mixer(width=16, layers=2),
        CROSS,
        lambda: data.images(32, noise=0.3),
        ADAMW,
        top=1.0,
        own=1e-3,
    ),
    "polynomial regression sgd dampening": Task(
        lambda: nn.Linear(9, 1),
        MSE,
        lambda: blind_data.powers(16),
        partial(optim.SGD, momentum=0.9, dampening=0.9),
        top=10.0,
        own=0.01,
    ),
}
"""Tasks written before their results were known, and frozen."""
