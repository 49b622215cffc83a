"""`logits`: the activations at the end taken off the model."""

from __future__ import annotations

from torch import nn

from wellcond.remedies.forward_calls import LOG_PROBABILITIES, calls_of, last_activations, with_calls_replaced
from wellcond.remedies.loss_probe import takes_probabilities
from wellcond.remedies.remedy import remedy
from wellcond.remedies.setup import Setup


@remedy("logits", "output", rules=("output-loss-mismatch", "saturated-output", "dying-neurons"))
def logits(setup: Setup) -> Setup | None:
    """Takes off the last activations: a loss of logits, or of unbounded targets, needs the values before them.

    Cross-entropy of probabilities cannot fall below log(1 + (C − 1)/e), however well the network learns. A ReLU,
    sigmoid or tanh before the loss keeps the outputs away from where it is low, and has no gradient where it is flat.
    If the loss needs the last activation, those directly before it go: a softmax of ReLUs gives no small probability.
    """
    calls = calls_of(setup)
    activations = last_activations(calls)
    if activations and (activations[0].name in LOG_PROBABILITIES or takes_probabilities(setup)):
        activations = activations[1:]  # the loss needs the last one
    return with_calls_replaced(setup, calls, activations, nn.Identity()) if activations else None
