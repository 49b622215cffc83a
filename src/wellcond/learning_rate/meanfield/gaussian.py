"""Expectations of activations under Gaussian pre-activations: all that mean-field theory needs from an activation.

For (a, b) Gaussian with means 0, variances v, w and covariance k:

    product(v, w, k) = E[φ(a) φ(b)]        slopes(v, w, k) = E[φ'(a) φ'(b)]        weighted_slopes = E[aφ'(a) bφ'(b)]

They have closed forms for piecewise linear φ (the arc-cosine kernels of Cho and Saul). For other φ they are a series of
Hermite polynomials, whose coefficients are integrals over one variable.
"""

from __future__ import annotations

import functools
import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import leaky_relu

Function = Callable[[Tensor], Tensor]
Expectation = Callable[[Tensor, Tensor, Tensor], Tensor]
"""Expectation over a pair of Gaussians with variances v, w and covariance k."""

NODES, REACH = 601, 12.0
"""Nodes of the trapezoidal rule, and the standard deviations it covers: smooth functions are exact to rounding."""
AT_ONCE = 1000
"""Up to this many correlations, all powers are held at once: for a single network a loop would cost more."""
ORDERS = 128
"""Orders of the series: at variance 10 tanh is accurate to 1e-11 up to a correlation of .9 and to 4e-7 beyond, its
slope to 7e-6; a jump, such as in the slope of hardtanh, to 1 %."""


class Activation(ABC):
    """A pointwise function φ, seen through its Gaussian expectations."""

    name: str

    @abstractmethod
    def __call__(self, x: Tensor) -> Tensor:
        """φ(x)."""

    @abstractmethod
    def product(self, v: Tensor, w: Tensor, k: Tensor) -> Tensor:
        """E[φ(a) φ(b)]."""

    @abstractmethod
    def slopes(self, v: Tensor, w: Tensor, k: Tensor) -> Tensor:
        """E[φ'(a) φ'(b)]."""

    @abstractmethod
    def weighted_slopes(self, v: Tensor, w: Tensor, k: Tensor) -> Tensor:
        """E[aφ'(a) bφ'(b)]."""

    @abstractmethod
    def squares(self, v: Tensor, w: Tensor, k: Tensor) -> Tensor:
        """E[a²φ'(a) φ'(b)]."""

    @abstractmethod
    def mean(self, v: Tensor) -> Tensor:
        """E φ(a)."""

    def shifted(self, m: Tensor) -> Activation:
        """The function φ(m + ·), for Gaussians of mean m."""
        return Smooth(self.name, lambda x: self(x + m.reshape(m.shape + (1,) * (x.dim() - m.dim()))))


@dataclass(frozen=True)
class PiecewiseLinear(Activation):
    """The function that is x for x > 0 and slope·x otherwise: ReLU (slope 0), leaky ReLU, the identity (slope 1).

    Example:
        >>> relu = PiecewiseLinear(0.0)
        >>> one, zero = torch.tensor(1.0), torch.tensor(0.0)
        >>> round(float(relu.product(one, one, one)), 4), round(float(relu.product(one, one, zero)), 4)  # 1/2, 1/2π
        (0.5, 0.1592)
    """

    slope: float

    @property
    def name(self) -> str:  # type: ignore[override]
        return {0.0: "relu", 1.0: "linear"}.get(self.slope, f"leaky_relu({self.slope:g})")

    def __call__(self, x: Tensor) -> Tensor:
        return leaky_relu(x, self.slope)

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

    def squares(self, v: Tensor, w: Tensor, k: Tensor) -> Tensor:
        # E[a²; a > 0, b > 0] = v (π/2 + asin c + c√(1−c²)) / 2π
        s, c = self.slope, _correlation(k, (v * w).sqrt())
        both = (math.pi / 2 + c.asin() + c * (1 - c * c).sqrt()) / (2 * math.pi)
        return v * (s + (1 - s) ** 2 * both)

    def mean(self, v: Tensor) -> Tensor:
        return (1 - self.slope) * (v / (2 * math.pi)).sqrt()


@dataclass(frozen=True)
class Smooth(Activation):
    """Any differentiable function, by quadrature."""

    name: str
    function: Function

    def __call__(self, x: Tensor) -> Tensor:
        return self.function(x)

    def product(self, v: Tensor, w: Tensor, k: Tensor) -> Tensor:
        return _pair_mean(self.function, v, w, k)

    def slopes(self, v: Tensor, w: Tensor, k: Tensor) -> Tensor:
        return _pair_mean(self._derivative, v, w, k)

    def weighted_slopes(self, v: Tensor, w: Tensor, k: Tensor) -> Tensor:
        return _pair_mean(lambda x: x * self._derivative(x), v, w, k)

    def squares(self, v: Tensor, w: Tensor, k: Tensor) -> Tensor:
        return _pair_mean(lambda x: x * x * self._derivative(x), v, w, k, self._derivative)

    def mean(self, v: Tensor) -> Tensor:
        return _hermite_coefficients(self.function, v)[0][..., 0]

    def _derivative(self, x: Tensor) -> Tensor:
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            return torch.autograd.grad(self.function(x).sum(), x)[0]


def _correlation(k: Tensor, scale: Tensor) -> Tensor:
    """k/√(vw), within ±1 despite rounding, and 0 without variance."""
    return torch.where(scale > 0, k / torch.where(scale > 0, scale, 1.0), 0.0).clamp(-1, 1)


def _pair_mean(f: Function, v: Tensor, w: Tensor, k: Tensor, h: Function | None = None) -> Tensor:
    """E[f(a) h(b)] = Σ_n f_n(v) h_n(w) cⁿ with the correlation c: Mehler's formula; h is f by default.

    The part of E f(a)² outside the summed orders counts as the first missing order. v and w may be a column and a row
    for the matrix k: their coefficients are then computed only once.
    """
    c = _correlation(k, (v * w).sqrt())
    left, rest_of_left = _hermite_coefficients(f, v)
    right, rest_of_right = (left, rest_of_left) if w is v and h is None else _hermite_coefficients(h or f, w)
    sizes = left.abs().reshape(-1, ORDERS).amax(0) * right.abs().reshape(-1, ORDERS).amax(0)
    orders = 1 + int((sizes >= 1e-16 * sizes.sum()).nonzero().max())
    if c.numel() < AT_ONCE:
        powers = c.unsqueeze(-1) ** torch.arange(orders, device=c.device)
        return rest_of_left * rest_of_right * c**orders + (left[..., :orders] * right[..., :orders] * powers).sum(-1)
    # Horner's scheme, which needs no more memory than a few matrices
    left, right = (x.movedim(-1, 0).contiguous() for x in (left, right))
    total = torch.zeros_like(c).addcmul_(rest_of_left, rest_of_right)
    for n in reversed(range(orders)):
        total.mul_(c).addcmul_(left[n], right[n])
    return total


def _hermite_coefficients(function: Function, v: Tensor) -> tuple[Tensor, Tensor]:
    """f_n = E[f(√v u) p_n(u)] for standard normal u and the orthonormal Hermite polynomials p_n, n last; and the rest.

    The rest is √(E f² − Σ f_n²).
    """
    nodes, weights, polynomials = _hermite(v.device)
    values = function(v.sqrt().unsqueeze(-1) * nodes)
    coefficients = (values * weights) @ polynomials.T
    # odd functions have no even terms: without bias λ_max would consist of their rounding errors
    is_rounding = coefficients.abs() < 1e-14 * coefficients.norm(dim=-1, keepdim=True)
    coefficients = torch.where(is_rounding, 0.0, coefficients)
    size = values.square() @ weights
    rest = size - coefficients.square().sum(-1)
    return coefficients, torch.where(rest > 1e-12 * size, rest, 0.0).sqrt()


@functools.cache
def _hermite(device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """Nodes u_j, weights of the trapezoidal rule under a standard normal, and p_n(u_j), (n, j)."""
    nodes = torch.linspace(-REACH, REACH, NODES, dtype=torch.float64, device="cpu")
    weights = torch.exp(-nodes.square() / 2)
    polynomials = [torch.ones_like(nodes), nodes]
    for n in range(1, ORDERS - 1):
        # u p_n = √(n+1) p_{n+1} + √n p_{n−1}
        polynomials.append((nodes * polynomials[n] - n**0.5 * polynomials[n - 1]) / (n + 1) ** 0.5)
    return nodes.to(device), (weights / weights.sum()).to(device), torch.stack(polynomials).to(device)
