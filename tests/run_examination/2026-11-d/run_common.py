"""Data and loaders that several runs share."""

import torch
from torch import nn


def gen(seed):
    return torch.Generator().manual_seed(seed)


def mlp(*sizes, act=nn.ReLU):
    layers = []
    for i, (a, b) in enumerate(zip(sizes, sizes[1:])):
        layers.append(nn.Linear(a, b))
        if i < len(sizes) - 2:
            layers.append(act())
    return nn.Sequential(*layers)


def loader(n, size, seed):
    """Indices of shuffled batches, epoch after epoch, without end."""
    g = gen(seed)
    while True:
        order = torch.randperm(n, generator=g)
        for i in range(0, n - size + 1, size):
            yield order[i : i + size]


def classes(n, features, k, seed, teacher=7, noise=0.3):
    """A table whose label is what a random network says, with some noise on its logits."""
    t = gen(teacher)
    a = torch.randn(features, 24, generator=t) / features**0.5
    b = torch.randn(24, k, generator=t) / 24**0.5
    g = gen(seed)
    x = torch.randn(n, features, generator=g)
    logits = torch.tanh(2 * x @ a) @ b * 3
    logits = logits - logits.mean(0)
    return x, (logits + noise * torch.randn(n, k, generator=g)).argmax(1)


def surface(n, features, seed, teacher=5, noise=0.1):
    """A table with a smooth target of unit scale."""
    t = gen(teacher)
    a = torch.randn(features, 12, generator=t) / features**0.5
    c = torch.randn(12, 1, generator=t) / 6**0.5
    g = gen(seed)
    x = torch.randn(n, features, generator=g)
    y = torch.sin(1.5 * x @ a) @ c
    return x, y + noise * torch.randn(n, 1, generator=g)


def pictures(n, k, seed, side=12, noise=0.5, teacher=11):
    """Gratings of k orientations at random phase, with noise."""
    g = gen(seed)
    y = torch.randint(k, (n,), generator=g)
    angle = y * torch.pi / k
    phase = 6.28 * torch.rand(n, generator=g)
    v, u = torch.meshgrid(torch.arange(side), torch.arange(side), indexing="ij")
    wave = torch.cos(angle)[:, None, None] * u + torch.sin(angle)[:, None, None] * v
    x = torch.sin(0.9 * wave + phase[:, None, None])
    x = x + noise * torch.randn(n, side, side, generator=g)
    return x[:, None], y


def tokens(n, length, vocabulary, seed, teacher=3):
    """Sequences from a random second-order chain."""
    t = gen(teacher)
    table = torch.softmax(2.0 * torch.randn(vocabulary, vocabulary, vocabulary, generator=t), -1)
    g = gen(seed)
    s = torch.randint(vocabulary, (n, 2), generator=g)
    columns = [s[:, 0], s[:, 1]]
    for _ in range(length - 1):
        columns.append(torch.multinomial(table[columns[-2], columns[-1]], 1, generator=g)[:, 0])
    return torch.stack(columns[1:], 1)
