"""stale-statistics: running statistics of a BatchNorm that are far from those of the batches.

Wrong:
    norm = nn.BatchNorm2d(64, momentum=1e-4)
Right:
    norm = nn.BatchNorm2d(64)  # 0.1, the weight of a new batch
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from wellcond.diagnosis.finding import Finding
from wellcond.diagnosis.threshold import Condition, Threshold
from wellcond.recording.history import Series
from wellcond.recording.judging.levels import began, finite, last_before, median, smooth
from wellcond.recording.judging.run_rule import RunEvidence, run_rule
from wellcond.recording.judging.shares import BEGINNING
from wellcond.recording.judging.stopped_statistics import STEADY, Stop, stopped_at
from wellcond.recording.judging.validation_rise import validation_rise
from wellcond.results import number
from wellcond.results.quantities import STATISTICS_GAP, VALIDATION_LOSS
from wellcond.results.text import named

GAP = Threshold(
    "distance of running from batch statistics, in running standard deviations", 1.0, 3.5,
    origin="batches of 8 without pixels have 0.6, of 4 have 1.15 and of 2 have 2.7, by the spread of variances",
)  # fmt: skip
HARMFUL = Condition(
    "the same, where validation shows it", 0.25, origin="batches of 32 without pixels have 0.25, by the spread of means"
)
LATER = Condition("validations that show it", 3, origin="most of five, as at the start")
GROWTH = Condition(
    "distance / its lowest level so far", 3.0, origin="the spread of small batches is the same all the time"
)
APART = Condition("validation loss / training loss", 2.0, origin="running statistics are used in validation alone")
GREW = Condition(
    "distance / its least since the statistics stand still",
    1.5,
    origin="weights that go on move further away from them",
)
EARLY = 5
"""First validations that are compared with the training loss."""
ENOUGH = Condition("samples", 5, origin="medians of three before and after, which may share one")


@run_rule("stale-statistics", quantity=STATISTICS_GAP)
def stale_statistics(evidence: RunEvidence) -> Iterator[Finding]:
    """Running statistics lie more than one standard deviation from the batches', and three times as far as before.

    A warning; severe from 3.5, which no batch shows by chance, and if they were never nearer but most of the first five
    validation losses are twice the training loss. So is a quarter of a standard deviation, three times the least, if
    validation losses are twice the training loss since then, or if they have been so, or rise, only since the momentum
    was set to next to 0, and the distance has grown by half since. The first 100 steps are not judged.
    """
    stale, have_stopped = [], set()
    is_apart, since = _validation_is_apart(evidence), _apart_since(evidence)
    rise = validation_rise(evidence)
    worse = [step for step in (since, None if rise is None else rise.step) if step is not None]
    for layer in evidence.history.layers(STATISTICS_GAP):
        series = finite(evidence.history.series(STATISTICS_GAP, layer))
        stopped = stopped_at(evidence, layer)
        acts = None if stopped is None else _acts_since(stopped, worse)
        if stopped is not None and acts is not None and _grows_since(series, stopped.step):
            stale.append((median(series.values[-3:]), layer, acts))
            have_stopped.add(layer)
            continue
        if len(series) < ENOUGH.at or evidence.step < STEADY.at:
            continue
        levels = smooth(series.values, 3)
        now, least = median(series.values[-3:]), float(levels.min())
        if GAP.is_severe(now) or (GAP.is_warning(now) and (is_apart or now > GROWTH.at * least)):
            left = max(least + BEGINNING * (now - least), 2 * least)  # where it leaves its lowest level
            start = last_before(levels > min(GAP.warn, left))
            stale.append((now, layer, began(series, start)))
        elif since is not None:
            before = series.values[(series.steps >= STEADY.at) & (series.steps < since)]
            if len(before) and now > max(HARMFUL.at, GROWTH.at * median(before)):
                stale.append((now, layer, since))
    is_apart = is_apart or since is not None
    for now, layer, begin in sorted(stale, reverse=True):
        yield Finding(
            rule="stale-statistics",
            layer=layer,
            severity="severe" if GAP.is_severe(now) or is_apart or layer in have_stopped else "warning",
            basis="measured",
            summary=f"since step {begin} the running statistics of {named(layer)} are {number(now)} standard "
            "deviations from those of the batches.",
            evidence={"distance": now},
            limits=GAP.limits(),
            reason="In evaluation the layer normalizes by its running statistics, so what comes after it sees numbers "
            "that it was not trained on.",
            remedy="# leave the BatchNorm in training mode with momentum 0.1, or recompute its statistics before "
            "evaluation: torch.optim.swa_utils.update_bn(loader, model)",
            step=begin,
        )


def _acts_since(stopped: Stop, worse: Sequence[int]) -> int | None:
    """Since when stopped statistics act: at once if they were stopped at once, or as it shows; None if it does not."""
    shown = [step for step in worse if step >= stopped.step]
    return None if not shown else stopped.step if stopped.is_at_once else min(shown)


def _grows_since(series: Series, step: int) -> bool:
    """Whether a distance is harmful, and has grown since a step: the spread of small batches stays the same."""
    since = series.since(step)
    now = median(since.values[-3:])
    return len(since) >= LATER.at and now > max(HARMFUL.at, GREW.at * float(since.values.min()))


def _apart_since(evidence: RunEvidence) -> int | None:
    """Since when validation losses are twice the training loss, which they were not before; None if they are not."""
    validation = finite(evidence.history.series(VALIDATION_LOSS))
    levels = [abs(evidence.loss.level_at(step)) for step in validation.steps.tolist()]
    start = last_before(validation.values > APART.at * np.array(levels))
    return began(validation, start) if 1 < start <= len(validation) - LATER.at else None


def _validation_is_apart(evidence: RunEvidence) -> bool:
    """Whether most of the first validation losses were twice the training loss: too early for overfitting."""
    first = finite(evidence.history.series(VALIDATION_LOSS))
    validations = list(zip(first.steps[:EARLY].tolist(), first.values[:EARLY].tolist(), strict=True))
    apart = [value > APART.at * abs(evidence.loss.level_at(step)) for step, value in validations]
    return len(apart) == EARLY and sum(apart) > EARLY // 2
