"""PreAct-ResNet-18 for 32×32 images."""

from __future__ import annotations

from collections import OrderedDict
from itertools import pairwise

from torch import Tensor, nn

from wellcond_papers.models.layers import Init, Layers, Norm
from wellcond_papers.models.resnet import head


class WidePreBlock(nn.Module):
    """Norm, ReLU and 3×3 convolution, twice; where the shape changes, a 1×1 convolution is the shortcut.

    That convolution starts after the first ReLU; an identity shortcut starts from the block's input.
    """

    def __init__(self, inputs: int, outputs: int, layers: Layers) -> None:
        super().__init__()
        stride = 1 if inputs == outputs else 2
        self.bn1 = layers.norm2d(inputs)
        self.act1 = nn.ReLU()
        self.conv1 = layers.conv(inputs, outputs, stride=stride)
        self.bn2 = layers.norm2d(outputs)
        self.act2 = nn.ReLU()
        self.conv2 = layers.conv(outputs, outputs)
        self.shortcut = None if inputs == outputs else layers.conv(inputs, outputs, 1, stride=stride, padding=0)

    def forward(self, x: Tensor) -> Tensor:
        y = self.act1(self.bn1(x))
        shortcut = x if self.shortcut is None else self.shortcut(y)
        output: Tensor = shortcut + self.conv2(self.act2(self.bn2(self.conv1(y))))
        return output


def preact_resnet18(
    classes: int = 10, *, norm: Norm = "batch", width: int = 64, init: Init = "default", seed: int | None = None
) -> nn.Sequential:
    """Build PreAct-ResNet-18 for CIFAR, in the form whose training settings wei2019 uses.

    A 3×3 convolution, four stages of two blocks with 64, 128, 256 and 512 channels, a global average and a linear
    layer. There is no norm after the last block. Norms are named `bn`, whatever their kind.

    Args:
        classes: Outputs.
        norm: "none", "batch", "layer", "group" or a factory, channels → module.
        width: Channels of the first stage.
        init: How weights are drawn, as in `mlp`.
        seed: Fixes the weights and leaves the global generator alone; None draws from it.

    Returns:
        The network, (N, 3, H, W) → (N, classes).

    Raises:
        ValueError: An unknown norm or init.

    Example:
        >>> sum(p.numel() for p in preact_resnet18(seed=0).parameters())
        11171146
    """
    layers = Layers(norm, init, seed)
    modules: OrderedDict[str, nn.Module] = OrderedDict(conv=layers.conv(3, width))
    for k, (inputs, outputs) in enumerate(pairwise((width, width, 2 * width, 4 * width, 8 * width)), start=1):
        blocks = WidePreBlock(inputs, outputs, layers), WidePreBlock(outputs, outputs, layers)
        modules[f"stage{k}"] = nn.Sequential(OrderedDict(zip(("block1", "block2"), blocks, strict=True)))
    modules |= head(8 * width, classes, layers)
    return nn.Sequential(modules)
