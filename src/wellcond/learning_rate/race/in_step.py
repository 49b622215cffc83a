"""`InStep`: runs of copies in step with each other, on the same batches and with the same dropout masks."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Collection, Iterator

from wellcond.problem.batches import Batch
from wellcond.training.copy_run import CopyRun
from wellcond.training.copy_trainer import CopyTrainer

RECENT = 8
"""Batches that runs in step remember."""


@contextlib.contextmanager
def in_step(trainer: CopyTrainer, seed: int = 0) -> Iterator[InStep]:
    """Runs in step with each other, on the same batches and with the same dropout masks.

    Args:
        trainer: It starts the runs, each of which then joins.
        seed: As in `CopyTrainer.start`.
    """
    with contextlib.ExitStack() as stack:
        yield InStep(stack.enter_context(trainer.batches(seed)), stack)


class InStep:
    """Runs in step with each other: each batch is read once, and all are trained on it.

    Batches are stored, so that another run can still join, until `close()`.

    Attributes:
        recent: The last few batches.
    """

    def __init__(self, batches: Iterator[Batch], stack: contextlib.ExitStack) -> None:
        self._batches, self._stack = batches, stack
        self._stored: list[Batch] | None = []
        self.recent: deque[Batch] = deque(maxlen=RECENT)

    def join(self, run: CopyRun) -> None:
        """Train a further run on the batches that the others have seen."""
        assert self._stored is not None
        self._stack.enter_context(run.training())
        for batch in self._stored:
            run.step(batch)

    def advance(self, runs: Collection[CopyRun]) -> None:
        """Take one step of these runs, all on the next batch."""
        if all(run.diverged_at is not None for run in runs):
            return
        batch = next(self._batches)
        self.recent.append(batch)
        if self._stored is not None:
            self._stored.append(batch)
        for run in runs:
            run.step(batch)

    def close(self) -> None:
        """Store no further batches: no run will join."""
        self._stored = None
