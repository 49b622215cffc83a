"""output-loss-mismatch: outputs that are not what the loss takes.

Wrong: `F.cross_entropy(model(x).softmax(1), y)`. Right: `F.cross_entropy(model(x), y)`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from wellcond.diagnosis.evidence import Evidence
from wellcond.diagnosis.finding import Finding, Severity
from wellcond.diagnosis.inspection.inspect import Inspection
from wellcond.diagnosis.inspection.outputs import OutputFacts
from wellcond.diagnosis.reading import last_layer, outputs_of, vanishes_at_targets
from wellcond.diagnosis.rule import rule
from wellcond.diagnosis.threshold import Condition, Threshold
from wellcond.remedies.loss_code import wrapped_loss
from wellcond.results import number

OUTSIDE = Threshold(
    "share of targets that the last operation cannot reach",
    0.01,
    0.05,
    origin="some outliers are ordinary, one in twenty is not",
)
OUTSIDE_UNIT = Threshold(
    "distance of a target of a binary cross-entropy from [0, 1]",
    math.nan,
    0.02,
    origin="two per cent are left to rounding",
)
CLAMPED = Threshold(
    "share of values that the loss clamps before it takes their logarithm", math.nan, 0.2,
    origin="what is clamped gets no gradient; some extreme values are ordinary",
)  # fmt: skip
POSITIVE = Condition("largest output", 1e-3, origin="log-probabilities are never above 0; float16 rounds by 1e-3")
REWARD = Threshold(
    "(loss of perfect outputs − that of the best constant) / that of the best constant", math.nan, 0.1,
    origin="perfect outputs have the lowest loss of all",
)  # fmt: skip
SOME_NATS = Condition(
    "nats", 0.3, origin="what confident logits may cost beyond the best constant if labels hardly vary"
)
SAME_LOSS = Condition("relative difference of two losses", 1e-4, origin="float32's rounding of a mean over a batch")
BROADCAST = Condition(
    "loss of perfect outputs, broadcast, beyond that in one shape / loss", 1e-3, origin="beyond rounding in float16"
)

CALLS = {"Softmax": "softmax", "LogSoftmax": "log_softmax", "Sigmoid": "sigmoid", "Relu": "ReLU", "Tanh": "tanh",
         "LogSigmoid": "logsigmoid"}  # fmt: skip
LOGIT_LOSSES = {"cross-entropy": "cross_entropy", "bce-logits": "binary_cross_entropy_with_logits"}
PROBABILITIES = (("Softmax",), ("LogSoftmax",), ("Sigmoid",), ("LogSigmoid",))
SQUASHERS = (("Relu",), ("Sigmoid",), ("Tanh",), ("Softmax",))
BYTE = 255
"""The largest value of a mask that is stored as bytes."""
MAY_BE_PROBABILITIES = ("Sigmoid", "Softmax", "Clamp", "Mul", "Div", "Exp", "Mean", "Add")
"""Last operations whose results may lie in [0, 1]."""


def _finding(
    inspection: Inspection, output: OutputFacts, summary: str, reason: str, remedy: str, *, treatment: str = "",
    severity: Severity = "severe", layer: str | None = None, **more: float | str,
) -> Finding:  # fmt: skip
    numbers: dict[str, float | str] = {"loss takes": output.loss_kind, "last operation": (output.tail or ("none",))[0]}
    if output.loss is not None:
        numbers["loss"] = output.loss
    if output.best_constant is not None:
        numbers["loss of the best constant"] = output.best_constant
    return Finding(
        rule="output-loss-mismatch",
        layer=last_layer(inspection, output) if layer is None else layer,
        severity=severity,
        basis="proven",
        summary=summary,
        evidence=numbers | {name.replace("_", " "): value for name, value in more.items()},
        reason=reason,
        treatment=treatment,
        remedy=remedy,
    )


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
    yield _finding(
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
    return _finding(
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
def broadcast(evidence: Evidence) -> Iterator[Finding]:
    """Outputs [N, 1] with targets [N], or the reverse, which a loss broadcasts to [N, N].

    The loss itself proves it: with the outputs in the shape of the targets it has another value, and perfect outputs
    have a lower one.
    """
    if (both := outputs_of(evidence)) is None:
        return
    inspection, output = both
    if output.reshaped_loss is None or output.loss is None or output.loss_kind in ("cross-entropy", "nll"):
        return
    own, other = output.perfect_loss, output.reshaped_perfect_loss
    is_same = math.isclose(output.loss, output.reshaped_loss, rel_tol=SAME_LOSS.at, abs_tol=1e-12)
    if is_same or own is None or other is None or not own > other + BROADCAST.at * abs(output.loss):
        return
    yield _finding(
        inspection,
        output,
        f"outputs of shape {list(output.shape)} meet targets of shape {list(output.target_shape or ())}, and the loss "
        f"broadcasts them: it is {number(output.loss)} instead of {number(output.reshaped_loss)}.",
        "Every output is compared with the targets of all examples, and the best output for that is their mean.",
        "# bring outputs and targets into one shape before the loss",
        treatment="match-shapes",
        layer="",
        loss_in_one_shape=output.reshaped_loss,
    )


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
        yield _finding(
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
        yield _finding(
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
            yield _finding(
                inspection,
                output,
                f"the loss takes the logarithm of {what}: {source}, {range_}.",
                "log 0 is −∞, that of a negative number NaN, and what is clamped gets no gradient.",
                "# use nn.CrossEntropyLoss on the raw outputs, or nn.BCEWithLogitsLoss for one output",
                treatment="sigmoid-output" if output.shape == output.target_shape else "cross-entropy",
                lowest_argument=output.log_low,
                clamped=share,
            )


def _logs_outputs(output: OutputFacts) -> bool:
    """Whether the loss takes logarithms of the outputs as they are, which may be out of (0, 1)."""
    makes_positive = {"Softmax", "Sigmoid", "Exp", "Softplus", "Logsumexp", "LogSoftmax"}
    is_bounded = output.tail[:1] in (("Softmax",), ("Sigmoid",), ("Exp",), ("Softplus",))
    return not (makes_positive & output.loss_operations) and (not is_bounded or (output.log_low or 0) <= 0)


@rule("output-loss-mismatch")
def wrong_dimension(evidence: Evidence) -> Iterator[Finding]:
    """A softmax over another dimension than that of the classes, or over a single unit; the graph shows which.

    Over the examples, the probabilities of one example depend on the others of its batch and do not add up to one. Over
    one unit they are 1, whatever the logit.
    """
    if (both := outputs_of(evidence)) is None:
        return
    inspection, output = both
    if output.classes == 1 and output.loss_kind == "cross-entropy":
        yield _finding(
            inspection,
            output,
            "cross_entropy over one class is 0 whatever the output: there is nothing to learn from.",
            "The probability of the only class is 1.",
            "# use nn.BCEWithLogitsLoss with labels 0 and 1, or one output per class",
        )
        return
    if output.tail[:1] not in (("Softmax",), ("LogSoftmax",)) or output.tail_dim is None:
        return
    if output.tail_dim >= len(output.shape):
        return
    size, dim = output.shape[output.tail_dim], output.tail_dim
    expected = output.class_dim if output.class_dim is not None else len(output.shape) - 1
    call = CALLS[output.tail[0]]
    if size == 1:
        yield _finding(
            inspection,
            output,
            f"the {call} goes over one unit, so every output is {'0' if call == 'log_softmax' else '1'}.",
            "e^x / e^x is 1 whatever x is, so its gradient is zero.",
            "# return the logit, and use nn.BCEWithLogitsLoss",
            treatment="sigmoid-output",
        )
    elif dim != expected and len(output.shape) > 1 and dim == 0:
        yield _finding(
            inspection,
            output,
            f"the {call} goes over dimension {dim}, the {size} examples of the batch, instead of dimension {expected}.",
            "The probabilities of an example then depend on the others in its batch, and do not add up to one.",
            f"# take the {call} over dim={expected}, the classes",
            treatment="class-dimension",
            dimension=float(dim),
        )


@rule("output-loss-mismatch")
def out_of_range(evidence: Evidence) -> Iterator[Finding]:
    """Targets that the last operation cannot reach, or for which the loss has no meaning.

    A sigmoid and a softmax return (0, 1), a tanh (−1, 1), a ReLU nothing below 0. A binary cross-entropy of targets
    outside of [0, 1] falls without a bound. Two per cent of the range are left to rounding. For an unknown loss the
    targets are assumed to be the ideal outputs if the loss is smallest there; otherwise the check is skipped.
    """
    if (both := outputs_of(evidence)) is None:
        return
    inspection, output = both
    low, high = output.low_target, output.high_target
    is_compared = output.loss_kind == "squared" or (output.loss_kind == "other" and vanishes_at_targets(output))
    if is_compared and output.tail and OUTSIDE.is_warning(output.share_outside):
        call = CALLS.get(output.tail[0], output.tail[0])
        yield _finding(
            inspection,
            output,
            f"{output.share_outside:.0%} of the targets, which go from {number(low)} to {number(high)}, are out of "
            f"reach of the {call} that the model ends in.",
            "A target that the last operation cannot reach is never learned, and its gradient vanishes close to the "
            "limit.",
            f"# leave out the {call} at the end, or scale the targets into its range",
            treatment="logits",
            severity="severe" if OUTSIDE.is_severe(output.share_outside) else "warning",
            share_of_targets_outside=output.share_outside,
        )
    elif output.loss_kind in ("bce", "bce-logits") and OUTSIDE_UNIT.is_severe(max(-low, high - 1)):
        yield _finding(
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
def loss_fails(evidence: Evidence) -> Iterator[Finding]:
    """A loss that raises on what the model returns."""
    inspection = evidence.inspection
    if inspection is None or not inspection.loss_error:
        return
    output = inspection.output
    yield Finding(
        rule="output-loss-mismatch",
        layer="" if output is None else last_layer(inspection, output),
        severity="severe",
        basis="proven",
        summary=f"the loss cannot be computed: {inspection.loss_error}.",
        evidence={} if output is None else {"outputs": str(output.shape), "targets": str(output.target_shape)},
        reason="Its outputs and targets do not fit in shape, type or range.",
        remedy="# compare shape, type and range of outputs and targets with what the loss takes",
    )


@rule("output-loss-mismatch")
def several_losses(evidence: Evidence) -> Iterator[Finding]:
    """A loss that is several numbers, one per example or pixel, which backward() refuses: reduction="none"."""
    inspection = evidence.inspection
    shape = None if inspection is None else inspection.loss_shape
    if shape is None or math.prod(shape) == 1:
        return
    yield Finding(
        rule="output-loss-mismatch",
        severity="severe",
        basis="proven",
        summary=f"the loss is {math.prod(shape)} numbers of shape {list(shape)}, and backward() takes one.",
        evidence={"shape of the loss": str(list(shape))},
        reason="A gradient is that of one number: the mean over the batch, or a weighted one.",
        remedy=wrapped_loss("several", "several(outputs, targets).mean()"),
    )


@rule("output-loss-mismatch")
def turned_by_a_view(evidence: Evidence) -> Iterator[Finding]:
    """A view or reshape instead of a transposition: (N, T, C) read as (N, C, T).

    Both shapes have the same dimensions in another order, so the numbers of one step are spread over several. Severe if
    the result is the outputs, whose dimensions the loss reads, or if a trial does not show that the network trains;
    elsewhere dimensions may be of one size by chance, and a network that trains is not reported.
    """
    inspection, trial = evidence.inspection, evidence.trial
    if inspection is None or not inspection.turned:
        return
    outputs = {fact.shape for fact in inspection.outputs}
    at_end = [pair for pair in inspection.turned if pair[1] in outputs]
    if not at_end and (trial is None or trial.trains):
        return
    before, after = (at_end or inspection.turned)[0]
    layers = inspection.weighted()
    yield Finding(
        rule="output-loss-mismatch",
        layer=layers[-1].name if at_end and layers else "",
        severity="severe",
        basis="proven",
        summary=f"a view reads {list(before)} as {list(after)} without moving the numbers in memory: those of one "
        "position end up in several.",
        evidence={"shape before": str(list(before)), "shape after": str(list(after))},
        reason="view and reshape move no numbers; only transpose and permute reorder dimensions.",
        remedy=f"# write x.permute({', '.join(map(str, _order(before, after)))}) in place of "
        f"x.view({', '.join(map(str, after))})",
    )


def _order(before: tuple[int, ...], after: tuple[int, ...]) -> list[int]:
    """Which dimension each one of the result is; those of one size stay in their order."""
    left = list(range(len(before)))
    order = []
    for size in after:
        order.append(next((d for d in left if before[d] == size), left[0] if left else 0))
        left = [d for d in left if d != order[-1]]
    return order


@rule("output-loss-mismatch")
def rewards_errors(evidence: Evidence) -> Iterator[Finding]:
    """A loss that is larger for perfect outputs than for a constant: its sign is wrong."""
    if (both := outputs_of(evidence)) is None:
        return
    inspection, output = both
    perfect, constant = output.perfect_loss, output.uninformed_loss
    if perfect is None or constant is None or output.reshaped_loss is not None:
        return
    if output.loss_kind not in ("cross-entropy", "bce-logits", "squared"):  # perfect outputs of others are not known
        return
    margin = REWARD.severe * abs(constant) + (1e-6 if output.loss_kind == "squared" else SOME_NATS.at)
    if perfect > constant + margin:
        yield _finding(
            inspection,
            output,
            f"the loss of perfect outputs, {number(perfect)}, exceeds that of the best constant, {number(constant)}.",
            "Minimizing it makes the outputs worse: is there a minus sign too many, or one missing?",
            wrapped_loss("reward", "-reward(outputs, targets)"),
            layer="",
            loss_of_right_outputs=perfect,
        )
