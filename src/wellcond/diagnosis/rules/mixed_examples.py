"""mixed-examples: outputs of an example that depend on the other examples of its batch.

Wrong: `nn.LSTM(…)` on inputs (batch, time, features). Right: `nn.LSTM(…, batch_first=True)`.
"""

from __future__ import annotations

from collections.abc import Iterator

from torch import nn

from wellcond.diagnosis.evidence import Evidence
from wellcond.diagnosis.finding import Finding
from wellcond.diagnosis.rule import rule
from wellcond.diagnosis.threshold import Threshold

CHANGE = Threshold(
    "‖f − f'‖/‖f‖ of outputs alone and in a batch", 1e-3, 1e-3,
    origin="rounding in float32, over a hundred layers, is below 1e-4",
)  # fmt: skip


@rule("mixed-examples")
def mixed_examples(evidence: Evidence) -> Iterator[Finding]:
    """Outputs of an example that depend on the others of its batch, without a BatchNorm.

    The last few examples are passed through once more, alone. Severe after a recurrent or attention layer that is not
    `batch_first`, which takes the examples for steps of a sequence, or if a trial does not show that the network
    trains; otherwise a warning. If the order of the examples does not matter it is a note: statistics over a batch, as
    a BatchNorm's, are intended.
    """
    mixing = None if evidence.behavior is None else evidence.behavior.mixing
    if mixing is None or mixing.difference < CHANGE.warn:
        return
    module = dict(evidence.problem.model.named_modules()).get(mixing.layer)
    is_turned = getattr(module, "batch_first", True) is False
    are_statistics = mixing.is_symmetric and not is_turned
    is_lost = is_turned or (evidence.trial is not None and not evidence.trial.trains)
    yield Finding(
        rule="mixed-examples",
        layer=mixing.layer,
        severity="note" if are_statistics else "severe" if is_lost else "warning",
        basis="proven",
        summary=f"the outputs of an example change by {mixing.difference:.0%} with the others of its batch, first at "
        f"{mixing.layer or 'the model'}"
        + (", which takes the batch for the steps of a sequence (batch_first=False)." if is_turned else "."),
        evidence={"relative change": mixing.difference},
        reason="Statistics over a batch differ in use, one example at a time, unless running ones are kept as in "
        "BatchNorm."
        if are_statistics
        else "The loss of example i must depend on input i alone: one dimension has been taken for another.",
        remedy="# use a BatchNorm for statistics over the batch: it keeps running ones for use"
        if are_statistics
        else f"model.get_submodule({mixing.layer!r}).batch_first = True"
        if is_turned and isinstance(module, (nn.RNNBase, nn.MultiheadAttention))
        else f"# look at what {mixing.layer or 'the model'} takes: one of its dimensions counts the examples, and is "
        "used for another",
    )
