"""`he-init`: weights drawn from N(0, 2/fan_in)."""

from __future__ import annotations

from wellcond.remedies.drawn_weights import STARTS, with_normal_weights
from wellcond.remedies.remedy import remedy
from wellcond.remedies.setup import Setup


@remedy("he-init", "weights", rules=(*STARTS, "dying-neurons", "full-neurons", "weight-domination"))
def he_init(setup: Setup) -> Setup | None:
    """Draws the weights of linear and convolutional layers from N(0, 2/fan_in), biases zero (He et al. 2015).

    A ReLU halves the mean square of a signal; the 2 makes up for it, so that the signal neither fades nor explodes with
    depth. Biases are zero, as there: a bias of torch's default adds a signal that does not depend on the inputs.
    """
    return with_normal_weights(setup, "relu")
