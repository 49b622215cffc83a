"""Gradients of layers next to those of the others, compared with how that was at first."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from wellcond.recording.history import Series
from wellcond.recording.judging.levels import began, finite, last_before, median, smooth
from wellcond.recording.judging.run_rule import RunEvidence
from wellcond.results.quantities import GRADIENT_NORM

FIRST_SAMPLES = 5
"""Samples whose median is what a gradient was at first."""


@dataclass(frozen=True)
class RelativeGradient:
    """A layer's gradient over the median of the layers, over what that ratio was at first.

    Attributes:
        layer: The layer.
        ratios: The ratio at each sample.
    """

    layer: str
    ratios: Series

    @property
    def change(self) -> float:
        """The ratio now."""
        return median(self.ratios.values[-3:])

    def since(self, limit: float) -> int:
        """The step from which on the ratio is below the root of a limit: halfway down, in its logarithm."""
        start = last_before(smooth(self.ratios.values, 3) < np.sqrt(limit))
        return began(self.ratios, start)


def relative_gradients(evidence: RunEvidence) -> Iterator[RelativeGradient]:
    """Every layer with enough samples, in the model's order."""
    every = {
        layer: finite(evidence.history.series(GRADIENT_NORM, layer)) for layer in evidence.history.layers(GRADIENT_NORM)
    }
    if len(every) < 3:
        return
    steps = np.unique(np.concatenate([series.steps for series in every.values()]))
    table = np.full((len(every), len(steps)), np.nan)
    for line, series in zip(table, every.values(), strict=True):
        line[np.searchsorted(steps, series.steps)] = series.values
    has_some = np.isfinite(table).any(axis=0)
    middle = np.full(len(steps), np.nan)
    middle[has_some] = np.nanmedian(table[:, has_some], axis=0)
    for layer, line in zip(every, table, strict=True):
        is_known = np.isfinite(line) & (middle > 0)
        ratios = line[is_known] / middle[is_known]
        first = median(ratios[:FIRST_SAMPLES])
        if len(ratios) > 2 * FIRST_SAMPLES and first > 0:
            yield RelativeGradient(layer, Series(steps[is_known], ratios / first))
