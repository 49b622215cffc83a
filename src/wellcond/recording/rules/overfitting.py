"""overfitting: a validation loss that rises while the training loss falls.

Wrong:
    for epoch in range(100):
        train(model)
    torch.save(model.state_dict(), "model.pt")  # the last weights
Right:
    for epoch in range(100):
        train(model)
        if (current := validate(model)) < lowest:
            lowest = current
            torch.save(model.state_dict(), "model.pt")  # the best weights
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from wellcond.diagnosis.finding import Finding
from wellcond.diagnosis.threshold import Condition, Threshold
from wellcond.recording.judging.levels import finite, median, noise
from wellcond.recording.judging.run_rule import RunEvidence, run_rule
from wellcond.results import number
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


@run_rule("overfitting", quantity=VALIDATION_LOSS)
def overfitting(evidence: RunEvidence) -> Iterator[Finding]:
    """The validation loss rises after its lowest value, while the training loss falls.

    The latest three validations must lie above the lowest by 5 % of what the validation loss had fallen until then (or
    5 % of its value, if that is more) and by four times its noise; severe if half of the fall is lost.
    """
    validation = finite(evidence.history.series(VALIDATION_LOSS))
    lowest = int(np.argmin(validation.values)) if len(validation) else 0
    if len(validation) - 1 - lowest < LATER.at or len(evidence.loss.series) == 0:
        return
    step, least, now = int(validation.steps[lowest]), float(validation.values[lowest]), median(validation.values[-3:])
    rise, fall = now - least, max(float(validation.values[0]), evidence.loss.start) - least
    wobble = noise(np.diff(validation.values)) / math.sqrt(3)  # of second differences: a steady rise is no noise
    if rise < max(RISE.warn * fall, RELATIVE.at * abs(least), NOISE.at * wobble):
        return
    if not evidence.loss.has_fallen_since(step):
        return
    before, after = evidence.loss.level_at(step), evidence.loss.level()
    yield Finding(
        rule="overfitting",
        severity="severe" if RISE.is_severe(rise / max(fall, 1e-300)) and rise > abs(least) / 2 else "warning",
        basis="measured",
        summary=f"since step {step} the validation loss rises, from {number(least)} to {number(now)}, while the "
        f"training loss falls from {number(before)} to {number(after)}.",
        evidence={
            "lowest validation loss": least,
            "validation loss now": now,
            "training loss then": before,
            "training loss now": after,
        },
        limits={"lowest": least},
        reason="What is still learned is particular to the training examples.",
        remedy=f"# use the weights of step {step}; to go further, add data, augmentation, dropout or weight decay",
        step=step,
    )
