"""Moments of N real examples: the N×N matrix of their products, instead of two numbers for any two examples.

Symbols:
    N, n_in    number of examples, and of values in one
    K          (N, N), products of a layer's units over all pairs of examples, averaged over the units
    z, u       one unit's pre-activations on the N examples, centered; and standardized, u = z/s with s² = zᵀz/N
    γ, φ       scale of the norm and activation after it
    Θ          (N, N), tangent kernel Θ(x, y) = ⟨∂z(x)/∂θ, ∂z(y)/∂θ⟩ of the parameters θ before a layer
    P          (N, N), I − 11ᵀ/N − u uᵀ/N, the derivative of a batch normalization up to γ/s

Forward. Real images are neither alike nor independent: K⁰ = X Xᵀ/n_in has a few large eigenvalues, and so have the K of
all layers above. `Gram.matrix` is K, and every stage maps the whole matrix.

Backward. A norm that is differentiated through its statistics mixes examples: the gradient of f(x) reaches the whole
batch. So a gradient is not carried back as a matrix but as a linear map: from the tangent kernel Θ at a layer to its
value at the outputs. At most stages that map multiplies Θ element by element. At a batch normalization it is

    Θ → (γ²/s²) E[φ'φ'ᵀ ∘ P Θ P]                                                            (`StatisticsStep`)

A gradient is therefore `matrix`, the elementwise factor so far, and `path`, the maps that follow up to the outputs.

Statistics. Every unit has its own variance over the examples, since z is N(0, K) over them. Over all units

    E[1/s²] = ∫₀^∞ det(I + 2tK/N)^(−1/2) dt            E[u uᵀ] = ∫₀^∞ K (I + 2tK/N)⁻¹ det(I + 2tK/N)^(−1/2) dt

because 1/s² = ∫ exp(−t s²) dt and that factor keeps z Gaussian. Apart from this, u is treated as Gaussian and
independent of s.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from wellcond.learning_rate.meanfield.gaussian import Activation
from wellcond.learning_rate.meanfield.moments import ALIKE, LIFT, Kernel, diagonal

LAPLACE_NODES = 200
"""Nodes of the integrals over t."""
FEWEST = 5
"""Fewest examples: with fewer, units of almost no variance make E[1/s²] infinite, and 1/E s² is used instead."""
STEP = 1e-6
"""Step of a difference quotient, as a share of the variance."""


@dataclass(frozen=True, eq=False)
class Path:
    """The maps of a tangent kernel from a layer to the outputs: one step, then another path, or the outputs (None)."""

    step: Callable[[Tensor], Tensor]
    onward: Path | None


@dataclass(frozen=True, eq=False)
class Gram(Kernel):
    """Products of N examples, averaged over the units of a layer.

    A gradient is the map Θ → path(matrix ∘ Θ); its value is the map of Θ = 1.

    Attributes:
        matrix: K, or the elementwise factor of a gradient, (..., N, N).
        path: Maps from a gradient's layer to the outputs; None for a signal.

    Example:
        >>> Gram.of(torch.eye(2)).matrix.tolist()
        [[0.5, 0.0], [0.0, 0.5]]
    """

    matrix: Tensor
    path: Path | None = None

    @classmethod
    def of(cls, examples: Tensor) -> Gram:
        """X Xᵀ/n of examples (N, ...) with n values each."""
        x = examples.detach().flatten(1).double()
        return cls(x @ x.mT / x.shape[1])

    @cached_property
    def value(self) -> Tensor:
        """(..., N, N): the Gram matrix itself."""
        return _walked(self.matrix, self.path, None)

    def each(self, change: Callable[[Tensor], Tensor]) -> Gram:
        return Gram(change(self.matrix), self.path)

    def squares(self) -> Tensor:
        return diagonal(self.matrix)

    def centered(self) -> tuple[Gram, Tensor]:
        inverse, u = _standardized(_centered(self.matrix))
        return Gram(u / inverse[..., None, None]), 1 / inverse

    def inverse_size(self) -> Gram:
        root = self.squares().sqrt()
        return Gram(1 / (root.unsqueeze(-1) * root.unsqueeze(-2)))

    def of_output(self) -> Gram:
        return Gram(torch.ones_like(self.matrix))

    def __mul__(self, other: Gram) -> Gram:
        assert self.path is None or other.path is None
        return Gram(self.matrix * other.matrix, self.path or other.path)

    def __add__(self, other: Gram) -> Gram:
        if self.path is other.path:
            return Gram(self.matrix + other.matrix, self.path)
        meeting = _meeting(self.path, other.path)

        def to_meeting(theta: Tensor) -> Tensor:
            one, two = (_walked(part.matrix * theta, part.path, meeting) for part in (self, other))
            return one + two

        return Gram(torch.ones_like(self.matrix), Path(to_meeting, meeting))

    def without_statistics(self, a: Gram, activation: Activation, gamma2: Tensor) -> Gram:
        step = StatisticsStep(a.matrix, activation, gamma2)
        return Gram(torch.ones_like(a.matrix), Path(lambda theta: self.matrix * step(theta), self.path))

    def top(self) -> Tensor:
        return self._spectrum[0][..., -1] / self.value.shape[-1]

    def share_of(self, total: Gram) -> Tensor:
        v = total._spectrum[1][..., -1:]
        return (v.mT @ self.value @ v)[..., 0, 0] / v.shape[-2]

    def does_not_stand_out(self, units: int) -> bool:
        *_, second, top = (eigenvalues := self._spectrum[0]).unbind(-1)
        lift = (eigenvalues[..., :-1] / (top.unsqueeze(-1) - eigenvalues[..., :-1])).sum(-1) / units
        return bool(((second > ALIKE * top) & (lift > LIFT)).any())

    def drawn(self, units: int, seed: int) -> Gram:
        # a Wishart matrix: the units are treated as Gaussian with these moments
        n, random = self.matrix.shape[-1], np.random.default_rng(seed)
        if units < n:
            factor = random.standard_normal((n, units))
        else:  # Bartlett's triangular factor of the same distribution
            factor = np.tril(random.standard_normal((n, n)), -1)
            np.fill_diagonal(factor, np.sqrt(random.chisquare(units - np.arange(n))))
        values, vectors = torch.linalg.eigh(self.matrix)
        root = vectors * values.clamp(min=0).sqrt().unsqueeze(-2)
        h = root @ torch.from_numpy(factor).to(root) / units**0.5
        return Gram(h @ h.mT, self.path)

    def same_and_pair(self) -> tuple[Tensor, Tensor]:
        n = self.value.shape[-1]
        same = diagonal(self.value).mean(-1)
        return same, (self.value.mean((-1, -2)) * n - same) / (n - 1)

    @cached_property
    def _spectrum(self) -> tuple[Tensor, Tensor]:
        if not bool(self.value.isfinite().all()):  # eigh would only report that it did not converge
            return torch.full_like(self.value[..., 0], torch.nan), torch.full_like(self.value, torch.nan)
        return tuple(torch.linalg.eigh(self.value))


class StatisticsStep:
    """Θ → E[φ'φ'ᵀ ∘ P Θ P] with P = I − 11ᵀ/N − u uᵀ/N, for Gaussian u.

    P Θ P = Θ_c − u vᵀ − v uᵀ + (uᵀΘu/N²) u uᵀ with Θ centered to Θ_c and v = Θ_c u/N. Only the part of v_y that depends
    on u_x and u_y counts; and E[f uᵀΘu] = tr(ΘU) E f + dE f/dε as the covariance U of u moves to U + 2ε UΘU.

    Args:
        a: Moments of γu, (..., N, N).
        activation: φ.
        gamma2: γ².
    """

    def __init__(self, a: Tensor, activation: Activation, gamma2: Tensor) -> None:
        gamma2, variance = gamma2[..., None, None], diagonal(a)
        v, w = variance.unsqueeze(-1), variance.unsqueeze(-2)
        products, size = activation.weighted_slopes(v, w, a), (v * w).sqrt()
        self.u = a / gamma2
        self.slopes = activation.slopes(v, w, a)
        self.products = products / gamma2
        """E[u_x u_y φ'φ']."""
        self.squares = activation.squares(v, w, a) / gamma2
        """E[u_x² φ'φ']."""
        # toward smaller correlations, since they end at 1
        self.by_variance = (activation.weighted_slopes(v * (1 + STEP), w, a) - products) / (STEP * v)
        self.by_covariance = (products - activation.weighted_slopes(v, w, a - STEP * size)) / (STEP * size)

    def __call__(self, theta: Tensor) -> Tensor:
        centered = _centered(theta)
        covariance = centered @ self.u / theta.shape[-1]  # of v_y and u_x, at (y, x)
        mixed = self._products_with_v(covariance)
        moved = 2 * self.u @ covariance / theta.shape[-1]  # 2 UΘU/N²
        own = self.by_variance * diagonal(moved).unsqueeze(-1)
        change = self.by_covariance * moved + own + own.mT
        mean = diagonal(covariance).mean(-1)[..., None, None]
        return self.slopes * centered - mixed - mixed.mT + mean * self.products + change

    def _products_with_v(self, covariance: Tensor) -> Tensor:
        """E[φ'φ' u_x v_y] at (x, y), by v_y = α u_x + β u_y + a part independent of both."""
        u, variance = self.u, diagonal(self.u)
        v, w = variance.unsqueeze(-1), variance.unsqueeze(-2)
        with_x, with_y = covariance.mT, diagonal(covariance).unsqueeze(-2)
        determinant = v * w - u * u
        differ = determinant > 1e-9 * v * w  # they are not one example, nor copies of it
        determinant = torch.where(differ, determinant, 1.0)
        alpha = torch.where(differ, (w * with_x - u * with_y) / determinant, 0.0)
        beta = torch.where(differ, (v * with_y - u * with_x) / determinant, with_y / w)
        return alpha * self.squares + beta * self.products


def _standardized(k: Tensor) -> tuple[Tensor, Tensor]:
    """E[1/s²] and E[u uᵀ], whose mean diagonal is 1, of centered moments k (..., N, N)."""
    examples = k.shape[-1]
    if examples < FEWEST:
        inverse = 1 / diagonal(k).mean(-1)
        return inverse, k * inverse[..., None, None]
    eigenvalues, vectors = torch.linalg.eigh(k)
    shares = eigenvalues.clamp(min=0) / examples
    nodes, weights = _half_line()
    size = shares.sum(-1, keepdim=True)
    factors = 1 + 2 * (nodes / size).unsqueeze(-1) * shares.unsqueeze(-2)
    density = torch.exp(-factors.log().sum(-1) / 2) * weights / size
    along = (shares.unsqueeze(-2) / factors * density.unsqueeze(-1)).sum(-2)
    return density.sum(-1), (vectors * (examples * along).unsqueeze(-2)) @ vectors.mT


@functools.cache
def _half_line() -> tuple[Tensor, Tensor]:
    """Gauss-Legendre nodes and weights for ∫₀^∞, by t = x/(1 − x)."""
    x, weights = (torch.from_numpy(part) for part in np.polynomial.legendre.leggauss(LAPLACE_NODES))
    x = (x + 1) / 2
    return x / (1 - x), weights / 2 / (1 - x).square()


def _centered(matrix: Tensor) -> Tensor:
    """H K H with H = I − 11ᵀ/N."""
    rows = matrix - matrix.mean(-1, keepdim=True)
    return rows - rows.mean(-2, keepdim=True)


def _walked(theta: Tensor, path: Path | None, end: Path | None) -> Tensor:
    while path is not end:
        assert path is not None
        theta, path = path.step(theta), path.onward
    return theta


def _meeting(one: Path | None, other: Path | None) -> Path | None:
    """Where two paths become one: the rest is walked once, however many blocks of a network branch."""
    passed = set()
    while one is not None:
        passed.add(one)
        one = one.onward
    while other is not None and other not in passed:
        other = other.onward
    return other
