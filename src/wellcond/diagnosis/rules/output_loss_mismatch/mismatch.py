"""What the findings of this rule have in common."""

from __future__ import annotations

from wellcond.diagnosis.evidence import Evidence
from wellcond.diagnosis.finding import Finding, Severity
from wellcond.diagnosis.inspection.inspection import Inspection
from wellcond.diagnosis.inspection.outputs import OutputFacts
from wellcond.diagnosis.probes.sight import Sight
from wellcond.diagnosis.reading import last_layer, outputs_of

CALLS = {"Softmax": "softmax", "LogSoftmax": "log_softmax", "Sigmoid": "sigmoid", "Relu": "ReLU", "Tanh": "tanh",
         "LogSigmoid": "logsigmoid"}  # fmt: skip
"""How operations are called."""


def mismatch(
    inspection: Inspection, output: OutputFacts, summary: str, reason: str, remedy: str, *, treatment: str = "",
    severity: Severity = "severe", layer: str | None = None, **more: float | str,
) -> Finding:  # fmt: skip
    """A finding of this rule, with what the loss takes and its value.

    Args:
        inspection: What was inspected.
        output: Outputs and loss.
        summary: What is wrong.
        reason: Why that matters.
        remedy: What to write.
        treatment: Name of a remedy.
        severity: How bad it is.
        layer: Where it is; None for the last layer.
        more: Further numbers.
    """
    numbers: dict[str, float | str] = {"loss takes": output.loss_kind, "last operation": (output.tail or ("none",))[0]}
    if output.loss is not None:
        numbers["loss"] = output.loss
    if output.best_constant is not None:
        numbers["loss of the best constant"] = output.best_constant
    return Finding(
        rule="output-loss-mismatch",
        layer=last_layer(inspection, output) if layer is None else layer,
        severity=severity,
        basis="proven",
        summary=summary,
        evidence=numbers | {name.replace("_", " "): value for name, value in more.items()},
        reason=reason,
        treatment=treatment,
        remedy=remedy,
    )


def is_flattened_apart(output: OutputFacts) -> bool:
    """Whether the loss is right for labels that are flattened in another order than the outputs."""
    flattened, right = output.flattened_perfect_loss, output.perfect_loss
    return flattened is not None and right is not None and flattened < right


def seen_by_loss(evidence: Evidence) -> tuple[Inspection, OutputFacts, Sight] | None:
    """The inspection, its outputs and what the loss sees of them; None if one of them is not known."""
    both = outputs_of(evidence)
    sight = None if evidence.behavior is None else evidence.behavior.sight
    return None if both is None or sight is None else (*both, sight)
