"""How severe a measured symptom is, in the light of what the network has learned and of the trial."""

from __future__ import annotations

from wellcond.diagnosis.evidence import Evidence
from wellcond.diagnosis.finding import Severity
from wellcond.diagnosis.learned import has_learned

ABOVE_CONSTANT = 10.0
"""Loss over that of a constant after some fifty steps, above which a run has not even unlearned the outputs that it
began with. A choice: five times `POOR_START`, and not measured on healthy networks."""


def of_symptom(evidence: Evidence, *, is_far: bool) -> Severity:
    """Severe if it is far outside of what healthy networks show, or if the network trains at no rate that was tried.

    Severe, too, if the trial ends where no network gets that has begun to learn: far above the loss of a constant.

    A note if the network has learned: it may attend to one token, or be sure of its answer, for a good reason.
    """
    if network_has_learned(evidence):
        return "note"
    return "severe" if is_far or trains_at_no_rate(evidence) or stays_far_above(evidence) else "warning"


def trains_at_no_rate(evidence: Evidence) -> bool:
    """Whether the trial shows that the network trains at no rate that was tried."""
    return evidence.trial is not None and evidence.trial.fails


def stays_far_above(evidence: Evidence) -> bool:
    """Whether all runs of the trial end at a multiple of the loss of a constant, as they began."""
    trial = evidence.trial
    if trial is None or trial.constant is None or not trial.constant > 0 or not trial.is_long:
        return False
    return all(not each.loss < ABOVE_CONSTANT * trial.constant for each in trial.attempts)


def limits_of_symptom(evidence: Evidence, limits: dict[str, float], *, is_far: bool) -> dict[str, float]:
    """The limits of a symptom; without the severe one where the trial makes it severe, and not its size."""
    is_by_trial = not is_far and of_symptom(evidence, is_far=is_far) == "severe"
    return {name: limit for name, limit in limits.items() if name != "severe" or not is_by_trial}


def network_has_learned(evidence: Evidence) -> bool:
    """Whether the network has learned, by the first batch that was inspected."""
    output = None if evidence.inspection is None else evidence.inspection.output
    return output is not None and has_learned(output.loss, output.best_constant)
