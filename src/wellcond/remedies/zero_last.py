"""`zero-last`: the last layer starts at zero."""

from __future__ import annotations

from torch import nn

from wellcond.remedies.drawn_weights import affine_layers, last_layers, with_weights
from wellcond.remedies.remedy import remedy
from wellcond.remedies.rewired import own_name
from wellcond.remedies.setup import Setup


@remedy("zero-last", "last weights", rules=("bad-initialisation", "saturated-output", "last-layer-drift"))
def zero_last(setup: Setup) -> Setup | None:
    """Sets the weights and biases of the last layer to zero.

    The first outputs are then the same for all inputs: the loss starts at log C, not at that of confident wrong
    answers. The layer's gradient is not zero, since its inputs are not, so it learns from the first step on. A layer
    that shares its weight with another one, as with an embedding, is left as it is: both would be zero.
    """
    last = [name for name in last_layers(setup) if own_name(name)]
    if not last or not set(last) <= affine_layers(setup.problem.model).keys():
        return None
    if any(_is_shared(setup.problem.model, name) for name in last):
        return None

    def zero(model: nn.Module) -> None:
        for name in last:
            for p in model.get_submodule(name).parameters():
                nn.init.zeros_(p)

    lines = [f'for p in model.get_submodule("{own_name(name)}").parameters():\n    nn.init.zeros_(p)' for name in last]
    return with_weights(setup, zero, *lines)


def _is_shared(model: nn.Module, name: str) -> bool:
    """Whether another module holds a parameter of a layer."""
    layer = model.get_submodule(name)
    own = {id(p) for p in layer.parameters()}
    others = (module for module in model.modules() if module not in set(layer.modules()))
    return any(id(p) in own for module in others for p in module.parameters(recurse=False))
