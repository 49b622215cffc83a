"""loss-spike: one batch whose loss is far above all others, and steps that recover from it.

Wrong:
    loss.backward()  # of a batch with a corrupt file
    optimizer.step()
Right:
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # and look at that batch
    optimizer.step()
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from wellcond.diagnosis.finding import Finding, Severity
from wellcond.diagnosis.threshold import Condition, Threshold
from wellcond.recording.judging.layer_changes import SAMPLES_BEFORE, growths
from wellcond.recording.judging.levels import finite, median, smooth
from wellcond.recording.judging.rates import at
from wellcond.recording.judging.run_rule import RunEvidence, run_rule
from wellcond.results import number
from wellcond.results.quantities import GRADIENT_NORM, LR, MAX_LR, TRAINING_LOSS, WEIGHT_NORM

FACTOR = Threshold(
    "height of a loss above the median of the 200 before / the greatest of their heights", 5.0, math.nan,
    origin="exponential tails exceed it never, lognormal ones of σ = 1 once in 10⁵ steps",
)  # fmt: skip
LARGE = Condition(
    "height of a loss / fall of the loss since the start", 0.25,
    origin="less is no danger: a loss near zero jumps by large factors",
)  # fmt: skip
BEFORE = Condition("losses before", 200, origin="enough for the greatest of them to show the tail of the noise")
FEWEST = Condition("losses before, at least", 32, origin="the same, of a short run")
AFTER = Condition("losses after", 8, origin="they show whether it comes back")
BACK = Condition("height after / height of the spike, where it has come back", 0.5, origin="half of the way")
NEXT = Condition("losses right after, of which most are back unless the weights were hurt", 3, origin="their median")
PEAK = Condition("steps within which a spike is at its highest", 3, origin="steps at a wrong rate, or clipped ones")
HURT = Condition(
    "change of a layer's weights per step across the spike / before it and after it", 5.0,
    origin="one step of the spike's size is as long as several usual ones together",
)  # fmt: skip
HIGHER = Condition("height of a spike / highest before", 1.5, origin="the tail of the noise is as long as it has shown")
RECENT = Condition("latest steps that are looked at", 4096, origin="what came before was judged before")


@run_rule("loss-spike", quantity=TRAINING_LOSS)
def loss_spike(evidence: RunEvidence) -> Iterator[Finding]:
    """A loss that lies five times as high above the median of 200 before as any of these, and comes back.

    A warning, or a note if there was a higher one before. It must be as high as a quarter of what the loss has fallen
    since the start, at its highest within three steps. The losses right after that are back half of the way, unless the
    step hurt the weights: otherwise it is not one batch. The finding holds what else was seen at that step: layers
    whose gradients grew most, and the rate next to its limit.
    """
    curve = evidence.loss
    series = curve.series.since(evidence.step - int(RECENT.at))
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
            severity: Severity = "warning" if value - level > HIGHER.at * highest else "note"
            highest = max(highest, value - level)
            yield _finding(evidence, severity, step, int(series.steps[peak + 1 + is_back[0]]), level, value)


def _jumps(values: np.ndarray, least: float) -> Iterator[int]:
    """Indices of losses far above all before, in order; those in the wake of another one are left out."""
    wake = 0
    for place in np.flatnonzero(np.diff(values) > least) + 1:
        before = values[max(0, place - int(BEFORE.at)) : place]
        if place < wake or len(before) < FEWEST.at or len(values) - place <= AFTER.at:
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


def _finding(evidence: RunEvidence, severity: Severity, step: int, back: int, level: float, value: float) -> Finding:
    jumps = growths(evidence, GRADIENT_NORM, step, within=16)
    layers = sorted((layer for layer in jumps if jumps[layer] > 2), key=lambda layer: -jumps[layer])[:3]
    lr, limit = at(evidence.history.series(LR), step), at(evidence.history.series(MAX_LR), step)
    snapshot: dict[str, float | str] = {"loss": float(value), "level before": level, "back at step": float(back)}
    if layers:
        snapshot["gradients that grew most"] = ", ".join(f"{layer} (× {number(jumps[layer])})" for layer in layers)
    if lr > 0:
        snapshot["lr"] = lr
    if limit > 0:
        snapshot["largest stable lr"] = limit
    where = f"; of the gradients that of {layers[0]} grew most, {number(jumps[layers[0]])} times" if layers else ""
    return Finding(
        rule="loss-spike",
        severity=severity,
        basis="measured",
        summary=f"the loss jumps from {number(level)} to {number(value)} at step {step} and is back at step "
        f"{back}{where}.",
        evidence=snapshot,
        limits={"level before": level},
        reason="No loss before it is a fifth as far above their median, so it is this batch, not noise.",
        remedy="nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # before optimizer.step(); and look at the batch of "
        f"step {step}",
        step=step,
        until=back,
    )
