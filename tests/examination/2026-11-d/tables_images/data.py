"""Small tables, pictures and graphs, and scores."""

from __future__ import annotations

from functools import cache

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset


def rng(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def loader(*tensors: Tensor, batch: int = 32, shuffle: bool = True, drop_last: bool = True) -> DataLoader:
    return DataLoader(TensorDataset(*tensors), batch_size=batch, shuffle=shuffle, drop_last=drop_last)


def accuracy(x, y: Tensor):
    def score(model: nn.Module) -> float:
        out = model(**x) if isinstance(x, dict) else model(x)
        return (out.argmax(1) == y).float().mean().item()

    return score


def one_by_one(x: Tensor, y: Tensor, n: int = 150):
    """Accuracy when the examples come alone, as in a service."""

    def score(model: nn.Module) -> float:
        return sum(float(model(x[i : i + 1]).argmax(1) == y[i]) for i in range(n)) / n

    return score


def r2(x, y: Tensor):
    def score(model: nn.Module) -> float:
        out = model(**x) if isinstance(x, dict) else model(x)
        out = out.reshape(y.shape).float()
        return max(0.0, 1 - ((out - y).square().mean() / y.var()).item())

    return score


@cache
def digits() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Handwritten digits [n, 1, 8, 8] from 0 to 1; the last 400 are held out."""
    raw = load_digits()
    x = torch.tensor(raw.images, dtype=torch.float32)[:, None] / 16
    y = torch.tensor(raw.target)
    i = torch.randperm(len(y), generator=rng(0))
    x, y = x[i], y[i]
    return x[:-400], y[:-400], x[-400:], y[-400:]


@cache
def table(n: int = 1500, features: int = 10, seed: int = 0) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """A regression [n, 1] with products and steps in it; the last 400 are held out."""
    g = rng(seed)
    x = torch.randn(n, features, generator=g)
    y = x[:, 0] * x[:, 1] + x[:, 2].abs() + 0.7 * x[:, 3] + 0.5 * torch.sin(2 * x[:, 4])
    y = ((y - y.mean()) / y.std() + 0.05 * torch.randn(n, generator=g))[:, None]
    return x[:-400], y[:-400], x[-400:], y[-400:]


@cache
def classes(n: int = 1600, features: int = 8, k: int = 4, seed: int = 0) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Rings and quadrants: not linearly separable; the last 400 are held out."""
    g = rng(seed)
    x = torch.randn(n, features, generator=g)
    y = (x[:, 0] * x[:, 1] > 0).long() + 2 * (x[:, 2].square() + x[:, 3].square() > 1.4).long()
    y = y % k
    return x[:-400], y[:-400], x[-400:], y[-400:]


@cache
def blobs(n: int = 1000, size: int = 16, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Pictures [n, 1, size, size] with a bright rectangle on noise, its mask, and its box (cx, cy, w, h) from 0 to 1."""
    g = rng(seed)
    x = 0.25 * torch.randn(n, 1, size, size, generator=g)
    w, h = torch.randint(3, 8, (2, n), generator=g)
    left, top = (torch.rand(2, n, generator=g) * (size - torch.stack([w, h]))).long()
    at = torch.arange(size)
    inside = ((at >= left[:, None]) & (at < (left + w)[:, None]))[:, None, :]
    inside = inside & ((at >= top[:, None]) & (at < (top + h)[:, None]))[:, :, None]
    mask = inside[:, None].float()
    box = torch.stack([left + w / 2, top + h / 2, w, h], 1) / size
    return x + mask, mask, box


@cache
def graphs(n: int = 600, nodes: int = 10, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Node features [n, nodes, 4], adjacency [n, nodes, nodes], and whether more than half of the edges join like kinds."""
    g = rng(seed)
    kind = torch.randint(0, 2, (n, nodes), generator=g)
    like = torch.randint(0, 2, (n,), generator=g)
    same = kind[:, :, None] == kind[:, None, :]
    p = torch.where(same == like[:, None, None].bool(), 0.5, 0.1)
    a = (torch.rand(n, nodes, nodes, generator=g) < p).float().triu(1)
    a = a + a.mT
    x = torch.nn.functional.one_hot(kind, 2).float()
    x = torch.cat([x, 0.3 * torch.randn(n, nodes, 2, generator=g)], -1)
    return x, a, like


@cache
def moons(n: int = 2000, seed: int = 0) -> Tensor:
    """Points of two half circles, standardized."""
    g = rng(seed)
    t = torch.pi * torch.rand(n, generator=g)
    up = torch.rand(n, generator=g) < 0.5
    x = torch.where(up, torch.cos(t), 1 - torch.cos(t))
    y = torch.where(up, torch.sin(t), 0.5 - torch.sin(t))
    p = torch.stack([x, y], 1) + 0.05 * torch.randn(n, 2, generator=g)
    return (p - p.mean(0)) / p.std(0)
