"""The formulas of wei2019 as they are printed, for comparison with the corrected ones.

As printed, BatchNorm divides the gradient by q instead of the variance q − q_xy, which makes λ_max too low. Eq. 45, the
term of a convolution, is right for means over positions. But the recursions of these means (eqs. 37, 42) keep them from
layer to layer, where what is kept is the sum, and that makes λ_max too high.

The base case of q̃_αβ is not printed. It is 0 here: by eq. 112 the gradients at two positions under a fully connected
layer have no product. Of q̂⁰ and q̂⁰_xy, printed as 0 and 1 in § 3.1.1, claim 6.1 has the right values 1 and 0.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import fields, replace

from torch import Tensor

from wellcond.learning_rate.meanfield import Architecture
from wellcond.learning_rate.meanfield.feature_maps import Convolution
from wellcond.learning_rate.meanfield.moments import Kernel, Moments, Number, float64
from wellcond.learning_rate.meanfield.prediction import LayerContribution, contributions
from wellcond.learning_rate.meanfield.stages import Nonlinearity, Stage, Variant, mapped

AS_PRINTED = (
    "As printed: with the base case of q̂⁰ and q̂⁰_xy of claim 6.1, which § 3.1.1 prints the other way round; that of "
    "q̃_αβ is not printed, and is 0 here, which it is by eq. 112 under a fully connected layer (with 1, λ_max of the "
    "convolutional network at γ = 1 would be 6700 instead of 344).",
)
"""What the source leaves open about its formulas, and how they are read here."""


class PrintedNorm(Nonlinearity):
    """BatchNorm with constant statistics, which divides the gradient by s² = q (eq. 25)."""

    def backward(self, h: Kernel, g: Kernel, variant: Variant) -> Kernel:
        """γ²/q times the gradient at the activation."""
        a = self.pre_activation(h)
        return (g * a.expected(self.activation.slopes)).scaled(self.gamma2 / h.mean_square())


class PrintedConvolution(Convolution):
    """A convolution whose term (eq. 45) takes for the mean over its positions what is their sum (eqs. 37, 42)."""

    def terms(self, h: Kernel, g: Kernel) -> Iterator[Kernel]:
        """The right terms times the number of output positions."""
        return (term.scaled(float64(math.prod(self.window.outputs))) for term in super().terms(h, g))


def printed_contributions(
    network: Architecture | str, gamma: Number | None = None
) -> tuple[Tensor, list[LayerContribution]]:
    """λ_max by the printed formulas, of the weights and for very many independent normalized inputs.

    Args:
        network: A line such as "fc 784-1000-10", or an `Architecture`.
        gamma: γ of all norms; a tensor for a grid.

    Returns:
        λ_max, and the contribution of each layer.

    Example:
        >>> lambda_max, layers = printed_contributions("fc 784-1000-1000-1000-10")
        >>> round(float(lambda_max))
        230
    """
    architecture = Architecture.parse(network) if isinstance(network, str) else network
    if gamma is not None:
        architecture = replace(architecture, gamma=gamma)
    return contributions(mapped(architecture.stages(), _as_printed), Moments.independent(), "detached")


def _as_printed(stage: Stage) -> Stage:
    if isinstance(stage, Nonlinearity) and stage.norm == "batch":
        return PrintedNorm(**{f.name: getattr(stage, f.name) for f in fields(stage)})
    if isinstance(stage, Convolution):
        return PrintedConvolution(**{f.name: getattr(stage, f.name) for f in fields(stage)})
    return stage
