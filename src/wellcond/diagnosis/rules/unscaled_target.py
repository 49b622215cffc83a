"""unscaled-target: regression targets far larger, or far smaller, than what the network returns.

Wrong:
    loss = F.mse_loss(model(inputs), price)  # in dollars
Right:
    loss = F.mse_loss(model(inputs), (price - mean) / std)
    predicted = model(inputs) * std + mean
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from wellcond.diagnosis.evidence import Evidence
from wellcond.diagnosis.finding import Finding
from wellcond.diagnosis.inspection.comparisons import Sizes
from wellcond.diagnosis.inspection.data import TensorFacts
from wellcond.diagnosis.inspection.inspection import Inspection
from wellcond.diagnosis.rule import rule
from wellcond.diagnosis.severity import of_symptom
from wellcond.diagnosis.threshold import Condition, Threshold
from wellcond.problem.apart import StepLoss
from wellcond.problem.training_step import TrainingStep
from wellcond.results import number

RMS = Threshold(
    "RMS of targets", 10.0, 30.0,
    origin="a fresh network returns values of size 1; the squared error's gradient is 10 or 30 times that of "
    "standardized targets, and the outputs have to grow by that factor",
)  # fmt: skip
ALREADY_LARGE = Condition(
    "RMS of outputs / RMS of targets", 0.2, origin="outputs of this size have grown, or are scaled"
)
STD = Threshold(
    "standard deviation of small targets",
    0.01,
    1e-3,
    bad="below",
    origin="a hundredth of what a fresh network returns; a step of Adam at an ordinary rate moves outputs by 1e-3",
)
SMALL = Condition("RMS of small targets", 0.1, origin="a tenth of what a fresh network returns")
COMPARED = Condition(
    "loss / RMS of targets", 0.1,
    origin="an absolute error of outputs far below the targets is about their RMS, a squared one more: a lower loss "
    "does not compare the two as they are",
)  # fmt: skip
STEPS = (TrainingStep, StepLoss)
HARDLY = Condition("fall of the loss in the trial", 0.1, origin="a tenth is what a network must gain to have learned")
TIMES_WIDER = Condition("standard deviation of outputs / that of small targets", 10.0, origin="as for large targets")


@rule("unscaled-target")
def unscaled_target(evidence: Evidence) -> Iterator[Finding]:
    """Targets of a regression that are far larger than what the network returns.

    Severe from an RMS of 30 while the outputs are below a fifth of that: the gradient of a squared error is
    proportional to the distance, and outputs of order 1 have to grow first. A network that returns such values already,
    trained or with a scale of its own, is not reported, and neither is a loss that standardizes the targets itself: it
    is no lower where outputs equal the targets. Or targets that vary by less than 0.01, and by a tenth of what outputs
    do: severe below 0.001. If there are several targets, each is compared with the outputs of its
    size, or, one number for each example, with outputs of which a loss may choose one, as of the values of actions.
    """
    inspection = evidence.inspection
    output = None if inspection is None else inspection.output
    if inspection is None or (output is not None and output.loss_kind not in ("squared", "other")):
        return
    for fact in inspection.targets:
        of_its_size = [each for each in inspection.outputs if math.prod(each.shape) == math.prod(fact.shape)]
        returned = min(of_its_size, key=lambda each: each.shape != fact.shape, default=None)
        if returned is None and math.prod(fact.shape) == fact.shape[0]:  # one of several outputs is compared
            returned = next((each for each in inspection.outputs if each.shape[:1] == fact.shape[:1]), None)
        if fact.is_index or fact.is_binary or not fact.features or returned is None:
            continue
        is_large = RMS.is_warning(fact.rms) and not returned.rms > ALREADY_LARGE.at * fact.rms
        is_narrow = 0 < fact.std < STD.warn and returned.std > TIMES_WIDER.at * fact.std and fact.rms < SMALL.at
        if not (is_large or is_narrow) or not _is_compared(inspection, fact, is_large=is_large):
            continue
        is_squared = output is not None and "MseLoss" in output.loss_operations
        own = None if evidence.trial is None else evidence.trial.own
        is_tried = is_squared and own is not None and own.loss > (TIMES_WIDER.at * fact.std) ** 2
        yield Finding(
            rule="unscaled-target",
            severity=of_symptom(evidence, is_far=RMS.is_severe(fact.rms) if is_large else STD.is_severe(fact.std)),
            basis="tried" if is_narrow and is_tried else "measured",
            summary=f"the {fact.name} have an RMS of {number(fact.rms)}, the outputs {number(returned.rms)}: "
            "standardize the targets."
            if is_large
            else f"the {fact.name} vary by {number(fact.std)}, the outputs of the network by {number(returned.std)}: "
            "standardize the targets.",
            evidence={"RMS of targets": fact.rms, "std of targets": fact.std, "RMS of outputs": returned.rms},
            reason="The gradient of a squared error is proportional to the distance of outputs from targets, which a "
            "fresh network's outputs, of size 1, must first cover."
            if is_squared
            else "A fresh network's outputs are of size 1: a rate that covers the distance to the targets in time is "
            "far too high to fit what varies in them.",
            treatment="scale-targets",
            remedy=f"# standardize the {fact.name} where the data set is made, and scale predictions back",
        )


@rule("unscaled-target")
def unscaled_in_step(evidence: Evidence) -> Iterator[Finding]:
    """A step that compares outputs with far larger numbers: rewards in points, say, or prices.

    One of torch's losses of differences takes targets with an RMS of 30 or more and predictions below a fifth of it. Of
    other losses the size says it: even if it is a sum over all outputs of a batch, their mean square error is above
    30², while what the last layer gives has an RMS below a fifth of that error's root. Severe if the loss falls by less
    than a tenth at the step's own rate in the trial; not reported otherwise.
    """
    inspection, trial = evidence.inspection, evidence.trial
    if inspection is None or trial is None or trial.own is None or not isinstance(evidence.problem.loss, STEPS):
        return
    if trial.trains or not 0 <= trial.fall(trial.own)[0] < HARDLY.at:
        return
    sizes = _of_loss(inspection) or max(inspection.compared_sizes, key=lambda each: each.fixed, default=None)
    if sizes is None or not RMS.is_severe(sizes.fixed) or sizes.predicted > ALREADY_LARGE.at * sizes.fixed:
        return
    yield Finding(
        rule="unscaled-target",
        severity="severe",
        basis="measured",
        summary=f"the step compares outputs with an RMS of {number(sizes.predicted)} with numbers of "
        f"{number(sizes.fixed)}, which need a scale.",
        evidence={"RMS of outputs": sizes.predicted, "RMS of targets": sizes.fixed},
        reason="A fresh network's outputs are of size 1: a rate that covers the distance to the targets in time is "
        "far too high to fit what varies in them.",
        remedy="# divide the targets, or rewards, by their standard deviation where the batch is made, and scale "
        "predictions back",
    )


def _of_loss(inspection: Inspection) -> Sizes | None:
    """The last layer's outputs, and the least RMS of targets that explains the loss; None if they may be as small."""
    layers, loss = inspection.weighted(), inspection.loss
    if not layers or loss is None:
        return None
    error = math.sqrt(max(loss, 0.0) / (layers[-1].units * inspection.batch_size))
    return Sizes(layers[-1].rms, error) if RMS.is_severe(error) else None


def _is_compared(inspection: Inspection, fact: TensorFacts, *, is_large: bool) -> bool:
    """Whether the loss compares outputs with these targets as they are: neither with scaled ones nor with a part.

    Large targets that a loss leaves out, as it does with a code for what is missing, do not make it large.
    """
    output, loss = inspection.output, inspection.loss
    is_low = loss is not None and loss < COMPARED.at * fact.rms
    if output is None or output.loss is None or output.loss_at_targets is None:
        return not is_low
    if is_large and is_low:
        return False
    at_targets = (output.loss_at_targets, output.reshaped_perfect_loss)
    return min(each for each in at_targets if each is not None) < output.loss
