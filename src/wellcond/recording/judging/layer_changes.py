"""How the numbers of layers compare with what they were before a step."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from wellcond.diagnosis.threshold import Condition
from wellcond.recording.history import Series
from wellcond.recording.judging.levels import finite, median
from wellcond.recording.judging.run_rule import RunEvidence
from wellcond.results.quantities import GRADIENT_NORM, UNCLIPPED_GRADIENT_NORM, WEIGHT_NORM

SAMPLES_BEFORE = 16
"""Latest samples before a step that are compared with."""
NEAR = 0.1
"""Share of a step's number within which something happens at that step."""
CLIPPED = 1.01
"""Gradient norm before clipping over that after it, from which on it was clipped: beyond rounding."""
NEAREST = 50
"""The same in steps, at least."""
LONGER = Condition(
    "gradient / the norm that it was clipped to", 10.0,
    origin="theory: one step is then as long as ten of those before, whatever their directions",
)  # fmt: skip


def around(step: int) -> int:
    """Steps within which something counts as of the same time."""
    return max(NEAREST, int(NEAR * step))


def growth(series: Series, step: int, within: float = math.inf) -> float:
    """Median of the samples since a step, or within some steps of it, over the median of those just before it."""
    before, after = _sides(series, step, within)
    base = median(before)
    return median(after) / base if base > 0 else math.nan


def growth_of_gradients(evidence: RunEvidence, step: int) -> float:
    """How much the whole network's gradient has grown since a step, without clipping; NaN if that is not known.

    The largest fifth of the samples just after it are compared with the largest fifth before: networks that have blown
    up have small gradients soon. Samples right before it are left out, since a rise may be dated late.
    """
    series = _unclipped(evidence)
    after = _sides(series, step, around(step))[1]
    before = _sides(series, step - around(step) // 2, 0)[0]
    if not len(before):
        before = _sides(series, step, 0)[0]
    if not len(before) or not len(after) or not np.quantile(before, 0.8) > 0:
        return math.nan
    return float(np.quantile(after, 0.8) / np.quantile(before, 0.8))


def _unclipped(evidence: RunEvidence) -> Series:
    """The network's gradient norm before clipping; where nothing is clipped, as it is used, which is known oftener."""
    unclipped, used = (evidence.history.series(name) for name in (UNCLIPPED_GRADIENT_NORM, GRADIENT_NORM))
    _, place, other = np.intersect1d(unclipped.steps, used.steps, return_indices=True)
    is_clipped = np.any(unclipped.values[place] > CLIPPED * used.values[other])
    return unclipped if len(unclipped) and (is_clipped or not len(used)) else used


@dataclass(frozen=True)
class EndOfClipping:
    """Gradients that were clipped before a step, and are longer than that after it.

    Attributes:
        limit: The norm to which they were clipped.
        longest: The longest that was used near the step, over the limit.
    """

    limit: float
    longest: float


def end_of_clipping(evidence: RunEvidence, step: int) -> EndOfClipping | None:
    """How clipping ended around a step; None if there was none, or no gradient since is far longer than its limit."""
    unclipped, used = (finite(evidence.history.series(name)) for name in (UNCLIPPED_GRADIENT_NORM, GRADIENT_NORM))
    steps, place, other = np.intersect1d(unclipped.steps, used.steps, return_indices=True)
    norms = used.values[other]
    is_clipped = unclipped.values[place] > CLIPPED * norms
    before, after = is_clipped[steps < step][-SAMPLES_BEFORE:], steps >= step
    if is_clipped[after].any() or not len(before) or not before.mean() > 0.5:
        return None
    limit = median(norms[steps < step][-SAMPLES_BEFORE:][before])
    longest = float(norms[after & (steps < step + around(step))].max(initial=0.0))
    return EndOfClipping(limit, longest / limit) if longest > LONGER.at * limit > 0 else None


def growths(evidence: RunEvidence, quantity: str, step: int, within: float = math.inf) -> dict[str, float]:
    """`growth` of every layer in which it is known."""
    every = {
        layer: growth(evidence.history.series(quantity, layer), step, within)
        for layer in evidence.history.layers(quantity)
    }
    return {layer: each for layer, each in every.items() if not math.isnan(each)}


def jump_of_weights(evidence: RunEvidence, step: int) -> float:
    """The largest growth of a layer's weights just after a step; NaN if that is not known."""
    largest = math.nan
    for layer in evidence.history.layers(WEIGHT_NORM):
        before, after = _sides(evidence.history.series(WEIGHT_NORM, layer), step, around(step))
        if len(before) and len(after) and before[-1] > 0:
            largest = float(np.nanmax((largest, after.max() / before[-1])))
    return largest


def _sides(series: Series, step: int, within: float) -> tuple[np.ndarray, np.ndarray]:
    """The latest samples before a step, and those from it on."""
    series = finite(series)
    place = int(np.searchsorted(series.steps, step))
    last = int(np.searchsorted(series.steps, step + min(within, 2**60)))
    return series.values[max(0, place - SAMPLES_BEFORE) : place], series.values[place:last]
