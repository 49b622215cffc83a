"""Data made up for the cases, and scores."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn


def accuracy(x: Tensor, y: Tensor) -> Callable[[nn.Module], float]:
    return lambda model: (model(x).argmax(1) == y).float().mean().item()


def r2(x: Tensor, y: Tensor, scale: float = 1.0, shift: float = 0.0) -> Callable[[nn.Module], float]:
    def score(model: nn.Module) -> float:
        out = (model(x).float() * scale + shift).reshape(y.shape)
        return max(0.0, 1 - ((out - y) ** 2).mean().item() / y.var().item())

    return score


def friedman(n: int, noise: float = 0.5) -> tuple[Tensor, Tensor]:
    x = torch.rand(n, 8)
    y = 10 * torch.sin(math.pi * x[:, 0] * x[:, 1]) + 20 * (x[:, 2] - 0.5) ** 2 + 10 * x[:, 3] + 5 * x[:, 4]
    return x, y + noise * torch.randn(n)


def spirals(n: int, arms: int = 3, noise: float = 0.08, turns: float = 1.0) -> tuple[Tensor, Tensor]:
    y = torch.randint(0, arms, (n,))
    r = torch.rand(n) * 0.9 + 0.1
    t = 2 * math.pi * (turns * r + y / arms) + noise * torch.randn(n)
    return torch.stack([r * t.cos(), r * t.sin()], 1) * 1.7, y


def blobs(n: int, classes: int = 4, d: int = 12, spread: float = 1.0) -> tuple[Tensor, Tensor]:
    """Classes of two clusters each."""
    g = torch.Generator().manual_seed(77)
    centres = torch.randn(classes * 2, d, generator=g) * 1.3
    k = torch.randint(0, classes * 2, (n,))
    return centres[k] + spread * torch.randn(n, d), k % classes


def shapes(n: int, size: int = 16, noise: float = 0.15) -> tuple[Tensor, Tensor, Tensor]:
    """Images with a square, a disc, a cross or a ring; their classes; and masks."""
    y = torch.randint(0, 4, (n,))
    at = torch.randint(5, size - 5, (n, 2))
    rad = torch.randint(3, 5, (n,))
    i = torch.arange(size)
    dy = (i[None, :, None] - at[:, 0, None, None]).expand(n, size, size)
    dx = (i[None, None, :] - at[:, 1, None, None]).expand(n, size, size)
    r = rad[:, None, None]
    d = (dx**2 + dy**2).float().sqrt()
    forms = torch.stack(
        [
            (dx.abs() <= r) & (dy.abs() <= r),
            d <= r,
            ((dx.abs() <= 0) & (dy.abs() <= r)) | ((dy.abs() <= 0) & (dx.abs() <= r)),
            (d <= r + 0.5) & (d > r - 1),
        ],
        1,
    )
    mask = forms[torch.arange(n), y]
    x = mask.float() * (0.6 + 0.3 * torch.rand(n, 1, 1)) + noise * torch.rand(n, size, size)
    return x[:, None].clamp(0, 1), y, mask


def waves(n: int, length: int = 64, noise: float = 0.2) -> tuple[Tensor, Tensor]:
    """Signals: slow sine, fast sine, rising chirp, falling chirp."""
    y = torch.randint(0, 4, (n,))
    t = torch.linspace(0, 1, length)[None]
    phase = 2 * math.pi * torch.rand(n, 1)
    forms = torch.stack(
        [
            torch.sin(2 * math.pi * 3 * t + phase),
            torch.sin(2 * math.pi * 9 * t + phase),
            torch.sin(2 * math.pi * (2 * t + 5 * t**2) + phase),
            torch.sin(2 * math.pi * (12 * t - 5 * t**2) + phase),
        ],
        1,
    )
    return (forms[torch.arange(n), y] + noise * torch.randn(n, length))[:, None], y
