"""Figure V of huang2020: the magnitude of what the layers of a 20-layer MLP receive and get back, over training."""

from __future__ import annotations

import math
from collections.abc import Mapping
from statistics import fmean, geometric_mean, median
from typing import TYPE_CHECKING, Any

from wellcond.results import Row, number
from wellcond.results.quantities import FINAL_LOSS, GRADIENT, INPUT, LOSS, TRAINING_LOSS
from wellcond_papers.experiments.claims import END, Claim, Outcome, claim, is_greater, judged
from wellcond_papers.experiments.experiment import Experiment, Job
from wellcond_papers.experiments.pictures import panels
from wellcond_papers.experiments.table import Table
from wellcond_papers.papers.huang2020.conditioning import LABELS, MAGNITUDES, is_larger, layer_rows
from wellcond_papers.papers.huang2020.deep_mlp import (
    AS_IN_SECTION_4,
    COMPARED_LR,
    DEPARTURES,
    LAPTOP,
    PAPER,
    SILENT,
    SMOKE,
    at_step,
    changes,
    spread,
    trained,
)
from wellcond_papers.papers.huang2020.layer_pictures import draw_loss, draw_networks

if TYPE_CHECKING:
    from matplotlib.figure import Figure

INITS = {"LeCun": "lecun", "He": "he"}
ARMS: dict[str, dict[str, Any]] = {
    f"{name}, {init}": {"norm": norm, "init": value, "optimizer": "SGD"}
    for init, value in INITS.items()
    for name, norm in {"plain": "none", "BN": "batch"}.items()
}
AT_ONE_RATE: dict[str, dict[str, Any]] = {
    arm: {"compared_lr": COMPARED_LR[settings["init"]], "rates": [COMPARED_LR[settings["init"]]]}
    for arm, settings in ARMS.items()
}
"""One rate for both networks of a pair."""
TRIED = [0.01, 0.05, 0.1, 0.2, 0.5, 1.0]
NAMES = {INPUT.lambda_max: "Σx", GRADIENT.lambda_max: "Σ∇h"}
BY_INIT = {init: (f"plain, {init}", f"BN, {init}") for init in INITS}
STABILIZES = "“batch normalization (BN) can stabilize the training” (abstract); it names no matrix"
EVEN = 10.0
"""Magnitudes within such a factor of each other count as kept, and beyond it as lost."""


def measure(job: Job) -> list[Row]:
    """Train one network and measure the magnitudes of its layers on the way."""
    return trained(job, lambda model, batch, step: layer_rows(model, batch, step, keep=(*MAGNITUDES, LOSS)))


@claim(
    "plain with LeCun's initialization: at the start λ_max of Σx falls with depth more than 10 times, that of Σ∇h on "
    "the way back",
    paper=AS_IN_SECTION_4,
    is_ours=True,
)
def vanishes(table: Table) -> Outcome:
    """From the first to the last hidden layer, at the start."""
    cases, details = [], []
    for quantity, name in NAMES.items():
        values = list(at_step(table, "plain, LeCun", quantity, 0).values())
        if values:
            near, far = (values[0], values[-1]) if quantity == INPUT.lambda_max else (values[-1], values[0])
            fall = near / far if far > 0 else math.inf
            cases.append(fall > EVEN)
            details.append(f"{name}: {number(fall)} times smaller at the far end")
    return judged(cases, "; ".join(details))


@claim(
    "plain with He's initialization keeps both magnitudes within a factor of 10 at the start",
    paper=AS_IN_SECTION_4,
    is_ours=True,
)
def he_keeps(table: Table) -> Outcome:
    """The greatest over the least among the layers."""
    spreads = {name: spread(values) for q, name in NAMES.items() if (values := at_step(table, "plain, He", q, 0))}
    return judged(
        [each < EVEN for each in spreads.values()],
        "; ".join(f"{name}: within a factor of {number(each)}" for name, each in spreads.items()),
    )


def steadier_with_bn(quantity: str, pairs: Mapping[str, tuple[str, str]], *, paper: str) -> Claim:
    """λ_max of a layer, greatest over least in training, is smaller with BN, layer by layer.

    Args:
        quantity: λ_max of Σx or of Σ∇h.
        pairs: The plain network and that with BN, by what they have in common.
        paper: The paper's own words.
    """
    matrix = NAMES[quantity]

    @claim(
        f"BN stabilizes λ_max of {matrix} in training: of a layer, the greatest over the least is smaller",
        paper=paper,
        needs=END,
    )
    def check(table: Table) -> Outcome:
        cases: list[bool | None] = []
        details = []
        for common, (plain, bn) in pairs.items():
            without, with_bn = (changes(table, arm, quantity) for arm in (plain, bn))
            steadier = [is_larger(without[layer], with_bn[layer]) for layer in without if layer in with_bn]
            if steadier:
                cases += steadier
                middle = [number(median(map(geometric_mean, values.values()))) for values in (with_bn, without)]
                counted = f"{f'{common}: ' if common else ''}{steadier.count(True)} of {len(steadier)} layers"
                counted += f", a tie in {steadier.count(None)}" if None in steadier else ""
                details.append(f"{counted}, {middle[0]} times against {middle[1]}")
        return judged(cases, f"medians with BN against without, {'; '.join(details)}" if details else "")

    return check


def diverges_less(pairs: Mapping[str, tuple[str, str]], *, paper: str) -> Claim:
    """Of all rates and seeds, fewer runs with BN diverge; if none does in either network, nothing is known."""

    @claim("BN stabilizes the training itself: of all rates and seeds, fewer runs diverge", paper=paper)
    def check(table: Table) -> Outcome:
        cases: list[bool | None] = []
        details = []
        for common, arms in pairs.items():
            plain, bn = ([[*map(math.isinf, seed.values())] for seed in losses_by_rate(table, arm)] for arm in arms)
            counts = [
                f"{sum(map(sum, seeds))} of {sum(map(len, seeds))} {how}"
                for seeds, how in ((bn, "with BN"), (plain, "without"))
            ]
            details.append(f"{f'{common}: ' if common else ''}{', '.join(counts)}")
            if any(map(any, plain + bn)) and plain and bn:
                cases.append(is_greater([*map(fmean, plain)], [*map(fmean, bn)]))
        return judged(cases, f"diverged: {'; '.join(details)}")

    return check


@claim(
    "with BN the magnitude of what the layers receive stays within a factor of 10, at all depths and times",
    paper=AS_IN_SECTION_4,
    is_ours=True,
    needs=END,
)
def bn_is_level(table: Table) -> Outcome:
    """Over all looks and layers."""
    spreads = {}
    for init in INITS:
        arm = f"BN, {init}"
        steps = table.arm(arm).steps(INPUT.lambda_max)
        values = {
            f"{step} {layer}": value
            for step in steps
            for layer, value in at_step(table, arm, INPUT.lambda_max, step).items()
        }
        if values:
            spreads[init] = spread(values)
    details = "; ".join(f"{init}: λ_max of Σx within a factor of {number(each)}" for init, each in spreads.items())
    return judged([each < EVEN for each in spreads.values()], details)


def losses_by_rate(table: Table, arm: str) -> list[dict[str, float]]:
    """The final losses of all rates, by seed; infinite where the run diverged."""
    return [
        {row.layer: row.value for row in record.rows if row.quantity == FINAL_LOSS and row.layer.startswith("lr ")}
        for record in table.arm(arm)
    ]


@claim(
    "BN trains to the lower loss, with either initialization",
    paper="shows panels (c) and (f), most likely the loss, without a word on it",
    is_ours=True,
    needs=END,
)
def trains_better(table: Table) -> Outcome:
    """The mean training loss of the last tenth, of each network's best rate."""
    cases, details = [], []
    for init in INITS:
        plain, bn = (
            [min(losses.values()) for losses in losses_by_rate(table, f"{norm}, {init}")] for norm in ("plain", "BN")
        )
        if bn and plain:
            cases.append(is_greater(plain, bn))
            words = [", ".join(map(number, losses)) for losses in (bn, plain)]
            details.append(f"{init}: {words[0]} with BN, {words[1]} without")
    return judged(cases, "; ".join(details))


def draw(table: Table) -> Figure:
    """Magnitudes against the layer at every look, and the loss: (a) to (c) with LeCun's initialization, then He's."""
    columns = [*(LABELS[quantity] for quantity in MAGNITUDES), "training loss"]
    names = [f"{column}, {init}" for init in INITS for column in columns]
    figure, axes = panels([f"({letter}) {name}" for letter, name in zip("abcdef", names, strict=True)], columns=3)
    for place, panel in enumerate(axes.values()):
        init, column = list(INITS)[place // 3], place % 3
        if column < 2:
            draw_networks(panel, table, BY_INIT[init], MAGNITUDES[column])
        else:
            draw_loss(panel, table, BY_INIT[init], TRAINING_LOSS, log=True)
    return figure


EXPERIMENT = Experiment(
    name="huang2020-fig5",
    title="Magnitudes of the layers of a 20-layer MLP over training, plain and BN",
    says="Shows the magnitudes of what the layers receive and get back. The results are similar to those of Section 4 "
    "of the paper, which the supplement does not repeat; the paper's abstract says that BN can stabilize the training.",
    arms=ARMS,
    scales={
        "smoke": SMOKE,
        "laptop": LAPTOP,
        "paper": PAPER | {"seeds": 3, "arms": {arm: own | {"rates": TRIED} for arm, own in AT_ONE_RATE.items()}},
    },
    measure=measure,
    claims=(
        steadier_with_bn(INPUT.lambda_max, BY_INIT, paper=STABILIZES),
        steadier_with_bn(GRADIENT.lambda_max, BY_INIT, paper=STABILIZES).because(
            "paper",
            "the paper's claim does not hold here",
            "BN's gradients explode toward the lower layers at the start: λ_max of Σ∇h is 84 to 100 times greater in "
            "layer 1 than in layer 15. With He's initialization it falls 160 to 220 times in layer 1 in 464 steps, "
            "where plain changes 7 to 29 times; in layer 15 BN is the steadier (7 to 10 times against 14 to 30). Later "
            "it falls with the loss: with LeCun's BN fits all images, while plain does not train.",
        ),
        diverges_less(BY_INIT, paper=STABILIZES),
        vanishes,
        he_keeps,
        bn_is_level,
        trains_better.because(
            "paper",
            "seeds",
            "With LeCun's initialization BN's loss is 500 times lower or more. With He's both networks fit all images: "
            "the best losses are below 0.004, and the plain network has both the highest and the two lowest.",
        ),
    ),
    draw=draw,
    minutes={"smoke": 0.07, "laptop": 3.4, "paper": 3.0},
    contrast=[("plain, LeCun", "BN, LeCun"), ("plain, He", "BN, He")],
    departures=DEPARTURES,
    silent=SILENT,
)
