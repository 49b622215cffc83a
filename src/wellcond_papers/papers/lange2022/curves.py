"""The picture of lange2022's figures 3 to 7: training loss and test accuracy over the epochs, a column per panel."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from textwrap import fill
from typing import TYPE_CHECKING

from wellcond.report.figures.style import GRAY, Curve, bare_axes, draw_curves, new_figure
from wellcond.results import number
from wellcond.results.quantities import LOSS, TEST_ACCURACY
from wellcond_papers.experiments.pictures import WIDEST
from wellcond_papers.experiments.table import Table
from wellcond_papers.papers.lange2022.runs import of_seeds, over_epochs
from wellcond_papers.papers.percentages import DISAGREE

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

HIGH = 0.9
"""Where all runs end above this accuracy, the axis begins there: differences are small."""


def drawing(**sides: str) -> Callable[[Table], Figure]:
    """The picture of a figure.

    Args:
        **sides: The panels of the source, by where they stand in it.
    """
    where = {panel: side for side, panel in sides.items()}

    def draw(table: Table) -> Figure:
        split = {arm: arm.split(": ", 1) for arm in table.arms}
        titles = list(dict.fromkeys(panel for panel, _ in split.values()))
        methods = list(dict.fromkeys(method for _, method in split.values()))
        figure = new_figure(min(max(4.2 * len(titles), 7.0), WIDEST), 6.6)
        columns = figure.subplots(2, len(titles), squeeze=False, sharex="col").T
        for title, (above, below) in zip(titles, columns, strict=True):
            runs = {split[arm][1]: table.arm(arm) for arm in table.arms if split[arm][0] == title}
            for axes, quantity in ((above, LOSS), (below, TEST_ACCURACY)):
                _draw_runs(axes, runs, quantity, methods)
            _zoom(above, {method: _curves(seeds, LOSS) for method, seeds in runs.items()})
            if min(min(of_seeds(seeds)) for seeds in runs.values()) > HIGH:
                below.set_ylim(HIGH, 1.0)
            bare_axes(above, title=f"({where[title]}) {title}" if title in where else title, y="training loss")
            bare_axes(below, x="epoch", y="test accuracy")
        handles = {
            label: h for axes in columns[:, 0] for h, label in zip(*axes.get_legend_handles_labels(), strict=True)
        }
        named = [method for method in methods if method in handles]
        figure.legend([handles[m] for m in named], named, loc="outside lower center", ncols=len(named), frameon=False)
        return figure

    return draw


def _draw_runs(axes: Axes, runs: Mapping[str, Table], quantity: str, methods: Sequence[str]) -> None:
    """One line per method in the band of its seeds; one per seed where the seeds end far apart."""
    for method, seeds in runs.items():
        ends = of_seeds(seeds)
        curves = _curves(seeds, quantity)
        apart = 100 * (max(ends) - min(ends)) > DISAGREE
        for group in ([curve] for curve in curves) if apart else [curves] if curves else []:
            draw_curves(axes, {method: group}, methods)


def _curves(runs: Table, quantity: str) -> list[Curve]:
    return [over_epochs(record, quantity) for record in runs if record.series(quantity)]


def _zoom(axes: Axes, curves: Mapping[str, Sequence[Curve]]) -> None:
    """Cut the axis a little above the lowest initial loss; a note names the methods that go higher."""
    highest = {method: max(max(heights) for _, heights in lines) for method, lines in curves.items() if lines}
    runs = [heights for lines in curves.values() for _, heights in lines]
    if not runs:
        return
    least, top = min(min(heights) for heights in runs), 1.15 * min(heights[0] for heights in runs)
    if 0 < least < 0.1:
        axes.set_yscale("log")
    if 0 < least < top:
        axes.set_ylim(0.9 * least, top)
        above = [f"{method} {number(value)}" for method, value in highest.items() if value > top]
        note = fill(f"higher at times: {', '.join(above)}", 40) if above else ""
        axes.text(0.98, 0.98, note, transform=axes.transAxes, ha="right", va="top", fontsize=8, color=GRAY)
