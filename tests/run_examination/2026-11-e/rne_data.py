"""Data shared by the runs."""
from functools import lru_cache

import torch
from sklearn.datasets import load_digits


@lru_cache(maxsize=1)
def _digits():
    d = load_digits()
    g = torch.Generator().manual_seed(1234)
    order = torch.randperm(len(d.target), generator=g)
    x = torch.tensor(d.data, dtype=torch.float32)[order]
    y = torch.tensor(d.target, dtype=torch.long)[order]
    return x, y


def digits(normal=True):
    """Train x, y and held-out x, y of the 8x8 digits (1400 and 397)."""
    x, y = _digits()
    x = (x - 4.88) / 6.02 if normal else x.clone()
    return x[:1400], y[:1400].clone(), x[1400:], y[1400:].clone()


def teacher(n_in, n_out, hidden=24, seed=0):
    g = torch.Generator().manual_seed(seed)
    a = torch.randn(n_in, hidden, generator=g) * (1.6 / n_in**0.5)
    b = torch.randn(hidden, n_out, generator=g) * (1.6 / hidden**0.5)
    return lambda x: torch.tanh(x @ a) @ b
