"""gradient-underflow: gradients that are too small for float16.

Wrong:
    with torch.autocast("cuda", torch.float16):
        loss = criterion(model(inputs), targets)
    loss.backward()
    optimizer.step()
Right:
    with torch.autocast("cuda", torch.float16):
        loss = criterion(model(inputs), targets)
    scaler.scale(loss).backward()  # scaler = torch.amp.GradScaler()
    scaler.step(optimizer)
    scaler.update()
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from wellcond.diagnosis.evidence import Evidence
from wellcond.diagnosis.finding import Finding
from wellcond.diagnosis.rule import rule
from wellcond.diagnosis.threshold import Condition, Threshold
from wellcond.results.quantities import GRADIENT_UNDERFLOW

LOST = Threshold(
    "share of the gradient's entries that are zero in float16 and not in float32", 0.2, 0.5,
    origin="the twelve sound set-ups of `benchmarks.precision_cases` have 0, a faulty one 0.93; the "
    "two limits are chosen between",
)  # fmt: skip
WRONG = Condition(
    "distance of the gradient from that in float32, relative to it", 0.1,
    origin="below it what is lost are entries that hardly count; sound set-ups in float16 have 0.0004 to 0.011",
)  # fmt: skip


@rule("gradient-underflow", quantity=GRADIENT_UNDERFLOW)
def gradient_underflow(evidence: Evidence) -> Iterator[Finding]:
    """A fifth or more of the gradient's entries are zero in float16, although they are not in float32.

    Below 6e-8 float16 has no numbers, and below 6e-5 few. Severe from half of the entries. Only where the gradient as a
    whole is wrong by a tenth.
    """
    rounding = None if evidence.inspection is None else evidence.inspection.rounding
    if rounding is None or rounding.dtype != torch.float16 or rounding.gradient_error is None:
        return
    if not LOST.is_warning(rounding.lost) or rounding.gradient_error < WRONG.at:
        return
    name, share = rounding.most_lost
    scale = "without a loss scale" if rounding.scale is None else f"at a loss scale of {rounding.scale:g}"
    yield Finding(
        rule="gradient-underflow",
        layer=name.rpartition(".")[0] or name,
        severity="severe" if LOST.is_severe(rounding.lost) else "warning",
        basis="proven",
        summary=f"{rounding.lost:.0%} of the gradient's entries are zero in float16 and not in float32, {scale}; "
        f"in {name} it is {share:.0%}.",
        evidence={
            "share that is zero": rounding.lost,
            "error of the gradient": rounding.gradient_error,
            "loss scale": 1.0 if rounding.scale is None else rounding.scale,
        },
        limits=LOST.limits(),
        reason="Below 6e-8 float16 has no number but zero. A loss that is multiplied before backward() gives gradients "
        "that are larger by as much, and are divided again in float32.",
        remedy="# use scaler = torch.amp.GradScaler() as scaler.scale(loss).backward(), scaler.step(optimizer), "
        "scaler.update(), and pass it: wc.Problem(..., scaler=scaler); or torch.bfloat16, which needs none"
        if rounding.scale is None
        else "# use GradScaler's usual first scale of 65536, or torch.bfloat16, which needs none",
    )
