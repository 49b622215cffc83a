"""`lecun-init`: weights drawn from N(0, 1/fan_in)."""

from __future__ import annotations

from wellcond.remedies.drawn_weights import STARTS, with_normal_weights
from wellcond.remedies.remedy import remedy
from wellcond.remedies.setup import Setup


@remedy("lecun-init", "weights", rules=(*STARTS, "saturated-activation", "attention-saturation"))
def lecun_init(setup: Setup) -> Setup | None:
    """Draws the weights of linear and convolutional layers from N(0, 1/fan_in), biases zero (LeCun et al. 1998).

    Units then receive signals of variance one, where tanh and sigmoid are steep.
    """
    return with_normal_weights(setup, "linear")
