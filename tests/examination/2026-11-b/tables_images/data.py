"""Data and helpers of this folder: everything is made here, with fixed seeds."""

import os

import numpy as np
import torch
from sklearn import datasets
from torch.utils.data import DataLoader, TensorDataset

SEED = int(os.environ.get("EXAM_SEED", "0"))


def seeded(k):
    torch.manual_seed(k + 1000 * SEED)


def loader(*tensors, size=64, shuffle=True, drop_last=False):
    return DataLoader(TensorDataset(*tensors), batch_size=size, shuffle=shuffle, drop_last=drop_last,
                      generator=torch.Generator().manual_seed(5 + SEED))


def tensor(a):
    return torch.tensor(np.asarray(a), dtype=torch.float32)


def digits(flat=False):
    """x, y, held-out x, held-out y; pixels in 0..1."""
    d = datasets.load_digits()
    order = np.random.default_rng(0).permutation(len(d.target))
    x, y = tensor(d.images[order] / 16.0).unsqueeze(1), torch.tensor(d.target[order])
    if flat:
        x = x.flatten(1)
    return x[:1400], y[:1400], x[1400:], y[1400:]


def table(name, standardize=True):
    d = getattr(datasets, "load_" + name)()
    x, y = d.data, d.target
    order = np.random.default_rng(1).permutation(len(y))
    x, y = x[order], y[order]
    if standardize:
        x = (x - x.mean(0)) / x.std(0)
    n = int(0.75 * len(y))
    y = torch.tensor(y)
    return tensor(x[:n]), y[:n], tensor(x[n:]), y[n:]


def friedman(n=1600, noise=0.3, seed=3):
    """A nonlinear regression with 8 standardized features; the target is standardized."""
    rng = np.random.default_rng(seed)
    u = rng.random((n, 8))
    y = 10 * np.sin(np.pi * u[:, 0] * u[:, 1]) + 20 * (u[:, 2] - 0.5) ** 2 + 10 * u[:, 3] + 5 * u[:, 4]
    y = y + noise * rng.standard_normal(n)
    y = (y - y.mean()) / y.std()
    x = (u - 0.5) * 12**0.5
    m = int(0.75 * n)
    return tensor(x[:m]), tensor(y[:m]), tensor(x[m:]), tensor(y[m:])


def discs(n=500, side=16, seed=4, classes=2):
    """Noisy images with a disc (1) and, for three classes, a square (2); masks in 0..classes-1."""
    rng = np.random.default_rng(seed)
    yy, xx = np.mgrid[:side, :side]
    images, masks = [], []
    for _ in range(n):
        mask = np.zeros((side, side), dtype=np.int64)
        if classes == 3:
            a, b, s = rng.integers(1, side - 6), rng.integers(1, side - 6), rng.integers(4, 6)
            mask[a : a + s, b : b + s] = 2
        cy, cx, r = rng.uniform(4, side - 4), rng.uniform(4, side - 4), rng.uniform(2.5, 4.5)
        mask[(yy - cy) ** 2 + (xx - cx) ** 2 < r * r] = 1
        level = np.array([0.2, 0.8, 0.5])[mask]
        images.append(level + 0.12 * rng.standard_normal((side, side)))
        masks.append(mask)
    return tensor(np.stack(images)).unsqueeze(1) * 2 - 1, torch.tensor(np.stack(masks))


def r2(prediction, target):
    if prediction.shape != target.shape:
        prediction = prediction.reshape(target.shape)
    value = 1 - ((prediction - target) ** 2).mean(0) / target.var(0, unbiased=False)
    return max(0.0, float(value.mean())) if bool(torch.isfinite(value).all()) else 0.0


def accuracy(outputs, target):
    return float((outputs.argmax(1) == target).float().mean())


def balanced(predicted, target):
    """0 for a guess, 1 for a perfect two-class decision."""
    a = (predicted[target == 1] == 1).float().mean()
    b = (predicted[target == 0] == 0).float().mean()
    return max(0.0, float(a + b - 1))


def iou(predicted, target, classes):
    values = []
    for c in classes:
        p, t = predicted == c, target == c
        values.append(float((p & t).sum()) / max(1.0, float((p | t).sum())))
    return sum(values) / len(values)
