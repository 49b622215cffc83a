"""`leaky-relu`: leaky ReLUs in place of hidden ReLUs."""

from __future__ import annotations

from torch import nn

from wellcond.remedies.forward_calls import calls_of, last_call, with_calls_replaced
from wellcond.remedies.remedy import remedy
from wellcond.remedies.setup import Setup


@remedy("leaky-relu", "activation", rules=("dying-neurons",))
def leaky_relu(setup: Setup) -> Setup | None:
    """Puts leaky ReLUs of slope 0.01 in place of the hidden ReLUs (Maas et al. 2013).

    A ReLU that is off on all examples has no gradient and stays off; a leaky one has a hundredth of it and comes back.
    """
    calls = calls_of(setup)
    last = last_call(calls)
    hidden = [call for call in calls if call.name == "relu" and call is not last]
    return with_calls_replaced(setup, calls, hidden, nn.LeakyReLU(0.01)) if hidden else None
