"""bad-initialisation: weights or biases whose scale keeps training from starting, or slows it down.

Wrong:
    nn.init.normal_(layer.weight)
Right:
    nn.init.kaiming_normal_(layer.weight)  # with RMS √(2/fan_in)
"""

from wellcond.diagnosis.rules.bad_initialisation import first_loss, gains, products  # noqa: F401
