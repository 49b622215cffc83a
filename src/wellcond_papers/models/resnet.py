"""The residual networks for 32×32 images, of depth 6n + 2, with and without shortcuts."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from itertools import pairwise

from torch import Tensor, nn
from torch.nn import functional

from wellcond_papers.models.layers import Init, Layers, Norm

MakeBlock = Callable[[int, int], nn.Module]
"""A block from its number of input and output channels; where these differ, it halves the image."""


class Block(nn.Module):
    """Two 3×3 convolutions with a shortcut without parameters (type A).

    (N, inputs, H, W) → (N, outputs, H/stride, W/stride): where the shape changes, the shortcut keeps every
    second pixel and appends channels of zeros.
    """

    def __init__(self, inputs: int, outputs: int, layers: Layers, shortcut: bool = True) -> None:
        super().__init__()
        self.shortcut = ZeroPaddedShortcut(inputs, outputs) if shortcut else None
        self.conv1 = layers.conv(inputs, outputs, stride=1 if inputs == outputs else 2)
        self.bn1 = layers.norm2d(outputs)
        self.act1 = nn.ReLU()
        self.conv2 = layers.conv(outputs, outputs)
        self.bn2 = layers.norm2d(outputs)
        self.act2 = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        y = self.bn2(self.conv2(self.act1(self.bn1(self.conv1(x)))))
        output: Tensor = self.act2(y if self.shortcut is None else self.shortcut(x) + y)
        return output


class ZeroPaddedShortcut(nn.Module):
    """Every second pixel and new channels of zeros where the number of channels grows; else the identity."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.new_channels = outputs - inputs

    def forward(self, x: Tensor) -> Tensor:
        if self.new_channels == 0:
            return x
        return functional.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, 0, self.new_channels))


def resnet(
    depth: int = 20,
    classes: int = 10,
    *,
    norm: Norm | bool = "batch",
    shortcuts: bool = True,
    last_norm: bool = False,
    width: int = 16,
    init: Init | None = None,
    seed: int | None = None,
) -> nn.Sequential:
    """Build a residual network for CIFAR.

    A 3×3 convolution, three stages of n blocks with 16, 32 and 64 channels, a global average and a linear layer.
    Convolutions have no bias. Norms are named `bn`, whatever their kind.

    Args:
        depth: Weighted layers, 6n + 2 (20, 56, 110, 1202).
        classes: Outputs.
        norm: "none", "batch", "layer", "group" or a factory, channels → module. True and False are "batch" and "none".
        shortcuts: False leaves them out; what is left is huang2020's "VGG-style" network.
        last_norm: Whether an affine batch normalization `last_bn` stands before the linear layer: huang2020's LastBN.
        width: Channels of the first stage.
        init: How weights are drawn, as in `mlp`; None for convolutions N(0, 2/(k² C_out)) and a linear layer as torch
            fills its own.
        seed: Fixes the weights and leaves the global generator alone; None draws from it.

    Returns:
        The network, (N, 3, H, W) → (N, classes).

    Raises:
        ValueError: depth is not 6n + 2, or an unknown norm or init.

    Example:
        >>> import torch
        >>> resnet(20, seed=0)(torch.zeros(2, 3, 32, 32)).shape
        torch.Size([2, 10])
    """
    blocks = blocks_per_stage(depth)
    layers = Layers(norm if not isinstance(norm, bool) else "batch" if norm else "none", init, seed)
    modules: OrderedDict[str, nn.Module] = OrderedDict(
        conv=layers.conv(3, width), bn=layers.norm2d(width), act=nn.ReLU()
    )
    modules |= stages(width, blocks, lambda inputs, outputs: Block(inputs, outputs, layers, shortcuts))
    modules |= head(4 * width, classes, layers, last_norm)
    return nn.Sequential(modules)


def blocks_per_stage(depth: int) -> int:
    """The n of depth 6n + 2; any other depth is refused."""
    blocks, rest = divmod(depth - 2, 6)
    if rest or blocks < 1:
        nearest = [6 * n + 2 for n in (blocks, blocks + 1) if n >= 1] or [8]
        raise ValueError(f"depth must be 6n + 2 with n ≥ 1, not {depth}; nearest: {' or '.join(map(str, nearest))}")
    return blocks


def stages(width: int, blocks: int, make: MakeBlock) -> dict[str, nn.Module]:
    """Three stages of `blocks` blocks each, with width, 2 · width and 4 · width channels."""
    modules: dict[str, nn.Module] = {}
    for k, (inputs, outputs) in enumerate(pairwise((width, width, 2 * width, 4 * width)), start=1):
        widths = [inputs] + [outputs] * blocks
        stage = {f"block{b}": make(*pair) for b, pair in enumerate(pairwise(widths), start=1)}
        modules[f"stage{k}"] = nn.Sequential(OrderedDict(stage))
    return modules


def head(
    features: int, classes: int, layers: Layers, last_norm: bool = False, dropout: float = 0.0
) -> dict[str, nn.Module]:
    """A global average, dropout and LastBN if asked for, and the linear layer."""
    modules: dict[str, nn.Module] = {"pool": nn.AdaptiveAvgPool2d(1), "flatten": nn.Flatten()}
    if dropout:
        modules["dropout"] = nn.Dropout(dropout)
    if last_norm:
        modules["last_bn"] = nn.BatchNorm1d(features)
    return modules | {"fc": layers.linear(features, classes)}
