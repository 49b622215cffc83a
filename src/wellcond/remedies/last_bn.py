"""`last-bn`: one BatchNorm, before the last linear layer."""

from __future__ import annotations

from dataclasses import replace

from wellcond.nn.last_batchnorm import put_last_batchnorm
from wellcond.remedies.remedy import remedy
from wellcond.remedies.rewired import own_name
from wellcond.remedies.setup import Setup


@remedy("last-bn", "norms", rules=("last-layer-drift", "vanishing-gradient", "exploding-gradient", "saturated-output"))
def last_bn(setup: Setup) -> Setup | None:
    """Puts one BatchNorm before the last linear layer (huang2020): its inputs then neither fade nor explode."""
    names = dict(setup.problem.model.named_modules())
    treated = setup.with_model(lambda model: put_last_batchnorm(model, setup.inputs))
    new = next(name for name, _ in treated.problem.model.named_modules() if name not in names)  # "fc.norm"
    line = f'model = wc.nn.with_last_batchnorm(model, layer="{own_name(new).rpartition(".")[0]}")'
    return replace(treated, model_lines=(*treated.model_lines, line))
