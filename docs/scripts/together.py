"""The pictures of the page that compares the papers, from committed rows: what BN does to three measures of curvature,
and BNP at the limit of its step.

python docs/scripts/together.py
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from wellcond.report.figures.style import GRAY, legend_below, look_of
from wellcond.results.files import write_atomically
from wellcond.results.quantities import BETA, GRADIENT
from wellcond.results.result import picture
from wellcond_papers.experiments.pictures import panels
from wellcond_papers.experiments.table import Table
from wellcond_papers.papers.huang2020.equal_loss import LEVELS, compared
from wellcond_papers.papers.wei2019.fig1 import lambdas

sys.path.insert(0, str(Path(__file__).parent))
import book

from benchmarks import bnp_limit

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PICTURE = book.BOOK.parent / "figures" / "together.png"
LIMIT_PICTURE = PICTURE.with_name("bnp_limit.png")
LIMIT_RUNS = Path(__file__).parents[2] / "benchmarks" / "results" / "bnp_limit_cuda.json"
BN, PLAIN = look_of(0), look_of(1)
TICKS = (2.0, 1.0, 0.5, 0.2, 0.05, 0.01, 0.001)
"""Losses that are named on an axis."""
RATIOS = (0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 4.0)
"""Rates over their limit that are."""


def draw() -> Figure:
    """λ_max at the start; the condition number of what layers get back, at equal loss; β during training."""
    kappa = r"$\kappa_{50\%}(\Sigma_{\nabla h})$ over the loss"
    at_start_title = r"fully connected: $\lambda_{\max}$ at the start over γ"
    titles = [at_start_title, f"20-layer MLP: {kappa}", f"20-layer VGG: {kappa}", "VGG-11: β over the steps"]
    figure, axes = panels(titles, columns=2)
    at_start, mlp, vgg, training = axes.values()
    draw_lambdas(at_start)
    draw_at_equal_loss(mlp, "huang2020-fig6", "plain, He", "BN, He")
    draw_at_equal_loss(vgg, "huang2020-fig8", "plain", "BN")
    vgg.set_ylim(1, 100)
    draw_beta(training)
    legend_below(figure, mlp)
    return figure


def draw_lambdas(axes: Axes) -> None:
    """Figure 1 of wei2019, measured, fully connected."""
    table = book.runs("wei2019-fig1")["paper"].table
    for line, look in (("BatchNorm, measured", BN), ("vanilla, measured", PLAIN)):
        values = lambdas(table, f"FC: {line}")
        axes.plot(table[0].settings["gammas"], list(values.values()), **look)
    axes.set(yscale="log", xlabel="γ")


def draw_at_equal_loss(axes: Axes, name: str, plain: str, bn: str) -> None:
    """The median over layers and seeds when both networks first come to a loss, and the range of those of the seeds."""
    table = book.runs(name)["paper"].table
    seeds = sorted({record.settings["seed"] for record in table})
    tables = [Table([record for record in table if record.settings["seed"] == seed]) for seed in seeds]
    for column, label, look in ((1, "with BN", BN), (0, "without", PLAIN)):
        medians = medians_at_equal_loss(table, plain, bn, column)
        axes.plot(list(medians), list(medians.values()), marker=".", label=label, **look)
        by_seed = [medians_at_equal_loss(each, plain, bn, column) for each in tables]
        low, high = (
            [bound(each[level] for each in by_seed if level in each) for level in medians] for bound in (min, max)
        )
        axes.fill_between(list(medians), low, high, color=look["color"], alpha=0.2, linewidth=0)
    axes.set(xscale="log", yscale="log", xlabel="training loss")
    shown = [level for level in TICKS if level in medians]
    axes.set_xticks(shown, [f"{level:g}" for level in shown])
    axes.minorticks_off()
    axes.invert_xaxis()


def medians_at_equal_loss(table: Table, plain: str, bn: str, column: int) -> dict[float, float]:
    """The median without BN (column 0) or with it (1) by the level of the loss, where both networks come to it."""
    pairs = {level: compared(table, plain, bn, [GRADIENT.kappa[0.5]], level) for level in LEVELS}
    return {level: median(pair[column] for pair in values) for level, values in pairs.items() if values}


def draw_beta(axes: Axes) -> None:
    """Figure 11 of santurkar2018, a line for every seed, and the edge of stability 2 / lr."""
    table = book.runs("santurkar2018-fig11")["paper"].table
    for arm, look in (("VGG, BatchNorm", BN), ("VGG, standard", PLAIN)):
        for record in table.arm(arm):
            series = record.series(BETA)
            axes.plot(list(series), list(series.values()), **look)
    axes.axhline(2 / table[0].settings["lr"], color=GRAY, linestyle=":")
    axes.text(5000, 0.9 * 2 / table[0].settings["lr"], "2 / lr", va="top", color=GRAY)
    axes.set(yscale="log", xlabel="step", xticks=[0, 5000, 10_000, 15_000])


def draw_limit() -> Figure:
    """Loss, and rate over its limit, along runs of BNP; those that collapse in color, up to there on the right."""
    figure, axes = panels(["loss of 512 training images", "rate over its limit 2/λ, up to a collapse"])
    loss, share = axes.values()
    runs = bnp_limit.read(LIMIT_RUNS)
    steady, lost = ([run for run in runs if run.has_collapsed is collapses] for collapses in (False, True))
    faint = {"color": GRAY, "alpha": 0.5, "linewidth": 0.8}
    for run in steady:
        label = f"{len(steady)} go well" if run is steady[0] else None
        loss.plot(*columns(run.looks, "loss"), **faint, label=label)
        share.plot(*columns(run.looks, "lr_over_limit"), **faint)
    for place, run in enumerate(lost):
        look, before = look_of(place), run.looks[: run.collapse]
        loss.plot(*columns(run.looks, "loss"), **look, label=f"seed {run.seed} collapses")
        share.plot(*columns(before, "lr_over_limit"), **look)
        share.plot(before[-1].step, before[-1].lr_over_limit, "o", color=look["color"])
    loss.axhline(math.log(10), color="black", linewidth=1.0)
    loss.text(0, 1.1 * math.log(10), "guessing", va="bottom")
    share.axhline(1.0, color="black", linewidth=1.0)
    share.text(0, 1.1, "limit", va="bottom")
    for each in (loss, share):
        each.set(yscale="log", xlabel="step")
    share.set_yticks(RATIOS, [f"{ratio:g}" for ratio in RATIOS])
    share.minorticks_off()
    legend_below(figure, loss, columns=5)
    return figure


def columns(looks: Sequence[bnp_limit.Look], quantity: str) -> tuple[list[int], list[float]]:
    """The steps of some looks, and what was measured there."""
    return [look.step for look in looks], [getattr(look, quantity) for look in looks]


def main() -> None:
    """Draw them anew."""
    write_atomically(PICTURE, picture(draw(), dpi=100))
    write_atomically(LIMIT_PICTURE, picture(draw_limit(), dpi=100))


if __name__ == "__main__":
    main()
