"""Which token a model that computes its own loss from labels is asked for."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_unflatten

from wellcond.diagnosis.probes.subject import Subject
from wellcond.diagnosis.probes.unused_targets import unused_targets
from wellcond.network.calling import is_equal
from wellcond.network.taps import tapped
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


def own_shift(subject: Subject) -> OwnShift | None:
    """Exchange one label in the middle, and differentiate the change of the loss by the embedded tokens.

    Returns:
        None if the loss is neither a training step nor one that uses no targets next to the inputs, if no labels of the
        batch are tokens of an embedded sequence, or if the loss of a label depends on later steps than its own: such a
        network reads the whole sequence.
    """
    if not isinstance(subject.problem.loss, TrainingStep) and not subject.once(unused_targets):
        return None
    leaves, form = tree_flatten(subject.inputs)
    for tokens, place, of_data, share in _pairs(leaves):
        labels = leaves[place]
        middle = labels.shape[1] // 2
        other = labels.clone()
        other[:, middle] = other[:, middle].roll(1, 0)
        other = torch.where(labels < 0, labels, other)  # places that do not count stay so
        changed = [*leaves[:place], other, *leaves[place + 1 :]]
        before, after = (_by_token(subject, tree_unflatten(each, form), tokens) for each in (leaves, changed))
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


def _by_token(subject: Subject, batch: Any, tokens: Tensor) -> Tensor | None:
    """Gradient of the loss by the embedded tokens; None if they are not embedded once, or the step refuses them."""
    model = subject.problem.model
    tables = {name: m for name, m in model.named_modules() if isinstance(m, nn.Embedding)}
    embedded: list[Tensor] = []

    def noted(_name: str, _module: nn.Module, x: Any, output: Any) -> None:
        if isinstance(x, Tensor) and is_equal(x, tokens):
            embedded.append(output)

    with contextlib.suppress(Exception), torch.enable_grad(), tapped(tables, noted):
        loss = subject.problem.training_loss(0, (batch, subject.targets))
        if len(embedded) == 1:
            return torch.autograd.grad(loss, embedded, allow_unused=True)[0]
    return None
