"""label-shift: a language model that is asked for the token it is given, or for one further away than the next.

Wrong:
    loss = criterion(model(tokens), tokens)
Right:
    loss = criterion(model(tokens[:, :-1]), tokens[:, 1:])
"""

from __future__ import annotations

from collections.abc import Iterator

from wellcond.diagnosis.evidence import Evidence
from wellcond.diagnosis.finding import Finding, Severity
from wellcond.diagnosis.probes.future import Shift
from wellcond.diagnosis.rule import rule
from wellcond.diagnosis.threshold import Condition

DEPENDS = Condition(
    "‖f − f'‖/‖f‖ of outputs with other inputs",
    1e-3,
    origin="rounding in float32, over a hundred layers, is below 1e-4",
)


@rule("label-shift")
def label_shift(evidence: Evidence) -> Iterator[Finding]:
    """Targets that are tokens of the input, but not the next ones.

    Severe if each output of a network that sees no later step, but earlier ones, is asked for its own input, which it
    has only to copy, or for an earlier one; or if both the data and the loss shift the targets. A warning if the data
    alone shift them by two or three, or if a network that sees the whole sequence is asked for earlier tokens, which
    may be its task. Such a network is not asked for its own input, as an autoencoder is; nor are numbers: a forecast
    may be of any horizon. A task to repeat a token later begins with the same targets in all examples, and is none
    either; nor is a network that reads from the end, and has not seen the earlier token.
    """
    shift = None if evidence.behavior is None else evidence.behavior.shift
    if shift is None or not shift.is_tokens or shift.steps == 1:
        return
    is_causal = shift.future < DEPENDS.at
    if shift.steps == 0 and not is_causal:
        return
    if shift.steps < 1 and shift.past < DEPENDS.at:
        return
    if shift.steps < 0 and not shift.begins_unknown:
        return
    yield Finding(
        rule="label-shift",
        severity=_severity(shift, is_causal),
        basis="proven",
        summary=f"{shift.share:.0%} of the targets are {_which(shift)}.",
        evidence={"shift": float(shift.steps), "of it by the loss": float(shift.of_loss), "share": shift.share},
        reason="A network that only has to repeat what it has read learns to copy, and its loss says nothing of the "
        "next token."
        if shift.steps < 1
        else "What is learned is the token after the next: a text that it continues has every other token missing.",
        remedy=f"# {_advice(shift)}",
    )


def _severity(shift: Shift, is_causal: bool) -> Severity:
    is_doubled = shift.of_loss > 0 and shift.steps > shift.of_loss
    return "severe" if (shift.steps < 1 and is_causal) or is_doubled else "warning"


def _which(shift: Shift) -> str:
    if shift.steps == 0:
        return "the input at the same step: the network only has to copy it"
    if shift.steps < 0:
        return f"the input of {-shift.steps} step{'s' * (shift.steps < -1)} before, which the network has read already"
    twice = f": the data shift them by {shift.steps - shift.of_loss}, and the loss by {shift.of_loss} again"
    return f"the input {shift.steps} steps later" + (twice if shift.of_loss else "")


def _advice(shift: Shift) -> str:
    if shift.of_loss > 0 and shift.steps > 1:
        return "pass the inputs themselves as labels, because the loss shifts them by itself"
    return "cut a sequence into inputs tokens[:, :-1] and targets tokens[:, 1:], so that each target is the next token"
