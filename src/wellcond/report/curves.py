"""Still pictures of curves: numbers against the layer, spectral densities, training, losses against the rate."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from torch import Tensor

from wellcond.report.style import (
    COLOURS,
    GREY,
    LogScale,
    Series,
    bare_axes,
    check_series,
    draw_curves,
    draw_on_log_axis,
    legend_below,
    new_figure,
    set_log_axis,
)
from wellcond.report.table import MATRICES, Pivot
from wellcond.results import Row
from wellcond.results.quantities import TRAINING_LOSS
from wellcond.results.text import WHOLE_MODEL, shortened

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_LABELS = 20
"""Names of layers below an axis."""
MATRIX_STYLES = {"Σx": "-", "Σ∇h": "--"}


class DensityCurve(Protocol):
    """A spectral density with its standard error, each (points,). A `wellcond.spectral.density.Density` is one."""

    @property
    def grid(self) -> Tensor: ...
    @property
    def density(self) -> Tensor: ...
    @property
    def error(self) -> Tensor: ...


class RateTrial(Protocol):
    """Short runs at several learning rates: the loss before them and after their last step, and which diverged."""

    @property
    def rates(self) -> Tensor: ...
    @property
    def final(self) -> Tensor: ...
    @property
    def diverged(self) -> Tensor: ...
    @property
    def loss(self) -> float: ...
    @property
    def steps(self) -> int: ...


def layers_figure(series: Series) -> Figure:
    """Two panels against the layer, one colour per network: λ_max of Σx and Σ∇h, and κ_50 of both.

    Zero and infinity are drawn as triangles at the lower and upper edge.

    Args:
        series: The rows of `conditioning` or `diagnose`, by the name of the network.

    Returns:
        The figure.
    """
    check_series(series, "{'name': diagnose(problem).rows()}")
    pivots = {name: Pivot.of(rows) for name, rows in series.items()}
    figure = new_figure(10, 3.8)
    left, right = figure.subplots(1, 2)
    magnitudes = {matrix: names.lambda_max for matrix, names in MATRICES.items()}
    kappas = {matrix: names.kappa[0.5] for matrix, names in MATRICES.items()}
    _against_layer(left, pivots, magnitudes, "largest eigenvalue λmax: level is good")
    _against_layer(right, pivots, kappas, "condition number κ50: low is good")
    legend_below(figure, left)
    return figure


def _against_layer(axes: Axes, pivots: Mapping[str, Pivot], quantities: Mapping[str, str], title: str) -> None:
    columns = {(name, m): pivot.column(q) for name, pivot in pivots.items() for m, q in quantities.items()}
    layers = list(dict.fromkeys(layer for column in columns.values() for layer in column))
    scale = LogScale.of(value for column in columns.values() for value in column.values())
    for (name, matrix), column in columns.items():
        draw_on_log_axis(
            axes,
            [layers.index(layer) for layer in column],
            list(column.values()),
            scale,
            linestyle=MATRIX_STYLES[matrix],
            color=COLOURS[list(pivots).index(name) % len(COLOURS)],
            label=f"{name}, {matrix}" if name else matrix,
        )
    set_log_axis(axes, scale)
    label_layers(axes, layers)
    axes.set_title(title, loc="left", fontsize=11)
    bare_axes(axes)
    axes.grid(visible=False, axis="x")


def label_layers(axes: Axes, layers: Sequence[str]) -> None:
    """Write the names of layers below the x axis, no more than can be read."""
    stride = -(-len(layers) // MOST_LABELS) or 1
    labels = [shortened(layer or WHOLE_MODEL, 16) for layer in layers[::stride]]
    axes.set_xticks(range(0, len(layers), stride), labels, rotation=90, fontsize=8)
    axes.set_xlabel("layer")


def density_figure(densities: Mapping[str, DensityCurve]) -> Figure:
    """Spectral densities over each other, six decades deep, each in a band of two standard errors.

    Args:
        densities: What `density` returns, by the name of the network.

    Returns:
        The figure.
    """
    check_series(densities, "{'name': density(Hessian(problem))}", attributes=("grid", "density", "error"))
    figure = new_figure(7, 3.8)
    axes = figure.subplots()
    top = max(float(each.density.max()) for each in densities.values())
    for (name, each), colour in zip(densities.items(), itertools.cycle(COLOURS), strict=False):
        grid, middle, band = each.grid.numpy(), each.density.numpy(), 2 * each.error.nan_to_num().numpy()
        axes.plot(grid, middle, color=colour, label=name)
        axes.fill_between(grid, (middle - band).clip(min=0), middle + band, color=colour, alpha=0.2, linewidth=0)
    axes.set_yscale("log")
    axes.set_ylim(1e-6 * top, 2 * top)
    axes.set_xlabel("eigenvalue")
    axes.set_ylabel("density")
    bare_axes(axes)
    if any(densities):
        axes.legend(frameon=False)
    return figure


def training_figure(runs: Mapping[str, Sequence[Sequence[Row]]]) -> Figure:
    """The loss over training, one line per name: the mean of its repetitions, in the band they fill.

    A line ends, with a cross, where the first of its repetitions diverged.

    Args:
        runs: The rows of each repetition, by name; `training_loss` is drawn.

    Returns:
        The figure.
    """
    check_series(runs, "{'name': [run.rows(), …]}", holds=list)
    curves = {name: [_training_curve(rows) for rows in repetitions] for name, repetitions in runs.items()}
    figure = new_figure(7, 4.2)
    axes = figure.subplots()
    draw_curves(axes, curves)
    if min((loss for each in curves.values() for _, losses in each for loss in losses), default=0.0) > 0:
        axes.set_yscale("log")
    axes.set_xlabel("training step")
    axes.set_ylabel("training loss")
    if any(runs):
        axes.legend(frameon=False)
    return figure


def _training_curve(rows: Sequence[Row]) -> tuple[list[float], list[float]]:
    losses = sorted((row.step, row.value) for row in rows if row.quantity == TRAINING_LOSS and row.step is not None)
    return [float(step) for step, _ in losses], [loss for _, loss in losses]


def rates_figure(trial: RateTrial, limits: Mapping[str, float]) -> Figure:
    """The loss after a few steps against the learning rate, with rates as vertical lines.

    Runs that diverged are crosses at the upper edge.

    Args:
        trial: The runs.
        limits: Learning rates by what they are; one that is not finite is left out.

    Returns:
        The figure.
    """
    figure = new_figure(7, 4.2)
    axes = figure.subplots()
    good = ~trial.diverged
    axes.plot(trial.rates[good].tolist(), trial.final[good].tolist(), "o-", color=COLOURS[1], linewidth=1.6)
    axes.axhline(trial.loss, color=GREY, linewidth=1, linestyle=(0, (1, 2)), label="before the first step")
    if bool(trial.diverged.any()):
        diverged = trial.rates[trial.diverged].tolist()
        upper_edge = axes.get_xaxis_transform()
        axes.plot(diverged, [0.97] * len(diverged), "x", color=COLOURS[0], transform=upper_edge, label="diverged")
    for (name, rate), colour in zip(limits.items(), (COLOURS[0], COLOURS[2], COLOURS[3]), strict=False):
        if math.isfinite(rate):
            axes.axvline(rate, color=colour, linestyle="--", linewidth=1.4, label=f"{name}: {rate:.3g}")
    axes.set_xscale("log")
    losses = trial.final[good]
    if len(losses) and float(losses.min()) > 0 and trial.loss / float(losses.min()) > 10:
        axes.set_yscale("log")
    axes.set_xlabel("learning rate")
    axes.set_ylabel(f"loss after {trial.steps} steps")
    bare_axes(axes)
    legend_below(figure, axes, columns=2)
    return figure
