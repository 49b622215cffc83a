"""Still pictures of activations: histograms of layers' outputs, and how moments and gradients shift over training."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from wellcond.errors import UnknownLayer
from wellcond.measurements.layers.activations import Activations, MomentChanges
from wellcond.measurements.layers.covariate_shift import CovariateShift
from wellcond.report.figures.curves import column_of, draw_against_layer
from wellcond.report.figures.style import (
    COLORS,
    Series,
    bare_axes,
    check_series,
    draw_curves,
    legend_below,
    look_of,
    new_figure,
)
from wellcond.report.table import over_training
from wellcond.results.quantities import MEAN_CHANGE, SHIFT_COSINE, SHIFT_DIFFERENCE, VARIANCE_CHANGE, title_of
from wellcond.results.rendering import renders
from wellcond.results.text import WHOLE_MODEL, shortened

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_LAYERS = 4
"""Columns of panels, if no layers are named."""
MOST_STEPS = 8
"""Labels on the axis of training steps."""
OVERLAP = 1.8
"""How high the highest ridge reaches, in distances between two of them."""
MENTIONED = 0.01
"""A larger share of values beyond the edges is written next to the ridge."""
SHIFT = (SHIFT_DIFFERENCE, SHIFT_COSINE)
CHANGE = (MEAN_CHANGE, VARIANCE_CHANGE)
LOGARITHMIC = {SHIFT_DIFFERENCE, *CHANGE}
NARROW = 5.0
"""A logarithmic axis over less than this factor has plain numbers at its ticks, like a linear one."""


@renders("figure", Activations)
def activations_figure(activations: Activations) -> Figure:
    """The histograms of some layers."""
    return histograms_figure({"": {0: activations}})


def histograms_figure(
    networks: Mapping[str, Mapping[int, Activations]],
    layers: str | Sequence[str] | None = None,
    *,
    unit: int | None = None,
) -> Figure:
    """Histograms of layers' outputs over training, as ridges from the first step below to the last above.

    One row of panels per network, one column per layer (santurkar2018, figures 8 and 14).

    Args:
        networks: {training step: activations}, by the name of the network.
        layers: Layers to draw; None takes up to four, evenly over the depth of each network.
        unit: Draw this unit of each layer; None draws all units together.

    Returns:
        The figure.
    """
    check_series(networks, "{'name': {step: activations(problem)}}", many=Mapping)
    chosen = {name: _chosen(list(next(iter(steps.values()))), layers) for name, steps in networks.items()}
    columns = max(map(len, chosen.values()))
    figure = new_figure(1 + 2.6 * columns, 0.6 + 2.8 * len(networks))
    grid = figure.subplots(len(networks), columns, squeeze=False)
    for i, (network, steps) in enumerate(networks.items()):
        for j, axes in enumerate(grid[i]):
            if j >= len(chosen[network]):
                axes.set_axis_off()
                continue
            _ridges(axes, steps, chosen[network][j], unit, COLORS[i % len(COLORS)])
            if len(steps) == 1:
                axes.set_yticks([])
            if j == 0:
                axes.set_ylabel("\n".join(filter(None, (network, "training step" if len(steps) > 1 else "density"))))
            else:
                axes.tick_params(labelleft=False)
    figure.supxlabel("output" if unit is None else f"output of unit {unit}", fontsize=10)
    return figure


@renders("figure", MomentChanges)
def changes_figure(changes: MomentChanges) -> Figure:
    """The changes against the layer."""
    return moment_changes_figure({"": changes.rows()})


def moment_changes_figure(series: Series, layers: str | Sequence[str] | None = None) -> Figure:
    """‖Δμ‖ and ‖Δσ²‖ between steps over training (santurkar2018, figure 7); of one step, against the layer.

    Args:
        series: The rows of `change_from`, of all steps together, by the name of the network.
        layers: As in `histograms_figure`; against the layer, None takes them all.

    Returns:
        The figure, with one line per network.
    """
    check_series(series, "{'name': rows}, with rows += activations(problem).change_from(before).rows(step)")
    return _rows_figure(series, CHANGE, layers)


@renders("figure", CovariateShift)
def shift_figure(shift: CovariateShift) -> Figure:
    """‖G − G'‖ and cos(G, G') against the layer."""
    return covariate_shift_figure({"": shift.rows()})


def covariate_shift_figure(series: Series, layers: str | Sequence[str] | None = None) -> Figure:
    """‖G − G'‖ and cos(G, G') over training (santurkar2018, figure 6); of one step, against the layer.

    A difference of zero is drawn as a triangle at the lower edge.

    Args:
        series: The rows of `covariate_shift`, of all steps together, by the name of the network.
        layers: Layers to draw; None takes them all against the layer, and over training up to four after the first,
            which has no shift.

    Returns:
        The figure, with one line per network.
    """
    check_series(series, "{'name': rows}, with rows += covariate_shift(problem, optimizer).rows(step)")
    return _rows_figure(series, SHIFT, layers, skipped=1)


def _ridges(axes: Axes, steps: Mapping[int, Activations], layer: str, unit: int | None, color: str) -> None:
    by_step = {step: steps[step][layer] for step in sorted(steps)}
    histograms = [each.histogram if unit is None else each.unit_histogram(unit) for each in by_step.values()]
    highest = max(float(histogram.density.max()) for histogram in histograms) or 1.0
    ends: list[float] = []
    for level, histogram in enumerate(histograms):
        edges, density = histogram.edges.numpy(), histogram.density.numpy()
        top = level + OVERLAP / highest * density
        in_front = 3 - level / len(histograms)  # the lower ones
        axes.stairs(top, edges, baseline=level, fill=True, color=color, zorder=in_front)
        axes.stairs(top, edges, baseline=level, color="white", linewidth=0.8, zorder=in_front)
        inside = np.flatnonzero(density)
        ends += [edges[inside[0]], edges[inside[-1] + 1]] if len(inside) else []
        outside = 1 - float((histogram.density * histogram.edges.diff()).sum())
        if outside > MENTIONED:
            place, paper = axes.get_yaxis_transform(), {"color": "white", "alpha": 0.8, "pad": 0.5}
            text = f"{outside:.0%} outside"
            axes.text(1, level + 0.12, text, transform=place, ha="right", fontsize=7, zorder=4, bbox=paper)
    stride = -(-len(histograms) // MOST_STEPS)
    axes.set_yticks(range(0, len(histograms), stride), [str(step) for step in list(by_step)[::stride]])
    axes.set_ylim(-0.15, len(histograms) - 1 + 1.05 * OVERLAP)
    if ends:
        margin = 0.04 * (max(ends) - min(ends))
        axes.set_xlim(min(ends) - margin, max(ends) + margin)
    bare_axes(axes, title=shortened(layer or WHOLE_MODEL))


def _rows_figure(
    series: Series, quantities: Sequence[str], layers: str | Sequence[str] | None, skipped: int = 0
) -> Figure:
    """Over training if the rows have several steps, without the first layers; else against the layer."""
    first = quantities[0]
    drawn = {name: list(dict.fromkeys(r.layer for r in rows if r.quantity == first)) for name, rows in series.items()}
    if len({row.step for rows in series.values() for row in rows}) > 1:
        chosen = {n: _chosen(names[skipped:] if layers is None else names, layers) for n, names in drawn.items()}
        return _over_training(series, quantities, chosen)
    return _against_layer(series, quantities, {n: _chosen(names, layers or names) for n, names in drawn.items()})


def _over_training(series: Series, quantities: Sequence[str], chosen: Mapping[str, Sequence[str]]) -> Figure:
    """One row of panels per quantity, one column per layer, one line per network."""
    columns = max(map(len, chosen.values()))
    figure = new_figure(1.2 + 2.8 * columns, 5.4)
    grid = figure.subplots(len(quantities), columns, sharex=True, squeeze=False)
    for quantity, panels in zip(quantities, grid, strict=True):
        for j, axes in enumerate(panels):
            here = {name: names[j] for name, names in chosen.items() if j < len(names)}
            curves = {name: [over_training(series[name], quantity, layer)] for name, layer in here.items()}
            draw_curves(axes, curves, list(series))
            heights = [height for [(_, curve)] in curves.values() for height in curve]
            if quantity in LOGARITHMIC and any(0 < height < math.inf for height in heights):
                _set_log(axes, [height for height in heights if 0 < height < math.inf])
            else:
                axes.ticklabel_format(axis="y", useOffset=False)
        panels[0].set_ylabel(title_of(quantity))
    for j, (above, below) in enumerate(zip(grid[0], grid[-1], strict=True)):
        layers = dict.fromkeys(names[j] or WHOLE_MODEL for names in chosen.values() if j < len(names))
        above.set_title(shortened(" / ".join(layers)), loc="left", fontsize=11)
        below.set_xlabel("training step")
    legend_below(figure, grid[0][0])
    return figure


def _set_log(axes: Axes, heights: Sequence[float]) -> None:
    from matplotlib.ticker import MaxNLocator, NullLocator, StrMethodFormatter

    axes.set_yscale("log", nonpositive="mask")
    if max(heights) < NARROW * min(heights):
        axes.yaxis.set_major_locator(MaxNLocator(4))
        axes.yaxis.set_major_formatter(StrMethodFormatter("{x:.3g}"))
        axes.yaxis.set_minor_locator(NullLocator())


def _against_layer(series: Series, quantities: Sequence[str], chosen: Mapping[str, Sequence[str]]) -> Figure:
    """One panel per quantity, one line per network; against the depth if the networks have different layers."""
    figure = new_figure(10, 3.8)
    panels = figure.subplots(1, len(quantities))
    names = next(iter(chosen.values()))
    are_alike = all(others == names for others in chosen.values())
    looks = [look_of(i) for i in range(len(series))]
    for axes, quantity in zip(panels, quantities, strict=True):
        every = {name: column_of(rows, quantity) for name, rows in series.items()}
        columns = {name: {layer: column[layer] for layer in chosen[name]} for name, column in every.items()}
        draw_against_layer(
            axes, columns, looks, title_of(quantity), is_log=quantity in LOGARITHMIC, by_depth=not are_alike
        )
    legend_below(figure, panels[0])
    return figure


def _chosen(names: Sequence[str], layers: str | Sequence[str] | None) -> list[str]:
    """The layers asked for; if None, the first, the last and some between."""
    if not names:
        raise ValueError("there is no layer to draw: a network has no rows of this kind, or only one layer")
    if layers is not None:
        layers = [layers] if isinstance(layers, str) else layers
        for name in layers:
            if name not in names:
                raise UnknownLayer(name, names)
        return list(layers)
    places = np.linspace(0, len(names) - 1, min(MOST_LAYERS, len(names))).round().astype(int)
    return [names[place] for place in places]
