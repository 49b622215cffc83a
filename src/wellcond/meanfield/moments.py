"""What mean-field theory knows of a layer: second moments of its units over examples that are alike but independent.

    same = E_x[h(x)²]              q̂ of the source
    pair = E_{x≠y}[h(x) h(y)]      q̂_xy

and of the gradient of one output, summed over units (and, for convolutions, over pairs of positions): q̃, q̃_xy. The two
numbers, or grids of them, are an element of a small algebra that `Field` and `Gram` share: moments that differ from
position to position, and those of given examples.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from wellcond.meanfield.gaussian import Activation, Expectation


class Kernel(ABC):
    """Second moments of a signal or of a gradient, closed under what layers do to them."""

    # a signal

    @abstractmethod
    def affine(self, scale: Tensor, offset: Tensor) -> Self:
        """Those of W h + b: scale·K + offset."""

    @abstractmethod
    def centred(self) -> tuple[Self, Tensor]:
        """Those of z − E z, and the variance s² = E (z − E z)², over examples (and positions)."""

    @abstractmethod
    def own_size(self) -> Self:
        """The product of the sizes of the two examples, √(E h(x)² E h(y)²): what LayerNorm divides by."""

    @abstractmethod
    def through(self, activation: Activation) -> Self:
        """E[φ(a) φ(b)]."""

    @abstractmethod
    def slopes(self, activation: Activation) -> Self:
        """E[φ'(a) φ'(b)]."""

    @abstractmethod
    def weighted_slopes(self, activation: Activation) -> Self:
        """E[aφ'(a) bφ'(b)]."""

    # both

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
        """Those of g − E g − u E[u g] with g φ'(a) for g: what the derivative of a batch's mean and variance leaves.

        a: the moments of γu, u standardised. gamma2: γ².
        """

    @abstractmethod
    def top(self) -> Tensor:
        """The largest eigenvalue of a Gram matrix with these entries, divided by the number of examples.

        That of a sum is not the sum of those of its terms: add the terms first.
        """

    def share_of(self, total: Self) -> Tensor:
        """What this term of a sum adds to its `top`: shares of all terms add up to it."""
        return self.top()


@dataclass(frozen=True)
class Moments(Kernel):
    """same: E h(x)². pair: E h(x) h(y). Two tensors that broadcast: a whole grid of networks at once.

    The Gram matrix of N such examples is constant on and off its diagonal, and its largest eigenvalue is N times the
    mean of all its entries: N · pair for very many. examples: N.
    """

    same: Tensor
    pair: Tensor
    examples: float = math.inf

    def each(self, change: Callable[[Tensor], Tensor]) -> Moments:
        """The same done to both."""
        return Moments(change(self.same), change(self.pair), self.examples)

    def mean(self) -> Tensor:
        """Over all pairs of examples, of which a part 1/N are of one with itself."""
        return self.pair if math.isinf(self.examples) else self.pair + (self.same - self.pair) / self.examples

    def affine(self, scale: Tensor, offset: Tensor) -> Moments:
        return self.each(lambda k: scale * k + offset)

    def centred(self) -> tuple[Moments, Tensor]:
        # the mean over examples is what they share on average
        shared = self.mean()
        u = self.each(lambda k: k - shared)
        return u, u.same

    def own_size(self) -> Moments:
        return self.each(lambda _: self.same)

    def through(self, activation: Activation) -> Moments:
        return self._expected(activation.product)

    def slopes(self, activation: Activation) -> Moments:
        return self._expected(activation.slopes)

    def weighted_slopes(self, activation: Activation) -> Moments:
        return self._expected(activation.weighted_slopes)

    def __mul__(self, other: Moments) -> Moments:
        return Moments(self.same * other.same, self.pair * other.pair, self.examples)

    def __add__(self, other: Moments) -> Moments:
        return Moments(self.same + other.same, self.pair + other.pair, self.examples)

    def scaled(self, scale: Tensor) -> Moments:
        return self.each(lambda k: k * scale)

    def reciprocal(self) -> Moments:
        return self.each(torch.reciprocal)

    def mean_square(self) -> Tensor:
        return self.same

    def without_statistics(self, a: Moments, activation: Activation, gamma2: Tensor) -> Moments:
        along = (self * a.weighted_slopes(activation)).scaled(1 / gamma2)
        return (self * a.slopes(activation)).without_mean(along, a.scaled(1 / gamma2))

    def without_mean(self, along: Moments, u: Moments) -> Moments:
        """Those of g − E g − u E[u g]. along: those of u g."""
        return self.centred()[0] + u.scaled(-along.mean())

    def top(self) -> Tensor:
        return self.mean()

    def _expected(self, expectation: Expectation) -> Moments:
        return self.each(lambda k: expectation(self.same, self.same, k))
