from functools import lru_cache

import torch
from torch.utils.data import DataLoader, TensorDataset


def gen(seed):
    return torch.Generator().manual_seed(seed)


@lru_cache(None)
def table(n=1500, d=8, seed=0):
    """Features and a smooth nonlinear target of unit variance."""
    g = gen(seed)
    x = torch.randn(n, d, generator=g)
    t = 1.2 * x[:, 0] + x[:, 1] ** 2 - 1.0 * x[:, 2].abs() + 0.8 * x[:, 3] * (x[:, 4] > 0) + 0.1 * torch.randn(n, generator=g)
    return x, (t - t.mean()) / t.std()


@lru_cache(None)
def classes(n=1500, d=8, k=3, seed=0):
    x, t = table(n, d, seed)
    edges = torch.quantile(t, torch.linspace(0, 1, k + 1)[1:-1])
    return x, torch.bucketize(t, edges)


@lru_cache(None)
def shapes(n=900, size=12, seed=0, noise=0.12):
    """Bars, diagonals and frames at random places; pixels in 0..1."""
    g = gen(seed)
    x = torch.zeros(n, 1, size, size)
    y = torch.randint(0, 4, (n,), generator=g)
    pos = torch.randint(0, size - 5, (n, 2), generator=g).tolist()
    for i, (c, (r, s)) in enumerate(zip(y.tolist(), pos)):
        if c == 0:
            x[i, 0, r + 2, s : s + 6] = 1
        elif c == 1:
            x[i, 0, r : r + 6, s + 2] = 1
        elif c == 2:
            for j in range(5):
                x[i, 0, r + j, s + j] = 1
        else:
            x[i, 0, r : r + 5, s : s + 5] = 1
            x[i, 0, r + 1 : r + 4, s + 1 : s + 4] = 0
    x = (x * 0.8 + noise * torch.randn(x.shape, generator=g).abs()).clamp(0, 1)
    return x, y


@lru_cache(None)
def discs(n=400, size=16, seed=0):
    """Images with one bright disc among stripes, its mask, centre and radius."""
    g = gen(seed)
    centre = 4 + (size - 8) * torch.rand(n, 2, generator=g)
    radius = 2 + 2 * torch.rand(n, generator=g)
    grid = torch.arange(size).float()
    dist = ((grid[None, :, None] - centre[:, 0, None, None]) ** 2 + (grid[None, None, :] - centre[:, 1, None, None]) ** 2).sqrt()
    mask = (dist < radius[:, None, None]).float()
    phase = 6.28 * torch.rand(n, 1, 1, generator=g)
    x = 0.25 * torch.sin(grid[None, None, :] + phase) + 0.8 * mask + 0.25 * torch.randn(n, size, size, generator=g)
    return x[:, None], mask, centre, radius


def loader(*tensors, batch_size=64, shuffle=True):
    return DataLoader(TensorDataset(*tensors), batch_size=batch_size, shuffle=shuffle, drop_last=True)


def accuracy(x, y):
    return lambda model: (model(x).argmax(1) == y).float().mean().item()


def r2_of(p, y):
    return max(0.0, 1 - ((p - y) ** 2).mean().item() / y.var(unbiased=False).item())


def r2(x, y):
    return lambda model: r2_of(model(x).reshape(y.shape), y)


def iou_of(p, m):
    p, m = p.bool(), m.bool()
    return (p & m).sum().item() / max(1, (p | m).sum().item())
