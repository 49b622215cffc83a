"""Synthetic texts, chains, graphs and series, drawn with torch's global generator."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, TensorDataset


class DictSet(Dataset):
    """Examples of the form ({name: tensor}, target)."""

    def __init__(self, target, **columns):
        self.columns, self.target = columns, target

    def __len__(self):
        return len(self.target)

    def __getitem__(self, i):
        return {k: v[i] for k, v in self.columns.items()}, self.target[i]


def wtg_loader(*tensors, size=32, shuffle=True, drop_last=False):
    return DataLoader(TensorDataset(*tensors), batch_size=size, shuffle=shuffle, drop_last=drop_last)


def wtg_chain(n: int, length: int, vocab: int = 8, noise: float = 0.1, table: Tensor | None = None):
    """Sequences whose next token follows from the last two, mostly; 0..vocab-1."""
    if table is None:
        table = torch.randint(0, vocab, (vocab, vocab))
    x = torch.randint(0, vocab, (n, length))
    for t in range(2, length):
        nxt = table[x[:, t - 2], x[:, t - 1]]
        keep = torch.rand(n) < noise
        x[:, t] = torch.where(keep, x[:, t], nxt)
    return x, table


def wtg_topic_text(n: int, length: int, classes: int = 5, vocab: int = 60, hits: int = 3):
    """Texts with some words of one topic among fillers; topics have 4 words each, ids from 1 (0 is padding)."""
    y = torch.randint(0, classes, (n,))
    x = torch.randint(1 + 4 * classes, vocab, (n, length))
    for _ in range(hits):
        at = torch.randint(0, length, (n,))
        x[torch.arange(n), at] = 1 + 4 * y + torch.randint(0, 4, (n,))
    return x, y


def wtg_padded(x: Tensor, low: int):
    """Cut each text to a random length of at least `low`, and fill with zeros."""
    n, length = x.shape
    lengths = torch.randint(low, length + 1, (n,))
    x = x.clone()
    x[torch.arange(length)[None] >= lengths[:, None]] = 0
    return x, lengths


def wtg_short_in_long(n, short, total, classes=5, vocab=40):
    """Texts of 4..short words in `total` places, with a word of the topic in each."""
    x, y = wtg_topic_text(n, short, classes, vocab, hits=1)
    lengths = torch.randint(4, short + 1, (n,))
    at = (torch.rand(n) * lengths).long()
    x[torch.arange(n), at] = 1 + 4 * y + torch.randint(0, 4, (n,))
    out = torch.zeros(n, total, dtype=torch.long)
    out[:, :short] = x
    out[torch.arange(total)[None] >= lengths[:, None]] = 0
    return out, lengths, y


def wtg_before(n: int, length: int, vocab: int = 20):
    """Texts with words 1 and 2; which comes first?"""
    x = torch.randint(3, vocab, (n, length))
    places = torch.rand(n, length).argsort(1)[:, :2]
    rows = torch.arange(n)
    x[rows, places[:, 0]] = 1
    x[rows, places[:, 1]] = 2
    return x, (places[:, 0] < places[:, 1]).long()


def wtg_series(n: int, length: int, ahead: int = 1):
    """Sums of two waves with a trend and little noise: windows and what follows."""
    t = torch.arange(length + ahead).float()
    f = 0.15 + 0.5 * torch.rand(n, 2, 1)
    p = 6.283 * torch.rand(n, 2, 1)
    a = 0.5 + torch.rand(n, 2, 1)
    s = (a * torch.sin(f * t + p)).sum(1) + 0.02 * torch.randn(n, length + ahead)
    return s[:, :length, None], s[:, length:]


def wtg_communities(nodes: int, groups: int = 4, inside: float = 0.25, outside: float = 0.02, dim: int = 16, noise=1.5):
    """A graph with communities and noisy features of them."""
    y = torch.randint(0, groups, (nodes,))
    p = torch.where(y[:, None] == y[None], inside, outside)
    upper = (torch.rand(nodes, nodes) < p).float().triu(1)
    adjacency = upper + upper.T
    centres = torch.randn(groups, dim)
    x = centres[y] + noise * torch.randn(nodes, dim)
    return x, adjacency, y


def wtg_ratings(users: int = 60, items: int = 50, rank: int = 3, n: int = 2400):
    """Who rates what how: about standard normal."""
    u, v = torch.randn(users, rank), torch.randn(items, rank)
    full = (u @ v.T) / rank**0.5
    flat = torch.randperm(users * items)[:n]
    return flat // items, flat % items, full[flat // items, flat % items]


def wtg_r2(prediction: Tensor, target: Tensor) -> float:
    prediction = prediction.float().reshape(target.shape)
    rest = ((prediction - target) ** 2).mean() / ((target - target.mean()) ** 2).mean()
    return max(0.0, 1 - rest.item()) if torch.isfinite(rest) else 0.0


def wtg_accuracy(logits: Tensor, target: Tensor) -> float:
    if not torch.isfinite(logits).all():
        return 0.0
    return (logits.argmax(-1) == target).float().mean().item()
