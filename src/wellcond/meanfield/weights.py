"""What mean-field theory takes from the weights of a layer, and what it would have them be."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

MEAN_OF_WEIGHTS = 5.0
"""A mean this many standard errors away from 0 is no chance."""
SPREAD_OF_ROWS = 0.1
"""Of the squared norms of a weight's rows, beyond chance; the same for γ, as a part of its mean."""
LEAST_GAMMA = 1e-6
ROWS = 256
"""At most as many rows are compared with one another."""


def fan_in_of(layer: Any) -> int:
    """Inputs of one unit: channels of its group × kernel sites."""
    return int(layer.weight[0].numel())


def sigma_w2(layer: Any) -> Tensor:
    """fan_in · mean(w²): σ_w² of weights N(0, σ_w²/fan_in)."""
    return fan_in_of(layer) * _mean_square(layer.weight)


def sigma_b2(layer: Any) -> Tensor:
    """mean(b²), 0 without a bias."""
    return _number(0.0) if layer.bias is None else _mean_square(layer.bias)


def gamma(norm: nn.Module) -> Tensor:
    """√mean(γ²), 1 without γ. A γ of 0 is taken as the smallest for which ratios can be computed."""
    weight = getattr(norm, "weight", None)
    return _number(1.0) if weight is None else _mean_square(weight).sqrt().clamp(min=LEAST_GAMMA)


def beta(norm: nn.Module) -> Tensor:
    """√mean(β²), 0 without β."""
    bias = getattr(norm, "bias", None)
    return _number(0.0) if bias is None else _mean_square(bias).sqrt()


def is_trained(parameter: Tensor | None) -> bool:
    """Whether the parameter is there and not frozen."""
    return parameter is not None and parameter.requires_grad


def remarks_on_layer(layer: Any) -> Iterator[str]:
    """Where weights are not independent draws of mean 0 and one variance."""
    rows = layer.weight.detach().double().cpu().flatten(1)
    units, fan_in = rows.shape
    error = rows.std(correction=0) / rows.numel() ** 0.5
    if rows.mean().abs() > MEAN_OF_WEIGHTS * error:
        yield f"its weights have a mean of {float(rows.mean()):.2g}, which is taken as 0"
    sizes = rows.square().sum(1)
    chance = (rows.pow(4).mean() / rows.square().mean().square() - 1).clamp(min=0) / fan_in
    spread = (sizes / sizes.mean()).var(correction=0) if sizes.mean() > 0 else _number(0.0)
    if spread > 4 * chance + SPREAD_OF_ROWS**2:
        yield f"the sizes of its units differ by {100 * float(spread.sqrt()):.0f} %, as after training"
    elif min(units, fan_in) > 8 and sizes.mean() > 0 and not 0.5 < _likeness(rows[:ROWS]) < 2:
        yield "its units are not independent of each other, as in orthogonal or trained weights"


def remarks_on_norm(norm: Any) -> Iterator[str]:
    """Where γ differs from unit to unit, or β is not 0."""
    if getattr(norm, "weight", None) is not None:
        weight = norm.weight.detach().double().cpu()
        size, spread = float(_mean_square(weight).sqrt()), float(weight.std(correction=0))
        if spread > SPREAD_OF_ROWS * size:
            yield f"its γ differ by {100 * spread / size:.0f} %; their root mean square counts"
    if beta(norm) > 0:
        yield f"its β are {float(beta(norm)):.2g}, which is taken as 0"


def _likeness(rows: Tensor) -> float:
    """Mean square of the products of two rows, over what it is for independent ones, (E w²)² · fan_in."""
    products = rows @ rows.mT
    units, fan_in = rows.shape
    different = products.square().sum() - products.diagonal().square().sum()
    return float(different / (units * (units - 1)) / (rows.square().mean().square() * fan_in))


def _mean_square(tensor: Tensor) -> Tensor:
    return tensor.detach().double().square().mean().cpu()


def _number(value: float) -> Tensor:
    return torch.tensor(value, dtype=torch.float64)
