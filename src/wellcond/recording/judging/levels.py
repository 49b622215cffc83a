"""Levels of a noisy series: medians and their spread, which single bad batches and heavy tails do not move."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from wellcond.recording.history import Series

TO_SIGMA = 1.4826
"""Median absolute deviation → standard deviation, of normal noise."""
OF_MEDIAN = 1.2533
"""Standard error of a median over that of a mean, of normal noise: √(π/2)."""
MOST_IN_A_BLOCK = 512
"""Numbers that a block's median is taken of; of a longer one every second, third, … is."""


def finite(series: Series) -> Series:
    """The numbers that are neither NaN nor infinite."""
    is_finite = np.isfinite(series.values)
    return series if is_finite.all() else Series(series.steps[is_finite], series.values[is_finite])


def median(values: NDArray[np.float64]) -> float:
    """The median of finite numbers; NaN of nothing."""
    return float(middle(values)) if len(values) else float("nan")


def middle(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Medians along the last axis; `np.median` takes ten times as long for few numbers."""
    low, high = (values.shape[-1] - 1) // 2, values.shape[-1] // 2
    ordered = np.partition(values, (low, high), axis=-1)
    return np.asarray((ordered[..., low] + ordered[..., high]) / 2)


def spread(values: NDArray[np.float64]) -> float:
    """Standard deviation by the median absolute deviation.

    Example:
        >>> round(spread(np.array([1.0, 2.0, 3.0, 4.0, 1e9])), 2)
        1.48
    """
    return TO_SIGMA * median(np.abs(values - median(values)))


def blocks(values: NDArray[np.float64], width: int, most: int = 256) -> NDArray[np.float64]:
    """Medians of consecutive blocks of a width, the last of which ends where the values end.

    Args:
        values: (n,).
        width: Numbers of a block.
        most: Blocks at most, the latest.

    Example:
        >>> blocks(np.array([9.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0]), 3).tolist()
        [2.0, 5.0]
    """
    count = min(len(values) // width, most)
    table = values[len(values) - count * width :].reshape(count, width)
    return middle(table[:, :: -(-width // MOST_IN_A_BLOCK)])


def smooth(values: NDArray[np.float64], width: int) -> NDArray[np.float64]:
    """Running median over a centered window of an odd width; the ends are repeated.

    Example:
        >>> smooth(np.array([1.0, 9.0, 1.0, 1.0, 5.0]), 3).tolist()
        [1.0, 1.0, 1.0, 1.0, 5.0]
    """
    half = min(width, len(values)) // 2
    if not half:
        return values
    padded = np.pad(values, half, mode="edge")
    return middle(np.lib.stride_tricks.sliding_window_view(padded, 2 * half + 1))


def noise(values: NDArray[np.float64]) -> float:
    """Standard deviation of single numbers around a level that moves slowly: of their differences, over √2."""
    return spread(np.diff(values)) / np.sqrt(2) if len(values) > 2 else 0.0


def last_before(is_beyond: NDArray[np.bool_]) -> int:
    """The index from which on all are beyond; the length if the last one is not.

    Example:
        >>> last_before(np.array([True, False, True, True]))
        2
    """
    inside = np.flatnonzero(~is_beyond)
    return int(inside[-1]) + 1 if len(inside) else 0


def mostly_since(is_beyond: NDArray[np.bool_]) -> int:
    """The index since which most are beyond, however far one looks on; a few that are not move nothing.

    Example:
        >>> mostly_since(np.array([False, False, True, True, False, True, True]))
        2
    """
    balance = np.cumsum(np.where(is_beyond, 1, -1))
    return len(balance) - int(balance[::-1].argmin()) if len(balance) and balance.min() < 0 else 0


def began(series: Series, index: int) -> int:
    """When something began that a sample is the first to show: halfway from the sample before; 1 if it is the first."""
    index = min(index, len(series) - 1)
    return halfway(int(series.steps[index - 1]), int(series.steps[index])) if index else 1


def halfway(before: int, after: int) -> int:
    """The step in the middle of two, rounded up.

    Example:
        >>> halfway(10, 13), halfway(10, 11)
        (12, 11)
    """
    return (before + after + 1) // 2


def lasting(series: Series, limit: float) -> int | None:
    """The step from which on a series of few samples is above a limit; None if it is not at its end.

    A single sample on the other side is passed over: the running median of three is compared.
    """
    if len(series) < 2 or series.values[-1] <= limit:
        return None
    start = last_before(smooth(series.values, 3) > limit)
    return began(series, start) if start < len(series) else None
