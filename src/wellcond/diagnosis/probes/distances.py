"""Whether a step moves what belongs together apart: distances of what a batch holds, next to those of what is drawn."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import Node

from wellcond.diagnosis.probes.subject import Subject
from wellcond.network.calling import tensors_in
from wellcond.network.graph import inputs_of, plain
from wellcond.network.taps import bracketed
from wellcond.problem.training_step import TrainingStep

NORMS = ("LinalgVectorNorm", "Norm", "Sqrt", "Cdist", "EuclideanDist")
"""Last operations of a distance."""
TERMS = ("Pow", "Abs")
"""Operations whose sum is one: of squares or of absolute values. A square may be a product with itself, too."""
FEWEST_DISTANCES = 8
"""Distances in a call, at least."""


@dataclass(frozen=True)
class Distances:
    """Mean slopes of the loss in two kinds of distances, each times their number.

    Attributes:
        held: Of what the batch holds, the same in two passes: above zero if a step makes them smaller.
        drawn: Of what the step draws, other things in another pass.
    """

    held: float
    drawn: float

    @property
    def move_apart(self) -> bool:
        """Whether a step makes the distances in the batch larger, and drawn ones smaller."""
        return self.held < 0 < self.drawn


def distances(subject: Subject) -> Distances | None:
    """Differentiate the loss of a step with respect to distances that two calls of the model return.

    It takes two passes with other random numbers: calls whose inputs differ are of what is drawn.

    Returns:
        None for other losses than a training step, or unless some calls are of what the batch holds and others of what
        is drawn, and all return distances: a norm, or a sum of squares or absolute values, for each example.
    """
    problem = subject.problem
    if not isinstance(problem.loss, TrainingStep):
        return None
    passes = [_calls(subject, draw) for draw in (0, 1)]
    first, second = passes
    if len(first) < 2 or len(first) != len(second):
        return None
    slopes: dict[bool, float] = {}
    for one, other in zip(first, second, strict=True):
        if one.slope is None or not one.is_distance:
            return None
        is_drawn = not _are_same(one.inputs, other.inputs)
        slopes[is_drawn] = slopes.get(is_drawn, 0.0) + one.slope
    return Distances(slopes[False], slopes[True]) if len(slopes) == 2 else None


@dataclass
class _Measured:
    """A call of the model: its inputs, whether it returns distances, and the sum of the slopes of the loss in them."""

    inputs: list[Tensor]
    output: Tensor | None = None
    is_distance: bool = False
    slope: float | None = None


def _calls(subject: Subject, draw: int) -> list[_Measured]:
    calls: list[_Measured] = []

    def entered(_module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        calls.append(_Measured([t.detach().clone() for t in tensors_in((args, kwargs))]))

    def exited(_module: nn.Module, output: Any) -> None:
        calls[-1].output = output if isinstance(output, Tensor) and output.numel() >= FEWEST_DISTANCES else None

    problem = subject.problem
    with torch.enable_grad(), bracketed([problem.model], entered, exited):
        loss = problem.training_loss(draw, (subject.inputs, subject.targets))
    known = [call for call in calls if call.output is not None and call.output.requires_grad]
    if not loss.requires_grad or len(known) < 2:
        return calls
    outputs = [call.output for call in known if call.output is not None]
    gradients = torch.autograd.grad(loss, outputs, allow_unused=True)
    for call, output, gradient in zip(known, outputs, gradients, strict=True):
        call.is_distance = _is_distance(output)
        call.slope = None if gradient is None else float(gradient.double().sum())
    return calls


def _is_distance(output: Tensor) -> bool:
    """Whether the last operation is a norm, or a sum of squares or of absolute values."""
    node = output.grad_fn
    if node is None:
        return False
    if plain(node) in NORMS:
        return True
    if plain(node) != "Sum" or not bool((output >= 0).all()):
        return False
    return any(plain(each) in TERMS or _is_square(each) for each in inputs_of(node))


def _is_square(node: Node) -> bool:
    """Whether a product is that of one thing with itself: positive ones of two things are similarities."""
    factors = [each for each, _ in node.next_functions]
    return plain(node) == "Mul" and len(factors) == 2 and factors[0] is factors[1] is not None


def _are_same(one: list[Tensor], other: list[Tensor]) -> bool:
    return len(one) == len(other) and all(
        a.shape == b.shape and torch.equal(a, b) for a, b in zip(one, other, strict=True)
    )
