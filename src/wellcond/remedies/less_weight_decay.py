"""`less-weight-decay`: weight decay of ordinary size."""

from __future__ import annotations

from wellcond.remedies.optimizer_settings import usual_weight_decay
from wellcond.remedies.remedy import remedy
from wellcond.remedies.setup import Setup


@remedy("less-weight-decay", "decay", rules=("weight-decay-dominates",))
def less_weight_decay(setup: Setup) -> Setup | None:
    """Lowers weight decay to its usual value; to zero where it is not above that.

    Where λ‖w‖ exceeds the gradient of the loss, the weights shrink and learn nothing. No decay at all would cure that
    as well, but a little of it is what most networks generalize better with (Krogh and Hertz 1992).
    """
    optimizer = setup.optimizer
    if optimizer is None or not any(group.get("weight_decay") for group in optimizer.param_groups):
        return None
    usual = [usual_weight_decay(optimizer, group) for group in optimizer.param_groups]
    values = [
        value if group["weight_decay"] > value else 0.0
        for group, value in zip(optimizer.param_groups, usual, strict=True)
    ]
    return setup.with_settings([{"weight_decay": value} for value in values])
