"""The tasks: a network, its loss, shuffled mini-batches, an optimizer, and the rates that the sweep covers."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn, optim
from torch.optim import Optimizer

from benchmarks.rates import data
from benchmarks.rates.data import Shuffled
from benchmarks.rates.networks import GPT, VAE, Bag, Mixer, Recurrent, ViT, cnn, mlp, resnet20

RATES, DECADES = 22, 4.0


@dataclass(frozen=True)
class Task:
    """Something to train.

    Attributes:
        network: Makes the model from torch's generator.
        loss: Called as (outputs, targets).
        loader: Makes the mini-batches.
        optimizer: Makes the optimizer of parameters and `lr`.
        top: The largest rate of the sweep, beyond the edge of what trains.
        own: The rate that a script of this sort usually has.
    """

    network: Callable[[], nn.Module]
    loss: Callable[..., Any]
    loader: Callable[[], Shuffled]
    optimizer: Callable[..., Optimizer]
    top: float
    own: float

    @property
    def rates(self) -> list[float]:
        """Rates of the sweep, ascending."""
        low = math.log10(self.top) - DECADES
        return [10 ** (low + DECADES * i / (RATES - 1)) for i in range(RATES)]

    def start(self, seed: int) -> nn.Module:
        """The model with the weights of a seed."""
        torch.manual_seed(1000 + seed)
        return self.network()


SGD, MOMENTUM = partial(optim.SGD), partial(optim.SGD, momentum=0.9)
NESTEROV = partial(optim.SGD, momentum=0.9, nesterov=True, weight_decay=5e-4)
ADAM, ADAMW = partial(optim.Adam), partial(optim.AdamW, weight_decay=0.05)
GAN_ADAM, RMSPROP = partial(optim.Adam, betas=(0.5, 0.999)), partial(optim.RMSprop)
CROSS, MSE, BINARY = nn.CrossEntropyLoss(), nn.MSELoss(), nn.BCEWithLogitsLoss()
flat, noisy = partial(data.images, flat=True), partial(data.images, noise=0.5)

TASKS: dict[str, Task] = {
    "mlp sgd": Task(lambda: mlp([64, 64, 64, 10]), CROSS, lambda: flat(64, 0.7), SGD, 30.0, 0.1),
    "mlp momentum, fits all": Task(lambda: mlp([64, 64, 64, 10]), CROSS, lambda: flat(64), MOMENTUM, 10.0, 0.01),
    "mlp batchnorm momentum": Task(
        lambda: mlp([64, 64, 64, 64, 10], norm=nn.BatchNorm1d), CROSS, lambda: flat(32, 0.7), MOMENTUM, 30.0, 0.01),
    "deep tanh mlp nesterov decay": Task(
        lambda: mlp([64, *[32] * 6, 10], nn.Tanh), CROSS, lambda: flat(32, 0.7), NESTEROV, 10.0, 0.1),
    "mlp dropout adam": Task(lambda: mlp([64, 96, 96, 10], dropout=0.3), CROSS, lambda: flat(32), ADAM, 1.0, 1e-3),
    "cnn momentum": Task(lambda: cnn([8, 16, 16]), CROSS, lambda: noisy(32), MOMENTUM, 10.0, 0.01),
    "cnn batchnorm sgd": Task(lambda: cnn([8, 16, 16], "batch"), CROSS, lambda: noisy(32), SGD, 100.0, 0.1),
    "cnn batchnorm adam, fits all": Task(
        lambda: cnn([8, 16, 16], "batch"), CROSS, lambda: data.images(32), ADAM, 3.0, 1e-3),
    "resnet-20 nesterov decay": Task(resnet20, CROSS, lambda: noisy(16), NESTEROV, 30.0, 0.1),
    "resnet-20 adamw": Task(resnet20, CROSS, lambda: noisy(16), ADAMW, 3.0, 1e-3),
    "vit adamw": Task(ViT, CROSS, lambda: noisy(32), ADAMW, 1.0, 1e-3),
    "vit momentum": Task(ViT, CROSS, lambda: noisy(32), MOMENTUM, 10.0, 0.01),
    "gpt adamw": Task(GPT, data.per_symbol, lambda: data.sequences(16), ADAMW, 1.0, 1e-3),
    "gpt nesterov decay": Task(GPT, data.per_symbol, lambda: data.sequences(16), NESTEROV, 30.0, 0.1),
    "lstm rmsprop": Task(lambda: Recurrent(nn.LSTM), data.per_symbol, lambda: data.sequences(16), RMSPROP, 1.0, 1e-3),
    "lstm sgd": Task(lambda: Recurrent(nn.LSTM), data.per_symbol, lambda: data.sequences(16), SGD, 300.0, 0.1),
    "vae adam": Task(VAE, data.evidence_bound, lambda: data.own_images(64), ADAM, 1.0, 1e-3),
    "vae rmsprop": Task(VAE, data.evidence_bound, lambda: data.own_images(64), RMSPROP, 1.0, 1e-3),
    "discriminator adam": Task(
        lambda: cnn([8, 16, 16], "batch", 1, nn.LeakyReLU(0.2)), BINARY, lambda: data.real_or_spliced(32), GAN_ADAM,
        3.0, 2e-4),
    "regression momentum": Task(lambda: mlp([20, 64, 64, 1]), MSE, lambda: data.teacher(32), MOMENTUM, 3.0, 0.01),
    "regression adam": Task(lambda: mlp([20, 64, 64, 1], nn.Tanh), MSE, lambda: data.teacher(32), ADAM, 1.0, 1e-3),
    "linear regression sgd": Task(lambda: nn.Linear(50, 1), MSE, lambda: data.correlated(16), SGD, 10.0, 0.1),
}  # fmt: skip
"""Tasks that the race was developed with."""

OTHERS: dict[str, Task] = {
    "autoencoder adam": Task(lambda: mlp([64, 48, 8, 48, 64]), MSE, lambda: data.own_images(32), ADAM, 1.0, 1e-3),
    "gru adamw": Task(lambda: Recurrent(nn.GRU), data.per_symbol, lambda: data.sequences(16), ADAMW, 1.0, 1e-3),
    "mixer nesterov decay": Task(Mixer, CROSS, lambda: noisy(32), NESTEROV, 10.0, 0.1),
    "mlp layernorm momentum": Task(
        lambda: mlp([64, 128, 64, 10], norm=nn.LayerNorm), CROSS, lambda: flat(64, 0.7), MOMENTUM, 10.0, 0.01),
    "bag of embeddings adagrad": Task(Bag, CROSS, lambda: data.bags(32), partial(optim.Adagrad), 30.0, 0.01),
    "cnn groupnorm rmsprop": Task(lambda: cnn([8, 16, 16], "group"), CROSS, lambda: noisy(32), RMSPROP, 1.0, 1e-3),
    "deep cnn batchnorm momentum": Task(
        lambda: cnn([8, 8, 16, 16, 16, 16], "batch"), CROSS, lambda: noisy(16), MOMENTUM, 30.0, 0.01),
    "huber regression nesterov decay": Task(
        lambda: mlp([20, 48, 48, 1], nn.SiLU), nn.SmoothL1Loss(), lambda: data.teacher(16), NESTEROV, 10.0, 0.1),
    "logistic regression sgd": Task(lambda: nn.Linear(64, 10), CROSS, lambda: flat(16, 0.7), SGD, 30.0, 0.1),
    "mlp adamw, fits all": Task(lambda: mlp([64, 128, 10]), CROSS, lambda: flat(32), ADAMW, 1.0, 1e-3),
}  # fmt: skip
"""Tasks for validation: of the settings that do well on `TASKS`, those were taken that do no worse here."""
