"""Two runs side by side: at which looks they can be compared, and what many comparisons amount to."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from statistics import fmean, median

from wellcond.results.quantities import TRAINING_LOSS
from wellcond_papers.experiments.claims import Outcome, is_greater, judged
from wellcond_papers.experiments.table import Record, Table
from wellcond_papers.papers.santurkar2018.settings import BASE, PAPER, name_of

AHEAD = 0.01
"""A network trains while more than this share of the decrease of its loss is ahead of it."""
WHOLE = -1.0
"""With this share ahead, a network trains throughout."""
OTHERS = (0.001, 0.03, 0.1)
"""Other shares, to see what depends on the one that is taken."""
IMPROVED, CLEARLY = 1.1, 1.5
"""The factors from which on a number is improved, and clearly or significantly so."""
ENOUGH = 5
"""Fewer looks do not tell."""
Check = Callable[[Table, float], Outcome]
"""A check over the looks with this share of the decrease ahead."""


def while_both_train(check: Check) -> Callable[[Table], Outcome]:
    """The check over the looks while both networks train; its words also say what it gives over other looks."""

    def checked(table: Table) -> Outcome:
        outcome = check(table, AHEAD)
        if outcome.verdict == "not tested":
            return outcome
        whole, *others = (check(table, ahead) for ahead in (WHOLE, *OTHERS))
        bounds = ", ".join(f"{100 * ahead:g} %" for ahead in OTHERS)
        verdicts = ", ".join(other.verdict for other in others)
        over_all = f"Over the whole training it {whole.verdict}: {whole.measured}"
        return replace(outcome, measured=f"{outcome.measured}. {over_all}. With {bounds} ahead: {verdicts}")

    return checked


def training_looks(record: Record, ahead: float = AHEAD) -> list[int]:
    """The looks while a network trains: more than this share of the decrease of its loss is ahead of it.

    Example:
        >>> from wellcond.results import Row
        >>> losses = {0: 10.0, 10: 2.0, 20: 1.0, 30: 1.05, 40: 1.0}
        >>> training_looks(Record({}, [Row(step, "", TRAINING_LOSS, loss, "") for step, loss in losses.items()]))
        [0, 10]
    """
    losses = record.series(TRAINING_LOSS)
    least = min(losses.values(), default=0.0)
    decrease = next(iter(losses.values()), least) - least
    last = max((step for step, loss in losses.items() if loss - least > ahead * decrease), default=-1)
    return [step for step in losses if step <= last]


def both_train(record: Record, other: Record, ahead: float = AHEAD) -> list[int]:
    """The looks while two networks train."""
    looks = set(training_looks(other, ahead))
    return [step for step in training_looks(record, ahead) if step in looks]


def pairs(table: Table, norms: Sequence[str]) -> Iterator[tuple[str, Record, Record]]:
    """Every network with a norm and the same network without it, seed by seed: the arm of the first, and both runs."""
    for network in PAPER:
        plain = {record.settings["seed"]: record for record in table.arm(name_of(network, BASE))}
        for norm in norms:
            for record in table.arm(name_of(network, norm)):
                if record.settings["seed"] in plain:
                    yield record.arm, record, plain[record.settings["seed"]]


def compared(
    cases: Iterable[tuple[str, float, float]], wins: Callable[[float, float], bool | None], places: str
) -> Outcome:
    """A claim about two numbers, with a norm and without, at many places.

    Args:
        cases: The name of the arm, its number, and that of the arm it is compared with.
        wins: Whether a pair of numbers is as claimed; None for a tie.
        places: The word for what is counted: "looks", "layers".

    Example:
        >>> compared([("BN", 1.0, 3.0), ("BN", 2.0, 1.0)], lambda ours, theirs: ours < theirs, "looks").measured
        'BN: at 1 of 2 looks, median 1.5 against 2'
    """
    by_arm: dict[str, list[tuple[float, float]]] = {}
    for arm, ours, theirs in cases:
        by_arm.setdefault(arm, []).append((ours, theirs))
    names = short(by_arm)
    details, results = [], []
    for place, (arm, numbers) in enumerate(by_arm.items()):
        own = [wins(*pair) for pair in numbers]
        results += own
        medians = against(*(median(column) for column in zip(*numbers, strict=True)))
        at, of = ("", "") if place else (f" {places}", "median ")  # the words come once
        ties = f" ({own.count(None)} a tie)" if None in own else ""
        details.append(f"{names[arm]}: at {own.count(True)} of {len(own)}{at}{ties}, {of}{medians}")
    return judged(results, "; ".join(details))


def improved(ratios: Sequence[tuple[str, Sequence[float]]], by: float) -> Outcome:
    """A claim that a number is smaller than in the network it is compared with, in the median over the looks.

    Of the medians of the seeds the geometric mean is taken: half and twice as large are a tie. So are few looks.

    Args:
        ratios: For each pair of runs, the name of the arm (or of what is measured), and the ratios at its looks.
        by: The factor from which on it is smaller. Less than that, or than the spread over the seeds, is a tie.

    Example:
        >>> improved([("BN", [0.2, 0.4, 3.0]), ("BN", [0.1, 0.2])], by=1.5).measured
        'BN: 0.245 times (0.4, 0.15 by seed), smaller at 4 of 5 looks'
        >>> [improved([("BN", ratios)], by=1.5).verdict for ratios in ([0.8] * 5, [0.1] * 2, [1.2] * 5)]
        ['holds in part', 'holds in part', 'does not hold']
    """
    by_name: dict[str, list[Sequence[float]]] = {}
    for name, at_looks in ratios:
        if at_looks:
            by_name.setdefault(name, []).append(at_looks)
    names = short(by_name)
    cases, details = [], []
    for place, (name, seeds) in enumerate(by_name.items()):
        logs = [math.log(median(seed)) for seed in seeds]
        smaller, count = sum(ratio < 1 for seed in seeds for ratio in seed), sum(map(len, seeds))
        cases.append(_is_smaller(logs, by) if count >= ENOUGH else None)
        remark = f" ({_undecided(logs, by, count)})" if cases[-1] is None else ""
        looks = "" if place else " looks"
        single = f" ({', '.join(f'{math.exp(log):.3g}' for log in logs)} by seed)" if len(logs) > 1 else ""
        details.append(
            f"{names[name]}: {math.exp(fmean(logs)):.3g} times{single}, smaller at {smaller} of {count}{looks}{remark}"
        )
    return judged(cases, "; ".join(details))


def _is_smaller(logs: Sequence[float], by: float) -> bool | None:
    """Whether ratios are below 1 by this factor; None if they are neither that nor above 1."""
    if is_greater(logs, [0.0], at_least=math.log(IMPROVED)):
        return False
    return is_greater([0.0], logs, at_least=math.log(by)) or None


def _undecided(logs: Sequence[float], by: float, count: int) -> str:
    """Why ratios do not tell."""
    if count < ENOUGH:
        return "too few"
    if abs(fmean(logs)) <= math.log(IMPROVED):
        return "a tie"
    return f"by less than {by:g}" if -math.log(by) <= fmean(logs) < 0 else "the seeds disagree"


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
