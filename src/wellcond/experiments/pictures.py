"""The pictures that many experiments share: curves over training, lines against the layer, and heat maps."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from wellcond.experiments.table import Table
from wellcond.report.style import GREY, LogScale, bare_axes, draw_curves, legend_below, look_of, new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PANEL = (4.4, 3.4)
"""Inches of one panel."""
MOST_COLUMNS = 4


def panels(titles: Sequence[str], columns: int | None = None) -> tuple[Figure, dict[str, Axes]]:
    """An empty figure with one panel per title, by title."""
    columns = columns or min(len(titles), MOST_COLUMNS)
    lines = math.ceil(len(titles) / columns)
    figure = new_figure(PANEL[0] * columns, PANEL[1] * lines)
    axes = list(figure.subplots(lines, columns, squeeze=False).flat)
    for empty in axes[len(titles) :]:
        empty.set_visible(False)
    for title, panel in zip(titles, axes, strict=False):
        bare_axes(panel, title=title)
    return figure, dict(zip(titles, axes, strict=False))


def draw_over_training(axes: Axes, table: Table, quantity: str, *, layer: str = "", log: bool = False) -> None:
    """One line per arm over the steps, the mean of its seeds, in a band from the least to the greatest.

    A diverged run ends with a cross. An arm without such rows is left out.
    """
    curves = {
        arm: [(list(series), list(series.values())) for r in table.arm(arm) if (series := r.series(quantity, layer))]
        for arm in table.arms
    }
    curves = {arm: found for arm, found in curves.items() if found}
    if not curves:
        return
    draw_curves(axes, curves, table.arms)
    axes.set_xlabel("training step")
    if log:
        axes.set_yscale("log")


def over_training(
    table: Table, quantities: Mapping[str, str], *, layer: str = "", log: bool | Sequence[str] = False
) -> Figure:
    """One panel per quantity, one line per arm over the steps.

    Args:
        table: The cells.
        quantities: Names of quantities by the title of their panel.
        layer: Of which layer.
        log: Whether the heights are logarithmic, or the titles of the panels where they are.
    """
    figure, axes = panels(list(quantities))
    for title, quantity in quantities.items():
        is_log = log if isinstance(log, bool) else title in log
        draw_over_training(axes[title], table, quantity, layer=layer, log=is_log)
    legend_below(figure, next(iter(axes.values())))
    return figure


def draw_by_layer(axes: Axes, lines: Mapping[str, Mapping[str, float]], *, log: bool = True) -> None:
    """One line per name against the layers, counted from 1; 0 and ∞ have places of their own on a logarithmic axis.

    Args:
        axes: Where to draw.
        lines: Values by layer, by the name of the line.
        log: Whether the heights are logarithmic.
    """
    scale = LogScale.of(value for line in lines.values() for value in line.values())
    for place, (name, line) in enumerate(lines.items()):
        heights = [scale.place(value, place) for value in line.values()] if log else list(line.values())
        marks: dict[str, Any] = {"marker": "o", "markersize": 3} if len(line) <= 30 else {}
        axes.plot(range(1, len(heights) + 1), heights, label=name, linewidth=1.5, **look_of(place), **marks)
    if log:
        scale.set_axis(axes)
    axes.set_xlabel("layer")


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
    log_colour: bool = True,
) -> None:
    """Values over two settings as coloured squares, white with a grey rim where training diverged.

    Both axes have one place per value, in order. A line, such as the predicted limit of the learning rate, is put
    between these places where its x lies between two values, on a logarithmic axis if all are positive.

    Args:
        axes: Where to draw.
        cells: The value at each (x, y); None where there is none because training diverged.
        x: What lies along the axis.
        y: What lies upwards.
        lines: Points (x, y) of each line, by its name.
        log_colour: Whether colours follow the logarithm of the value.
    """
    from matplotlib.colors import LogNorm, Normalize

    columns, heights = (sorted({place[axis] for place in cells}) for axis in (0, 1))
    grid = np.full((len(heights), len(columns)), np.nan)
    for (column, height), value in cells.items():
        if value is not None and math.isfinite(value):
            grid[heights.index(height), columns.index(column)] = value
    known = grid[np.isfinite(grid)]
    low, high = (float(known.min()), float(known.max())) if len(known) else (1.0, 1.0)
    is_log = log_colour and low > 0 and high > low
    norm = LogNorm(low, high) if is_log else Normalize(low, high)
    drawn = axes.pcolormesh(grid, norm=norm, cmap="viridis_r", edgecolors="#e3e6ea", linewidth=0.5)
    axes.figure.colorbar(drawn, ax=axes)
    styles = ("-", "--", ":")
    for place, (name, points) in enumerate((lines or {}).items()):
        kept = [(a, b) for a, b in points if b in heights and math.isfinite(a) and (a > 0 or min(columns) <= 0)]
        inside = [(_between(columns, a), heights.index(b) + 0.5) for a, b in kept]
        if inside:
            style = styles[place % len(styles)]
            axes.plot(*zip(*inside, strict=True), style, color="#d55e00" if place else "black", label=name, linewidth=2)
    for names, set_ticks in ((columns, axes.set_xticks), (heights, axes.set_yticks)):
        stride = math.ceil(len(names) / 9)
        set_ticks([i + 0.5 for i in range(0, len(names), stride)], [f"{name:.3g}" for name in names[::stride]])
    axes.set_xlim(0, len(columns))
    axes.set_ylim(0, len(heights))
    axes.grid(False)
    axes.tick_params(axis="x", rotation=45)
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.spines[:].set_color(GREY)


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
    log_colour: bool = True,
) -> Figure:
    """One heat map per title, each with its own lines.

    Args:
        maps: The cells of each map, as in `draw_heat_map`, by title.
        x: What lies along the axis.
        y: What lies upwards.
        lines: The lines of each map, by title.
        log_colour: Whether colours follow the logarithm of the value.
    """
    figure, axes = panels(list(maps))
    for title, cells in maps.items():
        own = (lines or {}).get(title)
        draw_heat_map(axes[title], cells, x=x, y=y, lines=own, log_colour=log_colour)
    legend_below(figure, next(iter(axes.values())))
    return figure
