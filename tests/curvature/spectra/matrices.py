"""Symmetric matrices of chosen spectra, the cases on which eigenvalue solvers go wrong."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

Spectrum = Callable[[np.random.Generator, int], np.ndarray]


def cluster(rng: np.random.Generator, n: int) -> np.ndarray:
    """A few eigenvalues close to the largest, at a distance from 1e-7 to 0.3."""
    count, width = int(rng.integers(2, 6)), 10 ** rng.uniform(-7, -0.5)
    return np.concatenate([1 - width * rng.uniform(0, 1, count), rng.uniform(-0.3, 0.8, n - count)])


def two_close(rng: np.random.Generator, n: int) -> np.ndarray:
    """Two close eigenvalues at either end, far from the rest: one start vector sees them as one."""
    width = 10 ** rng.uniform(-7, -0.5)
    return np.concatenate([[1, 1 - width, -1, -1 + width], rng.uniform(-0.3, 0.3, n - 4)])


def multiple(rng: np.random.Generator, n: int) -> np.ndarray:
    return rng.choice([3.0, 2.0, 1.0, 0.5, -1.0], n)


def uniform(rng: np.random.Generator, n: int) -> np.ndarray:
    return rng.uniform(-1, 1, n)


def rank_deficient(rng: np.random.Generator, n: int) -> np.ndarray:
    return np.concatenate([rng.uniform(0.1, 2, n // 2), np.zeros(n - n // 2)])


def condition_1e12(rng: np.random.Generator, n: int) -> np.ndarray:
    return 10 ** rng.uniform(-12, 0, n)


def network_like(rng: np.random.Generator, n: int) -> np.ndarray:
    """One outlier per class, and a bulk of both signs over eight decades."""
    bulk = 10 ** rng.uniform(-8, -1, n - 10) * rng.choice([-1, 1], n - 10)
    return np.concatenate([rng.uniform(0.5, 5, 10), bulk])


SPECTRA: list[Spectrum] = [cluster, two_close, multiple, uniform, rank_deficient, condition_1e12, network_like]


def rotated(values: np.ndarray, seed: int) -> Tensor:
    """A dense symmetric matrix with these eigenvalues."""
    generator = torch.Generator().manual_seed(seed)
    n = len(values)
    q = torch.linalg.qr(torch.randn(n, n, generator=generator, dtype=torch.float64)).Q
    matrix = (q * torch.from_numpy(values)) @ q.T
    return (matrix + matrix.T) / 2
