"""Which examples of a batch the loss depends on, whatever their outputs are."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from wellcond.diagnosis.probes.subject import Subject
from wellcond.network.calling import is_equal, tensors_in
from wellcond.network.taps import bracketed
from wellcond.problem.loss.outputs import with_tensors
from wellcond.problem.training_step import TrainingStep

OUTPUT_CHANGES: tuple[Callable[[Tensor], Tensor], ...] = (
    lambda t: t,
    lambda t: t.roll(1, 0),
    lambda t: -t.roll(len(t) // 2, 0),
    lambda t: 0.1 * t,
)
"""Outputs at which the loss is asked: a hinge is flat at some, and a logarithm takes only positive ones."""
FEWEST_HEARD = 8
"""In a smaller batch, one example may be all that counts by chance."""
MOST_LABELS = 50
"""Values of targets that are labels, not numbers."""


@dataclass(frozen=True)
class Heard:
    """Examples of the first batch whose outputs the loss depends on.

    Attributes:
        examples: All examples of the batch.
        count: Those that the loss depends on.
        is_at_end: Whether it is one example, the first or the last.
        value: The only value of the targets whose examples do not count, though all others do; None if there is none.
        share: The share of the examples with this value.
        values: How many values the targets have.
    """

    examples: int
    count: int
    is_at_end: bool
    value: float | None = None
    share: float = 0.0
    values: int = 0


def heard(subject: Subject) -> Heard | None:
    """Differentiate the loss with respect to the outputs of the model, as they are and changed in a few ways.

    Returns:
        None if the model is not called as a whole, or the loss depends on none of its outputs by a gradient.
    """
    n = subject.examples
    if n < FEWEST_HEARD:
        return None
    counts = torch.zeros(n, dtype=torch.bool)
    passed: list[Tensor] = []
    for change in OUTPUT_CHANGES:
        gradients = _gradients(subject, change, passed)
        for gradient in gradients:
            counts |= gradient.cpu().reshape(n, -1).ne(0).any(1)
    if not bool(counts.any()):
        return None
    places = counts.nonzero().flatten().tolist()
    known = Heard(n, len(places), places in ([0], [n - 1]))
    labels = _labels(subject, passed)
    values = [] if labels is None else torch.unique(labels).tolist()
    if labels is None or not 2 <= len(values) <= MOST_LABELS:
        return known
    unheard = [value for value in values if not bool(counts[labels == value].any())]
    if len(unheard) != 1 or not bool(counts[labels != unheard[0]].all()) or int((labels == unheard[0]).sum()) < 2:
        return known
    is_ignored_by_design = not labels.is_floating_point() and unheard[0] < 0
    share = float((labels == unheard[0]).double().mean())
    return known if is_ignored_by_design else Heard(n, len(places), False, float(unheard[0]), share, len(values))


def _gradients(subject: Subject, change: Callable[[Tensor], Tensor], passed: list[Tensor]) -> list[Tensor]:
    """Of the loss by changed outputs of every call; none if the loss refuses them. Arguments of calls are noted."""
    n = subject.examples
    leaves: list[Tensor] = []

    def leaf(t: Tensor) -> Tensor:
        leaves.append(change(t.detach()).requires_grad_())
        return leaves[-1].clone()

    def on_exit(_module: nn.Module, output: Any) -> Any:
        by_example = [t for t in tensors_in(output) if t.is_floating_point() and t.dim() and len(t) == n]
        return with_tensors(output, {id(t): leaf(t) for t in by_example})

    def on_entry(_module: nn.Module, args: Any, kwargs: Any) -> None:
        passed.extend(tensors_in((args, kwargs)))

    # the user's loss may refuse such outputs in any way
    with contextlib.suppress(Exception), torch.enable_grad(), bracketed([subject.problem.model], on_entry, on_exit):
        loss = subject.problem.training_loss(0, (subject.inputs, subject.targets))
        gradients = torch.autograd.grad(loss, leaves, allow_unused=True)
        return [g for g in gradients if g is not None and bool(g.isfinite().all())]
    return []


def _labels(subject: Subject, passed: list[Tensor]) -> Tensor | None:
    """The only tensor that outputs are compared with, if it has one number for each example."""
    is_step = isinstance(subject.problem.loss, TrainingStep)
    tensors = tensors_in(subject.inputs if is_step else subject.targets)
    if is_step:
        tensors = [t for t in tensors if not any(is_equal(t, x) for x in passed)]
    if len(tensors) != 1 or tensors[0].numel() != subject.examples or tensors[0].is_complex():
        return None
    return tensors[0].detach().flatten().cpu()
