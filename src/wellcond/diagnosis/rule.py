"""`rule`: the decorator that makes a function a rule; the table of all rules; and how severe a symptom is."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from wellcond.diagnosis.evidence import Evidence
from wellcond.diagnosis.finding import Finding, Severity

Judge = Callable[[Evidence], Iterable[Finding]]

LEARNED = 0.5
"""The loss over that of the best constant, below which a network has learned: what it has, it has trained with."""

UNRELATED = 4.0
"""Standard deviations of shuffled targets. Data sets of ours have 5 to 230 in the better of the two probes."""


@dataclass(frozen=True)
class Rule:
    """One rule.

    Attributes:
        name: Stable; it is what users select, ignore and search for.
        judge: Called with the evidence so far, more than once as it grows; yields findings, or nothing.
        explains: Rules whose findings are consequences of this one's.
    """

    name: str
    judge: Judge
    explains: tuple[str, ...] = ()

    @property
    def explanation(self) -> str:
        """What the rule looks for, why, and its threshold: the docstring of its function."""
        return (self.judge.__doc__ or "").strip()


RULES: dict[str, list[Rule]] = {}
"""By name; one name may have several functions."""


def rule(name: str, *, explains: Iterable[str] = ()) -> Callable[[Judge], Judge]:
    """Make a function a rule that `diagnose` applies.

    Args:
        name: Of the rule.
        explains: Rules whose findings are consequences of this one's.

    Example:
        >>> @rule("too-many-parameters")
        ... def too_many_parameters(evidence):
        ...     '''More than a billion parameters do not fit this laptop.'''
        ...     if evidence.problem.size > 1e9:
        ...         yield Finding(rule="too-many-parameters", severity="note", basis="proven", summary="too many.")
        >>> RULES.pop("too-many-parameters")[0].explanation
        'More than a billion parameters do not fit this laptop.'
    """

    def register(judge: Judge) -> Judge:
        RULES.setdefault(name, []).append(Rule(name, judge, tuple(explains)))
        return judge

    return register


def of_symptom(evidence: Evidence, *, is_far: bool) -> Severity:
    """Severe if it is far outside of what healthy networks show, or if the network trains at no rate that was tried.

    A network that has learned is as it should be: it may attend to one token, or be sure of its answer.
    """
    does_not_train = evidence.trial is not None and evidence.trial.fails
    if has_learned(evidence):
        return "note"
    return "severe" if is_far or does_not_train else "warning"


def has_learned(evidence: Evidence) -> bool:
    """Whether the loss is well below that of any constant prediction."""
    output = None if evidence.inspection is None else evidence.inspection.output
    if output is None or output.loss is None or output.best_constant is None:
        return False
    return 0 <= output.loss < LEARNED * output.best_constant
