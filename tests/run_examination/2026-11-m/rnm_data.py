"""Data makers and small helpers of the rnm cases."""

from __future__ import annotations

import math
import random

import numpy as np
import torch
from torch import nn


def rnm_seed(number: int) -> None:
    """Make a run repeatable."""
    torch.set_num_threads(1)
    random.seed(number)
    np.random.seed(number)
    torch.manual_seed(number)


def rnm_digits(seed: int = 0, held_out: int = 397):
    """8x8 digits as [N, 1, 8, 8] with mean near 0 and deviation near 1; training and held-out part."""
    from sklearn.datasets import load_digits

    data = load_digits()
    images = torch.tensor(data.images, dtype=torch.float32)[:, None]
    images = (images - 4.9) / 6.0
    labels = torch.tensor(data.target, dtype=torch.long)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
    images, labels = images[order], labels[order]
    return (images[held_out:], labels[held_out:]), (images[:held_out], labels[:held_out])


def rnm_tabular(count: int, features: int, seed: int, noise: float = 0.1, width: int = 12, sharp: float = 1.5):
    """Regression whose target is a random two-layer teacher, standardised, with noise."""
    source = torch.Generator().manual_seed(seed)
    x = torch.randn(count, features, generator=source)
    first = sharp * torch.randn(features, width, generator=source) / math.sqrt(features)
    second = torch.randn(width, 1, generator=source)
    y = torch.tanh(x @ first) @ second + 0.3 * x[:, :1] * x[:, 1:2]
    y = (y - y.mean()) / y.std()
    return x, y + noise * torch.randn(count, 1, generator=source)


def rnm_signals(count: int, length: int, seed: int, classes: int = 5, noise: float = 0.7):
    """Noisy signals with one of several motifs at an unknown place: [N, 1, length] and classes."""
    source = torch.Generator().manual_seed(seed)
    basis = torch.Generator().manual_seed(12345)
    motifs = torch.randn(classes, 12, generator=basis)
    motifs = motifs / motifs.std(1, keepdim=True)
    y = torch.randint(classes, (count,), generator=source)
    x = noise * torch.randn(count, length, generator=source)
    at = torch.randint(length - 12, (count,), generator=source)
    places = at[:, None] + torch.arange(12)
    x.scatter_add_(1, places, motifs[y])
    return x[:, None], y


def rnm_shapes(count: int, points: int, seed: int):
    """Sets of points from circles, squares, crosses and spirals; columns x, y and a mask. Every set keeps a point."""
    source = np.random.default_rng(seed)
    y = source.integers(0, 4, count)
    t = source.uniform(0, 1, (count, points))
    u = source.uniform(-1, 1, (count, points))
    side = source.integers(0, 4, (count, points))
    circle = np.stack([np.cos(2 * np.pi * t), np.sin(2 * np.pi * t)], -1)
    edge = np.where(side % 2 == 0, 1.0, -1.0)
    square = np.where((side < 2)[..., None], np.stack([u, edge], -1), np.stack([edge, u], -1))
    cross = np.where((side < 2)[..., None], np.stack([u, 0 * u], -1), np.stack([0 * u, u], -1))
    spiral = np.stack([t * np.cos(9 * t), t * np.sin(9 * t)], -1)
    all_shapes = np.stack([circle, square, cross, spiral])
    xy = all_shapes[y, np.arange(count)] + 0.12 * source.normal(size=(count, points, 2))
    size = source.integers(points // 3, points + 1, count)
    mask = (np.arange(points)[None] < size[:, None]).astype(float)
    x = np.concatenate([xy * mask[..., None], mask[..., None]], -1)
    return torch.tensor(x, dtype=torch.float32), torch.tensor(y)


def rnm_ratings(count: int, users: int, items: int, seed: int, noise: float = 0.3):
    """Pairs of user and item with a standardised rating from latent factors."""
    source = torch.Generator().manual_seed(seed)
    fixed = torch.Generator().manual_seed(777)
    left, right = torch.randn(users, 3, generator=fixed), torch.randn(items, 3, generator=fixed)
    bias = 0.7 * torch.randn(items, generator=fixed)
    user = torch.randint(users, (count,), generator=source)
    item = (items * torch.rand(count, generator=source) ** 1.5).long()
    rating = (left[user] * right[item]).sum(1) / 1.7 + bias[item]
    return torch.stack([user, item], 1), rating + noise * torch.randn(count, generator=source)


def rnm_text(count: int, length: int, vocabulary: int, seed: int):
    """Sentences from a sparse chain of second order: [N, length] of tokens."""
    fixed = np.random.default_rng(99)
    table = fixed.dirichlet(np.full(vocabulary, 0.08), (vocabulary, vocabulary)).cumsum(-1)
    source = np.random.default_rng(seed)
    out = np.zeros((count, length), dtype=np.int64)
    out[:, :2] = source.integers(0, vocabulary, (count, 2))
    for place in range(2, length):
        draw = source.uniform(size=(count, 1))
        rows = table[out[:, place - 2], out[:, place - 1]]
        out[:, place] = np.minimum((rows < draw).sum(1), vocabulary - 1)
    return torch.tensor(out)


def rnm_waves(count: int, length: int, seed: int, noise: float = 0.1):
    """Sums of two sines; the next value is the target at each place: [N, length, 1] twice."""
    source = torch.Generator().manual_seed(seed)
    time = torch.arange(length + 1) / 8.0
    speed = 0.5 + 1.5 * torch.rand(count, 2, 1, generator=source)
    phase = 6.28 * torch.rand(count, 2, 1, generator=source)
    wave = torch.sin(speed * time + phase).sum(1) / 1.0
    seen = wave + noise * torch.randn(count, length + 1, generator=source)
    return seen[:, :-1, None], seen[:, 1:, None]


def rnm_adding(count: int, length: int, source: torch.Generator):
    """The adding problem: sum the two marked numbers of a sequence."""
    numbers = torch.rand(count, length, generator=source)
    marks = torch.zeros(count, length)
    half = length // 2
    marks[torch.arange(count), torch.randint(half, (count,), generator=source)] = 1
    marks[torch.arange(count), half + torch.randint(length - half, (count,), generator=source)] = 1
    return torch.stack([numbers, marks], -1), (numbers * marks).sum(1, keepdim=True)


@torch.no_grad()
def rnm_score(model: nn.Module, loss, x, y, mode: bool = True) -> float:
    """Loss on held-out data in evaluation mode; leaves the mode as it was."""
    was = model.training
    model.eval()
    value = float(loss(model(x), y))
    model.train(was)
    return value
