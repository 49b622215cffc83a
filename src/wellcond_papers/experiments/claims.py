"""`Claim`: a sentence of a paper, as a check over rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean, variance
from typing import Literal, get_args

from wellcond_papers.experiments.scales import Scale
from wellcond_papers.experiments.table import Table

Verdict = Literal["holds", "holds in part", "does not hold", "too short to tell", "not tested"]
VERDICTS: tuple[Verdict, ...] = get_args(Verdict)
END = 0.5
"""The share of the source's training that a claim about the end of training needs."""

CauseKind = Literal[
    "the paper's claim does not hold here",
    "our claim does not hold here",
    "too short to tell",
    "depends on the preprocessing, which the source does not name",
    "depends on a setting that differs here, or that the source does not name",
    "seeds",
]
"""Why a claim fails, or holds in part; the first is never said of a claim of ours, nor the second of the paper's."""


@dataclass(frozen=True)
class Cause:
    """Why a claim does not hold at some scale.

    Attributes:
        kind: What sort of reason it is.
        why: The reason, in one sentence.
    """

    kind: CauseKind
    why: str


@dataclass(frozen=True)
class Outcome:
    """The outcome of a claim.

    Attributes:
        verdict: "holds", "holds in part", "does not hold"; "too short to tell" if the claim is about the end of a
            training that was cut short; "not tested" if the rows say nothing about it.
        measured: The numbers, in a sentence.
    """

    verdict: Verdict
    measured: str


@dataclass(frozen=True)
class Claim:
    """What a paper claims.

    Attributes:
        says: The claim, in a sentence, no stronger and no weaker than in the paper.
        paper: The paper's own words or number.
        check: Judges the rows.
        is_ours: Whether the paper does not say it.
        needs: The share of the source's training that must have been run to judge it; `END` for claims about where
            training ends, 0 for those about its beginning.
        causes: Why it does not hold, or only in part, by scale.
    """

    says: str
    paper: str
    check: Callable[[Table], Outcome]
    is_ours: bool = False
    needs: float = 0.0
    causes: Mapping[Scale, Cause] = field(default_factory=dict)

    def because(self, scale: Scale, kind: CauseKind, why: str) -> Claim:
        """The same claim with the reason why it fails, or holds in part, at a scale.

        Example:
            >>> falls = Claim("the loss falls", "from 2.3 to 0.1", lambda table: Outcome("does not hold", "2.3 to 2.2"))
            >>> falls.because("gpu", "seeds", "One of two seeds diverged.").causes["gpu"].why
            'One of two seeds diverged.'
        """
        return replace(self, causes={**self.causes, scale: Cause(kind, why)})


def claim(
    says: str, paper: str, *, is_ours: bool = False, needs: float = 0.0
) -> Callable[[Callable[[Table], Outcome]], Claim]:
    """Turn a function of the rows into a claim.

    Example:
        >>> @claim("the loss falls", paper="from 2.3 to 0.1")
        ... def falls(table: Table) -> Outcome:
        ...     return judged([True, True], "it did")
        >>> falls.check(Table([])).verdict
        'holds'
    """
    return lambda check: Claim(says, paper, check, is_ours, needs)


def judged(cases: Iterable[bool | None], measured: str) -> Outcome:
    """The outcome of a claim about several cases: it holds if all hold, and in part if more than half do.

    A tie is half a case; if nothing but ties stands against a claim, it holds in part.

    Args:
        cases: Whether it holds in each: layers, seeds, depths; None for a tie, as `is_greater` returns it.
        measured: The numbers, in a sentence.

    Example:
        >>> [judged(cases, "").verdict for cases in ([True], [True, True, False], [True, False], [])]
        ['holds', 'holds in part', 'does not hold', 'not tested']
        >>> [judged(cases, "").verdict for cases in ([True, None], [None], [None, False])]
        ['holds in part', 'holds in part', 'does not hold']
    """
    outcomes = list(cases)
    if not outcomes:
        return Outcome("not tested", measured or "nothing was measured that bears on it")
    share = fmean(0.5 if case is None else case for case in outcomes)
    if share == 1:
        return Outcome("holds", measured)
    return Outcome("holds in part" if share > 0.5 or False not in outcomes else "does not hold", measured)


def is_greater(ours: Sequence[float], theirs: Sequence[float], *, at_least: float = 0.0) -> bool | None:
    """Whether one mean over seeds is greater than another; None if they are too close to tell.

    They must differ by more than the spread over seeds, the standard deviation √((s² + s'²)/2) of one seed, and by more
    than `at_least`, which alone decides between two single runs: their spread is not known.

    Args:
        ours: One number per seed.
        theirs: One number per seed.
        at_least: A difference that means nothing even if seeds agree: the rounding of a table, the error of a test set.

    Example:
        >>> is_greater([0.52, 0.50], [0.40, 0.42]), is_greater([0.5, 0.4], [0.41, 0.48]), is_greater([1.0], [2.0])
        (True, None, False)
    """
    difference = fmean(ours) - fmean(theirs)
    variances = [variance(values) for values in (ours, theirs) if len(values) > 1]
    spread = fmean(variances) ** 0.5 if variances else 0.0
    return None if abs(difference) <= max(spread, at_least) else difference > 0


def overall(verdicts: Iterable[Verdict]) -> Verdict:
    """The verdict of several claims together, without those that were not tested.

    They hold if all do, and in part if more than half of those that could be judged hold, at least in part.

    Example:
        >>> overall(["holds", "not tested"]), overall(["holds", "does not hold"]), overall(["not tested"])
        ('holds', 'does not hold', 'not tested')
        >>> overall(["holds", "holds in part"]), overall(["too short to tell", "not tested"])
        ('holds in part', 'too short to tell')
    """
    tested = [verdict for verdict in verdicts if verdict != "not tested"]
    decided = [verdict for verdict in tested if verdict != "too short to tell"]
    if not decided:
        return "too short to tell" if tested else "not tested"
    if all(verdict == "holds" for verdict in decided):
        return "holds" if len(decided) == len(tested) else "holds in part"
    favorable = sum(verdict in ("holds", "holds in part") for verdict in decided)
    return "holds in part" if favorable > len(decided) / 2 else "does not hold"
