"""data-changed: a loss that jumps to another level from one step to the next, and stays there.

Wrong:
    dataset = ConcatDataset([first, second])  # whose labels are counted from 1
Right:
    second.labels = second.labels - 1
    dataset = ConcatDataset([first, second])
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from wellcond.diagnosis.finding import Finding
from wellcond.diagnosis.threshold import Condition, Threshold
from wellcond.recording.judging.layer_changes import around, end_of_clipping, growths, jump_of_weights
from wellcond.recording.judging.levels import finite, median
from wellcond.recording.judging.movement import thawed_layers
from wellcond.recording.judging.rates import lr_ratio
from wellcond.recording.judging.rises import FEWEST_LOSSES, Rise
from wellcond.recording.judging.run_rule import RunEvidence, run_rule
from wellcond.recording.judging.shares import DEAD, dying_units
from wellcond.recording.judging.spikes import PEAK, spikes
from wellcond.results import number
from wellcond.results.quantities import GRADIENT_NORM, INPUT_SIZE, SIGNAL_RMS, TRAINING_LOSS, VALIDATION_LOSS
from wellcond.results.text import named

LOST = Threshold(
    "rise of the loss / its fall since the start", 0.1, 0.9, origin="a tenth of what was learned, at once; or all of it"
)
LATEST = 16
"""Samples of the inputs on each side, at most, that are compared."""
TINY = 1e-30
STAYS = Condition(
    "rise that is left / rise at first, or what had been learned if that is less", 0.15,
    origin="a network that learns the new data, as in a curriculum, wins nearly all of it back",
)  # fmt: skip
NEAR = Condition("steps after the jump whose gradients are compared", 100, origin="before new data are learned")
GROWTH = Condition("growth of a layer's gradient", 1.3, origin="other examples have other gradients, in every layer")
MOST = Condition("share of the layers whose gradient grows", 0.75, origin="a fault of one layer changes that one first")
ENOUGH = Condition(
    "losses before, which the median of the first eight exceeds all: then gradients need not have grown", 200,
    origin="no step at the same rate led there; units that such losses kill have no gradient soon",
)  # fmt: skip
WEIGHTS = Condition(
    "growth of a layer's weights at the jump", 3.0,
    origin="weights that are overwritten or blow up grow tenfold; new data move them by less within a tenth of a run",
)  # fmt: skip
FALLS = Condition(
    "highest of the eight losses after a fall / lowest before", 2 / 3, origin="no step that trains wins a third"
)
FITTED = Condition(
    "loss before a fall / first loss", 1e-6, origin="rounding decides on smaller ones: single precision has 6e-8"
)
SIZES = Threshold(
    "size of the inputs / before, or its reciprocal", 2.0, math.nan,
    origin="the median of eight samples of 32 numbers varies by 5 to 10 %; augmentation by less than a third",
)  # fmt: skip
SAMPLES = Condition("samples of the inputs on each side", 6, origin="their ranges must not meet: by chance once in 900")
SAME_RATE = Condition("learning rate / lowest before - 1", 0.05, origin="a schedule that falls with it explains it")
RAISED = Condition("learning rate / lowest before", 1.2, origin="a rate that is raised lifts the loss by itself")


@run_rule("data-changed", quantity=TRAINING_LOSS)
def data_changed(evidence: RunEvidence) -> Iterator[Finding]:
    """The loss jumps within eight steps by a tenth of what was learned or more, and keeps some of it for 100 steps.

    The gradients of most layers grow at the same step, or losses are above all before; or gradients shrink as much in
    most layers, 200 steps were taken before, and nearly all that was learned is lost, as of inputs that are next to
    nothing. Neither the rate nor the weights grow, no layer begins to learn, none dies and clipping goes on: what the
    loss is computed of has changed, and not for one batch. A warning, since the data may be harder on purpose; severe
    if all that was learned is lost.
    """
    rise = evidence.loss.rise
    if rise is None or not rise.is_abrupt or not rise.is_lasting or not rise.had_learned:
        return
    if rise.step <= FEWEST_LOSSES.at:  # there was no level that it could jump from
        return
    if not LOST.is_warning(rise.lost) or rise.level - rise.lowest < STAYS.at * _height(rise):
        return
    weights = jump_of_weights(evidence, rise.step)
    if lr_ratio(evidence, rise.step) > RAISED.at or weights > WEIGHTS.at:
        return
    dead = [each.step for each in dying_units(evidence) if DEAD.is_severe(each.now)]
    if any(
        abs(step - rise.step) <= around(rise.step) for step in (*dead, *(step for _, step in thawed_layers(evidence)))
    ):
        return  # the jump is that layer's
    if end_of_clipping(evidence, rise.step) is not None:
        return  # steps are longer
    if any(abs(spike.step - rise.step) <= PEAK.at for spike in spikes(evidence)):
        return  # one batch, whose step has hurt the weights
    gradients = growths(evidence, GRADIENT_NORM, rise.step, within=NEAR.at)
    grown = [layer for layer, growth in gradients.items() if growth > GROWTH.at]
    shrunk = [layer for layer, growth in gradients.items() if growth < 1 / GROWTH.at]
    is_lost = LOST.is_severe(rise.lost)
    is_late = int((evidence.loss.series.steps < rise.step).sum()) >= ENOUGH.at
    changed, how = (shrunk, "smaller") if is_lost and is_late and len(shrunk) > len(grown) else (grown, "larger")
    have_changed = bool(changed) and len(changed) >= MOST.at * len(gradients)
    if not have_changed and not _is_unseen(evidence, rise):
        return
    count = f"gradients of {len(changed)} of {len(gradients)} layers are {how} after it" if gradients else ""
    same = "the rate is not larger" if math.isnan(weights) else "neither rate nor weights are larger"
    yield Finding(
        rule="data-changed",
        severity="severe" if is_lost else "warning",
        basis="measured",
        summary=f"at step {rise.step} the loss jumps from {number(rise.lowest)} to {number(rise.first)}, and is "
        f"{number(rise.level)} now; {', and '.join(filter(None, (count, same)))}.",
        evidence={
            "level before": rise.lowest,
            "level at first": rise.first,
            "level now": rise.level,
            **({"layers whose gradient changes": float(len(changed))} if gradients else {}),
        },
        limits={"level before": rise.lowest},
        reason="Steps change a loss little by little. A jump from one batch to the next is in the batches: inputs, "
        "labels or how the loss is computed.",
        remedy=f"# compare batches from before and after step {rise.step}: labels, scale of inputs, transforms, source",
        step=rise.step,
    )


@run_rule("data-changed", quantity=TRAINING_LOSS)
def falls_at_once(evidence: RunEvidence) -> Iterator[Finding]:
    """All of eight losses lie a third or more below the eight before, as at no other step, and later ones stay low.

    The rate is the same. A warning; a note if a validation loss has not risen since, as when augmentation ends. Losses
    below a millionth of the first one are not judged.
    """
    fall = evidence.loss.fall_at_once
    if fall is not None and fall.before < FITTED.at * abs(evidence.loss.start):
        return
    if fall is None or not fall.after < FALLS.at * fall.before or abs(lr_ratio(evidence, fall.step) - 1) > SAME_RATE.at:
        return
    validation = finite(evidence.history.series(VALIDATION_LOSS))
    then, since = validation.values[validation.steps < fall.step][-3:], validation.since(fall.step).values[-3:]
    is_harmless = len(then) > 0 and len(since) > 0 and median(since) <= float(then.max())
    yield Finding(
        rule="data-changed",
        severity="note" if is_harmless else "warning",
        basis="measured",
        summary=f"at step {fall.step} the loss falls from {number(fall.before)} to {number(fall.after)}, from one step "
        "to the next at the same rate.",
        evidence={"level before": fall.before, "level at first": fall.after},
        limits={"level before": fall.before},
        reason="Steps change a loss little by little. What falls from one batch to the next is what the loss is "
        "computed of: data, or how its terms are summed and weighted.",
        remedy=f"# compare the terms of the loss before and after step {fall.step}, and batches: one term may outweigh "
        "the others now",
        step=fall.step,
    )


@run_rule("data-changed", quantity=INPUT_SIZE)
def inputs_change(evidence: RunEvidence) -> Iterator[Finding]:
    """Inputs become twice as large as they ever were, or half as small, from one sampled batch to the next, and stay.

    A warning: a new loader may scale them otherwise, or not at all. The layer is the first whose outputs change as
    much, if those of one before it do not: it sees a part of the inputs.
    """
    sizes = finite(evidence.history.series(INPUT_SIZE))
    count = int(SAMPLES.at)
    for place in range(count, len(sizes) - count + 1):
        before, after = sizes.values[:place][-LATEST:], sizes.values[place:][:LATEST]
        level, now = median(before[-count:]), median(after[:count])
        ratio = now / level if level > 0 else math.inf
        are_apart = after.min() > before.max() if ratio > 1 else after.max() < before.min()
        if not are_apart or not SIZES.is_warning(max(ratio, 1 / max(ratio, TINY))):
            continue
        last, first = int(sizes.steps[place - 1]), int(sizes.steps[place])
        step = evidence.loss.jump_between(last, first) or first
        layer = _branch(evidence, step)
        whose = f"inputs of {named(layer)}" if layer else "inputs"
        yield Finding(
            rule="data-changed",
            layer=layer,
            severity="warning",
            basis="measured",
            summary=f"since step {step} {whose} are {number(max(ratio, 1 / max(ratio, TINY)))} times as "
            f"{'large' if ratio > 1 else 'small'}: all inputs together have a size (RMS) of {number(now)}, before it "
            f"was {number(level)}.",
            evidence={"size": now, "size before": level},
            limits=SIZES.limits(level),
            reason="A network that has learned from inputs of one size is given others: what it knows does not fit "
            "them, and running statistics neither.",
            remedy=f"# compare batches from before and after step {step}: transforms, normalization, the cache they "
            "come from",
            step=step,
        )
        return


def _branch(evidence: RunEvidence, step: int) -> str:
    """The first layer whose outputs have changed as inputs do, if one before it has not; otherwise ""."""
    growth = growths(evidence, SIGNAL_RMS, step, within=NEAR.at)
    ordered = [(layer, growth[layer]) for layer in evidence.layers if growth.get(layer, 0) > 0]
    changed = [place for place, (_, each) in enumerate(ordered) if SIZES.is_warning(max(each, 1 / each))]
    return ordered[changed[0]][0] if changed and changed[0] > 0 else ""


def _height(rise: Rise) -> float:
    """Height of the jump, but no more than what had been learned: beyond that any guess would win most of it back."""
    return min(rise.first, rise.start) - rise.lowest


def _is_unseen(evidence: RunEvidence, rise: Rise) -> bool:
    """Whether the first losses of a rise are above every one before."""
    losses = evidence.loss.series
    before = losses.values[losses.steps < rise.step]
    return len(before) >= ENOUGH.at and rise.first > float(before.max())
