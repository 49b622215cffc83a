import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def G(s):
    return torch.Generator().manual_seed(s)


def r2(p, y):
    return max(0.0, 1 - ((p.float() - y) ** 2).sum().item() / ((y - y.mean(0)) ** 2).sum().item())


def acc(o, y):
    return (o.argmax(-1) == y).float().mean().item()


def loader(*t, bs=32, seed=0):
    return DataLoader(TensorDataset(*t), batch_size=bs, shuffle=True, generator=G(seed), drop_last=True)


def mlp(*sizes, act=nn.ReLU):
    m = []
    for a, b in zip(sizes, sizes[1:]):
        m += [nn.Linear(a, b), act()]
    return nn.Sequential(*m[:-1])


def manifold(n, seed, d=16, k=4):
    """Points near a curved k-dimensional surface in d dimensions."""
    g, w = G(seed), G(99)
    a, b = torch.randn(k, d, generator=w), torch.randn(k, d, generator=w)
    z = torch.randn(n, k, generator=g)
    x = z @ a / k**0.5 + 0.3 * torch.tanh(z @ b) + 0.05 * torch.randn(n, d, generator=g)
    return x


def smooth(n, seed, d=8, out=1):
    """A smooth nonlinear regression, targets of unit scale."""
    g, w = G(seed), G(77)
    a, b = torch.randn(d, 2 * out, generator=w) / d**0.5, torch.randn(d, out, generator=w) / d**0.5
    x = torch.randn(n, d, generator=g)
    h = x @ a
    y = torch.sin(1.5 * h[:, :out]) + 0.7 * h[:, out:] + 0.5 * (x @ b)
    return x, y


def groups(n, seed, d=10, k=5, spread=0.8):
    """Classes of two clusters each."""
    g, w = G(seed), G(55)
    c = torch.randn(2 * k, d, generator=w)
    i = torch.randint(0, 2 * k, (n,), generator=g)
    return c[i] + spread * 0.6 * torch.randn(n, d, generator=g), i % k
