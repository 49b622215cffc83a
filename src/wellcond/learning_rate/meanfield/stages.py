"""Layers as mean-field theory sees them: what each does to the moments of the signal and of the gradient.

Weights are Gaussian with variance σ_w²/fan_in, biases with σ_b². The gradient of one output is carried back with the
usual assumption that it is independent of the signal. A layer's term of the Gram matrix of gradients is

    ⟨∂f(x)/∂W, ∂f(y)/∂W⟩ = fan_in · K(x, y) K̃(x, y),

K of what the layer receives, K̃ of the gradient at what it gives.
"""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from wellcond.learning_rate.meanfield.gaussian import Activation
from wellcond.learning_rate.meanfield.moments import Kernel, float64

Norm = Literal["batch", "layer", "none"]
Variant = Literal["batch", "detached"]
"""What BatchNorm's statistics are to the gradient: differentiated, as in training, or constants."""


class Stage(ABC):
    """One step of the recursions. h are the moments of what it receives, g those of the gradient at what it gives."""

    name: str

    @abstractmethod
    def forward(self, h: Kernel) -> Kernel:
        """The moments of what it gives."""

    @abstractmethod
    def backward(self, h: Kernel, g: Kernel, variant: Variant) -> Kernel:
        """The moments of the gradient at what it receives."""

    def terms(self, h: Kernel, g: Kernel) -> Iterator[Kernel]:
        """What each of its trained parameters adds to the Gram matrix of gradients."""
        return iter(())


@dataclass(frozen=True)
class Affine(Stage):
    """W h + b, with weights of variance σ_w²/fan_in and biases of variance σ_b²."""

    name: str
    fan_in: Tensor
    sigma_w2: Tensor
    sigma_b2: Tensor
    trains_weight: bool = True
    trains_bias: bool = False

    def forward(self, h: Kernel) -> Kernel:
        return h.affine(self.sigma_w2, self.sigma_b2)

    def backward(self, h: Kernel, g: Kernel, variant: Variant) -> Kernel:
        return g.scaled(self.sigma_w2)

    def terms(self, h: Kernel, g: Kernel) -> Iterator[Kernel]:
        if self.trains_weight:
            yield (h * g).scaled(self.fan_in)
        if self.trains_bias:
            yield g


@dataclass(frozen=True)
class Nonlinearity(Stage):
    """φ(γ·norm(z)), with or without a norm; φ may be the identity.

    Attributes:
        name: The norm's name, or the activation's where there is no norm.
        activation: φ.
        norm: Which norm.
        gamma: γ; None without a norm.
        trains_affine: Whether γ and β count among the parameters.
        positions: Of the feature map that the norm sees; 1 for a vector.
        mean: Of what an activation without a norm receives; None for 0, as after weights. The sum in ReLU(h + W φ(…))
            of a residual network has another; it is taken as Gaussian, with one mean for all examples and positions.
    """

    name: str
    activation: Activation
    norm: Norm = "none"
    gamma: Tensor | None = None
    trains_affine: bool = False
    positions: int = 1
    mean: Tensor | None = None

    def forward(self, h: Kernel) -> Kernel:
        return self.pre_activation(h).expected(self._function.product)

    def backward(self, h: Kernel, g: Kernel, variant: Variant) -> Kernel:
        a = self.pre_activation(h)
        if self.norm == "batch" and variant == "batch":
            # (γ/s)(g − E g − u E[u g]): the last is what the derivative of the variance takes away
            at_a = g.without_statistics(a, self._function, self.gamma2)
        else:
            at_a = g * a.expected(self._function.slopes)
        if self.norm == "batch":
            return at_a.scaled(self.gamma2 / h.centered()[1])
        return at_a if self.norm == "none" else (at_a * h.inverse_size()).scaled(self.gamma2)

    def terms(self, h: Kernel, g: Kernel) -> Iterator[Kernel]:
        if self.norm != "none" and self.trains_affine:
            a = self.pre_activation(h)
            yield (g * a.expected(self.activation.weighted_slopes)).scaled(1 / self.gamma2)
            yield g * a.expected(self.activation.slopes)

    def pre_activation(self, h: Kernel) -> Kernel:
        """The moments of what φ receives, about the mean."""
        if self.norm == "layer":
            return (h * h.inverse_size()).scaled(self.gamma2)
        if self.norm == "batch":
            u, variance = h.centered()
            return u.scaled(self.gamma2 / variance)
        return h if self.mean is None else h.affine(torch.ones_like(self.mean), -(self.mean**2))

    def mean_given(self, h: Kernel) -> Tensor:
        """E φ."""
        return self._function.mean(self.pre_activation(h).mean_square())

    @property
    def gamma2(self) -> Tensor:
        """γ²."""
        assert self.gamma is not None
        return self.gamma**2

    @property
    def _function(self) -> Activation:
        return self.activation if self.mean is None else self.activation.shifted(self.mean)


@dataclass(frozen=True)
class Scaling(Stage):
    """The signal times a number, or with channels of zeros appended: `factor` is that of its second moments."""

    factor: Tensor
    of_mean: float
    name = "scaling"

    def forward(self, h: Kernel) -> Kernel:
        return h.scaled(self.factor)

    def backward(self, h: Kernel, g: Kernel, variant: Variant) -> Kernel:
        return g.scaled(self.factor)


@dataclass(frozen=True)
class FiniteWidth(Stage):
    """What the next layer receives is the mean over so many units, not over very many: one draw of it."""

    units: int
    seed: int
    name = "width"

    def forward(self, h: Kernel) -> Kernel:
        return h.drawn(self.units, self.seed)

    def backward(self, h: Kernel, g: Kernel, variant: Variant) -> Kernel:
        return g


@dataclass(frozen=True)
class Residual(Stage):
    """branch(h) + shortcut(h). The branch ends in independent weights of mean 0, so that moments add."""

    branch: Sequence[Stage]
    shortcut: Sequence[Stage] = ()
    name = "sum"

    def forward(self, h: Kernel) -> Kernel:
        return forward(self.branch, h)[-1] + forward(self.shortcut, h)[-1]

    def backward(self, h: Kernel, g: Kernel, variant: Variant) -> Kernel:
        return visits([self], h, g, variant)[1]


# networks are sequences of stages


def every(stages: Sequence[Stage]) -> Iterator[Stage]:
    """All stages, with those inside of a residual one in its place."""
    for stage in stages:
        if isinstance(stage, Residual):
            yield from every(stage.branch)
            yield from every(stage.shortcut)
        else:
            yield stage


def mapped(stages: Sequence[Stage], change: Callable[[Stage], Stage]) -> list[Stage]:
    """The same change made to all stages, also inside of residual ones."""
    return [
        Residual(mapped(stage.branch, change), mapped(stage.shortcut, change))
        if isinstance(stage, Residual)
        else change(stage)
        for stage in stages
    ]


def with_finite_widths(stages: Sequence[Stage], seed: int) -> list[Stage]:
    """The stages, with a draw before every weighted layer that does not receive the input itself."""
    return _with_finite_widths(stages, itertools.count(seed), is_input=True)[0]


def _with_finite_widths(stages: Sequence[Stage], seeds: Iterator[int], *, is_input: bool) -> tuple[list[Stage], bool]:
    found: list[Stage] = []
    for stage in stages:
        if isinstance(stage, Residual):
            branch, _ = _with_finite_widths(stage.branch, seeds, is_input=is_input)
            shortcut, is_input = _with_finite_widths(stage.shortcut, seeds, is_input=is_input)
            stage = Residual(branch, shortcut)
        elif isinstance(stage, Affine):
            found += [] if is_input else [FiniteWidth(int(stage.fan_in.min()), next(seeds))]
            is_input = False
        found.append(stage)
    return found, is_input


def has_batchnorm(stages: Sequence[Stage]) -> bool:
    """Whether any layer is batch-normalized."""
    return any(isinstance(stage, Nonlinearity) and stage.norm == "batch" for stage in every(stages))


def with_means(stages: Sequence[Stage], h: Kernel) -> list[Stage]:
    """The stages, with the means that activations of sums receive when the first stage receives h."""
    return _with_means(stages, h, float64(0.0))[0]


def _with_means(stages: Sequence[Stage], h: Kernel, mean: Tensor) -> tuple[list[Stage], Tensor]:
    found: list[Stage] = []
    for stage in stages:
        if isinstance(stage, Residual):
            branch, of_branch = _with_means(stage.branch, h, mean)
            shortcut, of_shortcut = _with_means(stage.shortcut, h, mean)
            stage, mean = Residual(branch, shortcut), of_branch + of_shortcut
        elif isinstance(stage, Nonlinearity):
            stage = stage if stage.mean is None else replace(stage, mean=mean)
            mean = stage.mean_given(h)
        elif isinstance(stage, Affine):
            mean = torch.zeros_like(mean)
        elif isinstance(stage, Scaling):
            mean = mean * stage.of_mean
        found.append(stage)
        h = stage.forward(h)
    return found, mean


def forward(stages: Sequence[Stage], h: Kernel) -> list[Kernel]:
    """What every stage receives, and last what the last one gives."""
    signals = [h]
    for stage in stages:
        signals.append(stage.forward(signals[-1]))
    return signals


class Visit(NamedTuple):
    """A stage, the moments of what it receives and gives, and of the gradient at what it gives."""

    stage: Stage
    received: Kernel
    given: Kernel
    gradient: Kernel


def visits(stages: Sequence[Stage], h: Kernel, g: Kernel, variant: Variant) -> tuple[list[Visit], Kernel]:
    """All stages, also those inside of residual ones, from the first to the last; and the gradient at h."""
    signals = forward(stages, h)
    found: list[Visit] = []
    for stage, received, given in reversed(list(zip(stages, signals[:-1], signals[1:], strict=True))):
        if isinstance(stage, Residual):
            branch, through_branch = visits(stage.branch, received, g, variant)
            shortcut, through_shortcut = visits(stage.shortcut, received, g, variant)
            found, g = [*shortcut, *branch, *found], through_branch + through_shortcut
        else:
            found.insert(0, Visit(stage, received, given, g))
            g = stage.backward(received, g, variant)
    return found, g
