"""Figure 12: training and the loss landscape of the deep linear network under ℓ_p normalizations."""

from __future__ import annotations

from functools import partial

from wellcond_papers.experiments.experiment import Experiment
from wellcond_papers.papers.santurkar2018.comparing import IMPROVED
from wellcond_papers.papers.santurkar2018.drawing import draw_landscape
from wellcond_papers.papers.santurkar2018.fig9 import measure
from wellcond_papers.papers.santurkar2018.judging import lower_loss, smoother, smoother_everywhere
from wellcond_papers.papers.santurkar2018.settings import (
    BASE,
    LP,
    LP_NORMS,
    NORMALIZED,
    RATIOS,
    UNSTATED,
    WHILE_BOTH_TRAIN,
    arms_of,
    at_scale,
    choices_of,
    name_of,
)

ARMS = arms_of(["DLN"], LP)

SMOOTHER = [
    claim.because(
        "paper",
        "depends on a setting that differs here, or that the source does not name",
        "BatchNorm and ℓ∞ are smoother. ℓ1 has made 99 % of its decrease before step 500, with two looks, too few to "
        "tell: at the start every norm is rougher. One seed.",
    )
    for claim in smoother(LP[1:], "improved smoothness of the loss landscape over standard training", by=IMPROVED)
]

EXPERIMENT = Experiment(
    name="santurkar2018-fig12",
    title="Training and the loss landscape of the deep linear network under ℓp normalizations",
    says="Networks with any normalization strategy have improved performance and smoothness of the loss landscape over "
    "standard training.",
    arms=ARMS,
    scales={
        "smoke": at_scale("smoke", ARMS),
        "laptop": at_scale("laptop", ARMS),
        "paper": at_scale("paper", ARMS, seeds=3),
    },
    measure=measure,
    claims=[
        *SMOOTHER,
        lower_loss(LP[1:], "improved performance over standard training").because(
            "paper",
            "seeds",
            "On this problem, of one seed, ℓ1 and ℓ∞ end on the plateau of the standard network, 10.02 against "
            "10.03. On the second problem of Figure 13 they end at 11.6 against 20.5.",
        ),
        smoother_everywhere(LP[1:]).because(
            "paper",
            "depends on a setting that differs here, or that the source does not name",
            "It depends on which looks count. The standard network stops after step 2000 on a plateau: its gradient "
            "is near zero, and so is whatever changes along it (1e-8 at the end). At the first step β is greater with "
            "every norm, 20000 to 65300 against 593.",
        ),
    ],
    draw=partial(draw_landscape, names=("(a)", "(b)", "(c)", "(d)")),
    minutes={"smoke": 0.05, "laptop": 2.8, "paper": 9.0},
    contrast=[(name_of("DLN", BASE), name_of("DLN", NORMALIZED))],
    departures=[*choices_of("DLN"), LP_NORMS, WHILE_BOTH_TRAIN, RATIOS],
    silent=UNSTATED,
)
