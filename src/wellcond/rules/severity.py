"""How severe a symptom is: what a measurement alone shows, and what a trial adds."""

from __future__ import annotations

from wellcond.evidence.evidence import Evidence
from wellcond.results.finding import Severity


def of_symptom(evidence: Evidence, *, is_far: bool) -> Severity:
    """Severe if it is far outside of what healthy networks show, or if the network is seen not to train."""
    does_not_train = evidence.trial is not None and evidence.trial.trains is False
    return "severe" if is_far or does_not_train else "warning"
