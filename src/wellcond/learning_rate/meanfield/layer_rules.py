"""Rules for weighted layers, norms and activations: their stages, with σ_w², σ_b² and γ read from their parameters."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrize

from wellcond.errors import NonFinite
from wellcond.learning_rate.meanfield.feature_maps import Convolution, Window, two
from wellcond.learning_rate.meanfield.gaussian import Activation, PiecewiseLinear, Smooth
from wellcond.learning_rate.meanfield.moments import float64
from wellcond.learning_rate.meanfield.signal import LINEAR, ReadCall, Signal
from wellcond.learning_rate.meanfield.stages import Affine, Nonlinearity

MOST_BETA = 0.1
"""Largest β relative to γ: below it a remark is made, above it the theory for β = 0 is far off."""
LEAST_GAMMA = 1e-6
"""Replacement for a γ of 0, the smallest for which ratios can be computed."""
MEAN_OF_WEIGHTS = 5.0
"""A mean this many standard errors away from 0 is not chance."""
SPREAD = 0.1
"""Spread of the squared norms of a weight's rows, beyond chance, that gets a remark; the same for γ."""
ROWS = 256
"""Most rows that are compared with one another."""
SMOOTH_FUNCTIONS: dict[str, Callable[..., torch.Tensor]] = {
    function.__name__: function
    for function in (
        torch.tanh, torch.erf, torch.sigmoid, F.gelu, F.silu, F.elu, F.selu, F.celu, F.softplus, F.mish, F.softsign,
        F.logsigmoid, F.hardtanh, F.relu6, F.hardswish, F.hardsigmoid, F.tanhshrink,
    )
}  # fmt: skip

# weighted layers


def linear(call: ReadCall, x: Signal) -> Signal:
    """A dense layer on vectors."""
    if len(call.shape) != 2:
        raise call.refused(
            f"it acts on each of the positions of {tuple(call.shape)}",
            "Flatten what it receives, or use a convolution.",
        )
    return x.then(Affine(call.name, *_measured(call)), None, "gaussian")


def convolution(call: ReadCall, x: Signal) -> Signal:
    """A 1d or 2d convolution that pads with zeros."""
    layer = call.what
    if len(call.shape) != len(layer.kernel_size) + 2:
        raise call.refused(f"it receives {tuple(call.shape)}, which is no batch of images", "Pass inputs=a batch.")
    if layer.padding_mode != "zeros":
        raise call.refused(f"its padding has the mode {layer.padding_mode!r}", "Pad with zeros.")
    sides = layer._reversed_padding_repeated_twice[::-1]
    if sides[::2] != sides[1::2]:
        raise call.refused("its padding differs from side to side", "Use an odd kernel.")
    before, after = call.sizes
    window = Window(before, two(layer.kernel_size), two(layer.stride), two(sides[::2], 0), two(layer.dilation))
    assert window.outputs == after
    if layer.in_channels // layer.groups < 8 < layer.in_channels:
        call.remarks.append(f"each of its groups sees {layer.in_channels // layer.groups} channels, which is not many")
    return x.then(Convolution(call.name, *_measured(call), window=window), after, "gaussian")


def _measured(call: ReadCall) -> tuple[Tensor, Tensor, Tensor, bool, bool]:
    """fan_in, σ_w² = fan_in · mean(w²), σ_b² = mean(b²), and whether weight and bias are trained."""
    _check_parameters(call)
    weight, bias = call.what.weight, call.what.bias
    call.remarks.extend(_remarks_on_weight(weight))
    fan_in = float64(weight[0].numel())
    sigma_b2 = float64(0.0) if bias is None else _mean_square(bias)
    return fan_in, fan_in * _mean_square(weight), sigma_b2, _is_trained(weight), _is_trained(bias)


def _check_parameters(call: ReadCall) -> None:
    """Raise unless weight and bias are parameters themselves, and finite."""
    layer = call.what
    if parametrize.is_parametrized(layer):
        raise call.refused("its weight is computed from other parameters", "Remove the parametrization.")
    own = dict(layer.named_parameters(recurse=False))
    for name in ("weight", "bias"):
        value = getattr(layer, name, None)
        if value is not None and name not in own:
            others = " and ".join(other for other in own if other.startswith(f"{name}_"))
            raise call.refused(
                f"its {name} is computed from {others or 'something else'}, as by weight_norm or pruning",
                "Make it a parameter again, as torch.nn.utils.remove_weight_norm does.",
            )
        if value is not None and not bool(value.isfinite().all()):
            raise NonFinite(f"layer {call.name!r}: its {name} holds NaN or inf, and so no λ_max can be predicted.")


def _remarks_on_weight(weight: Tensor) -> Iterator[str]:
    """Remarks on weights that are not independent draws of mean 0 and one variance."""
    rows = weight.detach().double().cpu().flatten(1)
    units, fan_in = rows.shape
    error = rows.std(correction=0) / rows.numel() ** 0.5
    if rows.mean().abs() > MEAN_OF_WEIGHTS * error:
        yield f"its weights have a mean of {float(rows.mean()):.2g}, which is treated as 0"
    sizes = rows.square().sum(1)
    chance = (rows.pow(4).mean() / rows.square().mean().square() - 1).clamp(min=0) / fan_in
    spread = (sizes / sizes.mean()).var(correction=0) if sizes.mean() > 0 else float64(0.0)
    if spread > 4 * chance + SPREAD**2:
        yield f"the sizes of its units differ by {100 * float(spread.sqrt()):.0f} %, as after training"
    elif min(units, fan_in) > 8 and sizes.mean() > 0 and not 0.5 < _likeness(rows[:ROWS]) < 2:
        yield "its units are not independent of each other, as in orthogonal or trained weights"


def _likeness(rows: Tensor) -> float:
    """Mean square of the products of two rows, relative to that of independent ones, (E w²)² · fan_in."""
    products = rows @ rows.mT
    units, fan_in = rows.shape
    different = products.square().sum() - products.diagonal().square().sum()
    return float(different / (units * (units - 1)) / (rows.square().mean().square() * fan_in))


def _is_trained(parameter: Tensor | None) -> bool:
    return parameter is not None and parameter.requires_grad


def _mean_square(tensor: Tensor) -> Tensor:
    return tensor.detach().double().square().mean().cpu()


# norms


def batchnorm(call: ReadCall, x: Signal) -> Signal:
    """Any torch BatchNorm."""
    if x.units != "gaussian":
        call.remarks.append("its input is not Gaussian, so s² differs from unit to unit; the mean is used")
    return _norm(call, x, "batch")


def layernorm(call: ReadCall, x: Signal) -> Signal:
    """LayerNorm or RMSNorm over all features of a vector."""
    if math.prod(call.what.normalized_shape) != math.prod(call.shape[1:]):
        raise call.refused(
            "it normalizes over a part of an example's features", "Use a BatchNorm, or flatten before it."
        )
    if x.size is not None:
        raise call.refused("it normalizes over channels and positions", "Use a BatchNorm.")
    if isinstance(call.what, nn.LayerNorm) and x.units != "gaussian":
        raise call.refused(
            "it subtracts the mean over features of a signal that does not come from weights of mean 0",
            "Put it directly after a linear layer, or use nn.RMSNorm.",
        )
    return _norm(call, x, "layer")


def _norm(call: ReadCall, x: Signal, kind: Literal["batch", "layer"]) -> Signal:
    _check_parameters(call)
    weight, bias = (getattr(call.what, name, None) for name in ("weight", "bias"))
    # root mean squares
    gamma = float64(1.0) if weight is None else _mean_square(weight).sqrt().clamp(min=LEAST_GAMMA)
    beta = float64(0.0) if bias is None else _mean_square(bias).sqrt()
    if beta > MOST_BETA * gamma:
        raise call.refused(
            f"its β are {float(beta):.2g} with γ of {float(gamma):.2g}, and the theory assumes β = 0",
            "Predict for the network as initialized, or measure instead: wc.eigenvalues(wc.GGN(problem)).",
        )
    if weight is not None:
        own = weight.detach().double().cpu()
        size, spread = float(_mean_square(own).sqrt()), float(own.std(correction=0))
        if spread > SPREAD * size:
            call.remarks.append(f"its γ differ by {100 * spread / size:.0f} %; their root mean square is used")
    if beta > 0:
        call.remarks.append(f"its β are {float(beta):.2g}, which is treated as 0")
    trains, positions = _is_trained(weight) or _is_trained(bias), math.prod(x.size or (1,))
    stage = Nonlinearity(call.name, LINEAR, kind, gamma, trains, positions)
    return x.then(stage, x.size, "gaussian" if x.units == "gaussian" else "other")


# activations


def smooth_module(call: ReadCall, x: Signal) -> Signal:
    """An activation module without a kink at 0."""
    module = copy.copy(call.what)
    if hasattr(module, "inplace"):
        module.inplace = False
    return _activated(call, x, Smooth(call.kind.lower(), module.forward))


def smooth_function(call: ReadCall, x: Signal) -> Signal:
    """The same as a function."""
    function, options = SMOOTH_FUNCTIONS[call.kind], {k: v for k, v in call.options.items() if k != "inplace"}
    return _activated(call, x, Smooth(call.kind, lambda a: function(a, *call.arguments, **options)))


def relu(call: ReadCall, x: Signal) -> Signal:
    """ReLU, as a module or a function."""
    return _activated(call, x, PiecewiseLinear(0.0))


def leaky_relu(call: ReadCall, x: Signal) -> Signal:
    """Leaky ReLU, as a module or a function."""
    slope = call.argument(0, "negative_slope", 0.01) if call.what is None else call.what.negative_slope
    return _activated(call, x, PiecewiseLinear(float(slope)))


def _activated(call: ReadCall, x: Signal, activation: Activation) -> Signal:
    if x.units == "activated" or not x.stages:
        receives = "an activation's output" if x.stages else "the network's input"
        raise call.refused(f"it receives {receives}, which is not Gaussian", "Put a weighted layer before it.")
    norm = x.stages[-1]
    has_kink = isinstance(activation, PiecewiseLinear) and activation != LINEAR
    if has_kink and isinstance(norm, Nonlinearity) and norm.gamma is not None and norm.gamma <= LEAST_GAMMA:
        raise call.refused(
            f"γ of {norm.name!r} is 0, so it receives only zeros, where its slope jumps",
            "Predict for the γ that you will train with, or put the norm at the end of a residual branch.",
        )
    if x.units == "other":
        call.remarks.append("it receives a sum with a part that is not Gaussian; it is treated as Gaussian")
    return x.activated(call.name, activation)
