"""Data and scores that several cases have in common."""
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def gen(seed):
    return torch.Generator().manual_seed(seed)


def loader(*tensors, size=32, seed=3):
    return DataLoader(TensorDataset(*tensors), batch_size=size, shuffle=True, drop_last=True, generator=gen(seed))


def r2(p, y):
    return float(1 - (p.float() - y).pow(2).sum() / (y - y.mean(0)).pow(2).sum())


def acc(p, y):
    return float((p.argmax(-1) == y).float().mean())


def blobs(n=1500, d=12, k=5, seed=0, noise=0.5):
    g = gen(seed)
    c = torch.randn(k, d, generator=g)
    y = torch.randint(k, (n,), generator=g)
    return c[y] + noise * torch.randn(n, d, generator=g), y


def curved(n=1500, d=8, seed=0, out=1):
    g = gen(seed)
    x = torch.randn(n, d, generator=g)
    a = torch.randn(d, out, generator=g) / d**0.5
    b = torch.randn(d, out, generator=g) / d**0.5
    y = torch.sin(2 * x @ a) + 0.7 * (x @ b).abs()
    return x, (y - y.mean(0)) / y.std(0)


def factors(n=1500, d=16, k=3, seed=0):
    g = gen(seed)
    z = torch.randn(n, k, generator=g)
    return z @ torch.randn(k, d, generator=g) * 0.6 + 0.1 * torch.randn(n, d, generator=g)


def mlp(i, h, o):
    return nn.Sequential(nn.Linear(i, h), nn.ReLU(), nn.Linear(h, h), nn.ReLU(), nn.Linear(h, o))
