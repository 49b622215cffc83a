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
from wellcond.results import number
from wellcond.results.quantities import GRADIENT_NORM
from wellcond.results.text import named

SAMPLES = Condition("samples without a gradient before", 4, origin="as for a layer that does not learn")
HIGHEST = Condition(
    "highest of the losses after it, above their level before, in standard deviations of the noise", 8.0,
    origin="the highest of a hundred normal numbers lies 2.5 above their mean",
)  # fmt: skip


@run_rule("layer-thawed", quantity=GRADIENT_NORM)
def layer_thawed(evidence: RunEvidence) -> Iterator[Finding]:
    """A layer gets its first gradient, or updates, after four samples or more in which others had some.

    A note; a warning if the loss jumps within a tenth of the run after it.
    """
    for layer, step in thawed_layers(evidence, int(SAMPLES.at)):
        values, steps = evidence.loss.series.values, evidence.loss.series.steps
        before = values[(steps < step) & (steps >= step - around(step))]
        after = values[(steps >= step) & (steps < step + around(step))]
        if not len(before) or not len(after):
            continue
        level, highest = median(before), float(after.max())
        jumps = highest - level > max(HIGHEST.at * evidence.loss.noise, 2 * (float(before.max()) - level))
        yield Finding(
            rule="layer-thawed",
            layer=layer,
            severity="warning" if jumps else "note",
            basis="proven",
            summary=f"{named(layer)} begins to learn at step {step}"
            + (f", and the loss jumps from {number(level)} to {number(highest)}." if jumps else "."),
            evidence={"loss before": level, "highest loss after": highest},
            reason="The layers after it have fitted what it computed. Steps at their rate, with momentum and averages "
            "that start from zero, move it further than they can follow.",
            remedy="# give it a parameter group of its own with a tenth of the rate, and warm that up",
            step=step,
            until=step + around(step),
        )
