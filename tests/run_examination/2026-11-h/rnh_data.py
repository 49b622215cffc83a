"""Data and small helpers for the rnh cases: everything is made here or comes with scikit-learn."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from sklearn import datasets
from torch import Tensor, nn


def seeded(seed: int) -> torch.Generator:
    """Give a random generator of its own."""
    return torch.Generator().manual_seed(seed)


def shuffled(x: Tensor, y: Tensor, size: int, steps: int, seed: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
    """Give `steps` batches of shuffled epochs."""
    rng = seeded(seed)
    done = 0
    while done < steps:
        order = torch.randperm(len(x), generator=rng)
        for start in range(0, len(x) - size + 1, size):
            if done == steps:
                return
            at = order[start : start + size]
            yield x[at], y[at]
            done += 1


def split(x: Tensor, y: Tensor, held: int, seed: int = 0) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Hold some examples out."""
    order = torch.randperm(len(x), generator=seeded(seed))
    x, y = x[order], y[order]
    return x[held:], y[held:], x[:held], y[:held]


def digits(seed: int = 0, images: bool = False) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Handwritten digits, standardised: training and held-out parts."""
    raw = datasets.load_digits()
    x = torch.tensor(raw.data, dtype=torch.float32)
    x = (x - x.mean()) / x.std()
    if images:
        x = x.reshape(-1, 1, 8, 8)
    return split(x, torch.tensor(raw.target), 400, seed)


def cancer(seed: int = 0) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Breast cancer measurements, standardised."""
    raw = datasets.load_breast_cancer()
    x = torch.tensor(raw.data, dtype=torch.float32)
    x = (x - x.mean(0)) / x.std(0)
    return split(x, torch.tensor(raw.target), 169, seed)


def diabetes(seed: int = 0) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Diabetes progression, inputs and targets standardised."""
    raw = datasets.load_diabetes()
    x = torch.tensor(raw.data, dtype=torch.float32)
    x = (x - x.mean(0)) / x.std(0)
    y = torch.tensor(raw.target, dtype=torch.float32)[:, None]
    return split(x, (y - y.mean()) / y.std(), 120, seed)


def waves(n: int, rng: torch.Generator, noise: float = 0.1) -> tuple[Tensor, Tensor]:
    """A bumpy surface over the plane."""
    x = torch.rand(n, 2, generator=rng) * 4 - 2
    y = torch.sin(2 * x[:, :1]) * torch.cos(1.5 * x[:, 1:]) + 0.3 * x[:, :1]
    return x, y + noise * torch.randn(n, 1, generator=rng)


def signals(n: int, rng: torch.Generator, length: int = 16) -> tuple[Tensor, Tensor]:
    """Windows of noisy oscillations, and the value that follows."""
    rate = torch.rand(n, 1, generator=rng) * 0.6 + 0.2
    phase = torch.rand(n, 1, generator=rng) * 2 * math.pi
    t = torch.arange(length + 1, dtype=torch.float32)
    wave = torch.sin(rate * t + phase) + 0.05 * torch.randn(n, length + 1, generator=rng)
    return wave[:, :length, None], wave[:, length:]


def phrases(n: int, rng: torch.Generator, length: int = 16, words: int = 20) -> Tensor:
    """Sentences of a made-up language in which the next word depends on the two before it."""
    text = torch.randint(0, words, (n, length), generator=rng)
    surprise = torch.rand(n, length, generator=rng) < 0.1
    for i in range(2, length):
        follows = (3 * text[:, i - 1] + text[:, i - 2] // 5 + 1) % words
        text[:, i] = torch.where(surprise[:, i], text[:, i], follows)
    return text


def shapes(n: int, rng: torch.Generator, side: int = 12) -> tuple[Tensor, Tensor]:
    """Noisy pictures of discs, and the masks of the discs."""
    grid = torch.arange(side, dtype=torch.float32)
    cx, cy = torch.rand(2, n, 1, 1, generator=rng) * (side - 4) + 2
    radius = torch.rand(n, 1, 1, generator=rng) * 2 + 1.5
    mask = ((grid[None, :, None] - cx) ** 2 + (grid[None, None, :] - cy) ** 2 < radius**2).float()
    picture = mask + 0.7 * torch.randn(n, side, side, generator=rng)
    return picture[:, None], mask[:, None]


def ratings(n: int, rng: torch.Generator, users: int = 200, items: int = 120) -> tuple[Tensor, Tensor]:
    """Who rates what, and how: popular items come often, others hardly ever."""
    fixed = seeded(77)
    u, v = torch.randn(users, 4, generator=fixed), torch.randn(items, 4, generator=fixed)
    who = torch.randint(0, users, (n,), generator=rng)
    what = (torch.rand(n, generator=rng) ** 2 * items).long()
    score = (u[who] * v[what]).sum(1) / 2 + 0.3 * torch.randn(n, generator=rng)
    return torch.stack([who, what], 1), score


def accuracy(model: nn.Module, x: Tensor, y: Tensor) -> float:
    """Share of right answers in evaluation mode."""
    was = model.training
    model.eval()
    with torch.no_grad():
        right = (model(x).argmax(-1) == y).float().mean().item()
    model.train(was)
    return right


def evaluated(model: nn.Module, loss, x: Tensor, y: Tensor) -> float:
    """Loss in evaluation mode."""
    was = model.training
    model.eval()
    with torch.no_grad():
        value = loss(model(x), y).item()
    model.train(was)
    return value
