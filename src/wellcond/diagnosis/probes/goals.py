"""Whether a loss compares what the model returns with something else that the model has returned.

A Q-network is compared with its own values of the next states, a network with its own answer to another view, each
without a gradient. Such a loss may rise while the model gets better, since what it is compared with moves along. So may
that of a step in which two networks play against each other: what one gains the other loses.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from wellcond.diagnosis.probes.exchanged import rms
from wellcond.diagnosis.probes.terms import have_moved
from wellcond.network.calling import is_equal, tensors_in
from wellcond.network.isolation.isolation import parameters_kept
from wellcond.network.taps import bracketed
from wellcond.problem.batches import Batch
from wellcond.problem.problem import Problem
from wellcond.problem.training_step import TrainingStep

FAR = 0.3
"""How far the weights are moved, over the RMS of each parameter."""
MOST_NUMBERS = 2**20
"""Numbers in a tensor that is remembered."""


def moves_with_the_model(problem: Problem) -> bool:
    """Whether tensors without a gradient that a loss combines with the model's outputs change with its weights.

    It takes a forward pass of a batch, and two more if there are such tensors besides those of the batch. What is
    combined inside of the model does not count.
    """
    params = list(problem.params.values())
    draw = torch.Generator(problem.device).manual_seed(0)
    with problem.measuring(), parameters_kept(params), contextlib.closing(problem.data()) as data:
        index, batch = next(data)
        before = _goals(problem, index, batch)
        if not before or have_moved(before, _goals(problem, index, batch)):
            return False
        for p in params:
            p.data = p.data + FAR * rms(p) * torch.randn(p.shape, generator=draw, device=p.device).to(p)
        return have_moved(before, _goals(problem, index, batch))


def is_played_against(problem: Problem) -> bool:
    """Whether weights that a step trains also judge, frozen for the moment, what other weights make: as in a GAN.

    It takes a forward pass of a batch, and none where the loss is no training step.
    """
    if not isinstance(problem.loss, TrainingStep):
        return False
    trained = [m for m in problem.model.modules() if any(p.requires_grad for p in m.parameters(recurse=False))]
    frozen = []

    def on_entry(module: nn.Module, args: Any, _kwargs: Any) -> None:
        is_frozen = not any(p.requires_grad for p in module.parameters(recurse=False))
        frozen.append(is_frozen and any(t.requires_grad for t in tensors_in(args)))

    watched = bracketed(trained, on_entry, lambda _module, _output: None)
    with problem.measuring(), contextlib.closing(problem.data()) as data, torch.enable_grad(), watched:
        problem.training_loss(*next(data))
    return any(frozen)


def has_goals(problem: Problem) -> bool:
    """Whether a loss combines the model's outputs with tensors that a step makes itself, such as labels of ones."""
    with problem.measuring(), contextlib.closing(problem.data()) as data:
        return bool(_goals(problem, *next(data)))


def _goals(problem: Problem, index: int, batch: Batch) -> list[Tensor]:
    """Tensors without a gradient that meet tensors with one, outside of the model."""
    seen = _Combined()

    def on_exit(_module: nn.Module, _output: Any) -> None:
        seen.calls -= 1

    def on_entry(_module: nn.Module, _args: Any, _kwargs: Any) -> None:
        seen.calls += 1

    with torch.enable_grad(), bracketed([problem.model], on_entry, on_exit), seen:
        problem.training_loss(index, batch)
    of_batch = tensors_in(batch)
    return [t for t in seen.fixed if not any(is_equal(t, own) for own in of_batch)]


class _Combined(TorchFunctionMode):
    """Keeps the floating-point arguments without a graph of operations that also take one with a graph."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0
        self.fixed: list[Tensor] = []

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if not self.calls:
            tensors = [t for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor) and t.is_floating_point()]
            if any(t.grad_fn is not None for t in tensors):
                fixed = [t for t in tensors if not t.requires_grad and 1 < t.numel() <= MOST_NUMBERS]
                self.fixed += [t.detach().clone() for t in fixed]
        return func(*args, **(kwargs or {}))
