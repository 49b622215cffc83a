"""Logits that are squashed before the loss, which squashes them itself."""

from __future__ import annotations

import math
from collections.abc import Iterator

from wellcond.diagnosis.evidence import Evidence
from wellcond.diagnosis.finding import Finding
from wellcond.diagnosis.inspection.inspection import Inspection
from wellcond.diagnosis.inspection.outputs import OutputFacts
from wellcond.diagnosis.reading import outputs_of
from wellcond.diagnosis.rule import rule
from wellcond.diagnosis.rules.output_loss_mismatch.mismatch import CALLS, mismatch, seen_by_loss
from wellcond.diagnosis.threshold import Threshold
from wellcond.results import number

LOGIT_LOSSES = {"cross-entropy": "cross_entropy", "bce-logits": "binary_cross_entropy_with_logits"}
PROBABILITIES = (("Softmax",), ("LogSoftmax",), ("Sigmoid",), ("LogSigmoid",))
SQUASHERS = (("Relu",), ("Sigmoid",), ("Tanh",), ("Softmax",))

OUT_OF_REACH = Threshold(
    "(lowest loss that can be reached − lowest loss) / (loss of zeros − lowest loss)", math.nan, 0.15,
    origin="0.18 for a tanh before two classes, 0.3 to 0.9 for more classes, a softmax or normalized logits; logits "
    "capped at 30, and cosines times 10 or more, have less than 0.01",
)  # fmt: skip
ALIKE = Threshold(
    "lowest loss of bounded similarities / loss of equal ones", math.nan, 0.8,
    origin="0.13 for 32 examples at a temperature of 0.5, 0.7 for 512 at 1; 0.96 where 0.07 is multiplied",
)  # fmt: skip
NOTHING_LEFT = Threshold(
    "lowest loss / loss of zeros, of a loss of classes", math.nan, 0.9,
    origin="0.27 for three classes and a label_smoothing of 0.1, 0.15 for a thousand; 0.81 for two and 0.5",
)  # fmt: skip
FLOOR = Threshold(
    "lowest loss / loss of zeros, of a loss that is bounded to both sides", math.nan, 0.15,
    origin="0.45 for a softmax twice over two classes, 0.6 for ten; bounded losses in use, such as a Brier score, a "
    "dice or 1 − cos, come down to 0, and those for noisy labels to 0.1",
)  # fmt: skip


@rule("output-loss-mismatch")
def squashed_logits(evidence: Evidence) -> Iterator[Finding]:
    """A softmax, sigmoid, tanh or ReLU before a loss that takes logits; the autograd graph proves it.

    With logits between a and b, cross-entropy over C classes is never below log(1 + (C − 1) e^{a − b}): 1.46 for ten
    classes after a softmax or sigmoid. A ReLU returns no logit below zero: no binary probability below 1/2.
    """
    if (both := outputs_of(evidence)) is None:
        return
    inspection, output = both
    if output.tail[:1] in PROBABILITIES and output.tail[1:2] in SQUASHERS:
        yield _squashed_twice(inspection, output)
        return
    loss = LOGIT_LOSSES.get(output.loss_kind)
    if loss is None or not output.tail or output.tail[0] not in ("Softmax", "Sigmoid", "Relu", "Tanh"):
        return
    tail, call = output.tail[0], CALLS[output.tail[0]]
    low, high = {"Relu": (0.0, math.inf), "Tanh": (-1.0, 1.0)}.get(tail, (0.0, 1.0))
    if output.loss_kind == "cross-entropy":
        floor = math.log1p(((output.classes or 2) - 1) * math.exp(low - high))
    elif tail == "Tanh":
        floor = math.log1p(math.exp(-high))
    else:  # half of the labels are 0, for which the best logit is 0
        floor = 0.5 * (math.log(2) + math.log1p(math.exp(-high)))
    least = "so no logit can be below zero" if tail == "Relu" else f"so the loss cannot fall below {number(floor)}"
    yield mismatch(
        inspection,
        output,
        f"the model ends in a {call}, but {loss} takes logits and applies its own, {least}.",
        f"Logits between {number(low)} and {number(high)} keep the probabilities away from 0 and 1, and the gradient "
        f"is multiplied by the slope of the {call} once more.",
        f"# return the logits, without the {call}, and apply it where you predict",
        treatment="logits",
        least_possible_loss=floor,
    )


def _squashed_twice(inspection: Inspection, output: OutputFacts) -> Finding:
    last, before = (CALLS[name] for name in output.tail[:2])
    return mismatch(
        inspection,
        output,
        f"the model ends in a {before} followed by a {last}, so its logits are "
        + ("never below zero." if before == "ReLU" else "bounded."),
        "No probability can fall below that of equal logits, and where a ReLU is off nothing is learned.",
        f"# leave out the {before} before the {last}",
        treatment="logits",
        layer=next((s.name for s in reversed(inspection.signals) if s.is_weighted), ""),
    )


@rule("output-loss-mismatch")
def softmax_of_probabilities(evidence: Evidence) -> Iterator[Finding]:
    """The same in a step of one's own, as a policy that ends in a softmax before `Categorical(logits=…)`."""
    inspection = evidence.inspection
    if inspection is None or inspection.output is not None or not inspection.normalizes_twice:
        return
    yield Finding(
        rule="output-loss-mismatch",
        severity="severe",
        basis="proven",
        summary="the loss takes the logarithm of a softmax of numbers that a softmax has made already: probabilities "
        "are taken for logits.",
        reason="Logits between 0 and 1 keep all probabilities near each other: none can become likely.",
        remedy="# give logits without a softmax, or name them: Categorical(probs=…)",
    )


@rule("output-loss-mismatch")
def bounded_outputs(evidence: Evidence) -> Iterator[Finding]:
    """Outputs that keep to a range whatever the weights are, where the loss needs others.

    Weights 3, 10 and 100 times as large show the range; single numbers, such as a temperature, are changed too. It
    is a fault if the lowest loss of outputs in this range leaves more than 15 % of the way from outputs of zero down to
    the lowest loss of any outputs: cosines or normalized outputs before a cross-entropy, without a temperature. A
    loss that takes the direction of the outputs alone needs no others.
    """
    known = seen_by_loss(evidence)
    reach = None if evidence.behavior is None else evidence.behavior.reach
    if known is None or reach is None or not known[2].is_by_example or not known[2].floor < 1:
        return
    if known[2].ignores_scale or any(True for _ in squashed_logits(evidence)):
        return
    inspection, output, sight = known
    share = (reach.least - sight.least) / (sight.at_zero - sight.least)
    if not OUT_OF_REACH.is_severe(share):
        return
    bound = (
        "have always the same norm or sum"
        if reach.is_normalized
        else f"stay between {number(reach.low)} and {number(reach.high)}"
        if math.isfinite(reach.low + reach.high)
        else f"are never {'below ' + number(reach.low) if math.isfinite(reach.low) else 'above ' + number(reach.high)}"
    )
    yield mismatch(
        inspection,
        output,
        f"the outputs {bound}, whatever the weights are, so the loss cannot fall below {number(reach.least)}; "
        f"other outputs reach {number(sight.least)}.",
        "A loss that takes logits, or unbounded numbers, gets only a part of them: probabilities stay away from 0 and "
        "1, and gradients never vanish where the answer is right.",
        "# return the numbers before they are squashed or normalized, or multiply them by a temperature: "
        "outputs * 16, or a parameter",
        treatment="logits",
        least_possible_loss=reach.least,
        least_loss_of_any_outputs=sight.least,
    )


@rule("output-loss-mismatch")
def similarities_too_alike(evidence: Evidence) -> Iterator[Finding]:
    """Similarities of a contrastive loss that stay close to each other whatever the weights are.

    With the largest size that weights up to 100 times as large give them, the softmax leaves more than 0.8 of the loss
    of equal similarities: cosines that are multiplied by a temperature instead of divided.
    """
    floor = None if evidence.behavior is None else evidence.behavior.similarity_floor
    if floor is None or not ALIKE.is_severe(floor):
        return
    yield Finding(
        rule="output-loss-mismatch",
        severity="severe",
        basis="proven",
        summary=f"the similarities that the loss compares are bounded, whatever the weights are, and leave {floor:.0%} "
        "of the loss of equal ones.",
        evidence={"lowest loss / loss of equal similarities": floor},
        limits=ALIKE.limits(),
        reason="The softmax of cosines in [-1, 1] is nearly even; divided by a temperature below 1 they are far apart.",
        remedy="# divide the similarities by a temperature: logits = z1 @ z2.T / 0.1",
    )


@rule("output-loss-mismatch")
def smoothed_away(evidence: Evidence) -> Iterator[Finding]:
    """A loss of classes whose best outputs are hardly better than none: labels that are smoothed until they are alike.

    The lowest loss of any outputs is more than 0.9 of that of zeros, though each example has one class.
    """
    if (known := seen_by_loss(evidence)) is None or math.isnan(known[2].at_labels):
        return
    inspection, output, sight = known
    is_judged = sight.is_by_example and not (sight.has_penalty or sight.is_unpaired or sight.ignores_targets)
    if not is_judged or sight.is_bounded or not NOTHING_LEFT.is_severe(sight.floor):
        return
    yield mismatch(
        inspection,
        output,
        f"the loss cannot fall below {number(sight.least)} whatever the outputs are, and that of zeros is "
        f"{number(sight.at_zero)}: the right class is hardly better than the others.",
        "With label_smoothing=s the right class of C gets 1 − s + s/C, and each other one s/C: near s = 1 all are "
        "alike.",
        "# choose a smoothing of 0.1 or less",
        layer="",
        least_possible_loss=sight.least,
        loss_of_zeros=sight.at_zero,
    )


@rule("output-loss-mismatch")
def bounded_loss(evidence: Evidence) -> Iterator[Finding]:
    """A loss that squashes the outputs before it compares them: its lowest value is far above zero, at infinity.

    The lowest loss is sought among all outputs. A softmax or sigmoid before a cross-entropy leaves log(1 + (C − 1)/e)
    for C classes, and makes the loss of wrong outputs bounded, too. Losses with a lowest value at finite outputs, as
    for smoothed labels, losses that compare examples with each other and losses with a penalty are not judged.
    """
    if (known := seen_by_loss(evidence)) is None:
        return
    inspection, output, sight = known
    is_judged = sight.is_bounded and sight.is_by_example and not sight.has_penalty and not sight.is_unpaired
    constant = None if evidence.trial is None else evidence.trial.constant
    lowest = [each for each in (output.best_constant, constant) if each is not None]
    if any(each < sight.least for each in lowest):  # the search has not come to the lowest loss
        return
    if not is_judged or sight.ignores_targets or not FLOOR.is_severe(sight.floor):
        return
    yield mismatch(
        inspection,
        output,
        f"the loss cannot fall below {number(sight.least)} whatever the outputs are, and that of zeros is only "
        f"{number(sight.at_zero)}: it squashes or normalizes the outputs before it compares them.",
        "A softmax, sigmoid or norm inside the loss, before a cross-entropy that applies its own, keeps the "
        "probabilities away from 0 and 1, and its gradient vanishes for large outputs.",
        "# leave out the softmax, sigmoid or norm inside the loss: cross_entropy takes logits as they are",
        layer="",
        least_possible_loss=sight.least,
        loss_of_zeros=sight.at_zero,
    )
