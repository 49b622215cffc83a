"""Synthetic data for the cases, and two bundled sets."""
import math

import numpy as np
import torch
from sklearn import datasets
from torch.nn import functional as F

torch.set_num_threads(1)


def rnj_waves(n, length, noise=0.05):
    """Windows of a sum of two sines, and the next value."""
    t = torch.arange(length + 1).float()
    f = torch.rand(n, 1) * 0.3 + 0.15
    p = torch.rand(n, 1) * 2 * math.pi
    a = torch.rand(n, 1) * 0.6 + 0.7
    x = a * torch.sin(f * t + p) + 0.4 * torch.sin(2.7 * f * t + 0.5 * p) + noise * torch.randn(n, length + 1)
    return x[:, :-1, None], x[:, -1:]


def rnj_shapes(n, size=12, noise=0.35):
    """Grey images of a square, a cross, a ring or a diagonal."""
    y = torch.randint(0, 4, (n,))
    g = torch.arange(size).float()
    cx = torch.rand(n, 1, 1) * (size - 6) + 2.5
    cy = torch.rand(n, 1, 1) * (size - 6) + 2.5
    dx = (g[None, None, :] - cx)
    dy = (g[None, :, None] - cy)
    inside = torch.maximum(dx.abs(), dy.abs()) < 3.0
    square = inside & (torch.maximum(dx.abs(), dy.abs()) > 1.6)
    cross = inside & ((dx.abs() < 0.8) | (dy.abs() < 0.8))
    r = (dx ** 2 + dy ** 2).sqrt()
    ring = (r > 1.3) & (r < 2.6)
    diag = inside & ((dx - dy).abs() < 1.1)
    all_ = torch.stack([square, cross, ring, diag], 1).float()
    img = all_[torch.arange(n), y]
    img = (img - 0.15) / 0.36 + noise * torch.randn(n, size, size) / 0.36
    return img[:, None], y


def rnj_cells(n, size=16, noise=0.5):
    """Images with two discs and their mask."""
    g = torch.arange(size).float()
    m = torch.zeros(n, size, size)
    for _ in range(2):
        cx = torch.rand(n, 1, 1) * (size - 4) + 2
        cy = torch.rand(n, 1, 1) * (size - 4) + 2
        r = torch.rand(n, 1, 1) * 2 + 1.5
        m = torch.maximum(m, (((g[None, None] - cx) ** 2 + (g[None, :, None] - cy) ** 2) < r ** 2).float())
    img = 1.6 * (m - 0.2) + noise * torch.randn(n, size, size)
    return img[:, None], m[:, None]


def rnj_digits(train, noisy=0.0):
    """sklearn's digits, shuffled with the current seed and split."""
    d = datasets.load_digits()
    x = torch.tensor((d.data - 4.88) / 6.02, dtype=torch.float32)
    y = torch.tensor(d.target, dtype=torch.long)
    order = torch.randperm(len(y))
    x, y = x[order], y[order]
    xt, yt, xv, yv = x[:train], y[:train].clone(), x[train:], y[train:]
    if noisy:
        wrong = torch.rand(train) < noisy
        yt[wrong] = torch.randint(0, 10, (int(wrong.sum()),))
    return xt, yt, xv, yv


def rnj_wine():
    d = datasets.load_wine()
    x = (d.data - d.data.mean(0)) / d.data.std(0)
    return torch.tensor(x, dtype=torch.float32), torch.tensor(d.target, dtype=torch.long)


def rnj_houses(n, tables):
    """Two category columns and four numbers (one tensor), and a price near unit scale."""
    a, b, w = tables
    c1 = torch.randint(0, len(a), (n,))
    c2 = torch.randint(0, len(b), (n,))
    z = torch.randn(n, 4)
    y = a[c1] + b[c2] * z[:, 0] + torch.tanh(z @ w) + 0.05 * torch.randn(n)
    return torch.cat([c1[:, None].float(), c2[:, None].float(), z], 1), y[:, None]


def rnj_house_tables():
    return torch.randn(20) * 0.7, torch.randn(8) * 0.6, torch.randn(4) * 0.8


def rnj_queries(n, length=12, words=20):
    """Sequences; the class is the group of tokens that has most weight, where early tokens weigh double."""
    x = torch.randint(0, words, (n, length))
    weight = torch.where(torch.arange(length) < length // 2, 2.0, 1.1)
    votes = (F.one_hot(x % 4, 4) * weight[None, :, None]).sum(1)
    return x, votes.argmax(1)


def rnj_chain(n, length, table):
    """Markov chain of tokens."""
    x = torch.zeros(n, length, dtype=torch.long)
    x[:, 0] = torch.randint(0, len(table), (n,))
    for t in range(1, length):
        x[:, t] = torch.multinomial(table[x[:, t - 1]], 1)[:, 0]
    return x


def rnj_sensors(n, length=24):
    """Three channels; the class is which channel leads, and whether its frequency is high."""
    t = torch.arange(length).float()
    lead = torch.randint(0, 3, (n,))
    fast = torch.randint(0, 2, (n,))
    f = torch.where(fast == 1, 0.9, 0.4)[:, None] * (1 + 0.1 * torch.randn(n, 1))
    phase = torch.rand(n, 1) * 6.28
    x = torch.randn(n, length, 3) * 0.7
    x[torch.arange(n), :, lead] += 1.3 * torch.sin(f * t + phase)
    return x, lead * 2 + fast


def rnj_lowrank(n, basis):
    """Points near a curved sheet."""
    z = torch.randn(n, basis.shape[0])
    x = torch.tanh(z @ basis) + 0.05 * torch.randn(n, basis.shape[1])
    return x


def rnj_graphs(n, nodes=8):
    """Node features with the adjacency beside them; the target depends on neighbours' features."""
    a = (torch.rand(n, nodes, nodes) < 0.3).float()
    a = torch.triu(a, 1)
    a = a + a.transpose(1, 2)
    f = torch.randn(n, nodes, 3)
    agg = (a @ f) / (a.sum(-1, keepdim=True) + 1)
    y = torch.tanh(agg[..., 0] * f[..., 1]).sum(1, keepdim=True) + agg[..., 2].mean(1, keepdim=True)
    return torch.cat([f, a], -1), y


def rnj_docs(n, good, words=60, length=10, empty=0.0):
    """Padded (0) documents and whether good words outweigh; some documents may be empty."""
    x = torch.randint(1, words, (n, length))
    keep = torch.randint(3, length + 1, (n, 1))
    x = x * (torch.arange(length)[None] < keep)
    if empty:
        x = x * (torch.rand(n, 1) >= empty)
    y = ((good[x] * (x > 0)).sum(1) > 0).float()
    return x, y[:, None]
