"""Steps that move apart what belongs together."""

from __future__ import annotations

from collections.abc import Iterator

from wellcond.diagnosis.evidence import Evidence
from wellcond.diagnosis.finding import Finding
from wellcond.diagnosis.rule import rule


@rule("output-loss-mismatch")
def moves_apart(evidence: Evidence) -> Iterator[Finding]:
    """A step that makes distances of what the batch holds larger, and those of what it draws smaller.

    The model returns a norm, or a sum of squares, for pairs that belong together and for others that are drawn at
    random, in calls of their own. A ranking loss may take distances for similarities. Severe, unless the optimizer
    maximizes.
    """
    distances = None if evidence.behavior is None else evidence.behavior.distances
    groups = [] if evidence.optimizer is None else evidence.optimizer.param_groups
    if distances is None or not distances.move_apart or any(group.get("maximize") for group in groups):
        return
    yield Finding(
        rule="output-loss-mismatch",
        severity="severe",
        basis="measured",
        summary="a step makes the distances of what the batch holds larger, and those of what is drawn at random "
        "smaller.",
        evidence={"slope in distances of the batch": distances.held, "in those that are drawn": distances.drawn},
        reason="Training descends: what belongs together ends farther apart than what does not, as where a ranking "
        "loss takes distances for similarities.",
        remedy="# MarginRankingLoss(near, far, y) wants near > far for y = 1: for distances y is -1",
    )
