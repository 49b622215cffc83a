"""Figure 9: the loss landscape of the deep linear network with and without BatchNorm.

What it shows at the source's settings, for which two cores take two minutes: BatchNorm reaches the lower loss. While
the standard network moves, in its first 2500 steps, its loss and its gradient vary far more. Two things do not agree
with the source. At the very start β is greater with BatchNorm. And on a plateau, where the product of the weights has
lost rank and the gradient is nearly zero, there is nothing left to change: the ribbons of either network close. Off the
plateaus BatchNorm sits at β = 2 / lr, the edge of stability: there β tells the learning rate rather than the network.
"""

from __future__ import annotations

from collections.abc import Iterable

from wellcond.results import Row
from wellcond_papers.experiments.experiment import Experiment, Job
from wellcond_papers.papers.santurkar2018.drawing import draw_landscape
from wellcond_papers.papers.santurkar2018.judging import lower_loss, smoother
from wellcond_papers.papers.santurkar2018.probes import walks
from wellcond_papers.papers.santurkar2018.settings import (
    BASE,
    LARGEST,
    NORMALIZED,
    SILENT,
    arms_of,
    at_scale,
    name_of,
)
from wellcond_papers.papers.santurkar2018.training import trained

ARMS = arms_of(["DLN"], (BASE, NORMALIZED))


def measure(job: Job) -> Iterable[Row]:
    """Walk along the gradient on the way."""
    return trained(job, walks(job))


EXPERIMENT = Experiment(
    name="santurkar2018-fig9",
    title="The loss landscape of the deep linear network",
    says="There is a clear improvement in each of these measures of smoothness of the optimization landscape "
    "(variation of the loss, changes of the gradient, effective β-smoothness) in networks with BatchNorm layers.",
    arms=ARMS,
    scales={
        "smoke": at_scale("smoke", ARMS),
        "laptop": at_scale("laptop", ARMS, seeds=2),
        "paper": at_scale("paper", ARMS),
    },
    measure=measure,
    claims=[*smoother([NORMALIZED]), lower_loss([NORMALIZED])],
    draw=draw_landscape,
    minutes={"smoke": 0.05, "laptop": 0.8, "paper": 0.9},
    contrast=[(name_of("DLN", BASE), name_of("DLN", NORMALIZED))],
    departures=[*SILENT[1:], LARGEST],
)
