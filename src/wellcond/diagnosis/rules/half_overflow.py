"""half-overflow: what is finite in float32, and NaN or infinite in the half precision of training.

Wrong:
    with torch.autocast("cuda", torch.float16):
        norm = (x.half() ** 2).sum()  # numbers up to 65,504
Right:
    with torch.autocast("cuda", torch.bfloat16):
        norm = (x.float() ** 2).sum()
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch

from wellcond.diagnosis.evidence import Evidence
from wellcond.diagnosis.finding import Finding
from wellcond.diagnosis.inspection.rounding import Rounded, Rounding
from wellcond.diagnosis.rule import rule
from wellcond.network.calling import dtype_name
from wellcond.results import number
from wellcond.results.text import named

IN_FLOAT32 = "with torch.autocast(x.device.type, enabled=False): y = layer(x.float())"
WIDER = f"# use torch.bfloat16, whose range is that of float32, or compute this in float32: {IN_FLOAT32}"
EDGE = f"# compute this in float32: {IN_FLOAT32}; an eps below 6e-8 is zero in float16"


@rule("half-overflow")
def half_overflow(evidence: Evidence) -> Iterator[Finding]:
    """A layer, the loss or a gradient is NaN or infinite in half precision, and finite in float32.

    The first batch is passed in the precision of training and in float32. No threshold: one value is enough. A gradient
    counts only if a lower loss scale does not help.
    """
    rounding = None if evidence.inspection is None else evidence.inspection.rounding
    if rounding is None or not math.isfinite(rounding.reference_loss):
        return
    first = next((layer for layer in rounding.layers if not layer.is_finite), None)
    if first is not None:
        yield _in_layer(rounding, first)
    elif not math.isfinite(rounding.loss):
        yield _finding(
            rounding,
            "",
            f"the loss is {rounding.loss} in {dtype_name(rounding.dtype)} although all layers are finite, and "
            f"{number(rounding.reference_loss)} in float32.",
            {},
            "# compute the loss in float32: loss(outputs.float(), targets), with sums and means inside of it",
        )
    elif rounding.overflows:
        yield _finding(
            rounding,
            rounding.overflows.rpartition(".")[0] or rounding.overflows,
            f"the gradient of {rounding.overflows} is NaN or infinite in {dtype_name(rounding.dtype)}, at "
            f"{'every loss scale down to 1' if rounding.scale is not None else 'a loss that is not scaled'}, and "
            "finite in float32.",
            {},
            WIDER,
        )


def _in_layer(rounding: Rounding, first: Rounded) -> Finding:
    dtype = dtype_name(rounding.dtype)
    most = float(torch.finfo(rounding.dtype).max)
    place = named(first.layer) if first.has_finite_input else f"the code just before {named(first.layer)}"
    numbers = {"largest number in float32": first.largest}
    if first.largest > most:
        summary = (
            f"{place} is the first to return NaN or infinity in {dtype}, which ends at {most:,.0f}: in float32 its "
            f"numbers reach {number(first.largest)}."
        )
        return _finding(rounding, first.layer, summary, numbers, WIDER)
    summary = (
        f"{place} is the first to return NaN or infinity in {dtype}, and is finite in float32: a number in between "
        "overflows, or one that is divided by or whose logarithm is taken is rounded to zero."
    )
    return _finding(rounding, first.layer, summary, numbers, EDGE if rounding.dtype == torch.float16 else WIDER)


def _finding(rounding: Rounding, layer: str, summary: str, numbers: dict[str, float], remedy: str) -> Finding:
    return Finding(
        rule="half-overflow",
        layer=layer,
        severity="severe",
        basis="proven",
        summary=summary,
        evidence={"dtype": dtype_name(rounding.dtype), "loss in float32": rounding.reference_loss, **numbers},
        reason="One NaN in the loss makes every gradient NaN. A GradScaler then skips every step, and without one all "
        "weights become NaN.",
        remedy=remedy,
        begins_here=True,
    )
