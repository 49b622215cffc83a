"""The deep linear network of santurkar2018."""

from __future__ import annotations

from torch import nn

from wellcond_papers.models.layers import Init, Norm
from wellcond_papers.models.mlp import mlp


def deep_linear(
    width: int = 10, layers: int = 25, *, norm: Norm = "none", init: Init = "glorot", seed: int | None = None
) -> nn.Sequential:
    """Build W_k … W₁ x: square linear layers without bias and without activation.

    Layer k is `fck`, followed by its norm, if there is one (`bnk`, …), and by `actk`, which is the identity. The last
    layer is `fcL` alone.

    Args:
        width: Features of the input, of every layer and of the output.
        layers: How many.
        norm: "none", "batch", "layer", "group" or a factory, channels → module.
        init: How weights are drawn, as in `mlp`.
        seed: Fixes the weights and leaves the global generator alone; None draws from it.

    Returns:
        The network, (N, width) → (N, width).

    Raises:
        ValueError: No layer, no feature, or an unknown norm or init.

    Example:
        >>> sum(weight.numel() for weight in deep_linear(seed=0).parameters())
        2500
    """
    return mlp([width] * (layers + 1), norm=norm, activation=nn.Identity, init=init, bias=False, seed=seed)
