"""Outputs or targets outside of the range that the loss, or the last operation, takes."""

from __future__ import annotations

import math
from collections.abc import Iterator

from wellcond.diagnosis.evidence import Evidence
from wellcond.diagnosis.finding import Finding
from wellcond.diagnosis.inspection.outputs import OutputFacts
from wellcond.diagnosis.reading import outputs_of, vanishes_at_targets
from wellcond.diagnosis.rule import rule
from wellcond.diagnosis.rules.output_loss_mismatch.mismatch import CALLS, mismatch
from wellcond.diagnosis.threshold import Condition, Threshold
from wellcond.remedies.loss_code import wrapped_loss
from wellcond.results import number

OUTSIDE = Threshold(
    "share of targets that the last operation cannot reach",
    0.01,
    0.05,
    origin="some outliers are ordinary, one in twenty is not",
)
UNEXPLAINED = Threshold(
    "mean square of how far targets lie out of reach / their variance", math.nan, 0.02,
    origin="0.15 for standardized targets and a tanh, 0.5 for those and a ReLU; 0.001 for values of a tanh to which "
    "noise of 0.05 is added",
)  # fmt: skip
OUTSIDE_UNIT = Threshold(
    "distance of a target of a binary cross-entropy from [0, 1]",
    math.nan,
    0.02,
    origin="two per cent are left to rounding",
)
OTHER_SUMS = Threshold(
    "share of targets that do not sum to one, for outputs that do", math.nan, 0.1, origin="as for a rounding in one of "
    "ten: labels that exclude each other have none",
)  # fmt: skip
CLAMPED = Threshold(
    "share of values that the loss clamps before it takes their logarithm", math.nan, 0.2,
    origin="what is clamped gets no gradient; some extreme values are ordinary",
)  # fmt: skip
POSITIVE = Condition("largest output", 1e-3, origin="log-probabilities are never above 0; float16 rounds by 1e-3")
TOTAL = Condition(
    "sum of the exponentials of what ctc_loss gets over the classes, the median of all steps", 1.05,
    origin="probabilities sum to one, and to less where one of them is penalized; float16 rounds by 1e-3",
)  # fmt: skip
MARGIN = Condition("difference of two losses / the larger", 0.1, origin="beyond any rounding")
POSITIVE_TAILS = {"Exp": "an exponential", "Softplus": "a softplus", "Relu": "a ReLU"}
"""Last operations whose results are never negative."""
BYTE = 255
"""The largest value of a mask that is stored as bytes."""
MAY_BE_PROBABILITIES = ("Sigmoid", "Softmax", "Clamp", "Mul", "Div", "Exp", "Mean", "Add")
"""Last operations whose results may lie in [0, 1]."""


@rule("output-loss-mismatch")
def raw_outputs(evidence: Evidence) -> Iterator[Finding]:
    """Raw outputs, or others of the wrong type, before a loss that takes probabilities or their logarithms.

    `nll_loss` takes log-probabilities: for raw outputs it falls without a bound. `binary_cross_entropy` takes
    probabilities, and a logarithm takes positive numbers; what the loss clamps gets no gradient.
    """
    if (both := outputs_of(evidence)) is None:
        return
    inspection, output = both
    tail = output.tail[0] if output.tail else ""
    source = f"the outputs of a {CALLS.get(tail, 'linear layer')}"
    range_ = f"from {number(output.low)} to {number(output.high)}"
    is_log_probability = tail in ("LogSoftmax", "LogSigmoid", "Log") or "Log" in output.loss_operations
    if output.loss_kind in ("nll", "kl") and not is_log_probability and output.high > POSITIVE.at:
        yield mismatch(
            inspection,
            output,
            f"{'nll_loss' if output.loss_kind == 'nll' else 'kl_div'} takes log-probabilities and gets "
            f"{'probabilities' if tail == 'Softmax' else source}, {range_}.",
            "It is minus the output of the right class: without a log_softmax nothing keeps it from falling for ever, "
            "or makes the other classes less likely.",
            "# return log-probabilities: a log_softmax in place of the softmax"
            if tail == "Softmax"
            else wrapped_loss(
                "loss_of_logs",
                f"loss_of_logs(nn.functional.log_softmax(outputs, {1 if output.loss_kind == 'nll' else -1}), targets)",
            ),
            lowest_output=output.low,
            highest_output=output.high,
        )
    elif output.loss_kind == "bce" and tail not in MAY_BE_PROBABILITIES:
        yield mismatch(
            inspection,
            output,
            f"binary_cross_entropy takes probabilities and gets {source}, {range_}.",
            "It clamps the logarithm of 0 at −100, and raises outside of [0, 1].",
            "# use nn.BCEWithLogitsLoss on the raw outputs",
            treatment="sigmoid-output",
            lowest_output=output.low,
            highest_output=output.high,
        )
    elif output.log_low is not None and _logs_outputs(output):
        share = output.clamped or 0.0
        if output.log_low <= 0 or CLAMPED.is_severe(share):
            what = "numbers that are not positive" if output.log_low <= 0 else f"values of which it clamps {share:.0%}"
            yield mismatch(
                inspection,
                output,
                f"the loss takes the logarithm of {what}: {source}, {range_}.",
                "log 0 is −∞, that of a negative number NaN, and what is clamped gets no gradient.",
                "# use nn.CrossEntropyLoss on the raw outputs, or nn.BCEWithLogitsLoss for one output",
                treatment="sigmoid-output" if output.shape == output.target_shape else "cross-entropy",
                lowest_argument=output.log_low,
                clamped=share,
            )


@rule("output-loss-mismatch")
def probabilities_for_logarithms(evidence: Evidence) -> Iterator[Finding]:
    """Probabilities in the place of their logarithms, wherever a loss or a step calls `kl_div` or `ctc_loss`.

    They are not below zero, and sum to one over a dimension, which logarithms of probabilities never do.
    """
    inspection = evidence.inspection
    arguments = () if inspection is None else inspection.log_arguments
    wrong = next((each for each in arguments if each.are_probabilities), None)
    if wrong is None or any(True for _ in raw_outputs(evidence)):
        return
    yield Finding(
        rule="output-loss-mismatch",
        severity="severe",
        basis="proven",
        summary=f"{wrong.function} takes the logarithms of probabilities and gets the probabilities themselves, "
        f"{list(wrong.shape)}, which sum to one over dimension {max(wrong.normalized_dims)}.",
        evidence={"loss takes": wrong.function, "shape": str(list(wrong.shape))},
        reason="It then asks for the largest possible number at the likeliest class, and not for the probabilities "
        "of the targets.",
        remedy=f"# take a log_softmax in place of the softmax before {wrong.function}",
    )


@rule("output-loss-mismatch")
def raw_outputs_for_ctc(evidence: Evidence) -> Iterator[Finding]:
    """Raw outputs in the place of logarithms of probabilities, wherever a loss or a step calls `ctc_loss`.

    Their exponentials sum to more than one over the classes, the last dimension, and to one over no other.
    """
    inspection = evidence.inspection
    arguments = () if inspection is None else inspection.log_arguments
    for seen in arguments:
        if seen.function == "ctc_loss" and not seen.normalized_dims and seen.total > TOTAL.at:
            yield Finding(
                rule="output-loss-mismatch",
                severity="severe",
                basis="proven",
                summary="ctc_loss takes the logarithms of probabilities and gets raw outputs: over the classes, their "
                f"exponentials sum to {number(seen.total)} and not to one.",
                evidence={"shape": str(list(seen.shape)), "sum over the classes": seen.total},
                reason="Its gradient is that of logarithms of probabilities, and of nothing else: a step along it does "
                "not lower the loss.",
                remedy="# take a log_softmax over the last dimension before ctc_loss",
            )
            return


def _logs_outputs(output: OutputFacts) -> bool:
    """Whether the loss takes logarithms of the outputs as they are, which may be out of (0, 1)."""
    makes_positive = {"Softmax", "Sigmoid", "Exp", "Softplus", "Logsumexp", "LogSoftmax"}
    is_bounded = output.tail[:1] in (("Softmax",), ("Sigmoid",), ("Exp",), ("Softplus",))
    return not (makes_positive & output.loss_operations) and (not is_bounded or (output.log_low or 0) <= 0)


@rule("output-loss-mismatch")
def one_of_several(evidence: Evidence) -> Iterator[Finding]:
    """Probabilities that sum to one, as a softmax gives them, for targets that do not: several labels, or none.

    Severe if it is so for a tenth of the examples, and the loss compares outputs and targets entry by entry.
    """
    if (both := outputs_of(evidence)) is None:
        return
    inspection, output = both
    is_compared = output.loss_kind in ("bce", "squared") or vanishes_at_targets(output)
    if is_compared and OTHER_SUMS.is_severe(output.share_of_other_sums):
        yield mismatch(
            inspection,
            output,
            f"the outputs of an example sum to one, and {output.share_of_other_sums:.0%} of the targets do not: "
            "several labels are true at once, or none.",
            "A softmax makes labels exclude each other: where two are true, neither probability gets above a half.",
            "# take a sigmoid in place of the softmax: one probability for each label",
            share_of_targets=output.share_of_other_sums,
        )


@rule("output-loss-mismatch")
def out_of_range(evidence: Evidence) -> Iterator[Finding]:
    """Targets that the last operation cannot reach, or for which the loss has no meaning.

    A sigmoid and a softmax return (0, 1), a tanh (−1, 1), a ReLU nothing below 0. A binary cross-entropy of targets
    outside of [0, 1] falls without a bound. Two per cent of the range are left to rounding; a note where the targets
    lie so little outside that less than 2 % of their variance is lost. For an unknown loss the targets are assumed to
    be the ideal outputs if the loss is smallest there; otherwise the check is skipped.
    """
    if (both := outputs_of(evidence)) is None:
        return
    inspection, output = both
    low, high = output.low_target, output.high_target
    is_compared = output.loss_kind == "squared" or (output.loss_kind == "other" and vanishes_at_targets(output))
    if is_compared and output.tail and OUTSIDE.is_warning(output.share_outside):
        call = CALLS.get(output.tail[0], output.tail[0])
        is_noise = not UNEXPLAINED.is_severe(output.variance_outside)
        is_much = OUTSIDE.is_severe(output.share_outside) and not is_noise
        yield mismatch(
            inspection,
            output,
            f"{output.share_outside:.0%} of the targets, which go from {number(low)} to {number(high)}, are out of "
            f"reach of the {call} that the model ends in.",
            "A target that the last operation cannot reach is never learned, and its gradient vanishes close to the "
            "limit.",
            f"# leave out the {call} at the end, or scale the targets into its range",
            treatment="logits",
            severity="severe" if is_much else "note" if is_noise else "warning",
            share_of_targets_outside=output.share_outside,
            share_of_variance_outside=output.variance_outside,
        )
    elif output.loss_kind in ("bce", "bce-logits") and OUTSIDE_UNIT.is_severe(max(-low, high - 1)):
        yield mismatch(
            inspection,
            output,
            f"a binary cross-entropy takes targets in [0, 1], and these go from {number(low)} to {number(high)}.",
            "Outside of [0, 1] it is not a likelihood and falls without a bound.",
            wrapped_loss("loss_of_shares", "loss_of_shares(outputs, (targets > 0).to(outputs.dtype))")
            if low < 0 or high == BYTE
            else "# use labels 0 and 1, or nn.CrossEntropyLoss for more classes",
            layer="",
            lowest_target=low,
            highest_target=high,
        )


@rule("output-loss-mismatch")
def rates_as_logarithms(evidence: Evidence) -> Iterator[Finding]:
    """Outputs that are never negative, as rates are, before a loss that takes the logarithms of rates.

    `PoissonNLLLoss` takes these by default: it is lower for the logarithms of the targets than for the targets, and
    outputs of an exponential, a softplus or a ReLU cannot be logarithms of rates below 1.
    """
    if (both := outputs_of(evidence)) is None:
        return
    inspection, output = both
    at_logarithms, at_targets = output.loss_at_logarithms, output.loss_at_targets
    tail = POSITIVE_TAILS.get((output.tail or ("",))[0])
    if tail is None or "Exp" not in output.loss_operations or at_logarithms is None or at_targets is None:
        return
    if not at_logarithms < at_targets - MARGIN.at * abs(at_targets):
        return
    yield mismatch(
        inspection,
        output,
        f"the loss takes logarithms of rates, and the outputs are rates already: {tail} keeps them above 0, so that "
        "no rate can be below 1.",
        "The loss takes the exponential of the outputs: what is to be a rate of 0.1 must be -2.3 there.",
        f"# do not end with {tail}, or tell the loss: nn.PoissonNLLLoss(log_input=False)",
        loss_at_the_targets=at_targets,
        loss_at_their_logarithms=at_logarithms,
    )
