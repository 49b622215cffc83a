"""Layers over training as pictures: a line per look, the networks of a panel in colors of their own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import TYPE_CHECKING

from wellcond.report.figures.style import COLORS, LogScale
from wellcond.results.quantities import LOSS
from wellcond_papers.experiments.pictures import count_along, draw_over_training
from wellcond_papers.experiments.table import Table
from wellcond_papers.papers.huang2020.deep_mlp import hidden

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Looks = Mapping[str, Mapping[str, float]]
"""Values by layer, by the name of the look."""
PALEST = 0.7
"""The share of white in the color of the last look."""
MOST_LOOKS = 5
"""Looks at one network that a panel with several networks has room for."""


def looks_of(table: Table, arm: str, quantity: str) -> dict[str, dict[str, float]]:
    """One quantity of one network by layer, at every look."""
    runs = table.arm(arm)
    return {f"step {step}": runs.mean_by_layer(quantity, step) for step in runs.steps(quantity)}


def draw_looks(axes: Axes, looks: Looks, scale: LogScale | None = None) -> None:
    """One line per look against the layers, counted from 1, from dark to pale.

    Args:
        axes: Where to draw.
        looks: The lines.
        scale: The logarithmic axis; None for a linear one.
    """
    import matplotlib

    shades = matplotlib.colormaps["viridis"]
    for place, (name, line) in enumerate(looks.items()):
        heights = [value if scale is None else scale.place(value) for value in line.values()]
        color = shades(0.9 * place / max(1, len(looks) - 1))
        axes.plot(range(1, len(line) + 1), heights, color=color, label=name, linewidth=1.4)
    if scale is not None:
        scale.set_axis(axes)
    count_along(axes)


def draw_networks(axes: Axes, table: Table, arms: Sequence[str], quantity: str) -> None:
    """Looks at several networks against the layer, each network in its color, from dark (start) to pale (end)."""
    from matplotlib.colors import to_rgb

    looks = {arm: some_of(looks_of(table, arm, quantity)) for arm in arms}
    scale = LogScale.of(v for lines in looks.values() for line in lines.values() for v in line.values())
    for place, (arm, lines) in enumerate(looks.items()):
        for k, line in enumerate(lines.values()):
            white = PALEST * k / max(1, len(lines) - 1)
            color = [(1 - white) * part + white for part in to_rgb(COLORS[place])]
            name = {0: f"{arm}, start", len(lines) - 1: f"{arm}, end"}.get(k)
            heights = [scale.place(value, place) for value in line.values()]
            axes.plot(range(1, len(line) + 1), heights, color=color, label=name, linewidth=1.4)
    scale.set_axis(axes)
    count_along(axes)
    if axes.lines:
        axes.legend(frameon=False, fontsize=7)


def some_of(looks: Looks) -> dict[str, Mapping[str, float]]:
    """The first, the last, and a few between them.

    Example:
        >>> list(some_of({f"step {step}": {} for step in range(9)}))
        ['step 0', 'step 2', 'step 4', 'step 6', 'step 8']
    """
    names = list(looks)
    chosen = {round(k * (len(names) - 1) / (MOST_LOOKS - 1)) for k in range(MOST_LOOKS)} if names else set()
    return {name: looks[name] for place, name in enumerate(names) if place in chosen}


def draw_loss(axes: Axes, table: Table, arms: Sequence[str], quantity: str, *, log: bool = False) -> None:
    """A loss or an accuracy over training, one line per network."""
    draw_over_training(axes, Table([record for arm in arms for record in table.arm(arm)]), quantity, log=log)
    count_along(axes, "training step")
    if axes.lines:
        axes.legend(frameon=False, fontsize=7)


def draw_against_loss(axes: Axes, table: Table, arms: Sequence[str], quantity: str) -> None:
    """The median of the hidden layers against the loss, which falls from left to right: a point per seed and look."""
    points = {
        arm: [
            (loss, median(hidden(record.by_layer(quantity, step), quantity).values()))
            for record in table.arm(arm)
            for step, loss in record.series(LOSS).items()
        ]
        for arm in arms
    }
    scale = LogScale.of(value for each in points.values() for _, value in each)
    for place, (arm, each) in enumerate(points.items()):
        heights = [scale.place(value, place) for _, value in each]
        axes.plot([loss for loss, _ in each], heights, "o", label=arm, markersize=4, color=COLORS[place])
    scale.set_axis(axes)
    axes.set_xscale("log")
    axes.invert_xaxis()
    axes.set_xlabel("loss")
    if axes.lines:
        axes.legend(frameon=False, fontsize=7)
