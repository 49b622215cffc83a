"""Batch normalisation of given examples: every unit has its own variance over them, and its gradient mixes them.

A unit's pre-activations z, centred, are N(0, K) over the examples, and u = z/s with s² = zᵀz/N its own. Over all units

    E[1/s²] = ∫₀^∞ det(I + 2tK/N)^(−1/2) dt            E[u uᵀ] = ∫₀^∞ K (I + 2tK/N)⁻¹ det(I + 2tK/N)^(−1/2) dt

since 1/s² = ∫ exp(−t s²) dt and that factor keeps z Gaussian. Beyond that u counts as Gaussian and independent of s.
"""

from __future__ import annotations

import functools

import numpy as np
import torch
from torch import Tensor

from wellcond.meanfield.gaussian import Activation

NODES = 200
FEWEST = 5
"""Examples: among fewer, units of almost no variance make E[1/s²] infinite, and E s² takes its place."""
STEP = 1e-6
"""Of a difference quotient, as a part of the variance."""


def standardised(k: Tensor) -> tuple[Tensor, Tensor]:
    """E[1/s²] and E[u uᵀ], whose mean diagonal is 1. k: (..., N, N), centred. Cost: one eigendecomposition."""
    examples = k.shape[-1]
    if examples < FEWEST:
        inverse = 1 / _diagonal(k).mean(-1)
        return inverse, k * inverse[..., None, None]
    eigenvalues, vectors = torch.linalg.eigh(k)
    shares = eigenvalues.clamp(min=0) / examples
    nodes, weights = _half_line()
    size = shares.sum(-1, keepdim=True)
    factors = 1 + 2 * (nodes / size).unsqueeze(-1) * shares.unsqueeze(-2)
    density = torch.exp(-factors.log().sum(-1) / 2) * weights / size
    along = (shares.unsqueeze(-2) / factors * density.unsqueeze(-1)).sum(-2)
    return density.sum(-1), (vectors * (examples * along).unsqueeze(-2)) @ vectors.mT


class StatisticsStep:
    """Θ → E[φ'φ'ᵀ ∘ P Θ P] with P = I − 11ᵀ/N − u uᵀ/N, for Gaussian u. a: the moments of γu, (..., N, N).

    P Θ P = Θ_c − u vᵀ − v uᵀ + (uᵀΘu/N²) u uᵀ with Θ centred to Θ_c and v = Θ_c u/N. Of v_y, what u_x and u_y tell of
    it counts; and E[f uᵀΘu] = tr(ΘU) E f + dE f/dε as the covariance U of u moves to U + 2ε UΘU.
    """

    def __init__(self, a: Tensor, activation: Activation, gamma2: Tensor) -> None:
        gamma2, variance = gamma2[..., None, None], _diagonal(a)
        v, w = variance.unsqueeze(-1), variance.unsqueeze(-2)
        products, size = activation.weighted_slopes(v, w, a), (v * w).sqrt()
        self.u = a / gamma2
        self.slopes = activation.slopes(v, w, a)
        self.products = products / gamma2
        """E[u_x u_y φ'φ']."""
        self.squares = activation.squares(v, w, a) / gamma2
        """E[u_x² φ'φ']."""
        # towards smaller correlations, since there are none beyond 1
        self.by_variance = (activation.weighted_slopes(v * (1 + STEP), w, a) - products) / (STEP * v)
        self.by_covariance = (products - activation.weighted_slopes(v, w, a - STEP * size)) / (STEP * size)

    def __call__(self, theta: Tensor) -> Tensor:
        examples = theta.shape[-1]
        centred = theta - theta.mean(-1, keepdim=True)
        centred = centred - centred.mean(-2, keepdim=True)
        covariance = centred @ self.u / examples  # of v_y and u_x, at (y, x)
        mixed = self._products_with_v(covariance)
        moved = 2 * self.u @ covariance / examples  # 2 UΘU/N²
        own = self.by_variance * _diagonal(moved).unsqueeze(-1)
        change = self.by_covariance * moved + own + own.mT
        mean = _diagonal(covariance).mean(-1)[..., None, None]
        return self.slopes * centred - mixed - mixed.mT + mean * self.products + change

    def _products_with_v(self, covariance: Tensor) -> Tensor:
        """E[φ'φ' u_x v_y] at (x, y), by v_y = α u_x + β u_y + what is independent of both."""
        u, variance = self.u, _diagonal(self.u)
        v, w = variance.unsqueeze(-1), variance.unsqueeze(-2)
        with_x, with_y = covariance.mT, _diagonal(covariance).unsqueeze(-2)
        determinant = v * w - u * u
        differ = determinant > 1e-9 * v * w  # they are not one example, nor copies of it
        determinant = torch.where(differ, determinant, 1.0)
        alpha = torch.where(differ, (w * with_x - u * with_y) / determinant, 0.0)
        beta = torch.where(differ, (v * with_y - u * with_x) / determinant, with_y / w)
        return alpha * self.squares + beta * self.products


@functools.cache
def _half_line() -> tuple[Tensor, Tensor]:
    """Gauss-Legendre nodes and weights for ∫₀^∞, by t = x/(1 − x)."""
    x, weights = (torch.from_numpy(part) for part in np.polynomial.legendre.leggauss(NODES))
    x = (x + 1) / 2
    return x / (1 - x), weights / 2 / (1 - x).square()


def _diagonal(matrix: Tensor) -> Tensor:
    return matrix.diagonal(dim1=-2, dim2=-1)
