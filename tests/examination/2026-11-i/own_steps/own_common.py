"""Data and scores that the cases have in common."""

import torch
from torch.utils.data import DataLoader, TensorDataset


def gen(seed):
    return torch.Generator().manual_seed(seed)


def blobs(n, k, d, seed, noise=1.0):
    g = gen(seed)
    centres = torch.randn(k, d, generator=g) * 2
    y = torch.randint(0, k, (n,), generator=g)
    x = centres[y] + noise * torch.randn(n, d, generator=g)
    return x / x.std(), y


def wavy(n, d, seed):
    g = gen(seed)
    x = torch.randn(n, d, generator=g)
    y = torch.sin(2 * x[:, 0]) + x[:, 1] * x[:, 2] + 0.5 * x[:, 3]
    return x, ((y - y.mean()) / y.std()).unsqueeze(1)


def rings(n, seed):
    """Three classes by radius and angle, in 2 dimensions."""
    g = gen(seed)
    x = torch.randn(n, 2, generator=g)
    r, a = x.norm(dim=1), torch.atan2(x[:, 1], x[:, 0])
    y = (r > 1.2).long() + ((r > 1.2) & (torch.sin(2 * a) > 0)).long()
    return x, y


def loader(*tensors, size=64):
    return DataLoader(TensorDataset(*tensors), batch_size=size, shuffle=True, drop_last=True)


def r2(p, y):
    return float(1 - (p.float() - y).pow(2).mean() / (y - y.mean(0)).pow(2).mean())


def accuracy(x, y):
    return lambda m: float((m(x).float().argmax(-1) == y).float().mean())


def fit(x, y):
    return lambda m: r2(m(x), y)


def nearest(e, y, half):
    """Accuracy of the nearest centroid: centroids from the first half, asked on the second."""
    k = int(y.max()) + 1
    c = torch.stack([e[:half][y[:half] == i].mean(0) for i in range(k)])
    return float((torch.cdist(e[half:], c).argmin(1) == y[half:]).float().mean())
