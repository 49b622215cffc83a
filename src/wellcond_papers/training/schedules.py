"""Schedules of the learning rate: each gives the factor of the initial rate at a step."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from wellcond.results import Row
from wellcond.results.quantities import TEST_ACCURACY, TEST_LOSS

Schedule = Callable[[int], float]
"""The factor of the optimizer's initial learning rates at a step, counted from 0."""


def constant(step: int) -> float:
    """Always 1."""
    return 1.0


def steps(at: Sequence[int], factor: float = 0.1) -> Schedule:
    """Multiply by `factor` from each of these steps on.

    Example:
        >>> schedule = steps([10, 20])
        >>> [round(schedule(step), 4) for step in (9, 10, 20)]
        [1.0, 0.1, 0.01]
    """
    return lambda step: factor ** sum(step >= begin for begin in at)


def cosine(length: int, end: float = 0.0) -> Schedule:
    """Go from 1 to `end` along half a cosine, over `length` steps.

    Example:
        >>> [round(cosine(10)(step), 4) for step in (0, 5, 10, 11)]
        [1.0, 0.5, 0.0, 0.0]
    """
    return lambda step: end + (1 - end) * (1 + math.cos(math.pi * min(step / length, 1.0))) / 2


@dataclass(frozen=True)
class WarmUp:
    """The schedule that `warm_up` returns."""

    length: int
    then: Schedule
    begin: float

    def __call__(self, step: int) -> float:
        if step >= self.length:
            return self.then(step)
        return (self.begin + (1 - self.begin) * (step + 1) / self.length) * self.then(step)

    def see(self, rows: Iterable[Row]) -> None:
        """Pass evaluations on to the schedule that follows."""
        show(self.then, rows)

    def restart(self) -> None:
        """Restart the schedule that follows."""
        restart(self.then)


def warm_up(length: int, then: Schedule = constant, begin: float = 0.0) -> Schedule:
    """Another schedule, times a factor that grows linearly from `begin` and is 1 at the last of `length` steps.

    Example:
        >>> schedule = warm_up(4, steps([10]))
        >>> [schedule(step) for step in (0, 1, 3, 4, 10)]
        [0.25, 0.5, 1.0, 1.0, 0.1]
    """
    return WarmUp(length, then, begin)


class Plateau:
    """The schedule that `plateau` returns: it remembers the evaluations of one run.

    Its state follows from these evaluations alone, so that a resumed run only has to show them again; a scheduler of
    torch would have to be stored.
    """

    def __init__(self, watched: str, patience: int, factor: float, threshold: float) -> None:
        self.watched, self.patience, self.factor, self.threshold = watched, patience, factor, threshold
        self.restart()

    def restart(self) -> None:
        """Forget the previous run."""
        self._best, self._waited, self._now = math.inf, 0, 1.0

    def __call__(self, step: int) -> float:
        return self._now

    def see(self, rows: Iterable[Row]) -> None:
        """Update the factor from new evaluations."""
        sign = -1.0 if self.watched == TEST_ACCURACY else 1.0
        for value in (sign * row.value for row in rows if row.quantity == self.watched):
            if value < self._best - self.threshold:
                self._best, self._waited = value, 0
                continue
            self._waited += 1
            if self._waited == self.patience:
                self._now, self._waited = self._now * self.factor, 0


def plateau(watched: str = TEST_LOSS, patience: int = 1, factor: float = 0.5, threshold: float = 0.0) -> Plateau:
    """Multiply by `factor` when an evaluation has not improved for a while.

    Args:
        watched: The quantity of the evaluation, such as `TRAINING_LOSS`. The smaller the better, except for
            `TEST_ACCURACY`.
        patience: Evaluations in a row without a new best before each change.
        factor: The factor of each change.
        threshold: A new best must be better by more than this.

    Example:
        >>> schedule = plateau(patience=2)
        >>> for step, loss in enumerate([3.0, 2.0, 2.0, 2.5]):
        ...     schedule.see([Row(step, "", TEST_LOSS, loss, "")])
        >>> schedule(4)
        0.5
    """
    return Plateau(watched, patience, factor, threshold)


def show(schedule: Schedule | None, rows: Iterable[Row]) -> None:
    """Show evaluations to a schedule that depends on them."""
    if isinstance(schedule, (Plateau, WarmUp)):
        schedule.see(rows)


def restart(schedule: Schedule | None) -> None:
    """Tell a schedule that depends on evaluations that a new run begins."""
    if isinstance(schedule, (Plateau, WarmUp)):
        schedule.restart()
