"""Figure 10: how far the gradient predicts itself, with and without BatchNorm."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from wellcond.report.figures.style import LogScale, look_of
from wellcond.results import Row
from wellcond.results.quantities import GRADIENT_NORM
from wellcond_papers.experiments.claims import Claim
from wellcond_papers.experiments.experiment import Experiment, Job
from wellcond_papers.experiments.pictures import panels
from wellcond_papers.experiments.table import Record, Table
from wellcond_papers.papers.santurkar2018.drawing import legends, of_networks
from wellcond_papers.papers.santurkar2018.judging import compared, pairs
from wellcond_papers.papers.santurkar2018.probes import GRADIENT_CHANGE, predictiveness
from wellcond_papers.papers.santurkar2018.settings import BASE, NORMALIZED, SILENT, arms_of, at_scale, name_of
from wellcond_papers.papers.santurkar2018.training import trained

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ARMS = arms_of(("DLN", "VGG"), (BASE, NORMALIZED))
Errors = Callable[[Record, int], dict[str, float]]
"""The error of the gradient at a look, by distance."""


def measure(job: Job) -> Iterable[Row]:
    """How the gradient changes along itself, on the way."""
    return trained(job, predictiveness(job))


def absolute(record: Record, step: int) -> dict[str, float]:
    """‖∇L(θ) − ∇L(θ_a)‖."""
    return record.by_layer(GRADIENT_CHANGE, step)


def relative(record: Record, step: int) -> dict[str, float]:
    """The same in units of ‖∇L(θ)‖."""
    norm = record.series(GRADIENT_NORM)[step]
    return {place: change / norm for place, change in absolute(record, step).items() if norm}


def more_predictive(errors: Errors, says: str) -> Claim:
    """The error of the gradient is smaller with BatchNorm at every distance and look."""

    def cases(table: Table) -> Iterator[tuple[str, float, float]]:
        for arm, record, plain in pairs(table, [NORMALIZED]):
            for step in set(record.series(GRADIENT_NORM)) & set(plain.series(GRADIENT_NORM)):
                ours, theirs = errors(record, step), errors(plain, step)
                yield from ((arm, ours[place], theirs[place]) for place in ours if place in theirs)

    return Claim(
        says, "significantly smaller", lambda table: compared(cases(table), operator.lt, "looks and distances")
    )


def draw(table: Table) -> Figure:
    """The error against the distance: one line of panels per network, one panel per look, of the first seed."""
    parts = of_networks(table)
    looks = [(network, step) for network, part in parts.items() for step in part.steps(GRADIENT_CHANGE)]
    titles = {look: f"{look[0]} at step {look[1]}" for look in looks}
    columns = max((len(part.steps(GRADIENT_CHANGE)) for part in parts.values()), default=1)
    figure, axes = panels(list(titles.values()), columns)
    first = {network: part.steps(GRADIENT_CHANGE)[:1] for network, part in parts.items()}  # on a scale of its own
    scales = {
        (network, is_first): LogScale.of(
            row.value
            for record in part
            for row in record.rows
            if row.quantity == GRADIENT_CHANGE and (row.step in first[network]) == is_first
        )
        for network, part in parts.items()
        for is_first in (True, False)
    }
    for (network, step), title in titles.items():
        for place, arm in enumerate(parts[network].arms):
            errors = absolute(parts[network].arm(arm)[0], step)
            lengths = [float(length) for length in errors]
            axes[title].plot(lengths, list(errors.values()), label=arm, marker="o", markersize=3, **look_of(place))
        scales[network, step in first[network]].set_axis(axes[title])
        axes[title].set_xlabel("distance / (learning rate · ‖∇L‖)")
        if step in first[network]:
            axes[title].set_ylabel("ℓ2 error of the gradient")
    legends(figure, axes)
    return figure


EXPERIMENT = Experiment(
    name="santurkar2018-fig10",
    title="Predictiveness of the gradient against the distance",
    says="Gradients are significantly more predictive in networks with BatchNorm and change slowly in a given local "
    "neighborhood.",
    arms=ARMS,
    scales={
        "smoke": at_scale("smoke", ARMS),
        "laptop": at_scale("laptop", ARMS, looks=4, lengths=12, steps={"DLN": 2000}),
        "gpu": at_scale("gpu", ARMS, looks=4, lengths=12, steps=1200),
        "paper": at_scale("paper", ARMS, looks=10, lengths=12),
    },
    measure=measure,
    claims=[
        more_predictive(absolute, "the ℓ2 error of the gradient is smaller with BatchNorm, at every distance and look"),
        more_predictive(relative, "so is its error relative to its norm: it changes slowly"),
    ],
    draw=draw,
    minutes={"smoke": 0.05, "laptop": 1.0, "gpu": 0.02, "paper": 4.0},
    contrast=[(name_of(network, BASE), name_of(network, NORMALIZED)) for network in ("DLN", "VGG")],
    departures=SILENT,
)
