"""Still pictures of curves: numbers against the layer, and losses over training."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from wellcond.diagnosis.diagnosis import Diagnosis
from wellcond.errors import OutputError
from wellcond.measurements.layers.conditioning import ConditioningTable
from wellcond.report.figures.style import (
    COLORS,
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
from wellcond.results.rendering import renders
from wellcond.results.run import Run, averaged_steps
from wellcond.results.text import WHOLE_MODEL, shortened
from wellcond.treatment.treatment import Treatment

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_LABELS = 20
"""Largest number of layer names below an axis."""
MATRIX_STYLES = {"Σx": "-", "Σ∇h": "--"}


@renders("figure", Diagnosis)
@renders("figure", ConditioningTable)
def conditioning_figure(result: Diagnosis | ConditioningTable) -> Figure:
    """λ_max and κ_50% of Σx and Σ∇h against the layer."""
    return layers_figure({"": result.rows()})


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

    On a logarithmic axis zero is a triangle at the lower edge; infinity and NaN are triangles at the upper edge.

    Args:
        axes: Panel to draw in.
        columns: Value by layer, by the label of the line.
        looks: Color and style of each line.
        title: Title of the panel.
        is_log: Whether the axis of the values is logarithmic.
        by_depth: Whether to draw against the depth, from 0 to 1; for networks whose layers have different names.
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


@renders("figure", Run)
def run_figure(run: Run) -> Figure:
    """The loss over the steps."""
    return training_figure({"": [run.rows()]})


@renders("figure", Treatment)
def treatment_figure(treatment: Treatment) -> Figure:
    """The training loss of every arm at its learning rate: the mean over seeds, and their range."""
    curves = {
        f"{arm.name}{' (random)' if arm.is_random else ''}, lr {arm.best_lr:.3g}": [
            [Row(step, "", TRAINING_LOSS, loss, "") for step, loss in zip(*run.curve(), strict=True)]
            for run in arm.runs[arm.best_lr].values()
        ]
        for arm in treatment.arms.values()
        if arm.best_lr is not None
    }
    if not curves:
        raise OutputError("no run finished, so there is nothing to draw.")
    window = averaged_steps(treatment.steps)
    return training_figure(curves, y_label=f"training loss, running mean over {window} steps")


def training_figure(runs: Mapping[str, Sequence[Sequence[Row]]], *, y_label: str = "training loss") -> Figure:
    """The loss over training, one line per name: the mean of its repetitions, in the band they fill.

    A line ends, with a cross, where the first of its repetitions diverged.

    Args:
        runs: The rows of each repetition, by name; `training_loss` is drawn.
        y_label: Name of the losses, if they are not those of single steps.

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
