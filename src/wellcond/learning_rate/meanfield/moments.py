"""Second moments of a layer's units, which mean-field theory follows through a network.

    same = E_x[h(x)²]              q̂ in wei2019
    pair = E_{x≠y}[h(x) h(y)]      q̂_xy

For the gradient of one output they are sums over units (and, for convolutions, over pairs of positions): q̃, q̃_xy.
A `Kernel` is one of two forms, which stages treat alike: `Moments`, two numbers for any two examples, and `Gram`, the
matrix of N real examples.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from numbers import Real
from typing import Self

import numpy as np
import torch
from torch import Tensor

from wellcond.errors import TooLarge
from wellcond.learning_rate.meanfield.gaussian import Activation, Expectation

Number = float | Tensor
"""A number of one network, or a tensor for a grid of networks."""
BOUNDS: dict[str, tuple[str, Callable[[float], bool]]] = {
    "gamma": ("above 0", lambda x: x > 0),
    "sigma_w2": ("above 0", lambda x: x > 0),
    "sigma_b2": ("0 or above", lambda x: x >= 0),
    "padding": ("0 or above", lambda x: x >= 0),
}
MOST_POSITIONS = 4096
"""Most positions of a feature map: its moments are matrices of positions, 128 MiB each at this size."""


ALIKE, LIFT = 0.3, 0.05
"""Eigenvalues above this share of the largest count as like it; a lift by finite width below this share is ignored."""


class Kernel(ABC):
    """Second moments K(x, y) of a signal or of a gradient, closed under what layers do to them."""

    # must define

    @abstractmethod
    def each(self, change: Callable[[Tensor], Tensor]) -> Self:
        """The same change made to all its matrices."""

    @abstractmethod
    def squares(self) -> Tensor:
        """The diagonal E h², per example or per position."""

    @abstractmethod
    def centered(self) -> tuple[Self, Tensor]:
        """The moments of z − E z, and the variance s² = E (z − E z)², over examples (and positions)."""

    @abstractmethod
    def inverse_size(self) -> Self:
        """1/√(E h(x)² E h(y)²), the factor of LayerNorm for two examples."""

    @abstractmethod
    def __mul__(self, other: Self) -> Self: ...

    @abstractmethod
    def __add__(self, other: Self) -> Self: ...

    @abstractmethod
    def without_statistics(self, a: Self, activation: Activation, gamma2: Tensor) -> Self:
        """The moments of g − E g − u E[u g] with g φ'(a) for g: the gradient through a batch's mean and variance.

        `a` are the moments of γu, u standardized, and `gamma2` is γ².
        """

    @abstractmethod
    def top(self) -> Tensor:
        """The largest eigenvalue of a Gram matrix with these entries, divided by the number of examples.

        The largest eigenvalue of a sum is not the sum of the largest ones: add the terms first.
        """

    @abstractmethod
    def same_and_pair(self) -> tuple[Tensor, Tensor]:
        """The means over one example, and over two different ones."""

    @abstractmethod
    def of_output(self) -> Self:
        """For a signal at the inputs, the moments of the gradient of one output at that output itself."""

    @abstractmethod
    def does_not_stand_out(self, units: int) -> bool:
        """Whether the top direction of the Gram matrix is one of many alike, so that `units` per layer matter.

        With λ_1 the largest of its eigenvalues, a mean over n units instead of very many lifts it by the share
        (1/n) Σ_j λ_j/(λ_1 − λ_j), as long as that is small.
        """

    # may override

    def drawn(self, units: int, seed: int) -> Self:
        """One draw of the mean over this many units instead of very many, for a `Gram`."""
        return self

    def total(self) -> Self:
        """Sums over pairs of positions, if there are positions: the gradient of shared parameters."""
        return self

    def among(self, examples: int) -> Self:
        """The moments of N examples instead of very many; a `Gram` has a fixed number."""
        return self

    def share_of(self, total: Self) -> Tensor:
        """The part of this term in the `top` of a sum; the parts of all terms add up to it."""
        return self.top()

    # common to both

    def affine(self, scale: Tensor, offset: Tensor) -> Self:
        """The moments of W h + b: scale·K + offset."""
        return self.each(lambda k: scale[..., None, None] * k + offset[..., None, None])

    def scaled(self, scale: Tensor) -> Self:
        """K times a number."""
        return self.each(lambda k: scale[..., None, None] * k)

    def expected(self, expectation: Expectation) -> Self:
        """The expectation over pairs of Gaussians with these moments."""
        squares = self.squares()
        return self.each(lambda k: expectation(squares.unsqueeze(-1), squares.unsqueeze(-2), k))

    def mean_square(self) -> Tensor:
        """E h²."""
        return self.squares().mean(-1)


@dataclass(frozen=True)
class Moments(Kernel):
    """Moments of one example and of two different ones, which stand for all examples.

    Over the positions α, β of a feature map they are E_x[h_α(x) h_β(x)] and E_{x≠y}[h_α(x) h_β(y)]. A vector has one
    position. So has a map whose positions are all alike, as they are without padding and for independent inputs: `pair`
    of a gradient is then the sum over pairs of positions.

    The Gram matrix of N such examples is constant on and off its diagonal. Its largest eigenvalue is N times the mean
    of all its entries: N · pair for very many.

    Attributes:
        same: Moments of one example, (..., P, P) for P positions, after the dimensions of a grid of networks.
        pair: Moments of two different examples, likewise.
        examples: N.
    """

    same: Tensor
    pair: Tensor
    examples: float = math.inf

    @classmethod
    def independent(cls, positions: int = 1) -> Moments:
        """Very many independent normalized inputs, whose pixels are independent too."""
        if positions > MOST_POSITIONS:
            raise TooLarge(
                f"a feature map of {positions} positions needs moments of {positions}×{positions} pairs of them; "
                f"the limit is {MOST_POSITIONS}, a map of 64×64. Predict for a smaller image, or without padding."
            )
        one = torch.eye(positions, dtype=torch.float64, device="cpu")
        return cls(one, torch.zeros_like(one))

    @classmethod
    def of(cls, images: Tensor) -> Moments:
        """The moments of examples (N, channels, ...), N > 1: means over channels and over one or two examples."""
        x = images.detach().double().flatten(2)
        examples, channels, _ = x.shape
        same = torch.einsum("nca,ncb->ab", x, x) / (examples * channels)
        mean = x.sum(0)
        every = mean.T @ mean / (examples * channels)
        return cls(same, (every - same) / (examples - 1), examples)

    @property
    def positions(self) -> int:
        """P."""
        return self.same.shape[-1]

    def mean(self) -> Tensor:
        """The mean over all pairs of examples, of which a share 1/N are pairs of one with itself."""
        return self.pair if math.isinf(self.examples) else self.pair + (self.same - self.pair) / self.examples

    def total(self) -> Moments:
        return self.each(lambda k: k.sum((-1, -2), keepdim=True))

    def each(self, change: Callable[[Tensor], Tensor]) -> Moments:
        return replace(self, same=change(self.same), pair=change(self.pair))

    def among(self, examples: int) -> Moments:
        return replace(self, examples=float(examples))

    def squares(self) -> Tensor:
        return diagonal(self.same)

    def centered(self) -> tuple[Moments, Tensor]:
        # K(α, β) − r(α) − r(β) + E r, with r the mean over examples and positions
        r = self.mean().mean(-1)
        shared = r.unsqueeze(-1) + r.unsqueeze(-2) - r.mean(-1)[..., None, None]
        u = self.each(lambda k: k - shared)
        return u, u.mean_square()

    def inverse_size(self) -> Moments:
        return self.each(lambda k: (self.mean_square()[..., None, None] * torch.ones_like(k)).reciprocal())

    def __mul__(self, other: Moments) -> Moments:
        return replace(self, same=self.same * other.same, pair=self.pair * other.pair)

    def __add__(self, other: Moments) -> Moments:
        return replace(self, same=self.same + other.same, pair=self.pair + other.pair)

    def without_statistics(self, a: Moments, activation: Activation, gamma2: Tensor) -> Moments:
        along = (self * a.expected(activation.weighted_slopes)).scaled(1 / gamma2)
        # the part of g along u is assumed to be one number times u at all positions
        u = a.scaled(1 / gamma2)
        return (self * a.expected(activation.slopes)).centered()[0] + u.scaled(-along.mean().mean((-1, -2)))

    def top(self) -> Tensor:
        return self.total().mean()[..., 0, 0]

    def does_not_stand_out(self, units: int) -> bool:
        # the others are (same − pair)/units, of very many examples
        total = self.total()
        return bool((total.same - total.pair > ALIKE * units * total.pair).any())

    def same_and_pair(self) -> tuple[Tensor, Tensor]:
        return self.mean_square(), diagonal(self.pair).mean(-1)

    def of_output(self) -> Moments:
        one = torch.ones_like(self.same[..., :1, :1])
        return Moments(one, one, self.examples)


# numbers, of one network or of a grid


def float64(value: Number) -> Tensor:
    """A number, or a grid of numbers, in double precision."""
    return value.double() if isinstance(value, Tensor) else torch.tensor(value, dtype=torch.float64, device="cpu")


def diagonal(matrix: Tensor) -> Tensor:
    """(..., n, n) → (..., n)."""
    return matrix.diagonal(dim1=-2, dim2=-1)


def check_number(name: str, value: Number) -> None:
    """Raise unless the value can be the argument of `Architecture` that has this name."""
    allowed, holds = BOUNDS.get(name, ("1 or above", lambda x: x >= 1))
    if not isinstance(value, (Real, Tensor)) or (isinstance(value, Tensor) and value.is_complex()):
        raise TypeError(f"{name} is of type {type(value).__name__}; it must be a real number, or a tensor of them.")
    if isinstance(value, Tensor) and not value.numel():
        raise ValueError(f"{name} is a tensor without elements; give one for every network of the grid.")
    for x in value.flatten().tolist() if isinstance(value, Tensor) else (value,):
        if not math.isfinite(x):
            raise ValueError(f"{name} is {x}; it must be finite and {allowed}.")
        if not holds(x):
            raise ValueError(f"{name} is {x}; it must be {allowed}.")


def grid_of(numbers: Mapping[str, Number]) -> torch.Size:
    """The shape to which numbers broadcast, by name."""
    shapes = {name: tuple(value.shape) for name, value in numbers.items() if isinstance(value, Tensor)}
    try:
        return torch.Size(np.broadcast_shapes(*shapes.values()))
    except ValueError as error:
        listed = ", ".join(f"{name} {shape}" for name, shape in shapes.items())
        raise ValueError(f"tensors of these shapes do not broadcast to one grid: {listed}.") from error
