"""loss-spike: one batch whose loss is far above all others, and steps that recover from it.

Wrong: a corrupt file, labels that are shifted in one batch, or inputs without normalization, with no limit on the
gradient. Right: `nn.utils.clip_grad_norm_(model.parameters(), 1.0)`, and a look at the batch.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from wellcond.diagnosis.finding import Finding
from wellcond.diagnosis.threshold import Condition, Threshold
from wellcond.recording.gradients import growth
from wellcond.recording.levels import median, smooth
from wellcond.recording.rates import at
from wellcond.recording.run_rule import RunEvidence, run_rule
from wellcond.results import number
from wellcond.results.quantities import GRADIENT_NORM, LR, MAX_LR, TRAINING_LOSS

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
RECENT = Condition("latest steps that are looked at", 4096, origin="what came before was judged before")


@run_rule("loss-spike", quantity=TRAINING_LOSS)
def loss_spike(evidence: RunEvidence) -> Iterator[Finding]:
    """A single loss that lies five times as high above the median of 200 before as any of these, and comes back.

    A warning. It must be as high as a quarter of what the loss has fallen since the start. The finding holds what else
    was seen at that step: layers whose gradients grew most, and the rate next to its limit.
    """
    curve = evidence.loss
    steps, values = curve.series.since(evidence.step - int(RECENT.at)).steps, curve.series.values
    values = values[len(values) - len(steps) :]
    for place in _spikes(values, LARGE.at * curve.scale):
        level = median(values[max(0, place - int(BEFORE.at)) : place])
        height = values[place] - level
        later = smooth(values[place + 1 :], 9)
        is_back = np.flatnonzero(later - level < BACK.at * height)
        if len(is_back):
            yield _finding(evidence, int(steps[place]), int(steps[place + 1 + is_back[0]]), level, values[place])


def _spikes(values: np.ndarray, least: float) -> Iterator[int]:
    """Indices of single losses far above all before, in order; those in the wake of another one are left out."""
    wake = 0
    for place in np.flatnonzero(np.diff(values) > least) + 1:
        before = values[max(0, place - int(BEFORE.at)) : place]
        if place < wake or len(before) < FEWEST.at or len(values) - place <= AFTER.at:
            continue
        heights = before - median(before)
        if values[place] - median(before) > max(least, FACTOR.warn * heights.max()):
            wake = place + int(BEFORE.at)
            yield int(place)


def _finding(evidence: RunEvidence, step: int, back: int, level: float, value: float) -> Finding:
    jumps = {
        layer: growth(evidence.history.series(GRADIENT_NORM, layer), step, within=16)
        for layer in evidence.history.layers(GRADIENT_NORM)
    }
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
        severity="warning",
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
