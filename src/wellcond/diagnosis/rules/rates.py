"""Rules about the learning rate, from what a trial of the optimizer does, its limit, and what the loss adds up."""

from __future__ import annotations

import math
from collections.abc import Iterator
from statistics import fmean

from wellcond.diagnosis.evidence import Evidence
from wellcond.diagnosis.finding import Finding, Severity
from wellcond.diagnosis.rule import rule
from wellcond.diagnosis.trial_result import Attempt, Trial
from wellcond.results import Row, number
from wellcond.results.quantities import LR, TRAINED_LR, TRAINING_LOSS
from wellcond.training.optimizers import current_lr, nonzero_lr

MUCH_LOWER = 1 / 3
"""Of the loss at the own rate: what a tenth of it must reach in as many steps for the rate to be far too high."""
LOWER = 2 / 3
"""The same for it to cost speed."""
WILD = 2.0
"""Times the loss at the start, which a run at a good rate does not rise to on its way."""
FEW_STEPS, MANY_STEPS = 1500.0, 5000.0
"""To fall by a tenth at the speed of the trial. Healthy networks of ours need 1 to 1,000 of them, counted so; a run of
5,000 that has only begun to fall is no ordinary run."""
FASTER, MUCH_FASTER = 30.0, 60.0
"""Times as fast at a hundredfold rate, which is 100 where the rate is far below any that is too high."""
AS_FAR, MUCH_AS_FAR = 500.0, 800.0
"""Steps at the own speed to where the higher rate is in ten or twenty."""
FAR_BELOW_LIMIT = 3e-4
"""Of the stability limit: even along the sharpest direction the error then takes 1,700 steps to shrink by 1/e."""
CANNOT_FIT = 0.05
"""Of a constant's loss: how far eight examples must get below it."""
ITS_EFFECTS = (
    "diverging", "loss-not-decreasing", "non-finite", "dying-neurons", "saturated-activation", "exploding-gradient",
    "vanishing-gradient", "rank-collapse",
)  # fmt: skip


@rule("learning-rate-too-high", explains=ITS_EFFECTS)
def rises_at_its_own_rate(evidence: Evidence) -> Iterator[Finding]:
    """The loss rises, is NaN or stays where it is in the trial's 24 to 64 steps, and falls at a lower rate.

    Severe if it does not come back, if it stays where it is while a lower rate gains 2 %, or if it has learned nothing
    where a lower rate has. If it comes back, a tenth of the rate is run as long: severe if the loss rose twofold and
    ends more than three times as high as there, a warning from one and a half times. A catapult that ends as low is no
    fault; nor is a rate beyond 2(1+μ)/λ_max by itself, at which cross-entropy trains.
    """
    trial = evidence.trial
    if evidence.optimizer is None or trial is None or trial.own is None or not trial.own.lr > 0 or trial.uphill:
        return
    own, lower = trial.own, next((each for each in trial.others if each.factor < 1 and trial.falls(each)), None)
    if lower is None:
        return
    fall, _ = trial.fall(own)
    only_lower_learns = trial.learns(lower) and not trial.learns(own) and not trial.is_learned
    if own.run.diverged_at is not None:
        what = f"the loss is NaN or infinite at step {own.run.diverged_at}"
        severity, confidence = "severe", 0.97
    elif fall < -0.02 and (not trial.is_learned or fall < -0.3):
        what = f"the loss rises from {number(trial.loss)} to {number(own.loss)} in {len(own.run.losses)} steps"
        severity, confidence = ("severe" if fall < -0.1 or only_lower_learns else "warning"), 0.9
    elif only_lower_learns and lower.loss < LOWER * own.loss:
        what = f"the loss is {number(own.loss)} after {len(own.run.losses)} steps, no lower than a constant's"
        severity, confidence = "severe", 0.9
    elif trial.trains is False and trial.fall(lower)[0] > max(0.02, 4 * fall):
        what = f"the loss stays at {number(own.loss)} for {len(own.run.losses)} steps"
        severity, confidence = "severe", 0.85
    elif trial.spike > WILD and lower.loss < LOWER * own.loss and not trial.is_learned:
        peak, steps = max(own.run.losses), len(own.run.losses)
        what = f"the loss jumps to {number(peak)} and is {number(own.loss)} after {steps} steps"
        severity, confidence = ("severe" if lower.loss < MUCH_LOWER * own.loss else "warning"), 0.85
    else:
        return
    yield _too_high(evidence, trial, own, lower, what, severity, confidence)  # type: ignore[arg-type]


def _too_high(
    evidence: Evidence, trial: Trial, own: Attempt, lower: Attempt, what: str, severity: Severity, confidence: float
) -> Finding:
    limit = evidence.max_lr.value if evidence.max_lr is not None else None
    beyond = f"; the stability limit is {number(limit)}" if limit is not None and limit < own.lr else ""
    if count := _summed(evidence):
        beyond += f"; the loss is a sum over {count} examples, of whose mean this is a rate of {number(own.lr * count)}"
    return Finding(
        rule="learning-rate-too-high",
        layer="",
        severity=severity,
        confidence=confidence,
        summary=f"at lr {number(own.lr)} {what}, at {number(lower.lr)} it falls to {number(lower.loss)}{beyond}.",
        evidence=_numbers(trial, own, lower) | ({} if limit is None else {"stability limit": limit}),
        reason="Beyond 2(1+μ)/λ_max gradient descent overshoots along the sharpest direction, and Adam's first steps, whose "
        "size is the rate itself whatever the gradient, do likewise; both runs saw the same batches.",
        remedy=f"loss = criterion(outputs, targets) / {count}  # the mean over the batch, at the same rate"
        if count
        else f"{_set_lr(lower.lr)}  # wc.suggest_lr(problem, optimizer) finds the best one",
        rows=_rows(trial, own, lower),
    )


def _summed(evidence: Evidence) -> int:
    """The examples that a loss adds up, where steps are proportional to its gradient; else 0."""
    inspection, optimizer = evidence.inspection, evidence.optimizer
    is_proportional = optimizer is not None and type(optimizer).__name__ in ("SGD", "ASGD")
    return inspection.batch_size if inspection is not None and inspection.is_summed and is_proportional else 0


@rule("summed-loss")
def summed_loss(evidence: Evidence) -> Iterator[Finding]:
    """A loss that is the sum over a batch, and not the mean: those of two halves add up to it, to four digits.

    Gradient and curvature are then as many times larger as there are examples, and the rate of SGD has to be as many
    times smaller; Adam's steps do not depend on it. A note: the rate is judged by what a trial does.
    """
    inspection = evidence.inspection
    if inspection is None or not inspection.is_summed or inspection.batch_size < 2:
        return
    yield Finding(
        rule="summed-loss",
        layer="",
        severity="note",
        confidence=0.9,
        summary=f"the loss is a sum over the {inspection.batch_size} examples of a batch: curvature and the largest stable rate are "
        "those of the sum, and change with the batch size.",
        evidence={
            "batch size": float(inspection.batch_size),
            "loss": inspection.loss if inspection.loss is not None else math.nan,
        },
        reason="The Hessian of a sum of N terms is N times that of their mean, and the stable rate 1/N of it.",
        remedy=f'loss = criterion(outputs, targets) / len(targets)  # or reduction="mean"; here / {inspection.batch_size}',
    )


@rule("learning-rate-too-high", explains=ITS_EFFECTS)
def negative_rate(evidence: Evidence) -> Iterator[Finding]:
    """A rate below zero, which torch refuses in a constructor but not from a schedule; or `maximize=True`."""
    if evidence.optimizer is None:
        return
    for index, group in enumerate(evidence.optimizer.param_groups):
        if nonzero_lr(group) < 0:
            lr = nonzero_lr(group)
            what = f"the learning rate of group {index} is {number(lr)}: every step goes uphill"
            yield Finding(
                rule="learning-rate-too-high",
                layer="",
                severity="severe",
                confidence=1.0,
                summary=f"{what}.",
                evidence={"lr": lr},
                reason="θ ← θ − lr·g with a negative lr maximizes the loss.",
                remedy=f"{_set_lr(min(-lr, 0.1))}  # and look at the schedule that made it negative",
                rows=(Row(None, "", LR, lr, "lr"),),
            )


@rule("learning-rate-too-low", explains=("loss-not-decreasing",))
def hardly_falls(evidence: Evidence) -> Iterator[Finding]:
    """The loss falls so slowly that a run of ordinary length ends where it began, and falls far faster at higher rates.

    At the speed of the trial a fall by a tenth takes more than 1,500 steps (severe: 5,000, or a rate below 3·10⁻⁴ of
    the stability limit), while ten times the rate is as stable and at least four times as fast, and a hundred times
    does not rise. Or a hundred times the rate is at least 30 times as fast (severe: 60), nearly in proportion, and the
    network stays above a constant while a thousand steps at its own speed would not take it as far as twenty there (a
    warning: 500). Fine-tuning rates, at which a hundredfold rate diverges, are none of it.
    """
    trial = evidence.trial
    if evidence.optimizer is None or trial is None or trial.own is None or not trial.own.lr > 0:
        return
    if trial.is_learned or trial.learns(trial.own):
        return
    own, higher = trial.own, [each for each in trial.others if each.factor > 1]
    fall, fall_early = trial.fall(own)[0], trial.fall(own, early=True)[0]
    if not higher or not fall > 1e-9 or not 0 < fall_early < fall:
        return
    faster = [each for each in higher if trial.falls(each) and trial.fall(each)[0] > 4 * fall_early]
    if len(faster) < 2:
        return
    steps = 0.1 * len(own.run.losses) / fall
    limit = evidence.max_lr.value if evidence.max_lr is not None else math.inf
    is_far_below = limit < math.inf and own.lr < FAR_BELOW_LIMIT * limit
    best = max(faster, key=lambda each: trial.fall(each)[0])
    speed_up = trial.fall(best, early=True)[0] / fall_early
    as_far = len(own.run.losses) * trial.fall(best)[0] / fall
    is_behind = speed_up > FASTER and as_far > AS_FAR and trial.learns_nothing(own)
    if steps < FEW_STEPS and not is_far_below and not is_behind:
        return
    is_severe = steps > MANY_STEPS or is_far_below or (is_behind and speed_up > MUCH_FASTER and as_far > MUCH_AS_FAR)
    yield Finding(
        rule="learning-rate-too-low",
        layer="",
        severity="severe" if is_severe else "warning",
        confidence=0.9,
        summary=f"at lr {number(own.lr)} the loss falls by {number(100 * fall)} % in {len(own.run.losses)} steps, at "
        f"{number(best.lr)} by {number(100 * trial.fall(best)[0])} % in {len(best.run.losses)}.",
        evidence=_numbers(trial, own, best)
        | {"steps to fall by a tenth": steps, "steps to fall as far as there": as_far}
        | ({"stability limit": limit} if limit < math.inf else {}),
        reason="The error along a direction of curvature λ shrinks by 1 − lr·λ per step, so that a rate far below the limit "
        "2(1+μ)/λ_max wastes as many steps as it is below; both runs saw the same batches.",
        remedy=f"{_set_lr(best.lr)}  # wc.suggest_lr(problem, optimizer) finds the best one",
        rows=_rows(trial, own, best),
    )


@rule("learning-rate-too-low", explains=("loss-not-decreasing",))
def zero_rate(evidence: Evidence) -> Iterator[Finding]:
    """A rate of exactly zero in all groups: nothing moves.

    Severe without a schedule. With one it may be the first step of a warm-up, when the optimizer has no state yet, or
    the end of training: then it is a note, unless the network has learned nothing by then.
    """
    optimizer = evidence.optimizer
    if optimizer is None or any(current_lr(group) for group in optimizer.param_groups):
        return
    is_scheduled = any(group.get("initial_lr") for group in optimizer.param_groups)
    is_learned = evidence.trial is not None and evidence.trial.is_learned
    has_begun = bool(optimizer.state)
    severity: Severity = "severe" if not is_scheduled or (has_begun and not is_learned) else "note"
    when = "the schedule has driven it there" if has_begun else "the schedule begins there"
    yield Finding(
        rule="learning-rate-too-low",
        layer="",
        severity=severity,
        confidence=1.0 if not is_scheduled else 0.8,
        summary=f"the learning rate is 0{f': {when}' if is_scheduled else ''}, so no step moves anything.",
        evidence={"lr": 0.0},
        reason="θ ← θ − lr·g with lr = 0 leaves θ where it is.",
        remedy=f"{_set_lr(1e-3)}  # and check the schedule: print(scheduler.get_last_lr())",
        rows=(Row(None, "", LR, 0.0, "lr"),),
    )


@rule("diverging", explains=("non-finite",))
def goes_uphill(evidence: Evidence) -> Iterator[Finding]:
    """The loss rises at every rate, in proportion to it: the step goes up the gradient.

    Two rates, ten to a hundred times apart, at which the loss rises gently and in the ratio of the rates to within a
    factor of two: no overshooting does that, since it vanishes faster than the rate.
    """
    trial = evidence.trial
    if trial is None or trial.own is None or (pair := trial.uphill) is None:
        return
    fast, slow = pair
    rise = [number(-100 * trial.fall(each, early=True)[0]) for each in pair]
    maximizes = any(group.get("maximize") for group in (evidence.optimizer.param_groups if evidence.optimizer else ()))
    flag = "; the optimizer has maximize=True" if maximizes else ""
    yield Finding(
        rule="diverging",
        layer="",
        severity="severe",
        confidence=0.97,
        summary=f"the loss rises at every rate, in proportion to it: in the first steps by {rise[0]} % at lr {number(fast.lr)} "
        f"and by {rise[1]} % at {number(slow.lr)}{flag}.",
        evidence={
            "loss before": trial.loss,
            f"early loss at lr {number(fast.lr)}": fmean(fast.early),
            f"early loss at lr {number(slow.lr)}": fmean(slow.early),
        },
        reason="Along −∇L the loss falls at every rate that is low enough; a rise in proportion to it is a step along +∇L.",
        remedy="optimizer = type(optimizer)(model.parameters(), lr=lr)  # without maximize=True"
        if maximizes
        else "p -= lr * p.grad  # minus; and the loss must be one to minimize: print(loss.item()) as the fit improves",
        rows=_rows(trial, fast, slow),
    )


@rule("diverging")
def rises_at_any_rate(evidence: Evidence) -> Iterator[Finding]:
    """The loss rises or is NaN at the own rate and at every lower one that was tried, down to a billionth."""
    trial = evidence.trial
    if trial is None or trial.own is None or trial.uphill or not trial.rises(trial.own):
        return
    lower = [each for each in trial.others if each.factor < 1]
    if len(lower) < 3 or any(trial.falls(each) for each in lower):
        return
    if all(each.run.diverged_at is not None for each in lower):
        return  # another matter: it is not finite whatever the rate
    lowest = lower[-1]
    yield Finding(
        rule="diverging",
        layer="",
        severity="severe",
        confidence=0.8,
        summary=f"the loss does not fall at any rate between {number(lowest.lr)} and {number(trial.own.lr)}.",
        evidence=_numbers(trial, trial.own, lowest),
        reason="At a low enough rate every step along −∇L lowers the loss, unless its curvature or its rounding errors leave "
        "no room for one.",
        remedy="inputs = (inputs - mean) / std  # the scale of inputs and targets first",
        rows=_rows(trial, trial.own, lowest),
    )


@rule("loss-not-decreasing")
def does_not_decrease(evidence: Evidence) -> Iterator[Finding]:
    """The loss does not get below a constant prediction's, and neither does that of eight examples trained with Adam.

    Severe if Adam, at the better of two rates, takes eight examples in 53 steps no further than 5 % below a constant
    (healthy networks of ours: 17 to 100 %), and the own run ends no lower than 3 % below a constant. A warning
    if the own run alone stands still: it moves by less than 0.5 % and less than its standard error. What has been
    learned before the trial is none of it.
    """
    trial = evidence.trial
    if trial is None or trial.is_learned:
        return
    own, few = trial.own, trial.few
    cannot_fit = few is not None and few.fall < CANNOT_FIT
    is_above = own is None or not own.loss < 0.97 * (trial.loss if trial.constant is None else trial.constant)
    is_severe = cannot_fit and is_above and not any(trial.learns(each) for each in trial.others)
    stands_still = own is not None and trial.trains is False and not trial.rises(own)
    if trial.uphill or not (is_severe or stands_still):
        return
    numbers: dict[str, float | str] = {"loss before": trial.loss}
    said = []
    if own is not None:
        steps = len(own.run.losses)
        numbers |= {"loss after": own.loss, "steps": float(steps)}
        said.append(f"after {steps} steps the loss is {number(own.loss)}, where it was {number(trial.loss)}")
    if trial.constant is not None:
        numbers["loss of the best constant"] = trial.constant
    if few is not None:
        numbers |= {"eight examples, before": few.before, "eight examples, after": few.after}
        said.append(
            f"a handful of examples {'cannot' if cannot_fit else 'can'} be fitted with Adam ({number(few.before)} to "
            f"{number(few.after)} in {len(few.run.losses)} steps)"
        )
    yield Finding(
        rule="loss-not-decreasing",
        layer="",
        severity="severe" if is_severe else "warning",
        confidence=0.8 if is_severe else 0.6,
        summary=f"{'; '.join(said)}.",
        evidence=numbers,
        reason="Any sound network can fit eight examples; one that cannot gets no gradient that tells them apart.",
        remedy="wc.suggest_lr(problem, optimizer)  # if no rate helps, the fault is in the model, the loss or the data",
        rows=_rows(trial, *(() if own is None else (own,))),
    )


def _numbers(trial: Trial, own: Attempt, other: Attempt) -> dict[str, float | str]:
    found: dict[str, float | str] = {
        "loss before": trial.loss,
        f"loss after {len(own.run.losses)} steps at lr {number(own.lr)}": own.loss,
        f"loss after {len(other.run.losses)} steps at lr {number(other.lr)}": other.loss,
    }
    return found | ({} if trial.constant is None else {"loss of the best constant": trial.constant})


def _rows(trial: Trial, *attempts: Attempt) -> tuple[Row, ...]:
    rows = [Row(0, "", TRAINING_LOSS, trial.loss, "")]
    for attempt in attempts:
        rows.append(Row(0, "", TRAINED_LR, attempt.lr, "lr"))
        rows += [Row(step, "", TRAINING_LOSS, loss, "") for step, loss in enumerate(attempt.run.losses, start=1)]
    return tuple(rows)


def _set_lr(lr: float) -> str:
    return f'for group in optimizer.param_groups: group["lr"] = {lr:.2g}'
