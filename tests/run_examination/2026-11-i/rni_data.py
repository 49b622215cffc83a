"""Synthetic data: nothing is downloaded, everything comes from a seeded generator."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F


def rni_gen(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def rni_teacher(n: int, d: int, noise: float, seed: int, outputs: int = 1) -> tuple[Tensor, Tensor]:
    """Regression onto a random two-layer network."""
    w = rni_gen(97 + d)
    a = torch.randn(d, 24, generator=w) / math.sqrt(d)
    b = torch.randn(24, outputs, generator=w) / math.sqrt(24)
    g = rni_gen(seed)
    x = torch.randn(n, d, generator=g)
    y = torch.tanh(2.0 * x @ a) @ b * 1.5
    return x, y + noise * torch.randn(n, outputs, generator=g)


def rni_clusters(n: int, d: int, classes: int, spread: float, seed: int) -> tuple[Tensor, Tensor]:
    """Three clusters for each class."""
    w = rni_gen(11 + 7 * d + classes)
    centres = torch.randn(classes * 3, d, generator=w) * 1.2
    g = rni_gen(seed)
    k = torch.randint(0, classes * 3, (n,), generator=g)
    return centres[k] + spread * torch.randn(n, d, generator=g), k % classes


def rni_images(n: int, classes: int, size: int, noise: float, seed: int) -> tuple[Tensor, Tensor]:
    """Smooth templates, shifted and noisy; one channel."""
    w = rni_gen(5 + classes * size)
    templates = F.interpolate(torch.randn(classes, 1, 4, 4, generator=w), size=(size, size), mode="bilinear")
    templates = templates / templates.std(dim=(1, 2, 3), keepdim=True)
    g = rni_gen(seed)
    y = torch.randint(0, classes, (n,), generator=g)
    shifts = torch.randint(-2, 3, (n, 2), generator=g)
    x = torch.stack([torch.roll(templates[c], tuple(s), dims=(1, 2)) for c, s in zip(y.tolist(), shifts.tolist())])
    return x + noise * torch.randn(x.shape, generator=g), y


def rni_masks(n: int, size: int, noise: float, seed: int) -> tuple[Tensor, Tensor]:
    """Discs and their masks."""
    g = rni_gen(seed)
    grid = torch.arange(size).float()
    yy, xx = torch.meshgrid(grid, grid, indexing="ij")
    c = torch.rand(n, 2, generator=g) * (size - 6) + 3
    r = torch.rand(n, generator=g) * (size / 6) + 2
    m = ((yy - c[:, :1, None]) ** 2 + (xx - c[:, 1:, None]) ** 2 < (r * r)[:, None, None]).float()[:, None]
    texture = torch.sin(xx * 0.7) * 0.4
    return m + texture + noise * torch.randn(m.shape, generator=g), m


def rni_textures(n: int, size: int, noise: float, seed: int) -> tuple[Tensor, Tensor]:
    """Discs that differ from what is around them by the direction of their stripes only."""
    g = rni_gen(seed)
    _, m = rni_masks(n, size, 0.0, seed)
    grid = torch.arange(size).float()
    yy, xx = torch.meshgrid(grid, grid, indexing="ij")
    p = torch.rand(n, 1, 1, 1, generator=g) * 2 * math.pi
    x = torch.where(m > 0, torch.sin(2.2 * xx + p), torch.sin(2.2 * yy + p))
    return x + noise * torch.randn(m.shape, generator=g), m


def rni_waves(n: int, length: int, noise: float, seed: int) -> tuple[Tensor, Tensor]:
    """Two sinusoids; the target is the next value."""
    g = rni_gen(seed)
    t = torch.arange(length + 1).float()
    f = torch.rand(n, 2, generator=g) * 0.5 + 0.15
    p = torch.rand(n, 2, generator=g) * 2 * math.pi
    s = torch.sin(t * f[:, :1] + p[:, :1]) + 0.6 * torch.sin(t * f[:, 1:] * 2 + p[:, 1:])
    s = s + noise * torch.randn(s.shape, generator=g)
    return s[:, :-1, None], s[:, -1:]


def rni_adding(n: int, length: int, g: torch.Generator) -> tuple[Tensor, Tensor]:
    """The adding problem: the sum of two marked numbers."""
    v = torch.rand(n, length, generator=g)
    m = torch.zeros(n, length)
    i = torch.randint(0, length // 2, (n, 1), generator=g)
    j = torch.randint(length // 2, length, (n, 1), generator=g)
    m.scatter_(1, i, 1.0).scatter_(1, j, 1.0)
    return torch.stack([v, m], -1), (v * m).sum(1, keepdim=True)


def rni_text(n: int, length: int, vocab: int, seed: int, tables: int = 3) -> Tensor:
    """Token sequences of a second-order chain: the next token depends on the last one and the one before."""
    w = rni_gen(1000 + vocab + tables)
    logits = torch.randn(vocab, vocab, generator=w) * 1.8
    bias = torch.randn(tables, vocab, generator=w) * 1.2
    g = rni_gen(seed)
    out = torch.randint(0, vocab, (n, 2), generator=g)
    for _ in range(length - 1):
        p = F.softmax(logits[out[:, -1]] + bias[out[:, -2] % tables], -1)
        out = torch.cat([out, torch.multinomial(p, 1, generator=g)], 1)
    return out


def rni_ratings(n: int, users: int, items: int, seed: int) -> tuple[Tensor, Tensor]:
    w = rni_gen(300 + users)
    u = torch.randn(users, 4, generator=w) * 0.7
    v = torch.randn(items, 4, generator=w) * 0.7
    bu, bv = torch.randn(users, generator=w) * 0.4, torch.randn(items, generator=w) * 0.4
    g = rni_gen(seed)
    pairs = torch.stack([torch.randint(0, users, (n,), generator=g), torch.randint(0, items, (n,), generator=g)], 1)
    r = (u[pairs[:, 0]] * v[pairs[:, 1]]).sum(1) + bu[pairs[:, 0]] + bv[pairs[:, 1]]
    return pairs, r + 0.3 * torch.randn(n, generator=g)


def rni_graph(nodes: int, classes: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """A stochastic block model: features, normalised adjacency, classes."""
    g = rni_gen(seed)
    y = torch.randint(0, classes, (nodes,), generator=g)
    same = (y[:, None] == y[None]).float()
    a = (torch.rand(nodes, nodes, generator=g) < 0.04 * same + 0.006 * (1 - same)).float().triu(1)
    a = a + a.T + torch.eye(nodes)
    d = a.sum(1).rsqrt()
    x = torch.randn(nodes, 16, generator=g) * 1.2
    x[torch.arange(nodes), y] += 1.0
    return x, d[:, None] * a * d[None], y


def rni_batches(n: int, size: int, seed: int):  # noqa: ANN201
    """Endless shuffled batches of indices."""
    g = rni_gen(seed)
    while True:
        order = torch.randperm(n, generator=g)
        for i in range(0, n - size + 1, size):
            yield order[i : i + size]
