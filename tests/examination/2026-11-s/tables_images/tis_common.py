"""Data and scores that the cases of this part share."""
import numpy as np
import torch
from sklearn import datasets
from torch.utils.data import DataLoader, TensorDataset


def gen(seed):
    return torch.Generator().manual_seed(seed)


def split(x, y, held=0.25, seed=5):
    order = torch.randperm(len(x), generator=gen(seed))
    cut = int(len(x) * held)
    test, train = order[:cut], order[cut:]
    return x[train], y[train], x[test], y[test]


def digits(scale=16.0):
    raw = datasets.load_digits()
    return split(torch.tensor(raw.data, dtype=torch.float32) / scale, torch.tensor(raw.target))


def table(name, standard=True):
    raw = getattr(datasets, f"load_{name}")(**({"scaled": False} if name == "diabetes" else {}))
    x = torch.tensor(raw.data, dtype=torch.float32)
    y = torch.tensor(raw.target)
    y = y.float() if name == "diabetes" else y.long()
    xa, ya, xb, yb = split(x, y)
    if standard:
        m, s = xa.mean(0), xa.std(0)
        xa, xb = (xa - m) / s, (xb - m) / s
    return xa, ya, xb, yb


def loader(x, y, size=32, **more):
    return DataLoader(TensorDataset(x, y), batch_size=size, **({"shuffle": True} | more))


def accuracy(x, y):
    return lambda model: (model(x).argmax(1) == y).float().mean().item()


def r2(pred, y):
    return max(0.0, 1 - ((pred - y).pow(2).mean() / (y - y.mean(0)).pow(2).mean()).item())


def r_squared(x, y):
    return lambda model: r2(model(x).reshape(y.shape), y)


def satellite(n, seed=1, classes=5, bands=4, size=8):
    """Patches of reflectances around 0..1, whose class shows in the bands and in texture."""
    g = gen(seed)
    y = torch.randint(classes, (n,), generator=g)
    spectra = torch.rand(classes, bands, generator=gen(77)) * 0.6 + 0.2
    x = spectra[y][:, :, None, None] + 0.15 * torch.randn(n, bands, size, size, generator=g)
    stripes = torch.sin(torch.arange(size).float() * 2.1)
    x = x + 0.2 * (y % 2).float()[:, None, None, None] * stripes
    x = x * (1 + 0.25 * torch.randn(n, 1, 1, 1, generator=g))
    return x, y


def parts(n, seed=2, size=16):
    """Pictures of discs on uneven ground and the mask of the discs."""
    g = gen(seed)
    axis = torch.arange(size).float()
    mask = torch.zeros(n, size, size)
    for _ in range(2):
        c = torch.rand(n, 2, generator=g) * (size - 4) + 2
        r = torch.rand(n, generator=g) * 2 + 1.5
        d = (axis[None, :, None] - c[:, :1, None]) ** 2 + (axis[None, None, :] - c[:, 1:, None]) ** 2
        mask = torch.maximum(mask, (d < r[:, None, None] ** 2).float())
    ground = torch.randn(n, 1, 1, generator=g) * 0.3 * (axis / size)[None, None]
    image = mask * 1.2 + ground + 0.35 * torch.randn(n, size, size, generator=g)
    return (image - 0.2)[:, None], mask


def iou(x, mask):
    def score(model):
        found = model(x).reshape(mask.shape) > 0
        real = mask > 0.5
        return ((found & real).sum() / (found | real).sum().clamp(min=1)).item()
    return score


def credit(n, seed=3):
    """Raw columns of applicants, and whether they paid back."""
    g = gen(seed)
    z = torch.randn(n, 6, generator=g)
    raw = torch.stack([
        torch.exp(10.6 + 0.5 * z[:, 0]), 42 + 11 * z[:, 1], torch.sigmoid(z[:, 2]), 7000 + 2500 * z[:, 3],
        torch.exp(0.5 * z[:, 4]), 180 + 60 * z[:, 5]], 1)
    logit = 2.2 * z[:, 0] + 2.0 * z[:, 2] * torch.sign(z[:, 1]) - 1.8 * z[:, 4]
    return raw, (logit + 0.4 * torch.randn(n, generator=g) > 0).long()


def sensors(n, seed=4, wide=10):
    """Standardised readings and a smooth response."""
    g = gen(seed)
    x = torch.randn(n, wide, generator=g)
    y = torch.sin(1.3 * x[:, 0]) + x[:, 1] * x[:, 2] * 0.7 + 0.5 * x[:, 3] + 0.05 * torch.randn(n, generator=g)
    return x, y
