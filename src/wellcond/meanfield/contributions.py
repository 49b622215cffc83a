"""What each layer adds to λ_max."""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from wellcond.errors import InvalidProblem
from wellcond.meanfield.field import Field
from wellcond.meanfield.gram import Gram
from wellcond.meanfield.moments import Kernel, Moments
from wellcond.meanfield.stages import Affine, Residual, Stage, Variant, forward


@dataclass(frozen=True)
class LayerContribution:
    """f_l and the order parameters of one layer: floats, or tensors for a grid of networks.

    term: f_l = fan_in · q̂_xy · q̃_xy, times the factor of the loss. q, q_xy: of what it gives; q_hat, q_hat_xy: of what
    it receives; q_tilde, q_tilde_xy: of the gradient of one output at what it gives. `_xy` is of two different inputs.
    Of a feature map, q and q̂ are means over positions and q̃ sums over pairs of them. A norm has a term alone; what is
    not known is nan.
    """

    name: str
    term: float | Tensor
    q: float | Tensor = math.nan
    q_xy: float | Tensor = math.nan
    q_hat: float | Tensor = math.nan
    q_hat_xy: float | Tensor = math.nan
    q_tilde: float | Tensor = math.nan
    q_tilde_xy: float | Tensor = math.nan

    def values(self) -> dict[str, float | Tensor]:
        """All but the name."""
        return {field.name: getattr(self, field.name) for field in fields(self)[1:]}


def contributions(stages: Sequence[Stage], start: Kernel, variant: Variant) -> tuple[Tensor, list[LayerContribution]]:
    """λ_max of one output, and one entry a layer with parameters, which add up to it. start: moments of the inputs."""
    terms: dict[str, Kernel] = {}
    order_parameters: dict[str, tuple[Tensor, ...]] = {}
    for visit in _visits(stages, start, _ones(start), variant):
        for parameter, kernel in visit.stage.terms(visit.received, visit.gradient, variant):
            layer = parameter.rpartition(".")[0]
            term = kernel.total() if isinstance(kernel, Field) else kernel
            terms[layer] = terms[layer] + term if layer in terms else term
        if isinstance(visit.stage, Affine):
            order = (*_means(visit.given), *_means(visit.received), *_totals(visit.gradient))
            order_parameters[visit.stage.name] = order
    if not terms:
        raise InvalidProblem(
            "no parameter is trained: all that count are frozen. Unfreeze one, parameter.requires_grad_(True)."
        )
    total = functools.reduce(operator.add, terms.values())
    layers = [
        LayerContribution(name, term.share_of(total), *order_parameters.get(name, ())) for name, term in terms.items()
    ]
    return total.top(), layers


def _ones(start: Kernel) -> Kernel:
    """The gradient of an output at itself."""
    if isinstance(start, Gram):
        return Gram(torch.ones_like(start.matrix))
    one = torch.ones_like(start.mean_square())
    assert isinstance(start, Moments | Field)
    return Moments(one, one, start.examples)


def _means(signal: Kernel) -> tuple[Tensor, Tensor]:
    """q and q_xy."""
    if isinstance(signal, Field):
        signal = signal.average()
    if isinstance(signal, Moments):
        return signal.same, signal.pair
    assert isinstance(signal, Gram)
    return _same_and_pair(signal.value)


def _totals(gradient: Kernel) -> tuple[Tensor, Tensor]:
    """q̃ and q̃_xy."""
    return _means(gradient.total() if isinstance(gradient, Field) else gradient)


def _same_and_pair(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Means on and off the diagonal."""
    n = matrix.shape[-1]
    same = matrix.diagonal(dim1=-2, dim2=-1).mean(-1)
    return same, (matrix.mean((-1, -2)) * n - same) / (n - 1)


@dataclass(frozen=True)
class _Visit:
    """A stage between what it receives, what it gives, and the gradient at that."""

    stage: Stage
    received: Kernel
    given: Kernel
    gradient: Kernel


def _visits(stages: Sequence[Stage], h: Kernel, g: Kernel, variant: Variant) -> list[_Visit]:
    """All stages, those inside of residual ones too, from the first to the last."""
    signals = forward(stages, h)
    visits: list[_Visit] = []
    for stage, received, given in reversed(list(zip(stages, signals, signals[1:], strict=False))):
        if isinstance(stage, Residual):
            inside = [_visits(path, received, g, variant) for path in (stage.shortcut, stage.branch)]
            visits = [*inside[0], *inside[1], *visits]
        else:
            visits.insert(0, _Visit(stage, received, given, g))
        g = stage.backward(received, g, variant)
    return visits
