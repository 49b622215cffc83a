"""Activations of sums in which an activated signal goes on, as ReLU(h + W φ(…)) of the usual residual networks.

What is behind weights has mean 0 over the units of a layer; h, behind an activation, does not. The sum is taken as
Gaussian with the mean m of h: a constant that all examples and positions share, followed beside the second moments.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import leaky_relu

from wellcond.meanfield.gaussian import Activation, PiecewiseLinear, Smooth
from wellcond.meanfield.moments import Kernel
from wellcond.meanfield.stages import Affine, Nonlinearity, Residual, Stage, Variant


@dataclass(frozen=True)
class Scaling(Stage):
    """The signal times a number, or with channels of zeros behind. factor, of_mean: of its second moments, its mean."""

    factor: Tensor
    of_mean: float

    def forward(self, h: Kernel) -> Kernel:
        return h.scaled(self.factor)

    def backward(self, h: Kernel, g: Kernel, variant: Variant) -> Kernel:
        return g.scaled(self.factor)

    def terms(self, h: Kernel, g: Kernel, variant: Variant) -> Iterator[tuple[str, Kernel]]:
        return iter(())


@dataclass(frozen=True)
class AboutMean(Nonlinearity):
    """φ(a) for Gaussian a of mean m, as φ(m + ·) of what is left of it. original: φ."""

    mean: Tensor | None = None
    original: Activation | None = None

    @classmethod
    def of(cls, stage: Nonlinearity, mean: Tensor | float = 0.0) -> AboutMean:
        """The stage, told of the mean of what it receives."""
        m = torch.as_tensor(mean, dtype=torch.float64)
        original = stage.original if isinstance(stage, AboutMean) else stage.activation
        assert original is not None
        function = _function(original)

        def shifted(x: Tensor) -> Tensor:
            return function(x + m.reshape(m.shape + (1,) * (x.dim() - m.dim())))

        return cls(stage.name, Smooth(original.name, shifted), mean=m, original=original)

    def pre_activation(self, h: Kernel) -> Kernel:
        assert self.mean is not None
        return h.affine(torch.ones_like(self.mean), -(self.mean**2))


def with_means(stages: Sequence[Stage], h: Kernel) -> list[Stage]:
    """The same stages, of which those told of a mean are told of the one they have when the first receives h."""
    return _followed(stages, h, torch.zeros((), dtype=torch.float64))[0]


def _followed(stages: Sequence[Stage], h: Kernel, mean: Tensor) -> tuple[list[Stage], Kernel, Tensor]:
    told: list[Stage] = []
    for stage in stages:
        if isinstance(stage, Residual):
            branch, _, of_branch = _followed(stage.branch, h, mean)
            shortcut, _, of_shortcut = _followed(stage.shortcut, h, mean)
            stage, mean = Residual(branch, shortcut), of_branch + of_shortcut
        elif isinstance(stage, Nonlinearity):
            if isinstance(stage, AboutMean):
                stage = AboutMean.of(stage, mean)
            mean = stage.activation.mean(stage.pre_activation(h).mean_square())
        elif isinstance(stage, Affine):
            mean = torch.zeros_like(mean)
        elif isinstance(stage, Scaling):
            mean = mean * stage.of_mean
        told.append(stage)
        h = stage.forward(h)
    return told, h, mean


def _function(activation: Activation) -> Callable[[Tensor], Tensor]:
    if isinstance(activation, PiecewiseLinear):
        slope = activation.slope
        return lambda x: leaky_relu(x, slope)
    assert isinstance(activation, Smooth)
    return activation.function
