"""learning-rate-too-low: a rate at which a run of ordinary length ends where it began.

Wrong:
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)  # a rate for Adam
Right:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)  # see wc.suggest_lr
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from statistics import fmean

from wellcond.diagnosis.evidence import Evidence
from wellcond.diagnosis.finding import Finding, Severity
from wellcond.diagnosis.reading import are_fresh, in_order, is_trained, layers_of, listed
from wellcond.diagnosis.rule import rule
from wellcond.diagnosis.runs import run_numbers, run_rows, set_lr
from wellcond.diagnosis.threshold import Condition, Threshold
from wellcond.diagnosis.trial_result import FALLING, HALF, Attempt, Trial
from wellcond.remedies.optimizer_code import race_lr
from wellcond.results import Row, number
from wellcond.results.quantities import LR, TRAINING_LOSS
from wellcond.training.optimizers import current_lr
from wellcond.training.schedule import SHORT_RUN as SHORT
from wellcond.training.schedule import TOP, Schedule

STEPS = Threshold(
    "steps to fall by a tenth, at the speed of the trial", 1500.0, 5000.0,
    origin="healthy networks of the benchmarks need 1 to 1,000; ordinary runs have 1,000 to 10,000 steps",
)  # fmt: skip
OF_LIMIT = Threshold(
    "rate / stability limit", math.nan, 3e-4, bad="below",
    origin="even along the sharpest direction the error then takes 1,700 steps to shrink to 1/e",
)  # fmt: skip
SPEED_UP = Threshold(
    "early fall at a hundredfold rate / that at its own", 30.0, 60.0,
    origin="100 if the rate is far below any that is too high",
)  # fmt: skip
CATCH_UP = Threshold(
    "steps at its own speed to where the higher rate is in ten or twenty", 500.0, 800.0,
    origin="half an ordinary short run of 1,000 steps",
)  # fmt: skip
FASTER = Condition(
    "fall at a higher rate / early fall at its own", 4.0, origin="ten times the rate gives ten if it is stable"
)
GROUP = Threshold(
    "rate of a group / the largest", 1.1e-3, 1.1e-5, bad="below",
    origin="rates of layers that were trained before are a tenth or a hundredth of a head's (ULMFiT, BEiT)",
)  # fmt: skip
SHARE_OF_GROUP = Condition("share of all weights", 0.1, origin="as for layers without a gradient")
AT_FULL_RATE = Threshold(
    "steps at the highest rate that a schedule is worth", 100.0, 25.0, bad="below",
    origin="a tenth and a fortieth of an ordinary short run of 1,000 steps; healthy networks of the benchmarks need 1 "
    "to 1,000 to fall by a tenth",
)  # fmt: skip
WAITING = Threshold(
    "the same of the first 1,000 steps, if the highest rate comes later", math.nan, 10.0, bad="below",
    origin="a hundredth of an ordinary short run; 50 in a linear warm-up of 10,000 steps",
)  # fmt: skip
PASS = Condition(
    "steps to the end of a schedule / batches", 0.5, origin="a decay to zero over one epoch is an ordinary plan"
)
LITTLE = Condition("rate / the highest one", 0.01, origin="a step there is worth a hundredth of one at the highest")
LAST = 4
"""Steps whose losses are averaged, to tell where a run is: one batch alone is noise."""
ANY_FALL = Condition("fall of the loss / loss", 1e-9, origin="below it there is no speed to extrapolate")
SHORT_RUN = Condition("steps of a run", 1000, origin="ordinary runs have 1,000 to 10,000 steps")
AT_REST = Condition(
    "‖Δθ‖/‖θ‖ after the first steps of the trial", 1e-5, origin="ten thousand such runs move the weights by a tenth"
)
NOT_BELOW_START = Condition("loss after / loss before", 0.98, origin="where the loss of a constant is not known")


@rule("learning-rate-too-low", quantity=TRAINING_LOSS)
def hardly_falls(evidence: Evidence) -> Iterator[Finding]:
    """The loss falls so slowly that a run of ordinary length ends where it began, and falls far faster at higher rates.

    At the speed of the trial a fall by a tenth takes more than 1,500 steps (severe: 5,000, or a rate below 3·10⁻⁴ of
    the stability limit), while ten times the rate is as stable and at least four times as fast, and a hundred times
    does not rise. Or a hundred times the rate is at least 30 times as fast (severe: 60), nearly in proportion, and the
    network stays above a constant while 800 steps at its own speed would not take it as far as twenty there (a warning:
    500). Where a fall by a tenth takes less than 500 steps it is no more than a warning. Or the schedule ends before a
    fall by a tenth. Fine-tuning rates, at which a hundredfold rate diverges, are not reported; nor is a rate whose
    schedule comes to the faster ones (`initial_lr` and `max_lr` of its groups). With `diagnose(..., scheduler=)` the
    highest rate of the schedule is judged in this way.
    """
    trial = evidence.trial
    if evidence.optimizer is None or trial is None or trial.own is None or not trial.own.lr > 0:
        return
    own = _at_its_highest(evidence, trial, trial.own)
    if trial.has_learned or trial.outcome(own) == "learns":
        return
    reached = evidence.highest_lr
    higher = [each for each in trial.others if each.factor > own.factor]
    is_endless = False
    if reached == math.inf and evidence.schedule is not None:
        reached = evidence.schedule.rates[int(SHORT_RUN.at)]
        is_endless = reached < max(evidence.schedule.rates)  # it rises for longer than ordinary runs are
        higher = [each for each in higher if is_endless or each.lr > reached]
    fall, fall_early = trial.fall(own)[0], trial.fall(own, early=True)[0]
    if own.moved < AT_REST.at:  # rounding is larger than what such a rate changes
        fall_early = max(fall_early, ANY_FALL.at)
        fall = max(fall, 2 * fall_early)
    if not higher or not fall > ANY_FALL.at or not 0 < fall_early < fall:
        return
    faster = [
        each for each in higher if trial.outcome(each) in FALLING and trial.fall(each)[0] > FASTER.at * fall_early
    ]
    limit = evidence.max_lr.value if evidence.max_lr is not None else math.inf
    is_far_below = OF_LIMIT.is_severe(own.lr / limit) if 0 < limit < math.inf else False
    if len(faster) < (1 if is_far_below and own.moved < AT_REST.at else 2):
        return
    best = max(faster, key=lambda each: trial.fall(each)[0])
    if reached >= (best.lr if is_endless else min(each.lr for each in faster)):
        return  # a warm-up, a one-cycle or a decay: the schedule has such rates itself
    steps = 0.1 * len(own.run.losses) / fall
    speed_up = trial.fall(best, early=True)[0] / fall_early
    catch_up = len(own.run.losses) * trial.fall(best)[0] / fall
    is_far_behind = SPEED_UP.is_severe(speed_up) and CATCH_UP.is_severe(catch_up)
    is_behind = SPEED_UP.is_warning(speed_up) and CATCH_UP.is_warning(catch_up)
    is_behind = is_behind and (is_far_behind or _is_above_constant(trial, own))
    ends_before = _ends_before(evidence.schedule, steps)
    if steps < STEPS.warn and not (is_far_below or is_behind or ends_before):
        return
    is_slow = CATCH_UP.is_warning(steps)  # a loss that falls by a tenth sooner falls further in such a run
    yield Finding(
        rule="learning-rate-too-low",
        severity="severe" if STEPS.is_severe(steps) or (is_slow and (is_far_below or is_far_behind)) else "warning",
        basis="tried",
        summary=f"at lr {number(own.lr)} the loss falls by {number(100 * fall)} % in {len(own.run.losses)} steps; at "
        f"{number(best.lr)} by {number(100 * trial.fall(best)[0])} % in {len(best.run.losses)}.",
        evidence=run_numbers(trial, own, best)
        | {"steps to fall by a tenth": steps, "steps to fall as far as at the other lr": catch_up}
        | ({"stability limit": limit} if limit < math.inf else {}),
        reason="The error along a direction of curvature λ shrinks by 1 − lr·λ per step, so a rate a thousand times "
        "below the limit 2(1+μ)/λ_max needs a thousand times the steps. Both runs saw the same batches.",
        treatment="" if best is max(higher, key=lambda each: each.lr) else "rate",
        remedy=race_lr(evidence.problem, evidence.optimizer),
        rows=run_rows(trial, own, best),
    )


def _ends_before(schedule: Schedule | None, steps: float) -> bool:
    """Whether a schedule ends before this many steps at its highest rate have been taken."""
    return schedule is not None and schedule.is_per_batch and schedule.ends is not None and schedule.worth < steps


def _at_its_highest(evidence: Evidence, trial: Trial, own: Attempt) -> Attempt:
    """The run at the highest rate of the schedule, if it was tried, or that at the present rate."""
    if evidence.schedule is None:
        return own
    return next((each for each in trial.others if math.isclose(each.lr, evidence.schedule.highest)), own)


def _is_above_constant(trial: Trial, attempt: Attempt) -> bool:
    """Whether a run ends above a constant's loss; if that is not known, no lower than 2 % below the start."""
    return attempt.loss > (NOT_BELOW_START.at * trial.loss if trial.constant is None else trial.constant)


@rule("learning-rate-too-low", quantity=LR)
def soon_over(evidence: Evidence) -> Iterator[Finding]:
    """A schedule, stepped after every batch, whose rates together are worth less than a hundred steps at the highest.

    Severe below 25 steps, if it is known how the schedule is stepped and the loss does not halve in a trial of these;
    a plain `scheduler=` may be one that is stepped once per epoch after all. Schedules that end at zero, or rise again,
    have the length that they are meant to have, unless they end within half a pass over the batches: a warning.
    Nothing is said of a schedule that is stepped once per epoch, `scheduler={"scheduler": scheduler, "interval":
    "epoch"}`, or of a network that has learned already.
    """
    schedule, trial = evidence.schedule, evidence.trial
    if schedule is None or not schedule.is_per_batch or _was_trained(evidence):
        return
    if not AT_FULL_RATE.is_warning(schedule.worth):
        return
    end = schedule.ends
    if end is not None and end > PASS.at * evidence.problem.batch_count:
        return
    highest, gone = max(schedule.rates), _gone(schedule)
    is_far = AT_FULL_RATE.is_severe(schedule.worth) and end is None and schedule.is_known
    yield Finding(
        rule="learning-rate-too-low",
        severity="severe" if is_far and not _halves_in(trial, schedule.worth) else "warning",
        basis="proven",
        summary=f"the schedule, stepped after every batch, takes the rate from {number(highest)} to "
        f"{number(schedule.rates[gone])} in {gone} batches: all steps are worth {number(schedule.worth)} at the full "
        'rate. If it is stepped once per epoch, pass it as {"scheduler": scheduler, "interval": "epoch"}.',
        evidence={"steps at the highest rate": schedule.worth, "steps to a hundredth": float(gone)},
        limits=AT_FULL_RATE.limits(),
        reason="Training stands still from there on, before it has seen much of the data. Such decays are made for one "
        "step per epoch.",
        remedy="# call scheduler.step() once per epoch, or choose a decay that is meant for every batch: OneCycleLR, "
        "CosineAnnealingLR",
        rows=tuple(Row(k, "", LR, rate, "lr") for k, rate in enumerate(schedule.rates[: 2 * gone])),
    )


def _was_trained(evidence: Evidence) -> bool:
    """Whether the network has learned before: its weights are not as initialized, and its loss is below a constant's.

    What a step compares with a constant may have one that is lower, as examples next to those that are asked for.
    """
    layers = [] if evidence.inspection is None else [s.name for s in evidence.inspection.weighted()]
    has_learned = evidence.trial is not None and evidence.trial.has_learned
    return has_learned and not are_fresh(evidence.problem.model, layers)


def _gone(schedule: Schedule) -> int:
    """Steps after which the rate is at a hundredth of the highest; or at its lowest."""
    highest = max(schedule.rates)
    rates = schedule.rates[: schedule.rates.index(highest) + SHORT]
    after = range(schedule.rates.index(highest), len(rates))
    return next((k for k in after if rates[k] <= LITTLE.at * highest / TOP), min(after, key=lambda k: rates[k]))


def _halves_in(trial: Trial | None, steps: float) -> bool:
    """Whether this many steps at its own rate take the loss below half of what it was, and of a constant's."""
    if trial is None or trial.own is None:
        return False
    losses = trial.own.run.losses
    taken = max(1, int(steps))
    if len(losses) <= taken:
        return trial.halves
    least = HALF * min(trial.loss, trial.constant or trial.loss)
    return fmean(losses[max(0, taken - LAST) : taken]) < least


@rule("learning-rate-too-low", quantity=LR)
def slow_group(evidence: Evidence) -> Iterator[Finding]:
    """A group of parameters at a thousandth of the largest rate, whose weights are as they were initialized.

    Rates of layers that were trained before are often a tenth or a hundredth of a new head's. Severe from a
    hundred-thousandth, unless the trial shows that the network learns. Less than a tenth of all weights does not count.
    """
    inspection, optimizer = evidence.inspection, evidence.optimizer
    if inspection is None or optimizer is None:
        return
    held = [w for w in inspection.weights if w.is_trainable and w.lr is not None and w.role in ("weight", "recurrent")]
    largest = max((w.lr or 0.0 for w in held), default=0.0)
    slow = [w for w in in_order(held) if GROUP.is_warning((w.lr or 0.0) / largest)] if largest > 0 else []
    share = sum(w.numel for w in slow) / max(1, sum(w.numel for w in held))
    if (
        share < SHARE_OF_GROUP.at
        or any(map(is_trained, slow))
        or not are_fresh(evidence.problem.model, layers_of(slow))
    ):
        return
    lowest = min(w.lr or 0.0 for w in slow)
    learns = evidence.trial is not None and evidence.trial.trains
    yield Finding(
        rule="learning-rate-too-low",
        layer=slow[0].layer,
        severity="severe" if GROUP.is_severe(lowest / largest) and not learns else "warning",
        basis="proven",
        summary=f"{listed(layers_of(slow))}, {share:.0%} of all weights, are trained at lr {number(lowest)}, the "
        f"others at {number(largest)}, and are still as initialized.",
        evidence={"lr": lowest, "largest lr": largest, "share of weights": share},
        limits=GROUP.limits(largest),
        reason="A low rate keeps what a layer has learned; these have learned nothing yet.",
        remedy=set_lr(largest),
        rows=tuple(Row(None, w.layer, LR, w.lr or 0.0, "lr") for w in held),
    )


@rule("learning-rate-too-low", quantity=LR)
def begins_late(evidence: Evidence) -> Iterator[Finding]:
    """A schedule whose rate is zero, or hardly more, until an ordinary short run of 1,000 steps is over.

    Severe if these steps together are worth less than ten at the highest rate, which comes later; whether it is stepped
    after every batch or once per epoch. A warm-up of 10,000 steps is worth fifty in its first 1,000. Nothing is said of
    a network that has learned already, or learns at the present rate.
    """
    schedule, trial = evidence.schedule, evidence.trial
    if schedule is None or (trial is not None and trial.has_learned):
        return
    highest, first = max(schedule.rates), schedule.rates[: int(SHORT_RUN.at)]
    worth = sum(first) / highest if highest else 0.0
    late = next((k for k, rate in enumerate(schedule.rates) if rate > LITTLE.at * highest), None)
    if not WAITING.is_severe(worth) or (late is not None and late < worth + HALF * len(first)):
        return
    if trial is not None and trial.own is not None and 0 < trial.own.lr <= LITTLE.at * highest and _learns(trial):
        return
    yield Finding(
        rule="learning-rate-too-low",
        severity="severe",
        basis="proven",
        summary=f"the schedule begins at a rate of {number(first[0])}, "
        + ("and stays there" if late is None else f"and comes to higher ones after {late} calls of scheduler.step()")
        + f": its first {len(first)} steps are worth {number(worth)} at the highest rate.",
        evidence={"first lr": first[0], "highest lr": highest, "steps at the highest lr": worth},
        limits=WAITING.limits(),
        reason="An ordinary short run is over by then, and nothing has moved. A factor that is counted in whole "
        "numbers, k // 1000, is 0 until the warm-up is over.",
        remedy="# print scheduler.get_last_lr() along the run; a warm-up is min(1, (step + 1) / 50), with / and not //",
        rows=tuple(Row(k, "", LR, rate, "lr") for k, rate in enumerate(schedule.rates[: 2 * len(first)])),
    )


def _learns(trial: Trial) -> bool:
    return trial.own is not None and trial.outcome(trial.own) == "learns"


@rule("learning-rate-too-low", quantity=TRAINING_LOSS)
def zero_rate(evidence: Evidence) -> Iterator[Finding]:
    """A rate of exactly zero in all groups: nothing moves.

    Severe without a schedule. With one it may be the first step of a warm-up, when the optimizer has no state yet, or
    the end of training: then it is a note, unless the network has learned nothing by then.
    """
    optimizer = evidence.optimizer
    if optimizer is None or any(current_lr(group) for group in optimizer.param_groups):
        return
    if any(True for _ in begins_late(evidence)):
        return
    is_scheduled = any(group.get("initial_lr") for group in optimizer.param_groups)
    has_learned = evidence.trial is not None and evidence.trial.has_learned
    has_begun = bool(optimizer.state)
    severity: Severity = "severe" if not is_scheduled or (has_begun and not has_learned) else "note"
    when = "the schedule has driven it there" if has_begun else "the schedule begins there"
    yield Finding(
        rule="learning-rate-too-low",
        severity=severity,
        basis="proven",
        summary=f"the learning rate is 0{f': {when}' if is_scheduled else ''}, so no step changes anything.",
        evidence={"lr": 0.0},
        reason="θ ← θ − lr·g with lr = 0 leaves θ unchanged.",
        treatment="rate",
        remedy=f"{set_lr(1e-3)}  # and look at the schedule that made it so low",
        rows=(Row(None, "", LR, 0.0, "lr"),),
    )
