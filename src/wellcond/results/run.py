"""`Run`: the losses of a training run, and where it diverged."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from numpy.lib.stride_tricks import sliding_window_view

from wellcond.results import Result, Row, number
from wellcond.results.quantities import DIVERGED_AT, FINAL_LOSS, STEPS, TRAINING_LOSS


def averaged_steps(steps: int) -> int:
    """The number of losses to average, a tenth of all, so that single batches do not show."""
    return max(1, steps // 10)


@dataclass(frozen=True)
class Run(Result):
    """The losses of a training run, and where it diverged.

    Attributes:
        losses: The loss of every step, on its batch and before its update. Those of a diverged run end before it.
        diverged_at: The first step, counted from 1, whose loss was NaN or infinite; or the step after which an
            evaluation was. None if there is none.
        cause: What was not finite, where that is known.
        evaluations: Rows measured during the run, each with the number of steps taken.

    Example:
        >>> run = Run([float(loss) for loss in range(20, 0, -1)])
        >>> run.final, run.steps_to(17.5)
        (1.5, 4)
    """

    losses: Sequence[float]
    diverged_at: int | None = None
    cause: str = ""
    evaluations: tuple[Row, ...] = ()

    @property
    def final(self) -> float | None:
        """The mean loss of the last tenth of the steps; None if the run diverged, or took no step."""
        if self.diverged_at is not None or not self.losses:
            return None
        return fmean(self.losses[-averaged_steps(len(self.losses)) :])

    def curve(self) -> tuple[list[int], list[float]]:
        """Steps, and the mean loss of the tenth of all steps that ends with each."""
        window = averaged_steps(len(self.losses))
        if len(self.losses) < window:
            return [], []
        return list(range(window, len(self.losses) + 1)), sliding_window_view(self.losses, window).mean(-1).tolist()

    def steps_to(self, loss: float) -> int | None:
        """The first step at which the curve is at most `loss`; None if it never is."""
        return next((step for step, mean in zip(*self.curve(), strict=True) if mean <= loss), None)

    def evaluated(self, quantity: str) -> list[float]:
        """The values of one quantity that was measured during the run."""
        return [row.value for row in self.evaluations if row.quantity == quantity]

    def rows(self, step: int | None = None) -> list[Row]:
        """The loss of every step, what was measured during the run, and how it ended.

        Args:
            step: The training step at which the run began; its own are counted from there.
        """
        begin = step or 0
        rows = [Row(begin + k, "", TRAINING_LOSS, loss, "") for k, loss in enumerate(self.losses, start=1)]
        return rows + self.summary(step)

    def summary(self, step: int | None = None) -> list[Row]:
        """What was measured during the run, and how it ended: few rows, without the losses of the steps.

        Args:
            step: As in `rows`.
        """
        rows = [row._replace(step=(step or 0) + (row.step or 0)) for row in self.evaluations]
        if self.final is not None:
            rows.append(Row(step, "", FINAL_LOSS, self.final, ""))
        elif self.diverged_at is not None:
            rows.append(Row(step, "", DIVERGED_AT, float(self.diverged_at), "steps"))
        return [*rows, Row(step, "", STEPS, float(len(self.losses)), "steps")]

    def __str__(self) -> str:
        if self.final is None:
            return "no steps" if self.diverged_at is None else f"diverged @ {self.diverged_at}"
        return number(self.final)
