"""diverging: a loss that rises at every learning rate.

Wrong:
    p.data += lr * p.grad
Right:
    p.data -= lr * p.grad
"""

from __future__ import annotations

from collections.abc import Iterator
from statistics import fmean

from wellcond.diagnosis.evidence import Evidence
from wellcond.diagnosis.finding import Finding
from wellcond.diagnosis.rule import rule
from wellcond.diagnosis.runs import run_numbers, run_rows
from wellcond.diagnosis.threshold import Condition
from wellcond.diagnosis.trial_result import FALLING, RISING
from wellcond.results import number
from wellcond.results.quantities import TRAINING_LOSS

LOWER_RATES = Condition(
    "lower rates that were tried", 3, origin="1e-4 of the rate and less: below every stability limit"
)


@rule("diverging", quantity=TRAINING_LOSS)
def goes_uphill(evidence: Evidence) -> Iterator[Finding]:
    """The loss rises at every rate, in proportion to the rate: the step goes up the gradient.

    At two rates, ten to a hundred times apart, the loss rises gently and in the ratio of the rates to within a factor
    of two. Overshooting does not do that, since it vanishes faster than the rate.
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
        severity="severe",
        basis="tried",
        summary=f"the loss rises at every rate, in proportion to it: in the first steps by {rise[0]} % at lr "
        f"{number(fast.lr)} and by {rise[1]} % at {number(slow.lr)}{flag}.",
        evidence={
            "loss before": trial.loss,
            "higher lr": fast.lr,
            "early loss at the higher lr": fmean(fast.early),
            "lower lr": slow.lr,
            "early loss at the lower lr": fmean(slow.early),
        },
        reason="Along −∇L the loss falls at every rate that is low enough; a rise in proportion to the rate is a step "
        "along +∇L.",
        treatment="usual-settings" if maximizes else "",
        remedy="# make the optimizer without maximize=True"
        if maximizes
        else "# check two signs: a step is minus the rate times the gradient, and the loss falls as the fit improves",
        rows=run_rows(trial, fast, slow),
    )


@rule("diverging", quantity=TRAINING_LOSS)
def rises_at_any_rate(evidence: Evidence) -> Iterator[Finding]:
    """The loss rises or is NaN at its own rate and at every lower one that was tried, down to a billionth."""
    trial = evidence.trial
    if trial is None or trial.own is None or trial.uphill or trial.outcome(trial.own) not in RISING:
        return
    lower = [each for each in trial.others if each.factor < 1]
    if len(lower) < LOWER_RATES.at or any(trial.outcome(each) in FALLING for each in lower):
        return
    if all(each.run.diverged_at is not None for each in lower):
        return  # non-finite reports it: it is NaN whatever the rate
    lowest = lower[-1]
    yield Finding(
        rule="diverging",
        severity="severe",
        basis="tried",
        summary=f"the loss falls at no rate between {number(lowest.lr)} and {number(trial.own.lr)}.",
        evidence=run_numbers(trial, trial.own, lowest),
        reason="At a low enough rate every step along −∇L lowers the loss, unless the curvature or rounding errors "
        "leave no room for one.",
        treatment="scale-inputs",
        remedy="# scale inputs and targets to mean 0 and standard deviation 1",
        rows=run_rows(trial, trial.own, lowest),
    )
