"""`LossCurve`: the loss of a run as levels: where it started, and whether it falls, rises or stands still."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from wellcond.diagnosis.threshold import Condition
from wellcond.recording.history import Series
from wellcond.recording.judging.levels import OF_MEDIAN, blocks, finite, median, middle, noise
from wellcond.recording.judging.rises import FEWEST_LOSSES, SIGNIFICANT, Rise, has_fallen, rise_in

START_LOSSES = Condition(
    "steps whose median is the loss at the start", 8, origin="before the first fall of most trainings"
)
PLATEAU = Condition(
    "spread of the levels / what the noise of single losses explains", 3.0,
    origin="levels of a loss that stands still spread by noise alone; those of games and policies wander",
)  # fmt: skip
EIGHT = 8
"""Losses on either side of a fall."""
LATEST = 4096
"""Latest losses in which a fall is looked for: what came before was judged before."""
SETTLED = Condition("losses before a fall", 100, origin="at first the loss of an easy task falls as steeply")
SECOND = Condition(
    "logarithm of the second largest fall / of the largest", 0.5,
    origin="losses that fall at every epoch, or at random, fall by similar amounts",
)  # fmt: skip


@dataclass(frozen=True)
class Fall:
    """A loss that is lower from one step to the next.

    Attributes:
        step: The first of the lower ones.
        before: The lowest of the eight losses before.
        after: The highest of the eight from there on.
    """

    step: int
    before: float
    after: float


@dataclass(frozen=True)
class LossCurve:
    """The finite losses of a run, and what their levels say.

    Example:
        >>> values = np.concatenate((np.linspace(2, 1, 100), np.full(50, 5.0)))
        >>> rise = LossCurve(Series(np.arange(1, 151), values)).rise
        >>> rise.step, rise.lowest < 1.3, rise.level, rise.is_abrupt
        (101, True, 5.0, True)
    """

    series: Series

    @classmethod
    def of(cls, losses: Series) -> LossCurve:
        """The curve of losses that may be NaN or infinite."""
        return cls(finite(losses))

    @cached_property
    def start(self) -> float:
        """Level of the first steps; where they blow up, the first loss, which no step has changed yet."""
        values = self.series.values
        if not len(values):
            return math.nan
        return min(median(values[: int(START_LOSSES.at)]), max(float(values[0]), self._middle))

    @property
    def _middle(self) -> float:
        return median(self.levels.values if len(self.levels) else self.series.values)

    def level(self, width: int = 0) -> float:
        """Level of the latest steps: of a sixteenth of the run, eight at least, or of a width."""
        return median(self.series.values[-(width or max(8, len(self.series) // 16)) :])

    def level_at(self, step: int, width: int = 0) -> float:
        """Level of the steps before a step."""
        end = int(np.searchsorted(self.series.steps, step, side="right"))
        return LossCurve(Series(self.series.steps[:end], self.series.values[:end])).level(width)

    @cached_property
    def levels(self) -> Series:
        """32 to 128 levels over the whole run, with the last step of each."""
        width = 8
        while len(self.series) // width > 128:
            width *= 2
        values = blocks(self.series.values, width)
        ends = len(self.series) - 1 - width * np.arange(len(values))[::-1]
        return Series(self.series.steps[ends], values)

    @cached_property
    def lowest(self) -> float:
        """Lowest level so far."""
        return float(self.levels.values.min()) if len(self.levels) else self.start

    @cached_property
    def noise(self) -> float:
        """Standard deviation of the latest losses around their level."""
        return noise(self.series.values[-512:])

    @property
    def scale(self) -> float:
        """What a change of the loss is compared with: its fall since the start, its size then or its noise."""
        return max(self.start - self.lowest, abs(self.start), self.noise, 1e-300)

    @cached_property
    def trains(self) -> bool:
        """Whether the loss has fallen since the start, and has not lost a third of that again."""
        return self.has_learned and self.level() - self.lowest < (self.start - self.lowest) / 3

    @property
    def has_learned(self) -> bool:
        """Whether the loss has fallen by a fifth; one that may be negative, by as much as it was at the start."""
        return has_fallen(self.start, self.lowest)

    def has_fallen_since(self, step: int) -> bool:
        """Whether the loss is lower than at a step, by more than the noise of both levels."""
        width = max(8, min(len(self.series.since(step)) // 2, len(self.series) // 16))
        before, now = self.level_at(step, width), self.level(width)
        return before - now > 3 * OF_MEDIAN * self.noise * math.sqrt(2 / width)

    @cached_property
    def is_falling(self) -> bool:
        """Whether the latest quarter of the run lowered the loss."""
        return len(self.series) >= FEWEST_LOSSES.at and self.has_fallen_since(
            int(self.series.steps[-len(self.series) // 4])
        )

    @cached_property
    def stands_still(self) -> bool:
        """Whether the levels of the latest half differ by no more than the noise of single losses explains."""
        half = self.series.values[len(self.series) // 2 :]
        width = max(8, len(half) // 16)
        levels = blocks(half, width)
        return len(levels) > 3 and float(np.std(levels)) < PLATEAU.at * OF_MEDIAN * noise(half) / math.sqrt(width)

    def jump_between(self, first: int, last: int) -> int | None:
        """The step after one and up to another at which the loss jumps most; None if it does not.

        What is sampled now and then is dated by the loss, which is known at every step, where that shows it.
        """
        steps, values = self.series.steps, self.series.values
        begin, end = np.searchsorted(steps, (first + 1, last + 1)).tolist()
        begin, end = max(begin, 8), min(end, len(values) - 7)
        if end <= begin:
            return None
        eights = np.lib.stride_tricks.sliding_window_view(values[begin - 8 : end + 7], 8)
        levels = middle(eights)
        jumps = levels[8:] - levels[: end - begin]
        place = int(jumps.argmax())
        error = OF_MEDIAN * noise(values[max(0, begin - 256) : begin]) * math.sqrt(2 / 8)
        is_jump = jumps[place] > (SIGNIFICANT.at + math.sqrt(2 * math.log(len(jumps) + 1))) * error
        return int(steps[begin + place]) if is_jump else None

    @cached_property
    def fall_at_once(self) -> Fall | None:
        """The largest fall between all of eight losses and all of the next eight; of losses above zero, to stay low."""
        steps, values = self.series.steps[-LATEST:], self.series.values[-LATEST:]
        if len(values) <= SETTLED.at + 2 * EIGHT or not values.min() > 0:
            return None
        eights = np.lib.stride_tricks.sliding_window_view(values, EIGHT)
        before, after = eights.min(-1)[:-EIGHT], eights.max(-1)[EIGHT:]
        falls = np.log(before / after)
        falls[: int(SETTLED.at)] = 0.0
        place = int(falls.argmax())
        others = np.delete(falls, slice(max(0, place - EIGHT), place + EIGHT))
        is_new = after[place] < values[: place + EIGHT].min()  # not back from a rise
        if falls[place] <= 0 or not is_new or others.max() > SECOND.at * falls[place] or self.level() > before[place]:
            return None
        return Fall(int(steps[place + EIGHT]), float(before[place]), float(after[place]))

    @cached_property
    def rise(self) -> Rise | None:
        """The rise that the run is in; None if there is none."""
        return rise_in(self.series, self.start, self.noise)
