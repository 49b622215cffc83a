"""The VGG networks for 32×32 images, without their two middle linear layers."""

from __future__ import annotations

from collections import OrderedDict
from itertools import count, islice

from torch import nn

from wellcond_papers.models.layers import Init, Layers, Norm

STAGE_WIDTHS = (1, 2, 4, 8, 8)
"""Channels of each stage, in multiples of the first."""
STAGE_DEPTHS = {11: (1, 1, 2, 2, 2), 13: (2, 2, 2, 2, 2), 16: (2, 2, 3, 3, 3), 19: (2, 2, 4, 4, 4)}
"""Convolutions in each stage; the published depth counts them and three linear layers, of which one is kept."""


def vgg(
    depth: int = 16,
    classes: int = 10,
    *,
    norm: Norm = "batch",
    affine: bool = False,
    bias: bool = False,
    width: int = 64,
    init: Init | None = None,
    seed: int | None = None,
) -> nn.Sequential:
    """Build VGG-11, 13, 16 or 19 with one linear layer.

    Five stages of 3×3 convolutions (`convk`, `bnk`, `actk`) with 64, 128, 256, 512 and 512 channels, each ended by a
    2×2 max pooling (`poolk`), then one linear layer (`fc`) on the 512 values that are left. As it stands it is
    zhang2018's, which trains nothing but the weights; with `affine=True, bias=True` it is the usual one.

    Args:
        depth: 11, 13, 16 or 19.
        classes: Outputs.
        norm: "none", "batch", "layer", "group" or a factory, channels → module.
        affine: Whether norms made by name have a gain and a shift.
        bias: Whether all layers have a bias, which a network without norms needs.
        width: Channels of the first stage.
        init: How weights are drawn, as in `mlp`; None for convolutions N(0, 2/(k² C_out)) with zero biases, and a
            linear layer as torch fills its own.
        seed: Fixes the weights and leaves the global generator alone; None draws from it.

    Returns:
        The network, (N, 3, 32, 32) → (N, classes).

    Raises:
        ValueError: An unknown depth, norm or init.

    Example:
        >>> import torch
        >>> model = vgg(11, seed=0)
        >>> model(torch.zeros(2, 3, 32, 32)).shape
        torch.Size([2, 10])
        >>> [name for name, _ in model.named_parameters()][-2:]
        ['conv8.weight', 'fc.weight']
    """
    if depth not in STAGE_DEPTHS:
        raise ValueError(f"depth must be one of {', '.join(map(str, STAGE_DEPTHS))}, not {depth}")
    layers = Layers(norm, init, seed)
    modules: OrderedDict[str, nn.Module] = OrderedDict()
    inputs, numbers = 3, count(1)
    for stage, (factor, convolutions) in enumerate(zip(STAGE_WIDTHS, STAGE_DEPTHS[depth], strict=True), start=1):
        for k in islice(numbers, convolutions):
            outputs = factor * width
            modules[f"conv{k}"] = layers.conv(inputs, outputs, bias=bias)
            modules |= layers.after(k, layers.norm2d(outputs, affine), nn.ReLU(), post_activation=False)
            inputs = outputs
        modules[f"pool{stage}"] = nn.MaxPool2d(2)
    modules["flatten"] = nn.Flatten()
    modules["fc"] = layers.linear(inputs, classes, bias)
    return nn.Sequential(modules)
