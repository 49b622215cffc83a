"""The two networks of wei2019, drawn as its mean-field theory assumes."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from itertools import pairwise

from torch import nn

from wellcond_papers.models.initialize import gaussian
from wellcond_papers.models.layers import Layers, Norm
from wellcond_papers.models.mlp import mlp

KERNEL, STRIDE = 3, 2


def meanfield_mlp(
    inputs: int = 784,
    width: int = 1000,
    layers: int = 4,
    classes: int = 10,
    *,
    gamma: float = 1.0,
    sigma_w2: float = 2.0,
    sigma_b2: float = 0.5,
    norm: Norm = "batch",
    seed: int | None = None,
) -> nn.Sequential:
    """Build wei2019's fully connected network.

    Hidden layers are `fck`, `bnk` and `actk` (ReLU); the last layer is linear. Weights are N(0, σ_w²/fan_in), biases
    N(0, σ_b²). Every norm starts with gain γ and shift 0.

    Args:
        inputs: Features of the input.
        width: Units of a hidden layer.
        layers: Weighted layers, the last included.
        classes: Outputs.
        gamma: γ.
        sigma_w2: σ_w².
        sigma_b2: σ_b².
        norm: "batch", or "none" for the vanilla network; others as in `mlp`.
        seed: Fixes the weights and leaves the global generator alone; None draws from it.

    Returns:
        The network, (N, inputs) → (N, classes).

    Raises:
        ValueError: No layer, a negative variance, or an unknown norm.

    Example:
        >>> model = meanfield_mlp(width=20, gamma=0.1, seed=0)
        >>> model.bn3.weight.unique().tolist()
        [0.10000000149011612]
    """
    if layers < 1:
        raise ValueError(f"layers must be at least 1, not {layers}")
    sizes = [inputs, *[width] * (layers - 1), classes]
    return _with_gain(mlp(sizes, norm=norm, init=gaussian(sigma_w2, sigma_b2), seed=seed), gamma)


def meanfield_cnn(
    image: tuple[int, int, int] = (1, 28, 28),
    channels: Sequence[int] = (30, 60, 90),
    classes: int = 10,
    *,
    gamma: float = 1.0,
    sigma_w2: float = 2.0,
    sigma_b2: float = 0.5,
    norm: Norm = "batch",
    seed: int | None = None,
) -> nn.Sequential:
    """Build wei2019's convolutional network.

    Convolutions are 3×3 with stride 2 and no padding (`convk`, `bnk`, `actk`); a linear layer `fc` reads all their
    last values. Weights are N(0, σ_w²/fan_in), biases N(0, σ_b²). Every norm starts with gain γ and shift 0.

    Args:
        image: Channels, height and width of the input.
        channels: The channels of every convolution.
        classes: Outputs.
        gamma: γ.
        sigma_w2: σ_w².
        sigma_b2: σ_b².
        norm: "batch", or "none" for the vanilla network; others as in `cnn`.
        seed: Fixes the weights and leaves the global generator alone; None draws from it.

    Returns:
        The network, (N, *image) → (N, classes).

    Raises:
        ValueError: The image is too small, a negative variance, or an unknown norm.

    Example:
        >>> meanfield_cnn(seed=0).fc
        Linear(in_features=360, out_features=10, bias=True)
    """
    layers = Layers(norm, gaussian(sigma_w2, sigma_b2), seed)
    modules: OrderedDict[str, nn.Module] = OrderedDict()
    height, width = image[1:]
    for k, (inputs, outputs) in enumerate(pairwise((image[0], *channels)), start=1):
        modules[f"conv{k}"] = layers.conv(inputs, outputs, KERNEL, stride=STRIDE, padding=0, bias=True)
        modules |= layers.after(k, layers.norm2d(outputs), nn.ReLU(), post_activation=False)
        height, width = (height - KERNEL) // STRIDE + 1, (width - KERNEL) // STRIDE + 1
    if min(height, width) < 1:
        raise ValueError(f"images of {image[1]}x{image[2]} are too small for {len(channels)} convolutions of stride 2")
    modules["flatten"] = nn.Flatten()
    modules["fc"] = layers.linear(channels[-1] * height * width, classes)
    return _with_gain(nn.Sequential(modules), gamma)


def _with_gain(model: nn.Sequential, gamma: float) -> nn.Sequential:
    """The model, with the gain of every norm set to γ; norms are the parts that are not layers and have a weight."""
    for module in model:
        if not isinstance(module, nn.Linear | nn.Conv2d) and isinstance(
            weight := getattr(module, "weight", None), nn.Parameter
        ):
            nn.init.constant_(weight, gamma)
    return model
