"""What is probed: the loss on some examples of the batch that a step has just been made with."""

from __future__ import annotations

import contextlib
from typing import Any

from torch import nn

from wellcond.problem.batches import cut, examples_in, share_examples
from wellcond.problem.loss.outputs import Loss
from wellcond.problem.problem import Problem
from wellcond.problem.training_step import NoTargets, TrainingStep

FEWEST_EXAMPLES = 8
LEAST_SHARE = 8
"""A probe takes 8 examples at least, but no more than an eighth of the batch: a sequence is many examples in one."""


class Subject:
    """Problems of parts of batches, all with one model and loss.

    Args:
        model: The model.
        loss: Its loss; None if it returns it.
    """

    def __init__(self, model: nn.Module, loss: Loss | None) -> None:
        self.model, self.loss = model, loss
        self._problem: Problem | None = None
        self._is_cut: bool | None = None
        self._couples: bool | None = None

    def couples_examples(self, batch: Any) -> bool:
        """Whether a BatchNorm makes an example's output depend on the others of its batch."""
        if self._couples is None:
            self._couples = self.problem(batch, examples_in(batch)).couples_examples
        return self._couples

    def problem(self, batch: Any, examples: int) -> Problem:
        """The problem of the first examples of a batch; of all, if the batch cannot be cut.

        Raises:
            InvalidProblem: The model cannot be measured, or the batch does not fit it.
        """
        if self._problem is None or self._is_stale(self._problem):
            self._problem = Problem(self.model, self.loss, self._listed(batch))
        problem = self._problem
        problem.batches = self._listed(batch)
        if self._is_cut is None and examples < examples_in(batch):
            with contextlib.closing(problem.data()) as data:
                self._is_cut = share_examples(batch) and problem.runs_on_part(next(data)[1])
        if self._is_cut:
            problem.batches = self._listed(cut(batch, examples)[0])
        return problem

    def _listed(self, batch: Any) -> list[Any]:
        return [(batch, NoTargets)] if isinstance(self.loss, TrainingStep) else [batch]

    def _is_stale(self, problem: Problem) -> bool:
        """Whether parameters were frozen, thawed, replaced or moved since the problem was made."""
        now = {name: p for name, p in self.model.named_parameters() if p.requires_grad}
        known = problem.params
        is_same = now.keys() == known.keys() and all(p is known[name] for name, p in now.items())
        first = next(iter(now.values()), None)
        return not is_same or first is None or (first.dtype, first.device) != (problem.dtype, problem.device)


def fewest(batch_size: int) -> int:
    """Examples of the smallest probe.

    >>> [fewest(size) for size in (1, 16, 128, 4096)]
    [1, 2, 8, 8]
    """
    return max(1, min(FEWEST_EXAMPLES, batch_size // LEAST_SHARE))
