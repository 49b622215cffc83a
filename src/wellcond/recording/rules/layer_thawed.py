"""layer-thawed: a layer that begins to learn in the middle of a run.

Wrong:
    backbone.requires_grad_(True)
    optimizer.add_param_group({"params": backbone.parameters()})  # at the head's rate
Right:
    backbone.requires_grad_(True)
    optimizer.add_param_group({"params": backbone.parameters(), "lr": head_lr / 10})
"""

from __future__ import annotations

from collections.abc import Iterator

from wellcond.diagnosis.finding import Finding
from wellcond.diagnosis.threshold import Condition
from wellcond.recording.judging.layer_changes import around
from wellcond.recording.judging.levels import median
from wellcond.recording.judging.movement import thawed_layers
from wellcond.recording.judging.run_rule import RunEvidence, run_rule
from wellcond.recording.judging.validation_rise import validation_rise
from wellcond.results import number
from wellcond.results.quantities import GRADIENT_NORM
from wellcond.results.text import named

HIGHEST = Condition(
    "highest of the losses after it, above their level before, in standard deviations of the noise", 8.0,
    origin="the highest of a hundred normal numbers lies 2.5 above their mean",
)  # fmt: skip


@run_rule("layer-thawed", quantity=GRADIENT_NORM)
def layer_thawed(evidence: RunEvidence) -> Iterator[Finding]:
    """A layer asks for a gradient for the first time after 50 steps, or gets its first after four samples of others.

    A note; a warning if the loss jumps within a tenth of the run after it. If the validation loss rises since then, as
    severe as that is.
    """
    rise = validation_rise(evidence)
    for layer, step in thawed_layers(evidence):
        values, steps = evidence.loss.series.values, evidence.loss.series.steps
        before = values[(steps < step) & (steps >= step - around(step))]
        after = values[(steps >= step) & (steps < step + around(step))]
        if not len(before) or not len(after):
            continue
        level, highest = median(before), float(after.max())
        jumps = highest - level > max(HIGHEST.at * evidence.loss.noise, 2 * (float(before.max()) - level))
        overfits = None if rise is None or rise.step != step else rise
        effects = [f"the loss jumps from {number(level)} to {number(highest)}"] if jumps else []
        if overfits:
            effects.append(f"the validation loss rises from {number(overfits.lowest)} to {number(overfits.now)}")
        yield Finding(
            rule="layer-thawed",
            layer=layer,
            severity=overfits.severity if overfits else "warning" if jumps else "note",
            basis="proven",
            summary=", and ".join([f"{named(layer)} begins to learn at step {step}", *effects]) + ".",
            evidence={"loss before": level, "highest loss after": highest},
            reason="The layers after it have fitted what it computed. Steps at their rate, with momentum and averages "
            "that start from zero, move it further than they can follow.",
            remedy="# give it a parameter group of its own with a tenth of the rate, and warm that up",
            step=step,
            until=None if effects else step + around(step),
        )
