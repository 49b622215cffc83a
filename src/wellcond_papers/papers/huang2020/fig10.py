"""Figure X of huang2020: the layers of a ResNet-18, with and without BN, on ImageNet."""

from __future__ import annotations

from dataclasses import replace

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
from wellcond_papers.papers.huang2020.networks import IMAGENET, ONE_SCALE, SMOKE, STAND_IN

NETWORK = {"network": "ImageNet ResNet", "depth": 18}
SMALL_RATE = replace(needs_a_small_rate, is_ours=True, paper="says so of its networks for CIFAR-10")

EXPERIMENT = Experiment(
    name="huang2020-fig10",
    title="Conditioning of the layers of a ResNet-18 on ImageNet, with and without BN",
    says="The network with BN is better conditioned in its layers during training, as in the MLP.",
    arms=ARMS,
    scales={
        "smoke": SMOKE | NETWORK | {"size": 32, "measured": 32},
        "stand-in": STAND_IN | NETWORK | {"measured": 512, "seeds": 2},
        "paper": IMAGENET | NETWORK | {"measured": 256},
    },
    measure=measure,
    claims=[SMALL_RATE if claim is needs_a_small_rate else claim for claim in CLAIMS],
    draw=draw,
    minutes={"smoke": 0.05, "stand-in": 1.0, "paper": 600.0},
    contrast=[("BN", "plain")],
    departures=[
        *DEPARTURES,
        ONE_SCALE,
        "The paper trains as He et al. do, and gives no other rate for the network without BN: that of its networks "
        "for CIFAR-10 is taken.",
    ],
    silent=[*SILENT, "epochs", "drops", "tests"],
    stand_in="The same network sees CIFAR-100, enlarged to 64×64, for 10 epochs. That shows whether BN conditions its "
    "layers better, which the paper says of MNIST and CIFAR-10 too; it says nothing about condition numbers on "
    "ImageNet, whose layers average over twelve times the positions.",
)
