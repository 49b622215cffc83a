"""Figure 6 of lange2022: ResNet-110 on CIFAR-10 and PreResNet-110 on CIFAR-100, under BN, GN, BNP and BNP with GN."""

from __future__ import annotations

from wellcond_papers.experiments.claims import Claim
from wellcond_papers.experiments.experiment import Experiment, Settings
from wellcond_papers.papers.lange2022.comparison import (
    SIGNIFICANT,
    arms,
    comparable,
    gains_more,
    outperforms,
)
from wellcond_papers.papers.lange2022.curves import drawing
from wellcond_papers.papers.lange2022.fig3 import DEGREES
from wellcond_papers.papers.lange2022.networks import PRERESNET, RESNET
from wellcond_papers.papers.lange2022.rates import TABLE_3
from wellcond_papers.papers.lange2022.training import measure

TEN, HUNDRED = "CIFAR-10", "CIFAR-100"
DECAY = {TEN: [80 / 160, 120 / 160], HUNDRED: [150 / 300, 220 / 300]}
"""The shares of the training after which the rate is a tenth."""
OWN: dict[str, dict[str, Settings]] = {
    TEN: {"BNP+GN": {"weight_decay": 1.5e-4, "init_scale": 0.1}},
    HUNDRED: {"BN": {"warm_up": 1}, "BNP+GN": {"weight_decay": 2e-4, "init_scale": 0.4}},
}


WITH_BIAS = "BNP+GN with bias"


def _methods(panel: str, row: str) -> dict[str, Settings]:
    """Those of the table, and BNP+GN in a network whose convolutions have a bias."""
    methods: dict[str, Settings] = {
        method: {"lr": rate, "weight_decay": 1e-4, **OWN[panel].get(method, {})}
        for method, rate in TABLE_3[row].items()
    }
    return methods | {WITH_BIAS: {**methods["BNP+GN"], "method": "BNP+GN", "bias": True}}


ARMS = {
    **arms(
        TEN, _methods(TEN, "ResNet-110, CIFAR-10"), data="cifar10", network=RESNET, decay_at=DECAY[TEN], warm_up=1
    ),
    **arms(
        HUNDRED, _methods(HUNDRED, "PreResNet-110, CIFAR-100"),
        data="cifar100", network=PRERESNET, decay_at=DECAY[HUNDRED], warm_up=2,
    ),
}  # fmt: skip
TRAINING = {"batch": 128, "momentum": 0.9, "augment": ["crop", "flip"], "standardize": True, "groups": 4}
FAST = {"half": True, "evaluated": 5000}


def residual_claims(panel: str, decay: float) -> list[Claim]:
    """What the source says of all residual networks.

    Args:
        panel: The data set.
        decay: The share of the training at which the rate is divided by 10 for the first time.
    """
    return [
        outperforms(
            f"{panel}: the test accuracy of BNP+GN converges faster than BN's before the first decay",
            "converges faster than BN prior to the first learning rate decay",
            panel, ["BNP+GN"], ["BN"], over=[(0.0, decay)],
        ),
        outperforms(
            f"{panel}: BNP+GN and BN outperform GN, by more than 2 points", "both outperform GN significantly",
            panel, ["BNP+GN", "BN"], ["GN"], by=SIGNIFICANT,
        ),
        comparable(
            f"{panel}: the final accuracies of BNP+GN and BN are comparable, within 2 points",
            "for all three ResNets comparable final accuracy at the end", panel, ["BN", "BNP+GN"],
        ),
    ]  # fmt: skip


def claims_of_bnp_alone(panel: str, decay: float) -> list[Claim]:
    """What the source says of BNP applied to a residual network without GN."""
    return [
        outperforms(
            f"{panel}: BNP alone converges faster than BN before the first decay",
            "BNP converges faster before the learning rate decay", panel, ["BNP"], ["BN"], over=[(0.0, decay)],
        ),
        gains_more(
            f"{panel}: BN gains more from the decay than BNP alone",
            "BNP can not take advantage of the learning rate decay nearly to the same degree as BN",
            panel, ["BN"], ["BNP"], at=decay,
        ),
        gains_more(
            f"{panel}: BNP+GN gains more from the decay than BNP alone",
            "BNP+GN is found to benefit much more significantly from learning rate decay",
            panel, ["BNP+GN"], ["BNP"], at=decay,
        ),
    ]  # fmt: skip


EXPERIMENT = Experiment(
    name="lange2022-fig6",
    title="Residual networks on CIFAR-10 and CIFAR-100",
    says="BNP with GN converges faster than BN until the rate decays, and is comparable after that; GN is slower.",
    arms=ARMS,
    scales={
        "smoke": {
            **TRAINING, "batch": 32, "depth": 8, "width": 4, "steps": 8, "looks": 4, "evaluated": 50, "tested": 50,
            "arms": {arm: {"data": "digits", "size": 16, "image_channels": 3, "warm_up": 0.1} for arm in ARMS},
        },
        "gpu": {**TRAINING, **FAST, "depth": 32, "width": 16, "epochs": 10, "looks": 20, "seeds": 2},
        "paper": {
            **TRAINING, "depth": 110, "width": 16, "evaluated": 5000, "looks": 40, "seeds": 5,
            "arms": {arm: {"epochs": 160 if arm.startswith(f"{TEN}:") else 300} for arm in ARMS},
        },
    },
    measure=measure,
    claims=[
        *residual_claims(TEN, DECAY[TEN][0]),
        *residual_claims(HUNDRED, DECAY[HUNDRED][0]),
        outperforms(
            f"{HUNDRED}: BNP+GN ends below BN", "slightly lower than BN after the decay", HUNDRED, ["BN"], ["BNP+GN"]
        ),
        *(claim for panel, decay in DECAY.items() for claim in claims_of_bnp_alone(panel, decay[0])),
        *(
            outperforms(
                f"{panel}: BNP+GN with a bias in every convolution, so that BNP centers, is faster than BN before "
                "the first decay",
                "the source does not say whether it has one", panel, [WITH_BIAS], ["BN"], over=[(0.0, decay[0])],
                is_ours=True,
            )
            for panel, decay in DECAY.items()
        ),
    ],
    draw=drawing(left=TEN, right=HUNDRED),
    minutes={"smoke": 0.05, "gpu": 5.3, "paper": 3000},
    contrast=[(f"{TEN}: BN", f"{TEN}: GN"), (f"{HUNDRED}: BN", f"{HUNDRED}: BNP")],
    departures=[
        "Convolutions have no bias, as in the networks of He et al., so BNP scales their inputs and does not center "
        "them; the source does not say. One arm has a bias",
        "The source tunes the warm-up of GN and BNP+GN to 1 or 2 epochs; here 1 on CIFAR-10 and 2 on CIFAR-100. BN "
        "warms up for 1 epoch, not for 400 steps. In shorter training the warm-up is as long: in 10 epochs it takes 20 "
        "to 40 % of the time before the first decay, where it takes the source about 1 %",
        "The source's scales of the initial weights are tuned for 110 layers. It does not say how BNP alone is "
        "initialized: as BN here",
        "The training loss is that of 5000 training images in evaluation mode, without augmentation",
        DEGREES,
        "Nor how much more BN and BNP+GN gain from the decay than BNP alone, of which a run that diverged says nothing",
    ],
    silent=["epochs", "looks", "evaluated"],
)  # fmt: skip
