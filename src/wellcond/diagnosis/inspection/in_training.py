"""What only training shows: copies in training mode, and the batches that are not measured, the last one above all."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Generator, Sized
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from wellcond.diagnosis.inspection.failures import shortened_message
from wellcond.diagnosis.mini_batches import handful
from wellcond.errors import NonFinite
from wellcond.network.calling import tensors_in
from wellcond.network.isolation.copies import copied
from wellcond.problem.batches import examples_in
from wellcond.problem.problem import Batch, Problem
from wellcond.results import Cost

SECONDS = 1.0
"""Time after which no further batch is read."""


@dataclass(frozen=True)
class Refused:
    """A batch that a copy in training could not be trained on.

    Attributes:
        index: Its number in the loader, from 0; None if it was not read, but is as large as the last one will be.
        examples: Its number of examples.
        usual: That of the first batch.
        error: What the model or the loss raised; "" if the loss is not finite.
        not_finite: Values of its inputs and targets that are NaN or infinite.
    """

    index: int | None
    examples: int
    usual: int
    error: str
    not_finite: int


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
    """Read an epoch, as far as the time allows, and pass what is new in it through a copy in the model's own modes.

    New are other shapes, indices outside of the range so far, and values that are not finite. If the time ends before
    the epoch does, the first examples of the first batch stand in for a last one that is smaller.

    Returns:
        The first batch that fails; None if there is none, or if the first batch of all fails.
    """
    copy = _trained_copy(problem)
    modes = [module.training for module in copy.model.modules()]  # a norm that is frozen takes a single example
    with copy.measuring(), torch.no_grad(), contextlib.closing(_unlike_before(copy)) as batches:
        for module, mode in zip(copy.model.modules(), modes, strict=True):
            module.training = mode
        first: Batch | None = None
        for index, batch in batches:
            first = first or batch
            error, is_finite = _passed(copy, index or 0, batch)
            problem.count_copies(Cost(forwards=1))
            if error or not is_finite:
                return None if batch is first else _refused(index, batch, first, error)
    return None


def _trained_copy(problem: Problem) -> Problem:
    """The problem with a copy of its model, which `measuring()` puts into training mode."""
    return Problem(copied(problem.model), problem.loss, problem.source, dropout=0)


def _unlike_before(problem: Problem) -> Generator[tuple[int | None, Batch], None, None]:
    """The first batch of an epoch, all that differ in kind from those before, and one of the size of the last."""
    began = time.perf_counter()
    first: Batch | None = None
    shapes: set[tuple[torch.Size, ...]] = set()
    ranges: dict[int, tuple[int, int]] = {}
    with contextlib.closing(problem.draws(0, epochs=1)) as batches:
        for index, batch in enumerate(batches):
            first = first or batch
            tensors = tensors_in(batch)
            shape = tuple(t.shape for t in tensors)
            is_wider = _widen(ranges, tensors)
            # an index out of range ends the process of a GPU, which no measurement may risk
            if shape not in shapes or (is_wider and problem.device.type == "cpu") or _not_finite(batch):
                yield index, batch
            shapes.add(shape)
            if time.perf_counter() - began > SECONDS:
                break
        else:
            return
    size = _last_size(problem.loader)
    if size and size != examples_in(first):
        yield None, handful(problem, first, size)


def _widen(ranges: dict[int, tuple[int, int]], tensors: list[Tensor]) -> bool:
    """Take indices into the ranges seen so far, by place; whether any range becomes wider."""
    is_wider = False
    for place, t in enumerate(tensors):
        if t.is_floating_point() or t.is_complex() or not t.numel() or t.layout is not torch.strided:
            continue
        low, high = (int(end) for end in t.aminmax())
        before = ranges.get(place, (low, high))
        ranges[place] = min(low, before[0]), max(high, before[1])
        is_wider |= ranges[place] != before
    return is_wider


def _last_size(loader: object) -> int:
    """Examples of the last batch of a torch loader, 0 if all batches are full or nothing is known of it."""
    if not isinstance(loader, DataLoader) or loader.drop_last or not loader.batch_size:
        return 0
    return len(loader.sampler) % loader.batch_size if isinstance(loader.sampler, Sized) else 0


def _passed(problem: Problem, index: int, batch: Batch) -> tuple[str, bool]:
    """What the model or the loss raises on a batch, and whether its loss is finite."""
    try:
        return "", math.isfinite(float(problem.training_loss(index, batch)))
    except NonFinite:
        return "", False
    except Exception as error:  # the user's model may raise anything
        return shortened_message(error), True


def _refused(index: int | None, batch: Batch, first: Batch, error: str) -> Refused:
    return Refused(index, examples_in(batch), examples_in(first), error, _not_finite(batch))


def _not_finite(batch: Batch) -> int:
    return sum(int((~t.isfinite()).sum()) for t in tensors_in(batch) if t.is_floating_point())
