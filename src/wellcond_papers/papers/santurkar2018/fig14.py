"""Figure 14: distributions of activations in the VGG under different normalizations."""

from __future__ import annotations

import math
import operator
from itertools import pairwise
from statistics import fmean

from wellcond.results.quantities import ACTIVATION_VARIANCE
from wellcond_papers.experiments.claims import Outcome, claim
from wellcond_papers.experiments.experiment import Experiment
from wellcond_papers.experiments.table import Record, Table
from wellcond_papers.papers.santurkar2018.drawing import draw_distributions, layers_of
from wellcond_papers.papers.santurkar2018.fig8 import measure
from wellcond_papers.papers.santurkar2018.judging import compared, lower_loss, pairs
from wellcond_papers.papers.santurkar2018.probes import QUANTILES
from wellcond_papers.papers.santurkar2018.settings import (
    BASE,
    LP,
    ONE_BATCH,
    SAME_AS_BATCHNORM,
    SILENT,
    arms_of,
    at_scale,
    name_of,
)

ARMS = arms_of(["VGG"], LP)


def drift(record: Record, layer: str) -> float:
    """How far the quantiles of a unit move from one look to the next, in its standard deviations; the mean."""
    deviations = {step: math.sqrt(value) for step, value in record.series(ACTIVATION_VARIANCE, layer).items()}
    moves = []
    for name in QUANTILES:
        series = record.series(name, layer)
        for before, after in pairwise(series):
            width = (deviations[before] + deviations[after]) / 2
            moves += [abs(series[after] - series[before]) / width] if width else []
    return fmean(moves) if moves else math.nan


@claim("the distributions of ℓ1 and ℓ∞ networks drift more over training than those of the standard network",
       paper="larger distributional covariate shift than normal networks")  # fmt: skip
def drifts_more(table: Table) -> Outcome:
    """The drift from look to look is larger, in every layer."""
    cases = (
        (arm, drift(record, layer), drift(plain, layer))
        for arm, record, plain in pairs(table, LP[2:])
        for layer in layers_of(record, ACTIVATION_VARIANCE)
    )
    return compared(cases, operator.gt, "layers and seeds")


EXPERIMENT = Experiment(
    name="santurkar2018-fig14",
    title="Distributions of activations in the VGG under different normalizations",
    says="The ℓp-normalization techniques lead to larger distributional covariate shift compared to normal networks, "
    "yet yield improved optimization performance.",
    arms=ARMS,
    scales={
        "smoke": at_scale("smoke", ARMS),
        "laptop": at_scale("laptop", ARMS, looks=5),
        "gpu": at_scale("gpu", ARMS, looks=5, steps=1200),
        "paper": at_scale("paper", ARMS, looks=5),
    },
    measure=measure,
    claims=[drifts_more, lower_loss(LP[2:], "improved optimization performance")],
    draw=draw_distributions,
    minutes={"smoke": 0.05, "laptop": 2.0, "gpu": 0.1, "paper": 5.0},
    contrast=[(name_of("VGG", BASE), name_of("VGG", "ℓ1"))],
    departures=[*SILENT, SAME_AS_BATCHNORM, ONE_BATCH],
)
