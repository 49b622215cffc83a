"""Small synthetic texts, streams and graphs whose answers can be learned, and scores on them."""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset


def rng(seed):
    return torch.Generator().manual_seed(seed)


def loader(*tensors, batch=32, shuffle=True, drop_last=True):
    return DataLoader(TensorDataset(*tensors), batch_size=batch, shuffle=shuffle, drop_last=drop_last)


class Rows(Dataset):
    """A dict of columns and their targets, like tokenized data sets."""

    def __init__(self, columns, targets):
        self.columns, self.targets = columns, targets

    def __len__(self):
        return len(self.targets)

    def __getitem__(self, i):
        return {k: v[i] for k, v in self.columns.items()}, self.targets[i]


def accuracy(x, y):
    def score(model):
        out = model(**x) if isinstance(x, dict) else model(x)
        return (out.argmax(-1) == y).float().mean().item()

    return score


def topics(n, classes=4, vocab=120, length=16, share=0.35, seed=0):
    """Documents: some of their words belong to the topic, the others to none; ids below 2 are special."""
    g = rng(seed)
    y = torch.randint(classes, (n,), generator=g)
    own = 2 + y[:, None] * 10 + torch.randint(10, (n, length), generator=g)
    other = 2 + classes * 10 + torch.randint(vocab - 2 - classes * 10, (n, length), generator=g)
    return torch.where(torch.rand(n, length, generator=g) < share, own, other), y


def cut(ids, least, seed=0, most=None):
    """Pad with 0 behind random lengths."""
    n, length = ids.shape
    lengths = torch.randint(least, (most or length) + 1, (n,), generator=rng(seed + 77))
    mask = torch.arange(length) < lengths[:, None]
    return ids * mask, lengths, mask


def before(n, vocab=20, length=10, seed=0):
    """Whether marker 2 comes before marker 3."""
    g = rng(seed)
    ids = torch.randint(4, vocab, (n, length), generator=g)
    places = torch.rand(n, length, generator=g).argsort(1)[:, :2]
    ids.scatter_(1, places[:, :1], 2).scatter_(1, places[:, 1:], 3)
    return ids, (places[:, 0] < places[:, 1]).long()


def tagged(n, vocab=30, length=12, seed=0):
    """Tags 0 … 7: the group of a word, shifted by 4 after words of two of the groups."""
    g = rng(seed)
    group = torch.randint(4, (vocab,), generator=rng(5))
    ids = torch.randint(2, vocab, (n, length), generator=g)
    shifted = torch.zeros(n, length, dtype=torch.long)
    shifted[:, 1:] = (group[ids[:, :-1]] > 1) * 4
    return ids, group[ids] + shifted


def chain(vocab):
    """The usual successor of every token: one long cycle."""
    order = torch.randperm(vocab, generator=rng(11))
    follow = torch.empty_like(order)
    follow[order] = order.roll(-1)
    return follow


def stream(n, vocab=24, length=14, noise=0.15, seed=0):
    """Sequences in which most tokens are followed by their successor."""
    g, follow = rng(seed), chain(vocab)
    rows = [torch.randint(vocab, (n,), generator=g)]
    for _ in range(length - 1):
        stray = torch.randint(vocab, (n,), generator=g)
        rows.append(torch.where(torch.rand(n, generator=g) < noise, stray, follow[rows[-1]]))
    return torch.stack(rows, 1)


def next_score(vocab=24, length=14):
    """How often the successor of the last token is the first choice, given prefixes."""
    ids, follow = stream(300, vocab, length, seed=999), chain(vocab)

    def score(model):
        hits = [(model(ids[:, :k])[:, -1].argmax(-1) == follow[ids[:, k - 1]]).float().mean() for k in (4, 7, 10)]
        return torch.stack(hits).mean().item()

    return score


def first(n, symbols=6, vocab=16, length=30, seed=0):
    """Streams whose first token is to be recalled at the end."""
    g = rng(seed)
    ids = torch.randint(symbols, vocab, (n, length), generator=g)
    y = torch.randint(symbols, (n,), generator=g)
    ids[:, 0] = y
    return ids, y


def tastes(users=60, items=60, rank=3):
    """A complete matrix of tastes with a spread of 1, and a mask of what is known."""
    g = rng(21)
    full = torch.randn(users, rank, generator=g) @ torch.randn(rank, items, generator=g)
    full = full / full.std()
    return full, torch.rand(users, items, generator=g) < 0.75


def rated(known=True):
    full, mask = tastes()
    u, i = (mask if known else ~mask).nonzero(as_tuple=True)
    return torch.stack([u, i], 1), full[u, i]


def explained(x, y, scale=1.0, shift=0.0):
    """The share of the variance that is explained, at least 0."""

    def score(model):
        out = (model(x).reshape(-1) - shift) / scale
        return max(0.0, 1 - ((out - y) ** 2).mean().item() / y.var().item())

    return score


def blocks(nodes=150, classes=3, inside=0.12, outside=0.015, noise=1.6, seed=3):
    """A graph of communities: adjacency, node features, communities, and which nodes are for training."""
    g = rng(seed)
    y = torch.arange(nodes) % classes
    chance = torch.where(y[:, None] == y[None], inside, outside)
    upper = (torch.rand(nodes, nodes, generator=g) < chance).float().triu(1)
    features = nn.functional.one_hot(y, classes).float() @ torch.randn(classes, 8, generator=g)
    features = features + noise * torch.randn(nodes, 8, generator=g)
    return upper + upper.T, features, y, torch.rand(nodes, generator=g) < 0.5


def molecules(n, nodes=10, seed=0):
    """Small graphs with two types of nodes: does it bind like with like? Adjacency, types, answers."""
    g = rng(seed)
    kind = torch.randint(2, (n, nodes), generator=g)
    y = torch.randint(2, (n,), generator=g)
    like = (kind[:, :, None] == kind[:, None]).long() == y[:, None, None]
    upper = (torch.rand(n, nodes, nodes, generator=g) < torch.where(like, 0.5, 0.12)).float().triu(1)
    return upper + upper.transpose(1, 2), nn.functional.one_hot(kind, 2).float(), y


def triples(entities=40, steps=(1, 5, 12), seed=0):
    """A ring: relation r leads from h to h + steps[r]; known and held-out ones."""
    h, r = torch.meshgrid(torch.arange(entities), torch.arange(len(steps)), indexing="ij")
    h, r = h.reshape(-1), r.reshape(-1)
    rows = torch.stack([h, r, (h + torch.tensor(steps)[r]) % entities], 1)
    rows = rows[torch.randperm(len(rows), generator=rng(seed))]
    return rows[:-12], rows[-12:]


def pairs(n, subjects=40, seed=0):
    """Queries of 5 words and documents of 12; both speak of one subject of three words in another vocabulary each."""
    g = rng(seed)
    s = torch.randint(subjects, (n,), generator=g)

    def words(length, share):
        own = s[:, None] * 3 + torch.randint(3, (n, length), generator=g)
        other = subjects * 3 + torch.randint(60, (n, length), generator=g)
        return torch.where(torch.rand(n, length, generator=g) < share, own, other)

    return words(5, 0.7), words(12, 0.6), s


def retrieval(similarity, subjects=40):
    """How often the best of one document per subject is the right one."""
    q, d, s = pairs(1500, subjects, seed=998)
    firsts = torch.stack([(s == k).nonzero()[0, 0] for k in range(subjects)])
    q, s, d = q[:200], s[:200], d[firsts]

    def score(model):
        return (similarity(model, q, d).argmax(1) == s).float().mean().item()

    return score


def bags(n, size=12, seed=0):
    """Sets of points in the plane: is their spread wide or narrow around a random middle?"""
    g = rng(seed)
    y = torch.randint(3, (n,), generator=g)
    middle = torch.randn(n, 1, 2, generator=g)
    return middle + torch.randn(n, size, 2, generator=g) * torch.tensor([0.3, 0.9, 2.0])[y][:, None, None], y


def fit(model, x, y, steps=200, lr=3e-3, batch=64):
    """Pretraining of a classifier."""
    opt = torch.optim.Adam(model.parameters(), lr)
    for _ in range(steps):
        i = torch.randint(len(y), (batch,))
        opt.zero_grad()
        out = model(x[i])
        nn.functional.cross_entropy(out.flatten(0, -2), y[i].flatten()).backward()
        opt.step()
    return model
