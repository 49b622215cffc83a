"""Still pictures of the loss landscape: ribbons over training, walks, slices (santurkar2018, figures 4 and 9 to 12)."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from wellcond.measurements.landscape.landscape import Landscape
from wellcond.measurements.landscape.slices import LossSlice
from wellcond.report.figures.style import (
    COLORS,
    GRAY,
    LOG_FROM,
    Series,
    bare_axes,
    check_series,
    legend_below,
    new_figure,
)
from wellcond.report.table import finite_or_gap, over_training
from wellcond.results.quantities import (
    BETA,
    GRADIENT_CHANGE_GREATEST,
    GRADIENT_CHANGE_LEAST,
    LOSS,
    LOSS_GREATEST,
    LOSS_LEAST,
)
from wellcond.results.rendering import renders

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

CONTOURS = 16
"""Number of filled contours of a plane."""
DRAWN = (LOSS_LEAST, LOSS_GREATEST, GRADIENT_CHANGE_LEAST, GRADIENT_CHANGE_GREATEST, LOSS, BETA)
GRADIENT_CHANGE = "change of the gradient  ‖∇L(θ) − ∇L(θₐ)‖"
RUN = "{'name': rows}, with rows += landscape(problem, lr).rows(step)"


def ribbons_figure(series: Series) -> Figure:
    """Three panels over training, one color per network, from the rows of its walks.

    The range of the loss, with the loss at the parameters as a line; the range of ‖∇L(θ) − ∇L(θ_a)‖; β. A narrow
    ribbon is a gradient that can be trusted.

    Args:
        series: `rows += landscape(problem, lr).rows(step)`, by the name of the network.

    Returns:
        The figure.
    """
    figure = new_figure(12, 3.8)
    axes = figure.subplots(1, 3)
    draw_ribbons(axes, series)
    legend_below(figure, axes[2])
    return figure


def draw_ribbons(panels: Sequence[Axes], series: Series) -> None:
    """Draw the panels of `ribbons_figure` on three axes that the caller has made."""
    check_series(series, RUN)
    loss, change, beta = panels
    ranges = ((loss, LOSS_LEAST, LOSS_GREATEST), (change, GRADIENT_CHANGE_LEAST, GRADIENT_CHANGE_GREATEST))
    for (name, rows), color in zip(series.items(), itertools.cycle(COLORS), strict=False):
        curves = {quantity: over_training(rows, quantity) for quantity in DRAWN}
        for quantity, (steps, _) in curves.items():
            if not steps:
                raise ValueError(f"no row is of {quantity!r}; pass {RUN}.")
        for axes, least, greatest in ranges:
            (steps, low), (_, high) = curves[least], curves[greatest]
            axes.fill_between(steps, low, high, color=color, alpha=0.25, linewidth=0)
            for edge in (low, high):
                axes.plot(steps, edge, color=color, linewidth=0.6, alpha=0.7)
        loss.plot(*curves[LOSS], color=color, linewidth=1.4)
        beta.plot(*curves[BETA], color=color, linewidth=1.6, label=name)
    for axes, title, quantities in (
        (loss, "loss along the gradient", (LOSS_LEAST, LOSS_GREATEST)),
        (change, GRADIENT_CHANGE, (GRADIENT_CHANGE_LEAST, GRADIENT_CHANGE_GREATEST)),
        (beta, "effective β-smoothness", (BETA,)),
    ):
        values = [row.value for rows in series.values() for row in rows if row.quantity in quantities]
        _finish(axes, title, "training step", values)


@renders("figure", Landscape)
def landscape_figure(landscape: Landscape) -> Figure:
    """The loss and the change of the gradient along the walk."""
    return walk_figure({"": landscape})


def walk_figure(walks: Mapping[str, Landscape]) -> Figure:
    """Two panels, one line per walk: the loss against the step length, the gradient's change against the distance.

    Points that are not finite are left out.

    Args:
        walks: What `landscape` returns, by name.

    Returns:
        The figure.
    """
    check_series(walks, "{'name': landscape(problem, lr)}", each=Landscape)
    figure = new_figure(9, 3.8)
    left, right = figure.subplots(1, 2)
    for axes, title, label, places, heights in (
        (left, "loss along the direction", "step length a", "step_lengths", "losses"),
        (right, GRADIENT_CHANGE, "distance  ‖θₐ − θ‖", "distances", "gradient_changes"),
    ):
        x: list[float] = []
        y: list[float] = []
        for (name, walk), color in zip(walks.items(), itertools.cycle(COLORS), strict=False):
            curve = finite_or_gap(getattr(walk, places)), finite_or_gap(getattr(walk, heights))
            axes.plot(*curve, color=color, marker="o", markersize=3.5, label=name)
            x, y = x + curve[0], y + curve[1]
        _finish(axes, title, label, y, x)
    legend_below(figure, left)
    return figure


@renders("figure", LossSlice)
def slice_figure(loss_slice: LossSlice) -> Figure:
    """A line, or filled contours, with the parameters marked; values that are not finite are left white.

    Args:
        loss_slice: What `loss_slice` returns.

    Returns:
        The figure.
    """
    if not isinstance(loss_slice, LossSlice):
        raise ValueError(f"a {type(loss_slice).__name__} cannot be drawn; pass what loss_slice(problem) returns.")
    is_line = loss_slice.losses.dim() == 1
    figure = new_figure(*((6.4, 3.8) if is_line else (5.6, 4.4)))
    axes = figure.subplots()
    names = [f"{symbol}  ({name})" for symbol, name in zip("αβ", loss_slice.directions, strict=False)]
    if is_line:
        axes.plot(loss_slice.coordinates, loss_slice.losses, color=COLORS[1], linewidth=1.8)
        axes.axvline(0, color=GRAY, linewidth=1, linestyle=(0, (4, 3)))
        _finish(axes, "loss", names[0], loss_slice.losses.tolist())
    else:
        _contours(figure, axes, loss_slice)
        axes.set_title("loss", loc="left", fontsize=11)
        axes.set_xlabel(names[0])
        axes.set_ylabel(names[1])
    return figure


def _contours(figure: Figure, axes: Axes, loss_slice: LossSlice) -> None:
    from matplotlib.colors import LogNorm, Normalize

    grid, losses = loss_slice.coordinates.numpy(), np.ma.masked_invalid(loss_slice.losses.numpy().T)
    axes.plot(0, 0, "o", color="white", markeredgecolor="black", markersize=6, zorder=3)
    axes.set_aspect("equal")
    if losses.count() == 0:
        return
    low, high = float(losses.min()), float(losses.max())
    is_log = _spans_decades(losses.compressed())
    if low == high:  # a plain has no contours
        high = low + max(abs(low), 1.0) * 1e-3
    levels = np.geomspace(low, high, CONTOURS) if is_log else np.linspace(low, high, CONTOURS)
    levels[[0, -1]] = low, high  # rounding would leave the extremes white
    norm = LogNorm(low, high) if is_log else Normalize(low, high)
    filled = axes.contourf(grid, grid, losses, levels=levels, norm=norm, cmap="viridis")
    axes.contour(grid, grid, losses, levels=levels, colors="white", linewidths=0.4, alpha=0.6)
    ticks = levels[:: (CONTOURS - 1) // 5]
    bar = figure.colorbar(filled, ax=axes, ticks=ticks)
    bar.ax.set_yticklabels([f"{tick:.3g}" for tick in ticks])
    bar.ax.minorticks_off()


def _finish(axes: Axes, title: str, label: str, heights: Sequence[float], places: Sequence[float] = ()) -> None:
    if _spans_decades(heights):
        axes.set_yscale("log")
    if _spans_decades(places):
        axes.set_xscale("log")
    bare_axes(axes, title=title, x=label)


def _spans_decades(values: Iterable[float]) -> bool:
    finite = [value for value in values if math.isfinite(value)]
    return bool(finite) and min(finite) > 0 and max(finite) > LOG_FROM * min(finite)
