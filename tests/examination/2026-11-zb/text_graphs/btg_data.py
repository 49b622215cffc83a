"""Small synthetic texts, token streams, ratings and graphs, and how well a model does on them."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset


def loader(*tensors, size=32, shuffle=True):
    """Batches of tensors."""
    return DataLoader(TensorDataset(*tensors), batch_size=size, shuffle=shuffle, drop_last=True)


def accuracy(x, y):
    """Share of right classes (of all places, if there are several)."""
    return lambda model: (model(x).argmax(-1) == y).float().mean().item()


def explained(x, y):
    """Share of the variance of targets that is explained, at least 0."""

    def score(model):
        out = model(x).reshape(-1).float()
        return max(0.0, 1 - ((out - y.reshape(-1)) ** 2).mean().item() / y.float().var().item())

    return score


def topics(n, classes=4, vocab=120, length=20, words=5):
    """Documents with some words of their topic; the token 0 does not occur."""
    y = torch.randint(classes, (n,))
    x = torch.randint(1 + 10 * classes, vocab, (n, length))
    where = torch.rand(n, length).argsort(1)[:, :words]
    x.scatter_(1, where, 1 + 10 * y[:, None] + torch.randint(10, (n, words)))
    return x, y


def padded_topics(n, most=24, least=6, **options):
    """Documents of different lengths, with zeros behind them, the real places, and topics."""
    x, y = topics(n, length=least, words=3, **options)
    extra = torch.randint(41, 120, (n, most - least))
    length = torch.randint(least, most - 2, (n,))
    x = torch.cat([x, extra], 1)
    real = torch.arange(most)[None] < length[:, None]
    return x * real, real, y


def markov(n, length=12, vocab=24, p=0.85, nxt=None):
    """Token streams in which most tokens have one successor."""
    if nxt is None:
        nxt = torch.randperm(vocab)
    x = [torch.randint(vocab, (n,))]
    for _ in range(length - 1):
        x.append(torch.where(torch.rand(n) < p, nxt[x[-1]], torch.randint(vocab, (n,))))
    return torch.stack(x, 1), nxt


def next_token(nxt, vocab=24, length=6):
    """How often the last place of a beginning names the most likely next token."""
    x, _ = markov(300, length, vocab, nxt=nxt)
    return lambda model: (model(x)[:, -1].argmax(-1) == nxt[x[:, -1]]).float().mean().item()


def lookup(n, pairs=5, keys=10, values=8):
    """Keys, their values, and a key whose value is asked for, in one row."""
    key = torch.rand(n, keys).argsort(1)[:, :pairs]
    value = torch.randint(values, (n, pairs))
    which = torch.randint(pairs, (n,))
    rows = torch.arange(n)
    return torch.cat([key, keys + value, key[rows, which][:, None]], 1), value[rows, which]


def first_of_two(n, length=10, vocab=20):
    """Whether the token 1 comes before the token 2."""
    x = torch.randint(3, vocab, (n, length))
    where = torch.rand(n, length).argsort(1)[:, :2]
    rows = torch.arange(n)
    x[rows, where[:, 0]] = 1
    x[rows, where[:, 1]] = 2
    return x, (where[:, 0] < where[:, 1]).long()


def ratings(users=50, items=50, rank=3, noise=0.2):
    """Pairs of user and item, and how the one likes the other; a fifth is held out."""
    table = torch.randn(users, rank) @ torch.randn(rank, items) / rank**0.5 + noise * torch.randn(users, items)
    pairs = torch.cartesian_prod(torch.arange(users), torch.arange(items))[torch.randperm(users * items)]
    y = table[pairs[:, 0], pairs[:, 1]]
    cut = len(pairs) * 4 // 5
    return (pairs[:cut], y[:cut]), (pairs[cut:], y[cut:])


def communities(n=150, classes=3, inside=0.15, outside=0.02, noise=1.5):
    """A graph with communities: noisy features, adjacency, and who belongs where."""
    y = torch.randint(classes, (n,))
    chance = torch.where(y[:, None] == y[None], inside, outside)
    adjacency = (torch.rand(n, n) < chance).float().triu(1)
    adjacency = adjacency + adjacency.T
    x = torch.cat([F.one_hot(y, classes) + noise * torch.randn(n, classes), torch.randn(n, 5)], 1)
    return x, adjacency, y


def molecules(n, atoms=8, kinds=4):
    """Atoms (one-hot) and bonds, in one tensor, and a property of the atoms and the bonds between kinds."""
    kind = torch.randint(kinds, (n, atoms))
    bonds = (torch.rand(n, atoms, atoms) < 0.3).float().triu(1)
    bonds = bonds + bonds.transpose(1, 2)
    one = F.one_hot(kind, kinds).float()
    weight = torch.tensor([1.0, -0.5, 0.3, -1.0])
    pull = (one[..., 0:1] * bonds * one[..., 1].unsqueeze(1)).sum((1, 2))
    return torch.cat([one, bonds], 2), ((one @ weight).sum(1) + pull - 1.0) / 2.5


def rook(n):
    """Two squares of a chess board, one-hot, and whether a rook goes from the one to the other."""
    a, b = torch.randint(8, (n, 2)), torch.randint(8, (n, 2))
    half = torch.rand(n) < 0.4
    side = torch.randint(2, (n,))
    rows = torch.arange(n)
    b[rows[half], side[half]] = a[rows[half], side[half]]
    x = F.one_hot(torch.cat([a, b], 1), 8).flatten(1).float()
    return x, ((a == b).any(1)).long()


class Pooled(nn.Module):
    """Mean of embeddings, and a hidden layer."""

    def __init__(self, vocab=120, classes=4, width=32):
        super().__init__()
        self.embedding = nn.Embedding(vocab, width)
        self.hidden = nn.Linear(width, 32)
        self.head = nn.Linear(32, classes)

    def forward(self, x):
        return self.head(torch.relu(self.hidden(self.embedding(x).mean(1))))


class Reader(nn.Module):
    """A small transformer that classifies."""

    def __init__(self, vocab=120, classes=4, width=32, length=24, layers=1, dropout=0.0, batch_first=True, places=True):
        super().__init__()
        self.embedding = nn.Embedding(vocab, width)
        self.places = nn.Parameter(0.3 * torch.randn(length, width)) if places else None
        layer = nn.TransformerEncoderLayer(width, 4, 64, dropout, batch_first=batch_first)
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, classes)

    def forward(self, x):
        h = self.embedding(x)
        if self.places is not None:
            h = h + self.places[: x.shape[1]]
        return self.head(self.encoder(h).mean(1))


class Gru(nn.Module):
    """A GRU with an output at each place."""

    def __init__(self, vocab=24, out=24, width=32, bidirectional=False):
        super().__init__()
        self.embedding = nn.Embedding(vocab, width)
        self.gru = nn.GRU(width, width, batch_first=True, bidirectional=bidirectional)
        self.head = nn.Linear(width * (1 + bidirectional), out)

    def forward(self, x):
        return self.head(self.gru(self.embedding(x))[0])


class Factors(nn.Module):
    """Users and items as points whose product is the rating."""

    def __init__(self, users=50, items=50, width=8, std=0.3):
        super().__init__()
        self.user = nn.Embedding(users, width)
        self.item = nn.Embedding(items, width)
        for table in (self.user, self.item):
            nn.init.normal_(table.weight, std=std)

    def forward(self, pairs):
        return (self.user(pairs[:, 0]) * self.item(pairs[:, 1])).sum(1)


class Message(nn.Module):
    """Two rounds of messages between bonded atoms, and a readout."""

    def __init__(self, kinds=4, width=32):
        super().__init__()
        self.kinds = kinds
        self.first = nn.Linear(2 * kinds, width)
        self.second = nn.Linear(2 * width, width)
        self.readout = nn.Linear(width, 1)

    def forward(self, x):
        h, bonds = x[..., : self.kinds], x[..., self.kinds :]
        for layer in (self.first, self.second):
            h = torch.relu(layer(torch.cat([h, bonds @ h], -1)))
        return self.readout(h.mean(1)).squeeze(-1)


def token_loss(out, y):
    """Cross-entropy at all places."""
    return F.cross_entropy(out.flatten(0, 1), y.flatten())
