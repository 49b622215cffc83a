"""Figure VI of huang2020: the conditioning of what the layers of a 20-layer MLP receive and get back, over training."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median
from typing import TYPE_CHECKING

from wellcond.results import Row, number
from wellcond.results.quantities import GRADIENT, INPUT, LOSS, MatrixQuantities
from wellcond_papers.experiments.claims import END, Claim, Outcome, claim, judged
from wellcond_papers.experiments.experiment import Experiment, Job
from wellcond_papers.experiments.pictures import panels
from wellcond_papers.experiments.table import Table
from wellcond_papers.papers.huang2020.conditioning import CONDITION_NUMBERS, LABELS, is_larger, layer_rows
from wellcond_papers.papers.huang2020.deep_mlp import (
    AS_IN_SECTION_4,
    DEPARTURES,
    LAPTOP,
    PAPER,
    SILENT,
    SMOKE,
    at_step,
    by_seed,
    shared_looks,
    trained,
)
from wellcond_papers.papers.huang2020.equal_loss import better_conditioned_at_equal_loss
from wellcond_papers.papers.huang2020.fig5 import ARMS, AT_ONE_RATE, BY_INIT, INITS
from wellcond_papers.papers.huang2020.layer_pictures import draw_against_loss, draw_networks

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PAIRS = list(BY_INIT.values())
NAMES = {"Σx": INPUT, "Σ∇h": GRADIENT}
BETTER_CONDITIONED = f"“BN can improve the layer-wise conditioning” (abstract); of the figure {AS_IN_SECTION_4}"


def measure(job: Job) -> list[Row]:
    """Train one network and measure the condition numbers of its layers on the way."""
    return trained(job, lambda model, batch, step: layer_rows(model, batch, step, keep=(*CONDITION_NUMBERS, LOSS)))


def better_conditioned(
    name: str,
    matrix: MatrixQuantities,
    pairs: Sequence[tuple[str, str]],
    shares: Sequence[float] = (0.5, 0.8),
    *,
    at_start: bool,
    paper: str = BETTER_CONDITIONED,
) -> Claim:
    """BN has the smaller κ_p, layer by layer over the seeds, at the start or at every later look.

    Two that are infinite say nothing, nor does a look that one of the two networks does not live to see.
    """
    when = "at the start" if at_start else "during training"

    @claim(f"{when}, BN lowers κ_p of {name} in the hidden layers", paper=paper, needs=0.0 if at_start else END)
    def check(table: Table) -> Outcome:
        cases: list[bool | None] = []
        details = []
        for plain, bn in pairs:
            seeds: dict[tuple[float, int, str], list[tuple[float, float]]] = {}
            for pair in by_seed(table, plain, bn):
                for p in shares:
                    for step, (without, with_bn) in shared_looks(pair, matrix.kappa[p]).items():
                        for layer in without if (step == 0) == at_start else ():
                            if min(both := (without[layer], with_bn[layer])) < math.inf:
                                seeds.setdefault((p, step, layer), []).append(both)
            smaller = [is_larger(*zip(*both, strict=True)) for both in seeds.values()]
            cases += smaller
            if smaller:
                medians = [
                    number(median(column))
                    for column in zip(*(each for both in seeds.values() for each in both), strict=True)
                ]
                init = f"{bn.removeprefix('BN, ')}: " if ", " in bn else ""
                ties = f", a tie in {smaller.count(None)}" if None in smaller else ""
                details.append(
                    f"{init}smaller in {smaller.count(True)} of {len(smaller)} comparisons{ties}; median "
                    f"{medians[1]} with BN, {medians[0]} without"
                )
        return judged(cases, "; ".join(details))

    return check


@claim(
    "He's initialization does not change the conditioning of the plain network at the start: κ50 is within a factor "
    "of 2 of that with LeCun's",
    paper="Theorem 1 says that scaled weights scale what layers receive and get back",
    is_ours=True,
)
def he_does_not_help(table: Table) -> Outcome:
    """Layer by layer, of the means over seeds."""
    cases, details = [], []
    for name, matrix in NAMES.items():
        lecun, he = (at_step(table, f"plain, {init}", matrix.kappa[0.5], 0) for init in INITS)
        ratios = [he[layer] / lecun[layer] for layer in lecun if layer in he and lecun[layer] < math.inf]
        if ratios:
            cases += [0.5 < ratio < 2 for ratio in ratios]
            details.append(f"{name}: κ50 of He is {number(min(ratios))} to {number(max(ratios))} times LeCun's")
    return judged(cases, "; ".join(details))


def draw(table: Table) -> Figure:
    """κ_50% against the layer at every look; below, its median against the loss, where that was measured."""
    quantities = [matrix.kappa[0.5] for matrix in NAMES.values()]
    has_loss = any(row.quantity == LOSS for record in table for row in record.rows)
    names = [f"{LABELS[quantity]}, {init}" for init in INITS for quantity in quantities]
    at_equal_loss = [f"median of the layers, {name}" for name in names] if has_loss else []
    figure, axes = panels([*names, *at_equal_loss], columns=4)
    for place, (init, quantity) in enumerate((init, quantity) for init in INITS for quantity in quantities):
        draw_networks(axes[names[place]], table, BY_INIT[init], quantity)
        if has_loss:
            draw_against_loss(axes[at_equal_loss[place]], table, BY_INIT[init], quantity)
    return figure


EXPERIMENT = Experiment(
    name="huang2020-fig6",
    title="Conditioning of the layers of a 20-layer MLP over training, plain and BN",
    says="Shows how well conditioned what the layers receive and get back is over training. That BN conditions layers "
    "better is said in the paper's abstract, and of figure VII.",
    arms=ARMS,
    scales={"smoke": SMOKE, "laptop": LAPTOP, "paper": PAPER | {"seeds": 3, "arms": AT_ONE_RATE}},
    measure=measure,
    claims=(
        *(better_conditioned(name, matrix, PAIRS, at_start=True) for name, matrix in NAMES.items()),
        better_conditioned("Σx", INPUT, PAIRS, at_start=False).because(
            "paper",
            "seeds",
            "The 6 ties of 836 are of layers 2 and 3 with LeCun's initialization, at steps 464, 835 and 1392.",
        ),
        better_conditioned("Σ∇h", GRADIENT, PAIRS, at_start=False).because(
            "paper",
            "depends on a setting that differs here, or that the source does not name",
            "Networks are compared after equal steps, κ_p of Σ∇h rises as the loss falls, and BN fits faster. With "
            "He's initialization it is smaller in all layers until step 464 and fails at 835 and 1392, at losses of "
            "0.02 and 0.005 against 0.06 to 0.26; with LeCun's it fails from step 1392 on, when BN comes to 0.0001 "
            "and plain does not train (1.5 and 1.6, one seed diverged). At equal loss it is smaller in 1206 of 1216 "
            "comparisons, 114 of them with LeCun's initialization (claim 6).",
        ),
        better_conditioned_at_equal_loss("Σx", INPUT, PAIRS),
        better_conditioned_at_equal_loss("Σ∇h", GRADIENT, PAIRS).because(
            "paper",
            "seeds",
            "Of 1216 comparisons 114 are with LeCun's initialization, all at a loss of 2 and all smaller, since its "
            "plain network does not come down to 1; 1102 are with He's, 1092 of them smaller, of three seeds down to "
            "0.02 and of two from 0.01 down. The 10 exceptions are κ50 of layers 1 to 4 of one seed at losses of "
            "0.005 and less, by factors of 1.1 to 1.9. With He's initialization BN's median of κ50 is 6 to 22 times "
            "smaller, from a loss of 2 to one of 0.001.",
        ),
        he_does_not_help,
    ),
    draw=draw,
    minutes={"smoke": 0.07, "laptop": 4.5, "paper": 2.0},
    contrast=PAIRS,
    departures=DEPARTURES,
    silent=SILENT,
)
