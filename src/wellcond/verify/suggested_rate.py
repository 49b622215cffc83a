"""`SuggestedRate`: a learning rate, and the measured limit, the prediction and the trial that it comes from."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from wellcond.errors import OutputError
from wellcond.meanfield.prediction import Prediction
from wellcond.results import Cost, Result, Row, number, text_table
from wellcond.results.quantities import COST, PREDICTED_MAX_LR, SUGGESTED_LR, SUGGESTED_LR_HIGH, SUGGESTED_LR_LOW
from wellcond.stability.limits import MaxLearningRate
from wellcond.training.run import Run, averaged_steps

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SAFE_SHARE = 0.5
"""On a quadratic the sharpest direction converges fastest at half of its limit."""
WORTHWHILE = 0.01
"""A final loss that is higher by less than this share of what the best rate gained is as good."""


@dataclass(frozen=True)
class RateTrial:
    """Short runs from the same weights on the same batches, one per learning rate.

    Attributes:
        runs: By learning rate, ascending.
        repeats: Runs at the best rate with other seeds; empty where a seed changes nothing.
        loss: Before the first step, on the batches of the last steps.
        steps: The length of every run.
    """

    runs: dict[float, Run]
    repeats: tuple[Run, ...]
    loss: float
    steps: int

    @property
    def rates(self) -> Tensor:
        """(R,), float64."""
        return torch.tensor(list(self.runs), dtype=torch.float64, device="cpu")

    @property
    def final(self) -> Tensor:
        """(R,), float64: the mean loss of the last tenth of the steps; nan where it is not finite."""
        finals = [math.nan if run.final is None else run.final for run in self.runs.values()]
        return torch.tensor(finals, dtype=torch.float64, device="cpu")

    @property
    def diverged(self) -> Tensor:
        """(R,), bool: whether the loss ended above where it began, or stopped being finite."""
        return ~(self.final <= self.loss)

    @property
    def best(self) -> float:
        """The rate of the lowest final loss; nan if every rate diverged."""
        return math.nan if bool(self.diverged.all()) else float(self.rates[self._best_index])

    @property
    def noise(self) -> float:
        """By how much final losses may differ and still be as good.

        It is the range of the best rate's final losses over seeds, or 1 % of the decrease of the loss if that is more.
        """
        best = float(self.final[self._best_index])
        finals = [best, *(run.final for run in self.repeats if run.final is not None)]
        return max(max(finals) - min(finals), WORTHWHILE * (self.loss - best))

    @property
    def low(self) -> float:
        """The smallest rate from which up to the best one all are as good; nan if every rate diverged."""
        return self._end(-1)

    @property
    def high(self) -> float:
        """The largest rate up to which from the best one all are as good; nan if every rate diverged."""
        return self._end(+1)

    @property
    def _best_index(self) -> int:
        return int(self.final.masked_fill(self.diverged, math.inf).argmin())

    def _end(self, direction: int) -> float:
        if math.isnan(self.best):
            return math.nan
        index = self._best_index
        is_good = ~self.diverged & (self.final <= self.final[index] + self.noise)
        while 0 <= index + direction < len(is_good) and is_good[index + direction]:
            index += direction
        return float(self.rates[index])

    def __str__(self) -> str:
        body = []
        for (rate, run), has_diverged in zip(self.runs.items(), self.diverged.tolist(), strict=True):
            remark = f"not finite at step {run.diverged_at}" if run.final is None else "diverged" * has_diverged
            if not has_diverged and self.low <= rate <= self.high:
                remark = "lowest" if rate == self.best else "as good"
            body.append([number(rate), "–" if run.final is None else number(run.final), remark])
        last = averaged_steps(self.steps)
        window = f"mean of the last {last}" if last > 1 else "of the last one"
        over = f"; as good: within {number(self.noise)}" if not math.isnan(self.best) else ""
        return "\n".join(
            [
                text_table(["lr", f"loss after {self.steps} steps", ""], body),
                f"{window}; {number(self.loss)} on the same batches before the first step{over}",
            ]
        )


@dataclass(frozen=True)
class SuggestedRate(Result):
    """A learning rate to train with, and the three answers that it comes from.

    Attributes:
        limit: The largest stable rate in the quadratic model of the loss, measured.
        predicted: What mean-field theory says of it from the architecture; None where it does not apply.
        trial: Short runs at rates around the limit; None where no copy can be trained.
        cost: Of all three.
        notes: What is missing, and why.
    """

    limit: MaxLearningRate
    predicted: Prediction | None
    trial: RateTrial | None
    cost: Cost = field(default_factory=Cost)
    notes: tuple[str, ...] = ()

    @property
    def lr(self) -> float:
        """Half of the measured limit, moved into the range of rates that trained as well as the best one.

        Above that range it becomes the best rate that was tried, and below it the lower end. inf if there is neither a
        limit nor a trial.
        """
        half = SAFE_SHARE * self.limit.value
        if self.trial is None or math.isnan(self.trial.best):
            return half
        return self.trial.best if half > self.trial.high else max(half, self.trial.low)

    @property
    def low(self) -> float:
        """The smallest of the rates tried that are as good as the best one; nan if there is none."""
        return math.nan if self.trial is None else self.trial.low

    @property
    def high(self) -> float:
        """The largest of the rates tried that are as good as the best one; nan if there is none."""
        return math.nan if self.trial is None else self.trial.high

    def rows(self, step: int | None = None) -> list[Row]:
        rates = {SUGGESTED_LR: self.lr, SUGGESTED_LR_LOW: self.low, SUGGESTED_LR_HIGH: self.high}
        if self.predicted is not None:
            rates[PREDICTED_MAX_LR] = float(self.predicted.max_lr)
        rows = [Row(step, "", quantity, value, "lr") for quantity, value in rates.items() if not math.isnan(value)]
        of_limit = [row for row in self.limit.rows(step) if row.quantity != COST]
        return [*rows, *of_limit, Row(step, "", COST, self.cost.u, "u")]

    def verdict(self) -> str:
        """Which rate, and why."""
        half, lr = SAFE_SHARE * self.limit.value, self.lr
        if self.trial is not None and math.isnan(self.trial.best):
            tried = f"every rate tried, from {number(min(self.trial.runs))} up, sends the loss up within"
            return f"No rate to start with: {tried} {self.trial.steps} steps."
        if not math.isfinite(lr):
            return "The curvature at these weights sets no limit: find the rate by trying."
        reason = f"half of {number(self.limit.value)}, above which the sharpest direction of the loss diverges"
        if self.trial is not None and lr != half:
            reason = f"after {self.trial.steps} steps the loss is lowest with it"
            if lr != self.trial.best:
                reason = f"the smallest rate with a loss as low as any after {self.trial.steps} steps"
            if math.isfinite(half):
                reason += f"; half of what the curvature allows would be {number(half)}"
        span = f" From {number(self.low)} to {number(self.high)} it does as well." if self.low < self.high else ""
        return f"Start with lr = {number(lr)}: {reason}.{span}"

    def figure(self) -> Figure:
        """The loss after the trial over the learning rate, with the limits as lines; without one, the prediction's."""
        from wellcond.report.rates import rates_figure

        if self.trial is None and self.predicted is not None:
            return self.predicted.figure()
        if self.trial is None:
            raise OutputError("there was no trial and no prediction, so there is nothing to draw.")
        limits = {"largest rate, measured": self.limit.value, "start with": self.lr}
        if self.predicted is not None:
            limits["largest rate, predicted"] = float(self.predicted.max_lr)
        return rates_figure(self.trial, limits)

    @property
    def parts(self) -> dict[str, object]:
        """The answers that there are, by what they come from."""
        parts: dict[str, object] = {
            "Measured, from the curvature at these weights": self.limit,
            "Predicted, from the architecture": self.predicted,
            "Tried, from these weights": self.trial,
        }
        return {title: part for title, part in parts.items() if part is not None}

    def __str__(self) -> str:
        lines = [f"{title}\n{part}\n" for title, part in self.parts.items()]
        return "\n".join([*lines, *(f"note: {note}" for note in self.notes), self.verdict(), str(self.cost)])
