"""`LossCurve`: the loss of a run as levels, and whether it has risen for good, since when and how."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from wellcond.diagnosis.threshold import Condition
from wellcond.recording.history import Series
from wellcond.recording.levels import OF_MEDIAN, blocks, finite, last_before, median, middle, noise, smooth, spread

FEWEST = Condition("steps", 24, origin="three blocks of eight: before, and after a rise")
FIRST = Condition("steps whose median is the loss at the start", 8, origin="before the first fall of most trainings")
SIGNIFICANT = Condition(
    "rise in standard errors of a block's level, beyond the √(2 ln k) by which the lowest of k blocks lies below them",
    6.0, origin="normal levels exceed it once in 10⁹ blocks; tests count alarms on heavy-tailed and correlated noise",
)  # fmt: skip
BLOCKS = Condition(
    "blocks whose differences show noise", 9, origin="a rise is in one of the eight, which a median leaves out"
)
NEW = Condition(
    "rise / the largest rise that the loss has come back from before", 2.0,
    origin="losses that swing (adversarial, restarts, epochs in a fixed order) swing by similar amounts",
)  # fmt: skip
AT_ONCE = Condition(
    "share of the rise that the first eight steps show", 0.5,
    origin="other data show in the first batch; steps that overshoot grow from step to step",
)  # fmt: skip
LEARNED = Condition(
    "fall of the loss / loss at the start, of a network that has learned",
    0.2,
    origin="the losses of players that have not learned swing by less around their start",
)
ALL_LOST = Condition(
    "share of what had been learned that is lost, where a rise need only be the largest so far",
    0.9,
    origin="a loss that is back where it started is no swing",
)
LONG = Condition(
    "steps of a rise", 100, origin="a catapult at the edge of stability comes back within some tens of steps"
)
SHARE = Condition("steps of a rise / steps of the run", 0.05, origin="long runs have long swings")
PLATEAU = Condition(
    "spread of the levels / what the noise of single losses explains", 3.0,
    origin="levels of a loss that stands still spread by noise alone; those of games and policies wander",
)  # fmt: skip


@dataclass(frozen=True)
class Rise:
    """A level that is higher than it was, and stays.

    Attributes:
        step: First step of the rise.
        lowest: Lowest level before.
        level: Level now.
        start: Level of the run's first steps.
        size: What the rise is compared with if the loss had not fallen before: its size, or its noise.
        steps: Steps for which it has been clearly higher, by a quarter of the rise; no more than four of the longest
            blocks that show it.
        first: Median of the first eight losses of the rise.
    """

    step: int
    lowest: float
    level: float
    start: float
    size: float
    steps: int
    first: float

    @property
    def lost(self) -> float:
        """Share of what had been learned that is lost again: 1 if the loss is as high as at the start."""
        return (self.level - self.lowest) / (self.start - self.lowest if self.had_learned else self.size)

    @property
    def had_learned(self) -> bool:
        """Whether the loss had fallen before, as `LossCurve.has_learned`."""
        return _is_fall(self.start, self.lowest)

    @property
    def is_lasting(self) -> bool:
        """Whether it has lasted long enough for a swing to have come back."""
        return self.steps >= max(LONG.at, SHARE.at * (self.step + self.steps))

    @property
    def is_abrupt(self) -> bool:
        """Whether it was there from one step to the next."""
        return self.first - self.lowest > AT_ONCE.at * (self.level - self.lowest)


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
        return min(median(values[: int(FIRST.at)]), max(float(values[0]), median(values))) if len(values) else math.nan

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
        return _is_fall(self.start, self.lowest)

    def has_fallen_since(self, step: int) -> bool:
        """Whether the loss is lower than at a step, by more than the noise of both levels."""
        width = max(8, min(len(self.series.since(step)) // 2, len(self.series) // 16))
        before, now = self.level_at(step, width), self.level(width)
        return before - now > 3 * OF_MEDIAN * self.noise * math.sqrt(2 / width)

    @cached_property
    def is_falling(self) -> bool:
        """Whether the latest quarter of the run lowered the loss."""
        return len(self.series) >= FEWEST.at and self.has_fallen_since(int(self.series.steps[-len(self.series) // 4]))

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
    def rise(self) -> Rise | None:
        """The rise that the run is in; None if there is none.

        Its lowest level is that of the shortest blocks at which it shows, its level now that of the longest.
        """
        if not self._scales_of_rise:
            return None
        steps, values = self.series.steps, self.series.values
        width = self._scales_of_rise[0]
        levels = blocks(values, width)
        level = float(blocks(values, self._scales_of_rise[-1], most=1)[0])
        lowest = float(levels[:-1].min())
        first = len(values) - width * (len(levels) - int(levels[:-1].argmin()))  # of the lowest block
        height = min(level - lowest, self.scale)  # an explosion begins long before its end
        limit = lowest + max(height / 4, 2 * spread(levels[:-1] - smooth(levels[:-1], 5)))
        onset, passed = _onset(values, first, limit, height)
        if passed >= len(values) - 2:
            return None
        rise = Rise(
            step=int(steps[onset]), lowest=lowest, level=level, start=self.start,
            size=max(abs(self.start), self.noise, 1e-300),
            steps=int(steps[-1] - steps[max(passed, len(steps) - 4 * self._scales_of_rise[-1])]) + 1, first=median(values[onset : onset + 8]),
        )  # fmt: skip
        factor = 1.0 if rise.had_learned and rise.lost > ALL_LOST.at else NEW.at
        return rise if level - lowest > factor * self._largest_swing(onset) else None

    @cached_property
    def _scales_of_rise(self) -> list[int]:
        """Block lengths at which the latest block lies above the lowest by more than noise."""
        values = self.series.values
        sigma = max(self.noise, noise(values[-4096:]))
        widths = [8 * 2**power for power in range(60) if len(values) >= max(FEWEST.at, 24 * 2**power)]
        every = [blocks(values, width) for width in widths]
        # noise that is correlated over many steps shows in the differences of blocks that are as long
        between = [spread(np.diff(levels)) / math.sqrt(2) for levels in every]
        scales = []
        for place, (width, levels) in enumerate(zip(widths, every, strict=True)):
            longer = [b for b, other in zip(between[place:], every[place:], strict=True) if len(other) >= BLOCKS.at]
            error = max(OF_MEDIAN * sigma / math.sqrt(width), between[place], *longer)
            chance = math.sqrt(2 * math.log(len(levels)))
            if levels[-1] - levels[:-1].min() > (SIGNIFICANT.at + chance) * error:
                scales.append(width)
        return scales

    def _largest_swing(self, onset: int) -> float:
        """The largest rise of the level before, from its lowest so far, that it came back from."""
        levels = blocks(self.series.values[:onset], 16)
        rises = levels - np.minimum.accumulate(levels) if len(levels) else np.zeros(1)
        return float(rises[:-2].max(initial=0.0))  # the last blocks may belong to the rise


def _is_fall(start: float, lowest: float) -> bool:
    return start - lowest > (LEARNED.at if lowest > 0 else 1.0) * abs(start)


def _onset(values: NDArray[np.float64], first: int, limit: float, height: float) -> tuple[int, int]:
    """The index at which a rise left the level before it, and that from which on it is above a limit.

    Args:
        values: All losses.
        first: Index of the first loss of the lowest block.
        limit: What the smoothed loss stays above since the rise.
        height: Height of the rise.
    """
    sigma = noise(values[first : first + 64])
    # wide enough for an error of a tenth of the height
    width = int(min(65, max(5, (10 * OF_MEDIAN * sigma / max(height, 1e-300)) ** 2))) | 1
    begin = max(0, first - 256)
    tail = smooth(values[begin:], width)
    passed = last_before(tail > limit)
    before = tail[:passed]
    if not len(before):
        return begin, begin
    # what grows slowly begins before it passes the limit, where it leaves the lower part of what came before
    base = float(np.quantile(before, 0.2)) + max(height / 20, 3 * OF_MEDIAN * sigma / math.sqrt(width))
    return begin + last_before(before > base), begin + passed
