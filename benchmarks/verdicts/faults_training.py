"""Faults of the optimizer: rates, decay, ε and signs, on networks that are otherwise right."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn
from torch.optim import SGD, Adam, Optimizer

from benchmarks.verdicts import data
from benchmarks.verdicts.case import Program, accuracy, case, named, program


def digits_mlp() -> nn.Sequential:
    return named(flatten=nn.Flatten(), fc1=nn.Linear(64, 64), act1=nn.ReLU(), fc2=nn.Linear(64, 64), act2=nn.ReLU(),
                 fc3=nn.Linear(64, 64), act3=nn.ReLU(), fc4=nn.Linear(64, 64), act4=nn.ReLU(),
                 out=nn.Linear(64, 10))  # fmt: skip


def _on_digits(optimizer: Callable[..., Optimizer], batch: int = 32, **options: Any) -> Program:
    digits = data.digit_images(8)
    return program(digits_mlp(), nn.CrossEntropyLoss(), digits, batch, optimizer, accuracy(digits), **options)


@case(14, "a learning rate of −1000, a sign error",
      rules=["learning-rate-too-high", "diverging"], steps=600)  # fmt: skip
def negative_rate(faulty: bool) -> Program:
    built = _on_digits(SGD, lr=0.2)
    if faulty:
        for group in built.optimizer.param_groups:  # torch refuses it in the constructor, but not from a schedule
            group["lr"] = -1000.0
    return built


@case(16, "L2 regularization of 0.1",
      rules=["weight-decay-dominates"], layers=["", "fc1", "fc2", "fc3", "fc4", "out"], steps=400)  # fmt: skip
def strong_decay(faulty: bool) -> Program:
    return _on_digits(SGD, lr=0.1, momentum=0.9, weight_decay=0.1 if faulty else 1e-4)


@case(18, "Adam at a rate of 0.1", rules=["learning-rate-too-high"], steps=400)
def adam_too_high(faulty: bool) -> Program:
    return _on_digits(Adam, lr=0.1 if faulty else 1e-3)


@case(18, "Adam at a rate of 1e-5", rules=["learning-rate-too-low", "loss-not-decreasing"], steps=400)
def adam_too_low(faulty: bool) -> Program:
    return _on_digits(Adam, lr=1e-5 if faulty else 1e-3)


@case(18, "Adam with ε = 1e-16", rules=["learning-rate-too-high", "non-finite"], steps=400, is_shown=False)
def adam_epsilon(faulty: bool) -> Program:
    return _on_digits(Adam, lr=1e-3, eps=1e-16 if faulty else 1e-8)


class HandWritten(Optimizer):
    """`w -= lr * gradient`, as people write it themselves; or with the sign wrong."""

    def __init__(self, params: Iterable[torch.Tensor], lr: float, sign: float) -> None:
        super().__init__(params, {"lr": lr, "sign": sign})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    p += group["sign"] * group["lr"] * p.grad


@case(20, "a sign flip in a hand-written gradient step", rules=["diverging", "loss-not-decreasing"], steps=600)
def sign_flip(faulty: bool) -> Program:
    return _on_digits(HandWritten, lr=0.2, sign=1.0 if faulty else -1.0)
