"""The residual networks whose norms and activations come before the convolutions, for 32×32 images."""

from __future__ import annotations

from collections import OrderedDict

from torch import Tensor, nn

from wellcond_papers.models.layers import Init, Layers, Norm
from wellcond_papers.models.resnet import ZeroPaddedShortcut, blocks_per_stage, head, stages


class PreBlock(nn.Module):
    """Norm, ReLU and 3×3 convolution, twice, with a shortcut without parameters (type A); no ReLU after the sum."""

    def __init__(self, inputs: int, outputs: int, layers: Layers) -> None:
        super().__init__()
        self.shortcut = ZeroPaddedShortcut(inputs, outputs)
        self.bn1 = layers.norm2d(inputs)
        self.act1 = nn.ReLU()
        self.conv1 = layers.conv(inputs, outputs, stride=1 if inputs == outputs else 2)
        self.bn2 = layers.norm2d(outputs)
        self.act2 = nn.ReLU()
        self.conv2 = layers.conv(outputs, outputs)

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.shortcut(x) + self.conv2(self.act2(self.bn2(self.conv1(self.act1(self.bn1(x))))))
        return output


def preresnet(
    depth: int = 20,
    classes: int = 10,
    *,
    norm: Norm = "batch",
    final_norm: bool = True,
    last_norm: bool = False,
    width: int = 16,
    init: Init | None = None,
    seed: int | None = None,
) -> nn.Sequential:
    """Build a pre-activation residual network for CIFAR.

    A 3×3 convolution, three stages of n blocks with 16, 32 and 64 channels, a norm and ReLU, a global average and a
    linear layer. Shortcuts start from the block's input, before its norm. Norms are named `bn`, whatever their kind.

    Args:
        depth: Weighted layers, 6n + 2 (20, 56, 110, 1202).
        classes: Outputs.
        norm: "none", "batch", "layer", "group" or a factory, channels → module.
        final_norm: False leaves out only the norm after the last block: huang2020's PreResNet-v1.
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
        >>> preresnet(20, seed=0)(torch.zeros(2, 3, 32, 32)).shape
        torch.Size([2, 10])
    """
    blocks = blocks_per_stage(depth)
    layers = Layers(norm, init, seed)
    modules: OrderedDict[str, nn.Module] = OrderedDict(conv=layers.conv(3, width))
    modules |= stages(width, blocks, lambda inputs, outputs: PreBlock(inputs, outputs, layers))
    if final_norm:
        modules["bn"] = layers.norm2d(4 * width)
    modules["act"] = nn.ReLU()
    modules |= head(4 * width, classes, layers, last_norm)
    return nn.Sequential(modules)
