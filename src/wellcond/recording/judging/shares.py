"""Shares of units that rise over a run: dead ones, and values at which an activation is flat."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from wellcond.diagnosis.finding import Severity
from wellcond.diagnosis.threshold import Condition, Threshold
from wellcond.recording.judging.levels import began, finite, last_before, median, smooth
from wellcond.recording.judging.run_rule import RunEvidence
from wellcond.results.quantities import DEAD_SHARE

DEAD = Threshold(
    "share of a layer's ReLUs that are off on a whole batch", 0.7, 0.95,
    origin="healthy networks reach 0.56 on many examples, and 0.73 on a batch",
)  # fmt: skip
DIED = Condition("rise of the share", 0.2, origin="what was off from the start is no event: diagnose reports it")
SUDDEN = Condition(
    "rise of a share that is not as high, where the loss jumps", 0.4, origin="twice the rise that counts otherwise"
)

SAMPLES = 3
"""Latest samples whose median is the share now."""
LASTING = 40
"""Steps that it must have lasted."""
BEGINNING = 0.25
"""Share of a rise from which on it has begun."""


@dataclass(frozen=True)
class RisenShare:
    """A share that is higher than it was.

    Attributes:
        layer: The layer.
        step: Step at which the rise began.
        before: Lowest level before it.
        now: Latest level.
        severity: By how high it is, and by what it does to the loss.
    """

    layer: str
    step: int
    before: float
    now: float
    severity: Severity

    @property
    def numbers(self) -> dict[str, float | str]:
        """Both levels, as evidence of a finding."""
        return {"share": self.now, "share before": self.before}


def shares_that_rose(evidence: RunEvidence, quantity: str, high: Threshold, rise: Condition) -> Iterator[RisenShare]:
    """Layers whose share is high and has risen, the earliest first; of equals that with the highest.

    Args:
        evidence: The run.
        quantity: Name of the share.
        high: From where on it is high, and from where on severe.
        rise: By how much it must have risen.
    """
    risen = []
    for layer in evidence.history.layers(quantity):
        series = finite(evidence.history.series(quantity, layer))
        levels = smooth(series.values, SAMPLES)
        now = median(series.values[-SAMPLES:])
        before = float(levels.min()) if len(levels) > SAMPLES else now
        is_high = high.is_warning(now)
        if now - before > (rise.at if is_high else SUDDEN.at):
            start = last_before(levels > before + BEGINNING * (now - before))
            start = min(start, len(series) - 1)
            earlier, first = int(series.steps[max(0, start - 1)]), int(series.steps[start])
            jump = evidence.loss.jump_between(earlier, first)
            step = jump or began(series, start)
            if evidence.step - step >= LASTING and (is_high or jump is not None):
                severity = severity_of(evidence, is_far=high.is_severe(now))
                risen.append(RisenShare(layer, step, before, now, severity))
    yield from sorted(risen, key=lambda each: (each.step, -each.now))


def dying_units(evidence: RunEvidence) -> Iterator[RisenShare]:
    """Layers whose ReLUs were on before and are off now."""
    yield from shares_that_rose(evidence, DEAD_SHARE, DEAD, DIED)


def severity_of(evidence: RunEvidence, *, is_far: bool) -> Severity:
    """Severity of a symptom: what it does to the loss counts, not the symptom alone."""
    if not evidence.loss.trains:
        return "severe" if is_far else "warning"
    return "warning" if is_far else "note"
