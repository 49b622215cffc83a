"""The pictures that many experiments share: curves over training, lines against the layer, and heat maps."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from wellcond.report.figures.style import (
    GRAY,
    SUPERSCRIPTS,
    Curve,
    LogScale,
    bare_axes,
    draw_curves,
    legend_below,
    look_of,
    new_figure,
)
from wellcond_papers.experiments.table import Record, Table

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

PANEL = (4.4, 3.4)
"""Size of one panel, in inches."""
WIDEST = 18.0
"""Largest width of a figure, in inches; with more columns the panels are smaller, so that text stays readable."""
MOST_COLUMNS = 4
FEWEST_DECADES = 2.0
"""A logarithmic axis that spans fewer decades has a few plain numbers."""
LONGEST = 5
"""Tick labels with more characters than this are rotated."""
MOST_TICKS = 7
"""Ticks along an axis; numbers of five digits still have room."""
MOST_TIMES = 100.0
"""Largest ratio of colors in a logarithmic map: a cell that nearly diverged must not hide the rest."""


def panels(titles: Sequence[str], columns: int | None = None) -> tuple[Figure, dict[str, Axes]]:
    """An empty figure with one panel per title, by title."""
    columns = columns or min(len(titles), MOST_COLUMNS)
    lines = math.ceil(len(titles) / columns)
    size = min(1.0, WIDEST / (PANEL[0] * columns))
    figure = new_figure(size * PANEL[0] * columns, size * PANEL[1] * lines)
    axes = list(figure.subplots(lines, columns, squeeze=False).flat)
    for empty in axes[len(titles) :]:
        empty.set_visible(False)
    for title, panel in zip(titles, axes, strict=False):
        bare_axes(panel, title=title)
    return figure, dict(zip(titles, axes, strict=False))


def draw_over_training(axes: Axes, table: Table, quantity: str, *, layer: str = "", log: bool = False) -> None:
    """One line per arm over the steps, the mean of its seeds, in a band from the smallest to the largest.

    A diverged run is a line of its own that ends with a cross. An arm without such rows is left out.
    """

    def curves(runs: Sequence[Record]) -> list[Curve]:
        return [(list(series), list(series.values())) for r in runs if (series := r.series(quantity, layer))]

    steady = {arm: curves([r for r in table.arm(arm) if not r.has_diverged]) for arm in table.arms}
    lost = {arm: curves([r for r in table.arm(arm) if r.has_diverged]) for arm in table.arms}
    whole = {arm: steady[arm] or lost[arm] for arm in table.arms if steady[arm] or lost[arm]}
    if not whole:
        return
    draw_curves(axes, whole, table.arms)
    for place, arm in enumerate(table.arms):
        for steps, heights in lost[arm] if steady[arm] else ():
            look = look_of(place)
            axes.plot(steps, heights, **look, linewidth=1)
            axes.plot(steps[-1:], heights[-1:], "x", color=look["color"], markersize=8)
    axes.set_xlabel("training step")
    axes.locator_params(axis="x", nbins=MOST_TICKS)
    if log:
        axes.set_yscale("log")
        _plain_if_short(axes.yaxis, *axes.get_ylim())


def _plain_if_short(axis: Axis, low: float, high: float) -> None:
    """Numbers such as 0.5, 1 and 2 along a short logarithmic axis, instead of many powers of 10."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    if low > 0 and math.log10(high / low) < FEWEST_DECADES:
        axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axis.set_minor_locator(NullLocator())
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.3g}"))


def over_training(
    table: Table,
    quantities: Mapping[str, str],
    *,
    layer: str = "",
    log: bool | Sequence[str] = False,
    columns: int = MOST_COLUMNS,
) -> Figure:
    """One panel per quantity, one line per arm over the steps.

    Args:
        table: The cells.
        quantities: Names of quantities by the title of their panel.
        layer: The layer whose rows are drawn.
        log: Whether the y axes are logarithmic, or the titles of the panels where they are.
        columns: Columns of the legend.
    """
    figure, axes = panels(list(quantities))
    for title, quantity in quantities.items():
        is_log = log if isinstance(log, bool) else title in log
        draw_over_training(axes[title], table, quantity, layer=layer, log=is_log)
    legend_below(figure, next(iter(axes.values())), columns=columns)
    return figure


def draw_by_layer(axes: Axes, lines: Mapping[str, Mapping[str, float]], *, log: bool = True) -> None:
    """One line per name against the layers, counted from 1; 0 and ∞ have their own places on a logarithmic axis.

    Args:
        axes: The axes to draw on.
        lines: Values by layer, by the name of the line.
        log: Whether the y axis is logarithmic.
    """
    scale = LogScale.of(value for line in lines.values() for value in line.values())
    for place, (name, line) in enumerate(lines.items()):
        heights = [scale.place(value, place) for value in line.values()] if log else list(line.values())
        marks: dict[str, Any] = {"marker": "o", "markersize": 3} if len(line) <= 30 else {}
        axes.plot(range(1, len(heights) + 1), heights, label=name, linewidth=1.5, **look_of(place), **marks)
    if log:
        scale.set_axis(axes)
    count_along(axes)


def count_along(axes: Axes, name: str = "layer") -> None:
    """Whole numbers along the x axis, for layers or anything else that is counted."""
    from matplotlib.ticker import MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(nbins=6, steps=[1, 2, 5, 10], integer=True))
    axes.set_xlabel(name)


def by_layer(table: Table, quantities: Mapping[str, str], *, step: int | None = None, log: bool = True) -> Figure:
    """One panel per quantity, one line per arm against the layers, at one step; None for the last."""
    figure, axes = panels(list(quantities))
    for title, quantity in quantities.items():
        lines = {arm: table.arm(arm).mean_by_layer(quantity, step) for arm in table.arms}
        lines = {arm: line for arm, line in lines.items() if line}
        if lines:
            draw_by_layer(axes[title], lines, log=log)
    legend_below(figure, next(iter(axes.values())))
    return figure


def draw_heat_map(
    axes: Axes,
    cells: Mapping[tuple[float, float], float | None],
    *,
    x: str,
    y: str,
    lines: Mapping[str, Sequence[tuple[float, float]]] | None = None,
    log_color: bool = True,
    color: str = "",
) -> None:
    """Values over two settings as colored squares, white with a gray rim where training diverged.

    Both axes have one place per value, in order. A line, such as the predicted limit of the learning rate, is put
    between these places where its x lies between two values, on a logarithmic axis if all are positive.

    Args:
        axes: The axes to draw on.
        cells: The value at each (x, y); None where training diverged.
        x: Label of the x axis.
        y: Label of the y axis.
        lines: Points (x, y) of each line, by its name.
        log_color: Whether colors follow the logarithm of the value.
        color: Label of the color bar.
    """
    from matplotlib.colors import LogNorm, Normalize
    from matplotlib.patheffects import withStroke

    columns, heights = (sorted({place[axis] for place in cells}) for axis in (0, 1))
    grid = np.full((len(heights), len(columns)), np.nan)
    for (column, height), value in cells.items():
        if value is not None and math.isfinite(value):
            grid[heights.index(height), columns.index(column)] = value
    known = grid[np.isfinite(grid)]
    low, high = (float(known.min()), float(known.max())) if len(known) else (1.0, 1.0)
    is_log = log_color and low > 0 and high > low
    top = min(high, MOST_TIMES * low) if is_log else high
    norm = LogNorm(low, top) if is_log else Normalize(low, high)
    drawn = axes.pcolormesh(grid, norm=norm, cmap="viridis", edgecolors="#e3e6ea", linewidth=0.5)
    bar = axes.figure.colorbar(drawn, ax=axes, label=color, extend="max" if top < high else "neither")
    if is_log:
        _plain_if_short(bar.ax.yaxis, low, top)
    looks: tuple[dict[str, Any], ...] = (
        {"linestyle": "-", "color": "black"},
        {"linestyle": "--", "color": "#d55e00"},
        {"linestyle": "", "marker": "o", "markerfacecolor": "white", "markeredgecolor": "#d55e00", "markersize": 5},
    )
    outline = [withStroke(linewidth=4, foreground="white")]  # visible on dark squares too
    for place, (name, points) in enumerate((lines or {}).items()):
        in_range = [(a, b) for a, b in points if b in heights and math.isfinite(a) and (a > 0 or min(columns) <= 0)]
        inside = [(_between(columns, a), heights.index(b) + 0.5) for a, b in in_range]
        if inside:
            look = {"linewidth": 2, **looks[place % len(looks)], "path_effects": outline}
            axes.plot(*zip(*inside, strict=True), label=name, **look)
    for names, set_ticks in ((columns, axes.set_xticks), (heights, axes.set_yticks)):
        places = _ticked(names)
        set_ticks([place + 0.5 for place in places], [_place_name(names[place]) for place in places])
    axes.set_xlim(0, len(columns))
    axes.set_ylim(0, len(heights))
    axes.grid(False)
    if max(len(label.get_text()) for label in axes.get_xticklabels()) > LONGEST:
        axes.tick_params(axis="x", rotation=45)
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.spines[:].set_color(GRAY)


def _ticked(values: Sequence[float]) -> list[int]:
    """Places of a sorted axis that are named: all if there is room, else the powers of ten, else every second, ….

    Example:
        >>> _ticked([0.1, 0.5, 1.0]), _ticked([10 ** (place / 4) for place in range(-8, 5)]), _ticked(range(10))
        ([0, 1, 2], [0, 4, 8, 12], [0, 2, 4, 6, 8])
    """
    powers = [place for place, value in enumerate(values) if _is_power(value)]
    if len(values) > MOST_TICKS and 3 <= len(powers) <= MOST_TICKS:
        return powers
    return list(range(0, len(values), math.ceil(len(values) / MOST_TICKS)))


def _is_power(value: float) -> bool:
    return value > 0 and abs(math.log10(value) - round(math.log10(value))) < 1e-3


def _place_name(value: float) -> str:
    """A number with three digits; a small power of ten as a power.

    Example:
        >>> _place_name(0.0001), _place_name(0.03162), _place_name(10.0)
        ('10⁻⁴', '0.0316', '10')
    """
    if _is_power(value) and value < 0.09:
        return f"10{str(round(math.log10(value))).translate(SUPERSCRIPTS)}"
    return f"{value:.3g}"


def _between(values: Sequence[float], value: float) -> float:
    """Where a value lies among sorted ones, whose places are ½, 1½, …; beyond the ends by at most one place."""
    change = math.log if values[0] > 0 else float
    known = [change(v) for v in values]
    target = change(value)
    if len(known) == 1:
        return 0.5
    if target < known[0]:
        return max(0.5 + (target - known[0]) / (known[1] - known[0]), -0.5)
    if target > known[-1]:
        return min(len(known) - 0.5 + (target - known[-1]) / (known[-1] - known[-2]), len(known) + 0.5)
    return float(np.interp(target, known, np.arange(len(known)) + 0.5))


def heat_map(
    maps: Mapping[str, Mapping[tuple[float, float], float | None]],
    *,
    x: str,
    y: str,
    lines: Mapping[str, Mapping[str, Sequence[tuple[float, float]]]] | None = None,
    log_color: bool = True,
) -> Figure:
    """One heat map per title, each with its own lines.

    Args:
        maps: The cells of each map, as in `draw_heat_map`, by title.
        x: Label of the x axis.
        y: Label of the y axis.
        lines: The lines of each map, by title.
        log_color: Whether colors follow the logarithm of the value.
    """
    figure, axes = panels(list(maps))
    for title, cells in maps.items():
        own = (lines or {}).get(title)
        draw_heat_map(axes[title], cells, x=x, y=y, lines=own, log_color=log_color)
    legend_below(figure, next(iter(axes.values())))
    return figure
