"""A logarithmic axis with a place for zero and one for infinity, so that neither is dropped."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
MOST_TICKS = 7


@dataclass(frozen=True)
class LogScale:
    """The decades that hold all positive values, with a level for 0 below them and one for ∞ above.

    Attributes:
        low: The exponent of 10 at the lower end.
        high: The exponent of 10 at the upper end.
        has_zero: Whether a value is zero or negative.
        has_infinity: Whether a value is infinite or NaN.

    Example:
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
        """The scale that has a place for all of the values."""
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
        """The distance, in decades, from the ends to the levels of 0 and ∞."""
        return 0.16 * (self.high - self.low) + 0.2

    def place(self, value: float, lane: int = 0) -> float:
        """Where a value is drawn: at itself, or on the level of 0 or ∞; NaN goes to ∞, and its label says so.

        Args:
            value: The number.
            lane: Moves the mark inwards, so that lines that are infinite at the same layer stay apart.

        Returns:
            A positive, finite number.
        """
        if self.is_finite(value):
            return value
        outward = self.gap * (1 - 0.22 * lane)
        return _power(self.low - outward if value <= 0 else self.high + outward)

    def axis(self) -> dict[str, Any]:
        """The y axis as plotly writes it, with decades as ticks and the range in exponents of 10."""
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


def set_log_axis(axes: Axes, scale: LogScale) -> None:
    """Give a matplotlib picture the y axis of a scale."""
    axis = scale.axis()
    axes.set_yscale("log")
    axes.set_yticks(axis["tickvals"], axis["ticktext"])
    axes.minorticks_off()
    axes.set_ylim(*(_power(exponent) for exponent in axis["range"]))


def draw_on_log_axis(
    axes: Axes, places: Sequence[float], values: Sequence[float], scale: LogScale, **look: Any
) -> None:
    """Draw a line through the finite values, and triangles where a value is zero or infinite.

    NaN is a triangle at ∞ too, or a gap where the scale has no ∞.
    """
    axes.plot(places, [v if scale.is_finite(v) else math.nan for v in values], marker="o", markersize=3, **look)
    for place, value in zip(places, values, strict=True):
        if value <= 0 or (scale.has_infinity and not value < math.inf):
            axes.plot(place, scale.place(value), "v" if value <= 0 else "^", color=look["color"], markersize=5)


def _power(exponent: float) -> float:
    """10 to an exponent, within what a float holds."""
    return math.pow(10, min(max(exponent, -307.0), 308.0))
