"""Figure X of huang2020: the layers of a ResNet-18, with and without BN, on ImageNet."""

from __future__ import annotations

from dataclasses import replace

from wellcond_papers.experiments.claims import CauseKind
from wellcond_papers.experiments.experiment import Experiment
from wellcond_papers.papers.huang2020.layers_over_training import (
    ARMS,
    CLAIMS,
    DEPARTURES,
    SILENT,
    draw,
    measure,
    needs_a_small_rate,
)
from wellcond_papers.papers.huang2020.networks import IMAGENET, ON_IMAGENET, SMOKE, STAND_IN

NETWORK = {"network": "ImageNet ResNet", "depth": 18}
OTHER_RATE: CauseKind = "depends on a setting that differs here, or that the source does not name"
inputs, gradients, _, loss, magnitudes, inputs_at_loss, gradients_at_loss = CLAIMS
small_rate = replace(needs_a_small_rate, is_ours=True, paper="says so of its networks for CIFAR-10")

EXPERIMENT = Experiment(
    name="huang2020-fig10",
    title="Conditioning of the layers of a ResNet-18 on ImageNet, with and without BN",
    says="Gives the same observations as the MLP: with BN the layers are better conditioned during training.",
    arms=ARMS,
    scales={
        "smoke": SMOKE | NETWORK | {"size": 32, "measured": 32},
        "stand-in": STAND_IN | NETWORK | {"measured": 512, "seeds": 2},
        "paper": IMAGENET | NETWORK | {"measured": 256},
    },
    measure=measure,
    claims=[
        inputs.because(
            "stand-in",
            "the paper's claim does not hold here",
            "The exception is the first convolution after the stem, with 3100 to 7500 with BN against 1300 to 1700 "
            "without, at every look but the start; the tie is of the last layer.",
        ),
        gradients.because(
            "stand-in",
            OTHER_RATE,
            "Rates differ by ten, and the source names none for the network without BN. At a rate of 0.1 for both, κ₅₀ "
            "is smaller with BN in 15 to 17 of 20 layers at the looks after the start, in the median 10 to 11 against "
            "30 to 56; at 0.01 the network without BN has 6 to 7. That BN fits faster is not the reason (claim 7).",
        ),
        small_rate.because(
            "stand-in",
            "our claim does not hold here",
            "A ResNet-18 without BN trains at 0.1, to a lower loss than at 0.01 (2.60 and 2.58 against 2.81 and "
            "2.79). The paper says it of 20-layer networks for CIFAR-10, which do diverge here (figures VIII and IX).",
        ),
        loss,
        magnitudes.because(
            "stand-in",
            OTHER_RATE,
            "With rates of 0.1 and 0.01 it holds for Σx at every look, and for Σ∇h at the start alone: later λ_max of "
            "Σ∇h rises with depth by a factor of 340 to 570 with BN, and of 18 to 32 without. With 0.1 for both it is "
            "270 to 880 without, and BN's lie closer together in 7 of 8 cases.",
        ),
        inputs_at_loss.because(
            "stand-in",
            "our claim does not hold here",
            "At a loss of 4 the first convolution after the stem is the one exception; at 3 there are three more, in "
            "the last stage and after it, by factors of 1.0 to 1.7. Looks are few: κ is interpolated over 195 to 780 "
            "steps.",
        ),
        gradients_at_loss.because(
            "stand-in",
            OTHER_RATE,
            "With rates of 0.1 and 0.01: at a loss of 4 κ₅₀ is smaller with BN in most layers, at 3 in none (10 "
            "against 6). With 0.1 for both it is smaller in 70 of 80 comparisons, 39 of 40 at a loss of 4 and 31 of "
            "40 at 3 (median 10 against 39), and κ₅₀ of Σx in 68 of 80.",
        ),
    ],
    draw=draw,
    minutes={"smoke": 0.05, "stand-in": 1.0, "paper": 600.0},
    contrast=[("BN", "plain")],
    departures=[
        *ON_IMAGENET,
        *DEPARTURES,
        "The paper trains as He et al. do, and gives no other rate for the network without BN: that of its networks "
        "for CIFAR-10 is taken.",
    ],
    silent=[*SILENT, "epochs", "drops", "tests"],
    stand_in="The same network sees CIFAR-100, enlarged to 64×64, for 10 epochs. That shows whether BN conditions its "
    "layers better, which the paper says of MNIST and CIFAR-10 too; it says nothing about condition numbers on "
    "ImageNet, whose layers average over twelve times the positions.",
)
