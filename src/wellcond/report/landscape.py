"""Pictures of the loss landscape: ribbons over training, walks, slices (santurkar2018, figures 4 and 9 to 12)."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np

from wellcond.errors import MissingExtra
from wellcond.report.curves import dress
from wellcond.report.figures import COLOURS, save_figure
from wellcond.report.series import check_series
from wellcond.results import Row
from wellcond.results.files import check_writable
from wellcond.surface.landscape import Landscape
from wellcond.surface.slices import LossSlice

try:
    from matplotlib.axes import Axes
    from matplotlib.colors import LogNorm, Normalize
    from matplotlib.figure import Figure
except ImportError as error:
    raise MissingExtra("matplotlib", "plots") from error

DECADES = 30.0
"""Positive values that are further apart than this factor go on a logarithmic axis."""
LEVELS = 16
"""Of the filled contours of a plane."""
RUN = "{'name': rows}, with rows += landscape(problem, lr).rows(step)"
WALK = "{'name': landscape(problem, lr)}"


def save_ribbons(series: Mapping[str, Sequence[Row]], path: str | Path) -> Path:
    """Three panels over training, one colour a network, from the rows of its walks.

    The range of the loss, with the loss at the parameters as a line; the range of ‖∇L(θ) − ∇L(θ_a)‖; β. A narrow ribbon
    is a gradient that can be trusted. series: `rows += landscape(problem, lr).rows(step)`, by the network's name.
    """
    check_writable(path)
    figure = Figure(figsize=(12, 3.8), layout="constrained")
    panels = figure.subplots(1, 3)
    draw_ribbons(panels, series)
    figure.legend(*panels[2].get_legend_handles_labels(), loc="outside lower center", ncols=4, frameon=False)
    return save_figure(figure, path)


def draw_ribbons(panels: Sequence[Axes], series: Mapping[str, Sequence[Row]]) -> None:
    """The panels of `save_ribbons`, on three axes of one's own."""
    check_series(series, RUN)
    loss, change, beta = panels
    for (name, rows), colour in zip(series.items(), itertools.cycle(COLOURS), strict=False):
        _ribbon(loss, rows, "loss", colour)
        loss.plot(*_curve(rows, "loss"), color=colour, linewidth=1.4)
        _ribbon(change, rows, "gradient_change", colour)
        beta.plot(*_curve(rows, "beta"), color=colour, linewidth=1.6, label=name)
    for axes, title, quantities in (
        (loss, "loss along the gradient", ("loss_min", "loss_max")),
        (change, "change of the gradient  ‖∇L(θ) − ∇L(θₐ)‖", ("gradient_change_min", "gradient_change_max")),
        (beta, "effective β-smoothness", ("beta",)),
    ):
        values = [row.value for rows in series.values() for row in rows if row.quantity in quantities]
        _finish(axes, title, "training step", values)


def save_walk(series: Mapping[str, Landscape | Sequence[Row]], path: str | Path) -> Path:
    """Two panels of one walk a name: the loss against the step length, the gradient's change against the distance.

    series: what `landscape` returns, or its rows. Points that are not finite are left out.
    """
    check_writable(path)
    check_series(series, WALK, alone=Landscape)
    figure = Figure(figsize=(9, 3.8), layout="constrained")
    left, right = figure.subplots(1, 2)
    shown: tuple[list[float], ...] = ([], [], [], [])
    for (name, walk), colour in zip(series.items(), itertools.cycle(COLOURS), strict=False):
        rows = walk.rows() if isinstance(walk, Landscape) else walk
        columns = [_points(name, rows, q) for q in ("step_length", "loss", "distance", "gradient_change")]
        left.plot(columns[0], columns[1], color=colour, marker="o", markersize=3.5, label=name)
        right.plot(columns[2], columns[3], color=colour, marker="o", markersize=3.5)
        for every, column in zip(shown, columns, strict=True):
            every += column
    _finish(left, "loss along the direction", "step length a", shown[1], shown[0])
    _finish(right, "change of the gradient  ‖∇L(θ) − ∇L(θₐ)‖", "distance  ‖θₐ − θ‖", shown[3], shown[2])
    figure.legend(*left.get_legend_handles_labels(), loc="outside lower center", ncols=4, frameon=False)
    return save_figure(figure, path)


def save_slice(loss_slice: LossSlice, path: str | Path) -> Path:
    """A line, or filled contours, with the parameters marked; what is not finite is left white."""
    check_writable(path)
    if not isinstance(loss_slice, LossSlice):
        raise ValueError(f"a {type(loss_slice).__name__} cannot be drawn; pass what loss_slice(problem) returns.")
    is_line = loss_slice.losses.dim() == 1
    figure = Figure(figsize=(6.4, 3.8) if is_line else (5.6, 4.4), layout="constrained")
    axes = figure.subplots()
    names = [f"{symbol}  ({name})" for symbol, name in zip("αβ", loss_slice.directions, strict=False)]
    if is_line:
        axes.plot(loss_slice.coordinates, loss_slice.losses, color=COLOURS[1], linewidth=1.8)
        axes.axvline(0, color="#8a929c", linewidth=1, linestyle=(0, (4, 3)))
        _finish(axes, "loss", names[0], loss_slice.losses.tolist())
    else:
        _contours(figure, axes, loss_slice)
        axes.set_title("loss", loc="left", fontsize=11)
        axes.set_xlabel(names[0])
        axes.set_ylabel(names[1])
    return save_figure(figure, path)


def _contours(figure: Figure, axes: Axes, loss_slice: LossSlice) -> None:
    grid, losses = loss_slice.coordinates.numpy(), np.ma.masked_invalid(loss_slice.losses.numpy().T)
    axes.plot(0, 0, "o", color="white", markeredgecolor="black", markersize=6, zorder=3)
    axes.set_aspect("equal")
    if losses.count() == 0:
        return
    low, high = float(losses.min()), float(losses.max())
    is_log = _spans_decades(losses.compressed())
    if low == high:  # a plain has no contours
        high = low + max(abs(low), 1.0) * 1e-3
    levels = np.geomspace(low, high, LEVELS) if is_log else np.linspace(low, high, LEVELS)
    levels[[0, -1]] = low, high  # rounding would leave the extremes white
    norm = LogNorm(low, high) if is_log else Normalize(low, high)
    filled = axes.contourf(grid, grid, losses, levels=levels, norm=norm, cmap="viridis")
    axes.contour(grid, grid, losses, levels=levels, colors="white", linewidths=0.4, alpha=0.6)
    ticks = levels[:: (LEVELS - 1) // 5]
    bar = figure.colorbar(filled, ax=axes, ticks=ticks)
    bar.ax.set_yticklabels([f"{tick:.3g}" for tick in ticks])
    bar.ax.minorticks_off()


def _ribbon(axes: Axes, rows: Sequence[Row], quantity: str, colour: str) -> None:
    steps, low = _curve(rows, f"{quantity}_min")
    _, high = _curve(rows, f"{quantity}_max")
    axes.fill_between(steps, low, high, color=colour, alpha=0.25, linewidth=0)
    for edge in (low, high):
        axes.plot(steps, edge, color=colour, linewidth=0.6, alpha=0.7)


def _curve(rows: Sequence[Row], quantity: str) -> tuple[list[float], list[float]]:
    """Training steps and values, in their order; what is not finite is a gap."""
    chosen = sorted((row.step or 0, row.value) for row in rows if row.quantity == quantity)
    if not chosen:
        raise ValueError(f"no row is of {quantity!r}; pass {RUN}.")
    return [step for step, _ in chosen], [value if math.isfinite(value) else math.nan for _, value in chosen]


def _points(name: str, rows: Sequence[Row], quantity: str) -> list[float]:
    """The values `quantity[0]`, `quantity[1]`, … of one walk."""
    found = {row.quantity: row.value for row in rows}
    if len({row.step for row in rows}) > 1:
        raise ValueError(f"{name!r} holds walks of several training steps; pass the rows of one, or save_ribbons.")
    if f"{quantity}[0]" not in found:
        raise ValueError(f"{name!r} has no row of '{quantity}[0]'; pass {WALK}.")
    columns = (found[f"{quantity}[{i}]"] for i in range(len(found)) if f"{quantity}[{i}]" in found)
    return [value if math.isfinite(value) else math.nan for value in columns]


def _finish(axes: Axes, title: str, label: str, heights: Sequence[float], places: Sequence[float] = ()) -> None:
    if _spans_decades(heights):
        axes.set_yscale("log")
    if _spans_decades(places):
        axes.set_xscale("log")
    axes.set_title(title, loc="left", fontsize=11)
    axes.set_xlabel(label)
    dress(axes)


def _spans_decades(values: Iterable[float]) -> bool:
    finite = [value for value in values if math.isfinite(value)]
    return bool(finite) and min(finite) > 0 and max(finite) > DECADES * min(finite)
