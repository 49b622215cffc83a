"""How severe a symptom is: what a measurement alone shows, and what a trial adds."""

from __future__ import annotations

from wellcond.evidence.evidence import Evidence
from wellcond.results.finding import Severity

LEARNED = 0.5
"""The loss over that of the best constant, below which a network has learned: what it has, it has trained with."""


def of_symptom(evidence: Evidence, *, is_far: bool) -> Severity:
    """Severe if it is far outside of what healthy networks show, or if the network is seen not to train.

    A network that has learned is as it should be: it may attend to one token, or be sure of its answer.
    """
    does_not_train = evidence.trial is not None and evidence.trial.trains is False
    if has_learned(evidence):
        return "note"
    return "severe" if is_far or does_not_train else "warning"


def has_learned(evidence: Evidence) -> bool:
    """Whether the loss is well below that of any constant prediction."""
    output = None if evidence.look is None else evidence.look.output
    if output is None or output.loss is None or output.best_constant is None:
        return False
    return 0 <= output.loss < LEARNED * output.best_constant
