"""lost-updates: steps that are skipped, or smaller than the precision of the weights.

Wrong:
    torch.autocast("cuda", torch.float16)  # where a gradient overflows at every scale
Right:
    torch.autocast("cuda", torch.bfloat16)  # or that layer in float32

Wrong:
    model.to(torch.bfloat16)  # and AdamW at 1e-5
Right:
    torch.autocast("cuda", torch.bfloat16)  # the weights stay in float32

Wrong:
    weight.copy_(weight.bfloat16().float())  # after every step
Right:
    state = {name: weight.bfloat16() for name, weight in model.state_dict().items()}  # what is saved
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from wellcond.diagnosis.finding import Finding
from wellcond.diagnosis.threshold import Condition, Threshold
from wellcond.recording.history import Series
from wellcond.recording.judging.layer_changes import around
from wellcond.recording.judging.levels import began, finite, last_before, median
from wellcond.recording.judging.run_rule import RunEvidence, run_rule
from wellcond.results import number
from wellcond.results.quantities import (
    GRADIENT_NORM,
    LOSS_SCALE,
    LOST_UPDATES,
    LR,
    ROUNDED_WEIGHTS,
    SKIPPED_STEPS,
    UPDATE_RATIO,
    WEIGHT_NORM,
)
from wellcond.results.text import named

SCALE = Threshold(
    "loss scale", 1.0, 2.0**-10, bad="below",
    origin="at 1 losses are not scaled, and gradients overflow at any scale; GradScaler starts at 65,536",
)  # fmt: skip
FALL = Condition(
    "fall of the scale without a rise between", 2.0**12,
    origin="the first steps bring it from 65,536 to 128 at times; a healthy run halves it once in hundreds of steps",
)  # fmt: skip
AT_START = Condition("steps in which a scale is looked for", 50, origin="the first scale may be far too large")
SKIPPED = Threshold(
    "steps in a row that the optimizer has not taken", 20.0, 40.0,
    origin="from 65,536 it takes 16 skipped steps to a scale of 1, below which a gradient overflows at any",
)  # fmt: skip
ROUNDED = Threshold(
    "share of the weights in half precision with a gradient that a step leaves as they were", 0.75, 0.9,
    origin="perceptrons in bfloat16 that learn as fast as in float32 have 0.1 to 0.73 at first, those that do not 0.77 "
    "to 0.99",
)  # fmt: skip
SAME = Condition("samples with the same norms", 4, origin="one sample may repeat the one before by chance")
MOVES = Condition(
    "‖Δθ‖/‖θ‖ of a step that the norms would show", 1e-4,
    origin="float32 has 6e-8 of a norm, which tens of such steps in any direction exceed",
)  # fmt: skip
FEW = Condition("the same share in the sample before", 0.5, origin="it has not come little by little")
LASTS = Condition("share of the run for which it lasts", 1 / 3, origin="a schedule ends within less")
ALL_ROUNDED = Condition("share of weights that are rounded", 0.99, origin="by chance it is 2⁻¹⁶ of them")
UNIT = Condition("‖Δθ‖/‖θ‖ of a step", 2.0**-8, origin="theory: the unit in the last place of bfloat16")
SAMPLES = Condition("first samples of a share", 3, origin="their median is not that of a single step")


@run_rule("lost-updates", quantity=LOSS_SCALE)
def scale_collapses(evidence: RunEvidence) -> Iterator[Finding]:
    """A loss scale that was halved twelve times in a row, or down to 1: every time a step was skipped.

    Severe below 2⁻¹⁰, or if it still falls; otherwise a warning. A scale that is halved now and then is normal, and so
    are the first 50 steps, which look for one.
    """
    scales = finite(evidence.history.series(LOSS_SCALE))
    if len(scales) < 2:
        return
    start = _start_of_fall(scales)
    highest, now = float(scales.values[start]), float(scales.values[-1])
    has_fallen = highest > FALL.at * now
    begin = _first_halving(scales, start)
    if now >= highest or (begin <= AT_START.at and now > SCALE.warn) or not (has_fallen or now <= SCALE.warn):
        return
    layers = _overflowing(evidence, begin)
    at_layer = f"; the gradient of {named(layers[-1])} overflows" if layers else ""
    is_falling = evidence.step - int(scales.steps[-1]) <= around(evidence.step)
    yield Finding(
        rule="lost-updates",
        layer=layers[-1] if layers else "",
        severity="severe" if SCALE.is_severe(now) or is_falling else "warning",
        basis="measured",
        summary=f"since step {begin} the loss scale has fallen from {number(highest)} to {number(now)}: "
        f"{round(math.log2(highest / max(now, 1e-300)))} steps were skipped because gradients overflowed{at_layer}.",
        evidence={"loss scale before": highest, "loss scale now": now},
        limits=SCALE.limits(),
        reason="A step whose gradient is not finite is skipped and the scale is halved; where no scale helps, nothing "
        "is learned.",
        remedy="# use torch.autocast(dtype=torch.bfloat16), or compute the layer that overflows in float32; look for "
        "NaN in the data if the loss is NaN too",
        step=begin,
    )


@run_rule("lost-updates", quantity=SKIPPED_STEPS)
def steps_are_skipped(evidence: RunEvidence) -> Iterator[Finding]:
    """An optimizer that took steps, and has taken none for 20 losses; severe from 40."""
    skipped = evidence.history.series(SKIPPED_STEPS)
    if not len(skipped) or not SKIPPED.is_warning(float(skipped.values[-1])):
        return
    count, begin = float(skipped.values[-1]), int(skipped.steps[-1] - skipped.values[-1]) + 1
    yield Finding(
        rule="lost-updates",
        severity="severe" if SKIPPED.is_severe(count) else "warning",
        basis="proven",
        summary=f"since step {begin} the optimizer has taken no step, although losses have been computed.",
        evidence={"steps that were skipped": count},
        limits=SKIPPED.limits(),
        reason="A GradScaler skips a step whose gradient is not finite, and halves its scale; where no scale helps, "
        "nothing is learned.",
        remedy="# look for the operation whose gradient is NaN or infinite: torch.autograd.set_detect_anomaly(True) "
        "names it",
        step=begin,
    )


@run_rule("lost-updates", quantity=LOST_UPDATES)
def steps_are_rounded_away(evidence: RunEvidence) -> Iterator[Finding]:
    """Three quarters of the weights in half precision do not change in the first steps, though they have a gradient.

    Severe from nine tenths, if the loss has not fallen by a fifth. Later steps are not judged: those of a network that
    has learned are small.
    """
    shares = finite(evidence.history.series(LOST_UPDATES))
    share = median(shares.values[: int(SAMPLES.at)])
    if len(shares) < SAMPLES.at or not ROUNDED.is_warning(share):
        return
    yield Finding(
        rule="lost-updates",
        severity="severe" if ROUNDED.is_severe(share) and not evidence.loss.has_learned else "warning",
        basis="measured",
        summary=f"a step leaves {share:.0%} of the weights as they were, although they have a gradient: it is smaller "
        "than their precision.",
        evidence={"share of weights that stay": share},
        limits=ROUNDED.limits(),
        reason="A step below half a unit in the last place of a weight, 2⁻⁹ of it in bfloat16, is rounded to nothing, "
        "however often it is taken.",
        remedy="model = model.float()  # and torch.autocast(dtype=torch.bfloat16) around the forward pass",
        step=_became_half(evidence) or int(shares.steps[0]),
    )


@run_rule("lost-updates", quantity=LOST_UPDATES)
def steps_have_become_too_short(evidence: RunEvidence) -> Iterator[Finding]:
    """From one sample to the next, nine tenths of the weights in half precision stay; before, half of them moved.

    A warning, if that has lasted for a third of the run at one rate: a schedule ends so too, but by and by.
    """
    shares = finite(evidence.history.series(LOST_UPDATES))
    start = last_before(shares.values >= ROUNDED.severe)
    if not 0 < start <= len(shares) - SAMPLES.at or shares.values[start - 1] >= FEW.at:
        return
    before, first = int(shares.steps[start - 1]), int(shares.steps[start])
    rates = finite(evidence.history.series(LR))
    changes = rates.steps[(rates.steps > before) & (rates.steps <= first)]
    begin = int(changes[0]) if len(changes) else began(shares, start)
    if evidence.step - begin < LASTS.at * evidence.step or len(rates.since(first + 1)):
        return
    share = median(shares.values[start:])
    yield Finding(
        rule="lost-updates",
        severity="warning",
        basis="measured",
        summary=f"since step {begin} a step leaves {share:.0%} of the weights as they were, although they have a "
        f"gradient; before it were {shares.values[start - 1]:.0%}.",
        evidence={"share of weights that stay": share, "share before": float(shares.values[start - 1])},
        limits=ROUNDED.limits(),
        reason="A step below half a unit in the last place of a weight, 2⁻⁹ of it in bfloat16, is rounded to nothing, "
        "however often it is taken.",
        remedy="model = model.float()  # and torch.autocast(dtype=torch.bfloat16) around the forward pass",
        step=begin,
    )


@run_rule("lost-updates", quantity=ROUNDED_WEIGHTS)
def weights_are_rounded(evidence: RunEvidence) -> Iterator[Finding]:
    """Weights in float32 hold bfloat16 numbers after every step, of which a step is less than a unit in the last place.

    A warning, which is not for weights that are bfloat16 themselves. They must have been rounded for 50 steps: weights
    that are loaded from bfloat16 are so until the first.
    """
    for layer in evidence.history.layers(ROUNDED_WEIGHTS):
        shares = finite(evidence.history.series(ROUNDED_WEIGHTS, layer))
        start = last_before(shares.values >= ALL_ROUNDED.at)
        is_half = len(evidence.history.series(LOST_UPDATES)) > 0
        if start == len(shares) or is_half or evidence.step - int(shares.steps[start]) < AT_START.at:
            continue
        begin = int(shares.steps[start])
        changes = finite(evidence.history.series(UPDATE_RATIO, layer))
        change = median((changes.since(begin) if len(changes.since(begin)) else changes).values)
        if not 0 < change < UNIT.at:
            continue
        yield Finding(
            rule="lost-updates",
            layer=layer,
            severity="warning",
            basis="proven",
            summary=f"since step {begin} the weights of {named(layer)}, which are float32, hold bfloat16 numbers after "
            f"every step: something rounds them, and a step changes them by {number(change)} of their size.",
            evidence={"share of rounded weights": float(shares.values[-1]), "‖Δθ‖/‖θ‖ of a step": change},
            reason="A change below 2⁻⁹ of a weight is lost where the weight is rounded to bfloat16, however often it "
            "is made.",
            remedy="# keep the weights in float32 between steps, and use torch.autocast(dtype=torch.bfloat16) around "
            "the forward pass",
            step=begin,
        )


@run_rule("lost-updates", quantity=WEIGHT_NORM)
def steps_are_undone(evidence: RunEvidence) -> Iterator[Finding]:
    """Steps change the weights, and before a later one every layer's norm is exactly what it was. Severe.

    Four samples or more, and the loss has not fallen since: the weights are loaded again after every step.
    """
    norms = [finite(evidence.history.series(WEIGHT_NORM, layer)) for layer in evidence.history.layers(WEIGHT_NORM)]
    whole, moves = (finite(evidence.history.series(name)) for name in (WEIGHT_NORM, UPDATE_RATIO))
    if len(whole) < SAME.at:
        return
    start = max(last_before(each.values == each.values[-1]) if len(each) else 0 for each in (whole, *norms))
    if len(whole) - start < SAME.at:
        return
    first = int(whole.steps[start])
    change = median(moves.since(first).values)
    if not change >= MOVES.at or evidence.loss.has_fallen_since(first):
        return
    begin = began(whole, start)
    yield Finding(
        rule="lost-updates",
        severity="severe",
        basis="measured",
        summary=f"since step {begin} the weights are the same before every step, although each changes them by "
        f"{number(change)} of their size: something puts them back.",
        evidence={"‖Δθ‖/‖θ‖ of a step": change, "samples with the same weights": float(len(whole) - start)},
        reason="Weights that are loaded or copied back after every step are where they were, however long the run is.",
        remedy="# look for load_state_dict() or copy_() in the loop, and load weights once",
        step=begin,
    )


def _became_half(evidence: RunEvidence) -> int | None:
    """The step at which weights that were float32 became half precision; None if they always were."""
    every = [evidence.history.series(ROUNDED_WEIGHTS, each) for each in evidence.history.layers(ROUNDED_WEIGHTS)]
    starts = [last_before(each.values >= ALL_ROUNDED.at) for each in every]
    steps = [int(each.steps[start]) for each, start in zip(every, starts, strict=True) if 0 < start < len(each)]
    return min(steps, default=None)


def _start_of_fall(scales: Series) -> int:
    """Index of the last value from which on the scale only falls."""
    rises = np.flatnonzero(np.diff(scales.values) > 0)
    return int(rises[-1]) + 1 if len(rises) else 0


def _first_halving(scales: Series, start: int) -> int:
    """The step of the first halving after a sample: if each step was skipped, that far before the next sample."""
    after = min(start + 1, len(scales) - 1)
    halvings = math.log2(max(1.0, scales.values[start] / max(float(scales.values[after]), 1e-300)))
    return max(int(scales.steps[start]) + 1, int(scales.steps[after]) - round(halvings) + 1)


def _overflowing(evidence: RunEvidence, begin: int) -> list[str]:
    """Layers whose gradient is not finite since a step, if others' are."""
    every = {
        layer: evidence.history.series(GRADIENT_NORM, layer).since(begin)
        for layer in evidence.history.layers(GRADIENT_NORM)
    }
    bad = [layer for layer, series in every.items() if not np.isfinite(series.values).all()]
    return bad if len(bad) < len(every) else []
