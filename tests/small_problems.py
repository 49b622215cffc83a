"""Small problems, and the losses of a plain torch loop on them."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.optim import Optimizer
from zoo import CLASSES, integers, normal, seeded, split

import wellcond as wc

BATCHES = split((normal(14, 4), integers(CLASSES, 14)), [5, 5, 4])


def network() -> nn.Module:
    """A chain of layers, with BatchNorm."""
    return seeded(
        lambda: nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Tanh(), nn.Linear(5, CLASSES, bias=False))
    )


def problem(model: nn.Module | None = None, batches: Any = BATCHES, loss: Any = None) -> wc.Problem:
    return wc.Problem(model or network(), loss or nn.CrossEntropyLoss(), batches)


def quadratic(curvature: float = 1.0, dtype: torch.dtype = torch.float64) -> wc.Problem:
    """½ h w² from w = 2."""
    model = nn.Linear(1, 1, bias=False).to(dtype)
    model.weight.data = torch.full((1, 1), 2.0, dtype=dtype)
    batch = (torch.ones(1, 1, dtype=dtype), torch.zeros(1, 1, dtype=dtype))
    return wc.Problem(model, lambda f, y: 0.5 * curvature * (f - y).square().mean(), batch)


def losses_by_torch(
    model: nn.Module, optimizer: Optimizer, steps: int, batches: Any = BATCHES, loss: Any = F.cross_entropy
) -> list[float]:
    """The loss of every step of an optimizer on the batches in turn, with the model in training mode."""
    losses = []
    with sdpa_kernel(SDPBackend.MATH):
        for step in range(steps):
            x, y = batches[step % len(batches)]
            value = loss(model.train()(x), y)
            losses.append(float(value.detach()))
            optimizer.zero_grad()
            value.backward()
            optimizer.step()
    return losses
