"""Figure 5 of lange2022, and the right half of figure 4: a 5-layer CNN in mini-batches of 128, 2 and 1."""

from __future__ import annotations

from wellcond_papers.experiments.experiment import Experiment, Settings
from wellcond_papers.papers.lange2022.comparison import (
    SIGNIFICANT,
    ahead_early,
    arms,
    comparable,
    does_not_train,
    draw,
    outperforms,
    rates,
    reaches_sooner,
)
from wellcond_papers.papers.lange2022.fig3 import INPUTS, TRAINS
from wellcond_papers.papers.lange2022.networks import CNN
from wellcond_papers.papers.lange2022.training import measure

MANY, TWO, ONE = "batch 128", "batch 2", "batch 1"
FOUR_THINGS: Settings = {"optimizer": "Adam", "alpha": 0.1}
ARMS = {
    **arms(
        MANY,
        {
            "vanilla": {"lr": 1e-3, "optimizer": "Adam"},
            "vanilla SGD": {"lr": 0.1},
            **rates(BN=0.1, BNP=0.1),
            "4 things": {"lr": 5e-3, **FOUR_THINGS},
        },
        batch=128,
    ),
    **arms(
        TWO,
        rates(vanilla=1e-3, BN=1e-3, BNP=0.01, Renorm=0.01) | {"4 things": {"lr": 1e-4, **FOUR_THINGS}},
        batch=2,
    ),
    **arms(
        ONE, rates(vanilla=1e-3, BN=1e-3, BNP=0.1) | {"4 things": {"lr": 1e-3, **FOUR_THINGS, "alpha": 1.0}}, batch=1
    ),
}
NETWORK = {"network": CNN, "data": "cifar10", "channels": [32, 64, 32], "hidden": [64], "evaluated": 5000}
SMALL = {
    "network": CNN,
    "data": "digits",
    "size": 24,
    "channels": [4, 4, 4],
    "hidden": [16],
    "evaluated": 100,
    "tested": 200,
}


def _steps(many: int, few: int) -> dict[str, dict[str, int]]:
    """The arms with large mini-batches, and the others."""
    return {arm: {"steps": many if own["batch"] > 2 else few} for arm, own in ARMS.items()}


EXPERIMENT = Experiment(
    name="lange2022-fig5",
    title="A 5-layer CNN in mini-batches of 128, 2 and 1",
    says="BNP is comparable with BN in mini-batches of 128, outperforms it in mini-batches of 2, and trains in those "
    "of one, where BN cannot.",
    arms=ARMS,
    scales={
        "smoke": {
            **SMALL, "looks": 5,
            "arms": {arm: {"steps": 20, "batch": min(own["batch"], 32)} for arm, own in ARMS.items()},
        },
        "gpu": {**NETWORK, "looks": 20, "seeds": 2, "arms": _steps(4000, 25_000)},
        "paper": {
            **NETWORK, "looks": 40, "seeds": 5,
            "arms": {arm: {"steps": 50 * 50_000 // own["batch"]} for arm, own in ARMS.items()},
        },
    },
    measure=measure,
    claims=[
        comparable(
            "batch 128: BN, BN with 4 things and BNP are comparable", "comparable performance",
            MANY, ["BN", "4 things", "BNP"],
        ),
        ahead_early("batch 128: BNP is slower than BN at the beginning", "slightly slower", MANY, ["BN"], ["BNP"]),
        ahead_early("batch 128: BN with 4 things is faster", "slightly faster", MANY, ["4 things"], ["BN"]),
        outperforms(
            "batch 128: all outperform the vanilla network", "they all outperform it",
            MANY, ["BN", "4 things", "BNP"], ["vanilla", "vanilla SGD"],
        ),
        outperforms(
            "batch 2: BNP outperforms BN, Renorm and BN with 4 things", "significantly",
            TWO, ["BNP"], ["BN", "Renorm", "4 things"], by=SIGNIFICANT,
        ),
        outperforms(
            "batch 2: BN underperforms all others", "all other methods",
            TWO, ["vanilla", "BNP", "Renorm", "4 things"], ["BN"],
        ),
        does_not_train("batch 1: BN does not train", "do not train", ONE, "BN"),
        reaches_sooner(
            "batch 2 and 1: BNP converges faster than the vanilla network", "BNP trains faster",
            [(f"{panel}: BNP", f"{panel}: vanilla") for panel in (TWO, ONE)],
        ),
        outperforms(
            "batch 1: BNP ends above the vanilla network", "slightly higher accuracy", ONE, ["BNP"], ["vanilla"]
        ),
        outperforms(
            "batch 1: BN with 4 things underperforms", "significantly",
            ONE, ["vanilla", "BNP"], ["4 things"], by=SIGNIFICANT,
        ),
    ],
    draw=draw,
    minutes={"smoke": 0.05, "gpu": 2.1, "paper": 600},
    contrast=[(f"{TWO}: BNP", f"{TWO}: BN"), (f"{ONE}: BNP", f"{ONE}: vanilla")],
    departures=[
        INPUTS,
        "The source's rate of the vanilla network in mini-batches of 128 is 0.1 and its optimizer Adam, which does not "
        "train at that rate: here Adam has its default of 0.001, and SGD at 0.1 is added.",
        "The source does not say how much of an example's own moments BN with 4 things mixes in (α is 0.1 here, "
        "and 1 in mini-batches of one, the best of short runs), nor how strongly γ and β decay (1e-4 here), nor how "
        "many epochs it trains.",
        "BN in mini-batches of one gives β after the dense layer, since an image is its own mean.",
        TRAINS,
    ],
)  # fmt: skip
