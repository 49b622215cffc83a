"""Synthetic images and signals, drawn with torch's global generator."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset


def grid(size: int) -> tuple[Tensor, Tensor]:
    a = torch.arange(size)
    return torch.meshgrid(a, a, indexing="ij")


def bars(n: int, size: int = 12, noise: float = 0.3, signed: bool = False) -> tuple[Tensor, Tensor]:
    """A bar in one of four directions, somewhere."""
    i, j = grid(size)
    us = torch.stack([i, j, (i + j) % size, (i - j) % size])
    y = torch.randint(4, (n,))
    o = torch.randint(size, (n, 1, 1))
    x = (((us[y] - o) % size) < 2).float()
    if signed:
        x = x * (2.0 * torch.randint(2, (n, 1, 1)) - 1)
    x = x + noise * torch.randn(n, size, size)
    return x[:, None], y


def blob(n: int, size: int = 12, noise: float = 0.1) -> tuple[Tensor, Tensor]:
    """One spot; where it is, in -1..1 (row, column)."""
    p = torch.rand(n, 2) * 1.6 - 0.8
    a = torch.linspace(-1, 1, size)
    d = (a[None, :, None] - p[:, 0, None, None]) ** 2 + (a[None, None, :] - p[:, 1, None, None]) ** 2
    return (torch.exp(-d / 0.08) + noise * torch.randn(n, size, size))[:, None], p


def discs(n: int, size: int = 14, noise: float = 0.5) -> tuple[Tensor, Tensor]:
    """Two discs on a noisy ground; their mask."""
    i, j = grid(size)
    c = torch.rand(n, 2, 2) * size
    r = 1.5 + 2 * torch.rand(n, 2)
    d = (i - c[..., 0, None, None]) ** 2 + (j - c[..., 1, None, None]) ** 2
    mask = (d < (r**2)[..., None, None]).any(1)
    return (mask.float() + noise * torch.randn(n, size, size))[:, None], mask.long()


def fields(n: int, size: int = 12, freqs: int = 3) -> Tensor:
    """Smooth images of low frequencies, of about unit variance."""
    t = (torch.arange(size) + 0.5) / size
    basis = torch.stack([torch.cos(math.pi * k * t) for k in range(freqs)])
    c = torch.randn(n, freqs, freqs)
    c[:, 0, 0] = 0
    x = torch.einsum("nab,ai,bj->nij", c, basis, basis)
    return (x / x.std())[:, None]


def glyphs(n: int, classes: int = 6, size: int = 10, noise: float = 0.5, shift: int = 1) -> tuple[Tensor, Tensor]:
    """Classes of random smooth templates, shifted and noisy."""
    t = fields(classes, size, 4)[:, 0]
    y = torch.randint(classes, (n,))
    x = t[y]
    s = torch.randint(-shift, shift + 1, (n,))
    x = torch.stack([torch.roll(a, int(k), 1) for a, k in zip(x, s)])
    return (x + noise * torch.randn(n, size, size))[:, None], y


def tones(n: int, length: int = 48, classes: int = 4, noise: float = 0.5) -> tuple[Tensor, Tensor]:
    """A sinusoid of a class's frequency, at any phase."""
    y = torch.randint(classes, (n,))
    f = 0.06 + 0.09 * y + 0.02 * torch.rand(n)
    t = torch.arange(length)
    x = torch.sin(2 * math.pi * (f[:, None] * t + torch.rand(n, 1)))
    return (x + noise * torch.randn(n, length))[:, None], y


def pulses(n: int, length: int = 64, noise: float = 0.1) -> tuple[Tensor, Tensor]:
    """A train of pulses; its rate, in 0..1, and its height varies."""
    rate = torch.rand(n)
    period = 20 - 12 * rate
    t = torch.arange(length)
    ph = ((t[None] / period[:, None] + torch.rand(n, 1)) % 1.0 - 0.5) * period[:, None]
    x = (0.7 + 0.6 * torch.rand(n, 1)) * torch.exp(-(ph**2) / 2)
    return (x + noise * torch.randn(n, length))[:, None], rate


def chirps(n: int, frames: int = 10, bins: int = 12, noise: float = 0.3) -> tuple[Tensor, Tensor]:
    """Spectrograms (frames x bins) of a tone that rises, falls, stays, or turns."""
    y = torch.randint(4, (n,))
    t = torch.linspace(-1, 1, frames)
    shapes = torch.stack([t, -t, 0 * t, 2 * t.abs() - 1])
    c = (bins - 1) / 2 + 3.0 * shapes[y] + 2 * (torch.rand(n, 1) * 2 - 1)
    b = torch.arange(bins)
    x = torch.exp(-((b[None, None] - c[..., None]) ** 2) / 1.5)
    return x + noise * torch.randn(n, frames, bins), y


def volumes(n: int, size: int = 6, noise: float = 0.4) -> tuple[Tensor, Tensor]:
    """A bright slab across one of three axes."""
    y = torch.randint(3, (n,))
    a = torch.arange(size)
    g = torch.stack(torch.meshgrid(a, a, a, indexing="ij"))
    o = torch.randint(size, (n, 1, 1, 1))
    return ((g[y] == o).float() + noise * torch.randn(n, size, size, size))[:, None], y


def loader(*tensors: Tensor, size: int = 32, shuffle: bool = True, drop: bool = True) -> DataLoader:
    return DataLoader(TensorDataset(*tensors), size, shuffle=shuffle, drop_last=drop)


def r2(p: Tensor, y: Tensor) -> float:
    if p.shape != y.shape or not torch.isfinite(p).all():
        return 0.0
    return max(0.0, float(1 - ((p - y) ** 2).mean() / ((y - y.mean(0)) ** 2).mean()))


def accuracy(x: Tensor, y: Tensor):
    return lambda model: float((model(x).argmax(1) == y).float().mean())


def dice(p: Tensor, m: Tensor) -> float:
    p, m = p.float(), m.float()
    return float(2 * (p * m).sum() / (p.sum() + m.sum()).clamp(min=1))
