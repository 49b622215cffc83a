"""Outputs of which a training step asks for numbers that the last operation never gives."""

from __future__ import annotations

import math
from collections.abc import Iterator

from wellcond.diagnosis.evidence import Evidence
from wellcond.diagnosis.finding import Finding
from wellcond.diagnosis.rule import rule
from wellcond.diagnosis.rules.output_loss_mismatch.mismatch import CALLS
from wellcond.diagnosis.threshold import Threshold
from wellcond.results import number

BEYOND = Threshold(
    "loss with all outputs beyond the bound / at the bound", math.nan, 0.5, bad="below",
    origin="a quarter for a squared error of targets that are spread evenly from the bound on, and less if all are far "
    "from it",
)  # fmt: skip


@rule("output-loss-mismatch")
def beyond_bound(evidence: Evidence) -> Iterator[Finding]:
    """A ReLU, softplus, exponential, sigmoid or tanh at the end, where a step asks for outputs beyond its bound.

    With all outputs at the bound, the gradient of the loss pulls every one of them beyond, and the loss of one number
    there for all is less than half. A loss that falls without a bound does not count: it may be the output itself.
    """
    seen = None if evidence.behavior is None else evidence.behavior.beyond
    if seen is None or not BEYOND.is_severe(seen.least / seen.at_bound):
        return
    call = CALLS.get(seen.operation, seen.operation.lower())
    side = "below" if seen.is_low else "above"
    yield Finding(
        rule="output-loss-mismatch",
        severity="severe",
        basis="proven",
        summary=f"the model ends in a {call}, which gives nothing {side} {number(seen.bound)}, and the loss asks for "
        f"outputs {side} it everywhere: it is {number(seen.at_bound)} with all of them at {number(seen.bound)}, and "
        f"{number(seen.least)} beyond.",
        evidence={
            "last operation": seen.operation,
            "outputs": float(seen.pulled),
            "loss at the bound": seen.at_bound,
            "loss beyond": seen.least,
        },
        limits=BEYOND.limits(seen.at_bound),
        reason="All outputs go to the bound, where the slope is zero, and none of them is learned.",
        remedy=f"# leave out the {call} at the end of the model, or change the sign or the range of the targets",
    )
