"""The pictures of santurkar2018: layers over training, ribbons of the landscape, histograms over training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from wellcond.report.figures.landscape import draw_ribbons
from wellcond.report.figures.style import GRAY, bare_axes, legend_below, look_of, new_figure
from wellcond.results import Row
from wellcond.results.quantities import BETA, TEST_ACCURACY, TRAINING_LOSS
from wellcond_papers.experiments.pictures import draw_over_training, panels
from wellcond_papers.experiments.table import Record, Table
from wellcond_papers.papers.santurkar2018.probes import QUANTILES
from wellcond_papers.papers.santurkar2018.settings import PAPER

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MEDIAN = "quantile_50"
RIDGE = 0.9
"""Height of a histogram, in distances between two of them."""


def of_networks(table: Table) -> dict[str, Table]:
    """The cells of each network that has any."""
    parts = {network: table.where(network=network) for network in PAPER}
    return {network: part for network, part in parts.items() if len(part)}


def layers_of(record: Record, quantity: str) -> list[str]:
    """The layers of which a quantity was measured."""
    return list(dict.fromkeys(row.layer for row in record.rows if row.quantity == quantity))


def draw_layers(table: Table, quantities: Mapping[str, str], log: tuple[str, ...] = ()) -> Figure:
    """One line of panels per network and quantity, one panel per layer.

    Args:
        table: The cells.
        quantities: Titles by quantity.
        log: The quantities whose axis is logarithmic.
    """
    chosen = [
        (network, part, quantity, layer)
        for network, part in of_networks(table).items()
        for quantity in quantities
        for layer in layers_of(part[0], quantity)
    ]
    columns = max((len(layers_of(part[0], next(iter(quantities)))) for part in of_networks(table).values()), default=1)
    titles = [f"{network} {layer}:  {quantities[quantity]}" for network, _, quantity, layer in chosen]
    figure, axes = panels(titles, columns)
    for title, (_, part, quantity, layer) in zip(titles, chosen, strict=True):
        draw_over_training(axes[title], part, quantity, layer=layer, log=quantity in log)
    legends(figure, axes)
    return figure


def draw_training(table: Table) -> Figure:
    """The training loss of each network, and the test accuracy of those that have one."""
    parts = of_networks(table)
    shown = [
        (network, quantity)
        for network, part in parts.items()
        for quantity in (TRAINING_LOSS, TEST_ACCURACY)
        if part.steps(quantity)
    ]
    titles = [f"{network}:  {quantity.replace('_', ' ')}" for network, quantity in shown]
    figure, axes = panels(titles)
    for title, (network, quantity) in zip(titles, shown, strict=True):
        draw_over_training(axes[title], parts[network], quantity, log=quantity == TRAINING_LOSS)
        axes[title].legend(frameon=False, fontsize=8)
    return figure


def draw_landscape(table: Table, names: Sequence[str]) -> Figure:
    """Training, and the ribbons of the loss, of the gradient and of β, which are those of the first seed.

    Args:
        table: The cells.
        names: What the source calls these four panels.
    """
    figure = new_figure(9.6, 6.8)
    training, *ribbons = figure.subplots(2, 2).flat
    draw_over_training(training, table, TRAINING_LOSS, log=True)
    bare_axes(training, title="training loss")
    walked = Table([record for record in table if record.series(BETA)])
    if len(walked):
        draw_ribbons(ribbons, {arm: rows_of(walked.arm(arm)[0]) for arm in walked.arms})
        edge = 2 / (walked[0].settings["lr"] * walked[0].settings.get("examples", 1))
        ribbons[2].axhline(edge, color=GRAY, linewidth=1, linestyle=(0, (4, 3)), label="2 / lr")
    for name, axes in zip(names, (training, *ribbons), strict=True):
        axes.set_title(f"{name}  {axes.get_title(loc='left')}".strip(), loc="left", fontsize=11)
    legend_below(figure, ribbons[2], columns=5)
    return figure


def rows_of(record: Record) -> list[Row]:
    """The rows that belong to the network as a whole: those of the source's own walk."""
    return [row for row in record.rows if not row.layer]


def draw_distributions(table: Table) -> Figure:
    """Histograms of one unit, stacked over training, of the first seed: one line of panels per arm, one per layer.

    The panels of a layer share their axis. Every histogram has the same height: what counts is where it lies, and how
    wide it is.
    """
    first = {arm: table.arm(arm)[0] for arm in table.arms if layers_of(table.arm(arm)[0], MEDIAN)}
    columns = max((len(layers_of(record, MEDIAN)) for record in first.values()), default=1)
    figure = new_figure(3.0 * columns, 2.6 * max(len(first), 1))
    grid = figure.subplots(max(len(first), 1), columns, squeeze=False, sharex="col")
    for place, (line, (arm, record)) in enumerate(zip(grid, first.items(), strict=False)):
        for axes, layer in zip(line, layers_of(record, MEDIAN), strict=False):
            _draw_ridges(axes, record, layer, look_of(place)["color"])
            bare_axes(axes, title=f"{arm}: {layer}", y="training step" if axes is line[0] else "")
            axes.tick_params(labelbottom=True)
    for axes in grid[-1]:
        axes.set_xlabel("activation")
    return figure


def _draw_ridges(axes: Axes, record: Record, layer: str, color: str) -> None:
    """The density between every two quantiles, as steps: one ridge per look, the last on top."""
    looks = {step: [record.series(name, layer)[step] for name in QUANTILES] for step in record.series(MEDIAN, layer)}
    shares = np.diff(list(QUANTILES.values()))
    for place, edges in enumerate(looks.values()):
        widths = np.diff(edges)
        heights = np.divide(shares, widths, out=np.zeros_like(shares), where=widths > 0)
        ridge = place + RIDGE * heights / max(heights.max(), np.finfo(float).tiny)
        axes.stairs(ridge, edges, baseline=place, fill=True, color=color, alpha=0.45)
        axes.stairs(ridge, edges, baseline=place, color=color, linewidth=0.8)
    axes.set_yticks(range(len(looks)), [str(step) for step in looks])


def legends(figure: Figure, axes: Mapping[str, Axes]) -> None:
    """One legend below all panels, with all of their lines."""
    entries = [panel.get_legend_handles_labels() for panel in axes.values()]
    lines = {name: handle for handles, names in entries for handle, name in zip(handles, names, strict=True)}
    if lines:
        figure.legend(list(lines.values()), list(lines), loc="outside lower center", ncols=4, frameon=False)
