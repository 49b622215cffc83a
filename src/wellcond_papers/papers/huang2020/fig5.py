"""Figure V of huang2020: the magnitude of what the layers of a 20-layer MLP receive and get back, over training."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from wellcond.results import Row, number
from wellcond.results.quantities import FINAL_LOSS, GRADIENT, INPUT, LOSS
from wellcond_papers.experiments.claims import Outcome, claim, judged
from wellcond_papers.experiments.experiment import Experiment, Job
from wellcond_papers.experiments.table import Table
from wellcond_papers.papers.huang2020.conditioning import MAGNITUDES, layer_rows
from wellcond_papers.papers.huang2020.deep_mlp import (
    COMPARED_LR,
    DEPARTURES,
    LAPTOP,
    PAPER,
    SILENT,
    SMOKE,
    at_step,
    change,
    draw_layers,
    spread,
    trained,
)

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
EVEN = 10.0
"""Magnitudes within such a factor of each other count as kept, and beyond it as lost."""


def measure(job: Job) -> list[Row]:
    """Train one network and measure the magnitudes of its layers on the way."""
    return trained(job, lambda model, batch, step: layer_rows(model, batch, step, keep=(*MAGNITUDES, LOSS)))


@claim("plain with LeCun's initialization: λ_max of Σx falls with depth, that of Σ∇h on the way back", paper="vanish")
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


@claim("plain with He's initialization keeps both magnitudes at the start", paper="kept")
def he_keeps(table: Table) -> Outcome:
    """The greatest over the least among the layers."""
    spreads = {name: spread(values) for q, name in NAMES.items() if (values := at_step(table, "plain, He", q, 0))}
    return judged(
        [each < EVEN for each in spreads.values()],
        "; ".join(f"{name}: within a factor of {number(each)}" for name, each in spreads.items()),
    )


@claim("but not during training, when BN changes less: λ_max of a layer, greatest over least in training", paper="less")
def bn_is_steadier(table: Table) -> Outcome:
    """Layer by layer, with each initialization."""
    cases, details = [], []
    for init in INITS:
        for quantity, name in NAMES.items():
            plain, bn = (change(table, f"{norm}, {init}", quantity) for norm in ("plain", "BN"))
            steadier = [bn[layer] < plain[layer] for layer in plain if layer in bn]
            if steadier:
                cases += steadier
                middle = [number(sorted(values.values())[len(values) // 2]) for values in (bn, plain)]
                counted = f"{init}, {name}: {sum(steadier)} of {len(steadier)} layers"
                details.append(f"{counted}, {middle[0]} times against {middle[1]}")
    return judged(cases, f"medians with BN against without, {'; '.join(details)}" if details else "")


@claim("with BN the magnitude of what the layers receive is the same at all depths and times", paper="stable")
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


@claim("BN trains to the lower loss, with either initialization", paper="lower")
def trains_better(table: Table) -> Outcome:
    """The mean training loss of the last tenth, of the best rate."""
    cases, details = [], []
    for init in INITS:
        plain, bn = (table.arm(f"{norm}, {init}").lasts(FINAL_LOSS) for norm in ("plain", "BN"))
        if bn:
            cases.append(max(bn) < min(plain, default=math.inf))
            without = ", ".join(map(number, plain)) or "diverged"
            details.append(f"{init}: {', '.join(map(number, bn))} with BN, {without} without")
    return judged(cases, "; ".join(details))


def draw(table: Table) -> Figure:
    """Magnitudes against the layer at every look."""
    return draw_layers(table, MAGNITUDES)


EXPERIMENT = Experiment(
    name="huang2020-fig5",
    title="Magnitudes of the layers of a 20-layer MLP over training, plain and BN",
    says="Without BN the magnitudes vanish with depth (LeCun), or are kept at the start alone (He); with BN they are "
    "stable in training.",
    arms=ARMS,
    scales={
        "smoke": SMOKE,
        "laptop": LAPTOP,
        "paper": PAPER | {"seeds": 3, "arms": {arm: own | {"rates": TRIED} for arm, own in AT_ONE_RATE.items()}},
    },
    measure=measure,
    claims=(vanishes, he_keeps, bn_is_steadier, bn_is_level, trains_better),
    draw=draw,
    minutes={"smoke": 0.07, "laptop": 3.4, "paper": 3.0},
    contrast=[("plain, LeCun", "BN, LeCun"), ("plain, He", "BN, He")],
    departures=DEPARTURES,
    silent=SILENT,
)
