"""The 5-layer convolutional network of lange2022."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from itertools import pairwise

from torch import nn

from wellcond_papers.models.layers import Init, Layers, Norm

KERNEL, POOL = 3, 2


def cnn(
    image: tuple[int, int, int] = (3, 32, 32),
    channels: Sequence[int] = (32, 64, 32),
    hidden: Sequence[int] = (64,),
    classes: int = 10,
    *,
    norm: Norm = "none",
    dense_norm: Norm | None = None,
    post_activation: bool = True,
    init: Init = "glorot",
    seed: int | None = None,
) -> nn.Sequential:
    """Build convolutions with 2×2 max pooling between them, then dense layers.

    The convolutions are 3×3 without padding. Convolution k is `convk`, `actk`, its norm, if there is one (`bnk`, …),
    and `poolk`, except after the last. The numbering continues in the dense layers `fck`. The source names the channels
    and that two dense layers follow; the poolings, the missing padding and the 64 hidden units are those of the
    TensorFlow tutorial that it took the network from.

    Args:
        image: Channels, height and width of the input.
        channels: The channels of every convolution.
        hidden: Units of every dense layer but the last.
        classes: Outputs.
        norm: "none", "batch", "layer", "group" or a factory, channels → module.
        dense_norm: The same for the hidden dense layers; None for that of the convolutions. A factory of 2-d norms
            needs its 1-d partner here.
        post_activation: Whether norms come after the activations, as in the source, or before them.
        init: How weights are drawn, as in `mlp`.
        seed: Fixes the weights and leaves the global generator alone; None draws from it.

    Returns:
        The network, (N, *image) → (N, classes).

    Raises:
        ValueError: The image is too small for the convolutions, or an unknown norm or init.

    Example:
        >>> import torch
        >>> model = cnn(seed=0)
        >>> [name for name, _ in model.named_children() if not name.startswith("act")]
        ['conv1', 'pool1', 'conv2', 'pool2', 'conv3', 'flatten', 'fc4', 'fc5']
        >>> model(torch.zeros(2, 3, 32, 32)).shape
        torch.Size([2, 10])
    """
    if not channels:
        raise ValueError("channels must name at least one convolution")
    layers = Layers(norm, init, seed)
    dense = layers if dense_norm is None else Layers(dense_norm, init, seed)
    modules: OrderedDict[str, nn.Module] = OrderedDict()
    height, width = image[1:]
    for k, (inputs, outputs) in enumerate(pairwise((image[0], *channels)), start=1):
        modules[f"conv{k}"] = layers.conv(inputs, outputs, KERNEL, padding=0, bias=True)
        modules |= layers.after(k, layers.norm2d(outputs), nn.ReLU(), post_activation)
        height, width = height - KERNEL + 1, width - KERNEL + 1
        if k < len(channels):
            modules[f"pool{k}"] = nn.MaxPool2d(POOL)
            height, width = height // POOL, width // POOL
    if min(height, width) < 1:
        raise ValueError(f"images of {image[1]}x{image[2]} are too small for {len(channels)} convolutions and poolings")
    modules["flatten"] = nn.Flatten()
    sizes = [channels[-1] * height * width, *hidden, classes]
    for k, (inputs, outputs) in enumerate(pairwise(sizes), start=len(channels) + 1):
        modules[f"fc{k}"] = layers.linear(inputs, outputs)
        if k < len(channels) + len(hidden) + 1:
            modules |= dense.after(k, dense.norm1d(outputs), nn.ReLU(), post_activation)
    return nn.Sequential(modules)
