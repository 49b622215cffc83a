"""`sgd`: SGD with momentum in place of an adaptive optimizer."""

from __future__ import annotations

from torch.optim import SGD

from wellcond.remedies.optimizer_settings import held_parameters
from wellcond.remedies.remedy import remedy
from wellcond.remedies.setup import Setup
from wellcond.training.optimizers import is_adaptive


@remedy("sgd", "optimizer", rules=())
def sgd(setup: Setup) -> Setup | None:
    """Uses SGD with momentum 0.9 in place of an adaptive optimizer, whose ε or second moments may be off."""
    if setup.optimizer is None or not is_adaptive(setup.optimizer):
        return None
    return setup.with_optimizer(SGD(held_parameters(setup), 0.01, momentum=0.9))
