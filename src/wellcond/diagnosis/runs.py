"""What findings show of a trial's runs: their losses as numbers and as curves, and the lines that set a rate."""

from __future__ import annotations

from wellcond.diagnosis.trial_result import Attempt, Trial
from wellcond.results import Row
from wellcond.results.quantities import TRAINED_LR, TRAINING_LOSS

OTHER_LR = "other lr"
"""The rate that a finding compares its own with, and advises."""


def run_numbers(trial: Trial, own: Attempt, other: Attempt) -> dict[str, float | str]:
    """Rates, steps and losses of two runs."""
    numbers: dict[str, float | str] = {
        "loss before": trial.loss,
        "lr": own.lr,
        "steps": float(len(own.run.losses)),
        "loss after": own.loss,
        OTHER_LR: other.lr,
        "steps at the other lr": float(len(other.run.losses)),
        "loss after, at the other lr": other.loss,
    }
    return numbers | ({} if trial.constant is None else {"loss of the best constant": trial.constant})


def run_rows(trial: Trial, *attempts: Attempt) -> tuple[Row, ...]:
    """The loss over the steps of each run."""
    rows = [Row(0, "", TRAINING_LOSS, trial.loss, "")]
    for attempt in attempts:
        rows.append(Row(0, "", TRAINED_LR, attempt.lr, "lr"))
        rows += [Row(step, "", TRAINING_LOSS, loss, "") for step, loss in enumerate(attempt.run.losses, start=1)]
    return tuple(rows)


def set_lr(lr: float) -> str:
    """The line that sets the rate of all groups."""
    return f'for group in optimizer.param_groups:\n    group["lr"] = {lr:.2g}'
