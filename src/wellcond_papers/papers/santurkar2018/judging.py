"""What santurkar2018 claims in more than one figure, as checks over rows."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from statistics import median

from wellcond.results.quantities import (
    BETA,
    FINAL_LOSS,
    GRADIENT_CHANGE_GREATEST,
    GRADIENT_CHANGE_LEAST,
    LOSS_GREATEST,
    LOSS_LEAST,
    TEST_ACCURACY,
    TRAINING_LOSS,
)
from wellcond_papers.experiments.claims import Claim, Outcome, judged
from wellcond_papers.experiments.table import Record, Table
from wellcond_papers.papers.percentages import percent
from wellcond_papers.papers.santurkar2018.settings import BASE, NORMALIZED, PAPER, name_of

Measure = Callable[[Record], dict[int, float]]
"""A number at every evaluated step."""
COMPARABLE = 0.1
"""Two runs end alike if their losses differ by less than this share of the decrease in training."""


def loss_variation(record: Record) -> dict[int, float]:
    """The range of the loss along the walk."""
    least, greatest = record.series(LOSS_LEAST), record.series(LOSS_GREATEST)
    return {step: greatest[step] - least[step] for step in greatest if step in least}


def gradient_variation(record: Record) -> dict[int, float]:
    """The range of ‖∇L(θ) − ∇L(θ_a)‖ along the walk."""
    least, greatest = record.series(GRADIENT_CHANGE_LEAST), record.series(GRADIENT_CHANGE_GREATEST)
    return {step: greatest[step] - least[step] for step in greatest if step in least}


def smoothness(record: Record) -> dict[int, float]:
    """The effective β-smoothness."""
    return record.series(BETA)


SMOOTHNESS: dict[str, tuple[str, Measure]] = {
    "loss variation": ("the loss varies less along the gradient", loss_variation),
    "gradient change": ("the gradient varies less along itself", gradient_variation),
    "β": ("the effective β-smoothness is smaller", smoothness),
}


def pairs(table: Table, norms: Sequence[str], base: str = BASE) -> Iterator[tuple[str, Record, Record]]:
    """Every network with a norm and the same network without it, seed by seed: the arm of the first, and both runs."""
    for network in PAPER:
        plain = {record.settings["seed"]: record for record in table.arm(name_of(network, base))}
        for norm in norms:
            for record in table.arm(name_of(network, norm)):
                if record.settings["seed"] in plain:
                    yield record.arm, record, plain[record.settings["seed"]]


def compared(cases: Iterable[tuple[str, float, float]], wins: Callable[[float, float], bool], places: str) -> Outcome:
    """A claim about two numbers, with a norm and without, at many places.

    Args:
        cases: The name of the arm, its number, and that of the arm it is compared with.
        wins: Whether a pair of numbers is as claimed.
        places: The word for what is counted: "looks", "layers".

    Example:
        >>> compared([("BN", 1.0, 3.0), ("BN", 2.0, 1.0)], lambda ours, theirs: ours < theirs, "looks").measured
        'BN: at 1 of 2 looks, median 1.5 against 2'
    """
    by_arm: dict[str, list[tuple[float, float]]] = {}
    for arm, ours, theirs in cases:
        by_arm.setdefault(arm, []).append((ours, theirs))
    names = short(by_arm)
    details = []
    for place, (arm, numbers) in enumerate(by_arm.items()):
        count = sum(wins(*pair) for pair in numbers)
        medians = against(*(median(column) for column in zip(*numbers, strict=True)))
        at, of = ("", "") if place else (f" {places}", "median ")  # the words come once
        details.append(f"{names[arm]}: at {count} of {len(numbers)}{at}, {of}{medians}")
    return judged((wins(*pair) for numbers in by_arm.values() for pair in numbers), "; ".join(details))


def against(ours: float, theirs: float) -> str:
    """Two numbers, with enough digits to distinguish them: 3 to 7.

    Example:
        >>> against(5.271, 10.0), against(9.9999, 10.0)
        ('5.27 against 10', '9.9999 against 10')
    """
    pairs = [(f"{ours:.{digits}g}", f"{theirs:.{digits}g}") for digits in range(3, 8)]
    return " against ".join(next((pair for pair in pairs if pair[0] != pair[1]), pairs[0]))


def short(arms: Iterable[str]) -> dict[str, str]:
    """What arms are called in a sentence: by their norms, if they are of one network.

    Example:
        >>> short(["VGG, BatchNorm", "VGG, ℓ1"])
        {'VGG, BatchNorm': 'BatchNorm', 'VGG, ℓ1': 'ℓ1'}
    """
    arms = list(arms)
    one = len({arm.partition(", ")[0] for arm in arms}) == 1
    return {arm: arm.partition(", ")[2] or arm if one else arm for arm in arms}


def smoother(norms: Sequence[str]) -> list[Claim]:
    """With any of these norms the landscape is smoother at every look than without one."""

    def claim_about(says: str, measure: Measure) -> Claim:
        def cases(table: Table) -> Iterator[tuple[str, float, float]]:
            for arm, record, plain in pairs(table, norms):
                ours, theirs = measure(record), measure(plain)
                yield from ((arm, ours[step], theirs[step]) for step in ours if step in theirs)

        def check(table: Table) -> Outcome:
            return compared(cases(table), operator.lt, "looks")

        says = f"with {' or '.join(norms)} {says} than without, at every look"
        return Claim(says, "smaller throughout training", check)

    return [*(claim_about(says, measure) for says, measure in SMOOTHNESS.values()), smoother_at_worst(norms)]


def smoother_at_worst(norms: Sequence[str]) -> Claim:
    """With any of these norms the roughest point of the training is smoother than without one."""

    def check(table: Table) -> Outcome:
        columns: dict[str, dict[str, list[float]]] = {}
        cases = []
        for arm, record, plain in pairs(table, norms):
            for name, (_, measure) in SMOOTHNESS.items():
                ours, theirs = measure(record), measure(plain)
                if ours and theirs:
                    cases.append(max(ours.values()) < max(theirs.values()))
                    for who, values in ((plain.arm, theirs), (arm, ours)):
                        columns.setdefault(who, {}).setdefault(name, []).append(max(values.values()))
        names = short(columns)
        details = [
            f"{names[who]} {', '.join(f'{median(v):.3g}' for v in own.values())}" for who, own in columns.items()
        ]
        return judged(cases, f"{', '.join(SMOOTHNESS)}: {'; '.join(details)}" if cases else "")

    says = f"with {' or '.join(norms)} the largest of each during training is smaller than without"
    return Claim(says, "the source does not say it", check)


def final_loss(record: Record) -> float:
    """The mean training loss of the last tenth; ∞ if the run diverged."""
    return math.inf if record.has_diverged else record.last(FINAL_LOSS)


def lower_loss(norms: Sequence[str], paper: str = "lower") -> Claim:
    """With any of these norms training ends at a lower loss than without one."""

    def check(table: Table) -> Outcome:
        cases = ((arm, final_loss(ours), final_loss(plain)) for arm, ours, plain in pairs(table, norms))
        return compared(cases, operator.lt, "seeds")

    return Claim(f"with {' or '.join(norms)} training ends at a lower loss than without", paper, check)


def as_low_as(norms: Sequence[str], other: str = NORMALIZED) -> Claim:
    """With any of these norms training gets about as far as with another."""

    def bound(record: Record) -> float:
        end = final_loss(record)
        return end + COMPARABLE * (next(iter(record.series(TRAINING_LOSS).values()), end) - end)

    def check(table: Table) -> Outcome:
        cases = ((arm, final_loss(ours), bound(theirs)) for arm, ours, theirs in pairs(table, norms, base=other))
        return compared(cases, operator.le, "seeds")

    says = (
        f"with {' or '.join(norms)} training performs comparably to {other}, or even better: it ends no higher than "
        "that and a tenth of what it lost"
    )
    return Claim(says, "comparable or better", check)


def accuracies(network: str = "VGG") -> Claim:
    """BatchNorm makes a better classifier."""

    def check(table: Table) -> Outcome:
        shares = [table.arm(name_of(network, norm)).lasts(TEST_ACCURACY) for norm in (NORMALIZED, BASE)]
        if not all(shares):
            return judged([], "")
        details = " against ".join(percent([100 * seed for seed in seeds]) for seeds in shares)
        return judged([ours > plain for ours, plain in zip(*shares, strict=False)], details)

    says = "the VGG has a higher test accuracy with BatchNorm than without"
    return Claim(says, "83 % against 80 % (92 % against 88 % with augmentation)", check)
