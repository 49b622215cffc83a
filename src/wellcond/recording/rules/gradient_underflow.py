"""gradient-underflow: gradients that are rounded to zero between the backward pass and the step.

Wrong:
    scale = scale / 2  # at every step, long after the overflow
Right:
    scale = scale / 2 if overflows else scale
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from wellcond.diagnosis.finding import Finding
from wellcond.diagnosis.threshold import Condition
from wellcond.recording.judging.held import unheld_layers
from wellcond.recording.judging.levels import began, finite, last_before, median
from wellcond.recording.judging.run_rule import RunEvidence, run_rule
from wellcond.results import number
from wellcond.results.quantities import GRADIENT_NORM, UNCLIPPED_GRADIENT_NORM

FALLEN = Condition(
    "gradient of the backward pass / before", 1e-3, origin="2⁻¹⁰: the normal numbers of float16 span 2⁻¹⁴ to 2¹⁵"
)
SAMPLES = Condition("samples in a row", 3, origin="a step may be skipped, with its gradients set to zero")


@run_rule("gradient-underflow", quantity=UNCLIPPED_GRADIENT_NORM)
def rounded_to_zero(evidence: RunEvidence) -> Iterator[Finding]:
    """Backward passes give a gradient, a thousandth of what it was or less, and the step gets exactly zero. Severe."""
    used = finite(evidence.history.series(GRADIENT_NORM))
    start = last_before(used.values == 0)
    if start == 0 or len(used) - start < SAMPLES.at or any(True for _ in unheld_layers(evidence)):
        return
    computed = finite(evidence.history.series(UNCLIPPED_GRADIENT_NORM))
    since = computed.values[np.isin(computed.steps, used.steps[start:])]
    before, now = median(computed.values[computed.steps < used.steps[start]]), median(since)
    if not 0 < now < FALLEN.at * before:
        return
    begin = began(used, start)
    yield Finding(
        rule="gradient-underflow",
        severity="severe",
        basis="proven",
        summary=f"since step {begin} backward passes give a gradient of {number(now)}, which was {number(before)}, and "
        "what the optimizer gets of it is exactly zero: nothing learns.",
        evidence={"gradient of backward passes": now, "before": before},
        reason="A loss that is scaled down gives gradients below the smallest number of half precision, 6·10⁻⁸ in "
        "float16.",
        remedy="# look at the loss scale: torch.amp.GradScaler halves it after an overflow and doubles it again",
        step=begin,
    )
