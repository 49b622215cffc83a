"""Figure 4 of lange2022: a fully connected network in mini-batches of 6 and of 1."""

from __future__ import annotations

from wellcond_papers.experiments.experiment import Experiment
from wellcond_papers.papers.lange2022.comparison import (
    arms,
    comparable,
    does_not_train,
    draw,
    outperforms,
    rates,
    reaches_sooner,
)
from wellcond_papers.papers.lange2022.fig3 import INPUTS, NETWORK, SMALL, TRAINS, TUNED
from wellcond_papers.papers.lange2022.training import measure

SIX, ONE, MNIST = "batch 6", "batch 1", "MNIST, batch 6"
ARMS = {
    **arms(
        SIX, rates(vanilla=5e-3, BN=0.05, BNP=0.05, Renorm=0.05, LN=0.05) | {TUNED: {"lr": 0.01}},
        data="cifar10", batch=6, steps=10_000,
    ),
    **arms(
        ONE, rates(vanilla=5e-4, BNP=0.1, LN=0.01, BN=0.01) | {TUNED: {"lr": 2e-3}},
        data="cifar10", batch=1, steps=20_000,
    ),
    **arms(MNIST, rates(vanilla=0.05, BNP=0.25) | {TUNED: {"lr": 0.03}}, data="mnist", batch=6, steps=10_000),
}  # fmt: skip

EXPERIMENT = Experiment(
    name="lange2022-fig4",
    title="A fully connected network in mini-batches of 6 and of 1",
    says="BNP outperforms BN in small mini-batches, and trains in mini-batches of one, where BN cannot.",
    arms=ARMS,
    scales={
        "smoke": {**SMALL, "arms": {arm: {"data": "digits", "steps": 20} for arm in ARMS}},
        "laptop": {**NETWORK, "looks": 20, "seeds": 2},
        "paper": {
            **NETWORK, "looks": 20, "seeds": 5,
            "arms": {arm: {"steps": 20 * 50_000 // own["batch"]} for arm, own in ARMS.items()},
        },
    },
    measure=measure,
    claims=[
        reaches_sooner(
            "batch 6 and 1: BNP converges faster than the vanilla network", "significantly faster",
            [(f"{panel}: BNP", f"{panel}: vanilla") for panel in (SIX, ONE)],
        ),
        reaches_sooner(
            "so it does where the rate of vanilla SGD was tuned for these very runs",
            "each model is tuned with respect to the learning rate",
            [(f"{panel}: BNP", f"{panel}: {TUNED}") for panel in (SIX, ONE)],
        ),
        reaches_sooner(
            "so it does on MNIST in mini-batches of 6", "the source did not try it",
            [(f"{MNIST}: BNP", f"{MNIST}: {other}") for other in ("vanilla", TUNED)],
        ),
        outperforms("batch 6: BNP outperforms BN and vanilla SGD", "outperforms", SIX, ["BNP"], ["BN", "vanilla"]),
        outperforms("batch 6: Renorm and LN perform better than BN", "better than BN", SIX, ["Renorm", "LN"], ["BN"]),
        reaches_sooner(
            "batch 6: BNP converges faster than Renorm and LN", "slightly faster",
            [(f"{SIX}: BNP", f"{SIX}: {other}") for other in ("Renorm", "LN")],
        ),
        comparable("batch 6: Renorm ends with the accuracy of BNP", "the same final accuracy", SIX, ["BNP", "Renorm"]),
        does_not_train("batch 1: BN does not train", "do not train", ONE, "BN"),
        reaches_sooner(
            "batch 1: LN converges faster than vanilla SGD", "significantly faster", [(f"{ONE}: LN", f"{ONE}: vanilla")]
        ),
        outperforms(
            "batch 1: vanilla SGD ends above BNP and LN, which overfit", "trending just below the vanilla network",
            ONE, ["vanilla"], ["BNP", "LN"],
        ),
    ],
    draw=draw,
    minutes={"smoke": 0.03, "laptop": 5.2, "paper": 300},
    contrast=[(f"{SIX}: BNP", f"{SIX}: BN"), (f"{ONE}: BNP", f"{ONE}: vanilla")],
    departures=[
        INPUTS,
        "Added to the source's methods: vanilla SGD at a rate tuned for these runs, by the loss at their end; and "
        "MNIST in mini-batches of 6, at half the rates of mini-batches of 60.",
        "BN in mini-batches of one, which torch refuses, gives β, since an image is its own mean; Batch Renorm is left "
        "out there. The source's figure also holds the CNN in mini-batches of one: see figure 5.",
        "The source does not say how many epochs it trains.",
        TRAINS,
    ],
)  # fmt: skip
