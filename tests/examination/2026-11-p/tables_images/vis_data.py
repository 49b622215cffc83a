"""Made-up tables, images and signals, and scores."""

import torch
from torch.utils.data import DataLoader, TensorDataset


def table(n=1024, d=8, noise=0.1):
    """Standard normal features, a smooth nonlinear target with mean 0 and variance near 1."""
    g = torch.Generator().manual_seed(11)
    w = torch.randn(d, 4, generator=g) / d**0.5
    x = torch.randn(n, d)
    h = x @ w
    y = torch.sin(1.5 * h[:, 0]) + h[:, 1].abs() - 0.8 + 0.7 * h[:, 2] + 0.3 * h[:, 3] * h[:, 0]
    y = y + noise * torch.randn(n)
    return x, y


def rings(n=1024, k=3, d=6):
    """Classes by radius in two dimensions, embedded among noise features."""
    r = torch.randint(0, k, (n,))
    a = torch.rand(n) * 6.2832
    rad = 0.5 + r.float() * 0.9 + 0.12 * torch.randn(n)
    x = 0.5 * torch.randn(n, d)
    x[:, 0], x[:, 1] = rad * a.cos(), rad * a.sin()
    return x, r


def blobs(n=1024, k=5, d=10, spread=0.6):
    g = torch.Generator().manual_seed(5)
    c = torch.randn(k, d, generator=g)
    y = torch.randint(0, k, (n,))
    return c[y] + spread * torch.randn(n, d), y


def shapes(n=768, size=12, noise=0.25, channels=1):
    """Pictures of a box, a cross, a disc or stripes, somewhere; values around 0 to 1."""
    y = torch.randint(0, 4, (n,))
    cy = torch.randint(4, size - 4, (n, 1, 1))
    cx = torch.randint(4, size - 4, (n, 1, 1))
    i = torch.arange(size).view(1, -1, 1) - cy
    j = torch.arange(size).view(1, 1, -1) - cx
    box = (torch.maximum(i.abs(), j.abs()) == 3)
    cross = ((i == 0) & (j.abs() <= 3)) | ((j == 0) & (i.abs() <= 3))
    disc = (i**2 + j**2) <= 6
    stripes = ((i + j) % 3 == 0) & (torch.maximum(i.abs(), j.abs()) <= 3)
    forms = torch.stack(torch.broadcast_tensors(box, cross, disc, stripes), 1).float()
    x = forms[torch.arange(n), y].unsqueeze(1)
    x = x.repeat(1, channels, 1, 1)
    return x + noise * torch.randn_like(x), y


def scenes(n=384, size=16, noise=0.3):
    """A bright disc on noise, with a dim distractor; and its mask."""
    cy, cx = (torch.randint(4, size - 4, (n, 1, 1)).float() for _ in range(2))
    r = 2 + 2 * torch.rand(n, 1, 1)
    i = torch.arange(size).view(1, -1, 1)
    j = torch.arange(size).view(1, 1, -1)
    m = ((i - cy) ** 2 + (j - cx) ** 2 <= r**2).float()
    x = m * (0.8 + 0.4 * torch.rand(n, 1, 1)) + noise * torch.randn(n, size, size)
    return x.unsqueeze(1), m.unsqueeze(1)


def waves(n=768, length=48, noise=0.3, channels=1):
    """Sine, square, sawtooth or chirp of random phase and frequency."""
    y = torch.randint(0, 4, (n,))
    t = torch.linspace(0, 1, length).view(1, -1)
    f = 2 + 2 * torch.rand(n, 1)
    p = torch.rand(n, 1)
    u = f * t + p
    k = torch.stack([(6.2832 * u).sin(), (6.2832 * u).sin().sign(), 2 * (u % 1) - 1, (6.2832 * (p + 8 * t * t)).sin()], 1)
    x = k[torch.arange(n), y].unsqueeze(1).repeat(1, channels, 1)
    return x + noise * torch.randn_like(x), y


def loader(*tensors, batch=32, shuffle=True, drop_last=True):
    return DataLoader(TensorDataset(*tensors), batch_size=batch, shuffle=shuffle, drop_last=drop_last)


def accuracy(x, y):
    return lambda model: (model(x).argmax(1) == y).float().mean().item()


def r2(x, y):
    """Share of the variance explained, not below 0."""

    def score(model):
        out = model(x).float().reshape(y.shape)
        return max(0.0, (1 - ((out - y) ** 2).mean() / y.var()).item()) if out.isfinite().all() else 0.0

    return score


def iou(x, m):
    def score(model):
        p = model(x) > 0
        t = m > 0.5
        return ((p & t).sum() / (p | t).sum().clamp(min=1)).item()

    return score
