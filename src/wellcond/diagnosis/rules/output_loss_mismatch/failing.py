"""Losses that cannot be computed, or are no single number."""

from __future__ import annotations

import math
from collections.abc import Iterator

from wellcond.diagnosis.evidence import Evidence
from wellcond.diagnosis.finding import Finding
from wellcond.diagnosis.reading import last_layer
from wellcond.diagnosis.rule import rule
from wellcond.remedies.loss_code import wrapped_loss


@rule("output-loss-mismatch")
def loss_fails(evidence: Evidence) -> Iterator[Finding]:
    """A loss that raises on what the model returns."""
    inspection = evidence.inspection
    if inspection is None or not inspection.loss_error:
        return
    output = inspection.output
    yield Finding(
        rule="output-loss-mismatch",
        layer="" if output is None else last_layer(inspection, output),
        severity="severe",
        basis="proven",
        summary=f"the loss cannot be computed: {inspection.loss_error}.",
        evidence={} if output is None else {"outputs": str(output.shape), "targets": str(output.target_shape)},
        reason="Its outputs and targets do not fit in shape, type or range.",
        remedy="# compare shape, type and range of outputs and targets with what the loss takes",
    )


@rule("output-loss-mismatch")
def several_losses(evidence: Evidence) -> Iterator[Finding]:
    """A loss that is several numbers, one per example or pixel, which backward() refuses: reduction="none"."""
    inspection = evidence.inspection
    shape = None if inspection is None else inspection.loss_shape
    if shape is None or math.prod(shape) == 1:
        return
    yield Finding(
        rule="output-loss-mismatch",
        severity="severe",
        basis="proven",
        summary=f"the loss is {math.prod(shape)} numbers of shape {list(shape)}, and backward() takes one.",
        evidence={"shape of the loss": str(list(shape))},
        reason="A gradient is that of one number: the mean over the batch, or a weighted one.",
        remedy=wrapped_loss("several", "several(outputs, targets).mean()"),
    )
