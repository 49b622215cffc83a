"""What santurkar2018 claims in more than one figure, as checks over rows."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from wellcond.results.quantities import (
    BETA,
    FINAL_LOSS,
    GRADIENT_CHANGE_GREATEST,
    GRADIENT_CHANGE_LEAST,
    LOSS_GREATEST,
    LOSS_LEAST,
    TEST_ACCURACY,
)
from wellcond_papers.experiments.claims import END, Claim, Outcome, is_greater, judged
from wellcond_papers.experiments.table import Record, Table
from wellcond_papers.papers.percentages import percent
from wellcond_papers.papers.santurkar2018.comparing import (
    both_train,
    compared,
    improved,
    pairs,
    short,
    while_both_train,
)
from wellcond_papers.papers.santurkar2018.settings import BASE, NORMALIZED, name_of

Measure = Callable[[Record, str], dict[int, float]]
"""A number at every look, along the walk of a `layer` of the rows."""
LEAST = 1e-6
"""Ratios of two numbers lie between this and its inverse."""
TIE = 0.01
"""Losses that differ by a smaller share are equal."""
POINT = 0.01
"""Test accuracies that differ by less are equal."""
COMPARABLE = 0.9
"""The share of what BatchNorm gains over no norm from which on another norm performs comparably."""


def loss_variation(record: Record, place: str = "") -> dict[int, float]:
    """The range of the loss along the walk."""
    least, greatest = record.series(LOSS_LEAST, place), record.series(LOSS_GREATEST, place)
    return {step: greatest[step] - least[step] for step in greatest if step in least}


def gradient_variation(record: Record, place: str = "") -> dict[int, float]:
    """The range of ‖∇L(θ) − ∇L(θ_a)‖ along the walk."""
    least, greatest = record.series(GRADIENT_CHANGE_LEAST, place), record.series(GRADIENT_CHANGE_GREATEST, place)
    return {step: greatest[step] - least[step] for step in greatest if step in least}


def smoothness(record: Record, place: str = "") -> dict[int, float]:
    """The effective β-smoothness."""
    return record.series(BETA, place)


SMOOTHNESS: dict[str, tuple[str, Measure]] = {
    "loss variation": ("the loss varies less along the gradient", loss_variation),
    "gradient change": ("the gradient varies less along itself", gradient_variation),
    "β": ("the effective β-smoothness is smaller", smoothness),
}


def smoother(norms: Sequence[str], paper: str, by: float) -> list[Claim]:
    """With any of these norms the landscape is smoother by a factor than without one, while both networks train."""

    def claim_about(says: str, measure: Measure) -> Claim:
        def check(table: Table, ahead: float) -> Outcome:
            ratios = ((arm, ratios_of(measure, "", record, plain, ahead)) for arm, record, plain in pairs(table, norms))
            return improved(list(ratios), by)

        how = f"by a factor of {by:g} or more in the median while both networks train"
        return Claim(f"with {' or '.join(norms)} {says} than without, {how}", paper, while_both_train(check))

    return [claim_about(says, measure) for says, measure in SMOOTHNESS.values()]


def smoother_everywhere(norms: Sequence[str]) -> Claim:
    """The landscape is smoother at every look of the whole training."""

    def check(table: Table) -> Outcome:
        wins: dict[str, dict[str, list[bool]]] = {}
        for arm, record, plain in pairs(table, norms):
            for name, (_, measure) in SMOOTHNESS.items():
                ours, theirs = measure(record, ""), measure(plain, "")
                wins.setdefault(arm, {}).setdefault(name, []).extend(
                    ours[step] < theirs[step] for step in ours if step in theirs
                )
        names = short(wins)
        details = (
            f"{names[arm]}: {', '.join(f'{name} {sum(won)} of {len(won)}' for name, won in own.items())}"
            for arm, own in wins.items()
        )
        return judged((won for own in wins.values() for each in own.values() for won in each), "; ".join(details))

    says = "all three are smaller at every look, from the first step to the last"
    return Claim(says, "the source does not say it", check, is_ours=True)


def ratios_of(measure: Measure, place: str, record: Record, plain: Record, ahead: float) -> list[float]:
    """A number of one run over that of the other, at the looks while both train.

    Rows have six digits: a ratio below 1e-6, of which one number may be rounded to 0, is 1e-6, and likewise above 1e6.
    """
    ours, theirs = measure(record, place), measure(plain, place)
    looks = [step for step in both_train(record, plain, ahead) if step in ours and step in theirs]
    numbers = ((ours[step], theirs[step]) for step in looks)
    return [max(a, LEAST * b) / max(b, LEAST * a) for a, b in numbers if a or b]


def final_loss(record: Record) -> float:
    """The mean training loss of the last tenth; ∞ if the run diverged."""
    return math.inf if record.has_diverged else record.last(FINAL_LOSS)


def lower_loss(norms: Sequence[str], paper: str, *, is_ours: bool = False) -> Claim:
    """With any of these norms training ends at a lower loss than without one."""

    def wins(ours: float, theirs: float) -> bool | None:
        return None if math.isclose(ours, theirs, rel_tol=TIE) else ours < theirs

    def check(table: Table) -> Outcome:
        cases = ((arm, final_loss(ours), final_loss(plain)) for arm, ours, plain in pairs(table, norms))
        return compared(cases, wins, "seeds")

    says = f"with {' or '.join(norms)} training ends at a lower loss than without (within 1 % is a tie)"
    return Claim(says, paper, check, is_ours, needs=END)


def as_low_as(norms: Sequence[str]) -> Claim:
    """Training with any of these norms keeps nearly all of what BatchNorm gains over none."""

    def check(table: Table) -> Outcome:
        cases, shares = [], dict[str, list[str]]()
        for arm, record, plain in pairs(table, norms):
            for best in table.arm(name_of(record.settings["network"], NORMALIZED)).where(seed=record.settings["seed"]):
                ours, theirs, without = map(final_loss, (record, best, plain))
                cases.append(ours <= without - COMPARABLE * (without - theirs))
                share = (without - ours) / (without - theirs) if without != theirs else math.nan
                shares.setdefault(arm, []).append(f"{100 * share:.0f} %")
        details = "; ".join(f"{arm}: {', '.join(own)}" for arm, own in shares.items())
        return judged(cases, f"share of the gain, seed by seed: {details}" if cases else "")

    says = (
        f"with {' or '.join(norms)} training performs comparably to BatchNorm, or even better: its last loss keeps at "
        f"least {100 * COMPARABLE:g} % of what BatchNorm gains over no norm"
    )
    return Claim(says, "comparably or even better", check, needs=END)


def more_accurate() -> Claim:
    """BatchNorm makes a better classifier."""

    def check(table: Table) -> Outcome:
        shares = [table.arm(name_of("VGG", norm)).lasts(TEST_ACCURACY) for norm in (NORMALIZED, BASE)]
        if not all(shares):
            return judged([], "")
        details = " against ".join(percent([100 * seed for seed in seeds]) for seeds in shares)
        return judged([is_greater(*shares, at_least=POINT)], details)

    says = "the VGG has a higher test accuracy with BatchNorm than without (within a point is a tie)"
    return Claim(says, "performing better in terms of accuracy (of which images, it does not say)", check, needs=END)
