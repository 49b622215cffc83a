"""How severe a measured symptom is, in the light of what the network has learned and of the trial."""

from __future__ import annotations

from wellcond.diagnosis.evidence import Evidence
from wellcond.diagnosis.finding import Severity
from wellcond.diagnosis.learned import has_learned


def of_symptom(evidence: Evidence, *, is_far: bool) -> Severity:
    """Severe if it is far outside of what healthy networks show, or if the network trains at no rate that was tried.

    A note if the network has learned: it may attend to one token, or be sure of its answer, for a good reason.
    """
    if network_has_learned(evidence):
        return "note"
    does_not_train = evidence.trial is not None and evidence.trial.fails
    return "severe" if is_far or does_not_train else "warning"


def network_has_learned(evidence: Evidence) -> bool:
    """Whether the network has learned, by the first batch that was inspected."""
    output = None if evidence.inspection is None else evidence.inspection.output
    return output is not None and has_learned(output.loss, output.best_constant)
