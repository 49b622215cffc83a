"""What only training shows: copies in training mode, and the batches that are not measured, the last one above all."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Sized
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch.utils.data import DataLoader

from wellcond.diagnosis.inspection.failures import shortened_message
from wellcond.diagnosis.mini_batches import handful
from wellcond.errors import NonFinite
from wellcond.network.calling import dense_parts, failing_layer, tensors_in
from wellcond.network.guarded import Guarded
from wellcond.network.isolation.copies import copied
from wellcond.problem.batches import Batch, examples_in
from wellcond.problem.problem import Problem
from wellcond.results import Cost

SECONDS = 1.0
"""Time after which no further batch is read."""
MOST_PASSED = 4
"""Batches that are passed forward, a third of a training step each."""


@dataclass(frozen=True)
class Refused:
    """A batch that a copy in training could not be trained on.

    Attributes:
        index: Its number in the loader, from 0; None if it was not read, but is as large as the last one will be.
        examples: Its number of examples.
        usual: That of the first batch.
        error: What the model or the loss raised; "" if the loss is not finite.
        not_finite: Values of its inputs and targets that are NaN or infinite.
        layer: Name of the layer that raised; "" if it is the model itself, or the loss.
    """

    index: int | None
    examples: int
    usual: int
    error: str
    not_finite: int
    layer: str = ""


class _Outcome(NamedTuple):
    """What became of a batch: what was raised, in which layer, and whether the loss is finite."""

    error: str = ""
    layer: str = ""
    is_finite: bool = True


def reached_in_training(problem: Problem) -> frozenset[str]:
    """Names of the parameters that the loss depends on in training mode: a model may have a branch for each mode."""
    copy = _trained_copy(problem)
    with copy.measuring(), contextlib.closing(copy.draws(0)) as batches:
        problem.count_copies(Cost(1, 1))
        loss = copy.training_loss(0, next(batches))
        if not loss.requires_grad:
            return frozenset()
        gradients = torch.autograd.grad(loss, [*copy.params.values()], allow_unused=True)
    return frozenset(name for name, g in zip(copy.params, gradients, strict=True) if g is not None)


def refused(problem: Problem) -> Refused | None:
    """Read an epoch, as far as the time allows, and pass what is extreme in it through a copy in the model's own modes.

    Extreme are values that are not finite, examples of one index throughout, such as texts of padding alone, the
    fewest examples, the largest and smallest indices, and the most elements; at most `MOST_PASSED` batches are
    passed. If the time ends before the epoch does, the first examples of the first batch stand in for a last one that
    is smaller.

    Returns:
        The first batch that fails; None if there is none, or if the first batch of all fails.
    """
    copy = _trained_copy(problem)
    modes = [module.training for module in copy.model.modules()]  # a norm that is frozen takes a single example
    with copy.measuring(), torch.no_grad():
        for module, mode in zip(copy.model.modules(), modes, strict=True):
            module.training = mode
        first, extremes = _extremes(copy)
        for index, batch in extremes[:MOST_PASSED]:
            problem.count_copies(Cost(forwards=1))
            outcome = _passed(copy, index or 0, batch)
            if outcome != _Outcome():
                problem.count_copies(Cost(forwards=1))
                is_usual = _passed(copy, 0, first) != _Outcome()
                return None if is_usual else _refused(index, batch, first, outcome)
    return None


def targets_of_epoch(problem: Problem) -> tuple[list[Any], bool]:
    """The targets of every batch, as far as the time allows, and whether that is the whole epoch; nothing is passed."""
    began = time.perf_counter()
    targets: list[Any] = []
    with problem.measuring(), contextlib.closing(problem.draws(0, epochs=1)) as batches:
        for _, of_batch in batches:
            targets.append(of_batch)
            if time.perf_counter() - began > SECONDS:
                return targets, False
    return targets, True


def _trained_copy(problem: Problem) -> Problem:
    """The problem with a copy of its model, which `measuring()` puts into training mode."""
    return Problem(copied(problem.model), problem.loss, problem.source, dropout=0)


def _extremes(problem: Problem) -> tuple[Batch, list[tuple[int | None, Batch]]]:
    """The first batch of an epoch, and those others that are most unlike it, with their numbers; None if not read."""
    began = time.perf_counter()
    first: Batch | None = None
    unlike: dict[tuple[str, int], tuple[float, int | None, Batch]] = {}
    with contextlib.closing(problem.draws(0, epochs=1)) as batches:
        for index, batch in enumerate(batches):
            extents = _extents(batch)
            if first is None:
                first, usual = batch, extents
            for which, extent in extents.items():
                if extent > max(usual.get(which, -math.inf), unlike[which][0] if which in unlike else -math.inf):
                    unlike[which] = extent, index, batch
            if time.perf_counter() - began > SECONDS:
                size = _last_size(problem.loader)
                if size and size != examples_in(first):
                    unlike["few", 0] = 0.0, None, handful(problem, first, size)
                break
    assert first is not None  # a problem has batches
    order = sorted(unlike, key=lambda which: (EXTENTS.index(which[0]), -which[1]))  # targets before inputs
    return first, list({index: (index, batch) for _, index, batch in map(unlike.__getitem__, order)}.values())


EXTENTS = ("not finite", "blank", "few", "high", "low", "many")
"""Ways to be extreme, the likeliest to fail first."""


def _extents(batch: Batch) -> dict[tuple[str, int], float]:
    """How far a batch goes: by the ways of `EXTENTS`, and by the place of a tensor of indices."""
    tensors = tensors_in(batch)
    extents = {("not finite", 0): float(_not_finite(batch)), ("few", 0): -float(examples_in(batch))}
    extents["many", 0] = float(sum(t.numel() for t in tensors))
    for place, t in enumerate(tensors):
        if not t.is_floating_point() and not t.is_complex() and t.numel() and t.layout is torch.strided:
            low, high = (float(end) for end in t.aminmax())
            extents["high", place], extents["low", place] = high, -low
            if t.dim() > 1 and t[0].numel() > 1:
                rows = t.flatten(1)
                extents["blank", place] = float((rows == rows[:, :1]).all(1).sum())
    return extents


def _last_size(loader: object) -> int:
    """Examples of the last batch of a torch loader, 0 if all batches are full or nothing is known of it."""
    if not isinstance(loader, DataLoader) or loader.drop_last or not loader.batch_size:
        return 0
    return len(loader.sampler) % loader.batch_size if isinstance(loader.sampler, Sized) else 0


def _passed(problem: Problem, index: int, batch: Batch) -> _Outcome:
    try:
        with Guarded():
            return _Outcome(is_finite=math.isfinite(float(problem.training_loss(index, batch))))
    except NonFinite:
        return _Outcome(is_finite=False)
    except Exception as error:  # the user's model may raise anything
        return _Outcome(shortened_message(error), failing_layer(problem.model, error.__cause__ or error))


def _refused(index: int | None, batch: Batch, first: Batch, outcome: _Outcome) -> Refused:
    return Refused(index, examples_in(batch), examples_in(first), outcome.error, _not_finite(batch), outcome.layer)


def _not_finite(batch: Batch) -> int:
    parts = [part for t in tensors_in(batch) for part in dense_parts(t)]
    return sum(int((~part.isfinite()).sum()) for part in parts if part.is_floating_point())
