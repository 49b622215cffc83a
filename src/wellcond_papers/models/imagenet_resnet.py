"""ResNet-18 and ResNet-50 for ImageNet."""

from __future__ import annotations

from collections import OrderedDict

from torch import Tensor, nn

from wellcond_papers.models.layers import Init, Layers, Norm
from wellcond_papers.models.resnet import head

STAGE_DEPTHS = {18: (2, 2, 2, 2), 50: (3, 4, 6, 3)}
"""Blocks in each stage."""
EXPANSION = 4
"""How many times wider a bottleneck's output is than its middle."""


class ProjectedBlock(nn.Module):
    """Convolutions with a norm each, with an identity, or a 1×1 convolution with a norm where the shape changes."""

    def __init__(self, convolutions: list[nn.Conv2d], layers: Layers) -> None:
        super().__init__()
        steps: OrderedDict[str, nn.Module] = OrderedDict()
        for k, conv in enumerate(convolutions, start=1):
            if k > 1:
                steps[f"act{k - 1}"] = nn.ReLU()
            steps[f"conv{k}"], steps[f"bn{k}"] = conv, layers.norm2d(conv.out_channels)
        self.residual = nn.Sequential(steps)
        inputs, outputs = convolutions[0].in_channels, convolutions[-1].out_channels
        stride = max(conv.stride[0] for conv in convolutions)
        self.shortcut: nn.Module = nn.Identity()
        if stride > 1 or inputs != outputs:
            projection = layers.conv(inputs, outputs, 1, stride=stride, padding=0)
            self.shortcut = nn.Sequential(OrderedDict(conv=projection, bn=layers.norm2d(outputs)))
        self.act = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.act(self.shortcut(x) + self.residual(x))
        return output


def imagenet_resnet(
    depth: int = 18,
    classes: int = 1000,
    *,
    norm: Norm = "batch",
    last_norm: bool = False,
    dropout: float = 0.0,
    width: int = 64,
    enlarge: int | None = None,
    init: Init | None = None,
    seed: int | None = None,
) -> nn.Sequential:
    """Build ResNet-18 or ResNet-50 for 224×224 images.

    A 7×7 convolution and a 3×3 max pooling, both of stride 2, four stages of 64 to 512 channels (256 to 2048 after
    bottlenecks), a global average and a linear layer. In a bottleneck the 3×3 convolution has the stride, as in
    torch's own. Norms are named `bn`, whatever their kind.

    Args:
        depth: 18 (two 3×3 convolutions per block) or 50 (1×1, 3×3, 1×1).
        classes: Outputs.
        norm: "none", "batch", "layer", "group" or a factory, channels → module.
        last_norm: Whether an affine batch normalization `last_bn` stands before the linear layer: huang2020's LastBN.
        dropout: The probability that a feature is dropped before `last_bn` and the linear layer.
        width: Channels of the first stage.
        enlarge: Height and width that images are brought to first, by bilinear interpolation; None takes them as they
            are.
        init: How weights are drawn, as in `mlp`; None for convolutions N(0, 2/(k² C_out)) and a linear layer as torch
            fills its own.
        seed: Fixes the weights and leaves the global generator alone; None draws from it.

    Returns:
        The network, (N, 3, H, W) → (N, classes).

    Raises:
        ValueError: An unknown depth, norm or init.

    Example:
        >>> sum(p.numel() for p in imagenet_resnet(18, seed=0).parameters())
        11689512
    """
    if depth not in STAGE_DEPTHS:
        raise ValueError(f"depth must be one of {', '.join(map(str, STAGE_DEPTHS))}, not {depth}")
    layers = Layers(norm, init, seed)
    modules: OrderedDict[str, nn.Module] = OrderedDict()
    if enlarge is not None:
        modules["enlarge"] = nn.Upsample((enlarge, enlarge), mode="bilinear")
    modules["conv"], modules["bn"] = layers.conv(3, width, 7, stride=2, padding=3), layers.norm2d(width)
    modules["act"] = nn.ReLU()
    modules["maxpool"] = nn.MaxPool2d(3, stride=2, padding=1)
    channels = width
    for k, blocks in enumerate(STAGE_DEPTHS[depth]):
        middle = width * 2**k
        stage: OrderedDict[str, nn.Module] = OrderedDict()
        for b in range(1, blocks + 1):
            stride = 2 if b == 1 and k > 0 else 1
            make = _basic if depth == 18 else _bottleneck
            stage[f"block{b}"] = ProjectedBlock(make(channels, middle, stride, layers), layers)
            channels = middle if depth == 18 else EXPANSION * middle
        modules[f"stage{k + 1}"] = nn.Sequential(stage)
    modules |= head(channels, classes, layers, last_norm, dropout)
    return nn.Sequential(modules)


def _basic(inputs: int, middle: int, stride: int, layers: Layers) -> list[nn.Conv2d]:
    return [layers.conv(inputs, middle, stride=stride), layers.conv(middle, middle)]


def _bottleneck(inputs: int, middle: int, stride: int, layers: Layers) -> list[nn.Conv2d]:
    return [
        layers.conv(inputs, middle, 1, padding=0),
        layers.conv(middle, middle, stride=stride),
        layers.conv(middle, EXPANSION * middle, 1, padding=0),
    ]
