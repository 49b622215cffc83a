"""Parts of batches: the first examples, and a problem over pieces of its batches, whose graphs take less memory."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from itertools import pairwise

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from wellcond.errors import NonFinite
from wellcond.problem.batches import Batch, Source, examples_in, share_examples
from wellcond.problem.problem import Problem


def in_pieces(problem: Problem, examples: int) -> Problem:
    """The problem over pieces of its batches, with at most this many examples each, which count by their terms.

    Its means are those of the problem if the examples of a batch do not depend on each other (`adds_up`).
    """
    return Problem(problem.model, problem.loss, Pieces(problem, examples), problem.batchnorm, dropout=problem.dropout)


def adds_up(problem: Problem, batch: Batch, examples: int) -> bool:
    """Whether the gradient of a batch is the mean of those of its pieces, to rounding.

    It is not if a BatchNorm or the loss compares examples, or if random numbers are drawn for a whole batch at once.
    """
    params = list(problem.params.values())
    single = Problem(problem.model, problem.loss, [batch], problem.batchnorm, dropout=problem.dropout)
    pieces = in_pieces(single, examples)
    with problem.measuring():
        whole = problem.gradient(problem.training_loss(0, batch), params, allow_unused=True)
    with pieces.measuring():
        mean = pieces.loss_and_gradients()[1].values()
    problem.count_copies(pieces.cost / pieces.batch_count)
    pairs = [(m, w) for m, w in zip(mean, whole, strict=True) if m is not None and w is not None]
    off = torch.stack([(m - w).norm() for m, w in pairs]).norm()
    return bool(off <= math.sqrt(problem.eps) * torch.stack([w.norm() for _, w in pairs]).norm())


class Pieces(Source):
    """The batches of a problem in pieces, which are cut as they are read."""

    def __init__(self, whole: Problem, examples: int) -> None:
        super().__init__(_Cut(whole, examples), whole.device)
        self._fixed = self.loader, whole.held


class _Cut:
    def __init__(self, whole: Problem, examples: int) -> None:
        self._whole, self._examples = whole, examples
        self._in_batch = 1  # pieces of the last batch that was read

    def __length_hint__(self) -> int:
        return self._whole.batch_count * self._in_batch

    def __iter__(self) -> Iterator[Batch]:
        with contextlib.closing(self._whole.data()) as data:
            for _, batch in data:
                pieces = cut(batch, self._examples)
                self._in_batch = len(pieces)
                yield from pieces


def cut(batch: Batch, most: int) -> list[Batch]:
    """Parts of nearly equal size with at most `most` examples; the batch itself if it cannot be cut."""
    examples = examples_in(batch)
    if not share_examples(batch) or examples <= most:
        return [batch]
    parts = math.ceil(examples / most)
    bounds = [examples * k // parts for k in range(parts + 1)]
    return [_part(batch, slice(*ends)) for ends in pairwise(bounds)]


def first_examples(batch: Batch, count: int) -> Batch:
    """The first examples of a batch that can be cut."""
    return _part(batch, slice(count))


def runs_on_part(problem: Problem, batch: Batch) -> bool:
    """Whether the model runs on half of a batch: a graph's nodes look like examples, but belong to its edges."""
    if not share_examples(batch):
        return False
    try:
        with problem.measuring(), torch.no_grad():
            problem.training_loss(0, _part(batch, slice(max(1, examples_in(batch) // 2))))
    except NonFinite:
        return True
    except Exception:  # the user's model may raise anything
        return False
    return True


def _part(batch: Batch, which: slice) -> Batch:
    part: Batch = tree_map(lambda leaf: leaf[which] if isinstance(leaf, Tensor) else leaf, batch)
    return part
