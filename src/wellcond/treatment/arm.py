"""`Arm`: all runs of one remedy, or of the untreated network, and how far two arms differ."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean, median, variance
from typing import NamedTuple

from wellcond.results import Row, number
from wellcond.results.quantities import (
    DIVERGED_AT,
    FINAL_LOSS,
    HELD_OUT_LOSS,
    SCREENED_LOSS,
    STEP_MEMORY,
    STEP_TIME,
    TRAINED_LR,
)
from wellcond.treatment.judged_run import JudgedRun
from wellcond.treatment.student import two_sided_quantile

LEVEL = 0.95
"""Probability that all intervals of a treatment hold what they should."""

NOT_FINITE = "not finite on held-out data"


class Spread(NamedTuple):
    """The median, the smallest and the largest of some values."""

    median: float
    least: float
    greatest: float

    def __str__(self) -> str:
        middle, least, greatest = map(number, (self.median, self.least, self.greatest))
        return middle if least == greatest else f"{middle} ({least} to {greatest})"


class Change(NamedTuple):
    """The mean difference of two arms, and an interval that holds the true one; both ends are the mean of one pair.

    Two things are samples: seeds, and held-out batches. Of differences d(seed, batch) the mean has the variance
    s²(means over batches)/seeds + s²(means over seeds)/batches, at most: what is neither is counted twice. Its degrees
    of freedom follow from those of the two (Satterthwaite 1946), rounded down.
    """

    mean: float
    low: float
    high: float

    @classmethod
    def of(cls, differences: Sequence[Sequence[float]], *, comparisons: float = 1) -> Change:
        """The change by differences, seed by seed and then batch by batch.

        Args:
            differences: The same number for each seed.
            comparisons: The number of intervals, all of which are right with a probability of 95 % (Bonferroni); more
                where only a part of the 5 % is theirs.

        Example:
            >>> print(Change.of([[1.0], [2.0], [3.0]]))       # 2 ± 4.303 · 1/√3
            +2 (-0.484 to +4.48)
        """
        by_seed = [fmean(of_seed) for of_seed in differences]
        by_batch = [fmean(of_batch) for of_batch in zip(*differences, strict=True)]
        mean = fmean(by_seed)
        parts = [(variance(each) / len(each), len(each) - 1) for each in (by_seed, by_batch) if len(each) > 1]
        total = sum(part for part, _ in parts)
        if not total:
            return cls(mean, mean, mean)
        degrees = int(total**2 / sum(part**2 / freedom for part, freedom in parts))
        half = two_sided_quantile(degrees, 1 - (1 - LEVEL) / comparisons) * math.sqrt(total)
        return cls(mean, mean - half, mean + half)

    def __str__(self) -> str:
        mean, low, high = (f"{'+' if value > 0 else ''}{number(value)}" for value in self)
        return mean if low == high else f"{mean} ({low} to {high})"


@dataclass(frozen=True)
class Arm:
    """All runs of one remedy, of several together, or of the untreated network.

    Attributes:
        name: The remedy, `"a + b"` for two together, or `"untreated"`.
        runs: Runs by learning rate, then by seed; empty if the arm went no further than the screening.
        refused: Why the network cannot have this remedy, or None.
        why: What the remedy does, and when it helps.
        code: The lines to write, with `{lr}` in place of the learning rate.
        longer: Longer runs by seed, which confirm a winner, or tell where the others cannot.
        screened: The held-out loss that its best rate reached in the screening, with one seed; None where it was not
            screened, infinite where every rate diverged.
        found_by: Rules whose findings propose it.
        is_random: Whether it was drawn at random, as a control.
    """

    name: str
    runs: dict[float, dict[int, JudgedRun]] = field(default_factory=dict)
    refused: str | None = None
    why: str = ""
    code: str = ""
    longer: dict[int, JudgedRun] = field(default_factory=dict)
    screened: float | None = None
    found_by: tuple[str, ...] = ()
    is_random: bool = False

    @property
    def seconds(self) -> float:
        """Time of a step, of the fastest run; NaN if none finished."""
        return min((run.seconds for run in self._best_runs.values()), default=math.nan)

    @property
    def memory(self) -> int:
        """Bytes that a training step takes; 0 if that is not known."""
        return max((run.memory for run in self._best_runs.values()), default=0)

    def final(self, lr: float) -> Spread | None:
        """The losses that the runs at a learning rate are judged by; None if a seed diverged there, or none was run."""
        return _spread([fmean(run.judged) if run.judged else None for run in self.runs.get(lr, {}).values()])

    @property
    def best_lr(self) -> float | None:
        """The learning rate with the lowest median loss; None if every one diverged."""
        finals = {lr: final.median for lr in self.runs if (final := self.final(lr)) is not None}
        return min(finals, key=finals.__getitem__, default=None)

    @property
    def best_final(self) -> Spread | None:
        """The losses at the best learning rate: of held-out batches where there are any, else of training."""
        return None if self.best_lr is None else self.final(self.best_lr)

    @property
    def longer_end(self) -> float | None:
        """The mean loss that the longer runs are judged by; infinite where one diverged, None if there are none."""
        ends = [fmean(run.judged) if run.judged else math.inf for run in self.longer.values()]
        return fmean(ends) if ends else None

    @property
    def training(self) -> Spread | None:
        """The training losses at the end of the best runs."""
        return _spread([run.final for run in self._best_runs.values()])

    @property
    def _best_runs(self) -> dict[int, JudgedRun]:
        return {} if self.best_lr is None else self.runs[self.best_lr]

    @property
    def _is_held_out(self) -> bool:
        return any(run.checks for run in self._best_runs.values())

    def change_from(self, other: Arm, *, comparisons: float = 1) -> Change | None:
        """This arm's loss less the other's, seed by seed, each at its best rate; None if either diverged.

        Args:
            other: The arm to compare with.
            comparisons: As in `Change.of`.
        """
        return _change(self._best_runs, other._best_runs, comparisons)

    def longer_change_from(self, other: Arm, *, comparisons: float = 1) -> Change | None:
        """The same of the longer runs; None if there are none, or either diverged."""
        return _change(self.longer, other.longer, comparisons)

    @property
    def outcome(self) -> str:
        """How the arm ended, as a table shows it."""
        if self.refused is not None:
            return "refused"
        runs = [run for by_seed in self.runs.values() for run in by_seed.values()]
        if not runs:
            if self.screened is None:
                return "not run"
            return "diverged" if math.isinf(self.screened) else f"screened: {number(self.screened)}"
        if self.best_final is not None:
            return str(self.best_final)
        diverged = [run for run in runs if not run.judged]
        if len(diverged) < len(runs):
            return f"{len(diverged)} of {len(runs)} diverged"
        first = min(diverged, key=lambda run: run.diverged_at or math.inf)
        return NOT_FINITE if first.diverged_at is None else str(first)

    def steps_to(self, loss: float) -> int | None:
        """The first step, median over seeds, at which the training loss is at most `loss`; None if one never is."""
        steps = [run.steps_to(loss) for run in self._best_runs.values()]
        reached = [step for step in steps if step is not None]
        return int(median(reached)) if reached and len(reached) == len(steps) else None

    def rows(self, step: int | None = None, name: str | None = None) -> list[Row]:
        """The best rate and final loss, or where the runs diverged, or the loss of the screening; none if refused.

        Args:
            step: The training step at which the runs began.
            name: The name in the rows' `layer`; None: the arm's own.
        """
        values: dict[str, tuple[float, str]] = {}
        diverged = [run.diverged_at for runs in self.runs.values() for run in runs.values() if run.diverged_at]
        if self.best_lr is not None and self.best_final is not None:
            values = {TRAINED_LR: (self.best_lr, "lr")}
            values |= {HELD_OUT_LOSS: (self.best_final.median, "")} if self._is_held_out else {}
            values |= {} if self.training is None else {FINAL_LOSS: (self.training.median, "")}
            values |= {STEP_TIME: (self.seconds, "s"), STEP_MEMORY: (self.memory, "bytes")} if self.memory else {}
        elif diverged:
            values = {DIVERGED_AT: (float(min(diverged)), "steps")}
        elif self.screened is not None:
            values = {SCREENED_LOSS: (self.screened, "")}
        own = self.name if name is None else name
        return [Row(step, own, quantity, value, unit) for quantity, (value, unit) in values.items()]

    def __str__(self) -> str:
        return self.outcome if self.best_lr is None else f"{self.best_final} at lr {self.best_lr:.3g}"


def _spread(losses: Sequence[float | None]) -> Spread | None:
    """None if a run diverged, or there is none."""
    finished = [loss for loss in losses if loss is not None]
    if not finished or len(finished) < len(losses):
        return None
    return Spread(median(finished), min(finished), max(finished))


def _change(ours: Mapping[int, JudgedRun], theirs: Mapping[int, JudgedRun], comparisons: float) -> Change | None:
    """The change between runs of the same seeds; None if there are none, or one of them diverged."""
    pairs = [(ours[seed].judged, theirs[seed].judged) for seed in sorted(ours.keys() & theirs.keys())]
    if not pairs or not all(map(all, pairs)):
        return None
    return Change.of([[a - b for a, b in zip(*pair, strict=True)] for pair in pairs], comparisons=comparisons)
