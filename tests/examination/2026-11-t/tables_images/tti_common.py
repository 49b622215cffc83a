import numpy as np
import torch
import torch.nn.functional as F
from sklearn import datasets
from torch.utils.data import DataLoader, TensorDataset


def gen(seed=7):
    return torch.Generator().manual_seed(seed)


def split(x, y, share=0.75, seed=3):
    order = torch.randperm(len(x), generator=gen(seed))
    n = int(share * len(x))
    return x[order[:n]], y[order[:n]], x[order[n:]], y[order[n:]]


def sk(name, scaled=True, dtype=None):
    d = getattr(datasets, "load_" + name)()
    x = torch.tensor(np.asarray(d.data), dtype=torch.float32)
    y = torch.tensor(np.asarray(d.target))
    y = y.float() if name == "diabetes" else y.long()
    if scaled:
        x = (x - x.mean(0)) / x.std(0).clamp(min=1e-6)
    return split(x, y)


def digits(divide=16.0):
    """Images of 1×8×8."""
    d = datasets.load_digits()
    x = torch.tensor(d.images, dtype=torch.float32)[:, None] / divide
    return split(x, torch.tensor(d.target).long())


def loader(x, y, size=32, shuffle=True, drop_last=True):
    return DataLoader(TensorDataset(x, y), batch_size=size, shuffle=shuffle, drop_last=drop_last)


def accuracy(x, y):
    def score(model):
        return (model(x).argmax(1) == y).float().mean().item()

    return score


def binary(x, y):
    def score(model):
        return ((model(x).reshape(-1) > 0) == (y.reshape(-1) > 0.5)).float().mean().item()

    return score


def r2(x, y, scale=1.0, shift=0.0):
    def score(model):
        out = model(x).reshape(y.shape) * scale + shift
        return max(0.0, 1 - ((out - y) ** 2).mean().item() / ((y - y.mean(0)) ** 2).mean().item())

    return score


def friedman(n=1200, noise=0.3, seed=5):
    g = gen(seed)
    x = torch.rand(n, 8, generator=g)
    y = 10 * torch.sin(3.14159 * x[:, 0] * x[:, 1]) + 20 * (x[:, 2] - 0.5) ** 2 + 10 * x[:, 3] + 5 * x[:, 4]
    return split(x, y + noise * torch.randn(n, generator=g))


def blobs(n=500, size=16, seed=11):
    """Noisy images of a bright disc: image, mask, centre and radius in pixels, and whether it is a ring."""
    g = gen(seed)
    c = 4 + (size - 8) * torch.rand(n, 2, generator=g)
    r = 2.5 + 1.5 * torch.rand(n, generator=g)
    ring = (torch.rand(n, generator=g) < 0.5).long()
    grid = torch.arange(size).float()
    d = ((grid[None, :, None] - c[:, 0, None, None]) ** 2 + (grid[None, None, :] - c[:, 1, None, None]) ** 2).sqrt()
    mask = (d <= r[:, None, None]).float()
    hole = (d <= 1.3).float() * ring[:, None, None]
    image = mask - hole + 0.15 * torch.randn(n, size, size, generator=g)
    return image[:, None], mask[:, None], torch.cat([c, r[:, None]], 1), ring


def stripes(n=600, size=12, seed=13):
    """Diagonal stripes that go up or down."""
    g = gen(seed)
    y = (torch.rand(n, generator=g) < 0.5).long()
    phase = 6.28 * torch.rand(n, generator=g)
    grid = torch.arange(size).float()
    sign = (2 * y - 1).float()[:, None, None]
    x = torch.sin(1.2 * grid[None, :, None] + sign * 1.2 * grid[None, None, :] + phase[:, None, None])
    return split((x + 0.4 * torch.randn(n, size, size, generator=g))[:, None], y)


def iou(x, mask):
    def score(model):
        p = model(x).reshape(mask.shape) > 0
        m = mask > 0.5
        return ((p & m).sum() / (p | m).sum().clamp(min=1)).item()

    return score
