"""The layers of one network: weights by one rule and one generator, norms of one kind.

Layers are made empty and then filled, so that torch's own initialization takes nothing from the global generator.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal, get_args

import torch
from torch import nn

from wellcond_papers.models.initialize import Initialization, default, he_out, initialization, make_generator

NormName = Literal["none", "batch", "layer", "group"]
Norm = NormName | Callable[[int], nn.Module]
"""A name, or a factory: the number of channels in, the module out (`nn.BatchNorm2d`, `partial(nn.GroupNorm, 32)`)."""

Init = str | Initialization
CHANNELS_PER_GROUP = 4
PREFIXES = {"none": "", "batch": "bn", "layer": "ln", "group": "gn"}


class Layers:
    """Makes the layers of one network, in the order in which the network draws them.

    Norms by name, for features (N, C) and for images (N, C, H, W):

    - `"none"`: the identity
    - `"batch"`: `nn.BatchNorm1d`, `nn.BatchNorm2d`
    - `"layer"`: over all features of an example, one gain a channel: `nn.LayerNorm`, `nn.GroupNorm(1, C)`
    - `"group"`: over groups of 4 channels; if 4 does not divide C, of 2 or 1

    Args:
        norm: What `norm1d` and `norm2d` make.
        init: How weights are drawn. None means as He et al. published it: convolutions N(0, 2/(k² C_out)), linear
            layers as torch fills its own.
        seed: Fixes the weights and leaves the global generator alone; None draws from it.

    Attributes:
        prefix: How norms are called: "bn", "ln", "gn", "norm" for a factory, "" for none.

    Raises:
        ValueError: An unknown norm or init.
    """

    def __init__(self, norm: Norm, init: Init | None, seed: int | None) -> None:
        check_norm(norm)
        self.kind = norm
        self.prefix = PREFIXES[norm] if isinstance(norm, str) else "norm"
        self.fill_conv = he_out() if init is None else initialization(init)
        self.fill_linear = default() if init is None else initialization(init)
        self.generator = make_generator(seed)

    def conv(
        self, inputs: int, outputs: int, kernel: int = 3, *, stride: int = 1, padding: int = 1, bias: bool = False
    ) -> nn.Conv2d:
        """A convolution, (N, inputs, H, W) → (N, outputs, H', W')."""
        _check_sizes(inputs, outputs)
        layer = nn.Conv2d(inputs, outputs, kernel, stride, padding, bias=bias, device="meta")
        layer = layer.to_empty(device=torch.get_default_device())
        self.fill_conv(layer, self.generator)
        return layer

    def linear(self, inputs: int, outputs: int, bias: bool = True) -> nn.Linear:
        """A linear layer, (N, inputs) → (N, outputs)."""
        _check_sizes(inputs, outputs)
        layer = nn.Linear(inputs, outputs, bias, device="meta").to_empty(device=torch.get_default_device())
        self.fill_linear(layer, self.generator)
        return layer

    def norm1d(self, channels: int) -> nn.Module:
        """A norm of (N, channels)."""
        match self.kind:
            case "none":
                return nn.Identity()
            case "batch":
                return nn.BatchNorm1d(channels)
            case "layer":
                return nn.LayerNorm(channels)
            case "group":
                return _group_norm(channels)
            case factory:
                return _made(factory, channels)

    def norm2d(self, channels: int, affine: bool = True) -> nn.Module:
        """A norm of (N, channels, H, W); `affine` has no effect on what a factory makes."""
        match self.kind:
            case "none":
                return nn.Identity()
            case "batch":
                return nn.BatchNorm2d(channels, affine=affine)
            case "layer":
                return nn.GroupNorm(1, channels, affine=affine)
            case "group":
                return _group_norm(channels, affine)
            case factory:
                return _made(factory, channels)

    def after(self, k: int, norm: nn.Module, activation: nn.Module, post_activation: bool) -> dict[str, nn.Module]:
        """What follows weighted layer k, by name: its norm, if there is one, and its activation, in their order."""
        norms = {f"{self.prefix}{k}": norm} if self.prefix else {}
        activations = {f"act{k}": activation}
        return activations | norms if post_activation else norms | activations


def check_norm(norm: Norm) -> None:
    """Refuse what is neither the name of a norm nor a factory."""
    if not callable(norm) and norm not in get_args(NormName):
        raise ValueError(f"norm must be one of {get_args(NormName)} or a factory, channels → module, not {norm!r}")


def _check_sizes(inputs: int, outputs: int) -> None:
    if min(inputs, outputs) < 1:
        raise ValueError(f"widths, channels and classes must be at least 1; a layer would have {inputs} → {outputs}")


def _made(factory: Callable[[int], nn.Module], channels: int) -> nn.Module:
    norm = factory(channels)
    if not isinstance(norm, nn.Module):
        raise ValueError(f"the norm factory must return a module; for {channels} channels it returned {norm!r}")
    return norm


def _group_norm(channels: int, affine: bool = True) -> nn.GroupNorm:
    return nn.GroupNorm(channels // math.gcd(channels, CHANNELS_PER_GROUP), channels, affine=affine)
