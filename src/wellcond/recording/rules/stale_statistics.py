"""stale-statistics: running statistics of a BatchNorm that are far from those of the batches.

Wrong: `nn.BatchNorm2d(64, momentum=1e-4)`, or a BatchNorm left in evaluation mode while the layers before it learn.
"""

from __future__ import annotations

from collections.abc import Iterator

from wellcond.diagnosis.finding import Finding
from wellcond.diagnosis.threshold import Condition, Threshold
from wellcond.recording.levels import finite, last_before, median, smooth
from wellcond.recording.run_rule import RunEvidence, run_rule
from wellcond.results import number
from wellcond.results.quantities import STATISTICS_GAP
from wellcond.results.text import named

GAP = Threshold(
    "distance of running from batch statistics, in running standard deviations", 1.0, 4.0,
    origin="batches of 8 without pixels have 0.6, of 4 have 1.15 and of 2 have 2.7, by the spread of their variance alone",
)  # fmt: skip
GROWTH = Condition(
    "distance / its lowest level so far", 3.0, origin="the spread of small batches is the same all the time"
)
ENOUGH = Condition("samples", 8, origin="medians of three before and after")
SETTLED = Condition("steps", 100, origin="a momentum of 0.1 forgets the first statistics in some 50 steps")


@run_rule("stale-statistics", quantity=STATISTICS_GAP)
def stale_statistics(evidence: RunEvidence) -> Iterator[Finding]:
    """Running statistics lie more than one standard deviation from the batches', and three times as far as before.

    A warning; severe from four, which no batch shows by chance. The first 100 steps are not judged.
    """
    stale = []
    for layer in evidence.history.layers(STATISTICS_GAP):
        series = finite(evidence.history.series(STATISTICS_GAP, layer))
        if len(series) < ENOUGH.at or evidence.step < SETTLED.at:
            continue
        levels = smooth(series.values, 3)
        now, least = median(series.values[-3:]), float(levels.min())
        if GAP.is_severe(now) or (GAP.is_warning(now) and now > GROWTH.at * least):
            start = last_before(levels > min(GAP.warn, max(least + 0.25 * (now - least), 2 * least)))
            stale.append((now, layer, int(series.steps[min(start, len(series) - 1)])))
    for now, layer, begin in sorted(stale, reverse=True):
        yield Finding(
            rule="stale-statistics",
            layer=layer,
            severity="severe" if GAP.is_severe(now) else "warning",
            basis="measured",
            summary=f"since step {begin} the running statistics of {named(layer)} are {number(now)} standard deviations "
            "from those of the batches.",
            evidence={"distance": now},
            limits=GAP.limits(),
            reason="In evaluation the layer normalizes by its running statistics, so what comes after it sees numbers "
            "that it was not trained on.",
            remedy="# leave the BatchNorm in training mode with momentum 0.1, or recompute its statistics before "
            "evaluation: torch.optim.swa_utils.update_bn(loader, model)",
            step=begin,
        )
