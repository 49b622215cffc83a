"""Second moments of a layer's units, which mean-field theory follows through a network.

    same = E_x[h(x)²]              q̂ in wei2019
    pair = E_{x≠y}[h(x) h(y)]      q̂_xy

For the gradient of one output they are sums over units (and, for convolutions, over pairs of positions): q̃, q̃_xy. There
are three kinds, which layers treat alike: `Moments`, two numbers for examples that are alike but independent; `Field`,
moments that differ from position to position; and `Gram`, those of given examples.
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

from wellcond.meanfield.gaussian import Activation, Expectation

Number = float | Tensor
"""Of one network, or a tensor for a grid of networks."""
BOUNDS: dict[str, tuple[str, Callable[[float], bool]]] = {
    "gamma": ("above 0", lambda x: x > 0),
    "sigma_w2": ("above 0", lambda x: x > 0),
    "sigma_b2": ("0 or above", lambda x: x >= 0),
    "padding": ("0 or above", lambda x: x >= 0),
}


class Kernel(ABC):
    """Second moments K(x, y) of a signal or of a gradient, closed under what layers do to them."""

    # must define

    @abstractmethod
    def affine(self, scale: Tensor, offset: Tensor) -> Self:
        """The moments of W h + b: scale·K + offset."""

    @abstractmethod
    def centred(self) -> tuple[Self, Tensor]:
        """The moments of z − E z, and the variance s² = E (z − E z)², over examples (and positions)."""

    @abstractmethod
    def own_size(self) -> Self:
        """The product of the sizes of the two examples, √(E h(x)² E h(y)²): what LayerNorm divides by."""

    @abstractmethod
    def expected(self, expectation: Expectation) -> Self:
        """The expectation over pairs of Gaussians that have these moments."""

    @abstractmethod
    def __mul__(self, other: Self) -> Self: ...

    @abstractmethod
    def __add__(self, other: Self) -> Self: ...

    @abstractmethod
    def scaled(self, scale: Tensor) -> Self:
        """K times a number."""

    @abstractmethod
    def reciprocal(self) -> Self: ...

    @abstractmethod
    def mean_square(self) -> Tensor:
        """E h²."""

    @abstractmethod
    def without_statistics(self, a: Self, activation: Activation, gamma2: Tensor) -> Self:
        """The moments of g − E g − u E[u g] with g φ'(a) for g: the gradient through a batch's mean and variance.

        `a` are the moments of γu, u standardised, and `gamma2` is γ².
        """

    @abstractmethod
    def top(self) -> Tensor:
        """The largest eigenvalue of a Gram matrix with these entries, divided by the number of examples.

        That of a sum is not the sum of those of its terms: add the terms first.
        """

    @abstractmethod
    def same_and_pair(self) -> tuple[Tensor, Tensor]:
        """The means over one example, and over two different ones."""

    @abstractmethod
    def of_output(self) -> Kernel:
        """For a signal at the inputs, the moments of the gradient of one output at that output itself."""

    # may override

    def total(self) -> Kernel:
        """Sums over pairs of positions, where there are positions: what shared parameters see of a gradient."""
        return self

    def among(self, examples: int) -> Kernel:
        """The moments of N examples instead of very many; given ones are as many as they are."""
        return self

    def share_of(self, total: Self) -> Tensor:
        """What this term of a sum adds to its `top`: the shares of all terms add up to it."""
        return self.top()

    # common to all

    def through(self, activation: Activation) -> Self:
        """E[φ(a) φ(b)]."""
        return self.expected(activation.product)

    def slopes(self, activation: Activation) -> Self:
        """E[φ'(a) φ'(b)]."""
        return self.expected(activation.slopes)

    def weighted_slopes(self, activation: Activation) -> Self:
        """E[aφ'(a) bφ'(b)]."""
        return self.expected(activation.weighted_slopes)


@dataclass(frozen=True)
class PairKernel(Kernel):
    """Moments of one example (`same`) and of two different ones (`pair`), which stand for all N examples."""

    same: Tensor
    pair: Tensor
    examples: float = math.inf

    # must define

    @abstractmethod
    def as_entry(self, number: Tensor) -> Tensor:
        """A number per network, shaped to be combined with `same` and `pair`."""

    @abstractmethod
    def overall(self) -> Tensor:
        """The mean over all pairs of examples, and of positions where there are some."""

    # common to both

    def each(self, change: Callable[[Tensor], Tensor]) -> Self:
        """The same change made to both."""
        return replace(self, same=change(self.same), pair=change(self.pair))

    def among(self, examples: int) -> Self:
        return replace(self, examples=float(examples))

    def mean(self) -> Tensor:
        """Over all pairs of examples, of which a share 1/N are pairs of one with itself."""
        return self.pair if math.isinf(self.examples) else self.pair + (self.same - self.pair) / self.examples

    def affine(self, scale: Tensor, offset: Tensor) -> Self:
        return self.each(lambda k: self.as_entry(scale) * k + self.as_entry(offset))

    def scaled(self, scale: Tensor) -> Self:
        return self.each(lambda k: self.as_entry(scale) * k)

    def own_size(self) -> Self:
        return self.each(lambda k: self.as_entry(self.mean_square()) * torch.ones_like(k))

    def __mul__(self, other: Self) -> Self:
        return replace(self, same=self.same * other.same, pair=self.pair * other.pair)

    def __add__(self, other: Self) -> Self:
        return replace(self, same=self.same + other.same, pair=self.pair + other.pair)

    def reciprocal(self) -> Self:
        return self.each(torch.reciprocal)

    def without_statistics(self, a: Self, activation: Activation, gamma2: Tensor) -> Self:
        along = (self * a.weighted_slopes(activation)).scaled(1 / gamma2)
        # the part of g along u is taken to be one number times u at all positions
        u = a.scaled(1 / gamma2)
        return (self * a.slopes(activation)).centred()[0] + u.scaled(-along.overall())

    def of_output(self) -> Moments:
        one = torch.ones_like(self.mean_square())
        return Moments(one, one, self.examples)


class Moments(PairKernel):
    """Two numbers E h(x)² and E h(x) h(y), or two tensors that broadcast: a whole grid of networks at once.

    The Gram matrix of N such examples is constant on and off its diagonal. Its largest eigenvalue is N times the mean
    of all its entries: N · pair for very many.
    """

    @classmethod
    def independent(cls) -> Moments:
        """Very many independent normalised inputs."""
        return cls(float64(1.0), float64(0.0))

    def as_entry(self, number: Tensor) -> Tensor:
        return number

    def overall(self) -> Tensor:
        return self.mean()

    def centred(self) -> tuple[Moments, Tensor]:
        # the mean over examples is what they share on average
        shared = self.mean()
        u = self.each(lambda k: k - shared)
        return u, u.same

    def expected(self, expectation: Expectation) -> Moments:
        return self.each(lambda k: expectation(self.same, self.same, k))

    def mean_square(self) -> Tensor:
        return self.same

    def top(self) -> Tensor:
        return self.mean()

    def same_and_pair(self) -> tuple[Tensor, Tensor]:
        return self.same, self.pair


# numbers, of one network or of a grid


def float64(value: Number) -> Tensor:
    """A number, or a grid of numbers, in double precision."""
    return torch.as_tensor(value, dtype=torch.float64)


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
