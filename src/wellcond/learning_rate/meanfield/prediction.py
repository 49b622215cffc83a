"""λ_max and the largest learning rate as mean-field theory predicts them, and the contributions of the layers."""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import torch
from torch import Tensor

from wellcond.errors import InvalidProblem, NonFinite
from wellcond.learning_rate.meanfield.gram import Gram
from wellcond.learning_rate.meanfield.moments import Kernel, Moments, Number, float64
from wellcond.learning_rate.meanfield.stages import (
    Affine,
    FiniteWidth,
    Nonlinearity,
    Stage,
    Variant,
    every,
    has_batchnorm,
    visits,
    with_finite_widths,
)
from wellcond.results import Cost, Result, Row, number, quantities, text_table

Loss = Literal["half-squared", "mse", "cross-entropy"]
MANY = 1000
"""Number of values of a channel, or of examples, below which the theory for very many is inaccurate."""
DRAWN_EXAMPLES = 1000
"""Examples in all draws together: one draw of many examples is as good as several of few."""
SHARED = 0.05
"""Share of an activation's squared mean in its mean square below which the gradients of two examples share little."""


@dataclass(frozen=True)
class Prediction(Result):
    """λ_max of the Fisher matrix at initialization, and the largest stable rate of a quadratic with that curvature.

        λ_max = Σ_l f_l        max_lr = 2(1 + μ)/λ_max

    Attributes:
        network: Network, in words.
        lambda_max: Predicted λ_max: a float for one network, a tensor for a grid.
        max_lr: Predicted largest learning rate, likewise.
        layers: Contribution of each layer to λ_max, and its order parameters.
        variant: Whether BatchNorm's statistics are differentiated.
        momentum: μ.
        loss: Name of the loss.
        notes: Assumptions that were made.
        cost: Passes over the data: none for an architecture.
    """

    network: str
    lambda_max: Number
    max_lr: Number
    layers: tuple[LayerContribution, ...]
    variant: Variant
    momentum: float
    loss: Loss
    notes: tuple[str, ...] = ()
    cost: Cost = field(default_factory=Cost)

    def rows(self, step: int | None = None) -> list[Row]:
        """λ_max, the largest rate, and every layer's term; for a grid the least and greatest of the first two.

        Args:
            step: The training step of the weights.

        Returns:
            One row per quantity.
        """
        if isinstance(self.lambda_max, Tensor) or isinstance(self.max_lr, Tensor):
            lambdas, rates = float64(self.lambda_max), float64(self.max_lr)
            return [
                Row(step, "", quantities.LAMBDA_MAX_LEAST, float(lambdas.min()), ""),
                Row(step, "", quantities.LAMBDA_MAX_GREATEST, float(lambdas.max()), ""),
                Row(step, "", quantities.MAX_LR_LEAST, float(rates.min()), "lr"),
                Row(step, "", quantities.MAX_LR_GREATEST, float(rates.max()), "lr"),
            ]
        return [
            Row(step, "", quantities.LAMBDA_MAX, self.lambda_max, ""),
            Row(step, "", quantities.MAX_LR, self.max_lr, "lr"),
            *(Row(step, layer.name, quantities.TERM, float(layer.term), "") for layer in self.layers),
        ]

    def __str__(self) -> str:
        body = []
        for layer in self.layers:
            orders = (layer.q, layer.q_xy, layer.q_hat, layer.q_hat_xy, layer.q_tilde, layer.q_tilde_xy)
            body.append([layer.name, _spread(layer.term), _share(layer.term, self.lambda_max), *map(_spread, orders)])
        header = ["layer", "term", "share", "q", "q_xy", "q̂", "q̂_xy", "q̃", "q̃_xy"]
        return "\n".join(
            [
                f"{self.network}, {self.loss} loss",
                *self.notes,
                "",
                text_table(header, body),
                "",
                f"λ_max   {_spread(self.lambda_max)}: {self._what_limits()}",
                f"max lr  {_spread(self.max_lr)} = 2(1 + μ)/λ_max with momentum μ = {self.momentum:g}",
                str(self.cost) if self.cost.u else "cost: no pass over the data",
            ]
        )

    def _what_limits(self) -> str:
        if isinstance(self.lambda_max, Tensor):
            return f"a grid of {' × '.join(map(str, self.lambda_max.shape))} networks"
        if self.lambda_max == 0:
            return "the gradients of two examples have nothing in common, so they do not limit the rate"
        largest = max(self.layers, key=lambda layer: layer.term)
        is_norm = math.isnan(float(largest.q_tilde_xy))
        name = "the last layer" if largest is self.layers[-1] and not is_norm else largest.name
        return f"{name} limits the rate, its term is {_share(largest.term, self.lambda_max)}"


def _spread(value: Number) -> str:
    """A number, or the smallest and the largest of a grid; "" for nan."""
    if not isinstance(value, Tensor):
        return "" if math.isnan(value) else number(value)
    low, high = (_spread(float(x)) for x in (value.min(), value.max()))
    return low if low == high else f"{low}…{high}"


def _share(term: Number, total: Number) -> str:
    return "" if isinstance(total, Tensor) or total == 0 else f"{100 * term / total:.0f} %"


@dataclass(frozen=True)
class LayerContribution:
    """The contribution of one layer to λ_max, and its order parameters: floats, or tensors for a grid of networks.

    For a feature map, q and q̂ are means over positions and q̃ sums over pairs of them. `_xy` is for two different
    inputs. A norm only has a term; unknown values are nan.

    Attributes:
        name: Name of the layer.
        term: f = fan_in · q̂_xy · q̃_xy, times the factor of the loss.
        q: Mean square of its outputs.
        q_xy: Mean product of its outputs for two inputs.
        q_hat: Mean square of its inputs.
        q_hat_xy: Mean product of its inputs for two inputs of the network.
        q_tilde: Sum of squares of the gradient of one output of the network at its outputs.
        q_tilde_xy: The same for the product of two inputs' gradients.
    """

    name: str
    term: Number
    q: Number = math.nan
    q_xy: Number = math.nan
    q_hat: Number = math.nan
    q_hat_xy: Number = math.nan
    q_tilde: Number = math.nan
    q_tilde_xy: Number = math.nan


def contributions(stages: Sequence[Stage], start: Kernel, variant: Variant) -> tuple[Tensor, list[LayerContribution]]:
    """λ_max of one output, and the layers that add up to it.

    Args:
        stages: The network.
        start: The moments of its inputs.
        variant: Whether BatchNorm's statistics are differentiated.

    Returns:
        λ_max, and one entry per layer with trained parameters.

    Raises:
        InvalidProblem: No parameter is trained, or a BatchNorm has no variance because all examples are equal.
        NonFinite: λ_max is not a number; the message says why, if that is cheap to find out.
    """
    return _contributions(stages, start, variant)[1:]


def contributions_at_width(
    stages: Sequence[Stage], start: Kernel, variant: Variant
) -> tuple[Tensor, list[LayerContribution], str | None]:
    """The same with the actual widths of the layers if they matter, that is, if many directions are alike.

    Then the largest eigenvalue of the mean is not the mean of the largest: the random contributions of a layer's units
    decide which direction is the largest. The moments are followed through draws of the layers' units, and the mean
    over the draws is returned, with a note.
    """
    total, lambda_max, layers = _contributions(stages, start, variant)
    widths = [stage.units for stage in every(with_finite_widths(stages, 0)) if isinstance(stage, FiniteWidth)]
    if not widths or has_batchnorm(stages) or not total.does_not_stand_out(min(widths)):
        return lambda_max, layers, None
    if isinstance(start, Moments):
        return lambda_max, layers, "a lower bound: the examples share little, and other directions may be larger by far"
    draws = max(1, math.ceil(DRAWN_EXAMPLES / start.squares().shape[-1]))
    drawn = [contributions(with_finite_widths(stages, 1000 * k), start, variant) for k in range(draws)]
    tops = torch.stack([top for top, _ in drawn])
    share = 100 * float((tops.mean(0) / lambda_max - 1).max())
    note = f"many directions are alike, and at these widths the largest is {share:.0f} % above that of very wide layers"
    same_layer = zip(*(entries for _, entries in drawn), strict=True)
    terms = (torch.stack([float64(layer.term) for layer in same]).mean(0) for same in same_layer)
    return tops.mean(0), [replace(layer, term=term) for layer, term in zip(layers, terms, strict=True)], note


def _contributions(
    stages: Sequence[Stage], start: Kernel, variant: Variant
) -> tuple[Kernel, Tensor, list[LayerContribution]]:
    """The Gram matrix of gradients, its largest eigenvalue, and the contribution of each layer to it."""
    if isinstance(start, Gram) and has_batchnorm(stages) and bool((start.matrix == start.matrix[0, 0]).all()):
        raise InvalidProblem("inputs: all examples are equal, so BatchNorm has no variance to divide by.")
    terms: dict[str, Kernel] = {}
    order_parameters: dict[str, tuple[Tensor, ...]] = {}
    for stage, inputs, outputs, gradient in visits(stages, start, start.of_output(), variant)[0]:
        for term in stage.terms(inputs, gradient):
            term = term.total()
            terms[stage.name] = terms[stage.name] + term if stage.name in terms else term
        if isinstance(stage, Affine):
            moments = (outputs, inputs, gradient.total())
            order_parameters[stage.name] = tuple(number for kernel in moments for number in kernel.same_and_pair())
    if not terms:
        raise InvalidProblem("no parameter is trained: all are frozen. Unfreeze one, parameter.requires_grad_(True).")
    total = functools.reduce(operator.add, terms.values())
    lambda_max = total.top()
    if not bool(lambda_max.isfinite().all()):
        raise NonFinite(f"no finite λ_max: {_why_not_finite(stages, start)}.")
    shares = {name: term.share_of(total) for name, term in terms.items()}
    layers = [LayerContribution(name, share, *order_parameters.get(name, ())) for name, share in shares.items()]
    return total, lambda_max, layers


# where a prediction cannot be trusted


def _why_not_finite(stages: Sequence[Stage], start: Kernel) -> str:
    for stage in every(stages):
        if isinstance(stage, Affine) and bool((stage.sigma_w2 == 0).any()):
            return f"the weights of layer {stage.name!r} are all 0, and a norm after it has nothing to divide by"
    if float(start.mean_square().max()) == 0:
        return "the inputs are all 0"
    return "numbers over- or underflow, or a norm has no variance; check γ, σ_w² and the inputs' size"


def cautions(stages: Sequence[Stage], start: Kernel) -> Iterator[str]:
    """Notes on the accuracy of the prediction with few examples."""
    examples = start.examples if isinstance(start, Moments) else start.squares().shape[-1]
    nonlinearities = [stage for stage in every(stages) if isinstance(stage, Nonlinearity)]
    if isinstance(start, Moments) and start.positions > 1:
        norms = ((stage.positions * examples, stage.name) for stage in nonlinearities if stage.norm == "batch")
        values, name = min(norms, default=(MANY, ""))
        if values < MANY:
            yield f"BatchNorm {name} sees only {values:.0f} values per channel: with so few the prediction is too low"
    if examples < MANY and has_batchnorm(stages) and _mean_share(nonlinearities[-1]) < SHARED:
        yield "a lower bound: with few examples other directions may be as large"


def _mean_share(stage: Nonlinearity) -> float:
    """(E φ)²/E φ² for a Gaussian of variance γ², the smallest of a grid."""
    variance = (float64(1.0) if stage.gamma is None else stage.gamma.double()) ** 2
    shared = stage.activation.product(variance, variance, torch.zeros_like(variance))
    return float((shared / stage.activation.product(variance, variance, variance)).min())
