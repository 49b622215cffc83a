"""`zero-biases`: biases of linear and convolutional layers start at zero."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from wellcond.remedies.drawn_weights import affine_layers, with_weights
from wellcond.remedies.remedy import remedy
from wellcond.remedies.setup import Setup

LARGEST_BIAS = 1.0
"""Torch draws biases between ±1/√fan_in, so none starts above it."""
LINES = """\
for module in model.modules():
    if isinstance(module, (nn.Linear, nn.modules.conv._ConvNd)) and module.bias is not None:
        if module.weight.requires_grad:
            nn.init.zeros_(module.bias)"""


@remedy("zero-biases", "biases", rules=("bad-initialisation",))
def zero_biases(setup: Setup) -> Setup | None:
    """Sets the biases of linear and convolutional layers to zero, if one of them is above 1.

    A bias that outweighs what a unit makes of its inputs keeps the unit on one side of its activation for all examples.
    """

    def biases(model: nn.Module) -> list[Any]:
        layers = affine_layers(model).values()
        return [layer.bias for layer in layers if isinstance(layer._parameters.get("bias"), Tensor)]

    def zero(model: nn.Module) -> None:
        for bias in biases(model):
            nn.init.zeros_(bias)

    is_large = any(bool((bias.abs() > LARGEST_BIAS).any()) for bias in biases(setup.problem.model))
    return with_weights(setup, zero, LINES) if is_large else None
