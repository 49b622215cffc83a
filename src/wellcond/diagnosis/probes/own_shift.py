"""Which token a model that computes its own loss from labels is asked for."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_unflatten

from wellcond.diagnosis.probes.subject import Subject
from wellcond.diagnosis.probes.unused_targets import unused_targets
from wellcond.network.calling import is_equal
from wellcond.network.taps import bracketed, tapped
from wellcond.problem.loss.outputs import own_loss
from wellcond.problem.training_step import TrainingStep

OWN_SHIFTS = (1, 0, 2, 3)
"""Shifts of the data that are looked for, the usual one first."""
REPEATED, FEWEST = 0.95, 32
"""Share of the labels that are tokens of another step, and fewest labels that are compared, as in `future`."""
NONE = 1e-5
"""Gradient over the largest, below which it is rounding: that of all other labels cancels out."""


@dataclass(frozen=True)
class OwnShift:
    """Labels that are tokens of the input, and how far the model itself shifts them.

    Attributes:
        of_data: The label at step t is the token at step t + of_data.
        of_model: The label at step t is compared with the output at step t − of_model, the last that its loss reaches.
        share: Share of the labels for which this is so.
        sees_past: Whether the loss of a label depends on earlier steps too.
    """

    of_data: int
    of_model: int
    share: float
    sees_past: bool


LossOf = Callable[[Any], Tensor]


def own_shift(subject: Subject) -> OwnShift | None:
    """Exchange one label in the middle, and differentiate the change of the loss by the embedded tokens.

    A training step may make the labels itself: then what it calls the model with is looked at.

    Returns:
        None if the loss is neither a training step nor one that uses no targets next to the inputs, if no labels of the
        batch are tokens of an embedded sequence, or if the loss of a label depends on later steps than its own: such a
        network reads the whole sequence.
    """
    problem = subject.problem
    if not isinstance(problem.loss, TrainingStep):
        if not subject.once(unused_targets):
            return None
        return _shift_in(subject, subject.inputs, lambda x: problem.training_loss(0, (x, subject.targets)))
    of_batch = _shift_in(subject, subject.inputs, lambda batch: problem.training_loss(0, (batch, subject.targets)))
    if of_batch is not None or (call := _only_call(subject)) is None:
        return of_batch
    return _shift_in(subject, call, lambda call: _computed(problem.model(*call[0], **call[1])))


def _computed(outputs: Any) -> Tensor:
    """The loss that a model computes itself, or the sum of its terms."""
    loss = own_loss(outputs)
    return torch.stack([*loss.values()]).sum() if isinstance(loss, Mapping) else loss


def _only_call(subject: Subject) -> tuple[Any, Any] | None:
    """The arguments with which a training step calls the model, if it does so once."""
    calls: list[tuple[Any, Any]] = []

    def entered(_module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        calls.append((args, kwargs))

    with torch.no_grad(), bracketed([subject.problem.model], entered, lambda *_: None):
        subject.problem.forward(0, subject.inputs)
    return calls[0] if len(calls) == 1 else None


def _shift_in(subject: Subject, arguments: Any, loss_of: LossOf) -> OwnShift | None:
    """The shift of labels among arguments, and that by which what computes the loss of them shifts them."""
    leaves, form = tree_flatten(arguments)
    for tokens, place, of_data, share in _pairs(leaves):
        labels = leaves[place]
        middle = labels.shape[1] // 2
        other = labels.clone()
        other[:, middle] = other[:, middle].roll(1, 0)
        other = torch.where(labels < 0, labels, other)  # places that do not count stay so
        changed = [*leaves[:place], other, *leaves[place + 1 :]]
        before, after = (_by_token(subject, loss_of, tree_unflatten(each, form), tokens) for each in (leaves, changed))
        if before is None or after is None or before.shape != after.shape:
            continue
        largest = max(float(before.abs().max()), float(after.abs().max()))
        reached = ((before - after).abs().amax((0, 2)) > NONE * largest).nonzero().flatten().tolist()
        if reached and reached[-1] <= middle:
            return OwnShift(of_data, middle - reached[-1], share, len(reached) > 1)
    return None


def _pairs(leaves: list[Any]) -> Iterator[tuple[Tensor, int, int, float]]:
    """Tokens, the place of labels that repeat them, the shift between them, and the share of the labels."""
    whole = [
        (place, t)
        for place, t in enumerate(leaves)
        if isinstance(t, Tensor) and t.dim() == 2 and not t.is_floating_point() and t.dtype != torch.bool
    ]
    for place, labels in whole:
        for at, tokens in whole:
            if at == place or tokens.shape != labels.shape or len(tokens) < 2:
                continue
            for steps in OWN_SHIFTS:
                x, y = tokens[:, steps:], labels[:, : labels.shape[1] - steps]
                counted = y >= 0
                if int(counted.sum()) < FEWEST or len(torch.unique(y[counted])) < 3:
                    continue
                share = float((x == y)[counted].double().mean())
                if share >= REPEATED:
                    yield tokens, place, steps, share
                    break


def _by_token(subject: Subject, loss_of: LossOf, arguments: Any, tokens: Tensor) -> Tensor | None:
    """Gradient of the loss by the embedded tokens; None if they are not embedded once, or the step refuses them."""
    tables = {name: m for name, m in subject.problem.model.named_modules() if isinstance(m, nn.Embedding)}
    embedded: list[Tensor] = []

    def noted(_name: str, _module: nn.Module, x: Any, output: Any) -> None:
        if isinstance(x, Tensor) and is_equal(x, tokens):
            embedded.append(output)

    with contextlib.suppress(Exception), torch.enable_grad(), tapped(tables, noted):
        loss = loss_of(arguments)
        if len(embedded) == 1:
            return torch.autograd.grad(loss, embedded, allow_unused=True)[0]
    return None
