"""Small made-up corpora, graphs and tables whose answers can be learned."""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def loader(*tensors, size=32, shuffle=True):
    """The usual loader."""
    return DataLoader(TensorDataset(*tensors), batch_size=size, shuffle=shuffle, drop_last=True)


def accuracy(x, y):
    """A score: the share of right classes, at places whose target is not negative."""

    def score(model):
        guess = model(x).argmax(-1)
        real = y >= 0
        return (guess == y)[real].float().mean().item()

    return score


def explained(x, y):
    """A score: the share of variance explained, no less than 0."""

    def score(model):
        guess = model(x).reshape(y.shape)
        return max(0.0, (1 - ((guess - y) ** 2).mean() / y.var()).item())

    return score


def topics(n, length=16, vocab=120, classes=4, share=0.35, start=1):
    """Texts of which some words belong to their topic; word 0 is kept for padding."""
    own = (vocab - start) // (2 * classes)
    y = torch.randint(classes, (n,))
    common = torch.randint(start + own * classes, vocab, (n, length))
    special = start + y[:, None] * own + torch.randint(own, (n, length))
    return torch.where(torch.rand(n, length) < share, special, common), y


def padded(x, least, width):
    """The texts cut to random lengths and padded with 0 on the right."""
    n, length = x.shape
    lengths = torch.randint(least, length + 1, (n,))
    full = torch.zeros(n, width, dtype=torch.long)
    full[:, :length] = torch.where(torch.arange(length) < lengths[:, None], x, 0)
    return full


def chain(n, length, vocab, sure=0.9, start=0):
    """Token streams in which each token mostly has one successor."""
    order = torch.randperm(vocab - start)
    after = torch.empty_like(order)
    after[order] = order.roll(-1)
    rows = [torch.randint(vocab - start, (n,))]
    for _ in range(length - 1):
        noise = torch.randint(vocab - start, (n,))
        rows.append(torch.where(torch.rand(n) < sure, after[rows[-1]], noise))
    return torch.stack(rows, 1) + start


def tags(n, length, vocab=60, kinds=5):
    """Sentences whose tags follow from a word and the one before it."""
    kind = torch.randint(kinds, (vocab,))
    strong = torch.rand(vocab) < 0.3
    x = torch.randint(1, vocab, (n, length))
    before = torch.cat([torch.ones(n, 1, dtype=torch.long), x[:, :-1]], 1)
    return x, torch.where(strong[before], (kind[x] + 1) % kinds, kind[x])


def first_of_two(n, length=12, vocab=30):
    """Which of words 1 and 2 stands first?"""
    x = torch.randint(3, vocab, (n, length))
    places = torch.rand(n, length).argsort(1)[:, :2]
    x.scatter_(1, places, torch.tensor([[1, 2]]).expand(n, 2))
    return x, (places[:, 0] > places[:, 1]).long()


def lookup(n, pairs=6, keys=12, values=10):
    """Keys, their values, and a question; x holds keys | values | the key that is asked for."""
    k = torch.rand(n, keys).argsort(1)[:, :pairs]
    v = torch.randint(values, (n, pairs))
    asked = torch.randint(pairs, (n, 1))
    return torch.cat([k, v, k.gather(1, asked)], 1), v.gather(1, asked)[:, 0]


def communities(nodes=150, groups=3, inside=0.15, outside=0.01, width=12, noise=1.5):
    """A graph of communities: adjacency, noisy features, community of each node."""
    y = torch.arange(nodes) % groups
    chance = torch.where(y[:, None] == y[None], inside, outside)
    upper = (torch.rand(nodes, nodes) < chance).float().triu(1)
    features = torch.randn(groups, width)[y] + noise * torch.randn(nodes, width)
    return upper + upper.T, features, y


def normalised(adjacency):
    """Symmetric normalisation with loops."""
    full = adjacency + torch.eye(len(adjacency))
    scale = full.sum(1).rsqrt()
    return scale[:, None] * full * scale[None]


def molecules(n, atoms=9, kinds=4):
    """One-hot atoms with bonds to others, and an energy of atoms and of bonds."""
    z = torch.randint(kinds, (n, atoms))
    x = nn.functional.one_hot(z, kinds).float()
    upper = (torch.rand(n, atoms, atoms) < 0.25).float().triu(1)
    bonds = upper + upper.transpose(1, 2)
    own = torch.tensor([0.5, -1.0, 1.5, 0.0])
    pair = torch.tensor([1.0, -1.0, 0.5, -0.5])
    energy = own[z].sum(1) + 0.5 * torch.einsum("bi,bij,bj->b", pair[z], bonds, pair[z])
    return x, bonds, energy


def ratings(users=60, items=60, rank=3):
    """All pairs in random order, with ratings of low rank."""
    table = torch.randn(users, rank) @ torch.randn(items, rank).T / rank**0.5
    pairs = torch.cartesian_prod(torch.arange(users), torch.arange(items))[torch.randperm(users * items)]
    return pairs, table[pairs[:, 0], pairs[:, 1]]


def translated(n, length=8, vocab=80):
    """Queries and documents: the same words in two languages, shuffled, some replaced."""
    table = torch.randperm(vocab)
    a = torch.randint(vocab, (n, length))
    b = table[a].gather(1, torch.rand(n, length).argsort(1))
    return a, torch.where(torch.rand(n, length) < 0.15, torch.randint(vocab, (n, length)), b)
