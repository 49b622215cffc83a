"""`unfreeze`: all parameters are trained."""

from __future__ import annotations

from torch import nn

from wellcond.remedies.optimizer_settings import held_parameters
from wellcond.remedies.remedy import remedy
from wellcond.remedies.setup import Setup


@remedy("unfreeze", "parameters", rules=("no-gradient",))
def unfreeze(setup: Setup) -> Setup | None:
    """Trains all floating-point parameters: frozen ones, and those that the optimizer does not hold."""
    parameters = [p for p in setup.problem.model.parameters() if p.is_floating_point()]
    held = set(parameters if setup.optimizer is None else held_parameters(setup))
    are_all_held = held.issuperset(parameters)
    if are_all_held and all(p.requires_grad for p in parameters):
        return None

    def change(model: nn.Module) -> nn.Module:
        for p in model.parameters():
            p.requires_grad_(p.is_floating_point())
        return model

    is_frozen = not all(p.requires_grad for p in parameters)
    lines = ["model.requires_grad_()"] if is_frozen else []
    treated = setup.with_model(change, *lines, is_new=not are_all_held)
    if treated.optimizer is not None:
        missing = set(treated.problem.model.parameters()).difference(held_parameters(treated))
        first = treated.optimizer.param_groups[0]["params"]
        first += [p for p in treated.problem.model.parameters() if p in missing and p.is_floating_point()]
    return treated
