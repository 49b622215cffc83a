"""`Claim`: a sentence of a paper, as a check over rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

from wellcond_papers.experiments.table import Table

Verdict = Literal["holds", "holds in part", "does not hold", "not tested"]


@dataclass(frozen=True)
class Outcome:
    """The outcome of a claim.

    Attributes:
        verdict: "holds", "holds in part", "does not hold", or "not tested" if the rows say nothing about it.
        measured: The numbers, in a sentence.
    """

    verdict: Verdict
    measured: str


@dataclass(frozen=True)
class Claim:
    """What a paper claims.

    Attributes:
        says: The claim, in a sentence.
        paper: The paper's own number or direction.
        check: Judges the rows.
    """

    says: str
    paper: str
    check: Callable[[Table], Outcome]


def claim(says: str, paper: str) -> Callable[[Callable[[Table], Outcome]], Claim]:
    """Turn a function of the rows into a claim.

    Example:
        >>> @claim("the loss falls", paper="from 2.3 to 0.1")
        ... def falls(table: Table) -> Outcome:
        ...     return judged([True, True], "it did")
        >>> falls.check(Table([])).verdict
        'holds'
    """
    return lambda check: Claim(says, paper, check)


def judged(cases: Iterable[bool], measured: str) -> Outcome:
    """The outcome of a claim about several cases: it holds if all hold, and in part if more than half do.

    Args:
        cases: Whether it holds in each: layers, seeds, depths.
        measured: The numbers, in a sentence.

    Example:
        >>> [judged(cases, "").verdict for cases in ([True], [True, True, False], [True, False], [])]
        ['holds', 'holds in part', 'does not hold', 'not tested']
    """
    cases = list(cases)
    if not cases:
        return Outcome("not tested", measured or "nothing was measured that bears on it")
    share = sum(cases) / len(cases)
    if share == 1:
        return Outcome("holds", measured)
    return Outcome("holds in part" if share > 0.5 else "does not hold", measured)


def overall(verdicts: Iterable[Verdict]) -> Verdict:
    """The verdict of several claims together, without those that were not tested.

    Example:
        >>> overall(["holds", "not tested"]), overall(["holds", "does not hold"]), overall(["not tested"])
        ('holds', 'holds in part', 'not tested')
    """
    tested = {verdict for verdict in verdicts if verdict != "not tested"}
    if not tested:
        return "not tested"
    return tested.pop() if len(tested) == 1 else "holds in part"
