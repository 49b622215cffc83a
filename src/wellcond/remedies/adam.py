"""`adam`: Adam in place of SGD."""

from __future__ import annotations

from torch.optim import Adam, AdamW, Optimizer

from wellcond.remedies.optimizer_settings import held_parameters
from wellcond.remedies.remedy import remedy
from wellcond.remedies.setup import Setup
from wellcond.training.optimizers import is_adaptive


@remedy(
    "adam",
    "optimizer",
    rules=("vanishing-gradient", "learning-rate-too-low", "unscaled-input", "ill-conditioned-input"),
)
def adam(setup: Setup) -> Setup | None:
    """Uses Adam in place of SGD, AdamW if there is weight decay (Kingma and Ba 2015, Loshchilov and Hutter 2019).

    Every weight's step has the size of the rate, whatever the scale of its gradient is.
    """
    if setup.optimizer is not None and is_adaptive(setup.optimizer):
        return None
    groups = [] if setup.optimizer is None else setup.optimizer.param_groups
    decay = max((float(group.get("weight_decay", 0)) for group in groups), default=0.0)
    parameters = held_parameters(setup)
    new: Optimizer = AdamW(parameters, 1e-3, weight_decay=decay) if decay else Adam(parameters, 1e-3)
    return setup.with_optimizer(new)
