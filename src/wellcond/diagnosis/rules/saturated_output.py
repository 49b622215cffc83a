"""saturated-output: probabilities near 0 or 1 that are wrong.

Wrong:
    nn.init.normal_(head.weight, std=10.0)
    probability = torch.sigmoid(head(hidden))
    loss = F.mse_loss(probability, labels)
Right:
    nn.init.zeros_(head.weight)
    loss = F.binary_cross_entropy_with_logits(head(hidden), labels)
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from wellcond.diagnosis.evidence import Evidence
from wellcond.diagnosis.finding import Finding
from wellcond.diagnosis.inspection.outputs import OutputFacts
from wellcond.diagnosis.reading import is_trained, last_layer, outputs_of, vanishes_at_targets
from wellcond.diagnosis.rule import rule
from wellcond.diagnosis.threshold import Condition, Threshold
from wellcond.results import number

SHARE = Threshold(
    "share of examples with all probabilities within 1e-3 of 0 or 1", 0.5, 0.9, healthy=("output: saturated examples",),
    origin="a fresh classifier has none",
    inside_healthy_because="a trained classifier is as sure, but right: only outputs with a high loss are reported",
)  # fmt: skip
LOSS = Threshold(
    "loss / loss of the best constant", 2.0, 5.0, origin="right answers have a loss near 0, ignorance has 1",
)  # fmt: skip
SOME_SURPRISE = Condition(
    "loss of the best constant, and what the loss must exceed, in nats", 0.1, origin="below it the labels hardly vary"
)
ABOVE_PERFECT = Threshold(
    "loss − loss of perfect outputs, if no constant's is known", math.nan, 1.0,
    origin="a wrong answer within 1e-3 of certainty costs 7 nats: one in seven examples",
)  # fmt: skip


@rule("saturated-output")
def saturated_output(evidence: Evidence) -> Iterator[Finding]:
    """Probabilities within 1e-3 of 0 or 1 on most examples, and wrong.

    A trained classifier is as sure, but right: its loss is below that of the best constant. Reported if the loss is
    twice that or, for other losses that take a logarithm or vanish at the targets, 1 above that of perfect outputs. The
    gradient passes a sigmoid with the factor p(1 − p), below 1e-3 here. No more than a warning if the trial shows that
    the network learns all the same, at its own rate or another, and a note if it was trained before and trains now: it
    was sure of other labels.
    """
    if (both := outputs_of(evidence)) is None:
        return
    inspection, output = both
    if output.saturated is None or output.saturated < SHARE.warn or output.loss is None:
        return
    if not math.isfinite(output.loss) or not _is_wrong(output, output.loss):
        return
    constant = output.best_constant
    is_far = SHARE.is_severe(output.saturated) or (constant is not None and output.loss > LOSS.severe * constant)
    trial = evidence.trial
    trains = trial is not None and bool(trial.trains)
    learns = trial is not None and any(trial.outcome(each) == "learns" for each in trial.attempts)
    was_trained = any(map(is_trained, inspection.weights))
    yield Finding(
        rule="saturated-output",
        layer=last_layer(inspection, output),
        severity="note" if trains and was_trained else "severe" if is_far and not (trains or learns) else "warning",
        basis="measured",
        summary=f"{output.saturated:.0%} of the examples have probabilities within 0.001 of 0 or 1, and the loss is "
        f"{number(output.loss)}" + (f", that of a constant {number(constant)}." if constant is not None else "."),
        evidence={
            "saturated": output.saturated,
            "loss": output.loss,
            "largest |output|": max(abs(output.low), abs(output.high)),
        },
        reason="A sigmoid multiplies gradients by p(1 − p): confident wrong answers get almost no gradient.",
        treatment="zero-last",
        remedy="# start from a smaller last layer, or return logits and use a loss that takes them",
    )


def _is_wrong(output: OutputFacts, loss: float) -> bool:
    constant, perfect = output.best_constant, output.perfect_loss
    if output.loss_kind != "other" and constant is not None:
        return constant > SOME_SURPRISE.at and loss > LOSS.warn * constant + SOME_SURPRISE.at
    is_known = "Log" in output.loss_operations or vanishes_at_targets(output)
    is_sure = output.saturated is not None and SHARE.is_severe(output.saturated)
    return perfect is not None and is_known and is_sure and ABOVE_PERFECT.is_severe(loss - perfect)
