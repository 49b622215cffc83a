"""`sigmoid-output`: a sigmoid as the last operation of the model."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from wellcond.remedies.forward_calls import SQUASHING, calls_of, last_call, with_calls_replaced
from wellcond.remedies.loss_probe import first_batch, takes_probabilities
from wellcond.remedies.remedy import remedy
from wellcond.remedies.setup import Setup


@remedy("sigmoid-output", "output", rules=("output-loss-mismatch",))
def sigmoid_output(setup: Setup) -> Setup | None:
    """Ends the network in a sigmoid, for a loss of probabilities: other outputs give it NaN, or no gradient.

    A softmax over one unit is 1 whatever the unit is, so it becomes a sigmoid too.
    """
    calls = calls_of(setup)
    last = last_call(calls)
    outputs, targets = first_batch(setup)
    if last is None or last.name == "sigmoid" or (last.name == "softmax" and outputs.shape[-1] > 1):
        return None
    is_squashing = last.name in SQUASHING
    if not takes_probabilities(setup) and not (is_squashing and _are_shares(outputs, targets)):
        return None
    if is_squashing:
        return with_calls_replaced(setup, calls, [last], nn.Sigmoid())
    line = "model = nn.Sequential(model, nn.Sigmoid())"
    return setup.with_model(lambda model: nn.Sequential(model, nn.Sigmoid()), line, is_new=False)


def _are_shares(outputs: Any, targets: Any) -> bool:
    """Whether targets are numbers from 0 to 1, one per output."""
    if not isinstance(outputs, Tensor) or not isinstance(targets, Tensor) or not targets.is_floating_point():
        return False
    return outputs.numel() == targets.numel() and bool(((targets >= 0) & (targets <= 1)).all())
