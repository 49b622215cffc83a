"""Figure 6: internal covariate shift with and without BatchNorm."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from statistics import fmean

from wellcond.results import Row
from wellcond.results.quantities import SHIFT_COSINE, SHIFT_DIFFERENCE
from wellcond_papers.experiments.claims import Outcome, claim
from wellcond_papers.experiments.experiment import Experiment, Job
from wellcond_papers.experiments.table import Table
from wellcond_papers.papers.santurkar2018.drawing import draw_layers, layers_of
from wellcond_papers.papers.santurkar2018.judging import accuracies, compared, lower_loss, pairs
from wellcond_papers.papers.santurkar2018.probes import shifts
from wellcond_papers.papers.santurkar2018.settings import BASE, NORMALIZED, SILENT, arms_of, at_scale, name_of
from wellcond_papers.papers.santurkar2018.training import trained

ARMS = arms_of(("DLN", "VGG"), (BASE, NORMALIZED))
SIMILAR_COSINE, SIMILAR_DIFFERENCE = 0.05, 0.8
"""A shift is similar if its cosine is at most so much better, and its difference at least this share."""


def measure(job: Job) -> Iterable[Row]:
    """How the gradients of some layers shift, on the way."""
    return trained(job, shifts(job))


def over_layers(table: Table, quantity: str) -> Iterator[tuple[str, float, float]]:
    """Each layer's mean over training, with BatchNorm and without."""
    for arm, record, plain in pairs(table, [NORMALIZED]):
        for layer in layers_of(record, quantity):
            ours, theirs = record.series(quantity, layer), plain.series(quantity, layer)
            if theirs:
                yield arm, fmean(ours.values()), fmean(theirs.values())


@claim("the step of the layers before it turns a layer's gradient as much as without BatchNorm, or more",
       paper="cosine similar or lower")  # fmt: skip
def turns(table: Table) -> Outcome:
    """The cosine is not better than without BatchNorm."""
    return compared(
        over_layers(table, SHIFT_COSINE), lambda ours, plain: ours <= plain + SIMILAR_COSINE, "layers and seeds"
    )


@claim("the step of the layers before it changes a layer's gradient as much as without BatchNorm, or more",
       paper="ℓ2-difference similar or larger")  # fmt: skip
def changes(table: Table) -> Outcome:
    """The difference is not smaller than without BatchNorm."""
    return compared(
        over_layers(table, SHIFT_DIFFERENCE), lambda ours, plain: ours >= SIMILAR_DIFFERENCE * plain, "layers and seeds"
    )


EXPERIMENT = Experiment(
    name="santurkar2018-fig6",
    title="Internal covariate shift with and without BatchNorm",
    says="Models with BatchNorm have similar, or even worse, internal covariate shift, despite performing better in "
    "terms of accuracy and loss.",
    arms=ARMS,
    scales={
        "smoke": at_scale("smoke", ARMS),
        "laptop": at_scale("laptop", ARMS, seeds=2, looks=20),
        "gpu": at_scale("gpu", ARMS, seeds=2, looks=20, steps=1200),
        "paper": at_scale("paper", ARMS, seeds=2),
    },
    measure=measure,
    claims=[turns, changes, lower_loss([NORMALIZED], "better performance"), accuracies()],
    draw=lambda table: draw_layers(
        table, {SHIFT_DIFFERENCE: "‖G − G'‖", SHIFT_COSINE: "cos(G, G')"}, log=(SHIFT_DIFFERENCE,)
    ),
    minutes={"smoke": 0.05, "laptop": 4.0, "gpu": 0.09, "paper": 8.0},
    contrast=[(name_of(network, BASE), name_of(network, NORMALIZED)) for network in ("DLN", "VGG")],
    departures=SILENT,
)
