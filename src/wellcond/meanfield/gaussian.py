"""Expectations of activations under Gaussian pre-activations: all that mean-field theory asks of an activation.

For (a, b) Gaussian with means 0, variances v, w and covariance k:

    product(v, w, k) = E[φ(a) φ(b)]        slopes(v, w, k) = E[φ'(a) φ'(b)]        weighted_slopes = E[aφ'(a) bφ'(b)]

In closed form for piecewise linear φ (the arc-cosine kernels of Cho and Saul), by Gauss-Hermite quadrature for others.
"""

from __future__ import annotations

import functools
import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

Expectation = Callable[[Tensor, Tensor, Tensor], Tensor]
"""Of a pair of Gaussians, by their variances v, w and covariance k."""

NODES = 64
"""Of the quadrature in each variable: smooth activations are integrated to about 1e-10 for variances up to 10."""


class Activation(ABC):
    """A pointwise function, seen through its Gaussian expectations."""

    name: str

    @abstractmethod
    def product(self, v: Tensor, w: Tensor, k: Tensor) -> Tensor:
        """E[φ(a) φ(b)]."""

    @abstractmethod
    def slopes(self, v: Tensor, w: Tensor, k: Tensor) -> Tensor:
        """E[φ'(a) φ'(b)]."""

    @abstractmethod
    def weighted_slopes(self, v: Tensor, w: Tensor, k: Tensor) -> Tensor:
        """E[aφ'(a) bφ'(b)]."""


@dataclass(frozen=True)
class PiecewiseLinear(Activation):
    """x for x > 0, `slope`·x otherwise: ReLU (0), leaky ReLU, the identity (1).

    >>> relu = PiecewiseLinear(0.0)
    >>> one, zero = torch.tensor(1.0), torch.tensor(0.0)
    >>> round(float(relu.product(one, one, one)), 4), round(float(relu.product(one, one, zero)), 4)      # 1/2, 1/2π
    (0.5, 0.1592)
    """

    slope: float

    @property
    def name(self) -> str:  # type: ignore[override]
        return {0.0: "relu", 1.0: "linear"}.get(self.slope, f"leaky_relu({self.slope:g})")

    def product(self, v: Tensor, w: Tensor, k: Tensor) -> Tensor:
        # φ(x) = relu(x) − slope·relu(−x), and E relu(a) relu(b) = √(vw) (√(1−c²) + c(π/2 + asin c)) / 2π
        s, scale = self.slope, (v * w).sqrt()
        c = _correlation(k, scale)
        same, opposite = (((1 - c * c).sqrt() + r * (math.pi / 2 + r.asin())) / (2 * math.pi) for r in (c, -c))
        return scale * ((1 + s * s) * same - 2 * s * opposite)

    def slopes(self, v: Tensor, w: Tensor, k: Tensor) -> Tensor:
        # P(a > 0, b > 0) = 1/4 + asin(c) / 2π
        s, angle = self.slope, _correlation(k, (v * w).sqrt()).asin() / (2 * math.pi)
        return (1 + s * s) * (0.25 + angle) + 2 * s * (0.25 - angle)

    def weighted_slopes(self, v: Tensor, w: Tensor, k: Tensor) -> Tensor:
        return self.product(v, w, k)  # aφ'(a) = φ(a)


@dataclass(frozen=True)
class Smooth(Activation):
    """Any differentiable function, by quadrature."""

    name: str  # type: ignore[misc]
    function: Callable[[Tensor], Tensor]

    def product(self, v: Tensor, w: Tensor, k: Tensor) -> Tensor:
        return _pair_mean(self.function, v, w, k)

    def slopes(self, v: Tensor, w: Tensor, k: Tensor) -> Tensor:
        return _pair_mean(self._derivative, v, w, k)

    def weighted_slopes(self, v: Tensor, w: Tensor, k: Tensor) -> Tensor:
        return _pair_mean(lambda x: x * self._derivative(x), v, w, k)

    def _derivative(self, x: Tensor) -> Tensor:
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            return torch.autograd.grad(self.function(x).sum(), x)[0]


def _correlation(k: Tensor, scale: Tensor) -> Tensor:
    """k/√(vw), 0 where there is no variance; rounding does not take it beyond ±1."""
    return torch.where(scale > 0, k / torch.where(scale > 0, scale, 1.0), 0.0).clamp(-1, 1)


def _pair_mean(function: Callable[[Tensor], Tensor], v: Tensor, w: Tensor, k: Tensor) -> Tensor:
    """E[f(a) f(b)] with a = √v u and b = (k/√v) u + √(w − k²/v) t."""
    u, weight = _hermite()
    root = v.sqrt()
    along = torch.where(root > 0, k / torch.where(root > 0, root, 1.0), 0.0)
    across = (w - along * along).clamp(min=0).sqrt()
    a = root.unsqueeze(-1) * u
    b = along[..., None, None] * u.unsqueeze(-1) + across[..., None, None] * u
    inner = (function(b) * weight).sum(-1)
    return (function(a) * inner * weight).sum(-1)


@functools.cache
def _hermite() -> tuple[Tensor, Tensor]:
    nodes, weights = np.polynomial.hermite_e.hermegauss(NODES)
    return torch.from_numpy(nodes), torch.from_numpy(weights / weights.sum())
