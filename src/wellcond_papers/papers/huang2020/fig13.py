"""Figure XIII of huang2020: dying and full neurons of a 20-layer plain MLP with He's initialization, over training."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from statistics import fmean
from typing import TYPE_CHECKING, Any

from torch import nn

from wellcond.measurements.layers.neurons import neurons
from wellcond.problem.problem import Problem
from wellcond.report.figures.style import legend_below
from wellcond.results import Row
from wellcond.results.quantities import DYING, FULL
from wellcond_papers.experiments.claims import Claim, Outcome, claim, is_greater, judged
from wellcond_papers.experiments.experiment import Experiment, Job
from wellcond_papers.experiments.pictures import panels
from wellcond_papers.experiments.table import Table
from wellcond_papers.papers.huang2020.deep_mlp import (
    COMPARED_LR,
    DEPARTURES,
    LAPTOP,
    LOOKS,
    PAPER,
    SILENT,
    SMOKE,
    Batch,
    trained,
)
from wellcond_papers.papers.huang2020.layer_pictures import draw_looks, looks_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ARMS: dict[str, dict[str, Any]] = {
    "plain": {"norm": "none", "init": "he", "optimizer": "SGD"},
    "BN": {"norm": "batch", "init": "he", "optimizer": "SGD"},
}
KINDS = {"dying": DYING, "full": FULL}
MOST = 0.75
"""The share of pairs of layers above which a count increases with the layer."""


def count_neurons(model: nn.Module, batch: Batch, step: int) -> list[Row]:
    """The units of every layer that are 0, or positive, on all images."""
    counted = neurons(Problem(model, nn.CrossEntropyLoss(), batch, batchnorm="batch")).rows(step)
    return [row for row in counted if row.quantity in KINDS.values()]


def measure(job: Job) -> list[Row]:
    """Train one network and count on the way."""
    return trained(job, count_neurons, (*LOOKS, 0.01, 0.1))


def increase(counts: Sequence[float]) -> float:
    """The share of pairs of layers, of those with different counts, in which the higher layer has more.

    Example:
        >>> increase([0.0, 0.0, 1.0, 2.0]), increase([2.0, 1.0, 0.0])
        (1.0, 0.0)
    """
    rises = [high > low for low, high in combinations(counts, 2) if low != high]
    return fmean(rises) if rises else 0.0


def grow_with_depth(kind: str) -> Claim:
    """At every look, in most pairs of layers."""

    @claim(
        f"the plain network has {kind} neurons, whose number increases with the layer number: at every look, in more "
        "than 75 % of the pairs of layers with different numbers",
        paper="“‘Plain’ has dying/full neurons, and the number of dying/full neurons increases as the layer number "
        "increases”",
    )
    def check(table: Table) -> Outcome:
        steps = table.arm("plain").steps(KINDS[kind])
        by_layer = {step: list(table.arm("plain").mean_by_layer(KINDS[kind], step).values()) for step in steps}
        shares = {step: increase(counts) for step, counts in by_layer.items()}
        details = [
            f"step {step}: {sum(by_layer[step]):.0f}, more in the higher layer in {share:.0%} of pairs of layers"
            for step, share in shares.items()
            if step in (steps[0], steps[-1])
        ]
        return judged([share > MOST for share in shares.values()], "; ".join(details))

    return check


@claim(
    "BN has fewer of them than the plain network",
    paper="says that ‘Plain’ has them, and nothing of BN",
    is_ours=True,
)
def bn_has_fewer(table: Table) -> Outcome:
    """In all layers, dying and full, at every look."""
    totals = {step: [totals_at(table.arm(arm), step) for arm in ARMS] for step in table.steps(DYING)}
    known = {step: both for step, both in totals.items() if all(both)}
    details = [
        f"step {step}: {fmean(bn):.0f} with BN, {fmean(plain):.0f} without" for step, (plain, bn) in known.items()
    ]
    return judged(
        [is_greater(*both) for both in known.values()], "; ".join(dict.fromkeys((*details[:1], *details[-1:])))
    )


def totals_at(runs: Table, step: int) -> list[float]:
    """Dying and full neurons of all layers at a step, in every seed that was measured then."""
    by_seed = ([record.by_layer(quantity, step) for quantity in KINDS.values()] for record in runs)
    return [sum(sum(layers.values()) for layers in kinds) for kinds in by_seed if all(kinds)]


def draw(table: Table) -> Figure:
    """Counts against the layer at every look, dying and full."""
    titles = {(arm, kind): f"{kind} neurons, {arm}" for kind in KINDS for arm in table.arms}
    figure, axes = panels(list(titles.values()), columns=len(table.arms))
    most = max((row.value for record in table for row in record.rows if row.quantity in KINDS.values()), default=1.0)
    for (arm, kind), title in titles.items():
        draw_looks(axes[title], looks_of(table, arm, KINDS[kind]))
        axes[title].set_ylim(-0.05 * (most + 1), 1.05 * (most + 1))
    legend_below(figure, next(iter(axes.values())), columns=6)
    return figure


EXPERIMENT = Experiment(
    name="huang2020-fig13",
    title="Dying and full neurons of a 20-layer MLP over training",
    says="The plain network has dying and full neurons, and their number increases with the layer.",
    arms=ARMS,
    scales={
        "smoke": SMOKE,
        "laptop": LAPTOP | {"measured": 10_000},
        "paper": PAPER
        | {"seeds": 3, "measured": 60_000, "compared_lr": COMPARED_LR["he"], "rates": [COMPARED_LR["he"]]},
    },
    measure=measure,
    claims=(grow_with_depth("dying"), grow_with_depth("full"), bn_has_fewer),
    draw=draw,
    minutes={"smoke": 0.02, "laptop": 1.7, "paper": 1.0},
    contrast=[("plain", "BN")],
    departures=(
        *DEPARTURES,
        "The network with BN is not in the source's figure; it is there to compare with, and sees the measured images "
        "as one batch.",
    ),
    silent=SILENT,
)
