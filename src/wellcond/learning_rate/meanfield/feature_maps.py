"""Feature maps: stages that combine several positions.

Over the positions of a map, a convolution averages moments over its kernel sites δ, with zeros outside,

    K(α, β) → (1/|F|) Σ_δ K(sα + δ, sβ + δ),

and the gradient goes back by the adjoint of that.
"""

from __future__ import annotations

import functools
import itertools
import math
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import avg_pool2d, pad

from wellcond.learning_rate.meanfield.gram import Gram
from wellcond.learning_rate.meanfield.moments import Kernel, Moments, diagonal, float64
from wellcond.learning_rate.meanfield.stages import Affine, Stage, Variant, every


@dataclass(frozen=True)
class Window:
    """The sites that a convolution or a pooling uses of a map of `size`; every attribute is (height, width)."""

    size: tuple[int, int]
    kernel: tuple[int, int]
    stride: tuple[int, int] = (1, 1)
    padding: tuple[int, int] = (0, 0)
    dilation: tuple[int, int] = (1, 1)

    @property
    def outputs(self) -> tuple[int, int]:
        """Height and width of the output."""
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

    def patches(self, k: Tensor) -> Tensor:
        """(..., P, P) → (..., P', P'): the moments of the patches that a convolution multiplies its kernel with."""
        (above, left), (h, w) = self.padding, self.size
        padded = pad(k.reshape(*k.shape[:-2], h, w, h, w), [left, left, above, above] * 2)
        shifted = (padded[..., rows, columns, rows, columns] for rows, columns in self.shifts())
        return functools.reduce(torch.add, shifted).flatten(-4, -3).flatten(-2) / self.sites

    def spread(self, k: Tensor) -> Tensor:
        """The adjoint of `patches`: the moments of the gradient at a convolution's input."""
        (above, left), (h, w) = self.padding, self.size
        k = k.reshape(*k.shape[:-2], *self.outputs, *self.outputs)
        padded = k.new_zeros(*k.shape[:-4], *(h + 2 * above, w + 2 * left) * 2)
        for rows, columns in self.shifts():
            padded[..., rows, columns, rows, columns] += k
        rows, columns = slice(above, above + h), slice(left, left + w)
        return padded[..., rows, columns, rows, columns].flatten(-4, -3).flatten(-2) / self.sites


def two(values: Any, fill: int = 1) -> tuple[int, int]:
    """An option along height and width; for a layer on sequences, `fill` is the height's."""
    first, second = (values, values) if isinstance(values, int) else (fill, fill, *values)[-2:]
    return first, second


@dataclass(frozen=True, kw_only=True)
class Convolution(Affine):
    """A convolution, with fan_in = channels × kernel sites. For moments of alike positions, padding is ignored."""

    window: Window

    def forward(self, h: Kernel) -> Kernel:
        return super().forward(self._patches(h))

    def backward(self, h: Kernel, g: Kernel, variant: Variant) -> Kernel:
        back = super().backward(h, g, variant)
        return back if self._are_alike(h) else back.each(self.window.spread)

    def terms(self, h: Kernel, g: Kernel) -> Iterator[Kernel]:
        return super().terms(self._patches(h), g)

    def _patches(self, h: Kernel) -> Kernel:
        return h if self._are_alike(h) else h.each(self.window.patches)

    def _are_alike(self, h: Kernel) -> bool:
        assert isinstance(h, Moments)
        return h.positions == 1 < math.prod(self.window.size)


class _Head(Stage):
    """From a feature map to one vector."""

    @abstractmethod
    def gradient_shares(self, positions: int) -> Tensor:
        """(P, P): how the gradient of the vector is spread over pairs of positions; they add up to 1."""

    def backward(self, h: Kernel, g: Kernel, variant: Variant) -> Kernel:
        assert isinstance(h, Moments)
        shares = self.gradient_shares(h.positions)
        return g.each(lambda k: k * shares)


@dataclass(frozen=True)
class Flatten(_Head):
    """Every position is a feature of its own, with its own weights above."""

    name = "flatten"

    def forward(self, h: Kernel) -> Kernel:
        return h.each(lambda k: diagonal(k).mean(-1)[..., None, None])

    def gradient_shares(self, positions: int) -> Tensor:
        return torch.eye(positions, dtype=torch.float64, device="cpu") / positions


@dataclass(frozen=True)
class GlobalPool(_Head):
    """The mean over all positions."""

    positions: int
    name = "global pooling"

    def forward(self, h: Kernel) -> Kernel:
        assert isinstance(h, Moments)
        pooled = h.total().scaled(float64(1 / h.positions**2))
        if h.positions == self.positions:
            return pooled
        # alike positions of one example share pixels, and their moments do not contain how many
        return replace(pooled, same=torch.full_like(h.same, math.nan))

    def gradient_shares(self, positions: int) -> Tensor:
        return torch.ones(positions, positions, dtype=torch.float64, device="cpu") / positions**2


@dataclass(frozen=True)
class AveragePool(Stage):
    """The mean over a window, including zeros outside the map."""

    window: Window
    name = "average pooling"

    def forward(self, h: Kernel) -> Kernel:
        return h.each(lambda k: self._matrix @ k @ self._matrix.T)

    def backward(self, h: Kernel, g: Kernel, variant: Variant) -> Kernel:
        return g.each(lambda k: self._matrix.T @ k @ self._matrix)

    @functools.cached_property
    def _matrix(self) -> Tensor:
        """(P', P): the weight of every position in every mean."""
        w, positions = self.window, math.prod(self.window.size)
        unit = torch.eye(positions, dtype=torch.float64, device="cpu").view(positions, 1, *w.size)
        return avg_pool2d(unit, w.kernel, w.stride, w.padding).flatten(1).T


def input_moments(
    stages: Sequence[Stage], inputs: Tensor | Sequence[int] | None, examples: int | None = None
) -> Kernel:
    """The moments of inputs, or of independent ones of a shape: by position if positions differ, or by example."""
    maps = [stage for stage in every(stages) if isinstance(stage, (Convolution, AveragePool, Flatten, GlobalPool))]
    padded = any(any(stage.window.padding) for stage in maps if isinstance(stage, Convolution))
    start: Kernel = Moments.independent()
    if isinstance(inputs, Tensor):
        start = Moments.of(inputs.cpu()) if maps else Gram.of(inputs.cpu())
    # with few examples the products of positions of one example matter, and two numbers do not contain them
    elif inputs and (padded or any(isinstance(stage, AveragePool) for stage in maps) or (maps and examples)):
        start = Moments.independent(math.prod(inputs[1:]))
    return start if examples is None else start.among(examples)
