"""Figure 6 of lange2022: ResNet-110 on CIFAR-10 and PreResNet-110 on CIFAR-100, under BN, GN, BNP and BNP with GN."""

from __future__ import annotations

from wellcond_papers.experiments.claims import Claim
from wellcond_papers.experiments.experiment import Experiment
from wellcond_papers.papers.lange2022.comparison import (
    SIGNIFICANT,
    arms,
    comparable,
    gains_more,
    outperforms,
)
from wellcond_papers.papers.lange2022.curves import drawing
from wellcond_papers.papers.lange2022.networks import PRERESNET, RESNET
from wellcond_papers.papers.lange2022.training import measure

TEN, HUNDRED = "CIFAR-10", "CIFAR-100"
DECAY = {TEN: [80 / 160, 120 / 160], HUNDRED: [150 / 300, 220 / 300]}
"""The shares of the training after which the rate is a tenth."""
ARMS = {
    **arms(
        TEN,
        {
            "BN": {"lr": 0.1, "weight_decay": 1e-4},
            "GN": {"lr": 0.1, "weight_decay": 1e-4},
            "BNP": {"lr": 0.1, "weight_decay": 1e-4},
            "BNP+GN": {"lr": 0.1, "weight_decay": 1.5e-4, "init_scale": 0.1},
        },
        data="cifar10", network=RESNET, decay_at=DECAY[TEN], warm_up=1,
    ),
    **arms(
        HUNDRED,
        {
            "BN": {"lr": 0.1, "weight_decay": 1e-4, "warm_up": 1},
            "GN": {"lr": 0.1, "weight_decay": 1e-4},
            "BNP": {"lr": 0.01, "weight_decay": 1e-4},
            "BNP+GN": {"lr": 0.1, "weight_decay": 2e-4, "init_scale": 0.4},
        },
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
            f"{panel}: BNP+GN converges faster than BN before the rate decays", "faster than BN prior to the decay",
            panel, ["BNP+GN"], ["BN"], begin=0.0, end=decay,
        ),
        outperforms(
            f"{panel}: BNP+GN and BN outperform GN", "significantly", panel, ["BNP+GN", "BN"], ["GN"], by=SIGNIFICANT
        ),
    ]  # fmt: skip


EXPERIMENT = Experiment(
    name="lange2022-fig6",
    title="Residual networks on CIFAR-10 and CIFAR-100",
    says="BNP with GN converges faster than BN until the rate decays, and is comparable after that; GN is slower.",
    arms=ARMS,
    scales={
        "smoke": {
            **TRAINING, "batch": 32, "depth": 8, "width": 4, "steps": 16, "looks": 8, "evaluated": 50, "tested": 100,
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
        comparable(f"{TEN}: BNP+GN is comparable to BN in the end", "comparable to BN", TEN, ["BN", "BNP+GN"]),
        *residual_claims(HUNDRED, DECAY[HUNDRED][0]),
        outperforms(
            f"{HUNDRED}: BN is better than BNP+GN in the end", "BNP+GN is slightly lower", HUNDRED, ["BN"], ["BNP+GN"]
        ),
        *(
            outperforms(
                f"{panel}: BNP alone converges faster than BN before the rate decays", "BNP converges faster",
                panel, ["BNP"], ["BN"], begin=0.0, end=decay[0],
            )
            for panel, decay in DECAY.items()
        ),
        *(
            gains_more(
                f"{panel}: BN and BNP+GN gain more from the decay than BNP alone", "not nearly to the same degree",
                panel, ["BN", "BNP+GN"], ["BNP"], at=decay[0],
            )
            for panel, decay in DECAY.items()
        ),
    ],
    draw=drawing(left=TEN, right=HUNDRED),
    minutes={"smoke": 0.05, "gpu": 5.3, "paper": 3000},
    contrast=[(f"{TEN}: BN", f"{TEN}: GN"), (f"{HUNDRED}: BN", f"{HUNDRED}: BNP")],
    departures=[
        "Convolutions have no bias, as in the networks of He et al., so BNP scales their inputs and does not center "
        "them; the source does not say.",
        "The source tunes the warm-up of GN and BNP+GN to 1 or 2 epochs; here 1 on CIFAR-10 and 2 on CIFAR-100. It "
        "does not say how BNP alone is initialized: as BN here.",
        "The training loss is that of 5000 training images in evaluation mode, without augmentation.",
    ],
)  # fmt: skip
