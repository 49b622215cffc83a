"""summed-loss: a loss that is a sum over the batch instead of a mean.

Wrong:
    criterion = nn.CrossEntropyLoss(reduction="sum")
Right:
    criterion = nn.CrossEntropyLoss()
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from wellcond.diagnosis.evidence import Evidence
from wellcond.diagnosis.finding import Finding
from wellcond.diagnosis.rule import rule
from wellcond.remedies.loss_code import wrapped_loss


@rule("summed-loss")
def summed_loss(evidence: Evidence) -> Iterator[Finding]:
    """A loss that is the sum over a batch, not the mean: the losses of two halves add up to it, to four digits.

    For N examples gradient and curvature are then N times larger, and the rate of SGD has to be N times smaller; Adam's
    steps do not depend on it. A note: the rate is judged by what a trial does.
    """
    inspection = evidence.inspection
    if inspection is None or not inspection.is_summed or inspection.batch_size < 2:
        return
    yield Finding(
        rule="summed-loss",
        severity="note",
        basis="proven",
        summary=f"the loss is a sum over the {inspection.batch_size} examples of a batch: the curvature grows with "
        "the batch size, and the largest stable rate shrinks with it.",
        evidence={
            "batch size": float(inspection.batch_size),
            "loss": inspection.loss if inspection.loss is not None else math.nan,
        },
        reason="The Hessian of a sum of N terms is N times that of their mean, and the stable rate 1/N of it.",
        remedy=wrapped_loss("summed_loss", f"summed_loss(outputs, targets) / {inspection.batch_size}"),
    )
