"""Figure VII of huang2020: the layers of a 20-layer MLP over training with Adam, plain and with BN."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from wellcond.results import Row, number
from wellcond.results.quantities import GRADIENT, INPUT, LOSS
from wellcond_papers.experiments.claims import Outcome, claim, judged
from wellcond_papers.experiments.experiment import Experiment, Job
from wellcond_papers.experiments.table import Table
from wellcond_papers.papers.huang2020.conditioning import layer_rows
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
from wellcond_papers.papers.huang2020.fig6 import better_conditioned

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ADAM_RATES = [1e-3, 5e-4, 1e-4]
ADAM_COMPARED_LR = 5e-4
ARMS: dict[str, dict[str, Any]] = {
    "plain": {"norm": "none", "init": "lecun", "optimizer": "Adam", "rates": ADAM_RATES},
    "BN": {"norm": "batch", "init": "lecun", "optimizer": "Adam", "rates": ADAM_RATES},
    "plain, SGD": {"norm": "none", "init": "lecun", "optimizer": "SGD"},
}
KEPT = (INPUT.lambda_max, GRADIENT.lambda_max, INPUT.kappa[0.5], GRADIENT.kappa[0.5])
NAMES = {"Σx": INPUT, "Σ∇h": GRADIENT}


def measure(job: Job) -> list[Row]:
    """Train one network and measure its layers on the way."""
    return trained(job, lambda model, batch, step: layer_rows(model, batch, step, keep=(*KEPT, LOSS)))


@claim("Adam evens out the magnitudes of the plain network's layers in training, SGD does not", paper="well adjusted")
def adam_adjusts(table: Table) -> Outcome:
    """The greatest λ_max over the least among the layers, at the end."""
    cases, details = [], []
    for name, matrix in NAMES.items():
        adam, sgd = (at_step(table, arm, matrix.lambda_max) for arm in ("plain", "plain, SGD"))
        if adam and sgd:
            cases.append(spread(adam) < spread(sgd))
            details.append(f"{name}: a factor of {number(spread(adam))} with Adam, {number(spread(sgd))} with SGD")
    return judged(cases, "; ".join(details))


@claim("BN stabilizes the training better: λ_max of a layer changes less over it", paper="better")
def bn_is_steadier(table: Table) -> Outcome:
    """The greatest over the least in training, layer by layer."""
    cases, details = [], []
    for name, matrix in NAMES.items():
        plain, bn = (change(table, arm, matrix.lambda_max) for arm in ("plain", "BN"))
        steadier = [bn[layer] < plain[layer] for layer in plain if layer in bn]
        if steadier:
            cases += steadier
            greatest = [number(max(values.values())) for values in (bn, plain)]
            details.append(
                f"{name}: in {sum(steadier)} of {len(steadier)} layers; at most {greatest[0]} times with BN, "
                f"{greatest[1]} without"
            )
    return judged(cases, "; ".join(details))


def draw(table: Table) -> Figure:
    """Magnitudes and condition numbers against the layer at every look, and the training loss."""
    return draw_layers(table, KEPT)


EXPERIMENT = Experiment(
    name="huang2020-fig7",
    title="The layers of a 20-layer MLP over training with Adam, plain and BN",
    says="Adam can adjust the magnitudes of the plain network's layers, which SGD cannot; BN stabilizes the training "
    "better, and is better conditioned.",
    arms=ARMS,
    scales={
        "smoke": SMOKE,
        "laptop": LAPTOP,
        "paper": PAPER
        | {
            "seeds": 3,
            "arms": {
                "plain": {"compared_lr": ADAM_COMPARED_LR},
                "BN": {"compared_lr": ADAM_COMPARED_LR},
                "plain, SGD": {"compared_lr": COMPARED_LR["lecun"], "rates": [COMPARED_LR["lecun"]]},
            },
        },
    },
    measure=measure,
    claims=(
        adam_adjusts,
        bn_is_steadier,
        *(better_conditioned(name, matrix, [("plain", "BN")], at_start=False) for name, matrix in NAMES.items()),
    ),
    draw=draw,
    minutes={"smoke": 0.03, "laptop": 2.5, "paper": 2.0},
    contrast=[("plain", "BN"), ("plain", "plain, SGD")],
    departures=(*DEPARTURES, "The plain network with SGD, of figure V, is trained here again to be compared with."),
    silent=[name for name in SILENT if name != "rates"],
)
