"""Small synthetic data for sequence models, and scores."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset


def rng(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def loader(*tensors: Tensor, batch: int = 32, shuffle: bool = True, drop_last: bool = True) -> DataLoader:
    return DataLoader(TensorDataset(*tensors), batch_size=batch, shuffle=shuffle, drop_last=drop_last)


def accuracy(x, y: Tensor):
    """Share of right classes; targets below 0 do not count."""

    def score(model: nn.Module) -> float:
        out = model(**x) if isinstance(x, dict) else model(x)
        right = out.argmax(-1) == y
        return right[y >= 0].float().mean().item()

    return score


def r2(x, y: Tensor):
    """Explained variance, not below 0."""

    def score(model: nn.Module) -> float:
        out = model(**x) if isinstance(x, dict) else model(x)
        out = out.reshape(y.shape).float()
        return max(0.0, 1 - ((out - y).square().mean() / y.var()).item())

    return score


@cache
def order(n: int = 1024, length: int = 12, vocab: int = 10, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Tokens 1 and 2 occur once each; the class says which comes first."""
    g = rng(seed)
    x = torch.randint(3, vocab, (n, length), generator=g)
    where = torch.rand(n, length, generator=g).argsort(1)[:, :2]
    x.scatter_(1, where, torch.tensor([[1, 2]]).expand(n, 2))
    return x, (where[:, 0] < where[:, 1]).long()


@cache
def text(n: int = 768, length: int = 16, vocab: int = 20, seed: int = 0) -> Tensor:
    """Each token follows from the last by one of two rules, told by the first token; one in twenty is random."""
    g = rng(seed)
    rule = torch.stack([torch.randperm(vocab, generator=rng(90)), torch.randperm(vocab, generator=rng(91))])
    x = torch.randint(0, vocab, (n, length), generator=g)
    kind = torch.randint(0, 2, (n,), generator=g)
    x[:, 0] = kind
    for t in range(2, length):
        keep = torch.rand(n, generator=g) < 0.95
        x[:, t] = torch.where(keep, rule[kind, x[:, t - 1]], x[:, t])
    return x


@cache
def tags(
    n: int = 768, length: int = 20, vocab: int = 16, shortest: int = 3, longest: int = 20, seed: int = 0
) -> tuple[Tensor, Tensor, Tensor]:
    """Tokens from 1 with zeros behind them, a tag (1 to 4) for each that depends on it and the one before; lengths."""
    g = rng(seed)
    x = torch.randint(1, vocab, (n, length), generator=g)
    before = torch.cat([torch.zeros(n, 1, dtype=torch.long), x[:, :-1]], 1)
    y = 1 + (x % 2) + 2 * (before > vocab // 2).long()
    lengths = torch.randint(shortest, longest + 1, (n,), generator=g)
    pad = torch.arange(length)[None] >= lengths[:, None]
    return x.masked_fill(pad, 0), y.masked_fill(pad, 0), lengths


@cache
def waves(n: int = 768, length: int = 24, horizon: int = 1, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Sums of two sines with noise [n, length, 1], and the next values [n, horizon]."""
    g = rng(seed)
    t = torch.arange(length + horizon).float()
    a, b, p, q = torch.rand(4, n, 1, generator=g)
    x = (0.5 + a) * torch.sin(0.4 * t + 6.28 * p) + (0.2 + 0.5 * b) * torch.sin(1.1 * t + 6.28 * q)
    x = x + 0.05 * torch.randn(x.shape, generator=g)
    return x[:, :length, None].contiguous(), x[:, length:].contiguous()


@cache
def recall(n: int = 768, length: int = 30, classes: int = 4, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Vectors [n, length, classes + 1]: a one-hot symbol first, then noise; the class is the symbol."""
    g = rng(seed)
    y = torch.randint(0, classes, (n,), generator=g)
    x = 0.2 * torch.randn(n, length, classes + 1, generator=g)
    x[:, 0] = 0
    x[torch.arange(n), 0, y] = 2.0
    x[:, 0, classes] = 1.0
    return x, y


@cache
def pairs(n: int = 1024, keys: int = 6, values: int = 6, length: int = 5, seed: int = 0) -> tuple[Tensor, Tensor]:
    """key value key value … query: the answer is the value that stands behind the query's key."""
    g = rng(seed)
    k = torch.rand(n, keys, generator=g).argsort(1)[:, :length]
    v = torch.randint(0, values, (n, length), generator=g)
    which = torch.randint(0, length, (n,), generator=g)
    x = torch.stack([k, keys + v], -1).reshape(n, 2 * length)
    row = torch.arange(n)
    return torch.cat([x, k[row, which][:, None]], 1), v[row, which]


@cache
def ratings(users: int = 60, items: int = 50, rank: int = 3, seed: int = 0) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(user, item) pairs and ratings from 1 to 5, for training and held out."""
    g = rng(seed)
    u, v = torch.randn(users, rank, generator=g), torch.randn(items, rank, generator=g)
    full = (3 + 0.9 * (u @ v.T) / rank**0.5 + 0.6 * torch.randn(items, generator=g)).clamp(1, 5)
    ids = torch.cartesian_prod(torch.arange(users), torch.arange(items))
    ids = ids[torch.randperm(len(ids), generator=g)]
    y = full[ids[:, 0], ids[:, 1]] + 0.1 * torch.randn(len(ids), generator=g)
    cut = int(0.8 * len(ids))
    return ids[:cut], y[:cut], ids[cut:], y[cut:]


@cache
def motifs(n: int = 768, length: int = 40, channels: int = 3, classes: int = 4, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Noise [n, channels, length] with a short motif of its class somewhere."""
    g = rng(seed)
    shapes = 2 * torch.randn(classes, channels, 7, generator=rng(77))
    y = torch.randint(0, classes, (n,), generator=g)
    x = 0.5 * torch.randn(n, channels, length, generator=g)
    at = torch.randint(0, length - 7, (n,), generator=g)
    for i in range(n):
        x[i, :, at[i] : at[i] + 7] += shapes[y[i]]
    return x, y
