"""`Arm`: all runs of one remedy, or of the untreated network, and how far two arms differ."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from statistics import fmean, median, stdev
from typing import NamedTuple

from wellcond.results import Row, number
from wellcond.results.quantities import DIVERGED_AT, FINAL_LOSS, SCREENED_LOSS, TRAINED_LR
from wellcond.training.run import Run
from wellcond.treatment.student import two_sided_quantile


class Spread(NamedTuple):
    """The median, the smallest and the largest of some values."""

    median: float
    least: float
    greatest: float

    def __str__(self) -> str:
        middle, least, greatest = map(number, (self.median, self.least, self.greatest))
        return middle if least == greatest else f"{middle} ({least} to {greatest})"


class Change(NamedTuple):
    """The mean of paired differences and its 95 % interval by Student's t; both ends are the mean of a single pair."""

    mean: float
    low: float
    high: float

    @classmethod
    def of(cls, differences: list[float]) -> Change:
        """The change by one difference per seed.

        Example:
            >>> print(Change.of([1.0, 2.0, 3.0]))       # 2 ± 4.303 · 1/√3
            +2 (-0.484 to +4.48)
        """
        mean, count = fmean(differences), len(differences)
        if count == 1:
            return cls(mean, mean, mean)
        half = two_sided_quantile(count - 1) * stdev(differences) / math.sqrt(count)
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
        screened: The loss that its best rate reached in the screening, with one seed; None where it was not screened,
            infinite where every rate diverged.
        found_by: Rules whose findings propose it.
        is_random: Whether it was drawn at random, as a control.
        seconds: Time of one step of its fastest run.
    """

    name: str
    runs: dict[float, dict[int, Run]] = field(default_factory=dict)
    refused: str | None = None
    why: str = ""
    code: str = ""
    screened: float | None = None
    found_by: tuple[str, ...] = ()
    is_random: bool = False
    seconds: float = math.nan

    def final(self, lr: float) -> Spread | None:
        """The final losses at a learning rate; None if a seed diverged there, or none was run."""
        finals = [run.final for run in self.runs.get(lr, {}).values()]
        finished = [final for final in finals if final is not None]
        if not finished or len(finished) < len(finals):
            return None
        return Spread(median(finished), min(finished), max(finished))

    @property
    def best_lr(self) -> float | None:
        """The learning rate with the lowest median final loss; None if every one diverged."""
        finals = {lr: final.median for lr in self.runs if (final := self.final(lr)) is not None}
        return min(finals, key=finals.__getitem__, default=None)

    @property
    def best_final(self) -> Spread | None:
        """The final losses at the best learning rate."""
        return None if self.best_lr is None else self.final(self.best_lr)

    def change_from(self, other: Arm) -> Change | None:
        """This arm's final loss less the other's, seed by seed, each at its best rate; None if either diverged."""
        if self.best_lr is None or other.best_lr is None:
            return None
        ours, theirs = self.runs[self.best_lr], other.runs[other.best_lr]
        pairs = [(ours[seed].final, theirs[seed].final) for seed in ours.keys() & theirs.keys()]
        differences = [a - b for a, b in pairs if a is not None and b is not None]
        return Change.of(differences) if differences else None

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
        diverged = [run for run in runs if run.final is None]
        if len(diverged) < len(runs):
            return f"{len(diverged)} of {len(runs)} diverged"
        return str(min(diverged, key=lambda run: run.diverged_at or 0))

    def steps_to(self, loss: float) -> int | None:
        """The median over seeds of the first step at which the best runs are at most `loss`; None if one never is."""
        steps = [] if self.best_lr is None else [run.steps_to(loss) for run in self.runs[self.best_lr].values()]
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
            values = {TRAINED_LR: (self.best_lr, "lr"), FINAL_LOSS: (self.best_final.median, "")}
        elif diverged:
            values = {DIVERGED_AT: (float(min(diverged)), "steps")}
        elif self.screened is not None:
            values = {SCREENED_LOSS: (self.screened, "")}
        own = self.name if name is None else name
        return [Row(step, own, quantity, value, unit) for quantity, (value, unit) in values.items()]

    def __str__(self) -> str:
        return self.outcome if self.best_lr is None else f"{self.best_final} at lr {self.best_lr:.3g}"
