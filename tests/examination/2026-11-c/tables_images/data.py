"""Data and helpers: scikit-learn's digits and tables, synthetic shapes and tables."""

import functools
import math
import os

import numpy as np
import torch
import torch.nn.functional as F
from sklearn.datasets import load_breast_cancer, load_digits, load_wine
from torch.utils.data import DataLoader, TensorDataset


def start():
    """Seed as a script does (EXAM_SEED varies it)."""
    torch.manual_seed(1234 + int(os.environ.get("EXAM_SEED", "0")))


def loader(*tensors, batch=32, shuffle=True, drop_last=True):
    g = torch.Generator().manual_seed(7 + int(os.environ.get("EXAM_SEED", "0")))
    return DataLoader(TensorDataset(*tensors), batch, shuffle=shuffle, drop_last=drop_last, generator=g)


def split(x, y, test, seed=0):
    order = torch.from_numpy(np.random.RandomState(seed).permutation(len(x)))
    return x[order[test:]], y[order[test:]], x[order[:test]], y[order[:test]]


@functools.lru_cache(None)
def _digits():
    d = load_digits()
    return split(torch.tensor(d.images / 16, dtype=torch.float32)[:, None], torch.tensor(d.target), 400)


def digits(standard=True):
    xa, ya, xb, yb = (t.clone() for t in _digits())
    if standard:
        xa, xb = (xa - 0.305) / 0.376, (xb - 0.305) / 0.376
    return xa, ya, xb, yb


@functools.lru_cache(None)
def _table(name):
    d = {"wine": load_wine, "cancer": load_breast_cancer}[name]()
    return split(torch.tensor(d.data, dtype=torch.float32), torch.tensor(d.target), len(d.data) // 4)


def sk_table(name, scale=True):
    xa, ya, xb, yb = (t.clone() for t in _table(name))
    if scale:
        m, s = xa.mean(0), xa.std(0)
        xa, xb = (xa - m) / s, (xb - m) / s
    return xa, ya, xb, yb


@functools.lru_cache(None)
def shapes(n=900, size=16, seed=3):
    """A disc (1) or a square (2) on a noisy background: images, masks, boxes (cx, cy, w, h in pixels), kinds."""
    r = np.random.RandomState(seed)
    yy, xx = np.mgrid[:size, :size]
    kind = r.randint(1, 3, n)
    rad = r.uniform(2, 4.5, n)
    cx, cy = r.uniform(4.5, size - 5.5, (2, n))
    dx, dy = xx[None] - cx[:, None, None], yy[None] - cy[:, None, None]
    inside = np.where(
        (kind == 1)[:, None, None],
        dx**2 + dy**2 <= rad[:, None, None] ** 2,
        np.maximum(abs(dx), abs(dy)) <= rad[:, None, None],
    )
    image = inside * r.uniform(0.8, 1.4, n)[:, None, None] + 0.15 * r.randn(n, size, size)
    image = (image - 0.15) / 0.4
    t = lambda a: torch.tensor(a, dtype=torch.float32)
    return t(image)[:, None], torch.tensor(inside * kind[:, None, None]).long(), t(np.stack([cx, cy, 2 * rad, 2 * rad], 1)), torch.tensor(kind - 1).long()


def regression(n=1500, d=8, noise=0.1, seed=5):
    """A table with interactions that no linear model sees; standardised target (n, 1)."""
    r = np.random.RandomState(seed)
    x = r.randn(n, d)
    y = x[:, 0] * x[:, 1] + np.abs(x[:, 2]) - 0.5 * x[:, 3] ** 2 + 0.1 * x[:, 4] + noise * r.randn(n)
    y = (y - y.mean()) / y.std()
    x, y = torch.tensor(x, dtype=torch.float32), torch.tensor(y, dtype=torch.float32)[:, None]
    return x[300:], y[300:], x[:300], y[:300]


def smooth(n=1500, d=6, noise=0.1, seed=6):
    """An easier table: sums of bends; standardised target (n, 1)."""
    r = np.random.RandomState(seed)
    x = r.randn(n, d)
    y = np.sin(1.5 * x[:, 0]) + 0.7 * x[:, 1] + 0.5 * np.abs(x[:, 2]) + 0.4 * x[:, 3] * x[:, 0] + noise * r.randn(n)
    y = (y - y.mean()) / y.std()
    x, y = torch.tensor(x, dtype=torch.float32), torch.tensor(y, dtype=torch.float32)[:, None]
    return x[300:], y[300:], x[:300], y[:300]


def noisy(n=1500, d=5, seed=8):
    """A table whose noise depends on a feature."""
    r = np.random.RandomState(seed)
    x = r.randn(n, d)
    y = 1.2 * x[:, 0] - 0.8 * x[:, 1] + 0.6 * np.abs(x[:, 2]) + (0.1 + 0.4 * (x[:, 3] > 0)) * r.randn(n)
    y = (y - y.mean()) / y.std()
    x, y = torch.tensor(x, dtype=torch.float32), torch.tensor(y, dtype=torch.float32)[:, None]
    return x[300:], y[300:], x[:300], y[:300]


def tags(n=1500, d=10, k=6, seed=9):
    """Several labels per example."""
    r = np.random.RandomState(seed)
    x = r.randn(n, d)
    w = r.randn(d, k)
    y = (x @ w + 1.5 * np.abs(x[:, :k]) - 1.2 > 0).astype("float32")
    x, y = torch.tensor(x, dtype=torch.float32), torch.tensor(y)
    return x[300:], y[300:], x[:300], y[:300]


def accuracy(x, y):
    return lambda m: (m(x).float().argmax(1) == y).float().mean().item()


def likelihood(x, y, classes=10):
    """1 - cross entropy / that of a uniform guess, at least 0."""
    def score(m):
        value = 1 - F.cross_entropy(m(x).float(), y).item() / math.log(classes)
        return max(0.0, value) if math.isfinite(value) else 0.0
    return score


def r2_of(pred, y):
    value = 1 - ((pred - y) ** 2).mean().item() / y.var(0, unbiased=False).mean().item()
    return max(0.0, value) if math.isfinite(value) else 0.0


def r2(x, y):
    return lambda m: r2_of(m(x).float(), y)


def gauss_skill(x, y):
    """For (mean, log variance): 1 - exp(nll) relative to a constant normal distribution."""
    def score(m):
        mu, lv = m(x)
        nll = (0.5 * lv + 0.5 * (y - mu) ** 2 * torch.exp(-lv)).mean().item()
        base = (0.5 * y.var().log() + 0.5).item()
        return max(0.0, 1 - math.exp(min(nll - base, 50))) if math.isfinite(nll) else 0.0
    return score


def iou(x, mask, classes=(1, 2)):
    def score(m):
        p = m(x).argmax(1)
        vals = [((p == c) & (mask == c)).sum().item() / max(1, ((p == c) | (mask == c)).sum().item()) for c in classes]
        return sum(vals) / len(vals)
    return score


def recall(x, mask, classes=(0, 1, 2)):
    """Mean recall of the classes over pixels, 0 for a guess."""
    def score(m):
        p = m(x).argmax(1)
        mean = sum((p[mask == c] == c).float().mean().item() for c in classes) / len(classes)
        return max(0.0, (mean - 1 / len(classes)) / (1 - 1 / len(classes)))
    return score


def parts():
    """Images with masks: background (0), inside (1) and rim (2) of the object."""
    x, mask, _, _ = shapes()
    whole = (mask > 0).float()[:, None]
    inside = -F.max_pool2d(-whole, 3, 1, 1)
    return x, (2 * whole - inside)[:, 0].long()
