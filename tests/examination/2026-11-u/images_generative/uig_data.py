"""Data and scores the cases have in common."""
import math
from functools import lru_cache

import torch
from sklearn.datasets import load_digits
from torch.utils.data import DataLoader, TensorDataset


@lru_cache
def uig_digits():
    """Digits 0..1 as (n, 1, 8, 8): training images, labels, test images, labels."""
    raw = load_digits()
    x = torch.tensor(raw.images, dtype=torch.float32)[:, None] / 16
    y = torch.tensor(raw.target)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(7))
    x, y = x[order], y[order]
    return x[:1400], y[:1400], x[1400:], y[1400:]


@lru_cache
def uig_shapes(n=1000, size=16, seed=0):
    """Discs, squares and crosses: images (n, 1, s, s), masks (n, 1, s, s), classes, centres in 0..1 (x, y), radii."""
    g = torch.Generator().manual_seed(seed + 100)
    c = torch.randint(0, 3, (n,), generator=g)
    r = 2 + 2 * torch.rand(n, generator=g)
    at = 4 + (size - 9) * torch.rand(n, 2, generator=g)
    ys, xs = torch.meshgrid(torch.arange(size), torch.arange(size), indexing="ij")
    dx = (xs[None] - at[:, 0, None, None]).abs()
    dy = (ys[None] - at[:, 1, None, None]).abs()
    rr = r[:, None, None]
    disc = dx**2 + dy**2 <= rr**2
    square = torch.maximum(dx, dy) <= rr * 0.9
    cross = (torch.minimum(dx, dy) <= 0.8) & (torch.maximum(dx, dy) <= rr + 0.5)
    k = c[:, None, None]
    mask = torch.where(k == 0, disc, torch.where(k == 1, square, cross)).float()
    light = 0.5 + 0.5 * torch.rand(n, 1, 1, generator=g)
    x = 0.15 + mask * light + 0.08 * torch.randn(n, size, size, generator=g)
    return x[:, None].clamp(0, 1.2), mask[:, None], c, (at + 0.5) / size, r


@lru_cache
def uig_gratings(n=1000, size=12, kinds=4, seed=0):
    """Gratings of random phase, whose orientation is the class."""
    g = torch.Generator().manual_seed(seed + 200)
    c = torch.randint(0, kinds, (n,), generator=g)
    angle = (c + 0.3 * (torch.rand(n, generator=g) - 0.5)) * math.pi / kinds
    f = 0.15 + 0.08 * torch.rand(n, generator=g)
    phase = 2 * math.pi * torch.rand(n, generator=g)
    ys, xs = torch.meshgrid(torch.arange(size), torch.arange(size), indexing="ij")
    along = xs[None] * angle.cos()[:, None, None] + ys[None] * angle.sin()[:, None, None]
    x = torch.sin(2 * math.pi * f[:, None, None] * along + phase[:, None, None])
    return (x + 0.3 * torch.randn(n, size, size, generator=g))[:, None], c


def uig_loader(*tensors, batch=32, shuffle=True, drop_last=True):
    return DataLoader(TensorDataset(*tensors), batch_size=batch, shuffle=shuffle, drop_last=drop_last)


def uig_accuracy(x, y):
    return lambda model: (model(x).argmax(1) == y).float().mean().item()


def uig_explained(prediction, truth):
    """Share of the variance explained, at least 0."""
    error = (prediction - truth).pow(2).mean()
    return max(0.0, (1 - error / (truth - truth.mean(0)).pow(2).mean()).nan_to_num(0.0, 0.0, 0.0).item())


def uig_iou(prediction, truth):
    truth = truth.bool()
    return ((prediction & truth).sum() / (prediction | truth).sum().clamp(min=1)).item()
