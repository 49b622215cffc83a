"""Figure VII of huang2020: the layers of a 20-layer MLP over training with Adam, plain and with BN."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from wellcond.results import Row, number
from wellcond.results.quantities import GRADIENT, INPUT, LOSS, TRAINING_LOSS
from wellcond_papers.experiments.claims import Outcome, claim, judged
from wellcond_papers.experiments.experiment import Experiment, Job
from wellcond_papers.experiments.pictures import panels
from wellcond_papers.experiments.table import Table
from wellcond_papers.papers.huang2020.conditioning import LABELS, layer_rows
from wellcond_papers.papers.huang2020.deep_mlp import (
    COMPARED_LR,
    DEPARTURES,
    LAPTOP,
    PAPER,
    SILENT,
    SMOKE,
    at_step,
    spread,
    trained,
)
from wellcond_papers.papers.huang2020.equal_loss import better_conditioned_at_equal_loss
from wellcond_papers.papers.huang2020.fig5 import steadier_with_bn
from wellcond_papers.papers.huang2020.fig6 import better_conditioned
from wellcond_papers.papers.huang2020.layer_pictures import draw_loss, draw_networks

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
PAIR = ("plain", "BN")
BETTER_CONDITIONED = "“‘BN’ has better conditioning than ‘Plain’ during training”"


def measure(job: Job) -> list[Row]:
    """Train one network and measure its layers on the way."""
    return trained(job, lambda model, batch, step: layer_rows(model, batch, step, keep=(*KEPT, LOSS)))


@claim(
    "Adam can adjust the magnitudes of the plain network's layers during training, compared to SGD",
    paper="“‘Plain’ with the Adam optimizer can well adjust the magnitude of the layer input and layer output-gradient "
    "during training, compared to ‘Plain’ with the naive SGD optimizer”",
)
def adam_adjusts(table: Table) -> Outcome:
    """The greatest λ_max over the least among the layers, at the end."""
    cases, details = [], []
    for name, matrix in NAMES.items():
        adam, sgd = (at_step(table, arm, matrix.lambda_max) for arm in ("plain", "plain, SGD"))
        if adam and sgd:
            cases.append(spread(adam) < spread(sgd))
            details.append(f"{name}: a factor of {number(spread(adam))} with Adam, {number(spread(sgd))} with SGD")
    return judged(cases, "; ".join(details))


def draw(table: Table) -> Figure:
    """Magnitudes, the training loss, and condition numbers, (a) to (e) as in the source."""
    shown = [*KEPT[:2], TRAINING_LOSS, *KEPT[2:]]
    titles = {quantity: LABELS.get(quantity, "training loss") for quantity in shown}
    figure, axes = panels([f"({letter}) {title}" for letter, title in zip("abcde", titles.values(), strict=True)], 3)
    for quantity, panel in zip(shown, axes.values(), strict=True):
        draw_one = draw_loss if quantity == TRAINING_LOSS else draw_networks
        draw_one(panel, table, table.arms, quantity)
    return figure


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
        steadier_with_bn(INPUT.lambda_max, {"": PAIR}, paper="“‘BN’ can better stabilize the training”"),
        *(
            better_conditioned(name, matrix, [PAIR], at_start=False, paper=BETTER_CONDITIONED)
            for name, matrix in NAMES.items()
        ),
        steadier_with_bn(
            GRADIENT.lambda_max,
            {"": PAIR},
            paper="that BN stabilizes the training; a gradient falls with it",
            is_ours=True,
        ).because(
            "laptop",
            "depends on a setting that differs here, or that the source does not name",
            "What a layer gets back falls as the loss does, and BN comes to 0.10 where plain comes to 0.15, after "
            "equal steps and at its own best rate.",
        ),
        *(better_conditioned_at_equal_loss(name, matrix, [PAIR], [0.5]) for name, matrix in NAMES.items()),
    ),
    draw=draw,
    minutes={"smoke": 0.03, "laptop": 2.5, "paper": 2.0},
    contrast=[("plain", "BN"), ("plain", "plain, SGD")],
    departures=(*DEPARTURES, "The plain network with SGD, of figure V, is trained here again to be compared with."),
    silent=SILENT,
)
