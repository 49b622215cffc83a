"""diverging: a loss that rises and does not come back.

Wrong:
    for inputs, targets in loader:  # the loss has risen for a thousand steps
        train_step(inputs, targets)
Right:
    model.load_state_dict(before_the_rise)
    optimizer.param_groups[0]["lr"] /= 10
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from wellcond.diagnosis.finding import Finding, Severity
from wellcond.diagnosis.threshold import Condition, Threshold
from wellcond.recording.judging.layer_changes import growth_of_gradients, jump_of_weights
from wellcond.recording.judging.levels import noise
from wellcond.recording.judging.rates import lr_ratio
from wellcond.recording.judging.rises import Rise
from wellcond.recording.judging.run_rule import RunEvidence, run_rule
from wellcond.results import number
from wellcond.results.quantities import GRADIENT_NORM, TRAINING_LOSS

LOST = Threshold(
    "rise of the loss since its lowest level / its fall until then", 0.3, 0.9,
    origin="a swing of the loss loses less than a third of what was learned; at 1 it is as high as at the start",
)  # fmt: skip
UNLEARNED = Condition("the same of a network that had not learned", 3.0, origin="losses without a trend come near 2")
EXPLODED = Condition(
    "the same, which is reported at once", 10.0, origin="ten times as far above its lowest as at the start"
)
GRADIENT = Threshold(
    "gradient norm since the rise / before it", 1.5, 3.0,
    origin="a loss that rises by design (an opponent, harder data) leaves gradients of the same size",
)  # fmt: skip
WEIGHTS = Threshold(
    "norm of a layer's weights since the rise / before it", 1.25, 1.5,
    origin="healthy layers grow threefold in 2,000 steps, little in a tenth of that; in a divergence tenfold and more",
)  # fmt: skip
WARMER = Condition(
    "learning rate / lowest before", 1.2, origin="a rate that rises again, at a restart, lifts the loss for a while"
)
AROUND_ZERO = Condition(
    "loss at the start / noise of the first losses", 2.0,
    origin="a loss around zero, as of a policy, has no level that it could come back to",
)  # fmt: skip
FIRST = 100
"""Losses whose noise is compared with the loss at the start."""


@run_rule("diverging", quantity=TRAINING_LOSS)
def diverging(evidence: RunEvidence) -> Iterator[Finding]:
    """A loss that has risen by a third of what it had fallen, and stays there for 100 steps and a twentieth of the run.

    Severe if it is as high as at the start and gradients have grown threefold or weights by half; a note if neither has
    grown, since the loss of a network that plays against another, or of data that become harder, rises by design. While
    the learning rate is raised a loss may rise; it is reported then if it is as high as at the start. What comes from
    one step to the next at the same rate is no more than a warning: steps that overshoot grow. So is the rise of a loss
    that began around zero, as of a policy.
    """
    rise = evidence.loss.rise
    if rise is None:
        return
    gradient, weights = growth_of_gradients(evidence, rise.step), jump_of_weights(evidence, rise.step)
    severity = _severity(evidence, rise, gradient, weights)
    if severity is None:
        return
    numbers: dict[str, float | str] = {
        "lowest level": rise.lowest,
        "level now": rise.level,
        "level at the start": rise.start,
        "steps of the rise": float(rise.steps),
    }
    if not math.isnan(gradient):
        numbers["gradient norm / before"] = gradient
    if not math.isnan(weights):
        numbers["largest growth of a layer's weights"] = weights
    sizes = "" if math.isnan(gradient) else f" Gradients grew {number(gradient)}-fold at first."
    yield Finding(
        rule="diverging",
        severity=severity,
        basis="measured",
        summary=f"since step {rise.step} the loss has risen from {number(rise.lowest)} to {number(rise.level)}; at the "
        f"start it was {number(rise.start)}.{sizes}",
        evidence=numbers,
        limits={"level at the start": rise.start},
        reason="A step that overshoots lands where the gradient is larger, so the next one overshoots by more."
        if severity != "note"
        else "Neither gradients nor weights have grown, so it is not the steps that lift the loss: it is what the loss "
        "is computed of.",
        remedy=f"# go back to weights from before step {rise.step}, and on at a lower rate or with clipped gradients"
        if severity != "note"
        else f"# look at what changes at step {rise.step}: data, labels, an opponent, weights of the loss's terms",
        step=rise.step,
    )


def _severity(evidence: RunEvidence, rise: Rise, gradient: float, weights: float) -> Severity | None:
    is_unknown = not len(
        evidence.history.series(GRADIENT_NORM)
    )  # a run of losses alone; otherwise it will be known soon
    if rise.lost < EXPLODED.at:
        if not rise.is_lasting or not rise.lost > (LOST.warn if rise.had_learned else UNLEARNED.at):
            return None
        if lr_ratio(evidence, rise.step) > WARMER.at and not LOST.is_severe(rise.lost):
            return None
    elif is_unknown:
        return "severe"
    is_sudden = rise.is_abrupt and lr_ratio(evidence, rise.step) <= WARMER.at  # no step has led there
    has_level = rise.lost > EXPLODED.at or abs(rise.start) > AROUND_ZERO.at * noise(evidence.loss.series.values[:FIRST])
    is_steps = has_level and not is_sudden
    if LOST.is_severe(rise.lost) and is_steps and (GRADIENT.is_severe(gradient) or WEIGHTS.is_severe(weights)):
        return "severe"
    return "warning" if is_unknown or GRADIENT.is_warning(gradient) or WEIGHTS.is_warning(weights) else "note"
