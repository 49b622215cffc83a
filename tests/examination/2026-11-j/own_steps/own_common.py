"""Small helpers of these cases."""
import torch
from torch.utils.data import DataLoader, TensorDataset


def gen(seed):
    return torch.Generator().manual_seed(seed)


def r2(p, y):
    p, y = p.float().reshape(-1), y.float().reshape(-1)
    return max(0.0, float(1 - (p - y).pow(2).mean() / y.var()))


def acc(logits, y):
    return float((logits.argmax(-1) == y).float().mean())


def loader(*ts, bs=64, shuffle=True):
    return DataLoader(TensorDataset(*ts), batch_size=bs, shuffle=shuffle, drop_last=True)


def clusters(seed, n, d, k, sep=1.0, noise=1.0):
    """k classes with two clusters each."""
    g = gen(seed)
    c = sep * torch.randn(2 * k, d, generator=g)
    z = torch.randint(0, 2 * k, (n,), generator=g)
    return c[z] + noise * torch.randn(n, d, generator=g), z % k


def smooth(seed, n, d, out=1):
    """Inputs and a smooth nonlinear function of them, standardised."""
    g = gen(seed)
    x = torch.randn(n, d, generator=g)
    a, b = torch.randn(d, 12, generator=g) / d**0.5, torch.randn(12, out, generator=g)
    y = torch.sin(1.5 * x @ a) @ b + (x @ a[:, :out]) * 0.7
    return x, (y - y.mean(0)) / y.std(0)
