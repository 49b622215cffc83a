"""Moments of given examples: the N×N matrix of their products instead of two numbers for any two of them.

Real images are not alike and independent: their products K⁰ = X Xᵀ/n_in have a few large eigenvalues, and so have those
of all layers above. `Gram` follows the whole matrix.

A norm that is differentiated through its statistics mixes examples: the gradient of f(x) reaches all of the batch. What
is carried back is therefore not a matrix but a linear map: what a tangent kernel Θ(x, y) = ⟨∂z(x)/∂θ, ∂z(y)/∂θ⟩ at a
layer becomes at the outputs. Almost everywhere that map multiplies element by element. At a batch normalisation it is

    Θ → (γ²/s²) E[φ'φ'ᵀ ∘ P Θ P],        P = I − 11ᵀ/N − u uᵀ/N
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from wellcond.meanfield.batch_statistics import StatisticsStep, standardised
from wellcond.meanfield.gaussian import Activation, Expectation
from wellcond.meanfield.moments import Kernel


@dataclass(frozen=True, eq=False)
class Path:
    """The rest of a tangent kernel's way to the outputs: one step, then another path, or the outputs (None)."""

    step: Callable[[Tensor], Tensor]
    onward: Path | None


@dataclass(frozen=True, eq=False)
class Gram(Kernel):
    """matrix: (..., N, N), products of examples averaged over the units of a layer. path: None for a signal.

    A gradient is the map Θ → path(matrix ∘ Θ), and what it gives for Θ = 1 is its value.

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

    # a signal

    def affine(self, scale: Tensor, offset: Tensor) -> Gram:
        return Gram(scale[..., None, None] * self.matrix + offset[..., None, None])

    def centred(self) -> tuple[Gram, Tensor]:
        inverse, u = standardised(_centred(self.matrix))
        return Gram(u / inverse[..., None, None]), 1 / inverse

    def own_size(self) -> Gram:
        root = _diagonal(self.matrix).sqrt()
        return Gram(root.unsqueeze(-1) * root.unsqueeze(-2))

    def through(self, activation: Activation) -> Gram:
        return self._expected(activation.product)

    def slopes(self, activation: Activation) -> Gram:
        return self._expected(activation.slopes)

    def weighted_slopes(self, activation: Activation) -> Gram:
        return self._expected(activation.weighted_slopes)

    # both

    def __mul__(self, other: Gram) -> Gram:
        assert self.path is None or other.path is None
        return Gram(self.matrix * other.matrix, self.path or other.path)

    def __add__(self, other: Gram) -> Gram:
        if self.path is other.path:
            return Gram(self.matrix + other.matrix, self.path)
        meeting = _meeting(self.path, other.path)

        def to_meeting(theta: Tensor) -> Tensor:
            ways = (_walked(way.matrix * theta, way.path, meeting) for way in (self, other))
            return next(ways) + next(ways)

        return Gram(torch.ones_like(self.matrix), Path(to_meeting, meeting))

    def scaled(self, scale: Tensor) -> Gram:
        return Gram(scale[..., None, None] * self.matrix, self.path)

    def reciprocal(self) -> Gram:
        return Gram(1 / self.matrix)

    def mean_square(self) -> Tensor:
        return _diagonal(self.matrix).mean(-1)

    def without_statistics(self, a: Gram, activation: Activation, gamma2: Tensor) -> Gram:
        step = StatisticsStep(a.matrix, activation, gamma2)
        return Gram(torch.ones_like(a.matrix), Path(lambda theta: self.matrix * step(theta), self.path))

    def top(self) -> Tensor:
        return self._spectrum[0][..., -1] / self.value.shape[-1]

    def share_of(self, total: Gram) -> Tensor:
        v = total._spectrum[1][..., -1:]
        return (v.mT @ self.value @ v)[..., 0, 0] / v.shape[-2]

    @cached_property
    def _spectrum(self) -> tuple[Tensor, Tensor]:
        if not bool(self.value.isfinite().all()):  # of which eigh says no more than that it did not converge
            return torch.full_like(self.value[..., 0], torch.nan), torch.full_like(self.value, torch.nan)
        eigenvalues, eigenvectors = torch.linalg.eigh(self.value)
        return eigenvalues, eigenvectors

    def _expected(self, expectation: Expectation) -> Gram:
        variance = _diagonal(self.matrix)
        return Gram(expectation(variance.unsqueeze(-1), variance.unsqueeze(-2), self.matrix))


def _walked(theta: Tensor, path: Path | None, end: Path | None) -> Tensor:
    while path is not end:
        assert path is not None
        theta, path = path.step(theta), path.onward
    return theta


def _meeting(one: Path | None, other: Path | None) -> Path | None:
    """Where two paths become one: what lies behind is walked once, however many blocks of a network branch."""
    passed = set()
    while one is not None:
        passed.add(one)
        one = one.onward
    while other is not None and other not in passed:
        other = other.onward
    return other


def _centred(matrix: Tensor) -> Tensor:
    """H K H with H = I − 11ᵀ/N."""
    rows = matrix - matrix.mean(-1, keepdim=True)
    return rows - rows.mean(-2, keepdim=True)


def _diagonal(matrix: Tensor) -> Tensor:
    return matrix.diagonal(dim1=-2, dim2=-1)
