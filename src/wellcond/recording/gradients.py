"""How gradient norms of a run compare with what they were before a step."""

from __future__ import annotations

import math

import numpy as np

from wellcond.recording.history import Series
from wellcond.recording.levels import finite, median
from wellcond.recording.run_rule import RunEvidence
from wellcond.results.quantities import GRADIENT_NORM, UNCLIPPED_GRADIENT_NORM

SAMPLES_BEFORE = 16
"""Latest samples before a step that are compared with."""


def growth_of_gradients(evidence: RunEvidence, step: int) -> float:
    """Norm of the whole network's gradient since a step over that before, without clipping; NaN if not measured."""
    return growth(whole_gradient(evidence), step)


def whole_gradient(evidence: RunEvidence) -> Series:
    """Norm of the whole network's gradient, before clipping if that is known."""
    unclipped = evidence.history.series(UNCLIPPED_GRADIENT_NORM)
    return unclipped if len(unclipped) else evidence.history.series(GRADIENT_NORM)


def growth(series: Series, step: int, within: float = math.inf) -> float:
    """Median of the samples since a step, or within some steps of it, over the median of those just before it."""
    series = finite(series)
    place = int(np.searchsorted(series.steps, step))
    last = int(np.searchsorted(series.steps, min(step + within, series.steps[-1] + 1))) if len(series) else 0
    before, after = median(series.values[max(0, place - SAMPLES_BEFORE) : place]), median(series.values[place:last])
    return after / before if before > 0 else math.nan
