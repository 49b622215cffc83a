"""A norm after every hidden layer, in a model without norms."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

import torch
from torch import nn

from wellcond.errors import Unsupported
from wellcond.network.calling import call
from wellcond.network.forward_pass import read_forward_pass
from wellcond.network.isolation.arithmetic import own_arithmetic
from wellcond.network.isolation.copies import copied
from wellcond.network.layers import ConvRule, LinearRule, is_affine, rule_for, weighted_layers
from wellcond.network.taps import tapped
from wellcond.nn.replace import NORMS, exchanged

HAS_NORMS = "{model} has norms already: {name!r} is a {kind}."
BATCH_NORMS: dict[int, type[nn.Module]] = {1: nn.BatchNorm1d, 2: nn.BatchNorm2d, 3: nn.BatchNorm3d}
"""By the number of spatial dimensions."""


@torch.inference_mode(False)  # tensors created in inference mode cannot be trained
@own_arithmetic()
def with_norms(model: nn.Module, inputs: Any, kind: Literal["batch", "layer"] = "batch") -> nn.Module:
    """Return a copy of the model with a norm directly after every linear and convolutional layer but the last ones.

    Args:
        model: The model, which is not changed. It must have no norms.
        inputs: Example inputs of the model: a tensor, a tuple or a dict.
        kind: `"batch"`: BatchNorm over examples and positions; `"layer"`: LayerNorm over features, and for
            convolutions GroupNorm with one group.

    Returns:
        The new model. A layer `fc` becomes the pair `fc.0`, the layer, and `fc.1`, the norm.

    Raises:
        Unsupported: The model has norms, or no hidden layer, or it cannot be run or copied.

    Example:
        >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
        >>> with_norms(model, torch.zeros(2, 4))[0]
        Sequential(
          (0): Linear(in_features=4, out_features=8, bias=True)
          (1): BatchNorm1d(8, eps=1e-05, momentum=0.1, affine=True, bias=True, track_running_stats=True)
        )
    """
    return normalized(copied(model), inputs, kind)


def normalized(model: nn.Module, inputs: Any, kind: Literal["batch", "layer"]) -> nn.Module:
    """The model itself, not a copy, with norms as in `with_norms`."""
    for name, module in model.named_modules():
        if isinstance(module, NORMS) or "Norm" in type(module).__name__:
            raise Unsupported(HAS_NORMS.format(model=type(model).__name__, name=name, kind=type(module).__name__))
    layers = {name: module for name, module in weighted_layers(model).items() if is_affine(module)}
    trial = copied(model)
    last = set(read_forward_pass(trial, inputs, training=False).last_layers(is_affine))
    shapes = _output_shapes(trial, inputs, layers)
    new = {
        module: nn.Sequential(module, _norm(module, shapes[name], kind)).train(module.training)
        for name, module in layers.items()
        if name not in last and name in shapes
    }
    if not new:
        raise Unsupported(f"{type(model).__name__} has no hidden linear or convolutional layer to put a norm after.")
    return exchanged(model, new)


def _output_shapes(model: nn.Module, inputs: Any, names: Iterable[str]) -> dict[str, torch.Size]:
    """Output shapes of the layers that a forward pass calls."""
    shapes: dict[str, torch.Size] = {}
    modules = {name: model.get_submodule(name) for name in names}

    def note(name: str, _module: nn.Module, _x: Any, output: Any) -> None:
        shapes[name] = output.shape

    with torch.no_grad(), tapped(modules, note):
        call(model, inputs)
    return shapes


def _norm(layer: Any, shape: torch.Size, kind: str) -> nn.Module:
    place = {"device": layer.weight.device, "dtype": layer.weight.dtype}
    rule = rule_for(layer)
    if isinstance(rule, ConvRule):
        if kind == "layer":
            return nn.GroupNorm(1, shape[1], **place)
        return BATCH_NORMS[len(shape) - 2](shape[1], **place)
    assert isinstance(rule, LinearRule)
    is_batch = kind == "batch" and len(shape) == 2
    return nn.BatchNorm1d(shape[-1], **place) if is_batch else nn.LayerNorm(shape[-1], **place)
