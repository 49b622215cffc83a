"""no-gradient: a layer that does not learn while others do.

Wrong: `h = self.encoder(x).detach()`, or an optimizer that was made before a layer was added.
"""

from __future__ import annotations

from collections.abc import Iterator

from wellcond.diagnosis.finding import Finding
from wellcond.diagnosis.threshold import Condition
from wellcond.recording.judging.movement import Stillness, still_layers
from wellcond.recording.judging.run_rule import RunEvidence, run_rule
from wellcond.results.quantities import GRADIENT_NORM
from wellcond.results.text import named

SAMPLES = Condition("samples in a row", 4, origin="a layer that is not used in every step is zero now and then")
WHY = {
    "gradient": "its gradient is exactly zero",
    "update": "steps do not change it, although it has a gradient",
    "frozen": "it has no gradient any more",
}


@run_rule("no-gradient", quantity=GRADIENT_NORM)
def no_gradient(evidence: RunEvidence) -> Iterator[Finding]:
    """A layer whose gradient or update has been exactly zero for four samples or more, while others are not.

    A warning; a note if it has no gradient at all any more, as a layer that is frozen on purpose. What never had one is
    not reported.
    """
    for each in still_layers(evidence, int(SAMPLES.at)):
        yield _finding(each)


def _finding(still: Stillness) -> Finding:
    return Finding(
        rule="no-gradient",
        layer=still.layer,
        severity="note" if still.what == "frozen" else "warning",
        basis="proven",
        summary=f"since step {still.step} {named(still.layer)} does not learn: {WHY[still.what]}. Other layers do.",
        evidence={"samples": float(still.samples)},
        reason="What a layer computes is fixed from then on, and so are the layers before it if nothing else leads "
        "around it."
        if still.what == "gradient"
        else "What a layer computes is fixed from then on.",
        remedy="# if that is not on purpose, look for detach(), no_grad(), a branch that is not taken, or units that "
        "are all off"
        if still.what == "gradient"
        else "optimizer.add_param_group({'params': layer.parameters()})  # the parameters that it does not have"
        if still.what == "update"
        else "# nothing, if it was frozen on purpose",
        step=still.step,
    )
