"""Synthetic sequences, sets and graphs, always the same; only the model's seed varies (EXAM_SEED)."""

import math
import os

import torch
from torch.utils.data import DataLoader, TensorDataset


def seed(n):
    torch.manual_seed(n + 1000 * int(os.environ.get("EXAM_SEED", "0")))


def gen(n):
    return torch.Generator().manual_seed(n)


def loader(*tensors, batch_size=32, shuffle=True):
    return DataLoader(TensorDataset(*tensors), batch_size=batch_size, shuffle=shuffle, drop_last=True)


def accuracy(logits, y):
    """Share of right answers along the last dimension of logits; what is not finite is wrong."""
    right = (logits.argmax(-1) == y) & logits.isfinite().all(-1)
    return right.float().mean().item()


def r2(prediction, y):
    value = 1 - (prediction - y).pow(2).mean() / (y - y.mean(0)).pow(2).mean()
    return max(value.item(), 0.0) if math.isfinite(value.item()) else 0.0


def second_order(n, length=16, vocab=6, noise=0.1, s=0):
    """Language: each token is a fixed function of the two before it, except for 10 % noise. Returns tokens and the function."""
    table = torch.randint(vocab, (vocab, vocab), generator=gen(77))
    g = gen(s)
    x = torch.randint(vocab, (n, length), generator=g)
    for t in range(2, length):
        rule = table[x[:, t - 2], x[:, t - 1]]
        keep = torch.rand(n, generator=g) >= noise
        x[:, t] = torch.where(keep, rule, x[:, t])
    return x, table


def next_score(predict, vocab=6, s=901):
    """Accuracy of `predict(prefix) -> logits of the next token` on prefixes without what follows."""
    x, table = second_order(500, 10, vocab, s=s)
    return accuracy(predict(x), table[x[:, -2], x[:, -1]])


def tagged(n, length=12, words=8, tags=5, s=0):
    """Tags that depend on the word and on the word before it."""
    table = torch.randint(tags, (words, words), generator=gen(55))
    x = torch.randint(words, (n, length), generator=gen(s))
    before = torch.cat([torch.zeros(n, 1, dtype=torch.long), x[:, :-1]], 1)
    return x, table[before, x]


def ordered(n, length=12, vocab=12, s=0):
    """Does word 1 come before word 2? Both occur once."""
    g = gen(s)
    x = torch.randint(3, vocab, (n, length), generator=g)
    where = torch.rand(n, length, generator=g).argsort(1)[:, :2]
    x[torch.arange(n), where[:, 0]] = 1
    x[torch.arange(n), where[:, 1]] = 2
    return x, (where[:, 0] < where[:, 1]).long()


def sentiment(n, length=16, s=0, empty=0.0, shortest=3, longest=None):
    """Padded sentences (0 is padding) of words 1..20; which of three groups of words is most frequent?"""
    g = gen(s)
    longest = longest or length - 1
    lengths = torch.randint(shortest, longest + 1, (n,), generator=g)
    tilt = torch.randint(3, (n,), generator=g)
    group = torch.where(torch.rand(n, length, generator=g) < 0.55, tilt[:, None], torch.randint(3, (n, length), generator=g))
    words = 1 + group * 6 + torch.randint(6, (n, length), generator=g)
    mask = torch.arange(length) < lengths[:, None]
    counts = torch.stack([((group == c) & mask).sum(1) for c in range(3)], 1)
    y = (counts + 0.1 * torch.arange(3)).argmax(1)
    if empty:
        gone = torch.rand(n, generator=g) < empty
        lengths = torch.where(gone, torch.zeros_like(lengths), lengths)
        mask = torch.arange(length) < lengths[:, None]
        y = torch.where(gone, torch.full_like(y, 2), y)
    return words * mask, lengths, y


def flagged(n, length=10, values=8, s=0):
    """One position has a flag; its value is the label. Features: flag, one-hot value."""
    g = gen(s)
    v = torch.randint(values, (n, length), generator=g)
    at = torch.randint(length, (n,), generator=g)
    flag = torch.zeros(n, length, 1)
    flag[torch.arange(n), at] = 1.0
    x = torch.cat([flag, torch.nn.functional.one_hot(v, values).float()], 2)
    return x, v[torch.arange(n), at]


def recall(n, length=12, vocab=6, s=0):
    """The label is the first token; everything after it is noise (tokens from another range)."""
    g = gen(s)
    x = torch.randint(vocab, 2 * vocab, (n, length), generator=g)
    x[:, 0] = torch.randint(vocab, (n,), generator=g)
    return x, x[:, 0].clone()


def waves(n, length=24, ahead=4, s=0, noise=0.05):
    """Sine waves of varying frequency and phase, and their next values."""
    g = gen(s)
    f = 0.15 + 0.35 * torch.rand(n, 1, generator=g)
    phase = 2 * math.pi * torch.rand(n, 1, generator=g)
    t = torch.arange(length + ahead)
    w = torch.sin(f * t + phase) + noise * torch.randn(n, length + ahead, generator=g)
    return w[:, :length].unsqueeze(-1), w[:, length:]


def communities(n, nodes=24, s=0):
    """Graphs of two communities; nodes have noisy features; the label of a node is its community."""
    g = gen(s)
    y = torch.randint(2, (n, nodes), generator=g)
    same = (y[:, :, None] == y[:, None, :]).float()
    p = 0.1 + 0.6 * same
    a = (torch.rand(n, nodes, nodes, generator=g) < p).float().triu(1)
    a = a + a.transpose(1, 2)
    x = torch.randn(n, nodes, 6, generator=g)
    x[..., 0] = x[..., 0] + (2 * y - 1) * 0.7
    x[..., 1] = x[..., 1] - (2 * y - 1) * 0.5
    return x, a, y


def reversal(n, length=6, vocab=10, s=0):
    """Source of words 3..vocab-1 and its reversal; 1 begins a sentence."""
    x = torch.randint(3, vocab, (n, length), generator=gen(s))
    return x, x.flip(1)
