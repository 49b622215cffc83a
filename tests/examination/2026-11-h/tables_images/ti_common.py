"""Synthetic tables and images."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch.utils.data import DataLoader, TensorDataset


def gen(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def loader(*tensors, bs=64, shuffle=True, **kw):
    return DataLoader(TensorDataset(*tensors), batch_size=bs, shuffle=shuffle, drop_last=True, **kw)


def r2(prediction, target):
    return float(1 - (prediction - target).pow(2).sum() / (target - target.mean(0)).pow(2).sum())


def r2_pos(prediction, target):
    return max(0.0, r2(prediction, target))


def accuracy(logits, y):
    return float((logits.argmax(-1) == y).float().mean())


@lru_cache(maxsize=None)
def table(n: int, d: int, seed: int):
    """Standard normal features, a nonlinear response of unit variance."""
    g = gen(seed)
    x = torch.randn(n, d, generator=g)
    f = torch.sin(1.5 * x[:, 0]) + 0.7 * x[:, 1] * x[:, 2] + 0.6 * x[:, 3] + 0.3 * (x[:, 1].abs() - 0.8)
    f = f / 1.25 + 0.1 * torch.randn(n, generator=g)
    return x, f


@lru_cache(maxsize=None)
def classes(n: int, d: int, k: int, seed: int):
    """Two clusters per class, at random places."""
    places = torch.randn(2 * k, d, generator=gen(99)) * 1.3
    g = gen(seed)
    which = torch.randint(2 * k, (n,), generator=g)
    return places[which] + 0.8 * torch.randn(n, d, generator=g), which % k


@lru_cache(maxsize=None)
def shapes(n: int, seed: int, size: int = 12):
    """One of four shapes on a dark ground: image (n, 1, s, s) in [0, 1], class, mask, centre in [0, 1]."""
    g = gen(seed)
    x = 0.1 * torch.rand(n, 1, size, size, generator=g)
    y = torch.randint(4, (n,), generator=g)
    mask = torch.zeros(n, size, size)
    cx = torch.randint(2, size - 2, (n,), generator=g)
    cy = torch.randint(2, size - 2, (n,), generator=g)
    bright = 0.6 + 0.3 * torch.rand(n, generator=g)
    for i in range(n):
        a, b, c = int(cx[i]), int(cy[i]), int(y[i])
        if c == 0:
            mask[i, a, b - 2 : b + 3] = 1
        elif c == 1:
            mask[i, a - 2 : a + 3, b] = 1
        elif c == 2:
            mask[i, a - 1 : a + 2, b - 1 : b + 2] = 1
        else:
            for k in range(-2, 3):
                mask[i, a + k, min(size - 1, b + k)] = 1
    x[:, 0] += mask * bright[:, None, None]
    centre = torch.stack([cx, cy], 1).float() / (size - 1)
    return x, y, mask, centre


@lru_cache(maxsize=None)
def factors(n: int, d: int, k: int, seed: int):
    """Rows that lie near a curved surface of k dimensions."""
    g = gen(77)
    a, b = torch.randn(k, d, generator=g), torch.randn(k, d, generator=g)
    g = gen(seed)
    z = torch.randn(n, k, generator=g)
    x = z @ a + 0.5 * torch.tanh(2 * z) @ b + 0.1 * torch.randn(n, d, generator=g)
    return x / (1.2 * k**0.5)
