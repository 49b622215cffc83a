"""Which layers move: those without a gradient or an update while others have one, and those that get one late."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from wellcond.diagnosis.threshold import Condition
from wellcond.recording.history import Series
from wellcond.recording.judging.levels import began, finite, halfway, last_before
from wellcond.recording.judging.run_rule import RunEvidence
from wellcond.results.quantities import GRADIENT_NORM, UPDATE_RATIO

THAWED_AFTER = Condition("samples without a gradient before", 4, origin="as for a layer that does not learn")


@dataclass(frozen=True)
class Stillness:
    """A layer that does not learn.

    Attributes:
        layer: The layer.
        step: Since when.
        what: What is zero, or that there is no gradient any more.
        samples: Samples since then.
    """

    layer: str
    step: int
    what: Literal["gradient", "update", "frozen"]
    samples: int


def still_layers(evidence: RunEvidence, fewest: int) -> Iterator[Stillness]:
    """Layers that stand still at the end of the run, in the model's order."""
    moving = _steps_with_movement(evidence, GRADIENT_NORM)
    for layer in evidence.history.layers(GRADIENT_NORM):
        series = finite(evidence.history.series(GRADIENT_NORM, layer))
        if not len(series):
            continue
        missing = moving[moving > series.steps[-1]]
        if len(missing) >= fewest and np.any(series.values > 0):
            yield Stillness(layer, halfway(int(series.steps[-1]), int(missing[0])), "frozen", len(missing))
        elif (still := _still(series, moving, fewest)) is not None:
            yield Stillness(layer, still[0], "gradient", still[1])
    moving = _steps_with_movement(evidence, UPDATE_RATIO)
    for layer in evidence.history.layers(UPDATE_RATIO):
        gradients = finite(evidence.history.series(GRADIENT_NORM, layer))
        if len(gradients) and gradients.values[-1] > 0:
            still = _still(finite(evidence.history.series(UPDATE_RATIO, layer)), moving, fewest)
            if still is not None:
                yield Stillness(layer, still[0], "update", still[1])


def thawed_layers(evidence: RunEvidence) -> Iterator[tuple[str, int]]:
    """Layers that move now and stood still at first, in the model's order, with the step of their first movement."""
    fewest = int(THAWED_AFTER.at)
    moving = _steps_with_movement(evidence, GRADIENT_NORM)
    for layer in evidence.history.layers(GRADIENT_NORM):
        series = finite(evidence.history.series(GRADIENT_NORM, layer))
        steps = series.steps[series.values > 0]
        if not len(steps) or len(series.since(int(steps[0]))) < fewest:
            continue
        before = moving[moving < steps[0]]
        if len(before) >= fewest:
            last, first = int(before[-1]), int(steps[0])
            yield layer, evidence.loss.jump_between(last, first) or halfway(last, first)


def _still(series: Series, moving: NDArray[np.int64], fewest: int) -> tuple[int, int] | None:
    """Since when a series is exactly zero while other layers move, and for how many samples."""
    if not len(series) or series.values[-1] != 0:
        return None
    start = last_before(series.values == 0)
    count = min(len(series) - start, int(np.count_nonzero(moving >= series.steps[start])))
    return (began(series, start), count) if count >= fewest else None


def _steps_with_movement(evidence: RunEvidence, quantity: str) -> NDArray[np.int64]:
    """Steps at which a layer has a number above zero."""
    every = [finite(evidence.history.series(quantity, layer)) for layer in evidence.history.layers(quantity)]
    steps = [series.steps[series.values > 0] for series in every]
    return np.unique(np.concatenate(steps)) if steps else np.empty(0, np.int64)
