"""What an optimizer holds, and the weight decay that is usual for it."""

from __future__ import annotations

from torch import Tensor
from torch.optim import Optimizer

from wellcond.remedies.setup import Setup
from wellcond.training.optimizers import Group, adds_penalty, is_decoupled


def held_parameters(setup: Setup) -> list[Tensor]:
    """The parameters that the optimizer holds; all trainable ones if there is none."""
    if setup.optimizer is None:
        return list(setup.problem.params.values())
    return [p for group in setup.optimizer.param_groups for p in group["params"]]


def usual_weight_decay(optimizer: Optimizer, group: Group) -> float:
    """The weight decay of ordinary use.

    5e-4 for SGD (most recipes for CIFAR); 1e-2 for decoupled decay (torch's default of AdamW); 1e-4 where the decay is
    added to a gradient that is then divided by its own size.
    """
    if adds_penalty(optimizer, group):
        return 1e-4
    return 1e-2 if is_decoupled(optimizer, group) or "betas" in group else 5e-4
