"""Initializations: a rule that fills the weights and biases of a layer from a stated distribution.

Numbers are drawn on the CPU by a stated generator and copied, so a seed gives the same network on every device.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

Layer = nn.Linear | nn.Conv2d
Initialization = Callable[[Layer, torch.Generator], None]
"""Fills the weight and the bias of one layer."""


def make_generator(seed: int | None) -> torch.Generator:
    """A fresh generator for a seed; for None, torch's global one, which torch's own layers use."""
    return torch.default_generator if seed is None else torch.Generator("cpu").manual_seed(seed)


def gaussian(sigma_w2: float, sigma_b2: float = 0.0) -> Initialization:
    """Weights N(0, σ_w²/fan_in) and biases N(0, σ_b²), as in mean-field theory.

    Args:
        sigma_w2: σ_w².
        sigma_b2: σ_b².

    Raises:
        ValueError: A variance is negative.
    """
    if sigma_w2 < 0 or sigma_b2 < 0:
        raise ValueError(f"variances must not be negative, not σ_w² = {sigma_w2} and σ_b² = {sigma_b2}")

    def fill(layer: Layer, generator: torch.Generator) -> None:
        _fill_normal(layer.weight, sigma_w2 / _fan_in(layer), generator)
        if layer.bias is not None and sigma_b2 > 0:
            _fill_normal(layer.bias, sigma_b2, generator)
        else:
            _clear_bias(layer)

    return fill


def lecun() -> Initialization:
    """Weights N(0, 1/fan_in), biases 0."""
    return gaussian(1.0)


def he(scale: float = 1.0) -> Initialization:
    """Weights `scale` · N(0, 2/fan_in), biases 0."""
    return gaussian(2.0 * scale**2)


def he_out(scale: float = 1.0) -> Initialization:
    """Weights `scale` · N(0, 2/(k² C_out)), biases 0: what He et al. published for residual networks."""

    def fill(layer: Layer, generator: torch.Generator) -> None:
        _fill_normal(layer.weight, 2 * scale**2 / _fan_out(layer), generator)
        _clear_bias(layer)

    return fill


def glorot() -> Initialization:
    """Weights U(−a, a) with a = √(6/(fan_in + fan_out)), biases 0."""

    def fill(layer: Layer, generator: torch.Generator) -> None:
        _fill_uniform(layer.weight, (6 / (_fan_in(layer) + _fan_out(layer))) ** 0.5, generator)
        _clear_bias(layer)

    return fill


def default() -> Initialization:
    """As torch fills its own layers: weights and biases U(−a, a) with a = 1/√fan_in."""

    def fill(layer: Layer, generator: torch.Generator) -> None:
        for parameter in layer.parameters():
            _fill_uniform(parameter, _fan_in(layer) ** -0.5, generator)

    return fill


NAMED: dict[str, Callable[[], Initialization]] = {"lecun": lecun, "he": he, "glorot": glorot, "default": default}


def initialization(init: str | Initialization) -> Initialization:
    """The rule of that name; a rule is passed on.

    Raises:
        ValueError: No rule has this name.
    """
    if not isinstance(init, str):
        return init
    if init not in NAMED:
        raise ValueError(
            f"init must be one of {tuple(NAMED)} or made by wellcond_papers.models.initialize, not {init!r}"
        )
    return NAMED[init]()


def _fan_in(layer: Layer) -> int:
    """Values that enter one output value: C_in k² for a convolution."""
    return layer.weight[0].numel()


def _fan_out(layer: Layer) -> int:
    """Output values that one input value enters: C_out k² for a convolution."""
    return layer.weight.shape[0] * layer.weight[0, 0].numel()


@torch.no_grad()
def _fill_normal(tensor: Tensor, variance: float, generator: torch.Generator) -> None:
    draw = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu")
    tensor.copy_(draw.normal_(0.0, variance**0.5, generator=generator))


@torch.no_grad()
def _fill_uniform(tensor: Tensor, bound: float, generator: torch.Generator) -> None:
    draw = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu")
    tensor.copy_(draw.uniform_(-bound, bound, generator=generator))


def _clear_bias(layer: Layer) -> None:
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)
