"""What mean-field theory knows of a layer: second moments of its units over examples that are alike but independent.

    same = E_x[h(x)²]              q̂ of the source
    pair = E_{x≠y}[h(x) h(y)]      q̂_xy

and of the gradient of one output, summed over units (and, for convolutions, over pairs of positions): q̃, q̃_xy. The two
numbers, or grids of them, are an element of a small algebra that `Field` and `Gram` share: moments that differ from
position to position, and those of given examples.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
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
    def without_mean(self, along: Self, u: Self) -> Self:
        """Those of g − E g − u E[u g], u standardised: what the derivative of a batch's mean and variance leaves of g.

        along: the moments of u g. u: those of u.
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
    """same: E h(x)². pair: E h(x) h(y). Two tensors of one shape: a whole grid of networks at once.

    The Gram matrix of many such examples is nearly constant off its diagonal, and its largest eigenvalue is N · pair.
    """

    same: Tensor
    pair: Tensor

    def affine(self, scale: Tensor, offset: Tensor) -> Moments:
        return Moments(scale * self.same + offset, scale * self.pair + offset)

    def centred(self) -> tuple[Moments, Tensor]:
        # the mean over examples is what two of them share
        variance = self.same - self.pair
        return Moments(variance, torch.zeros_like(variance)), variance

    def own_size(self) -> Moments:
        return Moments(self.same, self.same)

    def through(self, activation: Activation) -> Moments:
        return self._expected(activation.product)

    def slopes(self, activation: Activation) -> Moments:
        return self._expected(activation.slopes)

    def weighted_slopes(self, activation: Activation) -> Moments:
        return self._expected(activation.weighted_slopes)

    def __mul__(self, other: Moments) -> Moments:
        return Moments(self.same * other.same, self.pair * other.pair)

    def __add__(self, other: Moments) -> Moments:
        return Moments(self.same + other.same, self.pair + other.pair)

    def scaled(self, scale: Tensor) -> Moments:
        return Moments(self.same * scale, self.pair * scale)

    def reciprocal(self) -> Moments:
        return Moments(1 / self.same, 1 / self.pair)

    def mean_square(self) -> Tensor:
        return self.same

    def without_mean(self, along: Moments, u: Moments) -> Moments:
        return Moments(self.same - self.pair - along.pair, torch.zeros_like(self.pair))

    def top(self) -> Tensor:
        return self.pair

    def _expected(self, expectation: Expectation) -> Moments:
        return Moments(
            expectation(self.same, self.same, self.same), expectation(self.same, self.same, self.pair)
        )
