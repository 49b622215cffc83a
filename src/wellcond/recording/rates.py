"""The learning rate of a run at its steps, and the largest stable one."""

from __future__ import annotations

import numpy as np

from wellcond.recording.history import Series
from wellcond.recording.levels import finite
from wellcond.recording.run_rule import RunEvidence
from wellcond.results.quantities import LR


def at(series: Series, step: int) -> float:
    """The value of a series that is recorded when it changes; NaN before its first sample."""
    place = int(np.searchsorted(series.steps, step, side="right")) - 1
    return float(series.values[place]) if place >= 0 else float("nan")


def lr_ratio(evidence: RunEvidence, step: int) -> float:
    """The highest learning rate since a step over that a tenth of the way before it; 1 if it is not known."""
    rates = finite(evidence.history.series(LR))
    before = at(rates, int(0.9 * step))
    since = max((at(rates, step), *rates.since(step).values.tolist()))
    return since / before if before > 0 else 1.0
