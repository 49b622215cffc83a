"""Multilayer perceptrons of any depth and width."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Literal, get_args

import torch
from torch import nn

from wellcond.models.initialise import default_linear, empty_linear, fill_normal, fill_uniform, make_generator

Norm = Literal["none", "batch", "layer"]
Init = Literal["lecun", "he", "glorot", "default"]


def mlp(
    sizes: Sequence[int],
    *,
    norm: Norm = "none",
    activation: Callable[[], nn.Module] = nn.ReLU,
    init: Init = "lecun",
    bias: bool = True,
    seed: int | None = None,
) -> nn.Sequential:
    """Build a multilayer perceptron.

    Hidden layer k consists of `fck`, the norm (`bnk` or `lnk`) and `actk`; the last layer is `fcL` alone. Inputs of any
    shape (N, ...) are flattened.

    Args:
        sizes: Units of every layer, input and output included.
        norm: Before each hidden activation.
        activation: Makes the activations.
        init: How weights and biases are drawn:

            - `"lecun"`: weights N(0, 1/fan_in), biases 0
            - `"he"`: weights N(0, 2/fan_in), biases 0
            - `"glorot"`: weights U(−a, a) with a = √(6/(fan_in + fan_out)), biases 0
            - `"default"`: as torch does it, both U(−a, a) with a = 1/√fan_in
        bias: Whether the linear layers have one.
        seed: Fixes the weights and leaves the global generator alone; None draws from it.

    Returns:
        The network, (N, sizes[0]) → (N, sizes[-1]).

    Raises:
        ValueError: Fewer than two sizes, or an unknown norm or init.

    Example:
        >>> model = mlp([64, 24, 10], norm="batch", seed=0)
        >>> [name for name, _ in model.named_children()]
        ['flatten', 'fc1', 'bn1', 'act1', 'fc2']
        >>> model(torch.zeros(5, 1, 8, 8)).shape
        torch.Size([5, 10])
    """
    if len(sizes) < 2 or min(sizes) < 1:
        raise ValueError(f"sizes must be the input, any hidden and the output size, all positive, not {sizes}")
    if norm not in get_args(Norm):
        raise ValueError(f"norm must be one of {get_args(Norm)}, not {norm!r}")
    if init not in get_args(Init):
        raise ValueError(f"init must be one of {get_args(Init)}, not {init!r}")
    generator = make_generator(seed)
    modules: OrderedDict[str, nn.Module] = OrderedDict(flatten=nn.Flatten())
    for k, (inputs, outputs) in enumerate(pairwise(sizes), start=1):
        modules[f"fc{k}"] = _linear(inputs, outputs, bias, init, generator)
        if k == len(sizes) - 1:
            break
        if norm == "batch":
            modules[f"bn{k}"] = nn.BatchNorm1d(outputs)
        elif norm == "layer":
            modules[f"ln{k}"] = nn.LayerNorm(outputs)
        modules[f"act{k}"] = activation()
    return nn.Sequential(modules)


def _linear(inputs: int, outputs: int, bias: bool, init: Init, generator: torch.Generator) -> nn.Linear:
    if init == "default":
        return default_linear(inputs, outputs, bias, generator)
    layer = empty_linear(inputs, outputs, bias)
    if init == "glorot":
        fill_uniform(layer.weight, (6 / (inputs + outputs)) ** 0.5, generator)
    else:
        fill_normal(layer.weight, {"lecun": 1, "he": 2}[init] / inputs, generator)
    if bias:
        nn.init.zeros_(layer.bias)
    return layer
