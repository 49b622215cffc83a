"""The pictures of santurkar2018: layers over training, ribbons of the landscape, distributions as fans."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from wellcond.report.figures.landscape import draw_ribbons
from wellcond.report.figures.style import GRAY, bare_axes, legend_below, look_of, new_figure
from wellcond.results.quantities import BETA, TEST_ACCURACY, TRAINING_LOSS
from wellcond_papers.experiments.pictures import draw_over_training, panels
from wellcond_papers.experiments.table import Record, Table
from wellcond_papers.papers.santurkar2018.probes import QUANTILES
from wellcond_papers.papers.santurkar2018.settings import PAPER

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FAN = ((0, 8, 0.15), (1, 7, 0.2), (2, 6, 0.25), (3, 5, 0.35))
"""The two quantiles between which a band lies, and its opacity."""


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


def draw_landscape(table: Table) -> Figure:
    """Training, and the ribbons of the loss, of the gradient and of β, which are those of the first seed."""
    figure = new_figure(9.6, 6.8)
    training, *ribbons = figure.subplots(2, 2).flat
    draw_over_training(training, table, TRAINING_LOSS, log=True)
    bare_axes(training, title="training loss")
    walked = Table([record for record in table if record.series(BETA)])
    if len(walked):
        draw_ribbons(ribbons, {arm: walked.arm(arm)[0].rows for arm in walked.arms})
        edge = 2 / (walked[0].settings["lr"] * walked[0].settings.get("examples", 1))
        ribbons[2].axhline(edge, color=GRAY, linewidth=1, linestyle=(0, (4, 3)), label="2 / lr")
    legend_below(figure, ribbons[2], columns=5)
    return figure


def draw_distributions(table: Table) -> Figure:
    """One line of panels per arm, one panel per layer: the quantiles of one unit over training, of the first seed."""
    arms = [arm for arm in table.arms if layers_of(table.arm(arm)[0], "quantile_50")]
    columns = max((len(layers_of(table.arm(arm)[0], "quantile_50")) for arm in arms), default=1)
    figure = new_figure(3.0 * columns, 2.6 * max(len(arms), 1))
    grid = figure.subplots(max(len(arms), 1), columns, squeeze=False)
    for place, (line, arm) in enumerate(zip(grid, arms, strict=False)):
        record = table.arm(arm)[0]
        color = look_of(place)["color"]
        for axes, layer in zip(line, layers_of(table.arm(arm)[0], "quantile_50"), strict=False):
            series = [list(record.series(name, layer).values()) for name in QUANTILES]
            _draw_fan(axes, list(record.series("quantile_50", layer)), series, color)
            bare_axes(axes, title=f"{arm}: {layer}", y="activation" if axes is line[0] else "")
    for axes in grid[-1]:
        axes.set_xlabel("training step")
    return figure


def _draw_fan(axes: Axes, steps: list[int], series: list[list[float]], color: str) -> None:
    """The median as a line, in bands that hold 40, 70, 90 and 98 % of the values."""
    for low, high, opacity in FAN:
        axes.fill_between(steps, series[low], series[high], color=color, alpha=opacity, linewidth=0)
    axes.plot(steps, series[len(series) // 2], color=color, linewidth=1.4)


def legends(figure: Figure, axes: Mapping[str, Axes]) -> None:
    """One legend below all panels, with all of their lines."""
    entries = [panel.get_legend_handles_labels() for panel in axes.values()]
    lines = {name: handle for handles, names in entries for handle, name in zip(handles, names, strict=True)}
    if lines:
        figure.legend(list(lines.values()), list(lines), loc="outside lower center", ncols=4, frameon=False)
