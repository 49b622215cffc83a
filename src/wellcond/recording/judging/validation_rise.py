"""`ValidationRise`: a validation loss that rises while the training loss falls, and since when."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from wellcond.diagnosis.finding import Severity
from wellcond.diagnosis.threshold import Condition, Threshold
from wellcond.recording.history import Series
from wellcond.recording.judging.layer_changes import around
from wellcond.recording.judging.levels import finite, median, mostly_since, noise
from wellcond.recording.judging.movement import thawed_layers
from wellcond.recording.judging.run_rule import RunEvidence
from wellcond.results.quantities import VALIDATION_LOSS

RISE = Threshold(
    "rise of the validation loss since its lowest / its fall until then", 0.05, 0.5,
    origin="a twentieth is more than the wobble of a flat minimum; half of what was learned is lost",
)  # fmt: skip
RELATIVE = Condition(
    "rise of the validation loss / its lowest value", 0.05, origin="5 %, if it had hardly fallen before"
)
NOISE = Condition(
    "rise of the validation loss in standard deviations of its noise", 4.0,
    origin="the lowest of a hundred values lies 2.5 below their mean, and three later ones by chance 1.5 above it",
)  # fmt: skip
LATER = Condition("validations since the lowest", 3, origin="their median does not depend on one of them")
SURE = Condition("the same, of a rise that is severe", 6, origin="a curriculum or a restart may rise for as long")
TENTH, HALF = 0.1, 0.5
"""Shares of the rise above which most validations lie soon after it began, and in the middle of it."""


@dataclass(frozen=True)
class ValidationRise:
    """A validation loss that rises.

    Attributes:
        step: Since when: when a layer thawed, if that was at its foot.
        lowest: Its lowest value.
        now: Its level now.
        severity: By how much of what was learned is lost.
    """

    step: int
    lowest: float
    now: float
    severity: Severity


def validation_rise(evidence: RunEvidence) -> ValidationRise | None:
    """The rise that the run is in; None if there is none, or the training loss does not fall."""
    validation = finite(evidence.history.series(VALIDATION_LOSS))
    place = int(np.argmin(validation.values)) if len(validation) else 0
    if len(validation) - 1 - place < LATER.at or len(evidence.loss.series) == 0:
        return None
    lowest, now = float(validation.values[place]), median(validation.values[-3:])
    rise, fall = now - lowest, max(float(validation.values[0]), evidence.loss.start) - lowest
    wobble = noise(np.diff(validation.values)) / math.sqrt(3)  # of second differences: a steady rise is no noise
    if rise < max(RISE.warn * fall, RELATIVE.at * abs(lowest), NOISE.at * wobble):
        return None
    if not evidence.loss.has_fallen_since(int(validation.steps[place])):
        return None
    is_far = RISE.is_severe(rise / max(fall, 1e-300)) and rise > abs(lowest) / 2
    is_severe = is_far and len(validation) - 1 - place >= SURE.at
    step = _beginning(evidence, validation, place, rise)
    return ValidationRise(step, lowest, now, "severe" if is_severe else "warning")


def _beginning(evidence: RunEvidence, validation: Series, place: int, rise: float) -> int:
    """Where the line through a tenth and half of a rise leaves the lowest; when a layer thawed, if before half.

    What a layer that has thawed learns may lower some validation losses before they rise.
    """
    steps, above = validation.steps[place:], validation.values[place:] - validation.values[place]
    tenth, half = (int(steps[mostly_since(above > share * rise)]) for share in (TENTH, HALF))
    thawed = (step for _, step in thawed_layers(evidence))
    begin = tenth - round((half - tenth) * TENTH / (HALF - TENTH))
    earliest = min(int(validation.steps[max(0, place - 1)]), int(steps[0]) - 2 * around(int(steps[0])))
    return next((step for step in thawed if earliest <= step <= half), max(int(steps[0]), begin))
