"""What the settings of an optimizer say about it."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.optim import Adadelta, Adagrad, Adam, Adamax, NAdam, Optimizer, RAdam, RMSprop

from wellcond.remedies.setup import Setup

ADDS_DECAY_FIRST = (Adam, NAdam, RAdam, Adamax, RMSprop, Adagrad, Adadelta)


def is_adaptive(optimizer: Optimizer) -> bool:
    """Whether its steps have a size of their own whatever the gradient's is: by ε, or two betas, or Rprop's etas."""
    return not {"eps", "betas", "etas"}.isdisjoint(optimizer.defaults)


def held_parameters(setup: Setup) -> list[Tensor]:
    """The parameters that the optimizer holds; all trainable ones if there is none."""
    if setup.optimizer is None:
        return list(setup.problem.params.values())
    return [p for group in setup.optimizer.param_groups for p in group["params"]]


def usual_weight_decay(optimizer: Optimizer, group: dict[str, Any]) -> float:
    """The weight decay of ordinary use.

    5e-4 for SGD (He et al. 2016 have 1e-4, VGG and most recipes for CIFAR 5e-4); 1e-2 for decoupled decay (torch's
    default of AdamW); 1e-4 where the decay is added to a gradient that is then divided by its own size.
    """
    if isinstance(optimizer, ADDS_DECAY_FIRST) and not group.get("decoupled_weight_decay"):
        return 1e-4
    return 1e-2 if "betas" in group else 5e-4
