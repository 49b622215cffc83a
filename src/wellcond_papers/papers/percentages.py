"""Accuracies and errors of several seeds: as text, and how exactly a test set tells them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean

TEST_IMAGES = 10_000
"""Of MNIST, CIFAR-10 and CIFAR-100."""

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


def error_of_test(shares: Sequence[float], images: int = TEST_IMAGES) -> float:
    """The standard error that the choice of the test images leaves in an accuracy, √(p (1 − p) / n) at the mean p.

    Two accuracies that differ by less cannot be distinguished, whatever the seeds say.

    Args:
        shares: Accuracies or errors, between 0 and 1.
        images: The number of test images.

    Example:
        >>> round(error_of_test([0.5]), 4), round(error_of_test([0.98, 0.982]), 4)
        (0.005, 0.0014)
    """
    share = fmean(shares)
    return math.sqrt(share * (1 - share) / images)
