"""`run_rule`: the decorator that makes a function a rule of a recorded run, and the table of all of them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property

from wellcond.diagnosis.causes import CAUSES
from wellcond.diagnosis.finding import Finding
from wellcond.recording.history import History
from wellcond.recording.judging.loss_curve import LossCurve
from wellcond.results.quantities import TRAINING_LOSS


@dataclass(frozen=True)
class RunEvidence:
    """What a rule of a run sees.

    Attributes:
        history: Every number so far.
        step: The last step.
        layers: Names of the layers, in the model's order.
        optimizer: Class name of the optimizer.
        inspected: What the rules of `diagnose` said at the last inspection.
        inspected_at: Step of the last inspection; None if there was none.
    """

    history: History
    step: int
    layers: tuple[str, ...] = ()
    optimizer: str = ""
    inspected: tuple[Finding, ...] = ()
    inspected_at: int | None = None

    @cached_property
    def loss(self) -> LossCurve:
        """The training loss."""
        return LossCurve.of(self.history.series(TRAINING_LOSS))


RunJudge = Callable[[RunEvidence], Iterable[Finding]]


@dataclass(frozen=True)
class RunRule:
    """One function of a rule of a run.

    Attributes:
        name: Name of the rule; the same as in a diagnosis if it finds the same fault.
        judge: Called with the evidence so far, again and again; yields what is wrong now, with the step at which it
            began as the series show it. A finding whose `until` is set is over.
        quantity: Name of the quantity it judges, which is drawn next to its findings.
    """

    name: str
    judge: RunJudge
    quantity: str

    @property
    def explanation(self) -> str:
        """What the rule looks for, why, and its threshold: the docstring of its function."""
        return inspect.cleandoc(self.judge.__doc__ or self.name)


RUN_RULES: dict[str, list[RunRule]] = {}
"""By name; one name may have several functions."""


def run_rule(name: str, *, quantity: str, explains: Iterable[str] = ()) -> Callable[[RunJudge], RunJudge]:
    """Make a function a rule that every recorded run is judged by.

    Args:
        name: Name of the rule.
        quantity: Name of the quantity it judges, whose rows are drawn next to its findings.
        explains: Rules whose findings are consequences of this one's, in addition to those in `CAUSES`.

    Example:
        >>> @run_rule("long-run", quantity="training_loss")
        ... def long_run(evidence):
        ...     '''More than a million steps.'''
        ...     if evidence.step > 1_000_000:
        ...         yield Finding(rule="long-run", severity="note", basis="proven", summary="long.", step=1_000_000)
        >>> RUN_RULES.pop("long-run")[0].explanation
        'More than a million steps.'
    """

    def register(judge: RunJudge) -> RunJudge:
        RUN_RULES.setdefault(name, []).append(RunRule(name, judge, quantity))
        if consequences := tuple(explains):
            CAUSES[name] = tuple(dict.fromkeys((*CAUSES.get(name, ()), *consequences)))
        return judge

    return register
