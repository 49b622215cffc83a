"""Figure 13: training performance of ℓ_p normalizations in both networks."""

from __future__ import annotations

from collections.abc import Iterable

from wellcond.results import Row
from wellcond.results.quantities import TEST_ACCURACY
from wellcond_papers.experiments.claims import END, Claim, Outcome, is_greater, judged
from wellcond_papers.experiments.experiment import Experiment, Job
from wellcond_papers.experiments.table import Table
from wellcond_papers.papers.percentages import percent
from wellcond_papers.papers.santurkar2018.drawing import draw_training
from wellcond_papers.papers.santurkar2018.judging import POINT, as_low_as, lower_loss
from wellcond_papers.papers.santurkar2018.settings import (
    BASE,
    LP,
    LP_NORMS,
    NORMALIZED,
    SAME_SEED,
    UNSTATED,
    arms_of,
    at_scale,
    choices_of,
    name_of,
)
from wellcond_papers.papers.santurkar2018.training import trained

PLAIN = arms_of(("DLN", "VGG"), LP)
AUGMENTED = {
    f"{arm}, augmented": {**settings, "augment": ["crop", "flip"]}
    for arm, settings in arms_of(["VGG"], (BASE, NORMALIZED)).items()
}
ARMS = {**PLAIN, **AUGMENTED}


def measure(job: Job) -> Iterable[Row]:
    """Train, and nothing more."""
    return trained(job)


def accuracies(ending: str, batchnorm: float, standard: float) -> Claim:
    """The test accuracies of the source."""

    def check(table: Table) -> Outcome:
        arms = (f"{name_of('VGG', norm)}{ending}" for norm in (NORMALIZED, BASE))
        shares = [table.arm(arm).lasts(TEST_ACCURACY) for arm in arms]
        if not all(shares):
            return judged([], "")
        near = [
            is_greater(ours, [theirs], at_least=POINT) is None
            for ours, theirs in zip(shares, (batchnorm, standard), strict=True)
        ]
        details = " against ".join(percent([100 * seed for seed in seeds]) for seeds in shares)
        return judged([is_greater(*shares, at_least=POINT), *near], details)

    return Claim(
        f"the VGG{' with augmented images' * bool(ending)} has a higher test accuracy with BatchNorm than without, and "
        "each is the source's to within a point",
        f"{batchnorm:.0%} with BatchNorm and {standard:.0%} without".replace("%", " %"),
        check,
        needs=END,
    )


EXPERIMENT = Experiment(
    name="santurkar2018-fig13",
    title="Training performance of ℓp normalizations",
    says="For both networks, all ℓp normalization strategies perform comparably or even better than BatchNorm. The "
    "gain of BatchNorm is not about distributional stability (controlling mean and variance).",
    arms=ARMS,
    scales={
        "smoke": at_scale("smoke", ARMS),
        "laptop": at_scale("laptop", PLAIN, seeds=2, steps={"DLN": 2000, "VGG": 400}),
        "gpu": at_scale("gpu", PLAIN, seeds=2, steps=2000),
        "paper": at_scale("paper", ARMS, seeds=2),
    },
    measure=measure,
    claims=[
        as_low_as(LP[2:]).because(
            "paper",
            "seeds",
            "On one of the two problems of the DLN both ℓ1 and ℓ∞ stay on the plateau of the standard network at 10.0, "
            "which BatchNorm leaves after step 6000 for 5.27. On the other they reach its 11.6.",
        ),
        lower_loss([NORMALIZED], "both architectures show a clear performance benefit with BatchNorm"),
        accuracies("", 0.83, 0.80).because(
            "paper",
            "depends on a setting that differs here, or that the source does not name",
            "With BatchNorm it is the source's (83.9 and 83.4 %); without, 77.7 % (77.4 and 78.1) instead of 80 %, so "
            "that the gain is 5.9 points and not 3. The source does not say which layers its VGG-like network has.",
        ),
        accuracies(", augmented", 0.92, 0.88).because(
            "paper",
            "depends on a setting that differs here, or that the source does not name",
            "BatchNorm is ahead by 1.1 points on average, and not by 4 (87.9 and 86.5 % against 86.1 and 86.1 %). "
            "Neither has converged after 15 000 steps: training losses end at 0.12 with BatchNorm and 0.15 without. "
            "The source names neither the augmentation nor the layers of its VGG-like network.",
        ),
    ],
    draw=draw_training,
    minutes={"smoke": 0.05, "laptop": 4.5, "gpu": 0.2, "paper": 24.0},
    contrast=[(name_of(network, BASE), name_of(network, NORMALIZED)) for network in ("DLN", "VGG")],
    departures=[
        *choices_of("VGG", "DLN"),
        LP_NORMS,
        SAME_SEED,
        "The source does not say how it augments: crops and flips are taken. That training has come to a plateau by "
        "its end, of which it says so, is not tested.",
    ],
    silent=UNSTATED,
)
