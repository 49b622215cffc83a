"""Multilayer perceptrons of any depth and width."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from itertools import pairwise

from torch import nn

from wellcond_papers.models.layers import Init, Layers, Norm


def mlp(
    sizes: Sequence[int],
    *,
    norm: Norm = "none",
    activation: Callable[[], nn.Module] = nn.ReLU,
    init: Init = "lecun",
    bias: bool = True,
    post_activation: bool = False,
    seed: int | None = None,
) -> nn.Sequential:
    """Build a multilayer perceptron.

    Hidden layer k consists of `fck`, the norm (`bnk`, `lnk`, `gnk`, or `normk` from a factory) and `actk`; the last
    layer is `fcL` alone. Inputs of any shape (N, ...) are flattened.

    Args:
        sizes: Units of every layer, input and output included.
        norm: "none", "batch", "layer", "group" or a factory, channels → module.
        activation: Makes the activations.
        init: How weights and biases are drawn, by name or from `wellcond_papers.models.initialize`:

            - `"lecun"`: weights N(0, 1/fan_in), biases 0
            - `"he"`: weights N(0, 2/fan_in), biases 0
            - `"glorot"`: weights U(−a, a) with a = √(6/(fan_in + fan_out)), biases 0
            - `"default"`: as torch does it, both U(−a, a) with a = 1/√fan_in
        bias: Whether the linear layers have one.
        post_activation: Whether the norm comes after the activation instead of before it.
        seed: Fixes the weights and leaves the global generator alone; None draws from it.

    Returns:
        The network, (N, sizes[0]) → (N, sizes[-1]).

    Raises:
        ValueError: Fewer than two sizes, or an unknown norm or init.

    Example:
        >>> import torch
        >>> model = mlp([64, 24, 10], norm="batch", seed=0)
        >>> [name for name, _ in model.named_children()]
        ['flatten', 'fc1', 'bn1', 'act1', 'fc2']
        >>> model(torch.zeros(5, 1, 8, 8)).shape
        torch.Size([5, 10])
    """
    if len(sizes) < 2 or min(sizes) < 1:
        raise ValueError(f"sizes must be the input, any hidden and the output size, all positive, not {sizes}")
    layers = Layers(norm, init, seed)
    modules: OrderedDict[str, nn.Module] = OrderedDict(flatten=nn.Flatten())
    for k, (inputs, outputs) in enumerate(pairwise(sizes), start=1):
        modules[f"fc{k}"] = layers.linear(inputs, outputs, bias)
        if k < len(sizes) - 1:
            modules |= layers.after(k, layers.norm1d(outputs), activation(), post_activation)
    return nn.Sequential(modules)
