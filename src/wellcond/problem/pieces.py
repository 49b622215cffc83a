"""A problem over pieces of its batches, whose graphs take less memory."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator

import torch

from wellcond.problem.batches import Batch, Source, cut
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
