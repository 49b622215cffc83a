"""The learning rate of a run at its steps, next to the largest stable one."""

from __future__ import annotations

import math

import numpy as np

from wellcond.recording.history import Series
from wellcond.recording.judging.levels import finite, last_before
from wellcond.recording.judging.run_rule import RunEvidence
from wellcond.results.quantities import LR, MAX_LR


def at(series: Series, step: int) -> float:
    """The value of a series that is recorded when it changes; NaN before its first sample."""
    place = int(np.searchsorted(series.steps, step, side="right")) - 1
    return float(series.values[place]) if place >= 0 else math.nan


def lr_ratio(evidence: RunEvidence, step: int) -> float:
    """The learning rate at a step over the lowest in the half of the run before it; 1 if it is not known."""
    rates = finite(evidence.history.series(LR))
    first, last = np.searchsorted(rates.steps, (step // 2, step)).tolist()
    before = [at(rates, step // 2), *rates.values[first:last].tolist()]
    lowest = min((each for each in before if each > 0), default=math.nan)
    now = max(at(rates, step), at(rates, step + 2))
    return now / lowest if now > 0 and lowest > 0 else 1.0


def above_limit(evidence: RunEvidence, step: int) -> tuple[int, float, float] | None:
    """Since when the rate was above the largest stable one, with both as they were at a step; None if it was not."""
    limits = finite(evidence.history.series(MAX_LR))
    last = int(np.searchsorted(limits.steps, step, side="right"))
    limits = Series(limits.steps[:last], limits.values[:last])
    rates = finite(evidence.history.series(LR))
    if not len(limits) or not len(rates):
        return None
    lrs = np.array([at(rates, int(step)) for step in limits.steps])
    start = last_before((lrs > limits.values) & (limits.values > 0))
    if start == len(limits):
        return None
    if start == 0:
        return 1, float(lrs[-1]), float(limits.values[-1])
    earlier, later = int(limits.steps[start - 1]), int(limits.steps[start])
    for change in rates.steps[(rates.steps > earlier) & (rates.steps <= later)].tolist():
        share = (change - earlier) / (later - earlier)
        limit = limits.values[start - 1] ** (1 - share) * limits.values[start] ** share
        if at(rates, change) > limit:
            return change, float(lrs[-1]), float(limits.values[-1])
    return later, float(lrs[-1]), float(limits.values[-1])
