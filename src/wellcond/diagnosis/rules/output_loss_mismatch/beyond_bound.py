"""Outputs of which a training step asks for numbers that the last operation never gives."""

from __future__ import annotations

import math
from collections.abc import Iterator

from wellcond.diagnosis.evidence import Evidence
from wellcond.diagnosis.finding import Finding
from wellcond.diagnosis.probes.beyond import BOUNDS
from wellcond.diagnosis.rule import rule
from wellcond.diagnosis.rules.output_loss_mismatch.mismatch import CALLS
from wellcond.diagnosis.threshold import Threshold
from wellcond.results import number

BEYOND = Threshold(
    "loss with all outputs beyond the bound / at the bound", math.nan, 0.5, bad="below",
    origin="a quarter for a squared error of targets that are spread evenly from the bound on, and less if all are far "
    "from it",
)  # fmt: skip


MISSED = Threshold(
    "(lowest loss within the bounds − beyond) / (loss at the bound − beyond)", math.nan, 0.3,
    origin="half for a ReLU and targets as often below zero as above, 0.5 to 0.8 for logits after a ReLU or "
    "a sigmoid; 0 where targets keep to the range, and 0.1 for a mean of 0.6 with noise of 0.5",
)  # fmt: skip
NEEDED = Threshold(
    "loss beyond the bounds / lowest loss within", math.nan, 0.5, bad="below",
    origin="0 to 0.2 where nothing but the bound is in the way; what else the loss is made of counts less than that",
)  # fmt: skip


@rule("output-loss-mismatch")
def beyond_bound(evidence: Evidence) -> Iterator[Finding]:
    """A ReLU, softplus, exponential, sigmoid or tanh at the end, where a step asks for outputs beyond its bound.

    With all outputs at the bound, the gradient of the loss pulls every one of them beyond, and the loss of one number
    there for all is less than half. Or it pulls each of many there by itself: of the way from the loss at the bound to
    the lowest, 30 % or more lie beyond the bounds. So it is for products of codes that pass a ReLU, too. A loss that
    falls without a bound does not count: it may be the output itself.
    """
    seen = None if evidence.behavior is None else evidence.behavior.beyond
    if seen is None:
        return
    missed = (seen.within - seen.least) / (seen.at_bound - seen.least) if seen.at_bound > seen.least else math.nan
    is_for_some = MISSED.is_severe(missed) and NEEDED.is_severe(seen.least / seen.within)
    is_for_all = math.isnan(seen.within) and BEYOND.is_severe(seen.least / seen.at_bound)
    if not is_for_all and not is_for_some:
        return
    is_product = seen.operation == "product"
    call = CALLS.get(seen.operation, seen.operation.lower())
    what = "gives products of numbers that are never negative" if is_product else f"ends in a {call}"
    side = "below" if seen.is_low else "above"
    high = BOUNDS[seen.operation][1]
    sides = f"{side} {number(seen.bound)}" + (f" or above {number(high)}" if math.isfinite(high) else "")
    ends = f"the model {what}, {'none' if is_product else 'which gives nothing'}"
    summary = (
        f"{ends} {side} {number(seen.bound)}, and the loss asks for outputs {side} it everywhere: it is "
        f"{number(seen.at_bound)} with all of them at {number(seen.bound)}, and {number(seen.least)} beyond."
        if is_for_all
        else f"{ends} {sides}, and the loss asks for others: it cannot fall below {number(seen.within)} with outputs "
        f"that the model can give, and is {number(seen.least)} with {seen.pulled} of them beyond."
    )
    numbers: dict[str, float | str] = {
        "last operation": seen.operation,
        "outputs": float(seen.pulled),
        "loss at the bound": seen.at_bound,
        "loss beyond": seen.least,
    }
    yield Finding(
        rule="output-loss-mismatch",
        severity="severe",
        basis="proven",
        summary=summary,
        evidence=numbers if is_for_all else numbers | {"lowest loss within": seen.within},
        limits=BEYOND.limits(seen.at_bound) if is_for_all else MISSED.limits(),
        reason="Outputs that are to be beyond the bound go to it, where the slope is zero, and are not learned.",
        remedy="# let the codes be negative, without a ReLU, or add a learned bias to their products"
        if is_product
        else f"# leave out the {call} at the end of the model, or change the sign or the range of the targets",
    )
