"""Figure 12: training and the loss landscape of the deep linear network under ℓ_p normalizations."""

from __future__ import annotations

from wellcond_papers.experiments.experiment import Experiment
from wellcond_papers.papers.santurkar2018.drawing import draw_landscape
from wellcond_papers.papers.santurkar2018.fig9 import measure
from wellcond_papers.papers.santurkar2018.judging import lower_loss, smoother
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

ARMS = arms_of(["DLN"], LP)

EXPERIMENT = Experiment(
    name="santurkar2018-fig12",
    title="Training and the loss landscape of the deep linear network under ℓp normalizations",
    says="Networks with any normalization strategy have improved performance and smoothness of the loss landscape over "
    "standard training.",
    arms=ARMS,
    scales={
        "smoke": at_scale("smoke", ARMS),
        "laptop": at_scale("laptop", ARMS),
        "paper": at_scale("paper", ARMS),
    },
    measure=measure,
    claims=[*smoother(LP[1:]), lower_loss(LP[1:], "improved performance")],
    draw=draw_landscape,
    minutes={"smoke": 0.05, "laptop": 2.8, "paper": 4.0},
    contrast=[(name_of("DLN", BASE), name_of("DLN", NORMALIZED))],
    departures=[*SILENT[1:], SAME_AS_BATCHNORM, LARGEST],
)
