"""λ_max and the largest learning rate as mean-field theory predicts them, and what they are made of."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from wellcond.meanfield.contributions import LayerContribution
from wellcond.meanfield.stages import Variant
from wellcond.results import Row, number, text_table

Loss = Literal["half-squared", "mse", "cross-entropy"]


@dataclass(frozen=True)
class Prediction:
    """λ_max of the Fisher matrix at initialisation, and the learning rate above which training diverges.

    lambda_max = Σ_l f_l, max_lr = 2(1 + μ)/λ_max: floats for one network, tensors for a grid. layers: f_l and the order
    parameters. variant: how the statistics of BatchNorm enter the gradient. notes: what was assumed.
    """

    network: str
    lambda_max: float | Tensor
    max_lr: float | Tensor
    layers: tuple[LayerContribution, ...]
    variant: Variant
    momentum: float
    loss: Loss
    notes: tuple[str, ...] = ()

    def rows(self, step: int | None = None) -> list[Row]:
        """λ_max, max_lr and every layer's term and order parameters; in a grid with their place, as `term[0, 2]`."""
        rows = [*_rows(step, "", "lambda_max", self.lambda_max), *_rows(step, "", "max_lr", self.max_lr, "lr")]
        for layer in self.layers:
            for quantity, value in layer.values().items():
                rows += _rows(step, layer.name, quantity, value)
        return rows

    def __str__(self) -> str:
        body = []
        for layer in self.layers:
            term, *order_parameters = map(_spread, layer.values().values())
            body.append([layer.name, term, _share(layer.term, self.lambda_max), *order_parameters])
        header = ["layer", "term", "share", "q", "q_xy", "q̂", "q̂_xy", "q̃", "q̃_xy"]
        return "\n".join(
            [
                f"{self.network}, {self.loss} loss",
                *self.notes,
                "",
                text_table(header, body),
                "",
                f"λ_max   {_spread(self.lambda_max)}: {self._made_of()}",
                f"max lr  {_spread(self.max_lr)} = 2(1 + μ)/λ_max with momentum μ = {self.momentum:g}",
                "cost    no backward pass",
            ]
        )

    def _made_of(self) -> str:
        """In words, what limits the rate."""
        if isinstance(self.lambda_max, Tensor):
            return f"a grid of {' × '.join(map(str, self.lambda_max.shape))} networks"
        if self.lambda_max == 0:
            return "the gradients of two examples have nothing in common, and do not limit the rate"
        largest = max(self.layers, key=lambda layer: layer.term)
        is_norm = math.isnan(float(largest.q_tilde_xy))
        name = "the last layer" if largest is self.layers[-1] and not is_norm else largest.name
        return f"{name} limits the rate, its term is {_share(largest.term, self.lambda_max)}"


def _rows(step: int | None, layer: str, quantity: str, value: float | Tensor, unit: str = "") -> Iterator[Row]:
    if not isinstance(value, Tensor):
        yield Row(step, layer, quantity, value, unit)
        return
    for place in itertools.product(*map(range, value.shape)):
        yield Row(step, layer, f"{quantity}[{', '.join(map(str, place))}]", float(value[place]), unit)


def _spread(value: float | Tensor) -> str:
    """A number, or the least and the greatest of a grid; nothing for what is not known."""
    if not isinstance(value, Tensor):
        return "" if math.isnan(value) else number(value)
    low, high = (_spread(float(x)) for x in (value.min(), value.max()))
    return low if low == high else f"{low}…{high}"


def _share(term: float | Tensor, total: float | Tensor) -> str:
    return "" if isinstance(total, Tensor) or total == 0 else f"{100 * term / total:.0f} %"
