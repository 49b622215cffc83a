"""attention-saturation: attention that looks at one position only, so that its softmax has no slope.

Wrong:
    scores = q @ k.mT
Right:
    scores = q @ k.mT / q.shape[-1] ** 0.5
"""

from __future__ import annotations

from collections.abc import Iterator

from wellcond.diagnosis.evidence import Evidence
from wellcond.diagnosis.finding import Finding
from wellcond.diagnosis.rule import rule
from wellcond.diagnosis.severity import of_symptom
from wellcond.diagnosis.threshold import Condition, Threshold
from wellcond.results import number

SHARP_ROWS = Threshold(
    "share of attention rows with one probability above 0.99", 0.5, 0.9,
    healthy=("attention: saturated rows",), origin="the median of healthy networks is 0",
    inside_healthy_because="a trained BERT that seeks one token has 0.93; where the network has learned it is a note",
)  # fmt: skip
LOGITS = Threshold(
    "standard deviation of a row's logits", 5.0, 10.0, healthy=("attention: standard deviation of logits",),
    origin="healthy networks reach 4.6, in a trained one. Fresh ones have 1 or less, and √d times as much without the "
    "1/√d: 5.7 for 32 dimensions, 11 for 128",
)  # fmt: skip
CHOICES = Condition("positions to choose from", 3, origin="of two positions one has at least half of the weight")


@rule("attention-saturation")
def attention_saturation(evidence: Evidence) -> Iterator[Finding]:
    """Attention in which positions look at one other only: one probability above 0.99 in half of the rows.

    Also if the logits have a standard deviation above 5; above 10 where a softmax has no rows of queries, as in a
    pooling by attention. Severe in nine of ten rows, above 10, or if a trial does not
    show that the network trains; a network that has learned may be sharp.
    """
    inspection, trial = evidence.inspection, evidence.trial
    if inspection is None:
        return
    output, is_doubtful = inspection.output, trial is not None and not trial.trains
    for seen in inspection.attention:
        is_sharp = seen.saturated >= SHARP_ROWS.warn or seen.logit_std >= LOGITS.warn
        if seen.choices < CHOICES.at or not is_sharp:
            continue
        if seen.ndim < 3 and not LOGITS.is_severe(seen.logit_std):  # weights of a pooling, or shares of a gate
            continue
        if output is not None and output.shape == seen.shape and output.tail[:1] in (("Softmax",), ("LogSoftmax",)):
            continue  # the model's own probabilities
        is_far = seen.saturated >= SHARP_ROWS.severe or LOGITS.is_severe(seen.logit_std)
        yield Finding(
            rule="attention-saturation",
            layer=seen.name,
            severity=of_symptom(evidence, is_far=is_doubtful or is_far),
            basis="measured",
            summary=f"{seen.saturated:.0%} of the attention rows at {seen.name} put more than 0.99 of their weight on "
            f"one of {seen.choices} positions; their logits have a standard deviation of {number(seen.logit_std)}.",
            evidence={
                "saturated rows": seen.saturated,
                "relative entropy": seen.entropy,
                "std of logits": seen.logit_std,
            },
            reason="The slope of a softmax, p(1 − p), is almost zero there. The product of a query and a key of "
            "variance 1 has variance d, and needs the factor 1/√d.",
            treatment="softer-attention",
            remedy="# divide the scores by √d in the attention's forward, and put a LayerNorm on queries and keys",
        )
