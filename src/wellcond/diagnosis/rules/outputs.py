"""Rules about outputs against the loss: what the last operation gives, and what the loss takes it for."""

from __future__ import annotations

import math
from collections.abc import Iterator

from wellcond.diagnosis.evidence import Evidence
from wellcond.diagnosis.finding import Finding, Severity
from wellcond.diagnosis.inspection.inspect import Inspection
from wellcond.diagnosis.inspection.outputs import PRODUCTS, OutputFacts
from wellcond.diagnosis.rule import rule
from wellcond.results import number

NAME = "output-loss-mismatch"
FROM_OUTPUTS = (
    "saturated-output", "saturated-activation", "vanishing-gradient", "exploding-gradient", "bad-initialisation",
    "non-finite", "dying-neurons", "rank-collapse", "learning-rate-too-low", "learning-rate-too-high", "diverging",
    "loss-not-decreasing", "labels-unrelated", "no-gradient", "activation-drift", "last-layer-drift",
    "unscaled-target", "batchnorm-mode-gap", "mixed-examples",
)  # fmt: skip
"""What outputs that do not fit their loss make."""
CALLS = {"Softmax": "softmax", "LogSoftmax": "log_softmax", "Sigmoid": "sigmoid", "Relu": "ReLU", "Tanh": "tanh",
         "LogSigmoid": "logsigmoid"}  # fmt: skip
LOGIT_LOSSES = {"cross-entropy": "cross_entropy", "bce-logits": "binary_cross_entropy_with_logits"}
PROBABILITIES = (("Softmax",), ("LogSoftmax",), ("Sigmoid",), ("LogSigmoid",))
SQUASHERS = (("Relu",), ("Sigmoid",), ("Tanh",), ("Softmax",))
SOME_NATS = 0.3
"""What sure logits may cost beyond the best constant where the labels hardly vary."""
CONFIDENTLY_WRONG = 2.0
"""The loss over that of the best constant, above which saturated outputs are wrong: a right one is near 0."""


def _last_layer(inspection: Inspection, output: OutputFacts) -> str:
    """The module of the last operation, or the last layer with weights."""
    weighted = inspection.weighted()
    last = inspection.signals[-1] if inspection.signals else None
    is_module = last is not None and not last.is_nonlinearity
    if output.tail and is_module and last is not None and last.kind.lower() == output.tail[0].lower():
        return last.name
    return weighted[-1].name if weighted else ""


def _finding(
    inspection: Inspection, output: OutputFacts, summary: str, reason: str, remedy: str, *, confidence: float = 0.97,
    severity: Severity = "severe", layer: str | None = None, **more: float | str,
) -> Finding:  # fmt: skip
    numbers: dict[str, float | str] = {"loss takes": output.loss_kind, "last operation": (output.tail or ("none",))[0]}
    if output.loss is not None:
        numbers["loss"] = output.loss
    if output.best_constant is not None:
        numbers["loss of the best constant"] = output.best_constant
    where = _last_layer(inspection, output) if layer is None else layer
    words = {name.replace("_", " "): value for name, value in more.items()}
    return Finding(
        rule=NAME,
        layer=where,
        severity=severity,
        confidence=confidence,
        summary=summary,
        evidence=numbers | words,
        reason=reason,
        remedy=remedy,
    )


def _both(evidence: Evidence) -> tuple[Inspection, OutputFacts] | None:
    inspection = evidence.inspection
    return None if inspection is None or inspection.output is None else (inspection, inspection.output)


@rule(NAME, explains=FROM_OUTPUTS)
def squashed_logits(evidence: Evidence) -> Iterator[Finding]:
    """A softmax, sigmoid, tanh or ReLU in front of a loss that takes logits; the autograd graph proves it.

    With logits between a and b, cross-entropy over C classes is never below log(1 + (C − 1) e^{a − b}): behind a
    softmax or sigmoid 1.46 for ten classes. A ReLU gives no logit below zero: no binary probability below 1/2.
    """
    if (both := _both(evidence)) is None:
        return
    inspection, output = both
    if output.tail[:1] in PROBABILITIES and output.tail[1:2] in SQUASHERS:
        yield _twice(inspection, output)
        return
    loss = LOGIT_LOSSES.get(output.loss_kind)
    if loss is None or not output.tail or output.tail[0] not in ("Softmax", "Sigmoid", "Relu", "Tanh"):
        return
    tail, call = output.tail[0], CALLS[output.tail[0]]
    low, high = {"Relu": (0.0, math.inf), "Tanh": (-1.0, 1.0)}.get(tail, (0.0, 1.0))
    classes = output.classes or 2
    floor = math.log1p((classes - 1) * math.exp(low - high)) if output.loss_kind == "cross-entropy" else None
    if floor is None:
        floor = math.log1p(math.exp(-high)) if tail == "Tanh" else 0.5 * (math.log(2) + math.log1p(math.exp(-high)))
    least = f"so the loss cannot fall below {number(floor)}" if tail != "Relu" else "so no logit can be below zero"
    yield _finding(
        inspection,
        output,
        f"the model ends in a {call} and {loss} takes logits, to which it applies its own, {least}.",
        f"Logits between {number(low)} and {number(high)} bound the probabilities away from 0 and 1, and a gradient "
        f"passes the {call} a second time.",
        f"return x  # the logits, without the {call}; apply it where you predict",
        least_possible_loss=floor,
    )


def _twice(inspection: Inspection, output: OutputFacts) -> Finding:
    last, before = (CALLS[name] for name in output.tail[:2])
    return _finding(
        inspection,
        output,
        f"the {last} that the model ends in gets the outputs of a {before}, so its logits are "
        + ("never below zero." if before == "ReLU" else "bounded."),
        "A probability below that of equal logits cannot be given, and where a ReLU is off nothing is learned.",
        f"x = F.{last}(self.out(x)) if you need probabilities  # without the {before}",
        layer=next((s.name for s in reversed(inspection.signals) if s.is_weighted), ""),
    )


@rule(NAME, explains=FROM_OUTPUTS)
def raw_outputs(evidence: Evidence) -> Iterator[Finding]:
    """Raw outputs, or ones of another kind, in front of a loss that takes probabilities or their logarithms.

    `nll_loss` takes log-probabilities: of raw outputs it falls without a bound. `binary_cross_entropy` takes
    probabilities, and a logarithm takes positive numbers; what the loss clamps gets no gradient.
    """
    if (both := _both(evidence)) is None:
        return
    inspection, output = both
    tail = output.tail[0] if output.tail else ""
    is_log_probability = tail in ("LogSoftmax", "LogSigmoid", "Log") or "Log" in output.loss_operations
    if output.loss_kind in ("nll", "kl") and not is_log_probability and output.high > 1e-3:
        what = "probabilities" if tail == "Softmax" else f"the outputs of a {CALLS.get(tail, 'linear layer')}"
        yield _finding(
            inspection,
            output,
            f"{'nll_loss' if output.loss_kind == 'nll' else 'kl_div'} takes log-probabilities and gets {what}, from "
            f"{number(output.low)} to {number(output.high)}.",
            "It is minus the output of the right class: without a log_softmax nothing keeps it from falling for ever, "
            "or makes the other classes less likely.",
            "loss = torch.nn.CrossEntropyLoss()  # on the raw outputs, or: return F.log_softmax(x, dim=1)",
            lowest_output=output.low,
            highest_output=output.high,
        )
    elif output.loss_kind == "bce" and tail not in ("Sigmoid", "Softmax", "Clamp", "Mul", "Div", "Exp", "Mean", "Add"):
        call = CALLS.get(tail, "linear layer")
        yield _finding(
            inspection,
            output,
            f"binary_cross_entropy takes probabilities and gets the outputs of a {call}, from {number(output.low)} to "
            f"{number(output.high)}.",
            "Its logarithm is clamped at −100 for 0, and refused outside of [0, 1].",
            "loss = torch.nn.BCEWithLogitsLoss()  # on the raw outputs",
            lowest_output=output.low,
            highest_output=output.high,
        )
    elif output.log_low is not None and _logs_outputs(output):
        share = output.clamped or 0.0
        if output.log_low <= 0 or share > 0.2:
            what = "what is not positive" if output.log_low <= 0 else f"values {share:.0%} of which it clamps"
            yield _finding(
                inspection,
                output,
                f"the loss takes the logarithm of {what}: the outputs, of a {CALLS.get(tail, 'linear layer')}, go from "
                f"{number(output.low)} to {number(output.high)}.",
                "log 0 is −∞, that of a negative number NaN, and what is clamped gets no gradient.",
                "loss = torch.nn.CrossEntropyLoss()  # on the raw outputs; BCEWithLogitsLoss() for one output",
                lowest_argument=output.log_low,
                clamped=share,
            )


def _logs_outputs(output: OutputFacts) -> bool:
    """Whether the loss takes logarithms of the outputs as they are, which may be out of (0, 1)."""
    makes_positive = {"Softmax", "Sigmoid", "Exp", "Softplus", "Logsumexp", "LogSoftmax"}
    is_bounded = output.tail[:1] in (("Softmax",), ("Sigmoid",), ("Exp",), ("Softplus",))
    return not (makes_positive & output.loss_operations) and (not is_bounded or (output.log_low or 0) <= 0)


@rule(NAME, explains=FROM_OUTPUTS)
def wrong_dimension(evidence: Evidence) -> Iterator[Finding]:
    """A softmax over another dimension than that of the classes, or over a single unit; the graph tells which.

    Over the examples, the probabilities of one example depend on the others of its batch and do not add up to one. Over
    one unit they are 1, whatever the logit.
    """
    if (both := _both(evidence)) is None:
        return
    inspection, output = both
    if output.classes == 1 and output.loss_kind == "cross-entropy":
        yield _finding(
            inspection,
            output,
            "cross_entropy over one class is 0 whatever the output: there is nothing to learn from.",
            "The probability of the only class is 1.",
            "loss = torch.nn.BCEWithLogitsLoss()  # or as many outputs as there are classes",
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
            "e^x / e^x is 1 whatever x is: no gradient passes it.",
            "return x  # the logit, with torch.nn.BCEWithLogitsLoss()",
        )
    elif dim != expected and len(output.shape) > 1 and dim == 0:
        yield _finding(
            inspection,
            output,
            f"the {call} goes over dimension {dim}, the {size} examples of the batch, instead of dimension {expected}.",
            "The probabilities of an example then depend on which others are in its batch, and do not add up to one.",
            f"x = F.{call}(x, dim={expected})",
            dimension=float(dim),
        )


@rule(NAME, explains=FROM_OUTPUTS)
def broadcast(evidence: Evidence) -> Iterator[Finding]:
    """Outputs [N, 1] against targets [N], or the reverse, which a loss broadcasts to [N, N].

    Proven by the loss itself: with the outputs in the shape of the targets it has another value, and right outputs are
    right only there.
    """
    if (both := _both(evidence)) is None:
        return
    inspection, output = both
    if output.reshaped_loss is None or output.loss is None or output.loss_kind in ("cross-entropy", "nll"):
        return
    own, other = output.perfect_loss, output.reshaped_perfect_loss
    is_same = math.isclose(output.loss, output.reshaped_loss, rel_tol=1e-4, abs_tol=1e-12)
    if is_same or own is None or other is None or not own > other + 1e-3 * abs(output.loss):
        return
    yield _finding(
        inspection,
        output,
        f"outputs of shape {list(output.shape)} meet targets of shape {list(output.target_shape or ())}, and the loss "
        f"broadcasts them: {number(output.loss)} instead of {number(output.reshaped_loss)}.",
        "Every output is compared with the targets of all examples, for which their mean is the best answer.",
        "loss = criterion(outputs.squeeze(-1), targets)"
        if len(output.shape) > len(output.target_shape or ())
        else "loss = criterion(outputs, targets.squeeze(-1))",
        confidence=0.99,
        layer="",
        loss_in_one_shape=output.reshaped_loss,
    )


@rule(NAME, explains=FROM_OUTPUTS)
def out_of_range(evidence: Evidence) -> Iterator[Finding]:
    """Targets that the last operation cannot give, or that the loss has no meaning for.

    A sigmoid and a softmax give (0, 1), a tanh (−1, 1), a ReLU nothing below 0. A binary cross-entropy of targets
    outside of [0, 1] falls without a bound. Two per cent of the range are left to rounding. Of a loss that is not known
    targets are the right outputs if it is least there, and if not it says nothing.
    """
    if (both := _both(evidence)) is None:
        return
    inspection, output = both
    low, high = output.low_target, output.high_target
    is_compared = output.loss_kind == "squared" or (output.loss_kind == "other" and _is_right_at_targets(output))
    if is_compared and output.tail and output.share_outside > 0.01:
        call = CALLS.get(output.tail[0], output.tail[0])
        yield _finding(
            inspection,
            output,
            f"{output.share_outside:.0%} of the targets, which go from {number(low)} to {number(high)}, are out of "
            f"reach of the {call} that the model ends in.",
            "What the last operation cannot give is never learned, and its gradient vanishes as it tries.",
            f"return x  # without the {call}; or scale the targets into its range",
            confidence=0.97 if output.share_outside > 0.05 else 0.8,
            severity="severe" if output.share_outside > 0.05 else "warning",
            share_of_targets_outside=output.share_outside,
        )
    elif output.loss_kind in ("bce", "bce-logits") and (low < -0.02 or high > 1.02):
        yield _finding(
            inspection,
            output,
            f"a binary cross-entropy takes targets in [0, 1], and these go from {number(low)} to {number(high)}.",
            "Outside of [0, 1] it is no likelihood and falls without a bound.",
            "targets = (targets > 0).float()  # labels −1 and 1 as 0 and 1; cross_entropy for more classes",
            layer="",
            lowest_target=low,
            highest_target=high,
        )


def _is_right_at_targets(output: OutputFacts) -> bool:
    """Whether the loss all but vanishes where outputs are the targets, so that it compares the two."""
    right, loss = output.perfect_loss, output.loss
    if right is None or loss is None or output.loss_operations & PRODUCTS:
        return False
    return 0 <= right < 0.01 * loss


@rule(NAME, explains=FROM_OUTPUTS)
def rewards_errors(evidence: Evidence) -> Iterator[Finding]:
    """A loss that is larger for right outputs than for a constant: its sign is wrong."""
    if (both := _both(evidence)) is None:
        return
    inspection, output = both
    right, constant = output.perfect_loss, output.uninformed_loss
    if right is None or constant is None or output.reshaped_loss is not None:
        return
    if output.loss_kind not in ("cross-entropy", "bce-logits", "squared"):  # of others the right outputs are not known
        return
    margin = 0.1 * abs(constant) + (1e-6 if output.loss_kind == "squared" else SOME_NATS)
    if right > constant + margin:
        yield _finding(
            inspection,
            output,
            f"the loss of right outputs, {number(right)}, exceeds that of the best constant, {number(constant)}.",
            "Whoever minimizes it makes the outputs worse: is there a minus sign too many, or one missing?",
            "loss = -loss",
            confidence=0.85,
            layer="",
            loss_of_right_outputs=right,
        )


@rule(NAME, explains=FROM_OUTPUTS)
def loss_fails(evidence: Evidence) -> Iterator[Finding]:
    """A loss that cannot be computed on what the model gives."""
    inspection = evidence.inspection
    if inspection is None or not inspection.loss_error:
        return
    output = inspection.output
    layer = "" if output is None else _last_layer(inspection, output)
    yield Finding(
        rule=NAME, layer=layer, severity="severe", confidence=0.95, summary=f"the loss cannot be computed: {inspection.loss_error}.",
        evidence={} if output is None else {"outputs": str(output.shape), "targets": str(output.target_shape)},
        reason="Its outputs and targets do not fit in shape, type or range.",
        remedy="print(outputs.shape, outputs.dtype, outputs.min(), outputs.max(), targets.shape, targets.dtype)",
    )  # fmt: skip


@rule("saturated-output", explains=("vanishing-gradient", "loss-not-decreasing", "learning-rate-too-low"))
def saturated_output(evidence: Evidence) -> Iterator[Finding]:
    """Probabilities within 1e-3 of 0 or 1 on most examples, and wrong.

    A trained classifier is as sure, but right: its loss is below that of the best constant. Severe where the loss is
    twice that or, of other losses that take a logarithm or vanish at the targets, 1 above that of right outputs.
    The gradient passes a sigmoid with p(1 − p), below 1e-3 here.
    """
    if (both := _both(evidence)) is None:
        return
    inspection, output = both
    if output.saturated is None or output.saturated < 0.5 or output.loss is None or not math.isfinite(output.loss):
        return
    reference, right = output.best_constant, output.perfect_loss
    if output.loss_kind != "other" and reference is not None:
        is_wrong = reference > 0.1 and output.loss > CONFIDENTLY_WRONG * reference + 0.1
    else:
        is_right_known = "Log" in output.loss_operations or _is_right_at_targets(output)
        is_wrong = right is not None and is_right_known and output.saturated > 0.9 and output.loss > right + 1.0
    if is_wrong:
        yield Finding(
            rule="saturated-output",
            layer=_last_layer(inspection, output),
            severity="severe"
            if output.saturated > 0.9 or (reference is not None and output.loss > 5 * reference)
            else "warning",
            confidence=0.85,
            summary=f"{output.saturated:.0%} of the examples have probabilities within 0.001 of 0 or 1, and the loss is "
            f"{number(output.loss)}"
            + (f", where a constant has {number(reference)}." if reference is not None else "."),
            evidence={
                "saturated": output.saturated,
                "loss": output.loss,
                "largest |output|": max(abs(output.low), abs(output.high)),
            },
            reason="A sigmoid passes gradients on with p(1 − p): what is sure and wrong learns slowest.",
            remedy="# smaller logits: a smaller last layer, or logits and a loss that takes them\n"
            "loss = torch.nn.BCEWithLogitsLoss()",
        )
