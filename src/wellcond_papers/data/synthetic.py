"""Synthetic data: Gaussian inputs, and targets of a linear teacher."""

from __future__ import annotations

import torch
from torch import Tensor


def gaussian(count: int, *shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    """Inputs (count, *shape) with independent entries N(0, 1), on the CPU.

    Args:
        count: The number of inputs.
        *shape: The shape of one input, such as 784 or 3, 32, 32.
        seed: Fixes them; the global generator is left alone.
        dtype: Numbers are drawn in float64 and rounded to it, so that they are the same in all.

    Example:
        >>> gaussian(5, 3, 32, 32).shape
        torch.Size([5, 3, 32, 32])
    """
    generator = torch.Generator("cpu").manual_seed(seed)
    return torch.randn(count, *shape, generator=generator, dtype=torch.float64, device="cpu").to(dtype)


def linear_teacher(
    count: int = 1000, width: int = 10, *, seed: int = 0, dtype: torch.dtype = torch.float32
) -> tuple[Tensor, Tensor]:
    """Gaussian inputs x and the targets A x of a square matrix A with entries N(0, 1), as in santurkar2018.

    Args:
        count: The number of inputs.
        width: Features of inputs and targets.
        seed: Fixes x and A; the global generator is left alone.
        dtype: Numbers are drawn and multiplied in float64 and rounded to it.

    Returns:
        x and A x, (count, width) each.

    Example:
        >>> x, y = linear_teacher(seed=1, dtype=torch.float64)
        >>> round(torch.dist(x @ torch.linalg.lstsq(x, y).solution, y).item(), 9)
        0.0
    """
    draws = gaussian(count + width, width, seed=seed, dtype=torch.float64)
    x, a = draws[:count], draws[count:]
    return x.to(dtype), (x @ a.T).to(dtype)
