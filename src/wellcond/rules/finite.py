"""The rule about NaN and infinity: where they come from first."""

from __future__ import annotations

import math
from collections.abc import Iterator

from wellcond.evidence.evidence import Evidence
from wellcond.evidence.look import Look
from wellcond.results import number
from wellcond.results.finding import Finding
from wellcond.rules.rule import rule

FROM_NOT_FINITE = (
    "loss-not-decreasing", "diverging", "learning-rate-too-high", "labels-unrelated", "vanishing-gradient",
    "exploding-gradient", "saturated-output", "activation-drift", "no-gradient",
)  # fmt: skip


@rule("non-finite", explains=FROM_NOT_FINITE)
def non_finite(evidence: Evidence) -> Iterator[Finding]:
    """NaN or infinity as the network stands, named where it comes first: data, weights, a layer, the loss, a gradient.

    No threshold: one is enough.
    """
    look = evidence.look
    if look is not None and (found := _first(look)) is not None:
        layer, summary, numbers, remedy = found
        reason = "One NaN in the loss makes every gradient NaN, and after the next step every weight."
        yield Finding("non-finite", layer, "severe", 0.97, summary, numbers, reason, remedy)


Found = tuple[str, str, dict[str, float | str], str]


def _first(look: Look) -> Found | None:
    """Layer, summary, numbers and remedy of the first place; the loss has all that comes before it in its graph."""
    for fact in (*look.inputs, *look.targets):
        if fact.not_finite:
            summary = f"the {fact.name} hold {fact.not_finite} values that are NaN or infinite."
            return (
                "",
                summary,
                {"values": float(fact.not_finite)},
                f"{fact.name} = torch.nan_to_num({fact.name})  # or drop those rows",
            )
    for w in look.weights:
        if w.not_finite:
            summary = (
                f"{w.name} holds {w.not_finite} values that are NaN or infinite: the run that made it has diverged."
            )
            return (
                w.layer,
                summary,
                {"values": float(w.not_finite)},
                "# start again from the last checkpoint, at a smaller rate",
            )
    for signal in look.signals:
        if signal.not_finite and not signal.is_nonlinearity:
            source = f"{signal.name} ({signal.kind})" if signal.has_finite_input else f"the code before {signal.name}"
            summary = f"{source} is the first to give NaN or infinity, in {signal.not_finite:.0%} of its values."
            return signal.name, summary, {"share": signal.not_finite}, _of_layer(look)
    return _in_loss(look) or _in_gradient(look)


def _of_layer(look: Look) -> str:
    is_half = any(w.dtype.itemsize == 2 for w in look.weights)
    if is_half:
        return "model.float()  # or torch.autocast, which keeps what overflows half precision (65504) in float32"
    return "# add eps inside the root, the division or the logarithm, or scale what it receives"


def _in_loss(look: Look) -> Found | None:
    if look.loss is None or math.isfinite(look.loss):
        return None
    output = look.output
    numbers: dict[str, float | str] = {"loss": str(look.loss)}
    if output is not None and output.log_low is not None and output.log_low <= 0:
        numbers["smallest argument"] = output.log_low
        what = "0" if output.log_low == 0 else f"{number(output.log_low)}, which is negative"
        summary = f"the loss is {look.loss}: it takes the logarithm of {what}, while all outputs are finite."
        return "", summary, numbers, "loss = torch.nn.CrossEntropyLoss()  # on logits; or torch.log(p.clamp_min(1e-8))"
    summary = f"the loss is {look.loss} although all outputs are finite: it is made in the loss itself."
    return "", summary, numbers, "# look for a logarithm, a root, a division by 0, or a mean over nothing in the loss"


def _in_gradient(look: Look) -> Found | None:
    broken = [w for w in look.weights if w.gradient_not_finite]
    if not broken:
        return None
    last = max(broken, key=lambda w: -1 if w.order is None else w.order)
    summary = (
        f"the gradient of {last.name} is NaN or infinite although the loss is finite, and so are {len(broken) - 1} "
        "others."
    )
    remedy = "# sqrt(x) and x ** p have an infinite slope at 0, and where() passes NaN on: torch.sqrt(x + 1e-8)"
    return last.layer, summary, {"parameters": float(len(broken))}, remedy
