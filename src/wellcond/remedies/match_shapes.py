"""`match-shapes`: targets in the shape of the outputs."""

from __future__ import annotations

from torch import Tensor

from wellcond.remedies.loss_code import wrapped_loss
from wellcond.remedies.loss_probe import first_batch
from wellcond.remedies.remedy import remedy
from wellcond.remedies.setup import Setup

LINES = wrapped_loss("loss_of_one_shape", "loss_of_one_shape(outputs, targets.view_as(outputs))")


@remedy("match-shapes", "shapes", rules=("output-loss-mismatch",))
def match_shapes(setup: Setup) -> Setup | None:
    """Gives the targets the shape of the outputs.

    (N,) against (N, 1) broadcasts to all N² pairs: every output then learns the mean of all targets.
    """
    outputs, targets = first_batch(setup)
    if not isinstance(outputs, Tensor) or not isinstance(targets, Tensor) or not targets.is_floating_point():
        return None
    if outputs.shape == targets.shape or outputs.numel() != targets.numel():
        return None
    loss = setup.problem.loss
    return setup.with_loss(lambda h, y: loss(h, y.view_as(h)), LINES)
