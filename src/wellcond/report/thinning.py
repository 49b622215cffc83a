"""Series of any length as a screen shows them: few points, and every spike, dip and NaN still there."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from wellcond.recording.history import Series

CURVE_POINTS = 600
"""Points of a curve: two for each of 300 places across, which is finer than a line is wide."""
CELLS = 800_000
"""Cells of all heat maps of a page together, of two bytes each."""
FEWEST_COLUMNS, MOST_COLUMNS = 60, 400
ABSENT, NOT_FINITE, NOT_POSITIVE, LOWEST, HIGHEST = 0, 1, 2, 3, 65535
"""Codes of a cell: nothing measured, NaN or infinity, zero or less on a logarithmic scale, and the range of numbers."""


def thinned(series: Series, points: int = CURVE_POINTS) -> Series:
    """At most this number of points: both ends, and of each stretch its smallest, its largest and its first NaN.

    Args:
        series: Series of any length.
        points: Bound on the length of the result.

    Example:
        >>> values = np.zeros(100_000)
        >>> values[70_000] = 9.0
        >>> short = thinned(Series(np.arange(100_000), values))
        >>> len(short) <= CURVE_POINTS, int(short.steps[short.values.argmax()])
        (True, 70000)
    """
    total = len(series)
    if total <= points:
        return series
    stretches = (points - 2) // 3
    starts = np.linspace(0, total, stretches, endpoint=False).astype(np.int64)
    is_finite = np.isfinite(series.values)
    low = _first_extreme(np.where(is_finite, series.values, np.inf), starts, np.minimum)
    high = _first_extreme(np.where(is_finite, series.values, -np.inf), starts, np.maximum)
    broken = np.flatnonzero(~is_finite)
    broken = broken[np.unique(np.searchsorted(starts, broken, side="right"), return_index=True)[1]]
    chosen = np.unique(np.concatenate((low, high, broken, [0, total - 1])))
    return Series(series.steps[chosen], series.values[chosen])


def _first_extreme(values: NDArray[np.float64], starts: NDArray[np.int64], pick: np.ufunc) -> NDArray[np.int64]:
    """Where each stretch, from one start to the next, first reaches its smallest or largest value."""
    lengths = np.diff(starts, append=len(values))
    hits = np.flatnonzero(values == np.repeat(pick.reduceat(values, starts), lengths))
    first: NDArray[np.int64] = hits[np.unique(np.searchsorted(starts, hits, side="right"), return_index=True)[1]]
    return first


@dataclass(frozen=True)
class Grid:
    """One quantity of all layers over training: in each cell the largest value of its steps.

    Attributes:
        layers: Layers in which it was measured, in model order.
        columns: (c,), first step of each column; a column ends where the next one begins.
        last: Last step at which it was measured.
        codes: (layers, c), `uint16`: `ABSENT`, `NOT_FINITE`, `NOT_POSITIVE`, or the scale from `LOWEST` to `HIGHEST`.
        low: Number of the code `LOWEST`.
        high: Number of the code `HIGHEST`.
        is_log: Whether the scale is logarithmic.
    """

    layers: tuple[str, ...]
    columns: NDArray[np.int64]
    last: int
    codes: NDArray[np.uint16]
    low: float
    high: float
    is_log: bool


def columns_for(layers: int, maps: int) -> int:
    """How many columns heat maps of this many layers have, so that all of them stay small.

    Example:
        >>> columns_for(20, 5), columns_for(2000, 5)
        (400, 80)
    """
    return min(max(CELLS // max(layers * maps, 1), FEWEST_COLUMNS), MOST_COLUMNS)


def grid(series: dict[str, Series], columns: int, *, is_share: bool = False) -> Grid:
    """A heat map of layers and steps. Columns hold equal numbers of measured steps: none is empty.

    Args:
        series: A quantity's series by layer, in model order; none is empty.
        columns: Bound on the number of columns.
        is_share: Whether values are shares, on a scale from 0 to 1; other quantities have a logarithmic scale.

    Example:
        >>> steps = np.arange(1, 5)
        >>> cells = grid({"fc1": Series(steps, np.array([1.0, 10.0, 100.0, np.nan]))}, columns=2)
        >>> cells.columns.tolist(), cells.codes.tolist(), cells.low, cells.high
        ([1, 3], [[3, 1]], 10.0, 10.0)
    """
    steps = _all_steps(list(series.values()))
    count = min(columns, len(steps))
    firsts = steps[np.linspace(0, len(steps), count, endpoint=False).astype(np.int64)]
    values = np.full((len(series), count), -np.inf)
    is_measured = np.zeros(values.shape, bool)
    for row, each in enumerate(series.values()):
        bounds = np.searchsorted(each.steps, firsts)
        filled = np.diff(bounds, append=len(each)) > 0
        values[row, filled] = np.maximum.reduceat(each.values, bounds[filled])
        is_measured[row] = filled
    codes, low, high = _coded(values, is_log=not is_share)
    codes[~is_measured] = ABSENT
    return Grid(tuple(series), firsts, int(steps[-1]), codes, low, high, not is_share)


def _all_steps(series: Sequence[Series]) -> NDArray[np.int64]:
    """The steps at which any of them was measured; as a rule they share all steps."""
    steps = max(series, key=len).steps
    for each in series:
        if not np.array_equal(each.steps, steps):
            steps = np.union1d(steps, each.steps)
    return steps


def _coded(values: NDArray[np.float64], *, is_log: bool) -> tuple[NDArray[np.uint16], float, float]:
    """Codes of values, and the numbers of the lowest and highest."""
    is_finite = np.isfinite(values)
    on_scale = is_finite & (values > 0) if is_log else is_finite
    low, high = (float(values[on_scale].min()), float(values[on_scale].max())) if on_scale.any() else (1.0, 1.0)
    if not is_log:
        low, high = min(low, 0.0), max(high, 1.0)
    codes = np.full(values.shape, NOT_FINITE, np.uint16)
    codes[is_finite & ~on_scale] = NOT_POSITIVE
    start, end = (math.log(low), math.log(high)) if is_log else (low, high)
    places = np.log(values[on_scale]) if is_log else values[on_scale]
    shares = (places - start) / ((end - start) or 1.0)
    codes[on_scale] = np.rint(LOWEST + shares * (HIGHEST - LOWEST)).astype(np.uint16)
    return codes, low, high
