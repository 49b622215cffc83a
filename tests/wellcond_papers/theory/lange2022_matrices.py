"""The quantities of lange2022, eqs. (5) to (14), written out: Ĥ = [e, H], P = U D, its κ, and rates of descent."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def matrix(entries: list[Any]) -> Tensor:
    return torch.tensor(entries, dtype=torch.float64)


def extended(H: Tensor) -> Tensor:
    """Ĥ = [e, H]."""
    return torch.cat([torch.ones(len(H), 1, dtype=H.dtype), H], 1)


def centering(H: Tensor) -> Tensor:
    """U = [[1, −μᵀ], [0, I]]."""
    U = torch.eye(H.shape[1] + 1, dtype=H.dtype)
    U[0, 1:] = -sum(H) / len(H)
    return U


def scaling(H: Tensor) -> Tensor:
    """D = diag(1, σ)⁻¹."""
    centered = H - sum(H) / len(H)
    sigma = (sum(centered**2) / len(H)).sqrt()
    return torch.diag(1 / torch.cat([torch.ones(1, dtype=H.dtype), sigma]))


def kappa(A: Tensor) -> float:
    """σ_max over the smallest nonzero singular value, as the source defines it for any matrix."""
    values = torch.linalg.svdvals(A)
    nonzero = values[values > max(A.shape) * torch.finfo(A.dtype).eps * values[0]]
    return float(nonzero[0] / nonzero[-1])


def rate(values: Tensor, lr: float) -> float:
    """r = max |1 − α λ| over the eigenvalues given."""
    return float((1 - lr * values).abs().max())


def best_lr(values: Tensor) -> float:
    """2/(λ_min + λ_max)."""
    return 2 / float(values.min() + values.max())


def optimal_rate(condition: float) -> float:
    """(κ − 1)/(κ + 1), eq. (6)."""
    return (condition - 1) / (condition + 1)
