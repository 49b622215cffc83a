"""Short runs of copies: the user's optimizer on mini-batches of the user's data, judged on the same batches after."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Sequence
from itertools import islice, pairwise
from operator import length_hint
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils._pytree import tree_leaves, tree_map

from wellcond.errors import InvalidProblem, NonFinite
from wellcond.nn.replace import copied
from wellcond.problem.problem import Batch, Problem
from wellcond.results import Cost
from wellcond.training.copies import READS_THE_MODEL, gradients_kept, leaves_of, twin_of
from wellcond.training.loop import train
from wellcond.training.run import Run

MOST_EXAMPLES = 64
"""In a mini-batch that is cut from a larger batch: its gradient is known well enough to see whether a step helps."""
MOST_BATCHES = 8


class Stage:
    """Where copies of a problem's model are trained, all from the same start and on the same batches in turn.

    Args:
        problem: Its model is copied, and never changed.
        batches: What the runs are on.
        batches_of_pass: How many such batches a whole pass over the problem has, which is u.
        deadline: By `time.perf_counter`, after which no run is to begin.

    Attributes:
        outsiders: Tensors outside of the copies to which the loss gives gradients; their `.grad` stays as it is.

    Raises:
        InvalidProblem: The loss reads the weights of the user's model, so that copies cannot be trained by it.
        NonFinite: The loss is not finite.
    """

    def __init__(
        self, problem: Problem, batches: Sequence[Batch], batches_of_pass: float, deadline: float = math.inf
    ) -> None:
        self.problem, self.batches, self.batches_of_pass = problem, list(batches), batches_of_pass
        self._deadline = deadline
        self.outsiders = self._outsiders()

    def course(
        self,
        made: Callable[[nn.Module], Optimizer],
        *,
        dropout: int | None = 0,
        batchnorm: Literal["batch", "running"] = "batch",
    ) -> Course:
        """A copy of the model with its optimizer, at the start.

        Args:
            made: The optimizer of a model.
            dropout: The seed of its masks; None: off.
            batchnorm: The statistics that it uses.
        """
        model = copied(self.problem.model)
        problem = Problem(model, self.problem.loss, self.batches, batchnorm=batchnorm, dropout=dropout)
        return Course(self, problem, made(model))

    @property
    def is_late(self) -> bool:
        """Whether no further run is to begin."""
        return time.perf_counter() > self._deadline

    def _outsiders(self) -> set[Tensor]:
        copy = Problem(copied(self.problem.model), self.problem.loss, self.batches, batchnorm="batch", dropout=0)
        inputs, targets = self.batches[0]
        self.count(1, 0)
        with copy.measuring():
            loss = copy.loss_of_outputs(copy.forward(0, inputs), targets)
        found = leaves_of(loss) - set(copy.params.values())
        if not found.isdisjoint(self.problem.params.values()):
            raise InvalidProblem(READS_THE_MODEL)
        return found

    def count(self, forwards: int, backwards: int) -> None:
        """Add passes over single batches to what the problem has cost."""
        share = self.problem.batch_count / self.batches_of_pass  # a part of a batch counts as its share
        self.problem.count_copies(Cost(forwards * share, backwards * share))


class Course:
    """One copy on its way.

    Attributes:
        losses: Of every step so far, before it.
        diverged_at: The step, from 1, whose loss was not finite; None if there is none.
        cause: What was not finite.
    """

    def __init__(self, stage: Stage, problem: Problem, optimizer: Optimizer) -> None:
        self._stage, self._problem, self._optimizer = stage, problem, optimizer
        self.losses: list[float] = []
        self.diverged_at: int | None = None
        self.cause = ""

    def run(self, steps: int) -> None:
        """Take so many steps more, unless it has diverged."""
        if self.diverged_at is not None:
            return
        begin, stage = len(self.losses), self._stage
        order = [stage.batches[(begin + k) % len(stage.batches)] for k in range(steps)]
        with self._problem.measuring(), gradients_kept(stage.outsiders):
            run = train(self._optimizer, lambda step, batch: self._loss(begin + step, batch), order, steps)
        self.losses += run.losses
        stage.count(len(run.losses), len(run.losses))
        if run.diverged_at is not None:
            self.diverged_at, self.cause = begin + run.diverged_at, run.cause

    def now(self) -> list[float]:
        """The loss of every batch at the weights as they are; NaN where it is not finite."""
        self._stage.count(len(self._stage.batches), 0)
        with self._problem.measuring(), torch.no_grad():
            return [self._finite_loss(*each) for each in enumerate(self._stage.batches)]

    def outputs(self) -> list[Any]:
        """What the model returns on every batch."""
        self._stage.count(len(self._stage.batches), 0)
        with self._problem.measuring(), torch.no_grad():
            return [self._problem.forward(index, inputs) for index, (inputs, _) in enumerate(self._stage.batches)]

    @property
    def targets(self) -> list[Any]:
        """Of every batch."""
        return [targets for _, targets in self._stage.batches]

    def loss_of(self, outputs: Any, targets: Any) -> Tensor:
        """The loss as a function of outputs."""
        return self._problem.loss_of_outputs(outputs, targets)

    @property
    def as_run(self) -> Run:
        """What it came to so far."""
        return Run(tuple(self.losses), self.diverged_at, self.cause)

    def _loss(self, index: int, batch: Batch) -> Tensor:
        return self._problem.loss_of_outputs(self._problem.forward(index, batch[0]), batch[1])

    def _finite_loss(self, index: int, batch: Batch) -> float:
        try:
            return float(self._loss(index, batch))
        except NonFinite:
            return math.nan


def twin(problem: Problem, optimizer: Optimizer, factor: float, **settings: Any) -> Callable[[nn.Module], Optimizer]:
    """Make copies of an optimizer with its settings and state: all its rates times a factor, for a copy of the model.

    Args:
        problem: Its model is the one that the optimizer holds.
        optimizer: The user's.
        factor: Of all rates.
        **settings: Others to set in every group.
    """

    def made(model: nn.Module) -> Optimizer:
        twin = twin_of(optimizer, problem.model, model)
        for group in twin.param_groups:
            rate = factor * rate_of(group)
            group["lr"] = torch.full_like(group["lr"], rate) if isinstance(group["lr"], Tensor) else rate
            group |= {name: value for name, value in settings.items() if name in group}
        return twin

    return made


def rate_of(group: dict[str, Any]) -> float:
    """A group's rate; where a schedule has it at zero, as a warm-up begins, the one that it belongs to."""
    return float(group["lr"]) or float(group.get("initial_lr", 0.0))


def mini_batches(problem: Problem, most: int = MOST_EXAMPLES) -> tuple[list[Batch], float]:
    """Some of the problem's batches, large ones cut, and how many like them a pass over the problem has."""
    with problem.measuring(), contextlib.closing(problem.data()) as data:
        whole = [batch for _, batch in islice(data, MOST_BATCHES)]
    count = length_hint(problem.batches, 0) or len(whole)
    pieces = [piece for batch in whole for piece in cut(batch, most)]
    return pieces[:MOST_BATCHES], count * len(pieces) / len(whole)


def cut(batch: Batch, most: int) -> list[Batch]:
    """Parts of nearly equal size with at most so many examples; the batch itself if not all in it counts examples."""
    examples = examples_of(batch)
    if examples is None or examples <= most:
        return [batch]
    parts = math.ceil(examples / most)
    bounds = [examples * k // parts for k in range(parts + 1)]
    return [_taken(batch, slice(*ends)) for ends in pairwise(bounds)]


def handful(batch: Batch, count: int) -> Batch:
    """The first few examples; the batch itself if not all in it counts examples."""
    return batch if examples_of(batch) is None else _taken(batch, slice(count))


def examples_of(batch: Batch) -> int | None:
    """How many examples a batch has, where every tensor of inputs and targets has them in front."""
    tensors = [leaf for leaf in tree_leaves(batch) if isinstance(leaf, Tensor)]
    sizes = {len(t) if t.dim() else 0 for t in tensors}
    return sizes.pop() if len(sizes) == 1 and 0 not in sizes else None


def _taken(batch: Batch, which: slice) -> Batch:
    taken: Batch = tree_map(lambda leaf: leaf[which] if isinstance(leaf, Tensor) else leaf, batch)
    return taken
