"""loss-not-decreasing: a loss that stands where it stood at the start.

Wrong:
    inputs = inputs[torch.randperm(n)]  # and the labels stay where they are
Right:
    order = torch.randperm(n)
    inputs, labels = inputs[order], labels[order]
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from wellcond.diagnosis.finding import Finding
from wellcond.diagnosis.threshold import Condition, Threshold
from wellcond.recording.judging.levels import finite, median
from wellcond.recording.judging.run_rule import RunEvidence, run_rule
from wellcond.results import number
from wellcond.results.quantities import TRAINING_LOSS, VALIDATION_LOSS

FALL = Threshold(
    "fall of the loss since the first twentieth / loss", 0.02, math.nan, bad="below",
    origin="less than the 2 to 3 % that a network gains by learning how often each answer occurs",
)  # fmt: skip
ENOUGH = Condition("steps", 300, origin="trainings that work have lowered their loss by then")
NOISE = Condition(
    "noise of single losses / loss", 0.5,
    origin="a loss around zero, as of a policy, has no level that could fall; that of a network that guesses has",
)  # fmt: skip
LOWER = Condition(
    "lowest level below the level now, in standard deviations of single losses", 1.5,
    origin="medians of eight losses are that far below by chance once in 10⁴; it was lower in between",
)  # fmt: skip
CHANCE = Condition(
    "fall in standard errors of the two levels", 5.0, origin="a fall that is real, if small: it goes on learning"
)


@run_rule("loss-not-decreasing", quantity=TRAINING_LOSS)
def loss_not_decreasing(evidence: RunEvidence) -> Iterator[Finding]:
    """After 300 steps or more, the loss has not fallen by 2 % since the first twentieth of the run, and stands still.

    A warning. Losses without a level of their own are not judged: those that swing more than their noise explains, as
    of adversarial networks, and those whose noise is half as large as they are, as of policies; nor a run whose
    validation loss falls.
    """
    curve = evidence.loss
    if len(curve.series) < ENOUGH.at or not curve.stands_still:
        return
    values = curve.series.values
    early, late = values[: len(values) // 20], values[len(values) // 2 :]
    first, level = min(curve.start, median(early)), median(late)
    error = curve.noise * math.sqrt(1 / len(early) + 1 / len(late))
    fall = first - level
    if fall > FALL.warn * abs(first) or abs(fall) > CHANCE.at * max(error, FALL.warn * abs(first)):
        return
    if fall > CHANCE.at * error or not curve.noise < NOISE.at * level:
        return
    validation = finite(evidence.history.series(VALIDATION_LOSS)).values
    if len(validation) > 3 and median(validation[-3:]) < (1 - FALL.warn) * validation[0]:
        return
    if curve.lowest < level - max(LOWER.at * curve.noise, FALL.warn * level):
        return
    yield Finding(
        rule="loss-not-decreasing",
        severity="warning",
        basis="measured",
        summary=f"the loss is {number(level)} after {evidence.step} steps, and was {number(first)} at the start; "
        f"single losses differ by {number(curve.noise)}.",
        evidence={"loss at the start": first, "loss now": level, "noise of single losses": curve.noise},
        limits={"loss at the start": first},
        reason="What is left is the loss of a constant answer: the steps find nothing in the inputs that tells targets "
        "apart.",
        remedy="# run wc.diagnose on a batch, and overfit eight examples: if that works look at the labels and the "
        "rate, if not at the model",
        step=1,
    )
