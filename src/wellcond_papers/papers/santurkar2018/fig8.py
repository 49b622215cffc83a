"""Figure 8: distributions of activations in the deep linear network."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable

from wellcond.results import Row
from wellcond.results.quantities import ACTIVATION_MEAN, ACTIVATION_VARIANCE
from wellcond_papers.experiments.claims import Outcome, claim, judged
from wellcond_papers.experiments.experiment import Experiment, Job
from wellcond_papers.experiments.table import Record, Table
from wellcond_papers.papers.santurkar2018.comparing import compared, pairs
from wellcond_papers.papers.santurkar2018.drawing import draw_distributions, layers_of
from wellcond_papers.papers.santurkar2018.probes import distributions
from wellcond_papers.papers.santurkar2018.settings import (
    BASE,
    NORMALIZED,
    UNSTATED,
    arms_of,
    at_scale,
    choices_of,
    name_of,
)
from wellcond_papers.papers.santurkar2018.training import trained

ARMS = arms_of(["DLN"], (BASE, NORMALIZED))
STEADY = 2.0
"""A variance that its learnable gain changes by less than this factor counts as fixed."""


def measure(job: Job) -> Iterable[Row]:
    """The distributions of one unit of some layers, on the way."""
    return trained(job, distributions(job))


def widest_to_narrowest(record: Record, layer: str) -> float:
    """The largest variance of training over the least."""
    values = record.series(ACTIVATION_VARIANCE, layer).values()
    return max(values) / min(values) if min(values) > 0 else math.inf


@claim("with BatchNorm the mean of an activation stays near 0, within its standard deviation",
       paper="fixed mean, possibly learnable")  # fmt: skip
def is_centered(table: Table) -> Outcome:
    """|mean| is less than the standard deviation at every look, in every layer."""
    farthest = []
    for record in table.arm(name_of("DLN", NORMALIZED)):
        for layer in layers_of(record, ACTIVATION_MEAN):
            means, variances = (record.series(name, layer) for name in (ACTIVATION_MEAN, ACTIVATION_VARIANCE))
            farthest.append(max(abs(means[step]) / math.sqrt(variances[step]) for step in means if variances[step] > 0))
    details = f"at most {min(farthest):.2f} to {max(farthest):.2f} deviations, layer by layer" if farthest else ""
    return judged([deviations < 1 for deviations in farthest], details)


@claim("with BatchNorm the variance of an activation stays within a factor of 2 over training",
       paper="fixed variance, possibly learnable, without a bound", is_ours=True)  # fmt: skip
def is_steady(table: Table) -> Outcome:
    """The largest variance is at most twice the least, in every layer."""
    factors = [
        widest_to_narrowest(record, layer)
        for record in table.arm(name_of("DLN", NORMALIZED))
        for layer in layers_of(record, ACTIVATION_VARIANCE)
    ]
    details = f"factors {min(factors):.2f} to {max(factors):.2f}, layer by layer" if factors else ""
    return judged([factor <= STEADY for factor in factors], details)


@claim("with BatchNorm it is steadier than without", paper="the source does not say it", is_ours=True)
def is_steadier(table: Table) -> Outcome:
    """The variance covers a smaller factor, in every layer."""
    cases = (
        (arm, widest_to_narrowest(record, layer), widest_to_narrowest(plain, layer))
        for arm, record, plain in pairs(table, [NORMALIZED])
        for layer in layers_of(record, ACTIVATION_VARIANCE)
    )
    return compared(cases, operator.lt, "layers and seeds")


EXPERIMENT = Experiment(
    name="santurkar2018-fig8",
    title="Distributions of activations in the deep linear network",
    says="Distributions of activations from different layers of a 25-layer deep linear network over training; a random "
    "activation of each layer. BatchNorm ensures that each has a fixed mean and variance, possibly learnable.",
    arms=ARMS,
    scales={
        "smoke": at_scale("smoke", ARMS),
        "laptop": at_scale("laptop", ARMS, looks=5),
        "paper": at_scale("paper", ARMS, seeds=3, looks=5),
    },
    measure=measure,
    claims=[
        is_centered,
        is_steady.because(
            "paper",
            "depends on a setting that differs here, or that the source does not name",
            "The variance is the square of the learnable gain, which the source allows. It moves by at most 17 % but "
            "in the last layer, fc24, where it grows to 1.7, 2.1 and 2.8.",
        ),
        is_steadier.because(
            "paper",
            "seeds",
            "In the first layer, fc1, the variance hardly moves in either network: by factors of 1.15 to 1.17 with "
            "BatchNorm and of 1.03 to 1.67 without.",
        ),
    ],
    draw=draw_distributions,
    minutes={"smoke": 0.05, "laptop": 0.2, "paper": 1.5},
    contrast=[(name_of("DLN", BASE), name_of("DLN", NORMALIZED))],
    departures=[*choices_of("DLN"), "Every seed draws another unit of each layer."],
    silent=UNSTATED,
)
