"""diverging: a loss that rises and does not come back.

Wrong: going on at a rate that the loss has risen at for a thousand steps.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from wellcond.diagnosis.finding import Finding, Severity
from wellcond.diagnosis.threshold import Condition, Threshold
from wellcond.recording.gradients import growth_of_gradients
from wellcond.recording.loss_curve import Rise
from wellcond.recording.rates import lr_ratio
from wellcond.recording.run_rule import RunEvidence, run_rule
from wellcond.results import number
from wellcond.results.quantities import TRAINING_LOSS

LOST = Threshold(
    "rise of the loss since its lowest level / its fall until then", 0.3, 1.2,
    origin="restarts of a rate lose less than a third where they help; above 1 the loss is higher than at the start",
)  # fmt: skip
EXPLODED = Condition(
    "the same, which is reported at once", 10.0, origin="ten times as far above its lowest as at the start"
)
LONG = Condition(
    "steps of a rise", 50, origin="a catapult at the edge of stability comes back within some tens of steps"
)
SHARE = Condition("steps of a rise / steps of the run", 0.05, origin="long runs have long swings")
GROWTH = Threshold(
    "gradient norm since the rise / before it", 1.5, 3.0,
    origin="a loss that rises by design (an opponent, harder data) leaves gradients of the same size",
)  # fmt: skip
WARMER = Condition(
    "learning rate now / at the lowest loss",
    1.2,
    origin="a rate that rises again, at a restart, lifts the loss for a while",
)


@run_rule("diverging", quantity=TRAINING_LOSS)
def diverging(evidence: RunEvidence) -> Iterator[Finding]:
    """A loss that has risen by a third of what it had fallen, and stays there for 50 steps and a twentieth of the run.

    Severe if it is higher than at the start and gradients have grown threefold; a note if gradients have not grown,
    since the loss of a network that plays against another, or of data that become harder, rises by design. While the
    learning rate is raised a loss may rise; it is reported then if it is higher than at the start.
    """
    rise = evidence.loss.rise
    if rise is None:
        return
    growth = growth_of_gradients(evidence, rise.step)
    severity = _severity(evidence, rise, growth)
    if severity is None:
        return
    yield Finding(
        rule="diverging",
        severity=severity,
        basis="measured",
        summary=f"since step {rise.step} the loss has risen from {number(rise.lowest)} to {number(rise.level)}; at the "
        f"start it was {number(rise.start)}"
        + ("." if math.isnan(growth) else f". The gradient norm is {number(growth)} times what it was before."),
        evidence={
            "lowest level": rise.lowest,
            "level now": rise.level,
            "level at the start": rise.start,
            "steps of the rise": float(rise.steps),
        }
        | ({} if math.isnan(growth) else {"gradient norm / before": growth}),
        limits={"level at the start": rise.start},
        reason="A step that overshoots lands where the gradient is larger, so the next one overshoots by more."
        if severity != "note"
        else "Gradients have not grown, so it is not the steps that lift the loss: it is what the loss is computed of.",
        remedy=f"# go back to weights from before step {rise.step}, and on at a lower rate or with clipped gradients"
        if severity != "note"
        else f"# look at what changes at step {rise.step}: data, labels, an opponent, weights of the loss's terms",
        step=rise.step,
    )


def _severity(evidence: RunEvidence, rise: Rise, growth: float) -> Severity | None:
    has_grown = math.isnan(growth) or growth > GROWTH.warn
    if rise.lost > EXPLODED.at:
        return "severe" if math.isnan(growth) or growth > GROWTH.severe else "warning" if has_grown else "note"
    if rise.steps < max(LONG.at, SHARE.at * evidence.step):
        return None
    if LOST.is_severe(rise.lost):
        return "severe" if growth > GROWTH.severe else "warning" if has_grown else "note"
    if not LOST.is_warning(rise.lost) or lr_ratio(evidence, rise.step) > WARMER.at:
        return None
    return "warning" if has_grown else "note"
