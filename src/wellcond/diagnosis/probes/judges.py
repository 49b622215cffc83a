"""Whether another network judges what a model gives, as a critic does: its value may fall and rise without a bound.

It may be no part of the model, or a part of it that has a turn and an optimizer of its own.
"""

from __future__ import annotations

import contextlib
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from wellcond.diagnosis.probes.subject import Subject
from wellcond.network.calling import tensors_in
from wellcond.network.taps import bracketed, called_anywhere
from wellcond.problem.problem import Problem
from wellcond.problem.training_step import TrainingStep

STRETCHED = 1.5
"""Factor of the numbers of other data."""


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


def judged_part(subject: Subject) -> str | None:
    """The part of a model that a step calls first, if nothing but what it gives decides on the loss: a generator, say.

    The loss of other data is the same where that part gives what it gave for these. A head that is compared with
    labels, or a decoder with the data, sees them besides. It takes two passes.

    Returns:
        Its name; None for other losses than a step, or if the model as a whole is called, or the step refuses the data.
    """
    if not isinstance(subject.problem.loss, TrainingStep):
        return None
    parts = {
        module: name
        for name, module in subject.problem.model.named_children()
        if any(True for _ in module.parameters())
    }
    known: list[tuple[nn.Module, Any]] = []
    calls: list[nn.Module] = []

    def noted(module: nn.Module, output: Any) -> None:
        known.append((module, output))

    def first_again(module: nn.Module, _output: Any) -> Any:
        calls.append(module)
        return known[0][1] if module is known[0][0] else None

    data = (subject.inputs, subject.targets)
    with torch.enable_grad():
        with bracketed(parts, lambda *_: None, noted):
            loss = subject.problem.training_loss(0, data)
        if len({module for module, _ in known}) < 2 or sum(module is known[0][0] for module, _ in known) > 1:
            return None
        with bracketed(parts, lambda *_: None, first_again):
            other = subject.problem.training_loss(0, tree_map(_other, data))
    is_same = torch.allclose(loss.detach(), other.detach(), rtol=subject.tolerance)
    return parts[known[0][0]] if is_same and len(calls) == len(known) else None


def _other(value: Any) -> Any:
    """Another example's data, of another size."""
    if not isinstance(value, Tensor) or not value.dim():
        return value
    if value.layout is not torch.strided:  # a graph, whose edges are no examples
        return value * STRETCHED if value.is_floating_point() else value
    return value.roll(1, 0) * STRETCHED if value.is_floating_point() else value.roll(1, 0)
