"""Moments that differ from position to position: images with zero padding, or whose pixels are alike.

    same(α, β) = E_x[h_α(x) h_β(x)]              pair(α, β) = E_{x≠y}[h_α(x) h_β(y)]

over the P positions of a feature map. A convolution averages them over its kernel sites δ, with zeros outside,

    K(α, β) → (1/|F|) Σ_δ K(sα + δ, sβ + δ),

and the gradient goes back by the adjoint of that. Without padding and for independent inputs all positions are alike,
and `Moments` says the same in two numbers: `pair` of a gradient is then the sum over pairs of positions.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from wellcond.errors import TooLarge
from wellcond.meanfield.gaussian import Activation, Expectation
from wellcond.meanfield.moments import Kernel, Moments

MOST_POSITIONS = 4096
"""Of a feature map: its moments are matrices of positions, 128 MiB each at this size."""


@dataclass(frozen=True)
class Window:
    """The sites that a convolution or a pooling looks at: (height, width) of each."""

    size: tuple[int, int]
    kernel: tuple[int, int]
    stride: tuple[int, int] = (1, 1)
    padding: tuple[int, int] = (0, 0)
    dilation: tuple[int, int] = (1, 1)

    @property
    def outputs(self) -> tuple[int, int]:
        """Height and width of what comes out."""
        height, width = (
            (n + 2 * p - d * (k - 1) - 1) // s + 1
            for n, k, s, p, d in zip(self.size, self.kernel, self.stride, self.padding, self.dilation, strict=True)
        )
        return height, width

    @property
    def sites(self) -> int:
        """|F|."""
        return math.prod(self.kernel)

    def shifts(self) -> Iterator[tuple[slice, slice]]:
        """For every kernel site δ, the padded rows and columns {sα + δ}."""
        for site in itertools.product(*map(range, self.kernel)):
            rows, columns = (
                slice(d * i, d * i + s * (n - 1) + 1, s)
                for i, d, s, n in zip(site, self.dilation, self.stride, self.outputs, strict=True)
            )
            yield rows, columns


@dataclass(frozen=True)
class Field(Kernel):
    """same, pair: (..., P, P). examples: N."""

    same: Tensor
    pair: Tensor
    examples: float = math.inf

    @classmethod
    def independent(cls, positions: int) -> Field:
        """Of independent normalised inputs, whose pixels are independent too."""
        if positions > MOST_POSITIONS:
            raise TooLarge(
                f"a feature map of {positions} positions needs moments of {positions}×{positions} pairs of them; "
                f"the limit is {MOST_POSITIONS}, a map of 64×64. Predict for a smaller image, or without padding."
            )
        one = torch.eye(positions, dtype=torch.float64)
        return cls(one, torch.zeros_like(one))

    @classmethod
    def of(cls, images: Tensor) -> Field:
        """Of given examples (N, channels, height, width), N > 1: means over channels, over one and over two of them."""
        x = images.detach().double().flatten(2)
        examples, channels, _ = x.shape
        same = torch.einsum("nca,ncb->ab", x, x) / (examples * channels)
        mean = x.sum(0)
        every = mean.T @ mean / (examples * channels)
        return cls(same, (every - same) / (examples - 1), examples)

    @property
    def positions(self) -> int:
        return self.same.shape[-1]

    def average(self) -> Moments:
        """q and q_xy of the source: means over positions."""
        return Moments(_diagonal(self.same).mean(-1), _diagonal(self.pair).mean(-1), self.examples)

    def total(self) -> Moments:
        """Sums over pairs of positions: what parameters that all positions share see of a gradient."""
        return Moments(self.same.sum((-1, -2)), self.pair.sum((-1, -2)), self.examples)

    def mean(self) -> Tensor:
        """Over all pairs of examples, of which a part 1/N are of one with itself."""
        return self.pair + (self.same - self.pair) / self.examples

    def each(self, change: Callable[[Tensor], Tensor]) -> Field:
        """The same done to both."""
        return Field(change(self.same), change(self.pair), self.examples)

    def patches(self, window: Window) -> Field:
        """(1/|F|) Σ_δ K(sα + δ, sβ + δ): of what a convolution multiplies its kernel with."""
        (above, left), (h, w) = window.padding, window.size

        def gathered(k: Tensor) -> Tensor:
            padded = pad(k.reshape(*k.shape[:-2], h, w, h, w), [left, left, above, above] * 2)
            shifted = (padded[..., rows, columns, rows, columns] for rows, columns in window.shifts())
            return functools.reduce(torch.add, shifted).flatten(-4, -3).flatten(-2) / window.sites

        return self.each(gathered)

    def spread(self, window: Window) -> Field:
        """The adjoint of `patches`: of the gradient at what a convolution received."""
        (above, left), (h, w), outputs = window.padding, window.size, window.outputs

        def scattered(k: Tensor) -> Tensor:
            k = k.reshape(*k.shape[:-2], *outputs, *outputs)
            padded = k.new_zeros(*k.shape[:-4], *(h + 2 * above, w + 2 * left) * 2)
            for rows, columns in window.shifts():
                padded[..., rows, columns, rows, columns] += k
            rows, columns = slice(above, above + h), slice(left, left + w)
            return padded[..., rows, columns, rows, columns].flatten(-4, -3).flatten(-2) / window.sites

        return self.each(scattered)

    # the algebra of moments

    def affine(self, scale: Tensor, offset: Tensor) -> Field:
        return self.each(lambda k: scale[..., None, None] * k + offset[..., None, None])

    def centred(self) -> tuple[Field, Tensor]:
        # K(α, β) − r(α) − r(β) + E r: the mean over examples and positions is what they share on average
        r = self.mean().mean(-1)
        shared = r.unsqueeze(-1) + r.unsqueeze(-2) - r.mean(-1)[..., None, None]
        u = self.each(lambda k: k - shared)
        return u, u.mean_square()

    def own_size(self) -> Field:
        return self.each(self.mean_square()[..., None, None].expand_as)

    def through(self, activation: Activation) -> Field:
        return self._expected(activation.product)

    def slopes(self, activation: Activation) -> Field:
        return self._expected(activation.slopes)

    def weighted_slopes(self, activation: Activation) -> Field:
        return self._expected(activation.weighted_slopes)

    def __mul__(self, other: Field) -> Field:
        return Field(self.same * other.same, self.pair * other.pair, self.examples)

    def __add__(self, other: Field) -> Field:
        return Field(self.same + other.same, self.pair + other.pair, self.examples)

    def scaled(self, scale: Tensor) -> Field:
        return self.each(lambda k: scale[..., None, None] * k)

    def reciprocal(self) -> Field:
        return self.each(torch.reciprocal)

    def mean_square(self) -> Tensor:
        return _diagonal(self.same).mean(-1)

    def without_statistics(self, a: Field, activation: Activation, gamma2: Tensor) -> Field:
        along = (self * a.weighted_slopes(activation)).scaled(1 / gamma2)
        return (self * a.slopes(activation)).without_mean(along, a.scaled(1 / gamma2))

    def without_mean(self, along: Field, u: Field) -> Field:
        """Those of g − E g − u E[u g]. along: those of u g."""
        # of g, what goes along with u is taken to be one number times u at all positions
        return self.centred()[0] + u.scaled(-along.mean().mean((-1, -2)))

    def top(self) -> Tensor:
        return self.total().top()

    def _expected(self, expectation: Expectation) -> Field:
        variance = _diagonal(self.same)
        return self.each(lambda k: expectation(variance.unsqueeze(-1), variance.unsqueeze(-2), k))


def _diagonal(k: Tensor) -> Tensor:
    return k.diagonal(dim1=-2, dim2=-1)
