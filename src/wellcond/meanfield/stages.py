"""Layers as mean-field theory sees them: what each does to the moments of the signal, of the gradient, and to λ_max.

Weights are Gaussian with variance σ_w²/fan_in, biases with σ_b². The gradient of one output is carried back with the
usual assumption that it is independent of the signal. A layer's term of the Gram matrix of gradients is

    ⟨∂f(x)/∂W, ∂f(y)/∂W⟩ = fan_in · K(x, y) K̃(x, y),

K of what the layer receives, K̃ of the gradient at what it gives.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from wellcond.meanfield.gaussian import Activation
from wellcond.meanfield.moments import Kernel

Variant = Literal["source", "detached", "batch"]
"""How BatchNorm's statistics enter the gradient: as constants with s² = q, as wei2019 prints it; as constants, rightly
with s² = q − q_xy; or differentiated, as training does."""


class Stage(ABC):
    """One step of the recursions. h is what the stage received, g the gradient at what it gave."""

    @abstractmethod
    def forward(self, h: Kernel) -> Kernel: ...

    @abstractmethod
    def backward(self, h: Kernel, g: Kernel, variant: Variant) -> Kernel: ...

    @abstractmethod
    def terms(self, h: Kernel, g: Kernel, variant: Variant) -> Iterator[tuple[str, Kernel]]:
        """What each of its parameters adds to the Gram matrix of gradients, by name."""


@dataclass(frozen=True)
class Affine(Stage):
    """W h + b: a dense layer, or a convolution without padding, whose fan_in is channels × kernel sites.

    trains_weight, trains_bias: whether they count among the parameters.
    """

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

    def terms(self, h: Kernel, g: Kernel, variant: Variant) -> Iterator[tuple[str, Kernel]]:
        if self.trains_weight:
            yield f"{self.name}.weight", (h * g).scaled(self.fan_in)
        if self.trains_bias:
            yield f"{self.name}.bias", g


@dataclass(frozen=True)
class Nonlinearity(Stage):
    """φ(γ·norm(z)), with or without a norm; φ may be the identity."""

    name: str
    activation: Activation
    norm: Literal["none", "batch", "layer"] = "none"
    gamma: Tensor | None = None
    trains_affine: bool = False

    def forward(self, h: Kernel) -> Kernel:
        return self.pre_activation(h).through(self.activation)

    def backward(self, h: Kernel, g: Kernel, variant: Variant) -> Kernel:
        a = self.pre_activation(h)
        at_a = g * a.slopes(self.activation)
        if self.norm == "none":
            return at_a
        if self.norm == "layer":
            return (at_a * h.own_size().reciprocal()).scaled(self._gamma2)
        scale = self._gamma2 / (h.mean_square() if variant == "source" else h.centred()[1])
        if variant == "batch":
            # (γ/s)(g − E g − u E[u g]): the last is what the derivative of the variance takes away
            at_a = g.without_statistics(a, self.activation, self._gamma2)
        return at_a.scaled(scale)

    def terms(self, h: Kernel, g: Kernel, variant: Variant) -> Iterator[tuple[str, Kernel]]:
        if self.norm != "none" and self.trains_affine:
            a = self.pre_activation(h)
            yield f"{self.name}.weight", (g * a.weighted_slopes(self.activation)).scaled(1 / self._gamma2)
            yield f"{self.name}.bias", g * a.slopes(self.activation)

    @property
    def _gamma2(self) -> Tensor:
        assert self.gamma is not None
        return self.gamma**2

    def pre_activation(self, h: Kernel) -> Kernel:
        """Of what φ receives."""
        if self.norm == "none":
            return h
        if self.norm == "layer":
            return (h * h.own_size().reciprocal()).scaled(self._gamma2)
        u, variance = h.centred()
        return u.scaled(self._gamma2 / variance)


@dataclass(frozen=True)
class Residual(Stage):
    """branch(h) + shortcut(h). The branch ends in independent weights of mean 0, so that moments add."""

    branch: Sequence[Stage]
    shortcut: Sequence[Stage] = ()

    def forward(self, h: Kernel) -> Kernel:
        return forward(self.branch, h)[-1] + forward(self.shortcut, h)[-1]

    def backward(self, h: Kernel, g: Kernel, variant: Variant) -> Kernel:
        return backward(self.branch, h, g, variant)[0] + backward(self.shortcut, h, g, variant)[0]

    def terms(self, h: Kernel, g: Kernel, variant: Variant) -> Iterator[tuple[str, Kernel]]:
        for path in (self.shortcut, self.branch):
            yield from terms(path, h, g, variant)


def forward(stages: Sequence[Stage], h: Kernel) -> list[Kernel]:
    """What every stage receives, and last what the last one gives."""
    signals = [h]
    for stage in stages:
        signals.append(stage.forward(signals[-1]))
    return signals


def backward(stages: Sequence[Stage], h: Kernel, g: Kernel, variant: Variant) -> list[Kernel]:
    """The gradient at what every stage receives, and last the one given."""
    gradients = [g]
    for stage, received in zip(reversed(stages), reversed(forward(stages, h)[:-1]), strict=True):
        gradients.append(stage.backward(received, gradients[-1], variant))
    return gradients[::-1]


def terms(stages: Sequence[Stage], h: Kernel, g: Kernel, variant: Variant) -> Iterator[tuple[str, Kernel]]:
    """The terms of all parameters, from the first layer to the last."""
    signals, gradients = forward(stages, h), backward(stages, h, g, variant)
    for stage, received, given_back in zip(stages, signals[:-1], gradients[1:], strict=True):
        yield from stage.terms(received, given_back, variant)
