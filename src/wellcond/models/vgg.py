"""The VGG networks for 32×32 images, as zhang2018 modifies them."""

from __future__ import annotations

from collections import OrderedDict
from itertools import count, islice
from typing import Literal, get_args

from torch import nn

from wellcond.models.initialise import conv3x3, default_linear, make_generator

STAGE_WIDTHS = (64, 128, 256, 512, 512)
STAGE_DEPTHS = {11: (1, 1, 2, 2, 2), 13: (2, 2, 2, 2, 2), 16: (2, 2, 3, 3, 3), 19: (2, 2, 4, 4, 4)}
"""Convolutions in each stage; the published depth counts them and three linear layers, of which one is kept."""

Norm = Literal["batch", "none"]


def vgg(
    depth: int = 16,
    classes: int = 10,
    *,
    norm: Norm = "batch",
    affine: bool = False,
    bias: bool = False,
    seed: int | None = None,
) -> nn.Sequential:
    """Build VGG-11, 13, 16 or 19 without its two middle linear layers.

    Five stages of 3×3 convolutions (`convk`, `bnk`, `actk`) with 64, 128, 256, 512 and 512 channels, each ended by a
    2×2 max pooling (`poolk`), then one linear layer (`fc`) on the 512 values that are left. Convolutions have weights
    N(0, 2/(k² C_out)) and zero biases; the linear layer is filled as torch fills its own.

    Args:
        depth: 11, 13, 16 or 19.
        classes: Outputs.
        norm: `"batch"` or `"none"`.
        affine: Whether the batch normalisations have a gain and a shift; zhang2018 trains nothing but the weights.
        bias: Whether all layers have a bias, which a network without norms needs.
        seed: Fixes the weights and leaves the global generator alone; None draws from it.

    Returns:
        The network, (N, 3, 32, 32) → (N, classes).

    Raises:
        ValueError: An unknown depth or norm.

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
    if norm not in get_args(Norm):
        raise ValueError(f"norm must be one of {get_args(Norm)}, not {norm!r}")
    generator = make_generator(seed)
    modules: OrderedDict[str, nn.Module] = OrderedDict()
    inputs, numbers = 3, count(1)
    for stage, (width, depth_of_stage) in enumerate(zip(STAGE_WIDTHS, STAGE_DEPTHS[depth], strict=True), start=1):
        for k in islice(numbers, depth_of_stage):
            modules[f"conv{k}"] = conv3x3(inputs, width, generator, bias=bias)
            if norm == "batch":
                modules[f"bn{k}"] = nn.BatchNorm2d(width, affine=affine)
            modules[f"act{k}"] = nn.ReLU()
            inputs = width
        modules[f"pool{stage}"] = nn.MaxPool2d(2)
    modules["flatten"] = nn.Flatten()
    modules["fc"] = default_linear(inputs, classes, bias, generator)
    return nn.Sequential(modules)
