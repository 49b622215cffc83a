"""Feature maps: moments that differ from position to position, and the layers between maps.

    same(α, β) = E_x[h_α(x) h_β(x)]              pair(α, β) = E_{x≠y}[h_α(x) h_β(y)]

over the P positions of a map. A convolution averages them over its kernel sites δ, with zeros outside,

    K(α, β) → (1/|F|) Σ_δ K(sα + δ, sβ + δ),

and the gradient goes back by the adjoint of that. Without padding and for independent inputs all positions are alike,
and `Moments` says the same in two numbers: `pair` of a gradient is then the sum over pairs of positions.
"""

from __future__ import annotations

import functools
import itertools
import math
from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import avg_pool2d, pad

from wellcond.errors import TooLarge
from wellcond.meanfield.gaussian import Expectation
from wellcond.meanfield.moments import Kernel, Moments, PairKernel, diagonal, float64
from wellcond.meanfield.stages import Affine, Stage, Variant

MOST_POSITIONS = 4096
"""Of a feature map: its moments are matrices of positions, 128 MiB each at this size."""


@dataclass(frozen=True)
class Window:
    """The sites that a convolution or a pooling sees of a map of `size`, each attribute as (height, width)."""

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


class Field(PairKernel):
    """Moments of all pairs of positions: `same` and `pair` are (..., P, P)."""

    @classmethod
    def independent(cls, positions: int) -> Field:
        """Independent normalised inputs, whose pixels are independent too."""
        if positions > MOST_POSITIONS:
            raise TooLarge(
                f"a feature map of {positions} positions needs moments of {positions}×{positions} pairs of them; "
                f"the limit is {MOST_POSITIONS}, a map of 64×64. Predict for a smaller image, or without padding."
            )
        one = torch.eye(positions, dtype=torch.float64)
        return cls(one, torch.zeros_like(one))

    @classmethod
    def of(cls, images: Tensor) -> Field:
        """Given examples (N, channels, height, width), N > 1: means over channels and over one or two examples."""
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

    def average(self) -> Moments:
        """q and q_xy of wei2019: means over positions."""
        return Moments(diagonal(self.same).mean(-1), diagonal(self.pair).mean(-1), self.examples)

    def total(self) -> Moments:
        return Moments(self.same.sum((-1, -2)), self.pair.sum((-1, -2)), self.examples)

    def patches(self, window: Window) -> Field:
        """(1/|F|) Σ_δ K(sα + δ, sβ + δ): the moments of what a convolution multiplies its kernel with."""
        (above, left), (h, w) = window.padding, window.size

        def gathered(k: Tensor) -> Tensor:
            padded = pad(k.reshape(*k.shape[:-2], h, w, h, w), [left, left, above, above] * 2)
            shifted = (padded[..., rows, columns, rows, columns] for rows, columns in window.shifts())
            return functools.reduce(torch.add, shifted).flatten(-4, -3).flatten(-2) / window.sites

        return self.each(gathered)

    def spread(self, window: Window) -> Field:
        """The adjoint of `patches`: the moments of the gradient at what a convolution received."""
        (above, left), (h, w), outputs = window.padding, window.size, window.outputs

        def scattered(k: Tensor) -> Tensor:
            k = k.reshape(*k.shape[:-2], *outputs, *outputs)
            padded = k.new_zeros(*k.shape[:-4], *(h + 2 * above, w + 2 * left) * 2)
            for rows, columns in window.shifts():
                padded[..., rows, columns, rows, columns] += k
            rows, columns = slice(above, above + h), slice(left, left + w)
            return padded[..., rows, columns, rows, columns].flatten(-4, -3).flatten(-2) / window.sites

        return self.each(scattered)

    def as_entry(self, number: Tensor) -> Tensor:
        return number[..., None, None]

    def overall(self) -> Tensor:
        return self.mean().mean((-1, -2))

    def centred(self) -> tuple[Field, Tensor]:
        # K(α, β) − r(α) − r(β) + E r: the mean over examples and positions is what they share on average
        r = self.mean().mean(-1)
        shared = r.unsqueeze(-1) + r.unsqueeze(-2) - r.mean(-1)[..., None, None]
        u = self.each(lambda k: k - shared)
        return u, u.mean_square()

    def expected(self, expectation: Expectation) -> Field:
        variance = diagonal(self.same)
        return self.each(lambda k: expectation(variance.unsqueeze(-1), variance.unsqueeze(-2), k))

    def mean_square(self) -> Tensor:
        return diagonal(self.same).mean(-1)

    def top(self) -> Tensor:
        return self.total().top()

    def same_and_pair(self) -> tuple[Tensor, Tensor]:
        return self.average().same_and_pair()


# layers between feature maps


@dataclass(frozen=True, kw_only=True)
class Convolution(Affine):
    """A convolution, whose fan_in is channels × kernel sites. On `Moments` it is taken to have no padding."""

    window: Window

    def forward(self, h: Kernel) -> Kernel:
        return super().forward(self._patches(h))

    def backward(self, h: Kernel, g: Kernel, variant: Variant) -> Kernel:
        back = super().backward(h, g, variant)
        return back.spread(self.window) if isinstance(back, Field) else back

    def terms(self, h: Kernel, g: Kernel) -> Iterator[Kernel]:
        return super().terms(self._patches(h), g)

    def _patches(self, h: Kernel) -> Kernel:
        return h.patches(self.window) if isinstance(h, Field) else h


class _Head(Stage):
    """From a feature map to one vector."""

    @abstractmethod
    def gradient_shares(self, positions: int) -> Tensor:
        """(P, P): how the gradient of the vector is spread over pairs of positions; they add up to 1."""

    def backward(self, h: Kernel, g: Kernel, variant: Variant) -> Kernel:
        if not (isinstance(h, Field) and isinstance(g, Moments)):
            return g
        shares = self.gradient_shares(h.positions)
        return Field(g.same[..., None, None] * shares, g.pair[..., None, None] * shares, g.examples)


@dataclass(frozen=True)
class Flatten(_Head):
    """Every position is a feature of its own, with its own weights above."""

    name = "flatten"

    def forward(self, h: Kernel) -> Kernel:
        return h.average() if isinstance(h, Field) else h

    def gradient_shares(self, positions: int) -> Tensor:
        return torch.eye(positions, dtype=torch.float64) / positions


@dataclass(frozen=True)
class GlobalPool(_Head):
    """The mean over all positions."""

    name = "global pooling"

    def forward(self, h: Kernel) -> Kernel:
        if isinstance(h, Field):
            return h.total().scaled(float64(1 / h.positions**2))
        assert isinstance(h, Moments)
        # positions of one example share pixels, which two numbers do not say
        return Moments(torch.full_like(h.same, math.nan), h.pair, h.examples)

    def gradient_shares(self, positions: int) -> Tensor:
        return torch.ones(positions, positions, dtype=torch.float64) / positions**2


@dataclass(frozen=True)
class AveragePool(Stage):
    """The mean over a window, zeros outside included."""

    window: Window
    name = "average pooling"

    def forward(self, h: Kernel) -> Kernel:
        assert isinstance(h, Field)
        m = self._matrix()
        return h.each(lambda k: m @ k @ m.T)

    def backward(self, h: Kernel, g: Kernel, variant: Variant) -> Kernel:
        assert isinstance(g, Field)
        m = self._matrix()
        return g.each(lambda k: m.T @ k @ m)

    def _matrix(self) -> Tensor:
        """(P', P): the weight of every position in every mean."""
        w, positions = self.window, math.prod(self.window.size)
        unit = torch.eye(positions, dtype=torch.float64).view(positions, 1, *w.size)
        return avg_pool2d(unit, w.kernel, w.stride, w.padding).flatten(1).T
