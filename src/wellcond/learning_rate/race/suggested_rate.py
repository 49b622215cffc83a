"""`SuggestedRate`: a learning rate, and the race, the measured limit and the prediction that it comes from."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

from wellcond.learning_rate.limits.limits import MaxLearningRate
from wellcond.learning_rate.meanfield.prediction import Prediction
from wellcond.learning_rate.race.horizon import TELLING, is_close
from wellcond.learning_rate.race.outcome import ALL_UP, Race
from wellcond.results import Cost, Result, Row, number
from wellcond.results.quantities import COST, PREDICTED_MAX_LR, SUGGESTED_LR, SUGGESTED_LR_HIGH, SUGGESTED_LR_LOW
from wellcond.results.text import sentence

DIAGNOSE = "wc.diagnose(problem, optimizer) looks for the reason."
SAFE_SHARE = 0.5
"""On a quadratic the sharpest direction converges fastest at half of its limit."""


@dataclass(frozen=True)
class SuggestedRate(Result):
    """A learning rate to train with, and what it comes from.

    Attributes:
        limit: The largest stable rate in the quadratic model of the loss, measured on the first mini-batch; None where
            curvature is not available.
        predicted: The same predicted from the architecture by mean-field theory; None where it does not apply.
        race: Short runs of copies; None where no copy can be trained, or none was.
        cost: Cost of all three. One u is a training step: forward and backward pass of one mini-batch.
        notes: What is missing, and why.
        status: "" or why the result is partial.
        unpredicted: Why nothing is predicted from the architecture; "" if something is.
        reason: Where no rate trains, what explains it, if that is seen in the data; else "".
    """

    limit: MaxLearningRate | None
    predicted: Prediction | None
    race: Race | None
    cost: Cost = field(default_factory=Cost)
    notes: tuple[str, ...] = ()
    status: str = ""
    unpredicted: str = ""
    reason: str = ""

    def raced(self, race: Race, cost: Cost, status: str = "") -> SuggestedRate:
        """The same limits with a race, and what it took."""
        return replace(self, race=race, cost=self.cost + cost, status=status)

    @property
    def lr(self) -> float:
        """The rate that the race gives; without one, half of the measured limit. nan if there is neither."""
        if self.race is not None:
            return self.race.lr
        return math.nan if self.limit is None else SAFE_SHARE * self.limit.value

    @property
    def low(self) -> float:
        """The lower end of the rates that are equally good within noise; nan without a race."""
        return math.nan if self.race is None else self.race.low

    @property
    def high(self) -> float:
        """The upper end of the rates that are equally good within noise; nan without a race."""
        return math.nan if self.race is None else self.race.high

    @property
    def largest_trained(self) -> float:
        """The largest rate raced below which none diverged; nan without a race."""
        return math.nan if self.race is None else self.race.largest_trained

    @property
    def smallest_diverged(self) -> float:
        """The smallest rate raced whose loss went up; infinity if none did."""
        return math.inf if self.race is None else self.race.smallest_diverged

    def rows(self, step: int | None = None) -> list[Row]:
        rates = {SUGGESTED_LR: self.lr, SUGGESTED_LR_LOW: self.low, SUGGESTED_LR_HIGH: self.high}
        if self.predicted is not None:
            rates[PREDICTED_MAX_LR] = float(self.predicted.max_lr)
        rows = [Row(step, "", quantity, value, "lr") for quantity, value in rates.items() if not math.isnan(value)]
        of_limit = [] if self.limit is None else [row for row in self.limit.rows(step) if row.quantity != COST]
        return [*rows, *of_limit, Row(step, "", COST, self.cost.u, "u")]

    def verdict(self) -> str:
        """Which rate, and why."""
        is_partial = self.status and self.race is not None and self.race.runs
        return f"{sentence(self.status)} So far: {self._verdict()}" if is_partial else self._verdict()

    def _verdict(self) -> str:
        if self.race is None:
            if not math.isfinite(self.lr):
                return "No rate was raced, and the curvature at these weights sets no limit."
            assert self.limit is not None
            return f"Start with lr = {number(self.lr)}: half of {number(self.limit.value)}, which the curvature allows."
        if not self.race.runs:
            return "Interrupted."
        if self.race.choice is None:
            span = f"from {number(min(self.race.runs))} to {number(max(self.race.runs))}"
            causes = [run.cause for run in self.race.runs.values() if run.cause]
            cause = f" {causes[0]}" if causes and self.race.why_none == ALL_UP else ""
            cause += f" {self.reason}" if self.reason else ""
            return f"No rate trains: of those raced, {span}, {self.race.why_none}.{cause} {DIAGNOSE}"
        finished = f"{len(self.race.finished)} of which were raced for {self.race.longest} steps"
        raced = f"of {len(self.race.runs)} rates, {finished}"
        tells_little = self.race.longest < min(TELLING, self.race.steps)
        if self.lr == self.race.own and self.race.best > self.lr and not is_close(self.lr, self.race.best):
            answer = f"Keep lr = {number(self.lr)} for {self.race.steps:,} steps: {raced}, "
            why = "few steps prefer rates that are too high" if tells_little else "longer runs need lower rates"
            answer += f"{number(self.race.best)} ended lowest, but {why}."
        elif self.lr == self.race.own:
            answer = f"Keep lr = {number(self.lr)}: {raced}, none is better beyond noise."
        elif is_close(self.lr, self.race.best):
            answer = f"Start with lr = {number(self.lr)}: the best {raced}."
        else:
            is_lower = self.lr < self.race.best
            why = "longer runs need lower rates" if is_lower else "higher ones did nearly as well"
            why = (
                "short runs move yours only part of the way"
                if tells_little and self.race.own in self.race.finished
                else why
            )
            answer = f"Start with lr = {number(self.lr)} for {self.race.steps:,} steps: {raced}, "
            answer += f"{number(self.race.best)} ended lowest, and {why}."
        low, high = number(self.low), number(self.high)
        span = "" if tells_little or is_close(self.low, self.high) else f" Rates from {low} to {high} are equally good."
        edge = f" No rate up to {number(self.largest_trained)} diverged"
        edge += f"; {number(self.smallest_diverged)} did." if math.isfinite(self.smallest_diverged) else "."
        if self.race.choice.is_too_high:
            edge += f" None below {number(self.lr)} was raced to the end, and over {self.race.steps:,} steps one "
            edge += "may be better."
        if tells_little:
            edge += f" Runs of {self.race.longest} steps tell little: leave max_steps at its default."
        return f"{answer}{span}{edge}"

    @property
    def theory(self) -> dict[str, object]:
        """The limit that was measured and the one that was predicted, or why none was, by where they come from."""
        parts = {
            "Measured, from the curvature at these weights": self.limit,
            "Predicted, from the architecture": self.unpredicted or None if self.predicted is None else self.predicted,
        }
        return {title: part for title, part in parts.items() if part is not None}
