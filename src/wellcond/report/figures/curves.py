"""Still pictures of curves: numbers against the layer, losses over training, densities of spectra."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import median
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from torch import Tensor

from wellcond.report.figures.style import (
    COLORS,
    Curve,
    LogScale,
    Series,
    bare_axes,
    check_series,
    draw_curves,
    legend_below,
    new_figure,
)
from wellcond.report.table import MATRICES, over_training
from wellcond.results import Row
from wellcond.results.quantities import TRAINING_LOSS
from wellcond.results.text import WHOLE_MODEL, shortened

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_LABELS = 20
"""Names of layers below an axis."""
MATRIX_STYLES = {"Σx": "-", "Σ∇h": "--"}
BARS = "#b9d3e6"


def layers_figure(series: Series) -> Figure:
    """Two panels against the layer, one color per network: λ_max of Σx and Σ∇h, and κ_50 of both.

    Zero and infinity are drawn as triangles at the lower and upper edge.

    Args:
        series: The rows of `conditioning` or `diagnose`, by the name of the network.

    Returns:
        The figure.
    """
    check_series(series, "{'name': diagnose(problem).rows()}")
    figure = new_figure(10, 3.8)
    left, right = figure.subplots(1, 2)
    magnitudes = {matrix: names.lambda_max for matrix, names in MATRICES.items()}
    kappas = {matrix: names.kappa[0.5] for matrix, names in MATRICES.items()}
    for axes, quantities, title in (
        (left, magnitudes, "largest eigenvalue λmax: level is good"),
        (right, kappas, "condition number κ50: low is good"),
    ):
        columns, looks = {}, []
        for i, (name, rows) in enumerate(series.items()):
            for matrix, quantity in quantities.items():
                columns[f"{name}, {matrix}" if name else matrix] = column_of(rows, quantity)
                looks.append({"color": COLORS[i % len(COLORS)], "linestyle": MATRIX_STYLES[matrix]})
        draw_against_layer(axes, columns, looks, title)
    legend_below(figure, left)
    return figure


def column_of(rows: Sequence[Row], quantity: str) -> dict[str, float]:
    """One quantity by layer."""
    return {row.layer: row.value for row in rows if row.quantity == quantity}


def draw_against_layer(
    axes: Axes,
    columns: Mapping[str, Mapping[str, float]],
    looks: Sequence[Mapping[str, Any]],
    title: str,
    *,
    is_log: bool = True,
    by_depth: bool = False,
) -> None:
    """Draw one line per column of numbers.

    On a logarithmic axis zero is a triangle at the lower edge, and what is infinite or NaN one at the upper edge.

    Args:
        axes: Where to draw.
        columns: Value by layer, by the label of the line.
        looks: The color and the style of each line.
        title: Of the panel.
        is_log: Whether the axis of the values is logarithmic.
        by_depth: Draw against the depth, from 0 to 1; for networks whose layers have other names.
    """
    layers = list(dict.fromkeys(layer for column in columns.values() for layer in column))
    scale = LogScale.of(value for column in columns.values() for value in column.values())
    for (label, column), look in zip(columns.items(), looks, strict=True):
        depths = [i / max(len(column) - 1, 1) for i in range(len(column))]
        places = depths if by_depth else [float(layers.index(layer)) for layer in column]
        heights = [v if scale.is_finite(v) or not is_log else math.nan for v in column.values()]
        axes.plot(places, heights, marker="o", markersize=3, label=label, **look)
        for place, value in zip(places, column.values(), strict=True):
            if is_log and not scale.is_finite(value):
                mark = "v" if value <= 0 else "^"
                axes.plot(place, scale.place(value), mark, color=look["color"], markersize=5)
    if is_log:
        scale.set_axis(axes)
    else:
        axes.ticklabel_format(axis="y", useOffset=False)
    bare_axes(axes, title=title)
    if by_depth:
        axes.set_xlabel("depth, from the first layer to the last")
    else:
        label_layers(axes, layers)


def label_layers(axes: Axes, layers: Sequence[str]) -> None:
    """Write the names of layers below the x axis, no more than can be read."""
    stride = -(-len(layers) // MOST_LABELS) or 1
    labels = [shortened(layer or WHOLE_MODEL, 16) for layer in layers[::stride]]
    axes.set_xticks(range(0, len(layers), stride), labels, rotation=90, fontsize=8)
    axes.set_xlabel("layer")
    axes.grid(visible=False, axis="x")


def training_figure(runs: Mapping[str, Sequence[Sequence[Row]]], *, y_label: str = "training loss") -> Figure:
    """The loss over training, one line per name: the mean of its repetitions, in the band they fill.

    A line ends, with a cross, where the first of its repetitions diverged.

    Args:
        runs: The rows of each repetition, by name; `training_loss` is drawn.
        y_label: What the losses are, where they are not those of single steps.

    Returns:
        The figure.
    """
    check_series(runs, "{'name': [run.rows(), …]}", many=list)
    curves = {name: [over_training(rows, TRAINING_LOSS) for rows in each] for name, each in runs.items()}
    figure = new_figure(7, 4.2)
    axes = figure.subplots()
    draw_curves(axes, curves)
    if min((loss for each in curves.values() for _, losses in each for loss in losses), default=0.0) > 0:
        axes.set_yscale("log")
    bare_axes(axes, x="training step", y=y_label)
    if any(runs):
        axes.legend(frameon=False)
    return figure


@runtime_checkable
class DensityCurve(Protocol):
    """A spectral density with its standard error, each (points,). A `wellcond.curvature.spectra.density.Density` is one."""

    @property
    def grid(self) -> Tensor: ...
    @property
    def density(self) -> Tensor: ...
    @property
    def error(self) -> Tensor: ...


def density_figure(densities: Mapping[str, DensityCurve]) -> Figure:
    """Spectral densities over each other, six decades deep, each in a band of two standard errors.

    Args:
        densities: What `density` returns, by the name of the network.

    Returns:
        The figure.
    """
    check_series(densities, "{'name': density(Hessian(problem))}", each=DensityCurve)
    figure = new_figure(7, 3.8)
    axes = figure.subplots()
    top = max(float(each.density.max()) for each in densities.values())
    for i, (name, each) in enumerate(densities.items()):
        grid, middle, band = each.grid.numpy(), each.density.numpy(), 2 * each.error.nan_to_num().numpy()
        color = COLORS[i % len(COLORS)]
        axes.plot(grid, middle, color=color, label=name)
        axes.fill_between(grid, (middle - band).clip(min=0), middle + band, color=color, alpha=0.2, linewidth=0)
    axes.set_yscale("log")
    axes.set_ylim(1e-6 * top, 2 * top)
    bare_axes(axes, x="eigenvalue", y="density")
    if any(densities):
        axes.legend(frameon=False)
    return figure


def law_figure(
    title: str,
    law: Curve,
    law_at_zero: float,
    measured: tuple[Sequence[float], Sequence[float]] | None = None,
    measured_at_zero: float = 0.0,
) -> Figure:
    """The density of a law of eigenvalues, over the histogram of a measured spectrum.

    Both are densities of all eigenvalues: an area is a share of them. The legend gives the shares at 0.

    Args:
        title: Of the figure.
        law: Eigenvalues other than 0, and their density.
        law_at_zero: The share at 0.
        measured: The heights of the bars (n,) and their edges (n + 1,), if there are any.
        measured_at_zero: Of the measured spectrum, the share at 0.

    Returns:
        The figure.
    """
    figure = new_figure(4.4, 3.8)
    axes = figure.subplots()
    if measured is not None:
        axes.stairs(*measured, fill=True, color=BARS, label=f"measured{_at_zero(measured_at_zero)}")
    axes.plot(*law, color=COLORS[0], label=f"law{_at_zero(law_at_zero)}")
    tallest_bar = 0.0 if measured is None else max(measured[0])
    axes.set_ylim(0, 1.3 * (tallest_bar or median(law[1])))
    axes.set_title(title, loc="left", fontsize=10)
    axes.legend(frameon=False)
    bare_axes(axes, x="eigenvalue", y="density")
    return figure


def _at_zero(share: float) -> str:
    return f", and {100 * share:.3g} % at 0" if share else ""
