"""vanishing-gradient: a layer whose gradient fades while those of others do not.

Wrong: gates or tanhs that training drives into saturation, a branch that the others take over from.
"""

from __future__ import annotations

from collections.abc import Iterator

from wellcond.diagnosis.finding import Finding
from wellcond.diagnosis.threshold import Threshold
from wellcond.recording.judging.relative_gradients import relative_gradients
from wellcond.recording.judging.run_rule import RunEvidence, run_rule
from wellcond.recording.judging.shares import severity_of
from wellcond.results import number
from wellcond.results.quantities import GRADIENT_NORM
from wellcond.results.text import named

FADED = Threshold(
    "gradient of a layer / median of the layers, over what it was at first", 1e-3, 1e-6, bad="below",
    origin="in healthy trainings of the benchmark it stays within 0.1 and 10; below 1e-6 float32 rounds it away",
)  # fmt: skip


@run_rule("vanishing-gradient", quantity=GRADIENT_NORM)
def vanishing_gradient(evidence: RunEvidence) -> Iterator[Finding]:
    """A layer's gradient has fallen by a factor of 1,000 next to those of the other layers.

    Severe from a million if the loss does not fall; a warning, or a note while the loss falls. A gradient of exactly
    zero is another rule's.
    """
    for each in relative_gradients(evidence):
        if FADED.is_warning(each.change) and each.change > 0:
            yield Finding(
                rule="vanishing-gradient",
                layer=each.layer,
                severity=severity_of(evidence, is_far=FADED.is_severe(each.change)),
                basis="measured",
                summary=f"the gradient of {named(each.layer)} is {number(each.change)} times what it was at first, "
                f"next to those of the other layers; it has faded since step {each.since(FADED.warn)}.",
                evidence={"gradient / other layers, over that at first": each.change},
                limits=FADED.limits(),
                reason="A layer whose gradient is a thousandth of the others' learns a thousand times more slowly.",
                remedy=f"# look at what comes after {named(each.layer)}: saturated activations, gates, small weights",
                step=each.since(FADED.warn),
            )
