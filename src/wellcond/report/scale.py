"""A logarithmic axis that has a place for zero and for infinity, so that neither is dropped."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
MOST_TICKS = 7


@dataclass(frozen=True)
class LogScale:
    """Exponents of 10: the decades that hold all positive values, and the levels for 0 below and ∞ above them.

    >>> scale = LogScale.of([0.002, 30.0, math.inf])
    >>> scale.low, scale.high, scale.is_finite(30.0)
    (-3, 2, True)
    >>> scale.place(math.inf) > 1e2
    True
    """

    low: int
    high: int
    has_zero: bool
    has_infinity: bool

    @classmethod
    def of(cls, values: Iterable[float]) -> LogScale:
        values = list(values)
        logs = [math.log10(value) for value in values if cls.is_finite(value)] or [0.0]
        low, high = math.floor(min(logs)), math.ceil(max(logs))
        has_zero = any(value <= 0 for value in values)
        has_infinity = any(not value < math.inf for value in values)
        return cls(low, max(high, low + 1), has_zero, has_infinity)

    @staticmethod
    def is_finite(value: float) -> bool:
        """Whether a value has a true place on the axis."""
        return 0 < value < math.inf

    @property
    def gap(self) -> float:
        return 0.16 * (self.high - self.low) + 0.2

    def place(self, value: float, lane: int = 0) -> float:
        """Where a value is drawn: itself, or the level of 0 or ∞ (NaN goes to ∞, its label tells them apart).

        lane: several lines that are infinite at the same layer keep beside each other.
        """
        if self.is_finite(value):
            return value
        outward = self.gap * (1 - 0.22 * lane)
        return _power(self.low - outward if value <= 0 else self.high + outward)

    def axis(self) -> dict[str, Any]:
        """The y axis, with decades as ticks."""
        stride = math.ceil((self.high - self.low + 1) / MOST_TICKS)
        exponents = range(self.low, self.high + 1, stride)
        values = [_power(e) for e in exponents]
        texts = ["10" + str(e).translate(SUPERSCRIPTS) for e in exponents]
        bottom, top = self.low - 0.1, self.high + 0.1
        if self.has_zero:
            values, texts, bottom = [self.place(0.0), *values], ["0", *texts], self.low - 1.2 * self.gap
        if self.has_infinity:
            values, texts, top = [*values, self.place(math.inf)], [*texts, "∞"], self.high + 1.2 * self.gap
        return {"type": "log", "range": [bottom, top], "tickmode": "array", "tickvals": values, "ticktext": texts}


def _power(exponent: float) -> float:
    """10 to an exponent, within what a float holds."""
    return math.pow(10, min(max(exponent, -307.0), 308.0))
