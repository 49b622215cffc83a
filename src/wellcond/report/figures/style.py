"""How pictures look: colors, bare axes, curves with bands, and a logarithmic axis with a place for 0 and for ∞."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from wellcond.errors import MissingExtra
from wellcond.results import Row

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLORS = ("#d55e00", "#0072b2", "#009e73", "#cc79a7", "#a67c00", "#56b4e9")
"""One per network; color-blind readers can tell them apart."""
LINE_STYLES = ("-", "--", "-.", (0, (1, 1)), (0, (5, 1, 1, 1, 1, 1)), (0, (8, 2)))
"""One per network, so that lines differ without color too."""
GRAY = "#8a929c"
"""Color of lines that mark a reference."""
SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
LOG_FROM = 30.0
"""Positive values that span more than this factor are drawn on a logarithmic axis."""
MOST_TICKS = 7
"""Ticks of a logarithmic axis."""

Curve = tuple[Sequence[float], Sequence[float]]
"""Places (n,) and heights (n,)."""
Series = Mapping[str, Sequence[Row]]
"""Rows by the name of the network."""


def new_figure(width: float, height: float) -> Figure:
    """An empty figure whose panels and labels do not overlap.

    Args:
        width: Width in inches.
        height: Height in inches.

    Returns:
        The figure, which belongs to no window.

    Raises:
        MissingExtra: matplotlib is not installed.
    """
    try:
        from wellcond.report.figures.shown import ShownFigure
    except ImportError as error:
        raise MissingExtra("matplotlib", "plots") from error
    return ShownFigure(figsize=(width, height), layout="constrained")


def bare_axes(axes: Axes, *, title: str = "", x: str = "", y: str = "") -> None:
    """Draw a pale grid below the curves, no frame above or to the right, a title and the names of the axes."""
    axes.grid(color="#dfe3e8")
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    if title:
        axes.set_title(title, loc="left", fontsize=11)
    if x:
        axes.set_xlabel(x)
    if y:
        axes.set_ylabel(y)


def look_of(index: int) -> dict[str, Any]:
    """The color and the style of the line of a network, by its place among the networks.

    Colors come back after one round, with other styles.
    """
    rounds, place = divmod(index, len(COLORS))
    return {"color": COLORS[place], "linestyle": LINE_STYLES[(place + rounds) % len(LINE_STYLES)]}


def legend_below(figure: Figure, axes: Axes, columns: int = 4) -> None:
    """One legend below all panels with the names of one of them; none if no line has a name."""
    handles, names = axes.get_legend_handles_labels()
    if any(names):
        figure.legend(handles, names, loc="outside lower center", ncols=columns, frameon=False)


def draw_curves(axes: Axes, lines: Mapping[str, Sequence[Curve]], order: Sequence[str] = ()) -> None:
    """Draw one line per name: the mean of its curves, in a band from the least to the greatest.

    A line ends where the first of its curves does, such as that of a diverged run, with a cross if others go on.

    Args:
        axes: Panel to draw in.
        lines: Repetitions of one curve, by name.
        order: Names of all panels, so that a name has the same color and style in each; by default those of `lines`.
    """
    names = list(order or lines)
    longest = max(len(places) for curves in lines.values() for places, _ in curves)
    for name, curves in lines.items():
        look = look_of(names.index(name))
        length = min(len(places) for places, _ in curves)
        places = np.asarray(curves[0][0][:length])
        heights = np.array([values[:length] for _, values in curves])
        axes.plot(places, heights.mean(0), **look, linewidth=1.6, label=name)
        axes.fill_between(places, heights.min(0), heights.max(0), color=look["color"], alpha=0.18, linewidth=0)
        if length < longest:
            axes.plot(places[-1:], heights.mean(0)[-1:], "x", color=look["color"], markersize=8)
    bare_axes(axes)


@dataclass(frozen=True)
class LogScale:
    """The decades that hold all positive values, with a level for 0 below them and one for ∞ above.

    Attributes:
        low: Exponent of 10 at the lower end.
        high: Exponent of 10 at the upper end.
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
        """The height at which a value is drawn: itself, or the level of 0 or ∞; NaN is drawn at ∞.

        Args:
            value: Number to draw.
            lane: Number of steps inwards, so that lines that are infinite at the same layer stay apart.

        Returns:
            A positive, finite number.
        """
        if self.is_finite(value):
            return value
        outward = self.gap * (1 - 0.22 * lane)
        return _power(self.low - outward if value <= 0 else self.high + outward)

    def set_axis(self, axes: Axes) -> None:
        """Give a matplotlib picture the y axis of the scale."""
        axis = self.axis()
        axes.set_yscale("log")
        axes.set_yticks(axis["tickvals"], axis["ticktext"])
        axes.minorticks_off()
        axes.set_ylim(*(_power(exponent) for exponent in axis["range"]))

    def axis(self) -> dict[str, Any]:
        """The y axis of a page, with decades as ticks and the range in exponents of 10."""
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


def check_series(series: Any, example: str, *, each: type | None = None, many: type = Row) -> None:
    """Raise `ValueError`, with what to pass instead, unless every name holds something to draw.

    Args:
        series: Argument of the caller.
        example: Code that makes a right argument.
        each: Type that every name holds; None if it holds a sequence or a mapping.
        many: Type of the items of that sequence or mapping.
    """
    if not isinstance(series, Mapping) or not series:
        kind = "an empty mapping" if isinstance(series, Mapping) else f"a {type(series).__name__}"
        raise ValueError(f"{kind} cannot be drawn; pass {example}, by the names of networks.")
    for name, held in series.items():
        if each is not None:
            is_right = isinstance(held, each)
        else:
            items = list(held.values()) if isinstance(held, Mapping) else held
            is_right = isinstance(items, Sequence) and all(isinstance(item, many) for item in items)
            if is_right and not items:
                raise ValueError(f"{name!r} is empty; pass {example}.")
        if not is_right:
            raise ValueError(f"{name!r} is a {type(held).__name__} of another kind; pass {example}.")
