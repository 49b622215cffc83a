"""Figure 10: how far the gradient predicts itself, with and without BatchNorm."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from statistics import median
from typing import TYPE_CHECKING

from wellcond.report.figures.style import LogScale, look_of
from wellcond.results import Row
from wellcond.results.quantities import GRADIENT_NORM
from wellcond_papers.experiments.claims import Outcome, claim
from wellcond_papers.experiments.experiment import Experiment, Job
from wellcond_papers.experiments.pictures import panels
from wellcond_papers.experiments.table import Record, Table
from wellcond_papers.papers.santurkar2018.comparing import CLEARLY, both_train, improved, pairs, while_both_train
from wellcond_papers.papers.santurkar2018.drawing import legends, of_networks
from wellcond_papers.papers.santurkar2018.networks import spread
from wellcond_papers.papers.santurkar2018.probes import GRADIENT_CHANGE, predictiveness
from wellcond_papers.papers.santurkar2018.settings import (
    BASE,
    NORMALIZED,
    NOT_THE_FIRST,
    RATIOS,
    SAME_SEED,
    UNSTATED,
    WHILE_BOTH_TRAIN,
    arms_of,
    at_scale,
    choices_of,
    name_of,
)
from wellcond_papers.papers.santurkar2018.training import trained

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ARMS = arms_of(("DLN", "VGG"), (BASE, NORMALIZED))
SHOWN = 3
"""Looks of each network in the picture."""
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


def smaller(table: Table, errors: Errors, ahead: float) -> Outcome:
    """The error is clearly smaller with BatchNorm, in the median over looks; at a look, over its distances."""

    def ratio(record: Record, plain: Record, step: int) -> float:
        ours, theirs = errors(record, step), errors(plain, step)
        return median(ours[place] / theirs[place] for place in ours if theirs.get(place))

    return improved(
        [
            (arm, [ratio(record, plain, step) for step in both_train(record, plain, ahead) if errors(plain, step)])
            for arm, record, plain in pairs(table, [NORMALIZED])
        ],
        by=CLEARLY,
    )


@claim("the ℓ2 error of the gradient is smaller with BatchNorm by a factor of 1.5 or more, in the median over "
       "distances and over the looks while both networks train",
       paper="gradients are significantly more predictive and change slowly in a given local neighborhood")  # fmt: skip
@while_both_train
def is_predictive(table: Table, ahead: float) -> Outcome:
    """‖∇L(θ) − ∇L(θ_a)‖ is smaller."""
    return smaller(table, absolute, ahead)


@claim("so is the error relative to the norm of the gradient", paper="the source does not say it", is_ours=True)
@while_both_train
def is_relatively_predictive(table: Table, ahead: float) -> Outcome:
    """‖∇L(θ) − ∇L(θ_a)‖ / ‖∇L(θ)‖ is smaller."""
    return smaller(table, relative, ahead)


def draw(table: Table) -> Figure:
    """The error against the distance, of the first seed: one line of panels per network, at some looks that count."""
    parts = of_networks(table)
    shown = [(network, step) for network, part in parts.items() for step in shown_looks(network, part)]
    titles = {look: f"{look[0]} at step {look[1]}" for look in shown}
    figure, axes = panels(list(titles.values()), SHOWN)
    scales = {
        network: LogScale.of(
            error for record in part for step in shown_looks(network, part) for error in absolute(record, step).values()
        )
        for network, part in parts.items()
    }
    for (network, step), title in titles.items():
        for place, arm in enumerate(parts[network].arms):
            errors = absolute(parts[network].arm(arm)[0], step)
            lengths = [float(length) for length in errors]
            axes[title].plot(lengths, list(errors.values()), label=arm, marker="o", markersize=3, **look_of(place))
        scales[network].set_axis(axes[title])
        axes[title].set_xlabel("distance / (learning rate · ‖∇L‖)")
        axes[title].set_ylabel("ℓ2 error of the gradient")
    legends(figure, axes)
    return figure


def shown_looks(network: str, part: Table) -> list[int]:
    """Looks of the first seed while both networks train, evenly over that time; all looks if one of them is missing."""
    both = [part.arm(name_of(network, norm)) for norm in (BASE, NORMALIZED)]
    looks = both_train(both[0][0], both[1][0]) if all(both) else part.steps(GRADIENT_CHANGE)
    return spread(looks, SHOWN)


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
        "paper": at_scale("paper", ARMS, seeds=2, looks=10, lengths=12),
    },
    measure=measure,
    claims=[
        is_predictive.because(
            "paper",
            "seeds",
            "In the VGG it holds: by seed the error is 1.2 and 2.0 times smaller, 1.6 times on average, and 7.1 and "
            "2.2 times over the whole training. The DLN, of one seed, does not tell: it has three looks while both "
            "train, at two of which the error is smaller, and its standard network then stops on a plateau, where the "
            "gradient does not change.",
        ),
        is_relatively_predictive.because(
            "paper",
            "seeds",
            "In the VGG it is 1.45 and 1.52 times smaller by seed, at the bound of 1.5; the DLN, of one seed, has "
            "three looks, at all of which it is smaller.",
        ),
    ],
    draw=draw,
    minutes={"smoke": 0.05, "laptop": 1.0, "gpu": 0.02, "paper": 4.0},
    contrast=[(name_of(network, BASE), name_of(network, NORMALIZED)) for network in ("DLN", "VGG")],
    departures=[
        *choices_of("VGG", "DLN"),
        WHILE_BOTH_TRAIN,
        NOT_THE_FIRST,
        RATIOS,
        SAME_SEED,
        "That it explains why networks with BatchNorm are robust to a broad range of learning rates is not tested.",
    ],
    silent=UNSTATED,
)
