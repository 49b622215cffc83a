"""`relu`: ReLUs in place of hidden sigmoids and tanhs."""

from __future__ import annotations

from torch import nn

from wellcond.remedies.forward_calls import calls_of, last_call, with_calls_replaced
from wellcond.remedies.remedy import remedy
from wellcond.remedies.setup import Setup

FLAT_AT_BOTH_ENDS = ("sigmoid", "tanh", "hardtanh")


@remedy("relu", "activation", rules=("saturated-activation", "vanishing-gradient"))
def relu(setup: Setup) -> Setup | None:
    """Puts ReLUs in place of the hidden sigmoids and tanhs.

    A sigmoid passes on at most a quarter of the gradient, and almost nothing where it is saturated; a stack of them
    passes on nothing (Glorot et al. 2011).
    """
    calls = calls_of(setup)
    last = last_call(calls)
    hidden = [call for call in calls if call.name in FLAT_AT_BOTH_ENDS and call is not last]
    return with_calls_replaced(setup, calls, hidden, nn.ReLU()) if hidden else None
