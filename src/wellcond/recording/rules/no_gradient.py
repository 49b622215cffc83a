"""no-gradient: a layer that does not learn while others do.

Wrong:
    features = self.encoder(x).detach()
Right:
    features = self.encoder(x)

Wrong:
    optimizer = torch.optim.Adam(model.parameters())
    model.head = nn.Linear(64, 3)
Right:
    model.head = nn.Linear(64, 3)
    optimizer = torch.optim.Adam(model.parameters())
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from wellcond.diagnosis.finding import Finding
from wellcond.diagnosis.reading import listed
from wellcond.diagnosis.threshold import Condition
from wellcond.recording.judging.held import unheld_layers
from wellcond.recording.judging.levels import began, finite, last_before
from wellcond.recording.judging.movement import Stillness, still_layers
from wellcond.recording.judging.run_rule import RunEvidence, run_rule
from wellcond.recording.judging.shares import severity_of
from wellcond.results import number
from wellcond.results.quantities import GRADIENT_NORM, UNHELD_SHARE
from wellcond.results.text import named

SAMPLES = Condition("samples in a row", 4, origin="a layer that is not used in every step is zero now and then")
ALL_ZERO = Condition("samples in a row, of all layers", 3, origin="a batch without any example to learn from is rare")
WHY = {
    "gradient": "its gradient is exactly zero",
    "update": "steps do not change it, although it has a gradient",
    "frozen": "it has no gradient any more",
}


@run_rule("no-gradient", quantity=GRADIENT_NORM)
def no_gradient(evidence: RunEvidence) -> Iterator[Finding]:
    """A layer whose gradient or update has been exactly zero for four samples or more, while others are not.

    A warning; a note if it has no gradient at all any more, as a layer that is frozen on purpose. What never had one is
    not reported, nor is a layer that the optimizer does not hold, which has a finding of its own.
    """
    unheld = {each.layer for each in unheld_layers(evidence)}
    for each in still_layers(evidence, int(SAMPLES.at)):
        if each.layer not in unheld:
            yield _finding(each)


@run_rule("no-gradient", quantity=GRADIENT_NORM)
def nothing_learns(evidence: RunEvidence) -> Iterator[Finding]:
    """The gradient of the whole network is exactly zero since a step, for three samples or more; the loss is not.

    Severe. A loss of exactly zero, as of margins that all examples keep, has no gradient and is no fault. Nor are
    weights meant that the optimizer does not hold, whose gradients it does not clear.
    """
    if any(True for _ in unheld_layers(evidence)):
        return
    series = finite(evidence.history.series(GRADIENT_NORM))
    start = last_before(series.values == 0)
    losses = evidence.loss.series
    at_samples = losses.values[np.isin(losses.steps, series.steps[start:])]
    if start == 0 or len(series) - start < ALL_ZERO.at or not len(at_samples) or np.any(at_samples == 0):
        return
    begin = began(series, start)
    yield Finding(
        rule="no-gradient",
        severity="severe",
        basis="proven",
        summary=f"since step {begin} the gradient of every layer is exactly zero, and the loss is "
        f"{number(evidence.loss.level())}: nothing learns.",
        evidence={"samples": float(len(series) - start), "loss": evidence.loss.level()},
        reason="Small gradients of a loss that is scaled down are rounded to zero in half precision; a loss that does "
        "not depend on the weights has none.",
        remedy="# look at the loss scale, at detach() or no_grad() around the loss, and for units that are all off",
        step=begin,
    )


@run_rule("no-gradient", quantity=UNHELD_SHARE)
def not_held(evidence: RunEvidence) -> Iterator[Finding]:
    """Weights with a gradient that no optimizer of the recorder has held since the start.

    Severe while the network does not learn; otherwise a warning. Layers that are fixed on purpose need
    requires_grad_(False).
    """
    missing = [each for each in unheld_layers(evidence) if each.step == 1]
    if missing:
        names = [each.layer for each in missing]
        yield Finding(
            rule="no-gradient",
            layer=names[0],
            severity=severity_of(evidence, is_far=True),
            basis="proven",
            summary=f"the optimizer does not hold weights of {listed(names)}: no step moves them, although they have a "
            "gradient.",
            evidence={"layers": float(len(names)), "share of the layer's weights": missing[0].share},
            reason="An optimizer moves the parameters it was created with, and none that were added or exchanged "
            "since.",
            remedy="# make the optimizer over model.parameters() once the model is complete",
            step=1,
        )


@run_rule("no-gradient", quantity=UNHELD_SHARE)
def parameters_are_replaced(evidence: RunEvidence) -> Iterator[Finding]:
    """Weights with a gradient that the optimizer held before, and does not since a step. Severe.

    The model has got new parameters, and the optimizer goes on with the old ones.
    """
    for each in unheld_layers(evidence):
        if each.step > 1:
            yield Finding(
                rule="no-gradient",
                layer=each.layer,
                severity="severe",
                basis="proven",
                summary=f"since step {each.step} the optimizer does not hold {each.share:.0%} of the weights of "
                f"{named(each.layer)}: no step moves them, although they have a gradient.",
                evidence={"share of the layer's weights": each.share},
                reason="The layer has got new parameters, and the optimizer goes on with those it was created with.",
                remedy="# change weights in place, layer.weight.data.copy_(new), or make the optimizer again",
                step=each.step,
            )


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
