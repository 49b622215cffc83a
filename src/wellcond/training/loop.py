"""The one mini-batch loop of short trials, experiments and long runs."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import count, islice
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor
from torch.optim import Optimizer

from wellcond.errors import InvalidProblem, NonFinite
from wellcond.results import Progress, Row
from wellcond.training.checkpoint import Checkpoint
from wellcond.training.run import History, Run
from wellcond.training.schedules import Schedule, restart, show
from wellcond.training.step import EagerStep, Step

Batch = TypeVar("Batch")
Probe = Callable[[int], Iterable[Row]]
"""Called with the number of steps taken; returns what it measured."""

NO_MORE_BATCHES = "there are no more batches, and they cannot be read again; pass a list, or a generator without end."
READ_EVERY = 50
"""Steps after which the losses on a GPU are read, at the latest: reading waits for the device."""


def train(
    optimizer: Optimizer,
    loss_at: Callable[[int, Batch], Tensor],
    batches: Iterable[Batch] | Callable[[int], Batch],
    steps: int,
    *,
    before_step: Callable[[int, Batch], None] | None = None,
    evaluate: Probe | None = None,
    every: int = 1,
    progress: Progress | None = None,
) -> Run:
    """Take optimizer steps on the batches in turn, until the loss is no longer finite.

    The model is trained in the mode that it is in; modes, devices and random numbers are the caller's.

    Args:
        optimizer: It holds the parameters that are trained.
        loss_at: Called as (number of steps taken, batch); returns the mean loss of the batch with its graph. A
            `NonFinite` that it raises counts as divergence.
        batches: Read over and over in their order; or a generator without end; or a function of the number of steps
            taken.
        steps: How many steps to take.
        before_step: Called as (number of steps taken, next batch) before each step.
        evaluate: Called with the number of steps taken, before the first step and after every `every` of them;
            returns rows. One that is not finite counts as divergence.
        every: Steps from one evaluation to the next.
        progress: Called as (what is being done, share of all work done) after every step.

    Returns:
        The loss of every step, and where the run diverged if it did.

    Raises:
        InvalidProblem: There are no batches, or not enough and they cannot be read again.

    Example:
        The loss is w², from w = 1, and each step takes w to w − 2w/4.

        >>> import torch
        >>> w = torch.ones(1, requires_grad=True)
        >>> train(torch.optim.SGD([w], lr=0.25), lambda step, batch: (batch * w).square().mean(), [1.0], 3).losses
        [1.0, 0.25, 0.0625]
    """
    at = () if evaluate is None else range(0, steps + 1, every)
    loop = Loop(EagerStep(optimizer, loss_at), steps, at=at, before_step=before_step, evaluate=evaluate)
    return loop.run(batches, progress=progress)


class Loop(Generic[Batch]):
    """The loop itself, over steps of any kind.

    Args:
        step: Takes one step.
        steps: How many to take.
        at: The numbers of steps taken at which to look.
        before_step: As in `train`.
        evaluate: Called at looks; a row that is not finite counts as divergence.
        probes: Called at looks after it; their rows are kept, whatever they are.
        schedule: The factor of the learning rates at each step; it sees what was evaluated.
        checkpoint: Where to keep the state; a run that it holds goes on.
        settings: What a run that goes on must have in common with it, beside the optimizer.

    Attributes:
        history: What has happened so far.
    """

    def __init__(
        self,
        step: Step[Batch],
        steps: int,
        *,
        at: Collection[int] = (),
        before_step: Callable[[int, Batch], None] | None = None,
        evaluate: Probe | None = None,
        probes: Sequence[Probe] = (),
        schedule: Schedule | None = None,
        checkpoint: Checkpoint | None = None,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        self.step, self.steps, self.history = step, steps, History()
        self._at = at if isinstance(at, range) else frozenset(at)
        self._before_step, self._evaluate, self._probes = before_step, evaluate, probes
        self._schedule, self._checkpoint = schedule, checkpoint
        self._rates: list[Any] = [group.get("lr") for group in step.optimizer.param_groups]
        self._settings = {} if checkpoint is None else {"optimizer": _described(step.optimizer), **(settings or {})}
        restart(schedule)
        self._unread: list[float | Tensor] = []

    def run(self, batches: Iterable[Batch] | Callable[[int], Batch], progress: Progress | None = None) -> Run:
        """Take the steps, or those that are left."""
        if not self._resume():
            self._look(0)
        begin = len(self.history.losses)
        left = range(begin, self.steps if self.history.diverged_at is None else begin)
        for step, batch in zip(left, _stream(batches, begin), strict=False):
            self._take(step, batch)
            taken = step + 1
            is_look, is_saved = taken in self._at, self._is_saved_at(taken)
            if is_look or is_saved or taken == self.steps or self._is_read_now():
                self._read()
                if progress is not None and self.history.diverged_at is None:
                    progress("training", taken / self.steps)
            if is_look:
                self._look(taken)
            if is_saved or taken == self.steps or self.history.diverged_at is not None:
                self._save()
            if self.history.diverged_at is not None:
                break
        return self.history.run()

    def _take(self, step: int, batch: Batch) -> None:
        if self._before_step is not None:
            self._before_step(step, batch)
        if self._schedule is not None:
            for group, rate in zip(self.step.optimizer.param_groups, self._rates, strict=True):
                group["lr"] = rate * self._schedule(step)
        try:
            self._unread.append(self.step(step, batch))
        except NonFinite as error:
            self._read()
            self._diverged(step + 1, str(error))

    def _is_read_now(self) -> bool:
        return len(self._unread) == READ_EVERY or (bool(self._unread) and isinstance(self._unread[-1], float))

    def _read(self) -> None:
        """Take up the losses since the last time, as far as they are finite."""
        on_device = [loss for loss in self._unread if isinstance(loss, Tensor)]
        values: list[Any] = torch.stack(on_device).tolist() if on_device else self._unread
        self._unread = []
        for loss in values:
            if not math.isfinite(loss):
                self._diverged(len(self.history.losses) + 1)
                break
            self.history.losses.append(loss)

    def _look(self, taken: int) -> None:
        if taken not in self._at or self.history.diverged_at is not None:
            return
        before = len(self.history.evaluations)
        try:
            found = [] if self._evaluate is None else list(self._evaluate(taken))
            if not all(math.isfinite(row.value) for row in found):
                self._diverged(taken)
                return
            self.history.evaluations += found
            for probe in self._probes:
                self.history.evaluations += probe(taken)
        except NonFinite as error:
            self._diverged(taken, str(error))
        show(self._schedule, self.history.evaluations[before:])

    def _diverged(self, at: int, cause: str = "") -> None:
        if self.history.diverged_at is None:
            self.history.diverged_at, self.history.cause = at, cause

    # the checkpoint

    def _is_saved_at(self, taken: int) -> bool:
        return self._checkpoint is not None and taken > 0 and taken % self._checkpoint.every == 0

    def _save(self) -> None:
        if self._checkpoint is not None:
            self._checkpoint.save(self.history, self._settings)

    def _resume(self) -> bool:
        found = None if self._checkpoint is None else self._checkpoint.load(self._settings)
        if self._checkpoint is None or found is None:
            return False
        if len(found.losses) > self.steps:
            raise self._checkpoint.refusal(f"it has taken {len(found.losses)} steps, and not {self.steps} at most")
        self.history.losses += found.losses
        self.history.evaluations += found.evaluations
        self.history.diverged_at, self.history.cause = found.diverged_at, found.cause
        show(self._schedule, found.evaluations)
        return True


def _described(optimizer: Optimizer) -> str:
    """Its kind and its options, which tell one run from another."""
    options = [{name: group.get(name) for name in optimizer.defaults} for group in optimizer.param_groups]
    return f"{type(optimizer).__name__} {options}"


def _stream(batches: Iterable[Batch] | Callable[[int], Batch], begin: int) -> Iterator[Batch]:
    """The batches from that of a step on."""
    if callable(batches):
        return map(batches, count(begin))
    return islice(_cycled(batches), begin, None)


def _cycled(batches: Iterable[Batch]) -> Iterator[Batch]:
    is_empty = False
    while not is_empty:
        is_empty = True
        for batch in batches:
            is_empty = False
            yield batch
    raise InvalidProblem(NO_MORE_BATCHES)
