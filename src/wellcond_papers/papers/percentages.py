"""Accuracies and errors of several seeds in words."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

DISAGREE = 10.0
"""Seeds that lie further apart, in points, are told by their range: nobody had the mean."""


def percent(seeds: Sequence[float]) -> str:
    """The mean of the seeds, or the least and the greatest where they disagree.

    Args:
        seeds: In percent.

    Example:
        >>> percent([66.0, 67.0]), percent([72.4, 10.6])
        ('66.5 %', '10.6 to 72.4 %')
    """
    low, high = min(seeds), max(seeds)
    return f"{low:.1f} to {high:.1f} %" if high - low > DISAGREE else f"{fmean(seeds):.1f} %"
