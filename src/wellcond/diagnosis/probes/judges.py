"""Whether another network judges what a model gives, as a critic does: its value may fall and rise without a bound."""

from __future__ import annotations

import contextlib
from typing import Any

import torch
from torch import nn

from wellcond.network.calling import tensors_in
from wellcond.network.taps import called_anywhere
from wellcond.problem.problem import Problem


def is_judged_by_network(problem: Problem) -> bool:
    """Whether the loss calls a module with weights, which is no part of the model, with what the model gave.

    It takes a forward pass of a batch.
    """
    own = set(problem.model.modules())
    judges: list[nn.Module] = []

    def noted(module: nn.Module, args: tuple[Any, ...]) -> None:
        has_weights = any(True for _ in module.parameters())
        if module not in own and has_weights and any(t.requires_grad for t in tensors_in(args)):
            judges.append(module)

    with problem.measuring(), torch.enable_grad(), contextlib.closing(problem.data()) as data:
        index, batch = next(data)
        with called_anywhere(noted):
            problem.training_loss(index, batch)
    return bool(judges)
