"""Spikes of the loss: jumps far above all before that come back, of a batch or of a few steps."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from wellcond.diagnosis.threshold import Condition, Threshold
from wellcond.recording.judging.layer_changes import SAMPLES_BEFORE
from wellcond.recording.judging.levels import finite, median, smooth
from wellcond.recording.judging.rates import at
from wellcond.recording.judging.run_rule import RunEvidence
from wellcond.results.quantities import LR, WEIGHT_NORM

FACTOR = Threshold(
    "height of a loss above the median of the 200 before / the greatest of their heights", 5.0, math.nan,
    origin="exponential tails exceed it never, lognormal ones of σ = 1 once in 10⁵ steps",
)  # fmt: skip
LARGE = Condition(
    "height of a loss / fall of the loss since the start", 0.25,
    origin="less is no danger: a loss near zero jumps by large factors",
)  # fmt: skip
BEFORE = Condition("losses before", 200, origin="enough for the greatest of them to show the tail of the noise")
FEWEST_BEFORE = Condition("losses before, at least", 32, origin="the same, of a short run")
AFTER = Condition("losses after", 8, origin="they show whether it comes back")
BACK = Condition("height after / height of the spike, where it has come back", 0.5, origin="half of the way")
NEXT = Condition("losses right after, of which most are back unless the weights were hurt", 3, origin="their median")
PEAK = Condition("steps within which a spike is at its highest", 3, origin="steps at a wrong rate, or clipped ones")
HURT = Condition(
    "change of a layer's weights per step across the spike / before it and after it", 5.0,
    origin="one step of the spike's size is as long as several usual ones together",
)  # fmt: skip
HIGHER = Condition("height of a spike / highest before", 1.5, origin="the tail of the noise is as long as it has shown")
RECENT_STEPS = Condition("latest steps that are looked at", 4096, origin="what came before was judged before")
DOUBLED = Condition("learning rate just before it / some steps earlier", 2.0, origin="no schedule raises it so soon")


@dataclass(frozen=True)
class Spike:
    """A spike of the loss.

    Attributes:
        step: Its first step.
        back: The step at which the loss is back, half of the way.
        level: The loss before.
        value: Its highest.
        is_highest: Whether it is higher than those before, beyond chance.
        rate_before: The learning rate some steps before it; NaN if it is not known.
        rate: The highest since then.
    """

    step: int
    back: int
    level: float
    value: float
    is_highest: bool
    rate_before: float
    rate: float

    @property
    def is_of_the_rate(self) -> bool:
        """Whether the rate was doubled just before it."""
        return self.rate > DOUBLED.at * self.rate_before > 0


def spikes(evidence: RunEvidence) -> Iterator[Spike]:
    """The spikes of the latest steps, in order.

    One lies five times as high above the median of 200 losses before as any of these, and comes back. It is as high as
    a quarter of what the loss has fallen since the start, at its highest within three steps. The losses right after
    that are back half of the way, unless the step hurt the weights: otherwise it is not one batch.
    """
    curve = evidence.loss
    series, rates = curve.series.since(evidence.step - int(RECENT_STEPS.at)), finite(evidence.history.series(LR))
    highest = 0.0
    for place in _jumps(series.values, LARGE.at * curve.scale):
        peak = place + int(np.argmax(series.values[place : place + int(PEAK.at)]))
        step, value = int(series.steps[place]), float(series.values[peak])
        level = median(series.values[max(0, place - int(BEFORE.at)) : place])
        later = smooth(series.values[peak + 1 :], 9)
        is_back = np.flatnonzero(later - level < BACK.at * (value - level))
        first = median(series.values[peak + 1 : peak + 1 + int(NEXT.at)])
        is_single = first - level < BACK.at * (value - level) or _change_of_weights(evidence, step) > HURT.at
        if len(is_back) and is_single:
            is_highest = value - level > HIGHER.at * highest
            highest = max(highest, value - level)
            back = int(series.steps[peak + 1 + is_back[0]])
            near = range(step - int(PEAK.at), step + 1)
            rate = max(at(rates, each) for each in near)
            yield Spike(step, back, level, value, is_highest, at(rates, near.start - 1), rate)


def _jumps(values: np.ndarray, least: float) -> Iterator[int]:
    """Indices of losses far above all before, in order; those in the wake of another one are left out."""
    wake = 0
    for place in np.flatnonzero(np.diff(values) > least) + 1:
        before = values[max(0, place - int(BEFORE.at)) : place]
        if place < wake or len(before) < FEWEST_BEFORE.at or len(values) - place <= AFTER.at:
            continue
        level = median(before)
        if values[place] - level > max(least, FACTOR.warn * float(before.max() - level)):
            wake = int(place) + int(BEFORE.at)
            yield int(place)


def _change_of_weights(evidence: RunEvidence, step: int) -> float:
    """Largest change of a layer's weight norm per step across a step, over that before and after."""
    largest = 0.0
    for layer in evidence.history.layers(WEIGHT_NORM):
        series = finite(evidence.history.series(WEIGHT_NORM, layer))
        place = int(np.searchsorted(series.steps, step))
        if 1 < place < len(series) - 1:
            changes = np.abs(np.diff(np.log(np.maximum(series.values, 1e-300)))) / np.diff(series.steps)
            usual = max(median(changes[max(0, place - 1 - SAMPLES_BEFORE) : place - 1]), float(changes[place]), 1e-12)
            largest = max(largest, float(changes[place - 1]) / usual)
    return largest
