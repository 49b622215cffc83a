"""Synthetic data and small helpers."""
import math
import torch
from torch.utils.data import DataLoader, TensorDataset


def ytg_loader(*tensors, batch=32, shuffle=True, drop=False):
    return DataLoader(TensorDataset(*tensors), batch_size=batch, shuffle=shuffle, drop_last=drop)


def ytg_accuracy(logits, y):
    return (logits.argmax(-1) == y).float().mean().item()


def ytg_r2(pred, y):
    pred, y = pred.reshape(-1).float(), y.reshape(-1).float()
    value = 1 - ((pred - y) ** 2).mean().item() / y.var(unbiased=False).item()
    return max(0.0, value) if math.isfinite(value) else 0.0


def ytg_before(n, length=12, vocab=20):
    """Whether token 0 comes before token 1."""
    ids = torch.randint(2, vocab, (n, length))
    where = torch.rand(n, length).argsort(1)[:, :2]
    rows = torch.arange(n)
    ids[rows, where[:, 0]] = 0
    ids[rows, where[:, 1]] = 1
    return ids, (where[:, 0] < where[:, 1]).long()


def ytg_ragged(n, low, high, width, vocab=30, classes=2):
    """Padded (0) sentences whose class is told by one keyword (tokens 1 .. classes) among fillers."""
    lengths = torch.randint(low, high + 1, (n,))
    ids = torch.randint(classes + 1, vocab, (n, width))
    y = torch.randint(0, classes, (n,))
    at = (torch.rand(n) * lengths).long()
    ids[torch.arange(n), at] = y + 1
    ids[torch.arange(width) >= lengths[:, None]] = 0
    return ids, lengths, y


def ytg_chain(n, length, vocab, noise=0.0, table=None):
    """Sequences in which the next token is a permutation of the last one."""
    table = torch.randperm(vocab) if table is None else table
    ids = [torch.randint(0, vocab, (n,))]
    for _ in range(length - 1):
        nxt = table[ids[-1]]
        ids.append(torch.where(torch.rand(n) < noise, torch.randint(0, vocab, (n,)), nxt))
    return torch.stack(ids, 1), table


def ytg_chain2(n, length, vocab, table=None):
    """The next token depends on the last two."""
    table = torch.randint(0, vocab, (vocab, vocab)) if table is None else table
    ids = [torch.randint(0, vocab, (n,)), torch.randint(0, vocab, (n,))]
    for _ in range(length - 2):
        nxt = table[ids[-1], ids[-2]]
        ids.append(torch.where(torch.rand(n) < 0.1, torch.randint(0, vocab, (n,)), nxt))
    return torch.stack(ids, 1), table


def ytg_mood(n, length, vocab, mood=None):
    """Sentences, and whether their tokens are on the whole positive."""
    mood = torch.randn(vocab) if mood is None else mood
    ids = torch.randint(0, vocab, (n, length))
    return ids, (mood[ids].sum(1) > 0).long(), mood


def ytg_graph(nodes=120, groups=3, inside=0.2, outside=0.02, features=8, noise=1.5):
    """A stochastic block model with noisy node features."""
    y = torch.arange(nodes) % groups
    p = torch.where(y[:, None] == y[None], torch.tensor(inside), torch.tensor(outside))
    a = torch.triu((torch.rand(nodes, nodes) < p).float(), 1)
    a = a + a.t()
    centers = torch.randn(groups, features)
    return a, centers[y] + noise * torch.randn(nodes, features), y


def ytg_frames(n, length=20, features=12, classes=4):
    """Speech-like frames: a short pattern of its class somewhere in noise."""
    shapes = torch.randn(classes, 4, features) * 2
    x = torch.randn(n, length, features)
    y = torch.randint(0, classes, (n,))
    at = torch.randint(0, length - 4, (n,))
    for k in range(4):
        x[torch.arange(n), at + k] += shapes[y, k]
    return x, y


def ytg_series(n, length=24):
    """Windows of a sum of two waves with a trend, and the next value."""
    t = torch.rand(n, 1) * 500 + torch.arange(length + 1)
    phase = torch.rand(n, 1) * 6.28
    s = torch.sin(2 * math.pi * t / 12 + phase) + 0.5 * torch.sin(2 * math.pi * t / 7) + 0.05 * torch.randn(n, length + 1)
    return s[:, :-1, None], s[:, -1]


def ytg_ratings(users=60, items=40, rank=3):
    """All pairs and their ratings between 1 and 5."""
    u, v = torch.randn(users, rank), torch.randn(items, rank)
    r = (3 + 0.8 * (u @ v.t()) + 0.1 * torch.randn(users, items)).clamp(1, 5)
    ui, vi = torch.meshgrid(torch.arange(users), torch.arange(items), indexing="ij")
    order = torch.randperm(users * items)
    return ui.reshape(-1)[order], vi.reshape(-1)[order], r.reshape(-1)[order]
