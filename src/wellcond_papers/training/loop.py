"""`Loop`: long training runs, with schedules, evaluations during training and checkpoints."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import count, islice
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor
from torch.optim import Optimizer

from wellcond.errors import InvalidProblem, NonFinite
from wellcond.results import Progress, Row
from wellcond.results.run import Run
from wellcond_papers.training.checkpoint import SECONDS, Checkpoint
from wellcond_papers.training.history import History
from wellcond_papers.training.schedules import Schedule, restart, show

Batch = TypeVar("Batch")
Probe = Callable[[int], Iterable[Row]]
"""Called with the number of steps taken; returns the rows it measured."""
NO_MORE_BATCHES = "there are no more batches, and they cannot be read again; pass a list, or a generator without end."
READ_EVERY = 50
"""Losses on a GPU are read after at most this many steps: reading waits for the device."""


class Loop(Generic[Batch]):
    """Takes steps until the loss is no longer finite, and evaluates in between.

    Args:
        optimizer: Its learning rates are multiplied by the schedule.
        step: Takes one step, called as (number of steps taken, batch). Returns the loss before the step: a number, or
            a tensor on the device that is read later, so that nothing waits for the device. If it raises `NonFinite`,
            the run has diverged.
        steps: The number of steps to take.
        at: The numbers of steps taken at which to evaluate and probe; 0 is before the first step.
        evaluate: Called at these steps; a row that is not finite counts as divergence.
        probes: Called after it; their rows are stored even if they are not finite.
        schedule: The factor of the learning rates at each step; it sees the evaluations.
        checkpoint: Where to save the state; a run that was saved there continues.
        settings: Further settings that must be the same when a saved run continues; the optimizer's always must.

    Attributes:
        history: What has happened so far.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        step: Callable[[int, Batch], float | Tensor],
        steps: int,
        *,
        at: Collection[int] = (),
        evaluate: Probe | None = None,
        probes: Sequence[Probe] = (),
        schedule: Schedule | None = None,
        checkpoint: Checkpoint | None = None,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        self.history = History()
        self._optimizer, self._step, self._steps = optimizer, step, steps
        self._at = at if isinstance(at, range) else frozenset(at)
        self._evaluate, self._probes = evaluate, probes
        self._schedule, self._checkpoint = schedule, checkpoint
        self._rates: list[Any] = [group.get("lr") for group in optimizer.param_groups]
        self._settings = {} if checkpoint is None else {"optimizer": _described(optimizer), **(settings or {})}
        restart(schedule)
        self._unread: list[float | Tensor] = []
        self._saved = time.monotonic()

    def run(self, batches: Iterable[Batch] | Callable[[int], Batch], progress: Progress | None = None) -> Run:
        """Take the steps, or those that are left.

        Args:
            batches: Read again from the start when they end; or a function of the number of steps taken.
            progress: Called as (what is being done, share of all work done).
        """
        if not self._resume():
            self._look(0)
        begin = len(self.history.losses)
        remaining = range(begin, self._steps if self.history.diverged_at is None else begin)
        for step, batch in zip(remaining, _stream(batches, begin), strict=False):
            self._take(step, batch)
            taken = step + 1
            is_look, is_saved = taken in self._at, self._is_saved_at(taken)
            if is_look or is_saved or taken == self._steps or self._is_read_now():
                self._read()
                if progress is not None and self.history.diverged_at is None:
                    progress("training", taken / self._steps)
            if is_look:
                self._look(taken)
            if is_saved or taken == self._steps or self.history.diverged_at is not None:
                self._save()
            if self.history.diverged_at is not None:
                break
        return self.history.run()

    def _take(self, step: int, batch: Batch) -> None:
        if self._schedule is not None:
            for group, rate in zip(self._optimizer.param_groups, self._rates, strict=True):
                group["lr"] = rate * self._schedule(step)
        try:
            self._unread.append(self._step(step, batch))
        except NonFinite as error:
            self._read()
            self._diverged(step + 1, str(error))

    def _is_read_now(self) -> bool:
        return len(self._unread) == READ_EVERY or (bool(self._unread) and isinstance(self._unread[-1], float))

    def _read(self) -> None:
        """Add the unread losses to the history, up to the first that is not finite."""
        on_device = [loss for loss in self._unread if isinstance(loss, Tensor)]
        values: list[Any] = torch.stack(on_device).tolist() if on_device else self._unread
        self._unread = []
        for loss in values:
            if not math.isfinite(loss):
                self._diverged(len(self.history.losses) + 1)
                break
            self.history.losses.append(loss)

    def _look(self, taken: int) -> None:
        """Evaluate and probe."""
        if taken not in self._at or self.history.diverged_at is not None:
            return
        before = len(self.history.evaluations)
        try:
            rows = [] if self._evaluate is None else list(self._evaluate(taken))
            if not all(math.isfinite(row.value) for row in rows):
                self._diverged(taken)
                return
            self.history.evaluations += rows
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
        if self._checkpoint is None:
            return False
        every = self._checkpoint.every
        return time.monotonic() - self._saved > SECONDS if every is None else taken % every == 0

    def _save(self) -> None:
        if self._checkpoint is not None:
            self._checkpoint.save(self.history, self._settings)
            self._saved = time.monotonic()

    def _resume(self) -> bool:
        """Continue from the checkpoint, if there is one."""
        history = None if self._checkpoint is None else self._checkpoint.load(self._settings)
        if self._checkpoint is None or history is None:
            return False
        if len(history.losses) > self._steps:
            raise self._checkpoint.refusal(f"it has taken {len(history.losses)} steps, and not {self._steps} at most")
        self.history = history
        show(self._schedule, history.evaluations)
        return True


def _described(optimizer: Optimizer) -> str:
    """The optimizer's type and options, which distinguish runs."""
    options = [{name: group.get(name) for name in optimizer.defaults} for group in optimizer.param_groups]
    return f"{type(optimizer).__name__} {options}"


def _stream(batches: Iterable[Batch] | Callable[[int], Batch], begin: int) -> Iterator[Batch]:
    """The batches of this step and all later ones."""
    if callable(batches):
        return map(batches, count(begin))
    return islice(cycled(batches), begin, None)


def cycled(batches: Iterable[Batch]) -> Iterator[Batch]:
    """The batches over and over, in their order.

    Raises:
        InvalidProblem: They have ended and cannot be read again.
    """
    is_empty = False
    while not is_empty:
        is_empty = True
        for batch in batches:
            is_empty = False
            yield batch
    raise InvalidProblem(NO_MORE_BATCHES)
