"""Layers between feature maps: what they do to the moments of `Field`, or to `Moments` where positions are alike."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import avg_pool2d

from wellcond.meanfield.field import Field, Window
from wellcond.meanfield.moments import Kernel, Moments
from wellcond.meanfield.stages import Affine, Stage, Variant


@dataclass(frozen=True, kw_only=True)
class Convolution(Affine):
    """Its fan_in is channels × kernel sites. On `Moments` it has no padding, or is taken to have none."""

    window: Window

    def forward(self, h: Kernel) -> Kernel:
        return super().forward(self._patches(h))

    def backward(self, h: Kernel, g: Kernel, variant: Variant) -> Kernel:
        back = super().backward(h, g, variant)
        return back.spread(self.window) if isinstance(back, Field) else back

    def terms(self, h: Kernel, g: Kernel, variant: Variant) -> Iterator[tuple[str, Kernel]]:
        # eq. 45: |K| for h and |K| for δ, whose sums over positions are what is carried back and not the means
        printed = torch.tensor(math.prod(self.window.outputs) ** 2 if variant == "source" else 1, dtype=torch.float64)
        for name, term in super().terms(self._patches(h), g, variant):
            yield name, term.scaled(printed)

    def _patches(self, h: Kernel) -> Kernel:
        return h.patches(self.window) if isinstance(h, Field) else h


class _Reduction(Stage):
    """From a field to fewer positions; without parameters."""

    def terms(self, h: Kernel, g: Kernel, variant: Variant) -> Iterator[tuple[str, Kernel]]:
        return iter(())


@dataclass(frozen=True)
class Flatten(_Reduction):
    """Every position is a feature of its own, with its own weights above."""

    def forward(self, h: Kernel) -> Kernel:
        return h.average() if isinstance(h, Field) else h

    def backward(self, h: Kernel, g: Kernel, variant: Variant) -> Kernel:
        if not (isinstance(h, Field) and isinstance(g, Moments)):
            return g
        one = torch.eye(h.positions, dtype=h.same.dtype) / h.positions
        return Field(g.same[..., None, None] * one, g.pair[..., None, None] * one, g.examples)


@dataclass(frozen=True)
class GlobalPool(_Reduction):
    """The mean over all positions."""

    def forward(self, h: Kernel) -> Kernel:
        if isinstance(h, Field):
            return h.total().scaled(torch.tensor(1 / h.positions**2, dtype=torch.float64))
        assert isinstance(h, Moments)
        # positions of one example share pixels, which two numbers do not tell
        return Moments(torch.full_like(h.same, math.nan), h.pair, h.examples)

    def backward(self, h: Kernel, g: Kernel, variant: Variant) -> Kernel:
        if not (isinstance(h, Field) and isinstance(g, Moments)):
            return g
        one = torch.ones_like(h.same) / h.positions**2
        return Field(g.same[..., None, None] * one, g.pair[..., None, None] * one, g.examples)


@dataclass(frozen=True)
class AveragePool(_Reduction):
    """The mean over a window, zeros outside included."""

    window: Window

    def forward(self, h: Kernel) -> Kernel:
        if not isinstance(h, Field):
            raise ValueError("average pooling inside of a network has positions that differ; the source has no such.")
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
