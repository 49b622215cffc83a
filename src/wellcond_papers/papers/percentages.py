"""Accuracies and errors of several seeds, as text."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

DISAGREE = 10.0
"""Seeds further apart than this, in percentage points, are reported as a range: no run is near the mean."""


def percent(seeds: Sequence[float]) -> str:
    """The mean of the seeds, or their range if they disagree.

    Args:
        seeds: Values in percent.

    Example:
        >>> percent([66.0, 67.0]), percent([72.4, 10.6])
        ('66.5 %', '10.6 to 72.4 %')
    """
    low, high = min(seeds), max(seeds)
    return f"{low:.1f} to {high:.1f} %" if high - low > DISAGREE else f"{fmean(seeds):.1f} %"
