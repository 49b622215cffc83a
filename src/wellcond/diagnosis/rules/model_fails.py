"""model-fails: a model that raises on its own data."""

from __future__ import annotations

from collections.abc import Iterator

from wellcond.diagnosis.evidence import Evidence
from wellcond.diagnosis.finding import Finding
from wellcond.diagnosis.rule import rule
from wellcond.problem.training_step import TrainingStep


@rule("model-fails")
def model_fails(evidence: Evidence) -> Iterator[Finding]:
    """A model that raises on some of its own data, so that nothing else can be measured."""
    inspection = evidence.inspection
    if inspection is None or not inspection.forward_error:
        return
    called = "training step" if isinstance(evidence.problem.loss, TrainingStep) else "model"
    yield Finding(
        rule="model-fails",
        severity="severe",
        basis="proven",
        summary=f"the model fails on its data: {inspection.forward_error.rstrip('.')}.",
        evidence={"examples that passed": float(sum(fact.shape[0] for fact in inspection.outputs[:1]))},
        reason="A batch does not fit the model in shape, type or range, or forward() raises after some calls.",
        remedy=f"# pass the batches through the {called} one by one, and look at shape and range of the first that "
        "fails",
    )
