"""`rule`: the decorator that makes a function a rule, and the table of all rules."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from wellcond.diagnosis.causes import CAUSES
from wellcond.diagnosis.evidence import Evidence
from wellcond.diagnosis.finding import Finding

Judge = Callable[[Evidence], Iterable[Finding]]


@dataclass(frozen=True)
class Rule:
    """One function of a rule.

    Attributes:
        name: Stable name, by which users select, ignore and search for the rule.
        judge: Called with the evidence so far, more than once as it grows; yields findings, or nothing.
        quantity: Name of the quantity it judges in every layer or over a run, which is drawn next to its findings.
    """

    name: str
    judge: Judge
    quantity: str = ""

    @property
    def explanation(self) -> str:
        """What the rule looks for, why, and its threshold: the docstring of its function."""
        return inspect.cleandoc(self.judge.__doc__ or self.name)


RULES: dict[str, list[Rule]] = {}
"""By name; one name may have several functions."""


def explanation(name: str) -> str:
    """What all functions of a rule look for, why, and their thresholds."""
    return "\n\n".join(each.explanation for each in RULES[name])


def rule(name: str, *, quantity: str = "", explains: Iterable[str] = ()) -> Callable[[Judge], Judge]:
    """Make a function a rule that `diagnose` applies.

    Args:
        name: Name of the rule.
        quantity: Name of the quantity it judges, whose rows are drawn next to its findings; "" for none.
        explains: Rules whose findings are consequences of this one's, in addition to those in `CAUSES`.

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
        RULES.setdefault(name, []).append(Rule(name, judge, quantity))
        if consequences := tuple(explains):
            CAUSES[name] = tuple(dict.fromkeys((*CAUSES.get(name, ()), *consequences)))
        return judge

    return register
