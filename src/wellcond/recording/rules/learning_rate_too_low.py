"""learning-rate-too-low: steps so short that nothing is learned.

Wrong:
    for inputs, targets in loader:
        train_step(inputs, targets)
        scheduler.step()  # ExponentialLR(optimizer, 0.97), after every batch
Right:
    for inputs, targets in loader:
        train_step(inputs, targets)
    scheduler.step()  # after every epoch
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from wellcond.diagnosis.finding import Finding
from wellcond.diagnosis.threshold import Condition, Threshold
from wellcond.recording.history import Series
from wellcond.recording.judging.levels import finite, last_before, median, smooth
from wellcond.recording.judging.rates import at
from wellcond.recording.judging.run_rule import RunEvidence, run_rule
from wellcond.results import number
from wellcond.results.quantities import LR, UPDATE_RATIO

PATH = Threshold(
    "sum of ‖Δθ‖/‖θ‖ over all steps, median over the layers", 0.01, math.nan, bad="below",
    origin="weights that have moved by less than a hundredth of their size compute what they did at the start; healthy "
    "trainings have moved by 1 to 100 in 2,000 steps",
)  # fmt: skip
FALL = Condition("fall of the loss / loss at the start", 0.1, origin="what a network must gain to have learned")
ENOUGH = Condition("steps", 300, origin="short runs may move slowly, in a warm-up")
ENDED = Threshold(
    "learning rate / its highest", 1e-3, math.nan, bad="below",
    origin="step decay by ten ends at 1e-2 or 1e-3; cosine and one-cycle schedules pass 1e-3 in the last 2 % of a run",
)  # fmt: skip
LONG = Condition(
    "share of the run with such a rate", 0.2, origin="schedules that end with the run have that for their last 2 %"
)
MOST = Condition(
    "the same, where the loss has not fallen since", 0.6,
    origin="no schedule is made to change nothing in most of the steps of its run",
)  # fmt: skip
DROP = Condition("learning rate / before", 0.7, origin="decay by a half or a tenth; smooth schedules take 0.9 of it")
ROUNDING = 1e-6
"""Relative error of a rate that was multiplied by decays."""
EARLY = 0.25
"""Share of the samples that show what steps change at first."""
WINDOW = 25
"""Losses whose median is their level, where samples of steps are far apart."""
SOLVED = Condition("loss / first loss", 1e-3, origin="of a task that is fitted exactly gradients vanish by themselves")
UNFINISHED = Condition(
    "fall of the loss in the last quarter before it, in standard errors", 3.0, origin="the loss was still falling"
)


@run_rule("learning-rate-too-low", quantity=UPDATE_RATIO)
def weights_do_not_move(evidence: RunEvidence) -> Iterator[Finding]:
    """In 300 steps or more, weights have moved by less than a hundredth of their size, and the loss stays. A warning.

    The sum of all relative updates is an upper bound of how far they can have moved.
    """
    curve = evidence.loss
    ratios = [finite(evidence.history.series(UPDATE_RATIO, layer)) for layer in evidence.history.layers(UPDATE_RATIO)]
    paths = sorted(_sum_over_steps(series, evidence.step) for series in ratios if len(series))
    if evidence.step < ENOUGH.at or not paths or curve.start - curve.level() > FALL.at * abs(curve.start):
        return
    path = paths[len(paths) // 2]
    middle = path / evidence.step
    if not PATH.is_warning(path) or not path > 0:
        return
    lr = at(finite(evidence.history.series(LR)), evidence.step)
    yield Finding(
        rule="learning-rate-too-low",
        severity="warning",
        basis="measured",
        summary=f"a step at lr {number(lr)} changes weights by {number(middle)} of their size: in {evidence.step} "
        f"steps they can have moved by {number(path)} of it, and the loss is {number(curve.level())} after "
        f"{number(curve.start)} at the start.",
        evidence={"‖Δθ‖/‖θ‖ of a step": middle, "of all steps": path, "lr": lr},
        limits={"warning": PATH.warn / evidence.step},
        reason="Weights that have hardly moved compute what they did at the start.",
        remedy="for group in optimizer.param_groups:\n"
        f'    group["lr"] = {number(1e-3 * lr / middle)}  # or by wc.suggest_lr',
        step=1,
    )


def _sum_over_steps(ratios: Series, steps: int) -> float:
    """Sum over all steps of a quantity that was sampled at some: each sample counts until the next one."""
    return float(ratios.values @ np.diff(np.append(ratios.steps, steps + 1)))


@run_rule("learning-rate-too-low", quantity=LR)
def schedule_has_ended(evidence: RunEvidence) -> Iterator[Finding]:
    """The rate has been below a thousandth of its highest for a fifth of the run, and training goes on. A warning.

    At just a thousandth, where three decays by ten end, for three fifths of the run. A note if the network had learned
    by then, and the loss was not falling any more, unless that is three fifths of the run and the loss has not fallen
    since. It begins with the first drop of the rate that came while the loss was falling; a rate that falls little by
    little, where it is a thousandth.
    """
    rates = finite(evidence.history.series(LR))
    if not len(rates) or evidence.step < ENOUGH.at:
        return
    highest = float(rates.values.max())
    start = last_before(rates.values < ENDED.warn * highest * (1 + ROUNDING))
    if start >= len(rates):
        return
    ended, lr = int(rates.steps[start]), float(rates.values[-1])
    share = LONG if lr < ENDED.warn * highest * (1 - ROUNDING) else MOST
    if evidence.step - ended < share.at * evidence.step:
        return
    drop = _early_drop(evidence, rates, start)
    begin = drop or ended
    is_early = not evidence.loss.has_learned or drop is not None or _was_falling(evidence, ended)
    is_idle = evidence.step - ended >= MOST.at * evidence.step and not evidence.loss.has_fallen_since(ended)
    early = f"; it fell at step {begin}, when the loss was falling too" if begin < ended else ""
    yield Finding(
        rule="learning-rate-too-low",
        severity="warning" if is_early or is_idle else "note",
        basis="proven",
        summary=f"since step {ended} the rate is at most a thousandth of its highest, {number(highest)}, and now "
        f"{number(lr)}{early}; the loss is {number(evidence.loss.level())}, and was "
        f"{number(evidence.loss.level_at(ended))} then.",
        evidence={"lr": lr, "highest lr": highest, "steps since": float(evidence.step - ended)},
        limits=ENDED.limits(highest),
        reason="The schedule has come to its end and the training has not: the remaining steps change nothing.",
        remedy="# make the schedule as long as the training; if its step() belongs to an epoch, do not call it after "
        "every batch",
        step=begin,
    )


@run_rule("learning-rate-too-low", quantity=UPDATE_RATIO)
def steps_have_ended(evidence: RunEvidence) -> Iterator[Finding]:
    """Every layer's steps have shrunk to a thousandth of what they were, for a fifth of the run, and the rate has not.

    Gradients that are clipped to next to nothing, or multiplied by a small number. A warning; a note if the loss is
    next to zero, where gradients vanish by themselves.
    """
    ratios = [finite(evidence.history.series(UPDATE_RATIO, layer)) for layer in evidence.history.layers(UPDATE_RATIO)]
    ended = [_end_of_steps(series) for series in ratios]
    curve, rates = evidence.loss, finite(evidence.history.series(LR))
    if evidence.step < ENOUGH.at or not ended or None in ended or not len(rates):
        return
    between = [each for each in ended if each is not None]
    step = _reached(evidence, max(first for first, _ in between), max(last for _, last in between))
    lowest = float(rates.values[rates.steps >= step].min(initial=at(rates, step)))
    if evidence.step - step < LONG.at * evidence.step or lowest < DROP.at * at(rates, max(step // 2, 1)):
        return
    is_solved = abs(curve.level()) < SOLVED.at * abs(curve.start)
    last = max(float(series.values[-1]) for series in ratios)
    yield Finding(
        rule="learning-rate-too-low",
        severity="note" if is_solved else "warning",
        basis="measured",
        summary=f"since step {step} a step changes no layer's weights by more than {number(last)} of their size, less "
        f"than a thousandth of what it did before; the rate is still {number(lowest)}, and the loss is "
        f"{number(curve.level())}.",
        evidence={"‖Δθ‖/‖θ‖ of a step": last, "lr": lowest},
        reason="Gradients that are clipped to next to nothing, scaled down or lost before step() leave the weights as "
        "they are.",
        remedy="# look at what happens between backward() and step(): max_norm of the clipping, a factor, an unscale_",
        step=step,
    )


def _end_of_steps(ratios: Series) -> tuple[int, int] | None:
    """The last sample before all are below a thousandth of the median of the first ones, and the next; None if not."""
    start = last_before(ratios.values < ENDED.warn * median(ratios.values[: math.ceil(EARLY * len(ratios))]))
    return None if start >= len(ratios) or start == 0 else (int(ratios.steps[start - 1]), int(ratios.steps[start]))


def _reached(evidence: RunEvidence, first: int, last: int) -> int:
    """The step between two others at which the loss comes down to the level that it then keeps; the last if it rose."""
    series = evidence.loss.series
    level = median(series.values[series.steps >= last])
    is_between = (series.steps > first) & (series.steps <= last)
    reached = series.steps[is_between & (smooth(series.values, WINDOW) <= level)]
    return int(reached[0]) if len(reached) else last


def _early_drop(evidence: RunEvidence, rates: Series, start: int) -> int | None:
    """The first drop since the rate was last raised that came while the loss was falling, up to the one at an index."""
    factors = rates.values[1 : start + 1] / rates.values[:start]
    raised = np.flatnonzero(factors > 1)
    drops = np.flatnonzero(factors <= DROP.at) + 1
    steps = rates.steps[drops[drops > (raised[-1] + 1 if len(raised) else 0)]]
    was_falling = (int(step) for step in steps if any(_was_falling(evidence, int(step), part) for part in (4, 2)))
    return next(was_falling, None)


def _was_falling(evidence: RunEvidence, step: int, part: int = 4) -> bool:
    """Whether the loss fell in the last part of the steps before this one, by default a quarter."""
    end = int(np.searchsorted(evidence.loss.series.steps, step))
    latest = evidence.loss.series.values[end - end // part : end]
    half = len(latest) // 2
    error = float(np.std(latest)) / math.sqrt(max(1, half))
    return half > 1 and median(latest[:half]) - median(latest[half:]) > UNFINISHED.at * error
