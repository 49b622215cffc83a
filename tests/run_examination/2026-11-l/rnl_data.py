"""Data and helpers of the runs."""

from __future__ import annotations

import math
import random

import numpy as np
import torch
from sklearn.datasets import load_breast_cancer, load_diabetes, load_digits
from torch import nn


def rnl_seed(seed: int) -> None:
    torch.set_num_threads(1)
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


def rnl_digits(train: int = 1297, seed: int = 0):
    """Images 8 x 8 in [0, 1] and their classes: train and held-out."""
    bunch = load_digits()
    x = torch.tensor(bunch.images, dtype=torch.float32).unsqueeze(1) / 16.0
    y = torch.tensor(bunch.target, dtype=torch.long)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))
    x, y = x[order], y[order]
    return (x[:train], y[:train]), (x[train:], y[train:])


def rnl_cancer(seed: int = 0, train: int = 400):
    bunch = load_breast_cancer()
    x = torch.tensor(bunch.data, dtype=torch.float32)
    y = torch.tensor(bunch.target, dtype=torch.float32).unsqueeze(1)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))
    x, y = x[order], y[order]
    mean, std = x[:train].mean(0), x[:train].std(0)
    x = (x - mean) / std
    return (x[:train], y[:train]), (x[train:], y[train:])


def rnl_diabetes(seed: int = 0, train: int = 330):
    bunch = load_diabetes()
    x = torch.tensor(bunch.data, dtype=torch.float32)
    y = torch.tensor(bunch.target, dtype=torch.float32).unsqueeze(1)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))
    x, y = x[order], y[order]
    x = (x - x[:train].mean(0)) / x[:train].std(0)
    y = (y - y[:train].mean(0)) / y[:train].std(0)
    return (x[:train], y[:train]), (x[train:], y[train:])


def rnl_shapes(n: int, size: int = 16, noise: float = 0.25, seed: int = 0):
    """Discs, squares, crosses and rings somewhere in a noisy picture; images, classes, masks."""
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(0, 4, (n,), generator=g)
    cx = torch.rand(n, 1, 1, generator=g) * (size - 9) + 4
    cy = torch.rand(n, 1, 1, generator=g) * (size - 9) + 4
    r = torch.rand(n, 1, 1, generator=g) * 2.0 + 2.5
    grid = torch.arange(size, dtype=torch.float32)
    dy = grid.view(1, -1, 1) - cy
    dx = grid.view(1, 1, -1) - cx
    distance = (dx**2 + dy**2).sqrt()
    disc = distance <= r
    square = (dx.abs() <= r * 0.85) & (dy.abs() <= r * 0.85)
    cross = ((dx.abs() <= 0.9) & (dy.abs() <= r)) | ((dy.abs() <= 0.9) & (dx.abs() <= r))
    ring = (distance <= r) & (distance >= r - 1.3)
    mask = torch.stack([disc, square, cross, ring], 1)[torch.arange(n), y].float().unsqueeze(1)
    bright = torch.rand(n, 1, 1, 1, generator=g) * 0.5 + 0.75
    x = mask * bright + noise * torch.randn(n, 1, size, size, generator=g)
    x = (x - 0.2) / 0.4
    return x, y, mask


_WORDS = {
    "n": "cat dog bird horse house garden river stone letter window table captain farmer doctor market village "
    "mountain bridge forest lamp".split(),
    "a": "old small quiet red bright broken heavy early green strange young tall".split(),
    "v": "sees finds takes follows carries leaves likes paints opens watches".split(),
    "p": "near behind under beside above".split(),
    "t": "today yesterday often never sometimes again".split(),
}


def rnl_text(n: int, seed: int = 0):
    """Characters of made sentences, as numbers; and the size of the alphabet."""
    r = random.Random(seed)
    out = []
    size = 0
    while size < n:
        w = lambda k: r.choice(_WORDS[k])  # noqa: E731
        form = r.random()
        if form < 0.4:
            s = f"the {w('a')} {w('n')} {w('v')} the {w('n')}. "
        elif form < 0.7:
            s = f"{w('t')} the {w('n')} {w('p')} the {w('n')} {w('v')} a {w('a')} {w('n')}. "
        elif form < 0.9:
            s = f"a {w('n')} {w('v')} {r.randint(2, 99)} {w('n')}s {w('p')} the {w('n')}, "
        else:
            s = f"and {w('t')} it {w('v')} them. "
        out.append(s)
        size += len(s)
    text = "".join(out)[:n]
    alphabet = " .,abcdefghijklmnopqrstuvwxyz0123456789"
    index = {c: i for i, c in enumerate(alphabet)}
    return torch.tensor([index[c] for c in text], dtype=torch.long), len(alphabet)


def rnl_windows(stream: torch.Tensor, count: int, length: int, g: torch.Generator | None = None):
    """Windows of a stream: inputs, and the same one further on."""
    start = torch.randint(0, len(stream) - length - 1, (count,), generator=g)
    at = start.unsqueeze(1) + torch.arange(length + 1)
    chunk = stream[at]
    return chunk[:, :-1], chunk[:, 1:]


def rnl_load_series(n: int, seed: int = 0):
    """An hourly load: day, week, weather with a memory, noise; standardised."""
    r = np.random.RandomState(seed)
    t = np.arange(n)
    weather = np.zeros(n)
    for i in range(1, n):
        weather[i] = 0.97 * weather[i - 1] + 0.2 * r.randn()
    x = np.sin(2 * np.pi * t / 24) + 0.5 * np.sin(4 * np.pi * t / 24 + 1) + 0.4 * np.sin(2 * np.pi * t / 168)
    x = x * (1 + 0.2 * np.tanh(weather)) + 0.6 * weather + 0.12 * r.randn(n)
    x = (x - x.mean()) / x.std()
    return torch.tensor(x, dtype=torch.float32)


def rnl_vibration(n: int, length: int = 32, seed: int = 0):
    """Signals of machines in one of four states; [n, length, 1] and classes."""
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(0, 4, (n,), generator=g)
    t = torch.arange(length, dtype=torch.float32)
    phase = torch.rand(n, 1, generator=g) * 2 * math.pi
    f = 0.10 + 0.02 * torch.rand(n, 1, generator=g)
    base = torch.sin(2 * math.pi * f * t + phase)
    second = torch.sin(4 * math.pi * f * t + 2 * phase + 0.5)
    amp = 1 + 0.8 * torch.sin(2 * math.pi * t / length + phase)
    chirp = torch.sin(2 * math.pi * (f + 0.003 * t) * t + phase)
    signals = torch.stack([base, base + 0.7 * second, base * amp, chirp], 1)[torch.arange(n), y]
    x = signals + 0.4 * torch.randn(n, length, generator=g)
    return x.unsqueeze(-1), y


def rnl_ratings(users: int, items: int, rank: int, n: int, noise: float, seed: int = 0):
    """Pairs (user, item) and centred ratings."""
    g = torch.Generator().manual_seed(seed)
    u = torch.randn(users, rank, generator=g) / rank**0.25
    v = torch.randn(items, rank, generator=g) / rank**0.25
    bu = 0.4 * torch.randn(users, generator=g)
    bv = 0.4 * torch.randn(items, generator=g)
    a = torch.randint(0, users, (n,), generator=g)
    b = torch.randint(0, items, (n,), generator=g)
    rating = (u[a] * v[b]).sum(1) + bu[a] + bv[b] + noise * torch.randn(n, generator=g)
    return torch.stack([a, b], 1), rating


def rnl_documents(n: int, vocabulary: int = 400, classes: int = 6, length: int = 24, sharp: float = 1.2, seed: int = 0):
    """Documents of words drawn from the mixture of their class; tokens and classes. Word 0 is never used."""
    world = torch.Generator().manual_seed(1234)
    logits = sharp * torch.randn(classes, vocabulary, generator=world)
    logits[:, 0] = -1e9
    p = logits.softmax(1)
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(0, classes, (n,), generator=g)
    x = torch.multinomial(p[y], length, replacement=True, generator=g)
    return x, y


def rnl_tabular(n: int, features: int = 12, noise: float = 0.1, seed: int = 0):
    """A smooth function of some of the features, and noise."""
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(n, features, generator=g)
    y = (
        torch.sin(1.5 * x[:, 0])
        + 0.5 * x[:, 1] * x[:, 2]
        + 0.7 * torch.tanh(x[:, 3] + x[:, 4])
        - 0.3 * x[:, 5] ** 2
        + 0.3 * x[:, 6]
    )
    y = (y + 0.3) / 1.2 + noise * torch.randn(n, generator=g)
    return x, y.unsqueeze(1)


def rnl_epochs(x: torch.Tensor, y: torch.Tensor, batch: int, seed: int = 0):
    """Shuffled batches without end."""
    g = torch.Generator().manual_seed(seed)
    while True:
        order = torch.randperm(len(x), generator=g)
        for i in range(0, len(x) - batch + 1, batch):
            at = order[i : i + batch]
            yield x[at], y[at]


@torch.no_grad()
def rnl_evaluate(model: nn.Module, loss, x: torch.Tensor, y: torch.Tensor, batch: int = 500) -> float:
    """Mean loss on held-out data, in evaluation mode; the mode is put back."""
    was = model.training
    model.eval()
    total = 0.0
    for i in range(0, len(x), batch):
        total += float(loss(model(x[i : i + batch]), y[i : i + batch])) * len(x[i : i + batch])
    model.train(was)
    return total / len(x)


class RnlAttention(nn.Module):
    def __init__(self, width: int, heads: int, causal: bool):
        super().__init__()
        self.heads, self.causal = heads, causal
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x):
        b, t, w = x.shape
        q, k, v = (z.view(b, t, self.heads, w // self.heads).transpose(1, 2) for z in self.qkv(x).chunk(3, -1))
        z = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        return self.out(z.transpose(1, 2).reshape(b, t, w))


class RnlBlock(nn.Module):
    def __init__(self, width: int, heads: int, causal: bool, dropout: float = 0.0):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = RnlAttention(width, heads, causal)
        self.mlp = nn.Sequential(nn.Linear(width, 3 * width), nn.GELU(), nn.Linear(3 * width, width))
        self.drop = nn.Dropout(dropout)

    def forward(self, x):
        x = x + self.drop(self.attention(self.norm1(x)))
        return x + self.drop(self.mlp(self.norm2(x)))


class RnlCharTransformer(nn.Module):
    def __init__(self, alphabet: int, width: int = 48, depth: int = 2, heads: int = 4, length: int = 64, tied: bool = False):
        super().__init__()
        self.token = nn.Embedding(alphabet, width)
        self.place = nn.Embedding(length, width)
        nn.init.normal_(self.token.weight, std=0.05)
        nn.init.normal_(self.place.weight, std=0.05)
        self.blocks = nn.Sequential(*[RnlBlock(width, heads, True) for _ in range(depth)])
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, alphabet, bias=False)
        if tied:
            self.head.weight = self.token.weight

    def forward(self, x):
        h = self.token(x) + self.place(torch.arange(x.shape[1]))
        return self.head(self.norm(self.blocks(h)))


def rnl_token_loss(out: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(out.flatten(0, 1), target.flatten())
