"""What lange2022's sentences about training losses mean in numbers: who is sooner, who is ahead, who trains."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from statistics import fmean

from wellcond.results.quantities import LOSS
from wellcond_papers.experiments.claims import Claim, Outcome, is_greater, judged
from wellcond_papers.experiments.table import Table
from wellcond_papers.papers.lange2022.found import listed, not_run, unless
from wellcond_papers.papers.lange2022.runs import accuracies, first_epoch, runs_of, steps_to_loss_of


def reaches_sooner(
    says: str, paper: str, runs: Sequence[tuple[str, str]], *, within: float = 1.0, is_ours: bool = False
) -> Claim:
    """An arm reaches the final training loss of another sooner than that one itself.

    Args:
        says: The claim.
        paper: The paper's words.
        runs: Arms: the faster one and the one whose loss it reaches.
        within: In at most this share of the other's steps; sooner, but not so soon, is a tie.
        is_ours: Whether the paper does not say it.
    """

    def check(table: Table) -> Outcome:
        cases: list[bool | None] = []
        details = []
        for arm, reference in runs:
            shares = steps_to_loss_of(table.arm(reference), table.arm(arm))
            cases += [other < own and (True if other <= within * own else None) for own, other in shares]
            if shares:
                mean = fmean(other for _, other in shares)
                reached = sum(other < math.inf for _, other in shares)
                ends = [f"{bound(other for _, other in shares):.2f}" for bound in (min, max)]
                seeds = f" ({' to '.join(ends)} in single seeds)" if ends[0] != ends[1] else ""
                when = (
                    f"after {mean:.2f} of its steps{seeds}"
                    if mean < math.inf
                    else f"in {reached} of {len(shares)} runs"
                )
                details.append(f"{arm} reaches the loss of {reference.split(': ')[-1]} {when}")
        lacking = [arm for arm in dict.fromkeys(sum(runs, ())) if not table.arm(arm)]
        return unless(lacking, judged(cases, "; ".join(details)))

    return Claim(says, paper, check, is_ours)


def ahead_early(says: str, paper: str, panel: str, faster: str, slower: str) -> Claim:
    """The loss of the mini-batches over the first epoch is lower."""

    def check(table: Table) -> Outcome:
        low, high = (first_epoch(table.arm(f"{panel}: {method}")) for method in (faster, slower))
        if not low or not high:
            return judged([], "")
        return judged([is_greater(high, low)], f"training loss {faster} {fmean(low):.3g}, {slower} {fmean(high):.3g}")

    return Claim(says, paper, check)


def trains(says: str, paper: str, panel: str, methods: Sequence[str]) -> Claim:
    """The training loss is lower in the end than in the beginning."""
    return _by_fall_of_loss(says, paper, panel, methods, lambda begin, end: end < begin)


def does_not_train(says: str, paper: str, panel: str, methods: Sequence[str]) -> Claim:
    """The training loss is no lower in the end than in the beginning."""
    return _by_fall_of_loss(says, paper, panel, methods, lambda begin, end: end >= begin)


def _by_fall_of_loss(
    says: str, paper: str, panel: str, methods: Sequence[str], is_so: Callable[[float, float], bool]
) -> Claim:
    def check(table: Table) -> Outcome:
        cases, details = [], []
        for method in methods:
            runs = runs_of(table, panel, method)
            ends = [(series[0], series[max(series)]) for record in runs if (series := record.series(LOSS))]
            if ends:
                begin, end = (fmean(column) for column in zip(*ends, strict=True))
                reached = listed(accuracies(table, panel, [method]), table, panel)
                details.append(f"{method}: loss {begin:.3g}, then {end:.3g}; {reached}")
            cases += [is_so(*pair) for pair in ends]
        return unless(not_run(table, panel, methods), judged(cases, "; ".join(details)))

    return Claim(says, paper, check)
