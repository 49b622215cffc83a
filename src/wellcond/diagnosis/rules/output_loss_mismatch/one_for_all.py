"""Losses of a step that one answer makes small for all examples."""

from __future__ import annotations

from collections.abc import Iterator

from wellcond.diagnosis.evidence import Evidence
from wellcond.diagnosis.finding import Finding
from wellcond.diagnosis.rule import rule
from wellcond.diagnosis.rules.constant_target import for_all_summary, is_right_for_all
from wellcond.results.quantities import TRAINING_LOSS


@rule("output-loss-mismatch", quantity=TRAINING_LOSS)
def one_for_all(evidence: Evidence) -> Iterator[Finding]:
    """A step without targets whose loss falls to a fifth, and is as low with one answer for all examples.

    All scores are drawn the same way, those of pairs that belong together and of those that do not. A warning: see
    constant-target.
    """
    trial = evidence.trial
    if trial is None or not is_right_for_all(evidence) or trial.one_answer is None or trial.one_answer.has_goals:
        return
    yield Finding(
        rule="output-loss-mismatch",
        severity="warning",
        basis="tried",
        summary=for_all_summary(trial),
        evidence={"loss before": trial.loss, "loss of one answer": trial.one_answer.loss},
        reason="What belongs together has to be scored above what does not: where a term has lost its sign, or there "
        "is nothing that does not belong, the highest score for everything is best.",
        remedy="# print each term of the loss for pairs that belong together and for others: "
        "-(logsigmoid(near) + logsigmoid(-far))",
    )
