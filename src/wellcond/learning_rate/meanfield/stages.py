"""Layers as mean-field theory sees them: maps of second moments, of the signal forward and of the gradient backward.

Symbols:
    h, z       units of a layer: what it receives, and what it gives
    K, K̃       moments K(x, y) = E h(x)h(y) of a signal, and K̃(x, y) of the gradient of one output; a `Kernel` is one
    σ_w², σ_b² weights are N(0, σ_w²/fan_in), biases N(0, σ_b²)
    γ, φ       scale of a norm and activation after it; s² the variance that the norm divides by

    stage                 forward                          backward, K̃ at z → K̃ at h
    Affine       W h + b  K → σ_w² K + σ_b²                K̃ → σ_w² K̃
    Nonlinearity φ(γ h/s) K → E φφ over Gaussians γ²K/s²   K̃ → (γ²/s²) K̃ ∘ E φ'φ', for BatchNorm without statistics
    Scaling      c h      K → c² K                         K̃ → c² K̃
    Residual     a(h) + b(h)                               sums of both paths

The gradient is assumed to be independent of the signal, as usual. Then the weights of a layer add

    ⟨∂f(x)/∂W, ∂f(y)/∂W⟩ = fan_in · K(x, y) K̃(x, y)

to the Gram matrix of the gradients of f: K of what the layer receives, K̃ at what it gives. `visits` walks a network
forward and back and pairs every stage with both.
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
"""Whether BatchNorm's statistics are differentiated, as in training, or constants."""


class Stage(ABC):
    """One step of the recursions, with h the moments of its inputs and g those of the gradient at its outputs."""

    name: str

    @abstractmethod
    def forward(self, h: Kernel) -> Kernel:
        """The moments of its outputs."""

    @abstractmethod
    def backward(self, h: Kernel, g: Kernel, variant: Variant) -> Kernel:
        """The moments of the gradient at its inputs."""

    def terms(self, h: Kernel, g: Kernel) -> Iterator[Kernel]:
        """The terms that its trained parameters add to the Gram matrix of gradients."""
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
        name: Name of the norm, or of the activation if there is no norm.
        activation: φ.
        norm: Type of the norm.
        gamma: γ; None without a norm.
        trains_affine: Whether γ and β count among the parameters.
        positions: Number of positions of the norm's feature map; 1 for a vector.
        mean: Mean of the inputs of an activation without a norm; None for 0, as after weights. The sum in
            ReLU(h + W φ(…)) of a residual network has another mean; it is treated as Gaussian, with one mean for all
            examples and positions.
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
            # (γ/s)(g − E g − u E[u g]): the last term comes from the derivative of the variance
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
        """The moments of the inputs of φ about their mean."""
        if self.norm == "layer":
            return (h * h.inverse_size()).scaled(self.gamma2)
        if self.norm == "batch":
            u, variance = h.centered()
            return u.scaled(self.gamma2 / variance)
        return h if self.mean is None else h.affine(torch.ones_like(self.mean), -(self.mean**2))

    def output_mean(self, h: Kernel) -> Tensor:
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
    """The signal times a number, or with channels of zeros appended; `factor` multiplies its second moments."""

    factor: Tensor
    of_mean: float
    name = "scaling"

    def forward(self, h: Kernel) -> Kernel:
        return h.scaled(self.factor)

    def backward(self, h: Kernel, g: Kernel, variant: Variant) -> Kernel:
        return g.scaled(self.factor)


@dataclass(frozen=True)
class FiniteWidth(Stage):
    """One draw of the moments that the next layer receives from this many units, instead of from very many."""

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
    """All stages, with the stages inside a residual one in its place."""
    for stage in stages:
        if isinstance(stage, Residual):
            yield from every(stage.branch)
            yield from every(stage.shortcut)
        else:
            yield stage


def mapped(stages: Sequence[Stage], change: Callable[[Stage], Stage]) -> list[Stage]:
    """The same change made to all stages, also inside residual ones."""
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
    drawn: list[Stage] = []
    for stage in stages:
        if isinstance(stage, Residual):
            branch, _ = _with_finite_widths(stage.branch, seeds, is_input=is_input)
            shortcut, is_input = _with_finite_widths(stage.shortcut, seeds, is_input=is_input)
            stage = Residual(branch, shortcut)
        elif isinstance(stage, Affine):
            drawn += [] if is_input else [FiniteWidth(int(stage.fan_in.min()), next(seeds))]
            is_input = False
        drawn.append(stage)
    return drawn, is_input


def has_batchnorm(stages: Sequence[Stage]) -> bool:
    """Whether any layer is batch-normalized."""
    return any(isinstance(stage, Nonlinearity) and stage.norm == "batch" for stage in every(stages))


def with_means(stages: Sequence[Stage], h: Kernel) -> list[Stage]:
    """The stages, with the means of the inputs of activations after sums, if the first stage receives h."""
    return _with_means(stages, h, float64(0.0))[0]


def _with_means(stages: Sequence[Stage], h: Kernel, mean: Tensor) -> tuple[list[Stage], Tensor]:
    changed: list[Stage] = []
    for stage in stages:
        if isinstance(stage, Residual):
            branch, of_branch = _with_means(stage.branch, h, mean)
            shortcut, of_shortcut = _with_means(stage.shortcut, h, mean)
            stage, mean = Residual(branch, shortcut), of_branch + of_shortcut
        elif isinstance(stage, Nonlinearity):
            stage = stage if stage.mean is None else replace(stage, mean=mean)
            mean = stage.output_mean(h)
        elif isinstance(stage, Affine):
            mean = torch.zeros_like(mean)
        elif isinstance(stage, Scaling):
            mean = mean * stage.of_mean
        changed.append(stage)
        h = stage.forward(h)
    return changed, mean


def forward(stages: Sequence[Stage], h: Kernel) -> list[Kernel]:
    """The moments of every stage's inputs, and at the end those of the last one's outputs."""
    signals = [h]
    for stage in stages:
        signals.append(stage.forward(signals[-1]))
    return signals


class Visit(NamedTuple):
    """A stage, the moments of its inputs and outputs, and of the gradient at its outputs."""

    stage: Stage
    inputs: Kernel
    outputs: Kernel
    gradient: Kernel


def visits(stages: Sequence[Stage], h: Kernel, g: Kernel, variant: Variant) -> tuple[list[Visit], Kernel]:
    """All stages, also those inside residual ones, from the first to the last; and the gradient at h."""
    signals = forward(stages, h)
    visited: list[Visit] = []
    for stage, inputs, outputs in reversed(list(zip(stages, signals[:-1], signals[1:], strict=True))):
        if isinstance(stage, Residual):
            branch, through_branch = visits(stage.branch, inputs, g, variant)
            shortcut, through_shortcut = visits(stage.shortcut, inputs, g, variant)
            visited, g = [*shortcut, *branch, *visited], through_branch + through_shortcut
        else:
            visited.insert(0, Visit(stage, inputs, outputs, g))
            g = stage.backward(inputs, g, variant)
    return visited, g
