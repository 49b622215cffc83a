"""What lange2022's sentences about training curves mean in numbers. An arm is called "panel: method"."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean

from wellcond.results.quantities import LOSS
from wellcond_papers.experiments.claims import END, Cause, Claim, Outcome, is_greater, judged
from wellcond_papers.experiments.experiment import Settings
from wellcond_papers.experiments.scales import Scale
from wellcond_papers.experiments.table import Table
from wellcond_papers.papers.lange2022.runs import (
    accuracies,
    first_epoch,
    is_above,
    is_near,
    of_seeds,
    steps_to_loss_of,
)
from wellcond_papers.papers.percentages import percent

COMPARABLE = 0.02
"""Accuracies that differ by no more are comparable."""
SIGNIFICANT = 0.02
"""Accuracies that differ by more differ significantly."""
LAST = 0.1
"""The share of a run over which overfitting is averaged."""


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


def reaches_sooner(says: str, paper: str, runs: Sequence[tuple[str, str]], *, is_ours: bool = False) -> Claim:
    """An arm reaches the final training loss of another sooner than that one itself.

    Args:
        says: The claim.
        paper: The paper's words.
        runs: Arms: the faster one and the one whose loss it reaches.
        is_ours: Whether the paper does not say it.
    """

    def check(table: Table) -> Outcome:
        cases, details = [], []
        for arm, reference in runs:
            shares = steps_to_loss_of(table.arm(reference), table.arm(arm))
            cases += [other < own for own, other in shares]
            if shares:
                mean = fmean(other for _, other in shares)
                when = f"after {mean:.2f} of its steps" if mean < math.inf else "not in every run"
                details.append(f"{arm} reaches the loss of {reference.split(': ')[-1]} {when}")
        return judged(cases, "; ".join(details))

    return Claim(says, paper, check, is_ours)


def outperforms(
    says: str, paper: str, panel: str, better: Sequence[str], worse: Sequence[str], *, by: float = 0.0,
    begin: float = 1.0, end: float = 1.0, needs: float = END, is_ours: bool = False,
) -> Claim:  # fmt: skip
    """Every one of some methods has a higher test accuracy than every one of others.

    Args:
        says: The claim.
        paper: The paper's words.
        panel: The panel.
        better: The methods that are claimed to be better.
        worse: The methods they are compared with.
        by: The least difference.
        begin: The share of the run from which the accuracy is averaged.
        end: The share up to which it is.
        needs: As in `Claim`.
        is_ours: As in `Claim`.
    """

    def check(table: Table) -> Outcome:
        high, low = (accuracies(table, panel, methods, begin, end) for methods in (better, worse))
        cases = [is_above(a, b, by) for a in high.values() for b in low.values()]
        return judged(cases, _listed(high | low, table, panel))

    return Claim(says, paper, check, is_ours, needs)


def ahead_early(says: str, paper: str, panel: str, faster: str, slower: str) -> Claim:
    """The loss of the mini-batches over the first epoch is lower."""

    def check(table: Table) -> Outcome:
        low, high = (first_epoch(table.arm(f"{panel}: {method}")) for method in (faster, slower))
        if not low or not high:
            return judged([], "")
        return judged([is_greater(high, low)], f"training loss {faster} {fmean(low):.3g}, {slower} {fmean(high):.3g}")

    return Claim(says, paper, check)


def comparable(says: str, paper: str, panel: str, methods: Sequence[str], within: float = COMPARABLE) -> Claim:
    """The final test accuracies of methods, all against the first, differ by little."""

    def check(table: Table) -> Outcome:
        by_method = accuracies(table, panel, methods)
        first, *others = by_method.values() or [[]]
        return judged([is_near(seeds, first, within) for seeds in others], _listed(by_method, table, panel))

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
        details = []
        for panel, method, reference in cases:
            by_method = accuracies(table, panel, [method, reference])
            if len(by_method) == 2:
                own, other = by_method[method], by_method[reference]
                results.append(is_greater(own, other) or is_near(own, other, SIGNIFICANT))
            details += [f"{panel}: {_listed(by_method, table, panel)}"] if by_method else []
        return judged(results, "; ".join(details))

    return Claim(says, paper, check, needs=END)


def nearer(says: str, paper: str, panel: str, center: str, near: Sequence[str], far: str) -> Claim:
    """The final test accuracies of some methods are nearer to that of `center` than that of `far` is."""

    def check(table: Table) -> Outcome:
        by_method = accuracies(table, panel, [center, *near, far])
        if not {center, far} < by_method.keys():
            return judged([], "")
        middle = fmean(by_method[center])
        away = {method: [abs(value - middle) for value in seeds] for method, seeds in by_method.items()}
        cases = [is_greater(away[far], away[method]) for method in near if method in away]
        return judged(cases, _listed(by_method, table, panel))

    return Claim(says, paper, check, needs=END)


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
            runs = table.arm(f"{panel}: {method}")
            ends = [(series[0], series[max(series)]) for record in runs if (series := record.series(LOSS))]
            if ends:
                begin, end = (fmean(column) for column in zip(*ends, strict=True))
                reached = _listed(accuracies(table, panel, [method]), table, panel)
                details.append(f"{method}: loss {begin:.3g}, then {end:.3g}; {reached}")
            cases += [is_so(*pair) for pair in ends]
        return judged(cases, "; ".join(details))

    return Claim(says, paper, check)


def gains_more(says: str, paper: str, panel: str, more: Sequence[str], less: Sequence[str], *, at: float) -> Claim:
    """The test accuracy of every one of some methods rises more from a share of the run to its end."""

    def gains(table: Table, methods: Sequence[str]) -> dict[str, list[float]]:
        before, after = accuracies(table, panel, methods, at - 0.1, at), accuracies(table, panel, methods)
        return {m: [b - a for a, b in zip(before[m], after[m], strict=True)] for m in before}

    def check(table: Table) -> Outcome:
        high, low = gains(table, more), gains(table, less)
        cases = [is_above(a, b) for a in high.values() for b in low.values()]
        return judged(cases, _listed(high | low, table, panel))

    return Claim(says, paper, check, needs=END)


def overfits(says: str, paper: str, panel: str, method: str, *, since: float, is_so: bool = True) -> Claim:
    """The test accuracy is lower in the end than at a share of the run; with `is_so` False, it is not."""

    def check(table: Table) -> Outcome:
        runs = table.arm(f"{panel}: {method}")
        then, late = of_seeds(runs, since - LAST / 2, since + LAST / 2), of_seeds(runs, 1 - LAST, 1.0)
        if not late:
            return judged([], "")
        falls = is_greater(then, late)
        before, after = (percent([100 * share for share in seeds]) for seeds in (then, late))
        return judged([falls if is_so else not falls], f"{before} at {since:.2f} of the run, {after} last")

    return Claim(says, paper, check, needs=END)


def _listed(by_method: Mapping[str, Sequence[float]], table: Table, panel: str) -> str:
    """Accuracies by method, with the number of runs that diverged."""
    parts = []
    for method, seeds in by_method.items():
        lost = sum(record.has_diverged for record in table.arm(f"{panel}: {method}"))
        result = "diverged" if lost == len(seeds) else percent([100 * share for share in seeds])
        parts.append(f"{method} {result}" + (f" ({lost} diverged)" if 0 < lost < len(seeds) else ""))
    return ", ".join(parts)
