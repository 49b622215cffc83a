"""`logits`: the last activation taken off the model."""

from __future__ import annotations

from torch import nn

from wellcond.remedies.forward_calls import SQUASHING, calls_of, last_call, with_calls_replaced
from wellcond.remedies.loss_probe import takes_probabilities
from wellcond.remedies.remedy import remedy
from wellcond.remedies.setup import Setup


@remedy("logits", "output", rules=("output-loss-mismatch", "saturated-output"))
def logits(setup: Setup) -> Setup | None:
    """Takes off the last activation: a loss of logits, or of unbounded targets, needs the values before it.

    Cross-entropy of probabilities cannot fall below log(1 + (C − 1)/e), however well the network learns. A ReLU,
    sigmoid or tanh before the loss keeps the outputs away from where it is low, and has no gradient where it is flat.
    """
    calls = calls_of(setup)
    last = last_call(calls)
    if last is None or last.name not in SQUASHING or takes_probabilities(setup):
        return None
    return with_calls_replaced(setup, calls, [last], nn.Identity())
