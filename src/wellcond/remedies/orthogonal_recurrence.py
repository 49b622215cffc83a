"""`orthogonal-recurrence`: recurrent weights that keep the length of a state."""

from __future__ import annotations

from collections import Counter

import torch
from torch import nn

from wellcond.network.isolation.copies import copied
from wellcond.network.recording import record
from wellcond.remedies.drawn_weights import with_weights
from wellcond.remedies.remedy import remedy
from wellcond.remedies.rewired import own_name
from wellcond.remedies.setup import Setup


@remedy("orthogonal-recurrence", "recurrence", rules=("exploding-gradient", "vanishing-gradient"))
def orthogonal_recurrence(setup: Setup) -> Setup | None:
    """Draws recurrent weights orthogonal, those of each gate by themselves (Saxe et al. 2014; Le et al. 2015).

    A state is multiplied by the recurrent weight at every step, and so is a gradient: after T steps a singular value s
    has become s to the power of T, and only 1 neither explodes nor vanishes.
    """
    names = [*_of_modules(setup.problem.model), *_of_loops(setup)]
    if not names or setup.problem.dtype in (torch.float16, torch.bfloat16):  # for which torch has no QR decomposition
        return None

    def draw(model: nn.Module) -> None:
        for name in names:
            weight = model.get_parameter(name)
            for gate in torch.split(weight, weight.shape[1]):
                nn.init.orthogonal_(gate)

    listed = ", ".join(f'"{own_name(name)}"' for name in names)
    lines = f"""\
for weight in map(model.get_parameter, [{listed}]):
    for gate in weight.data.split(weight.shape[1]):
        nn.init.orthogonal_(gate)"""
    return with_weights(setup, draw, lines)


def _of_modules(model: nn.Module) -> list[str]:
    """Recurrent weights of torch's layers and cells."""
    kinds = (nn.RNNBase, nn.RNNCellBase)
    layers = [(name, module) for name, module in model.named_modules() if isinstance(module, kinds)]
    return [
        f"{name}.{own}".lstrip(".")
        for name, layer in layers
        for own, p in layer.named_parameters(recurse=False)
        if own.startswith("weight_hh") and p.requires_grad
    ]


def _of_loops(setup: Setup) -> list[str]:
    """Square weights of linear layers that one pass calls several times."""
    recording = record(copied(setup.problem.model), setup.inputs, lambda module: isinstance(module, nn.Linear))
    calls = Counter(call.name for call in recording.calls if call.module is not None)
    names = [f"{name}.weight" for name, count in calls.items() if count > 1]
    shapes = {name: setup.problem.model.get_parameter(name).shape for name in names}
    return [name for name, shape in shapes.items() if shape[0] == shape[1]]
