"""Table A of huang2020: ResNet and ResNet-LastBN on ImageNet, with more regularization."""

from __future__ import annotations

from statistics import fmean
from typing import TYPE_CHECKING, Any

from wellcond.report.figures.style import GRAY, legend_below, look_of
from wellcond_papers.experiments.claims import Outcome, claim, judged
from wellcond_papers.experiments.experiment import Experiment
from wellcond_papers.experiments.pictures import panels
from wellcond_papers.experiments.table import Table
from wellcond_papers.papers.huang2020.fig14 import DEPTHS, NETWORK, measure
from wellcond_papers.papers.huang2020.networks import IMAGENET, ONE_SCALE, SMOKE, percent_wrong

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLUMNS: dict[str, dict[str, Any]] = {
    "standard": {},
    "WD 2e-4": {"weight_decay": 2e-4},
    "dropout 0.3": {"dropout": 0.3},
}
NETWORKS = ("ResNet", "ResNet-LastBN")
PAPER = {
    "ResNet": {18: (29.78, 30.07, 30.62), 50: (23.97, 24.37, 23.81)},
    "ResNet-LastBN": {18: (29.38, 28.96, 29.32), 50: (23.76, 23.49, 23.47)},
}
"""Top-1 validation errors in percent, by depth, in the order of the columns."""


def arm(network: str, depth: int, column: str) -> str:
    """What a cell of the table is called."""
    return f"{network}, {depth} layers, {column}"


ARMS = {
    arm(network, depth, column): {"depth": depth, "last_norm": network == "ResNet-LastBN", **settings}
    for network in NETWORKS
    for depth in DEPTHS
    for column, settings in COLUMNS.items()
}
OF_SMOKE = [arm(network, 18, column) for network in NETWORKS for column in ("standard", "dropout 0.3")]


def error(table: Table, network: str, depth: int, column: str) -> float | None:
    """The mean error in percent; None if it was not measured."""
    cells = table.arm(arm(network, depth, column))
    return fmean(map(percent_wrong, cells)) if len(cells) else None


def gains(table: Table, depth: int) -> dict[str, float]:
    """By how many percent LastBN lowers the error, by column."""
    pairs = {column: [error(table, network, depth, column) for network in NETWORKS] for column in COLUMNS}
    return {column: a - b for column, (a, b) in pairs.items() if a is not None and b is not None}


def draw(table: Table) -> Figure:
    """The table as bars, with the paper's numbers as gray marks."""
    figure, axes = panels([f"{depth} layers" for depth in DEPTHS])
    for depth, panel in zip(DEPTHS, axes.values(), strict=True):
        for place, network in enumerate(NETWORKS):
            places = [k + 0.36 * (place - 0.5) for k in range(len(COLUMNS))]
            heights = [error(table, network, depth, column) or 0.0 for column in COLUMNS]
            panel.bar(places, heights, 0.34, color=look_of(place)["color"], label=network)
            panel.plot(places, PAPER[network][depth], "_", color=GRAY, markersize=18, label="paper" if place else None)
        panel.set_xticks(range(len(COLUMNS)), list(COLUMNS))
        panel.set_ylabel("top-1 error, %")
        panel.grid(visible=False, axis="x")
    legend_below(figure, panel)
    return figure


@claim(
    "ResNet-LastBN has the lower error in every column",
    paper="18 layers: 29.38, 28.96, 29.32 against 29.78, 30.07, 30.62 %; "
    "50 layers: 23.76, 23.49, 23.47 against 23.97, 24.37, 23.81 %",
)
def improves(table: Table) -> Outcome:
    """Both depths, standard and with more regularization."""
    by_depth = {depth: gains(table, depth) for depth in DEPTHS}
    words = [
        f"{depth}, {column}: {error(table, 'ResNet-LastBN', depth, column):.2f} against "
        f"{error(table, 'ResNet', depth, column):.2f} %"
        for depth in DEPTHS
        for column in by_depth[depth]
    ]
    return judged([gain > 0 for each in by_depth.values() for gain in each.values()], "; ".join(words))


@claim(
    "more regularization amplifies the advantage of LastBN",
    paper="18: from 0.40 to 1.11 (WD) and 1.30 (dropout) percent; 50: from 0.21 to 0.88 and 0.34",
)
def amplified(table: Table) -> Outcome:
    """The gain of each regularized column against that of the standard one."""
    by_depth = {depth: each for depth in DEPTHS if "standard" in (each := gains(table, depth))}
    words = [
        f"{depth}: " + ", ".join(f"{column} {gain:.2f}" for column, gain in each.items())
        for depth, each in by_depth.items()
    ]
    cases = [
        gain > each["standard"] for each in by_depth.values() for column, gain in each.items() if column != "standard"
    ]
    return judged(cases, "; ".join(words))


EXPERIMENT = Experiment(
    name="huang2020-table-a",
    title="ResNet and ResNet-LastBN on ImageNet, with more regularization",
    says="ResNet-LastBN is slightly better than ResNet under the standard configuration. The advantage is amplified by "
    "a weight decay of 2e-4 instead of 1e-4, or a dropout of 0.3.",
    arms=ARMS,
    scales={
        "smoke": SMOKE
        | NETWORK
        | {"arms": OF_SMOKE, "images": 768, "tested": 360, "batch": 16, "lr": 0.5, "weight_decay": 1e-4},
        "paper": IMAGENET | NETWORK,
    },
    measure=measure,
    claims=[improves, amplified],
    draw=draw,
    minutes={"smoke": 0.05, "paper": 12000.0},
    contrast=[(arm("ResNet", 18, column), arm("ResNet-LastBN", 18, column)) for column in ("standard", "dropout 0.3")],
    departures=[ONE_SCALE],
)
