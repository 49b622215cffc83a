"""learning-rate-too-high: a rate at which the loss rises, or never falls.

Wrong:
    scheduler = LambdaLR(optimizer, lambda step: step / 500)  # a warm-up that never ends
Right:
    scheduler = LambdaLR(optimizer, lambda step: min(step / 500, 1.0))
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from wellcond.diagnosis.finding import Finding
from wellcond.diagnosis.threshold import Condition, Threshold
from wellcond.recording.history import Series
from wellcond.recording.judging.layer_changes import growth_of_gradients, jump_of_weights
from wellcond.recording.judging.levels import OF_MEDIAN, began, finite, last_before, median, mostly_since, noise, spread
from wellcond.recording.judging.loss_curve import START_LOSSES
from wellcond.recording.judging.rates import above_limit, at, lr_ratio
from wellcond.recording.judging.run_rule import RunEvidence, run_rule
from wellcond.recording.judging.spikes import spikes
from wellcond.results import number
from wellcond.results.quantities import LR, UPDATE_RATIO

LOST = Threshold(
    "rise of the loss since its lowest level / its fall until then", 0.3, 0.9,
    origin="restarts of a rate lose less than that, and win it back; at 1 the loss is as high as at the start",
)  # fmt: skip
RAISED = Condition(
    "learning rate / lowest in the half of the run before", 1.2, origin="the rate was raised, by more than rounding"
)
LOWERED = Condition("learning rate now / where the loss rose", 0.5, origin="it is over: what is left is its damage")
LATE = Condition(
    "step of the crossing / step of the rise",
    0.5,
    origin="a rate at which a network has learned for long is not to blame",
)
STAYS = Condition(
    "steps since the rise / steps, while the rate is not lowered", 0.25,
    origin="a restart or a one-cycle lowers the rate again, and the loss falls with it",
)  # fmt: skip
LOST_FOR_GOOD = Condition(
    "rise / fall, where the rate stays where it was raised to", 0.2,
    origin="a fifth of what was learned, which a flatter place does not win back at that rate",
)  # fmt: skip
RETURNS = Condition("level now above the level before a jump / that level", 0.1, origin="it is as good as back")
LATEST = Condition(
    "share of the run, and steps, for which the loss stays above its lowest level while the rate grows", 1 / 3,
    origin="warm-ups and the first part of a one-cycle schedule are over by then",
)  # fmt: skip
LONGEST_WARM_UP = 300
"""The same in steps, at least."""
DOUBLED = Condition("learning rate now / where the loss was lowest", 2.0, origin="beyond the decay of a schedule's end")
GROWS = Condition("learning rate now / a third of the run ago", 1.2, origin="it has not come to its end")
ABOVE = Condition(
    "lowest level of these / lowest level of all", 1.15, origin="levels of half the width differ by some percent"
)
LOST_BY_AND_BY = Condition(
    "rise / fall, of a loss that leaves its lowest level by and by", 0.03,
    origin="losses near zero rise by a part of what was learned, not of themselves",
)  # fmt: skip
SIZE = Condition(
    "growth of gradients at a rise that a rate explains, or of a layer's weights", 1.5,
    origin="steps that overshoot make both grow; other data leave the weights",
)  # fmt: skip
ENOUGH = Condition("steps", 100, origin="trainings that work have lowered their loss by then")
LONG_STEPS = Threshold(
    "‖Δθ‖/‖θ‖ of a step, median over the layers in the first samples", 0.1, 0.3,
    origin="healthy trainings of the benchmark have 0.001 to 0.14 in their first steps; 1e-3 is the usual advice",
)  # fmt: skip
LEAVES = 0.25
"""Share of a rise above which most levels lie once it has begun."""
FIRST = Condition("first steps", 20, origin="weights that have blown up have small relative steps")


@run_rule("learning-rate-too-high", quantity=LR)
def rises_at_this_rate(evidence: RunEvidence) -> Iterator[Finding]:
    """The loss rises for good after the rate was raised, or while it is above the largest stable one.

    A rate above 2(1+μ)/λ_max is no fault by itself: networks train at the edge of stability. After a raise, the loss
    must lose nine tenths of what was learned, since restarts lose some and win it back; or a fifth, for a quarter of
    the run in which the rate is not lowered. Above a limit that was crossed in the second half of the steps before, a
    third, and little by little. Severe from nine tenths.
    """
    rise = evidence.loss.rise
    if rise is None or not rise.had_learned or not rise.is_lasting:
        return
    ratio, above = lr_ratio(evidence, rise.step), above_limit(evidence, rise.step)
    is_raised = ratio > RAISED.at
    if not is_raised and (rise.is_abrupt or above is None or above[0] < LATE.at * rise.step):
        return
    rates = finite(evidence.history.series(LR))
    stays = evidence.step - rise.step > STAYS.at * evidence.step and at(rates, evidence.step) >= at(rates, rise.step)
    least = LOST.warn if above is not None else LOST_FOR_GOOD.at if stays else LOST.severe
    if rise.lost <= least:
        return
    grown = max(growth_of_gradients(evidence, rise.step), jump_of_weights(evidence, rise.step), key=_nan_last)
    if not is_raised and grown < SIZE.at:
        return
    lr = at(rates, rise.step)
    numbers: dict[str, float | str] = {"lr": lr, "level before": rise.lowest, "level now": rise.level}
    how = f", {number(ratio)} times what it was before" if is_raised else ""
    if above is not None:
        crossed, _, limit = above
        numbers |= {"largest stable lr": limit, "above it since step": float(crossed)}
        how += f"; it has been above the largest stable one, {number(limit)}, since step {crossed}"
    yield Finding(
        rule="learning-rate-too-high",
        severity="severe" if LOST.is_severe(rise.lost) else "warning",
        basis="measured",
        summary=f"since step {rise.step} the loss has risen from {number(rise.lowest)} to {number(rise.level)} at lr "
        f"{number(lr)}{how}.",
        evidence=numbers,
        limits={} if above is None else {"largest stable lr": above[2]},
        reason="Beyond 2(1+μ)/λ_max steps overshoot along the sharpest direction. Where the network cannot move to a "
        "flatter place, the loss rises.",
        remedy=f"# go back to weights from before step {rise.step}, and cap the schedule below lr {number(lr)}",
        step=rise.step,
        until=_lowered(rates, rise.step) if is_raised else None,
    )


@run_rule("learning-rate-too-high", quantity=LR)
def jumps_with_the_rate(evidence: RunEvidence) -> Iterator[Finding]:
    """The loss jumps far above all before right after the rate was doubled or more. A warning; a note if not the first.

    It comes back, as after a bad batch; but the step was that much longer, and what it has spoiled may take the rest of
    the run.
    """
    rates = finite(evidence.history.series(LR))
    for spike in (each for each in spikes(evidence) if each.is_of_the_rate):
        level, now = evidence.loss.level(), at(rates, evidence.step)
        is_over = level < spike.level + RETURNS.at * abs(spike.level) or now <= LOWERED.at * spike.rate
        yield Finding(
            rule="learning-rate-too-high",
            severity="warning" if spike.is_highest else "note",
            basis="measured",
            summary=f"at step {spike.step} the loss jumps from {number(spike.level)} to {number(spike.value)}, right "
            f"after the rate was raised from {number(spike.rate_before)} to {number(spike.rate)}; it is "
            f"{number(level)} now.",
            evidence={
                "lr": spike.rate,
                "lr before": spike.rate_before,
                "loss": spike.value,
                "level before": spike.level,
                "level now": level,
            },
            reason="From one step to the next a step is as much longer as the rate is larger, in directions that "
            "averages and momentum have from shorter ones.",
            remedy="# keep the rate, or raise it over some hundred steps; go back to weights from before step "
            f"{spike.step}",
            step=spike.step,
            until=spike.back if is_over else None,
        )


@run_rule("learning-rate-too-high", quantity=LR)
def rises_with_the_rate(evidence: RunEvidence) -> Iterator[Finding]:
    """The rate grows and grows, and for a third of the run the loss has not come near its lowest level again.

    A warning. The rate was not lowered in that third, which is 300 steps or more, is higher than ever before, which
    leaves out cycles, and twice what it was where the loss was lowest. In that third the lowest level is 15 % above the
    lowest of all, and beyond the noise.
    """
    levels, rates = evidence.loss.levels, finite(evidence.history.series(LR))
    first = evidence.step - max(LONGEST_WARM_UP, int(LATEST.at * evidence.step))
    latest = levels.since(first)
    if first < LONGEST_WARM_UP or not len(latest) or not evidence.loss.has_learned or not evidence.loss.lowest > 0:
        return
    place = int(levels.values.argmin())
    then, now = at(rates, int(levels.steps[place])), at(rates, evidence.step)
    has_grown = now > DOUBLED.at * then and now > GROWS.at * at(rates, first)
    is_raised = has_grown and now >= rates.values.max() and bool((np.diff(rates.since(first).values) >= 0).all())
    rise, fall = float(latest.values.min()) - evidence.loss.lowest, evidence.loss.start - evidence.loss.lowest
    error = spread(np.diff(levels.values[len(levels) // 2 :])) / math.sqrt(2)
    if not is_raised or rise < max((ABOVE.at - 1) * evidence.loss.lowest, LOST_BY_AND_BY.at * fall, 2 * error):
        return
    after = Series(levels.steps[place:], levels.values[place:])
    begin = began(after, mostly_since(after.values > evidence.loss.lowest + LEAVES * rise))
    level = median(latest.values)
    yield Finding(
        rule="learning-rate-too-high",
        severity="warning",
        basis="measured",
        summary=f"since step {begin} the loss has risen from {number(evidence.loss.lowest)} to {number(level)}, while "
        f"the rate grew from {number(then)} to {number(now)}.",
        evidence={"lr": now, "lr at the lowest level": then, "lowest level": evidence.loss.lowest, "level now": level},
        reason="Steps of this size cannot stay in the valley that smaller ones have reached.",
        remedy=f"# cap the schedule at lr {number(then)}, where the loss was lowest, and lower it from there",
        step=begin,
    )


@run_rule("learning-rate-too-high", quantity=UPDATE_RATIO)
def never_falls(evidence: RunEvidence) -> Iterator[Finding]:
    """The loss has not fallen in 100 steps, and the first steps changed weights by more than a tenth.

    Severe from 0.3; a warning below, since a loss may fall more slowly than its noise shows.
    """
    curve = evidence.loss
    sigma = noise(curve.series.values[: int(ENOUGH.at)])
    if len(curve.series) < ENOUGH.at or curve.has_learned or curve.start - curve.lowest > 3 * sigma:
        return
    half = len(curve.series) // 2
    error = OF_MEDIAN * sigma * math.sqrt(1 / START_LOSSES.at + 1 / half)  # of the difference of two medians
    if curve.start - curve.level(half) > 3 * error:
        return
    layers = evidence.history.layers(UPDATE_RATIO)
    firsts = [_first(evidence.history.series(UPDATE_RATIO, layer)) for layer in layers]
    middle = median(np.array(firsts)) if firsts else 0.0
    if not LONG_STEPS.is_warning(middle):
        return
    lr = at(finite(evidence.history.series(LR)), evidence.step)
    yield Finding(
        rule="learning-rate-too-high",
        severity="severe" if LONG_STEPS.is_severe(middle) else "warning",
        basis="measured",
        summary=f"the loss has not fallen in {evidence.step} steps, and the first steps at lr {number(lr)} changed "
        f"weights by {number(middle)} of their size.",
        evidence={"lr": lr, "‖Δθ‖/‖θ‖ of the first steps": middle, "loss at the start": curve.start},
        limits=LONG_STEPS.limits(),
        reason="After ten such steps nothing is left of the initialization, and signals have other sizes everywhere.",
        remedy=f'for group in optimizer.param_groups:\n    group["lr"] = {number(lr / 100)}  # or by wc.suggest_lr',
        step=1,
    )


def _lowered(rates: Series, step: int) -> int | None:
    """The step from which on a rate that was too high is half of that or less; None if it is not."""
    later = rates.since(step + 1)
    start = last_before(later.values <= LOWERED.at * at(rates, step))
    return int(later.steps[start]) if start < len(later) else None


def _first(ratios: Series) -> float:
    """Median of the first samples of a run; 0 if there are none."""
    first = ratios.values[ratios.steps <= FIRST.at]
    return median(first) if len(first) else 0.0


def _nan_last(value: float) -> float:
    return -math.inf if math.isnan(value) else value
