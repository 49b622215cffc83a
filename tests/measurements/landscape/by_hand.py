"""The loss of a case as a function of the flat parameter vector, its gradient, and random directions, by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from references import network
from torch import Tensor, nn
from zoo import CLASSES, Case, integers, normal, seeded

import wellcond as wc


def loss_of(case: Case, batches: list[Any]) -> Callable[[Tensor], Tensor]:
    """θ ↦ the mean loss over all terms (the targets' entries), on copies of the model."""
    parts = [(network(case.model, inputs, case.batchnorm), targets) for inputs, targets in batches]
    count = sum(targets.numel() for _, targets in batches)
    return lambda theta: sum(case.loss(outputs(theta), y) * y.numel() for outputs, y in parts) / count


def gradient_of(loss: Callable[[Tensor], Tensor], theta: Tensor) -> Tensor:
    leaf = theta.clone().requires_grad_()
    return torch.autograd.grad(loss(leaf), leaf)[0]


def draws(model: nn.Module, seed: int, count: int = 1) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    params = [p for p in model.parameters() if p.requires_grad]
    return [
        torch.cat([torch.randn(p.shape, generator=generator, dtype=p.dtype).reshape(-1) for p in params])
        for _ in range(count)
    ]


CALLS: list[bool] = []
"""Calls of a capped model, and whether each built a graph; a counter inside a module is reset after a measurement."""


class Capped(nn.Linear):
    """Gives NaN for weights beyond 10, and has its calls counted."""

    def __init__(self) -> None:
        super().__init__(4, CLASSES)
        CALLS.clear()

    def forward(self, x: Tensor) -> Tensor:
        outputs = super().forward(x)
        CALLS.append(outputs.requires_grad)
        return outputs + (10 - self.weight.abs().max()).log().detach() * 0


def capped(batches: Any = None) -> wc.Problem:
    return wc.Problem(seeded(Capped), nn.CrossEntropyLoss(), batches or (normal(6, 4), integers(CLASSES, 6)))
