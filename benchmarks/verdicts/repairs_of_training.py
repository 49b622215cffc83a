"""Faults of rates, decays and settings, with groups, momentum and schedules that a repair has to keep."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F
from torch.optim import SGD, Adam, AdamW, RMSprop
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR, OneCycleLR, StepLR

from benchmarks.verdicts import data
from benchmarks.verdicts.case import Program, accuracy, program, r2
from benchmarks.verdicts.networks import bert
from benchmarks.verdicts.repair_cases import on_digits, repair
from benchmarks.verdicts.repair_networks import Convolutions, Perceptron, Rows, grouped, on_tokens, transformer

# rates


@repair("learning-rate-too-high", "BERT at a rate of 0.03", 150)
def fast_bert(faulty: bool) -> Program:
    model = bert()
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    return on_tokens(model, AdamW, lr=0.03 if faulty else 1e-3, weight_decay=0.01)


@repair("learning-rate-too-high", "own post-norm blocks at 0.3, with two groups and a warm-up", 200)
def fast_postnorm(faulty: bool) -> Program:
    model = transformer(2, prenorm=False)
    built = on_tokens(model)
    built.optimizer = grouped(AdamW, model, lr=0.3 if faulty else 2e-3, betas=(0.9, 0.98))
    built.scheduler = LambdaLR(built.optimizer, lambda step: min(1.0, (step + 1) / 30))
    return built


@repair("learning-rate-too-high", "an LSTM by SGD with momentum at a rate of 30", 300)
def fast_lstm(faulty: bool) -> Program:
    return on_digits(Rows(nn.LSTM), lr=30.0 if faulty else 0.3, momentum=0.9, nesterov=True)


@repair("learning-rate-too-high", "convolutions by RMSprop at 0.5, with a cosine", 250)
def fast_rmsprop(faulty: bool) -> Program:
    built = on_digits(Convolutions(3), RMSprop, lr=0.5 if faulty else 2e-3, momentum=0.5, weight_decay=1e-5)
    built.scheduler = CosineAnnealingLR(built.optimizer, 250)
    return built


@repair("learning-rate-too-high", "a regression by SGD at 3, with one cycle", 300)
def fast_cycle(faulty: bool) -> Program:
    x, y = data.houses(scaled=True)
    built = program(Perceptron(2, F.relu, 3, 32, 1), F.mse_loss, (x, y), 32, SGD, r2((x, y)), lr=0.1, momentum=0.9)
    built.scheduler = OneCycleLR(built.optimizer, 300.0 if faulty else 0.1, total_steps=301)
    return built


@repair("learning-rate-too-low", "an LSTM by Adam at 1e-6", 300)
def slow_lstm(faulty: bool) -> Program:
    return on_digits(Rows(nn.LSTM), Adam, lr=1e-6 if faulty else 5e-3, amsgrad=True)


@repair("learning-rate-too-low", "convolutions by SGD at 1e-5, in two groups with momentum", 300)
def slow_groups(faulty: bool) -> Program:
    model = Convolutions(3)
    built = on_digits(model)
    built.optimizer = grouped(SGD, model, 1e-4, lr=1e-5 if faulty else 0.05, momentum=0.9)
    return built


@repair("learning-rate-too-low", "a transformer by AdamW at 1e-7, with a schedule of steps", 250)
def slow_schedule(faulty: bool) -> Program:
    built = on_tokens(transformer(1), lr=1e-7 if faulty else 3e-3)
    built.scheduler = StepLR(built.optimizer, 200, 0.3)
    return built


# decay


@repair("weight-decay-dominates", "an LSTM by SGD with a decay of 0.5 in one of its groups", 300)
def decayed_lstm(faulty: bool) -> Program:
    model = Rows(nn.LSTM)
    built = on_digits(model)
    built.optimizer = grouped(SGD, model, 0.5 if faulty else 1e-4, lr=0.3, momentum=0.9)
    return built


@repair("weight-decay-dominates", "convolutions by Adam with a decay of 1 and a cosine", 250)
def decayed_convolutions(faulty: bool) -> Program:
    built = on_digits(Convolutions(3), Adam, lr=3e-3, weight_decay=1.0 if faulty else 1e-4)
    built.scheduler = CosineAnnealingLR(built.optimizer, 300)
    return built


@repair("weight-decay-dominates", "a regression by SGD with a decay of 2", 300)
def decayed_regression(faulty: bool) -> Program:
    x, y = data.houses(scaled=True)
    decay = 2.0 if faulty else 1e-4
    return program(Perceptron(2, torch.tanh, 3, 32, 1), F.mse_loss, (x, y), 32, SGD, r2((x, y)), lr=0.05,
                   weight_decay=decay)  # fmt: skip


# settings


@repair("optimizer-setting", "a transformer by AdamW with ε = 0.3 and two groups", 250)
def large_eps_in_groups(faulty: bool) -> Program:
    model = transformer(1)
    built = on_tokens(model)
    built.optimizer = grouped(AdamW, model, lr=3e-3, eps=1.0 if faulty else 1e-8)
    return built


@repair("optimizer-setting", "convolutions by RMSprop with ε = 10", 250)
def large_eps_of_rmsprop(faulty: bool) -> Program:
    return on_digits(Convolutions(3), RMSprop, lr=2e-3, eps=10.0 if faulty else 1e-8)


@repair("optimizer-setting", "an LSTM by SGD with a momentum of 0.9999", 250)
def endless_momentum(faulty: bool) -> Program:
    return on_digits(Rows(nn.LSTM), lr=0.3, momentum=0.9999 if faulty else 0.9)


@repair("diverging", "Adam that climbs, over convolutions", 200)
def climbing_adam(faulty: bool) -> Program:
    return on_digits(Convolutions(2), Adam, lr=3e-3, maximize=faulty)


@repair("diverging", "AdamW that climbs, in two groups with a cosine", 200)
def climbing_groups(faulty: bool) -> Program:
    x, y = data.table("wine", scaled=True)
    model = Perceptron(2, F.gelu, 13, 32, 3)
    built = program(model, F.cross_entropy, (x, y), 32, AdamW, accuracy((x, y)), lr=3e-3)
    built.optimizer = grouped(AdamW, model, lr=3e-3, maximize=faulty)
    built.scheduler = CosineAnnealingLR(built.optimizer, 250)
    return built
