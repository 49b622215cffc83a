"""Data and scores."""

import numpy as np
import torch
from sklearn import datasets
from torch.utils.data import DataLoader, TensorDataset


def split(x, y, test, seed=7):
    order = np.random.RandomState(seed).permutation(len(x))
    x, y = x[order], y[order]
    return x[:-test], y[:-test], x[-test:], y[-test:]


def digits(flat=False, scale=16.0):
    d = datasets.load_digits()
    x = torch.tensor(d.images, dtype=torch.float32)[:, None] / scale
    y = torch.tensor(d.target)
    if flat:
        x = x.flatten(1)
    return split(x, y, 400)


def table(name, standard=True):
    d = getattr(datasets, f"load_{name}")()
    x = torch.tensor(d.data, dtype=torch.float32)
    y = torch.tensor(d.target)
    if standard:
        x = (x - x.mean(0)) / x.std(0)
    return split(x, y, len(x) // 4)


def friedman(n=1200, noise=0.3, seed=3):
    x, y = datasets.make_friedman1(n, n_features=8, noise=noise, random_state=seed)
    return split(torch.tensor(x, dtype=torch.float32), torch.tensor(y, dtype=torch.float32), 300)


def blobs(n=1200, features=20, classes=5, sep=1.5, seed=5):
    x, y = datasets.make_classification(
        n, n_features=features, n_informative=features // 2, n_classes=classes, class_sep=sep, flip_y=0.0,
        n_clusters_per_class=2, random_state=seed)
    x = (x - x.mean(0)) / x.std(0)
    return split(torch.tensor(x, dtype=torch.float32), torch.tensor(y), 300)


def shapes(n=700, size=16, seed=11):
    """Grey images of a disc, a square or a cross on noise: image, mask, class, box (cx, cy, r in pixels)."""
    rng = np.random.RandomState(seed)
    xs, ms, cs, bs = [], [], [], []
    grid = np.mgrid[:size, :size]
    for _ in range(n):
        c, r = rng.randint(3), rng.randint(2, 5)
        cy, cx = rng.randint(r, size - r, 2)
        dy, dx = np.abs(grid[0] - cy), np.abs(grid[1] - cx)
        if c == 0:
            m = dy**2 + dx**2 <= r * r
        elif c == 1:
            m = np.maximum(dy, dx) <= r
        else:
            m = (np.minimum(dy, dx) <= 0) & (np.maximum(dy, dx) <= r)
        xs.append(0.3 * rng.randn(size, size) + m * rng.uniform(0.8, 1.4))
        ms.append(m * (c + 1))
        cs.append(c)
        bs.append((cx, cy, r))
    return (torch.tensor(np.array(xs), dtype=torch.float32)[:, None], torch.tensor(np.array(ms)).long(),
            torch.tensor(cs), torch.tensor(np.array(bs), dtype=torch.float32))


def loader(x, y, batch=32, shuffle=True, **more):
    return DataLoader(TensorDataset(x, y), batch_size=batch, shuffle=shuffle, **more)


def accuracy(x, y, pick=lambda o: o.argmax(1)):
    return lambda model: float((pick(model(x)) == y).float().mean())


def r2(x, y, read=lambda o: o):
    def score(model):
        out = read(model(x)).float().reshape(y.shape)
        return float(1 - ((out - y) ** 2).sum() / ((y - y.mean(0)) ** 2).sum())

    return score


def community(n=240, classes=4, inside=0.12, outside=0.01, features=12, noise=1.6, seed=2):
    """A graph whose communities are the classes, with noisy features of nodes."""
    rng = np.random.RandomState(seed)
    y = rng.randint(classes, size=n)
    p = np.where(y[:, None] == y[None], inside, outside)
    a = np.triu(rng.rand(n, n) < p, 1)
    a = (a | a.T).astype("float32")
    means = rng.randn(classes, features)
    x = means[y] + noise * rng.randn(n, features)
    return torch.tensor(x, dtype=torch.float32), torch.tensor(a), torch.tensor(y)


def molecules(n=600, most=12, seed=9):
    """Small graphs padded to `most` nodes: features, adjacency, mask, and a class from edges between kinds of nodes."""
    rng = np.random.RandomState(seed)
    X, A, M, T = np.zeros((n, most, 4), "float32"), np.zeros((n, most, most), "float32"), np.zeros((n, most), "float32"), np.zeros(n)
    for i in range(n):
        k = rng.randint(4, most + 1)
        kind = rng.randint(4, size=k)
        e = np.triu(rng.rand(k, k) < 0.35, 1)
        e = (e | e.T).astype("float32")
        X[i, np.arange(k), kind] = 1
        A[i, :k, :k] = e
        M[i, :k] = 1
        T[i] = (e * ((kind[:, None] == 0) & (kind[None] != 0))).sum() / k + 0.5 * (kind == 2).sum() / k
    y = (T > np.median(T)).astype("int64")
    return torch.tensor(X), torch.tensor(A), torch.tensor(M), torch.tensor(y)
