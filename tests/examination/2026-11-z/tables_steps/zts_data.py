"""Small tables and helpers that the cases share."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset


def gen(seed):
    """A generator of its own, so that the data do not depend on the run."""
    return torch.Generator().manual_seed(seed)


def loader(*tensors, batch=64, shuffle=True):
    return DataLoader(TensorDataset(*tensors), batch_size=batch, shuffle=shuffle, drop_last=True)


class DictRows(Dataset):
    """Rows of named inputs and a target."""

    def __init__(self, columns, target):
        self.columns, self.target = columns, target

    def __len__(self):
        return len(self.target)

    def __getitem__(self, i):
        return {k: v[i] for k, v in self.columns.items()}, self.target[i]


def mlp(*sizes, act=nn.ReLU):
    layers = []
    for a, b in zip(sizes[:-1], sizes[1:], strict=True):
        layers += [nn.Linear(a, b), act()]
    return nn.Sequential(*layers[:-1])


def r2_of(pred, y):
    """Explained variance, mean over columns, not below 0."""
    pred, y = pred.float().reshape(len(y), -1), y.float().reshape(len(y), -1)
    value = 1 - ((pred - y) ** 2).mean(0) / y.var(0, unbiased=False)
    if not torch.isfinite(value).all():
        return 0.0
    return float(value.clamp(min=0).mean())


def r2(x, y):
    return lambda model: r2_of(model(**x) if isinstance(x, dict) else model(x), y)


def accuracy(x, y):
    def score(model):
        out = model(**x) if isinstance(x, dict) else model(x)
        if not torch.isfinite(out).all():
            return 0.0
        if out.dim() == 1 or out.shape[-1] == 1:
            return float(((out.reshape(-1) > 0) == (y.reshape(-1) > 0.5)).float().mean())
        return float((out.argmax(-1) == y).float().mean())

    return score


def friedman(n, seed):
    """A known regression problem; the target is standardised."""
    x = torch.rand(n, 8, generator=gen(seed))
    y = 10 * torch.sin(math.pi * x[:, 0] * x[:, 1]) + 20 * (x[:, 2] - 0.5) ** 2 + 10 * x[:, 3] + 5 * x[:, 4]
    return (x - 0.5) / 0.289, ((y - 14.4) / 4.9).unsqueeze(1)


def sk(name, held=0.25, scale=True):
    """An embedded table of sklearn in random order: train and held-out inputs and labels."""
    from sklearn import datasets

    data = getattr(datasets, "load_" + name)()
    x, y = torch.tensor(data.data, dtype=torch.float32), torch.tensor(data.target)
    order = torch.randperm(len(x), generator=gen(5))
    x, y = x[order], y[order]
    k = int(len(x) * (1 - held))
    if scale:
        mean, std = x[:k].mean(0), x[:k].std(0).clamp(min=1e-6)
        x = (x - mean) / std
    return x[:k], y[:k], x[k:], y[k:]


def blobs(n, seed, classes=4, width=6, spread=0.8):
    """Two lumps per class, which no linear model tells apart."""
    centres = torch.randn(2 * classes, width, generator=gen(77)) * 1.6
    g = gen(seed)
    which = torch.randint(0, 2 * classes, (n,), generator=g)
    return centres[which] + spread * torch.randn(n, width, generator=g), which % classes


def ratings(n, seed, users=60, items=40, rank=3):
    """Pairs of user and item, and a rating with effects of both and of their match."""
    g = gen(3)
    u, v = torch.randn(users, rank, generator=g), torch.randn(items, rank, generator=g)
    bu, bv = torch.randn(users, generator=g), torch.randn(items, generator=g)
    g = gen(seed)
    pairs = torch.stack([torch.randint(0, users, (n,), generator=g), torch.randint(0, items, (n,), generator=g)], 1)
    a, b = pairs.T
    y = bu[a] + bv[b] + 0.4 * (u[a] * v[b]).sum(1)
    return pairs, (y + 0.1 * torch.randn(n, generator=g)).unsqueeze(1) / 1.6


def ring(n, seed, states=12):
    """Transitions of a walk on a ring with a reward at state 0: state, action, reward, next state."""
    g = gen(seed)
    s = torch.randint(0, states, (n,), generator=g)
    a = torch.randint(0, 2, (n,), generator=g)
    t = (s + 2 * a - 1) % states
    return s, a, (t == 0).float(), t


def ring_score(states=12, discount=0.8):
    """How well the values of actions agree with the true ones."""
    s = torch.arange(states)
    after = torch.stack([(s - 1) % states, (s + 1) % states], 1)
    q = torch.zeros(states, 2)
    for _ in range(200):
        q = (after == 0).float() + discount * q.max(1).values[after]
    return lambda model: r2_of(model(torch.eye(states)).reshape(-1), q.reshape(-1))


def survival(n, seed):
    """Covariates, times until failure or censoring, and whether there was a failure."""
    g = gen(seed)
    x = torch.randn(n, 6, generator=g)
    risk = 1.5 * x[:, 0] - 1.2 * x[:, 1] + x[:, 2] * x[:, 3]
    t = -torch.rand(n, generator=g).clamp(min=1e-6).log() * torch.exp(-1.5 * risk)
    c = -torch.rand(n, generator=g).clamp(min=1e-6).log() * 6
    return x, torch.minimum(t, c), (t <= c).float()


def concordance(x, t, e):
    """Somers' D of the predicted risk: 1 is a perfect order."""

    def score(model):
        r = model(x).reshape(-1)
        usable = (t[:, None] < t[None, :]) & (e[:, None] > 0)
        agree = torch.sign(r[:, None] - r[None, :])[usable]
        return float(agree.mean())

    return score


def moons(n, seed, noise=0.07):
    g = gen(seed)
    a = math.pi * torch.rand(n, generator=g)
    up = torch.rand(n, generator=g) < 0.5
    p = torch.stack([torch.where(up, a.cos(), 1 - a.cos()) - 0.5, torch.where(up, a.sin(), 0.5 - a.sin()) - 0.25], 1)
    return (p + noise * torch.randn(n, 2, generator=g)) * torch.tensor([1.15, 2.0]), up.long()


class Coupling(nn.Module):
    """An affine coupling layer on two columns."""

    def __init__(self, flip, width=48, zero=True):
        super().__init__()
        self.flip, self.net = flip, mlp(1, width, width, 2)
        if zero:
            nn.init.zeros_(self.net[-1].weight)
            nn.init.zeros_(self.net[-1].bias)

    def forward(self, x):
        a, b = (x[:, 1:], x[:, :1]) if self.flip else (x[:, :1], x[:, 1:])
        s, t = self.net(a).chunk(2, 1)
        s = 2 * torch.tanh(s)
        b = b * s.exp() + t
        return (torch.cat([b, a], 1) if self.flip else torch.cat([a, b], 1)), s.squeeze(1)


class Flow(nn.Module):
    def __init__(self, depth=6):
        super().__init__()
        self.layers = nn.ModuleList(Coupling(i % 2 == 1) for i in range(depth))

    def forward(self, x):
        """The log-density."""
        total = torch.zeros(len(x))
        for layer in self.layers:
            x, s = layer(x)
            total = total + s
        return total - 0.5 * (x**2).sum(1) - math.log(2 * math.pi)


def likelihood_score(x, low, high):
    """Mean log-density, 0 at `low` and 1 at `high`."""

    def score(model):
        value = float(model(x).mean())
        return min(1.0, max(0.0, (value - low) / (high - low))) if math.isfinite(value) else 0.0

    return score
