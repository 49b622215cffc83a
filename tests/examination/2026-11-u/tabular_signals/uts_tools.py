"""Data and measures that several cases take."""
import math

import torch
from torch.utils.data import DataLoader, TensorDataset


def uts_gen(seed):
    return torch.Generator().manual_seed(seed)


def uts_loader(*tensors, size=64, shuffle=True, drop_last=False):
    return DataLoader(TensorDataset(*tensors), batch_size=size, shuffle=shuffle, drop_last=drop_last)


def uts_r2(p, y):
    p = p.float().reshape(y.shape)
    return max(0.0, float(1 - ((p - y) ** 2).mean() / ((y - y.mean()) ** 2).mean()))


def uts_acc(logits, y):
    return float((logits.argmax(-1) == y).float().mean())


def uts_auc(s, y):
    s = s.reshape(-1)
    pos, neg = s[y > 0.5], s[y < 0.5]
    d = pos[:, None] - neg[None]
    return float((d > 0).float().mean() + 0.5 * (d == 0).float().mean())


def uts_table(n, seed, d=8, noise=0.1):
    """A regression table with interactions."""
    g = uts_gen(seed)
    x = torch.randn(n, d, generator=g)
    y = torch.sin(1.5 * x[:, 0]) + 0.8 * x[:, 1] * (x[:, 2] > 0) - 0.5 * x[:, 3].abs() + 0.5 * x[:, 4]
    return x, y + noise * torch.randn(n, generator=g)


def uts_waves(n, seed, t=48, classes=4, noise=0.3, channels=2):
    """Windows of sensors whose frequency tells the class."""
    g = uts_gen(seed)
    y = torch.randint(classes, (n,), generator=g)
    time = torch.arange(t) / t
    f = 2.0 + 2.5 * y + 0.6 * torch.rand(n, generator=g)
    phase = 2 * math.pi * torch.rand(n, 1, channels, generator=g)
    x = torch.sin(2 * math.pi * f[:, None, None] * time[None, :, None] + phase)
    return x + noise * torch.randn(n, t, channels, generator=g), y


def uts_clusters(n, seed, d=12, classes=5, noise=0.7):
    """Classes of two clusters each."""
    c = 1.5 * torch.randn(classes, 2, d, generator=uts_gen(77))
    g = uts_gen(seed)
    y = torch.randint(classes, (n,), generator=g)
    k = torch.randint(2, (n,), generator=g)
    return c[y, k] + noise * torch.randn(n, d, generator=g), y
