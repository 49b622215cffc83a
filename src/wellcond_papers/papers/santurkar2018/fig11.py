"""Figure 11: training and the loss landscape of the VGG under ℓ_p normalizations."""

from __future__ import annotations

from wellcond_papers.experiments.experiment import Experiment
from wellcond_papers.papers.santurkar2018.drawing import draw_landscape
from wellcond_papers.papers.santurkar2018.fig9 import measure
from wellcond_papers.papers.santurkar2018.judging import accuracies, lower_loss, smoother
from wellcond_papers.papers.santurkar2018.settings import (
    BASE,
    LARGEST,
    LP,
    NORMALIZED,
    SAME_AS_BATCHNORM,
    SILENT,
    arms_of,
    at_scale,
    name_of,
)

ARMS = arms_of(["VGG"], LP)

EXPERIMENT = Experiment(
    name="santurkar2018-fig11",
    title="Training and the loss landscape of the VGG under ℓp normalizations",
    says="Networks with any normalization strategy have improved performance and smoothness of the loss landscape over "
    "standard training.",
    arms=ARMS,
    scales={
        "smoke": at_scale("smoke", ARMS),
        "laptop": at_scale("laptop", ARMS, seeds=2, steps=400, looks=16),
        "gpu": at_scale("gpu", ARMS, seeds=2, steps=1200, looks=20),
        "paper": at_scale("paper", ARMS, seeds=2),
    },
    measure=measure,
    claims=[*smoother(LP[1:]), lower_loss(LP[1:], "improved performance"), accuracies()],
    draw=draw_landscape,
    minutes={"smoke": 0.05, "laptop": 4.0, "gpu": 0.3, "paper": 10.0},
    contrast=[(name_of("VGG", BASE), name_of("VGG", NORMALIZED))],
    departures=[*SILENT, SAME_AS_BATCHNORM, LARGEST],
)
