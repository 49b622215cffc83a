"""Pictures of activations and of covariate shift: histograms and curves over training, one column of panels a layer."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from wellcond.errors import MissingExtra, UnknownLayer
from wellcond.layerwise.activations import Activations
from wellcond.report.columns import shortened
from wellcond.report.curves import STYLES, draw_curves, dress
from wellcond.report.figures import COLOURS, MOST_LABELS, save_figure
from wellcond.report.scale import LogScale
from wellcond.report.series import check_series
from wellcond.results import Row
from wellcond.results.files import check_writable

try:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator, NullLocator, StrMethodFormatter
except ImportError as error:
    raise MissingExtra("matplotlib", "plots") from error

MOST_LAYERS = 4
"""Columns of panels, where the layers are not named."""
MOST_STEPS = 8
"""Labels on the axis of training steps."""
OVERLAP = 1.8
"""How high the highest ridge reaches, in distances between two of them."""
MENTIONED = 0.01
"""The share of values beyond the edges from which on it is written beside the ridge."""
SHIFT = {"shift_difference": "‖G − G'‖", "shift_cosine": "cos(G, G')"}
CHANGE = {"mean_change": "change of the mean ‖Δμ‖", "variance_change": "change of the variance ‖Δσ²‖"}
LOGARITHMIC = {"shift_difference", *CHANGE}
NARROW = 5.0
"""A logarithmic axis over less than this factor has plain numbers at its ticks, as a linear one."""

Series = Mapping[str, Sequence[Row]]
"""Rows of networks by their names."""


def save_histograms(
    networks: Mapping[str, Mapping[int, Activations]],
    path: str | Path,
    layers: str | Sequence[str] | None = None,
    *,
    unit: int | None = None,
) -> Path:
    """Histograms of layers' outputs over training, as ridges from the first step below to the last above.

    One row of panels a network, given as {training step: activations}, one column a layer (santurkar2018, figures 8 and
    14). layers: which; None takes up to four, evenly over the depth of each network. unit: one unit of each alone.
    """
    check_writable(path)
    check_series(networks, "{'name': {step: activations(problem)}}", Activations)
    chosen = {name: _chosen(list(next(iter(steps.values()))), layers) for name, steps in networks.items()}
    columns = max(map(len, chosen.values()))
    figure = Figure(figsize=(1 + 2.6 * columns, 0.6 + 2.8 * len(networks)), layout="constrained")
    grid = figure.subplots(len(networks), columns, squeeze=False)
    for i, (network, steps) in enumerate(networks.items()):
        for j, axes in enumerate(grid[i]):
            if j >= len(chosen[network]):
                axes.set_axis_off()
                continue
            _ridges(axes, steps, chosen[network][j], unit, COLOURS[i % len(COLOURS)])
            if j == 0:
                axes.set_ylabel(f"{network}\ntraining step")
            else:
                axes.tick_params(labelleft=False)
    figure.supxlabel("output" if unit is None else f"output of unit {unit}", fontsize=10)
    return save_figure(figure, path)


def save_moment_changes(series: Series, path: str | Path, layers: str | Sequence[str] | None = None) -> Path:
    """‖Δμ‖ and ‖Δσ²‖ between steps over training, a line a network and a column a layer (santurkar2018, figure 7).

    series: the rows of `change_from`, of all steps together. layers: as in `save_histograms`.
    """
    check_writable(path)
    check_series(series, "{'name': rows}, with rows += activations(problem).change_from(before).rows(step)")
    chosen = {name: _chosen(_layers(rows, "mean_change"), layers) for name, rows in series.items()}
    return save_figure(_over_training(series, CHANGE, chosen), path)


def save_covariate_shift(series: Series, path: str | Path, layers: str | Sequence[str] | None = None) -> Path:
    """‖G − G'‖ and cos(G, G') over training (santurkar2018, figure 6); of one step alone, against the layer.

    series: the rows of `covariate_shift`, of all steps together. One line a network; over training one column a layer.
    layers: which; None takes them all against the layer, and over training up to four behind the first, which has no
    shift. A difference of zero is drawn as a triangle at the lower edge.
    """
    check_writable(path)
    check_series(series, "{'name': rows}, with rows += covariate_shift(problem, optimizer).rows(step)")
    found = {name: _layers(rows, "shift_difference") for name, rows in series.items()}
    if len({row.step for rows in series.values() for row in rows}) > 1:
        chosen = {name: _chosen(names[1:] if layers is None else names, layers) for name, names in found.items()}
        return save_figure(_over_training(series, SHIFT, chosen), path)
    chosen = {name: _chosen(names, names if layers is None else layers) for name, names in found.items()}
    return save_figure(_against_layer(series, chosen), path)


def _ridges(axes: Axes, steps: Mapping[int, Activations], layer: str, unit: int | None, colour: str) -> None:
    found = {step: steps[step][layer] for step in sorted(steps)}
    histograms = [of.histogram if unit is None else of.unit_histogram(unit) for of in found.values()]
    highest = max(float(histogram.density.max()) for histogram in histograms) or 1.0
    ends: list[float] = []
    for level, histogram in enumerate(histograms):
        edges, density = histogram.edges.numpy(), histogram.density.numpy()
        top = level + OVERLAP / highest * density
        in_front = 3 - level / len(histograms)  # the lower ones
        axes.stairs(top, edges, baseline=level, fill=True, color=colour, zorder=in_front)
        axes.stairs(top, edges, baseline=level, color="white", linewidth=0.8, zorder=in_front)
        inside = np.flatnonzero(density)
        ends += [edges[inside[0]], edges[inside[-1] + 1]] if len(inside) else []
        outside = 1 - float((histogram.density * histogram.edges.diff()).sum())
        if outside > MENTIONED:
            place, paper = axes.get_yaxis_transform(), {"color": "white", "alpha": 0.8, "pad": 0.5}
            text = f"{outside:.0%} outside"
            axes.text(1, level + 0.12, text, transform=place, ha="right", fontsize=7, zorder=4, bbox=paper)
    stride = -(-len(histograms) // MOST_STEPS)
    axes.set_yticks(range(0, len(histograms), stride), [str(step) for step in list(found)[::stride]])
    axes.set_ylim(-0.15, len(histograms) - 1 + 1.05 * OVERLAP)
    if ends:
        margin = 0.04 * (max(ends) - min(ends))
        axes.set_xlim(min(ends) - margin, max(ends) + margin)
    axes.set_title(shortened(layer or "the model"), loc="left", fontsize=11)
    dress(axes)


def _over_training(series: Series, quantities: Mapping[str, str], chosen: Mapping[str, Sequence[str]]) -> Figure:
    """One row of panels a quantity, one column a layer, one line a network."""
    columns = max(map(len, chosen.values()))
    figure = Figure(figsize=(1.2 + 2.8 * columns, 5.4), layout="constrained")
    grid = figure.subplots(len(quantities), columns, sharex=True, squeeze=False)
    for (quantity, title), panels in zip(quantities.items(), grid, strict=True):
        for j, axes in enumerate(panels):
            here = {name: names[j] for name, names in chosen.items() if j < len(names)}
            curves = {name: [_curve(series[name], layer, quantity)] for name, layer in here.items()}
            draw_curves(axes, curves, list(series))
            heights = [height for [(_, curve)] in curves.values() for height in curve]
            if quantity in LOGARITHMIC and any(0 < height < math.inf for height in heights):
                _set_log(axes, [height for height in heights if 0 < height < math.inf])
            else:
                axes.ticklabel_format(axis="y", useOffset=False)
        panels[0].set_ylabel(title)
    for j, (above, below) in enumerate(zip(grid[0], grid[-1], strict=True)):
        layers = dict.fromkeys(names[j] or "the model" for names in chosen.values() if j < len(names))
        above.set_title(shortened(" / ".join(layers)), loc="left", fontsize=11)
        below.set_xlabel("training step")
    figure.legend(*grid[0][0].get_legend_handles_labels(), loc="outside lower center", ncols=4, frameon=False)
    return figure


def _set_log(axes: Axes, heights: Sequence[float]) -> None:
    axes.set_yscale("log", nonpositive="mask")
    if max(heights) < NARROW * min(heights):
        axes.yaxis.set_major_locator(MaxNLocator(4))
        axes.yaxis.set_major_formatter(StrMethodFormatter("{x:.3g}"))
        axes.yaxis.set_minor_locator(NullLocator())


def _against_layer(series: Series, chosen: Mapping[str, Sequence[str]]) -> Figure:
    figure = Figure(figsize=(10, 3.8), layout="constrained")
    left, right = figure.subplots(1, 2)
    columns = {name: _columns(rows, chosen[name]) for name, rows in series.items()}
    differences = [value for column in columns.values() for value in column["shift_difference"]]
    scale = LogScale.of(value for value in differences if not math.isnan(value))
    names = next(iter(chosen.values()))
    are_alike = all(others == names for others in chosen.values())
    for i, (name, column) in enumerate(columns.items()):
        colour, style = COLOURS[i % len(COLOURS)], STYLES[i % len(STYLES)]
        count = len(chosen[name])
        places = list(range(count)) if are_alike else [i / max(count - 1, 1) for i in range(count)]
        heights = [value if scale.is_finite(value) else math.nan for value in column["shift_difference"]]
        zeros = [place for place, value in zip(places, column["shift_difference"], strict=True) if value == 0]
        left.plot(places, heights, color=colour, linestyle=style, marker="o", markersize=3, label=name)
        left.plot(zeros, [scale.place(0.0)] * len(zeros), "v", color=colour, markersize=5)
        right.plot(places, column["shift_cosine"], color=colour, linestyle=style, marker="o", markersize=3)
    axis = scale.axis()
    left.set_yscale("log")
    left.set_yticks(axis["tickvals"], axis["ticktext"])
    left.minorticks_off()
    left.set_ylim(*(math.pow(10, min(exponent, 308.0)) for exponent in axis["range"]))
    right.ticklabel_format(axis="y", useOffset=False)
    for axes, title in zip((left, right), SHIFT.values(), strict=True):
        if are_alike:
            stride = -(-len(names) // MOST_LABELS)
            labels = [shortened(layer or "the model", 16) for layer in names[::stride]]
            axes.set_xticks(range(0, len(names), stride), labels, rotation=90, fontsize=8)
        axes.set_xlabel("layer" if are_alike else "depth, from the first layer to the last")
        axes.set_title(title, loc="left", fontsize=11)
        dress(axes)
    figure.legend(*left.get_legend_handles_labels(), loc="outside lower center", ncols=4, frameon=False)
    return figure


def _columns(rows: Sequence[Row], layers: Sequence[str]) -> dict[str, list[float]]:
    found = {(row.quantity, row.layer): row.value for row in rows}
    return {quantity: [found[quantity, layer] for layer in layers] for quantity in SHIFT}


def _curve(rows: Sequence[Row], layer: str, quantity: str) -> tuple[list[float], list[float]]:
    found = sorted((row.step or 0, row.value) for row in rows if (row.layer, row.quantity) == (layer, quantity))
    return [float(step) for step, _ in found], [value for _, value in found]


def _layers(rows: Sequence[Row], quantity: str) -> list[str]:
    return list(dict.fromkeys(row.layer for row in rows if row.quantity == quantity))


def _chosen(names: Sequence[str], asked: str | Sequence[str] | None) -> list[str]:
    """The layers asked for; else the first, the last and some between."""
    if not names:
        raise ValueError("there is no layer to draw: a network has no rows of this kind, or one layer alone")
    if asked is not None:
        asked = [asked] if isinstance(asked, str) else asked
        for name in asked:
            if name not in names:
                raise UnknownLayer(name, names)
        return list(asked)
    places = np.linspace(0, len(names) - 1, min(MOST_LAYERS, len(names))).round().astype(int)
    return [names[place] for place in places]
