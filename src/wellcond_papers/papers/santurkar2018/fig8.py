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
from wellcond_papers.papers.santurkar2018.probes import GAIN, SHIFT, distributions
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
FIXED = 0.01
"""A mean and a variance that are off by less than this are those that the norm sets."""
STEADY = 2.0
"""A variance that its learnable gain changes by less than this factor is steady."""


def measure(job: Job) -> Iterable[Row]:
    """The distributions of one unit of some layers, on the way."""
    return trained(job, distributions(job))


def widest_to_narrowest(record: Record, layer: str) -> float:
    """The largest variance of training over the least."""
    values = record.series(ACTIVATION_VARIANCE, layer).values()
    return max(values) / min(values) if min(values) > 0 else math.inf


@claim("BatchNorm gives an activation a fixed mean and variance, possibly learnable: at every look its mean is the "
       "learned shift and its variance the square of the learned gain, to within a hundredth",
       paper="BatchNorm ensures a fixed mean and variance, possibly learnable (A.2.1)")  # fmt: skip
def is_fixed(table: Table) -> Outcome:
    """In every layer; the mean to within a hundredth of the deviation."""
    means, variances = [], []
    for record in table.arm(name_of("DLN", NORMALIZED)):
        for layer in layers_of(record, GAIN):
            quantities = (GAIN, SHIFT, ACTIVATION_MEAN, ACTIVATION_VARIANCE)
            gains, shifts, seen, squares = (record.series(name, layer) for name in quantities)
            means += [abs(seen[step] - shifts[step]) / abs(gains[step]) for step in gains]
            variances += [abs(squares[step] / gains[step] ** 2 - 1) for step in gains]
    details = f"off by at most {max(means):.1g} deviations and by {max(variances):.1g} of the variance" if means else ""
    return judged([error < FIXED for error in (*means, *variances)], details)


@claim("with BatchNorm the variance of an activation stays within a factor of 2 over training",
       paper="the source lets it be learned", is_ours=True)  # fmt: skip
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
    "activation of each layer. The figure claims nothing; of what it shows, A.2.1 says that BatchNorm ensures a fixed "
    "mean and variance, possibly learnable.",
    arms=ARMS,
    scales={
        "smoke": at_scale("smoke", ARMS),
        "laptop": at_scale("laptop", ARMS, looks=5),
        "paper": at_scale("paper", ARMS, seeds=3, looks=5),
    },
    measure=measure,
    claims=[
        is_fixed,
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
    version=2,
)
