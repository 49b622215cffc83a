"""`Race`: what came out of a race of learning rates."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean, pstdev

from wellcond.learning_rate.race.horizon import SURE, Choice, last_loss, last_losses
from wellcond.results.run import Run

UP, FAR_UP = 1.5, 10.0
"""A loss that ends this many times above where it began has gone up, if batches differ by less; and so has one that is
this many times above its first third, or its first value, however much it varies: it may have shot up before and be on
the way back."""

ALL_UP = "the loss went up at every one"
NO_FALL = "none lowers the loss by more than chance"
LIKE_CONSTANT = "none brings the loss below {constant}: the outputs stay the same for all inputs"
ABOVE_CONSTANT = "the loss stays at {loss} or higher, and the best constant prediction has {constant}"


@dataclass(frozen=True)
class Race:
    """The outcome of a race of learning rates.

    Attributes:
        runs: Runs by learning rate, ascending.
        choice: The rate for `steps` steps, and the range of rates that are equally good; None if no rate trains.
        steps: The length of the run that the rate is for.
        own: The optimizer's own rate, which is among those raced; None without an optimizer.
        steps_taken: Steps of all runs together.
        held_out: The losses of held-out batches, by the rates that finished; empty if there are none.
        why_none: Why no rate trains; "" if one does.
        status: "" or why the race ended early.
    """

    runs: dict[float, Run]
    choice: Choice | None
    steps: int
    own: float | None
    steps_taken: int
    held_out: Mapping[float, Sequence[float]] = field(default_factory=dict)
    why_none: str = ""
    status: str = ""

    @property
    def lr(self) -> float:
        """The rate; nan if none trains."""
        return math.nan if self.choice is None else self.choice.lr

    @property
    def low(self) -> float:
        """The lower end of the rates that are equally good; nan if none trains."""
        return math.nan if self.choice is None else self.choice.low

    @property
    def high(self) -> float:
        """The upper end of the rates that are equally good, none of which diverged; nan if none trains."""
        return math.nan if self.choice is None else self.choice.high

    @property
    def longest(self) -> int:
        """The number of steps of the longest runs."""
        return max((len(run.losses) for run in self.runs.values()), default=0)

    @property
    def finished(self) -> dict[float, Run]:
        """The longest runs, but for those whose loss went up; where the race was interrupted some are a step short."""
        length = self.longest - bool(self.status)
        return {lr: run for lr, run in self.runs.items() if len(run.losses) >= length and not went_up(run)}

    @property
    def best(self) -> float:
        """The rate that ended lowest, on held-out data where there are any; nan if every loss went up."""
        losses = {lr: last_loss(run.losses) for lr, run in self.finished.items()}
        losses |= {lr: fmean(self.held_out[lr]) for lr in losses.keys() & self.held_out.keys()}
        return min(losses, key=losses.__getitem__, default=math.nan)

    @property
    def largest_trained(self) -> float:
        """The largest rate below which none has diverged; nan if there is none."""
        return max((lr for lr in self.runs if lr < self.smallest_diverged), default=math.nan)

    @property
    def smallest_diverged(self) -> float:
        """The smallest rate above the best whose loss went up or stopped being finite; infinity if there is none."""
        best = 0.0 if math.isnan(self.best) else self.best
        return min((lr for lr, run in self.runs.items() if lr > best and went_up(run)), default=math.inf)


def went_up(run: Run) -> bool:
    """Whether a run's loss stopped being finite, or ended clearly above where it began, by more than chance."""
    if run.diverged_at is not None or not run.losses:
        return True
    end, first = last_losses(run.losses), run.losses[0]
    rise, early = fmean(end) - first, fmean(run.losses[: max(1, len(run.losses) // 3)])
    is_sure = rise > SURE * pstdev(end) or fmean(end) > FAR_UP * min(abs(early), abs(first))
    return rise > (UP - 1) * abs(first) and is_sure
