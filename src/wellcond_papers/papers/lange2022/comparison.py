"""What lange2022's sentences about test accuracies mean in numbers. An arm is called "panel: method"."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean

from wellcond_papers.experiments.claims import END, Cause, Claim, Outcome, is_greater, judged
from wellcond_papers.experiments.experiment import Settings
from wellcond_papers.experiments.scales import Scale
from wellcond_papers.experiments.table import Table
from wellcond_papers.papers.lange2022.found import Stretch, listed, not_run, over_stretches, unless
from wellcond_papers.papers.lange2022.runs import accuracies, is_above, is_near, of_seeds, runs_of
from wellcond_papers.papers.percentages import error_of_test, percent

COMPARABLE = 0.02
"""Accuracies that differ by no more are comparable."""
SIGNIFICANT = 0.02
"""Accuracies that differ by more differ significantly."""
LAST = 0.1
"""The share of a run over which overfitting is averaged."""
AT_END: Sequence[Stretch] = ((1.0, 1.0),)


def arms(panel: str, methods: Mapping[str, Settings], **common: object) -> dict[str, Settings]:
    """The arms of a panel.

    Example:
        >>> arms("MNIST", {"BNP": {"lr": 0.5}}, batch=60)
        {'MNIST: BNP': {'method': 'BNP', 'batch': 60, 'lr': 0.5}}
    """
    return {f"{panel}: {method}": {"method": method, **common, **own} for method, own in methods.items()}


def explained(*claims: Claim, causes: Mapping[tuple[Scale, str], Cause]) -> list[Claim]:
    """The claims, each with the causes that name its scale and its sentence.

    Example:
        >>> claim = Claim("BN trains", "", lambda table: judged([False], ""))
        >>> explained(claim, causes={("gpu", "BN trains"): Cause("seeds", "It has one.")})[0].causes["gpu"].why
        'It has one.'
    """
    if unknown := {says for _, says in causes} - {claim.says for claim in claims}:
        raise ValueError(f"no claim says {unknown.pop()!r}")
    for (scale, says), cause in causes.items():
        claims = tuple(c.because(scale, cause.kind, cause.why) if c.says == says else c for c in claims)
    return list(claims)


def outperforms(
    says: str, paper: str, panel: str, better: Sequence[str], worse: Sequence[str], *, by: float = 0.0,
    over: Sequence[Stretch] = AT_END, needs: float = END, is_ours: bool = False,
) -> Claim:  # fmt: skip
    """Every one of some methods has a higher test accuracy than every one of others, by more than the test's error.

    Args:
        says: The claim.
        paper: The paper's words.
        panel: The panel.
        better: The methods that are claimed to be better.
        worse: The methods they are compared with.
        by: The least difference.
        over: Every stretch of the run over which it is judged.
        needs: As in `Claim`.
        is_ours: As in `Claim`.
    """

    def check(table: Table) -> Outcome:
        cases: list[bool | None] = []
        for stretch in over:
            high, low = (accuracies(table, panel, methods, *stretch) for methods in (better, worse))
            pairs = [(a, b) for a in high.values() for b in low.values()]
            cases += [is_above(a, b, by, error=error_of_test([*a, *b])) for a, b in pairs]
        methods = [*better, *worse]
        return unless(not_run(table, panel, methods), judged(cases, over_stretches(table, panel, methods, over)))

    return Claim(says, paper, check, is_ours, needs)


def comparable(
    says: str, paper: str, panel: str, methods: Sequence[str], *, within: float = COMPARABLE,
    over: Sequence[Stretch] = AT_END,
) -> Claim:  # fmt: skip
    """The test accuracies of methods, all against the first, differ by little over every one of these stretches."""

    def check(table: Table) -> Outcome:
        cases = []
        for stretch in over:
            first, *others = accuracies(table, panel, methods, *stretch).values() or [[]]
            cases += [is_near(seeds, first, within) for seeds in others]
        return unless(not_run(table, panel, methods), judged(cases, over_stretches(table, panel, methods, over)))

    return Claim(says, paper, check, needs=END)


def keeps_up(says: str, paper: str, cases: Sequence[tuple[str, str, str]]) -> Claim:
    """A method's final test accuracy is not significantly below that of another.

    Args:
        says: The claim.
        paper: The paper's words.
        cases: Panel, method, and the one that it keeps up with.
    """

    def check(table: Table) -> Outcome:
        results: list[bool | None] = []
        details, lacking = [], []
        for panel, method, reference in cases:
            by_method = accuracies(table, panel, [method, reference])
            lacking += [f"{panel}: {name}" for name in not_run(table, panel, [method, reference])]
            if len(by_method) == 2:
                own, other = by_method[method], by_method[reference]
                results.append(is_greater(own, other) or is_near(own, other, SIGNIFICANT))
            details += [f"{panel}: {listed(by_method, table, panel)}"] if by_method else []
        return unless(lacking, judged(results, "; ".join(details)))

    return Claim(says, paper, check, needs=END)


def nearer(says: str, paper: str, panel: str, center: str, near: Sequence[str], far: str) -> Claim:
    """The final test accuracies of some methods are nearer to that of `center` than that of `far` is."""

    def check(table: Table) -> Outcome:
        methods = [center, *near, far]
        by_method = accuracies(table, panel, methods)
        if lacking := not_run(table, panel, methods):
            return unless(lacking, judged([], listed(by_method, table, panel)))
        middle = fmean(by_method[center])
        away = {method: [abs(value - middle) for value in seeds] for method, seeds in by_method.items()}
        cases = [
            is_greater(away[far], away[method], at_least=error_of_test([*by_method[far], *by_method[method]]))
            for method in near
        ]
        return judged(cases, listed(by_method, table, panel))

    return Claim(says, paper, check, needs=END)


def gains_more(says: str, paper: str, panel: str, more: Sequence[str], less: Sequence[str], *, at: float) -> Claim:
    """The test accuracy of every one of some methods rises more from a share of the run to its end.

    A run that diverged has nothing to gain, and says nothing about it. A gain is a difference of two accuracies, so
    that the test images leave √2 times their error in it.
    """

    def check(table: Table) -> Outcome:
        finished = Table([record for record in table if not record.has_diverged])
        methods = [*more, *less]
        before, after = (accuracies(finished, panel, methods, *stretch) for stretch in ((at - 0.1, at), (1.0, 1.0)))
        gains = {m: [b - a for a, b in zip(before[m], after[m], strict=True)] for m in before}
        cases = [
            is_above(gains[a], gains[b], error=math.sqrt(2) * error_of_test([*after[a], *after[b]]))
            for a in more
            for b in less
            if a in gains and b in gains
        ]
        lacking = [f"{m} to the end" for m in not_run(finished, panel, methods)]
        return unless(lacking, judged(cases, listed(gains, table, panel)))

    return Claim(says, paper, check, needs=END)


def overfits(says: str, paper: str, panel: str, method: str, *, since: float) -> Claim:
    """The test accuracy is lower in the end than at a share of the run, by more than its error."""

    def check(table: Table) -> Outcome:
        runs = runs_of(table, panel, method)
        then, late = of_seeds(runs, since - LAST / 2, since + LAST / 2), of_seeds(runs, 1 - LAST, 1.0)
        if not late:
            return judged([], "")
        before, after = (percent([100 * share for share in seeds]) for seeds in (then, late))
        falls = is_greater(then, late, at_least=error_of_test([*then, *late]))
        return judged([falls], f"{before} at {since:.2f} of the run, {after} last")

    return Claim(says, paper, check, needs=END)


def does_not_overfit(says: str, paper: str, panel: str, method: str) -> Claim:
    """The test accuracy ends no lower than over the best tenth of the run, but for its error."""

    def check(table: Table) -> Outcome:
        runs = runs_of(table, panel, method)
        if not runs:
            return judged([], "")
        tenths = [of_seeds(runs, place * LAST, (place + 1) * LAST) for place in range(round(1 / LAST))]
        best, late = max(tenths, key=fmean), tenths[-1]
        before, after = (percent([100 * share for share in seeds]) for seeds in (best, late))
        falls = is_greater(best, late, at_least=error_of_test([*best, *late]))
        return judged([not falls], f"{before} over the best tenth of the run, {after} over the last")

    return Claim(says, paper, check, needs=END)
