"""`Rise`: a loss that has become higher than it was and stays so, with the step at which that began."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from wellcond.diagnosis.threshold import Condition
from wellcond.recording.history import Series
from wellcond.recording.judging.levels import (
    OF_MEDIAN,
    TO_SIGMA,
    blocks,
    last_before,
    median,
    mostly_since,
    noise,
    smooth,
    spread,
)

Values = NDArray[np.float64]
FEWEST_LOSSES = Condition("steps", 24, origin="three blocks of eight: before, and after a rise")
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
OF_A_WAY = Condition("blocks of a way down or up", 4, origin="the median of fewer is one of them")
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
MOST_SMOOTHED = 2**14
"""Numbers that are smoothed; of a longer series medians of blocks are."""


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
        """Whether the loss had fallen before."""
        return has_fallen(self.start, self.lowest)

    @property
    def is_lasting(self) -> bool:
        """Whether it has lasted long enough for a swing to have come back."""
        return self.steps >= max(LONG.at, SHARE.at * (self.step + self.steps))

    @property
    def is_abrupt(self) -> bool:
        """Whether it was there from one step to the next."""
        return self.first - self.lowest > AT_ONCE.at * (self.level - self.lowest)


def rise_in(series: Series, start: float, sigma: float) -> Rise | None:
    """The rise that a series is in; None if there is none.

    Its lowest level is that of the shortest blocks at which it shows, its level now that of the longest.

    Args:
        series: Finite losses.
        start: Their level at the start.
        sigma: Standard deviation of the latest ones around their level.
    """
    steps, values = series.steps, series.values
    widths = _widths_that_show_it(values, sigma)
    if not widths:
        return None
    levels = blocks(values, widths[0])
    level = float(blocks(values, widths[-1], most=1)[0])
    lowest = float(levels[:-1].min())
    first = len(values) - widths[0] * (len(levels) - int(levels[:-1].argmin()))  # of the lowest block
    size = max(abs(start), sigma, 1e-300)
    height = min(level - lowest, max(start - lowest, size))  # an explosion begins long before its end
    chance = math.sqrt(2 * math.log(len(levels)))  # errors by which the lowest of them lies below the others
    limit = lowest + max(height / 4, (2 + chance) * spread(levels[:-1] - smooth(levels[:-1], 5)))
    onset, left, passed = _onset(values, first, limit, height)
    if passed >= len(values) - 2:
        return None
    clear = max(passed, len(values) - 4 * widths[-1])
    rise = Rise(
        step=int(steps[onset]),
        lowest=lowest,
        level=level,
        start=start,
        size=size,
        steps=int(steps[-1] - steps[clear]) + 1,
        first=median(values[onset : onset + 8]),
    )
    factor = 1.0 if rise.had_learned and rise.lost > ALL_LOST.at else NEW.at
    return rise if level - lowest > factor * _largest_swing(values[:left]) else None


def has_fallen(start: float, lowest: float) -> bool:
    """Whether a loss has fallen by a fifth; one that may be negative, by as much as it was at the start."""
    return start - lowest > (LEARNED.at if lowest > 0 else 1.0) * abs(start)


def _widths_that_show_it(values: Values, sigma: float) -> list[int]:
    """Block lengths at which the latest block lies above the lowest by more than noise."""
    sigma = max(sigma, noise(values[-4096:]))
    widths = [8 * 2**power for power in range(60) if len(values) >= max(FEWEST_LOSSES.at, 24 * 2**power)]
    every = [blocks(values, width) for width in widths]
    # noise that is correlated over many steps shows in the differences of blocks that are as long
    between = [_noise_between(levels) for levels in every]
    showing = []
    for place, (width, levels) in enumerate(zip(widths, every, strict=True)):
        longer = [b for b, other in zip(between[place:], every[place:], strict=True) if len(other) >= BLOCKS.at]
        error = max(OF_MEDIAN * sigma / math.sqrt(width), between[place], *longer)
        chance = math.sqrt(2 * math.log(len(levels)))
        if levels[-1] - levels[:-1].min() > (SIGNIFICANT.at + chance) * error:
            showing.append(width)
    return showing


def _noise_between(levels: Values) -> float:
    """Standard deviation of blocks by their differences: those of the way down and those of the way up by themselves.

    A loss that falls for half of the run and then rises is no noise.
    """
    differences, lowest = np.diff(levels), int(levels[:-1].argmin()) if len(levels) > 1 else 0
    ways = [way - median(way) if len(way) >= OF_A_WAY.at else way for way in np.split(differences, [lowest])]
    return TO_SIGMA * median(np.abs(np.concatenate(ways))) / math.sqrt(2) if len(differences) else math.nan


def _largest_swing(before: Values) -> float:
    """The largest rise of the level before, from its lowest so far, that it came back from."""
    levels = blocks(before, 16)
    rises = levels - np.minimum.accumulate(levels) if len(levels) else np.zeros(1)
    return float(rises[:-2].max(initial=0.0))  # the last blocks may belong to the rise


def _onset(values: Values, first: int, limit: float, height: float) -> tuple[int, int, int]:
    """Indices: where a rise began to leave the level before it, where it has left it, and is above a limit.

    In what rises slowly, losses dip to the level before for a while: it began where most are above it.

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
    stride = -(-(len(values) - begin) // MOST_SMOOTHED)
    begin += (len(values) - begin) % stride
    tail = smooth(blocks(values[begin:], stride, most=MOST_SMOOTHED), width)
    passed = last_before(tail > limit)
    before = tail[:passed]
    if not len(before):
        return begin, begin, begin
    # what grows slowly begins before it passes the limit, where it leaves the lower part of what came before
    base = float(np.quantile(before, 0.2)) + max(height / 20, 3 * OF_MEDIAN * sigma / math.sqrt(width))
    lowest = min(max(0, first - begin) // stride, len(before) - 1)
    indices = lowest + mostly_since(before[lowest:] > base), last_before(before > base), passed
    onset, left, above = (begin + stride * index for index in indices)
    return onset, left, above
