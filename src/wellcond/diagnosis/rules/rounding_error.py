"""rounding-error: a layer whose numbers half precision does not hold.

Wrong:
    position = torch.arange(4096, dtype=torch.bfloat16)  # whole numbers up to 256
    angle = position[:, None] * frequency
Right:
    position = torch.arange(4096, dtype=torch.float32)
    angle = (position[:, None] * frequency).to(x.dtype)
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import torch

from wellcond.diagnosis.evidence import Evidence
from wellcond.diagnosis.finding import Finding
from wellcond.diagnosis.inspection.rounding import Rounding
from wellcond.diagnosis.rule import rule
from wellcond.diagnosis.threshold import Condition, Threshold
from wellcond.network.calling import dtype_name
from wellcond.results.quantities import ROUNDING_ERROR
from wellcond.results.text import named

ERROR = Threshold(
    "distance of a layer's output from that in float32, over what differs between examples", 0.3, 0.6,
    origin="the layers of sound set-ups in `benchmarks.precision_cases` have up to 0.04, the faulty ones 0.5 and more",
)  # fmt: skip
JUMP = Condition(
    "growth of this distance in one layer", 8.0, origin="chosen: rounding alone adds up over layers, and does not jump"
)
WRONG_GRADIENT = Condition(
    "distance of the gradient from that in float32, relative to it", 0.3,
    origin="from here on a step goes to a large part elsewhere; sound ones have up to 0.08, faulty ones 0.7 and more",
)  # fmt: skip
WRONG_LOSS = Threshold(
    "distance of the loss from that in float32, relative to it",
    0.1,
    0.5,
    origin="sound set-ups have up to 0.00012; chosen well above",
)


class _Place(NamedTuple):
    layer: str
    where: str
    before: float
    after: float


@rule("rounding-error", quantity=ROUNDING_ERROR)
def rounding_error(evidence: Evidence) -> Iterator[Finding]:
    """A layer's output, the input that the code before it makes, or the loss differs from float32 by 30 % at once.

    The difference is relative to what differs between the examples, and must be 8 times that of what came in: rounding
    alone grows slowly. Severe from 60 %, if the gradient is wrong by 30 % too. Nothing is said of models that draw
    random numbers, which may be others in float32.
    """
    rounding = None if evidence.inspection is None else evidence.inspection.rounding
    if rounding is None or rounding.is_random or not math.isfinite(rounding.loss):
        return
    if (place := _place(rounding)) is None:
        return
    wrong = rounding.gradient_error
    limit = WRONG_LOSS if not place.layer and place.where == "the loss" else ERROR
    is_wrong = wrong is None or wrong > WRONG_GRADIENT.at
    yield Finding(
        rule="rounding-error",
        layer=place.layer,
        severity="severe" if limit.is_severe(place.after) and is_wrong else "warning",
        basis="measured",
        summary=f"in {dtype_name(rounding.dtype)} {place.where} differs from float32 by {place.after:.0%}, although "
        f"what goes in differs by {place.before:.1%} only"
        + ("." if wrong is None else f"; the gradient is wrong by {wrong:.0%}."),
        evidence={
            "error": place.after,
            "error before": place.before,
            "error of the gradient": "not known" if wrong is None else wrong,
        },
        limits=limit.limits(),
        reason=f"{dtype_name(rounding.dtype)} keeps {_bits(rounding.dtype)} bits: differences of large numbers, long "
        f"sums and positions above {2 ** _bits(rounding.dtype):,} are rounded away.",
        remedy="# compute this in float32: with torch.autocast(x.device.type, enabled=False): y = layer(x.float())",
    )


def _place(rounding: Rounding) -> _Place | None:
    """Where the error jumps first."""
    least = float(torch.finfo(rounding.dtype).eps)
    so_far = least
    for layer in rounding.layers:
        if not layer.is_finite:
            return None
        if ERROR.is_warning(layer.before) and layer.before > JUMP.at * so_far:
            return _Place(layer.layer, f"the code just before {named(layer.layer)}", so_far, layer.before)
        if ERROR.is_warning(layer.after) and layer.after > JUMP.at * max(layer.before, least):
            return _Place(layer.layer, named(layer.layer), layer.before, layer.after)
        so_far = max(so_far, layer.after)
    error = abs(rounding.loss - rounding.reference_loss) / max(abs(rounding.reference_loss), 1e-30)
    if WRONG_LOSS.is_warning(error) and error > JUMP.at * so_far:
        return _Place("", "the loss", so_far, error)
    return None


def _bits(dtype: torch.dtype) -> int:
    """Bits of the mantissa, with the one that is not stored."""
    return 8 if dtype == torch.bfloat16 else 11
