"""`scale-amended`: SGD with every layer's gradient on the scale of its own local Hessian."""

from __future__ import annotations

import warnings
from typing import Any

from torch.optim import SGD

from wellcond.errors import Unsupported
from wellcond.optim.scale_amended import ScaleAmendedSGD
from wellcond.remedies.remedy import remedy
from wellcond.remedies.setup import Setup
from wellcond.training.optimizers import is_adaptive

NEEDS_SGD = "it is for SGD with one parameter group, and the optimizer is {optimizer}."


@remedy("scale-amended", "optimizer", rules=("vanishing-gradient", "exploding-gradient"))
def scale_amended(setup: Setup) -> Setup | None:
    """Uses SGD with every layer's gradient on the scale of its own local Hessian (zhang2018), in a chain of layers."""
    if setup.optimizer is not None and is_adaptive(setup.optimizer):
        return None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of layers without a norm: the user did not ask for it, and a run will show
        optimizer = ScaleAmendedSGD(setup.problem.model, 0.1, **_settings(setup), inputs=setup.inputs)
    return setup.with_optimizer(optimizer)


def _settings(setup: Setup) -> dict[str, Any]:
    """Settings that SGD and ScaleAmendedSGD share, where they are not the default."""
    if setup.optimizer is None:
        return {"momentum": setup.momentum} if setup.momentum else {}
    name, groups = type(setup.optimizer).__name__, setup.optimizer.param_groups
    if len(groups) > 1:
        raise Unsupported(NEEDS_SGD.format(optimizer=f"{name} with {len(groups)} groups"))
    if type(setup.optimizer) is not SGD:
        raise Unsupported(NEEDS_SGD.format(optimizer=name))
    if others := [key for key in ("dampening", "maximize") if groups[0][key]]:
        raise Unsupported(NEEDS_SGD.format(optimizer=f"{name} with {' and '.join(others)}"))
    return {key: groups[0][key] for key in ("momentum", "nesterov", "weight_decay") if groups[0][key]}
