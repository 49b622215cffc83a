"""Student's t distribution, for intervals over a few seeds."""

from __future__ import annotations

import math

ROUNDS = 60
"""Bisections of the angle, each of which halves the error: from π/2 to below rounding."""


def two_sided_quantile(degrees: int, level: float = 0.95) -> float:
    """The t that |T| stays below with this probability.

    Args:
        degrees: Degrees of freedom, at least 1.
        level: The probability.

    Example:
        >>> [round(two_sided_quantile(degrees), 3) for degrees in (1, 2, 4, 29, 1000)]
        [12.706, 4.303, 2.776, 2.045, 1.962]
    """
    low, high = 0.0, math.pi / 2
    for _ in range(ROUNDS):
        middle = (low + high) / 2
        low, high = (middle, high) if _probability(middle, degrees) < level else (low, middle)
    return math.sqrt(degrees) * math.tan(low)


def _probability(theta: float, degrees: int) -> float:
    """P(|T| < t) with t = √ν tan θ: a finite sum for a whole number ν of degrees of freedom.

    Abramowitz & Stegun, Handbook of Mathematical Functions, 26.7.3 for odd and 26.7.4 for even ν.
    """
    is_odd = degrees % 2 == 1
    term = math.cos(theta) if is_odd else 1.0
    total = 0.0
    for k in range(2 + is_odd, degrees + 1, 2):
        total += term
        term *= math.cos(theta) ** 2 * (k - 1) / k
    total *= math.sin(theta)
    return 2 / math.pi * (theta + total) if is_odd else total
