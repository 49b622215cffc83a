"""A quadratic loss over two parameters: its Hessian is known, and only the learning rate decides on stability."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from zoo import normal

import wellcond as wc

EXACT = 1e-9
"""Relative error asked of λ_max where it is compared with a dense one."""
SIZES = (2, 3)
A = (lambda b: b @ b.T + 0.5 * torch.eye(5, dtype=torch.float64))(normal(5, 5, seed=1))
"""The Hessian; positive definite."""


class Parts(nn.Module):
    """Two parameters and nothing else, as one vector."""

    def __init__(self, theta: Tensor) -> None:
        super().__init__()
        first, second = theta.split(SIZES)
        self.first, self.second = nn.Parameter(first.clone()), nn.Parameter(second.clone())

    def forward(self, _inputs: Tensor) -> Tensor:
        return torch.cat([self.first, self.second]).unsqueeze(0)


def quadratic(matrix: Tensor = A, theta: Tensor | None = None) -> wc.Problem:
    """½ θᵀAθ."""
    model = Parts(normal(5, seed=2) if theta is None else theta)
    batch = (torch.zeros(1, dtype=torch.float64), torch.zeros(1, dtype=torch.float64))
    return wc.Problem(model, lambda f, _y: 0.5 * (f @ matrix.to(f) * f).sum(), batch)


def lambda_max(matrix: Tensor) -> float:
    return float(torch.linalg.eigvalsh(matrix)[-1])


def congruent(r: Tensor, matrix: Tensor) -> Tensor:
    """R^{½} M R^{½}."""
    return r.sqrt()[:, None] * matrix * r.sqrt()
