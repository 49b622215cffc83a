"""exploding-gradient: gradients that have grown a thousandfold and stay so.

Wrong:
    loss.backward()  # through a recurrent weight that training pushes beyond 1
    optimizer.step()
Right:
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from wellcond.diagnosis.finding import Finding
from wellcond.diagnosis.threshold import Threshold
from wellcond.recording.judging.layer_changes import end_of_clipping
from wellcond.recording.judging.levels import began, finite, last_before, median, smooth
from wellcond.recording.judging.relative_gradients import FIRST_SAMPLES
from wellcond.recording.judging.run_rule import RunEvidence, run_rule
from wellcond.recording.judging.shares import severity_of
from wellcond.results import number
from wellcond.results.quantities import GRADIENT_NORM
from wellcond.results.text import named

GROWN = Threshold(
    "gradient of a layer / what it was at first", 1e3, 1e5,
    origin="the largest growth in healthy trainings of the benchmark is 120, of a generator against its critic",
)  # fmt: skip
LOST = Threshold(
    "rise of the loss since its lowest level / its fall until then", 0.3, 0.9,
    origin="a swing of the loss loses less than a third of what was learned; at 0.9 it is as good as all",
)  # fmt: skip


@run_rule("exploding-gradient", quantity=GRADIENT_NORM)
def no_longer_clipped(evidence: RunEvidence) -> Iterator[Finding]:
    """Gradients that were clipped are not any more, are ten times as long, and the loss rises with them.

    It must have lost a third of what was learned, and stay there; severe if it has lost all, which is said at once.
    Where gradients never were clipped, the loss that rises is `diverging`, of which growing gradients are a part.
    """
    rise = evidence.loss.rise
    if rise is None or not LOST.is_warning(rise.lost) or not (rise.is_lasting or LOST.is_severe(rise.lost)):
        return
    end = end_of_clipping(evidence, rise.step)
    if end is None:
        return
    yield Finding(
        rule="exploding-gradient",
        severity="severe" if LOST.is_severe(rise.lost) else "warning",
        basis="measured",
        summary=f"since step {rise.step} gradients are no longer clipped to {number(end.limit)}, and up to "
        f"{number(end.longest)} times as long; the loss rises from {number(rise.lowest)} to {number(rise.level)}.",
        evidence={"gradient / its limit before": end.longest, "clipped to": end.limit},
        limits={"clipped to": end.limit},
        reason="A step that is as much longer lands where the gradient is larger still.",
        remedy="nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # before every optimizer.step()",
        step=rise.step,
    )


@run_rule("exploding-gradient", quantity=GRADIENT_NORM)
def exploding_gradient(evidence: RunEvidence) -> Iterator[Finding]:
    """The gradient of a layer has grown a thousandfold since the first samples, and stays so.

    Severe from a hundred thousand if the loss does not fall; a warning, or a note while the loss falls.
    """
    for layer in evidence.history.layers(GRADIENT_NORM):
        series = finite(evidence.history.series(GRADIENT_NORM, layer))
        first = median(series.values[:FIRST_SAMPLES])
        growth = median(series.values[-3:]) / first if first > 0 else math.nan
        if len(series) <= 2 * FIRST_SAMPLES or not GROWN.is_warning(growth):
            continue
        start = last_before(smooth(series.values, 3) > math.sqrt(GROWN.warn) * first)
        begin = began(series, start)
        yield Finding(
            rule="exploding-gradient",
            layer=layer,
            severity=severity_of(evidence, is_far=GROWN.is_severe(growth)),
            basis="measured",
            summary=f"the gradient of {named(layer)} has grown {number(growth)}-fold, mostly since step {begin}.",
            evidence={"gradient / at first": growth},
            limits=GROWN.limits(first),
            reason="A step of the same rate is now as much longer, or the optimizer divides by a size that hides all "
            "that came before.",
            remedy="nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # before optimizer.step()",
            step=begin,
        )
