"""The residual networks for 32×32 images, of depth 6n + 2."""

from __future__ import annotations

from collections import OrderedDict
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional

from wellcond.models.initialise import conv3x3, default_linear, make_generator

STEM_WIDTH = 16
STAGE_WIDTHS = (16, 32, 64)


class Block(nn.Module):
    """Two 3×3 convolutions beside a shortcut without parameters (type A).

    (N, inputs, H, W) → (N, outputs, H/stride, W/stride): where the shape changes, the shortcut keeps every
    second pixel and appends channels of zeros.
    """

    def __init__(self, inputs: int, outputs: int, norm: bool, generator: torch.Generator) -> None:
        super().__init__()
        self.new_channels = outputs - inputs
        self.stride = 1 if inputs == outputs else 2
        self.conv1 = conv3x3(inputs, outputs, generator, stride=self.stride)
        self.bn1 = _norm(outputs, norm)
        self.act1 = nn.ReLU()
        self.conv2 = conv3x3(outputs, outputs, generator)
        self.bn2 = _norm(outputs, norm)
        self.act2 = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        residual = self.bn2(self.conv2(self.act1(self.bn1(self.conv1(x)))))
        shortcut = functional.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, 0, self.new_channels))
        output: Tensor = self.act2(shortcut + residual)
        return output


def resnet(depth: int = 20, classes: int = 10, *, norm: bool = True, seed: int | None = None) -> nn.Sequential:
    """Build a residual network for CIFAR.

    A 3×3 convolution, three stages of n blocks with 16, 32 and 64 channels, a global average and a linear layer.
    Convolutions have no bias and weights N(0, 2/(k² C_out)); the linear layer is filled as torch fills its own.

    Args:
        depth: Weighted layers, 6n + 2 (20, 56, 110, 1202).
        classes: Outputs.
        norm: False leaves every batch normalisation out.
        seed: Fixes the weights and leaves the global generator alone; None draws from it.

    Returns:
        The network, (N, 3, H, W) → (N, classes).

    Raises:
        ValueError: depth is not 6n + 2.

    Example:
        >>> resnet(20, seed=0)(torch.zeros(2, 3, 32, 32)).shape
        torch.Size([2, 10])
    """
    blocks, rest = divmod(depth - 2, 6)
    if rest or blocks < 1:
        nearest = [6 * n + 2 for n in (blocks, blocks + 1) if n >= 1] or [8]
        raise ValueError(f"depth must be 6n + 2 with n ≥ 1, not {depth}; nearest: {' or '.join(map(str, nearest))}")
    generator = make_generator(seed)
    modules: OrderedDict[str, nn.Module] = OrderedDict(
        conv=conv3x3(3, STEM_WIDTH, generator), bn=_norm(STEM_WIDTH, norm), act=nn.ReLU()
    )
    for k, (inputs, outputs) in enumerate(pairwise((STEM_WIDTH, *STAGE_WIDTHS)), start=1):
        widths = [inputs] + [outputs] * blocks
        stage = {f"block{b}": Block(*pair, norm, generator) for b, pair in enumerate(pairwise(widths), start=1)}
        modules[f"stage{k}"] = nn.Sequential(OrderedDict(stage))
    modules |= {"pool": nn.AdaptiveAvgPool2d(1), "flatten": nn.Flatten()}
    modules["fc"] = default_linear(STAGE_WIDTHS[-1], classes, True, generator)
    return nn.Sequential(modules)


def _norm(channels: int, norm: bool) -> nn.Module:
    return nn.BatchNorm2d(channels) if norm else nn.Identity()
