"""Layers whose weights are drawn from a stated distribution by a stated generator.

Numbers are drawn on the CPU and copied, so a seed gives the same network on every device; and layers are made
empty, so that torch's own initialisation takes nothing from the global generator.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


def make_generator(seed: int | None) -> torch.Generator:
    """A fresh generator for a seed; for None, torch's global one, which torch's own layers use."""
    return torch.default_generator if seed is None else torch.Generator("cpu").manual_seed(seed)


def empty_linear(inputs: int, outputs: int, bias: bool) -> nn.Linear:
    """A linear layer whose values are still to be filled."""
    return nn.Linear(inputs, outputs, bias, device="meta").to_empty(device=torch.get_default_device())


@torch.no_grad()
def fill_normal(tensor: Tensor, variance: float, generator: torch.Generator) -> None:
    """Fill with N(0, variance)."""
    draw = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu")
    tensor.copy_(draw.normal_(0.0, variance**0.5, generator=generator))


@torch.no_grad()
def fill_uniform(tensor: Tensor, bound: float, generator: torch.Generator) -> None:
    """Fill with U(−bound, bound)."""
    draw = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu")
    tensor.copy_(draw.uniform_(-bound, bound, generator=generator))


def default_linear(inputs: int, outputs: int, bias: bool, generator: torch.Generator) -> nn.Linear:
    """A linear layer filled as torch fills its own: weight and bias U(−1/√fan_in, 1/√fan_in)."""
    layer = empty_linear(inputs, outputs, bias)
    for parameter in layer.parameters():
        fill_uniform(parameter, inputs**-0.5, generator)
    return layer


def conv3x3(inputs: int, outputs: int, generator: torch.Generator, *, stride: int = 1, bias: bool = False) -> nn.Conv2d:
    """A padded 3×3 convolution with weights N(0, 2/(k² C_out)) and, if asked, a bias of zeros."""
    layer = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=bias, device="meta")
    layer = layer.to_empty(device=torch.get_default_device())
    fill_normal(layer.weight, 2 / (3 * 3 * outputs), generator)
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)
    return layer
