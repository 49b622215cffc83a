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
from wellcond.results.quantities import GRADIENT_NORM, TRAINED_SHARE, UPDATE_RATIO

FROZEN = Condition(
    "steps without asking for a gradient", 50, origin="players that take turns are frozen for a few steps at a time"
)
LOOKED_AT = 25
"""Steps between two looks at what asks for a gradient, at most."""
START = Condition("step until which that counts as from the start", 2, origin="later it was frozen meanwhile")
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
    """Layers that move now and stood still at first, with the step of their first movement.

    First those that asked for no gradient at first, which is looked at every 25 steps, then those that had none.
    """
    asking = dict(_layers_that_ask(evidence))
    yield from asking.items()
    fewest = int(THAWED_AFTER.at)
    moving = _steps_with_movement(evidence, GRADIENT_NORM)
    for layer in evidence.history.layers(GRADIENT_NORM):
        series = finite(evidence.history.series(GRADIENT_NORM, layer))
        steps = series.steps[series.values > 0]
        if layer in asking or not len(steps) or len(series.since(int(steps[0]))) < fewest:
            continue
        before = moving[moving < steps[0]]
        if len(before) >= fewest:
            last, first = int(before[-1]), int(steps[0])
            yield layer, evidence.loss.jump_between(last, first) or halfway(last, first)


def _layers_that_ask(evidence: RunEvidence) -> Iterator[tuple[str, int]]:
    """Layers that asked for no gradient from the first step on, and do since a step."""
    for layer in evidence.history.layers(TRAINED_SHARE):
        shares = evidence.history.series(TRAINED_SHARE, layer)
        later = shares.steps[shares.values > 0]
        if shares.values[0] > 0 or shares.steps[0] > START.at or not len(later) or later[0] < FROZEN.at:
            continue
        first = int(later[0])
        last = first - LOOKED_AT
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
