"""Data that the cases share."""

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset


def g(seed):
    return torch.Generator().manual_seed(seed)


def loader(*tensors, size=64, shuffle=True):
    return DataLoader(TensorDataset(*tensors), batch_size=size, shuffle=shuffle, drop_last=True)


class Records(Dataset):
    """Rows of named columns."""

    def __init__(self, **columns):
        self.columns = columns

    def __len__(self):
        return len(next(iter(self.columns.values())))

    def __getitem__(self, i):
        return {name: column[i] for name, column in self.columns.items()}


def records(size=64, shuffle=True, **columns):
    return DataLoader(Records(**columns), batch_size=size, shuffle=shuffle, drop_last=True)


def mlp(*sizes, act=nn.ReLU):
    layers = []
    for a, b in zip(sizes[:-1], sizes[1:]):
        layers += [nn.Linear(a, b), act()]
    return nn.Sequential(*layers[:-1])


def r2(prediction, target):
    """1 is perfect, 0 the mean; not below 0."""
    value = 1 - ((prediction - target) ** 2).sum() / ((target - target.mean(0)) ** 2).sum()
    return max(0.0, float(value)) if torch.isfinite(value) else 0.0


def accuracy(logits, labels):
    if not torch.isfinite(logits).all():
        return 0.0
    return float((logits.argmax(-1) == labels).float().mean())


def clusters(count, classes=6, dim=16, spread=0.8, seed=0):
    """Classes made of three blobs each."""
    gen = g(seed)
    centres = torch.randn(classes * 3, dim, generator=gen) * 1.2
    which = torch.randint(0, classes * 3, (count,), generator=gen)
    x = centres[which] + spread * torch.randn(count, dim, generator=gen)
    return x, which % classes


def pairs(count, dim=12, out=20, seed=0):
    """Two nonlinear views of one hidden vector."""
    gen = g(seed)
    z = torch.randn(count, 6, generator=gen)
    a = torch.tanh(z @ torch.randn(6, dim, generator=gen) * 0.7) + 0.05 * torch.randn(count, dim, generator=gen)
    b = torch.tanh(z @ torch.randn(6, out, generator=gen) * 0.7) + 0.05 * torch.randn(count, out, generator=gen)
    return a, b


def retrieval(u, v):
    """How often the nearest of the others is the partner."""
    if not (torch.isfinite(u).all() and torch.isfinite(v).all()):
        return 0.0
    u, v = nn.functional.normalize(u, dim=1), nn.functional.normalize(v, dim=1)
    return float(((u @ v.T).argmax(1) == torch.arange(len(u))).float().mean())


def neighbours(train, labels, test, truth, k=5):
    """Accuracy of the k nearest neighbours."""
    if not (torch.isfinite(train).all() and torch.isfinite(test).all()):
        return 0.0
    near = torch.cdist(test, train).topk(k, largest=False).indices
    return float((labels[near].mode(1).values == truth).float().mean())


def manifold(count, dim=24, hidden=4, seed=0, world=7):
    """Points on a curved surface of few dimensions."""
    w = g(world)
    a, b = torch.randn(hidden, 32, generator=w), torch.randn(32, dim, generator=w) / 4
    gen = g(seed)
    z = torch.randn(count, hidden, generator=gen)
    return torch.tanh(z @ a * 0.6) @ b + 0.03 * torch.randn(count, dim, generator=gen)
