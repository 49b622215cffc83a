"""vanishing-gradient: a layer whose gradient fades while those of others do not, or never arrives.

Wrong:
    h = torch.tanh(self.fc(h))  # in a stack of twenty
Right:
    h = h + torch.tanh(self.fc(self.norm(h)))
"""

from __future__ import annotations

from collections.abc import Iterator

from wellcond.diagnosis.finding import Finding
from wellcond.diagnosis.threshold import Condition, Threshold
from wellcond.recording.judging.levels import finite, median
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
LOST = Threshold(
    "gradient of a layer / that of the layer with the largest, in a network that has not learned", 1e-4, 1e-5,
    bad="below", origin="in healthy trainings of the examination it is 0.016 and more in the first steps",
)  # fmt: skip
LONG = Condition("steps without learning", 100, origin="trainings that work have lowered their loss by then")
FIRST = Condition("first samples", 5, origin="their median is not that of a single step")


@run_rule("vanishing-gradient", quantity=GRADIENT_NORM)
def never_arrives(evidence: RunEvidence) -> Iterator[Finding]:
    """From the start a layer's gradient is 10⁻⁴ of the largest of all layers, and the loss has not fallen by a fifth.

    Severe from 10⁻⁵. Not before step 100.
    """
    if evidence.step < LONG.at or evidence.loss.has_learned:
        return
    samples = {layer: finite(evidence.history.series(GRADIENT_NORM, layer)) for layer in evidence.layers}
    norms = {
        layer: median(series.values[: int(FIRST.at)]) for layer, series in samples.items() if len(series) >= FIRST.at
    }
    largest = max(norms.values(), default=0.0)
    faint = {layer: norm / largest for layer, norm in norms.items() if norm > 0 and LOST.is_warning(norm / largest)}
    if not faint:
        return
    layer = min(faint, key=faint.__getitem__)
    yield Finding(
        rule="vanishing-gradient",
        layer=layer,
        severity="severe" if LOST.is_severe(faint[layer]) else "warning",
        basis="measured",
        summary=f"the gradient of {named(layer)} is {number(faint[layer])} of the largest of all layers, and that of "
        f"{len(faint)} of {len(norms)} layers below {number(LOST.warn)}; the loss has not fallen.",
        evidence={"gradient / largest of all layers": faint[layer], "such layers": float(len(faint))},
        limits=LOST.limits(),
        reason="Every layer multiplies a gradient by its mean-field χ; a product of factors below 1 vanishes after a "
        "few layers.",
        remedy='model = wc.nn.with_norms(model, next(iter(loader))[0], "batch")  # then make the optimizer again',
        step=1,
    )


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
