"""What a loss takes, read from its values at made-up outputs."""

from __future__ import annotations

import contextlib
import math
from typing import Any

import torch
from torch import Tensor

from wellcond.remedies.setup import Setup


def first_batch(setup: Setup) -> tuple[Any, Any]:
    """Outputs, without a graph, and targets of the first batch."""
    problem = setup.problem
    with problem.measuring(), torch.no_grad(), contextlib.closing(problem.data()) as data:
        index, (inputs, targets) = next(data)
        return problem.forward(index, inputs), targets


def loss_at(setup: Setup, outputs: Any, targets: Any) -> float:
    """The loss of any outputs; NaN if it fails on them. State that the loss holds stays as it is."""
    with setup.problem.measuring(), torch.no_grad():
        try:
            return float(setup.problem.raw_loss(outputs, targets))
        except Exception:  # a user's loss may raise anything
            return math.nan


def takes_probabilities(setup: Setup) -> bool:
    """Whether the loss is finite at 1/2 and not at −1. Asked on the CPU: a GPU's kernels abort on bad values."""
    outputs, targets = first_batch(setup)
    if not isinstance(outputs, Tensor) or not isinstance(targets, Tensor):
        return False
    half, negative = (torch.full_like(outputs, value, device="cpu") for value in (0.5, -1.0))
    at_half, at_negative = (loss_at(setup, outputs, targets.cpu()) for outputs in (half, negative))
    return math.isfinite(at_half) and not math.isfinite(at_negative)
