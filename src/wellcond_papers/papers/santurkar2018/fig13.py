"""Figure 13: training performance of ℓ_p normalizations in both networks."""

from __future__ import annotations

from collections.abc import Iterable

from wellcond.results import Row
from wellcond_papers.experiments.experiment import Experiment, Job
from wellcond_papers.papers.santurkar2018.drawing import draw_training
from wellcond_papers.papers.santurkar2018.judging import accuracies, as_low_as, lower_loss
from wellcond_papers.papers.santurkar2018.settings import (
    BASE,
    LP,
    NORMALIZED,
    SAME_AS_BATCHNORM,
    SILENT,
    arms_of,
    at_scale,
    name_of,
)
from wellcond_papers.papers.santurkar2018.training import trained

ARMS = arms_of(("DLN", "VGG"), LP)


def measure(job: Job) -> Iterable[Row]:
    """Train, and nothing more."""
    return trained(job)


EXPERIMENT = Experiment(
    name="santurkar2018-fig13",
    title="Training performance of ℓp normalizations",
    says="For both networks, all ℓp normalization strategies perform comparably or even better than BatchNorm. The "
    "gain of BatchNorm is not about distributional stability (controlling mean and variance).",
    arms=ARMS,
    scales={
        "smoke": at_scale("smoke", ARMS),
        "laptop": at_scale("laptop", ARMS, seeds=2, steps={"DLN": 2000, "VGG": 400}),
        "gpu": at_scale("gpu", ARMS, seeds=2, steps=2000),
        "paper": at_scale("paper", ARMS, seeds=2),
    },
    measure=measure,
    claims=[as_low_as(LP[2:]), lower_loss(LP[1:], "any normalization is better than none"), accuracies()],
    draw=draw_training,
    minutes={"smoke": 0.05, "laptop": 4.5, "gpu": 0.2, "paper": 20.0},
    contrast=[(name_of(network, BASE), name_of(network, NORMALIZED)) for network in ("DLN", "VGG")],
    departures=[*SILENT, SAME_AS_BATCHNORM],
)
