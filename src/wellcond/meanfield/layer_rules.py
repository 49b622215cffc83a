"""What weighted layers, norms and activations mean to mean-field theory."""

from __future__ import annotations

import copy
import math
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrize

from wellcond.errors import NonFinite
from wellcond.meanfield import weights
from wellcond.meanfield.calls import Call, two
from wellcond.meanfield.convolution import Convolution
from wellcond.meanfield.field import Window
from wellcond.meanfield.gaussian import Activation, PiecewiseLinear, Smooth
from wellcond.meanfield.signals import LINEAR, Signal
from wellcond.meanfield.stages import Affine, Nonlinearity

MOST_BETA = 0.1
"""Over γ: up to here β is remarked on, above it the theory of β = 0 is far off."""


def linear(call: Call, x: Signal) -> Signal:
    if call.shape is not None and len(call.shape) != 2:
        raise call.refused(
            f"it acts on each of the positions of {tuple(call.shape)}",
            "Flatten what it receives, or use a convolution.",
        )
    return x.affine(Affine(call.name, *_measured(call)))


def convolution(call: Call, x: Signal) -> Signal:
    layer = call.what
    if layer.padding_mode != "zeros":
        raise call.refused(f"its padding is of the mode {layer.padding_mode!r}", "Pad with zeros.")
    before, behind = call.sizes
    padding = _padding(call)
    window = Window(before, two(layer.kernel_size), two(layer.stride), two(padding, 0), two(layer.dilation))
    assert window.outputs == behind
    if layer.in_channels // layer.groups < 8 < layer.in_channels:
        call.remarks.append(f"a group of it sees {layer.in_channels // layer.groups} channels, which is not many")
    fan_in, w2, b2, trains_weight, trains_bias = _measured(call)
    return x.affine(Convolution(call.name, fan_in, w2, b2, trains_weight, trains_bias, window=window), behind)


def _padding(call: Call) -> tuple[int, ...]:
    layer = call.what
    if not isinstance(layer.padding, str):
        return tuple(layer.padding)
    if layer.padding == "valid":
        return (0,) * len(layer.kernel_size)
    reach = [(k - 1) * d for k, d in zip(layer.kernel_size, layer.dilation, strict=True)]
    if any(r % 2 for r in reach):
        raise call.refused("its padding differs from side to side", "Use an odd kernel.")
    return tuple(r // 2 for r in reach)


def _measured(call: Call) -> tuple[Tensor, Tensor, Tensor, bool, bool]:
    layer = call.what
    _check_own_parameters(call)
    call.remarks += weights.remarks_on_layer(layer)
    trained = weights.is_trained(layer.weight), weights.is_trained(layer.bias)
    fan_in = torch.tensor(float(weights.fan_in_of(layer)), dtype=torch.float64)
    return fan_in, weights.sigma_w2(layer), weights.sigma_b2(layer), *trained


def _check_own_parameters(call: Call) -> None:
    """Weight and bias are trained themselves, and numbers."""
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


# norms


def batchnorm(call: Call, x: Signal) -> Signal:
    if x.units != "gaussian":
        call.remarks.append("what it receives is not Gaussian, so that s² differs from unit to unit; its mean counts")
    return _norm(call, x, "batch")


def layernorm(call: Call, x: Signal) -> Signal:
    features = math.prod(call.what.normalized_shape)
    if call.shape is not None and features != math.prod(call.shape[1:]):
        raise call.refused(
            "it normalises over a part of an example's features", "Use a BatchNorm, or flatten before it."
        )
    if x.size is not None:
        raise call.refused("it normalises over channels and positions", "Use a BatchNorm.")
    if isinstance(call.what, nn.LayerNorm) and x.units != "gaussian":
        raise call.refused(
            "it subtracts the mean over features of a signal that does not come from weights of mean 0",
            "Put it right behind a linear layer, or use nn.RMSNorm.",
        )
    return _norm(call, x, "layer")


def _norm(call: Call, x: Signal, kind: Literal["batch", "layer"]) -> Signal:
    norm = call.what
    _check_own_parameters(call)
    beta, gamma = weights.beta(norm), weights.gamma(norm)
    if beta > MOST_BETA * gamma:
        raise call.refused(
            f"its β are {float(beta):.2g} beside γ of {float(gamma):.2g}, and the theory is of β = 0",
            "Predict for the network as initialised, or measure instead: wc.eigenvalues(wc.GGN(problem)).",
        )
    call.remarks += weights.remarks_on_norm(norm)
    trains = weights.is_trained(getattr(norm, "weight", None)) or weights.is_trained(getattr(norm, "bias", None))
    return x.normed(Nonlinearity(call.name, LINEAR, kind, gamma, trains))


# activations


def activation_module(call: Call, x: Signal) -> Signal:
    module = copy.copy(call.what)
    if hasattr(module, "inplace"):
        module.inplace = False
    return _activated(call, x, Smooth(type(module).__name__.lower(), module.forward))


def relu(call: Call, x: Signal) -> Signal:
    return _activated(call, x, PiecewiseLinear(0.0))


def leaky_relu(call: Call, x: Signal) -> Signal:
    is_module = isinstance(call.what, nn.Module)
    slope: Any = call.what.negative_slope if is_module else call.argument(0, "negative_slope", 0.01)
    return _activated(call, x, PiecewiseLinear(float(slope)))


def activation_function(call: Call, x: Signal) -> Signal:
    function: Any = getattr(F, call.what, None) or getattr(torch, call.what)
    options = {key: value for key, value in call.options.items() if key != "inplace"}
    return _activated(call, x, Smooth(call.what, lambda a: function(a, *call.arguments, **options)))


def _activated(call: Call, x: Signal, activation: Activation) -> Signal:
    if x.units == "activated" or not x.stages:
        receives = "an activation's output" if x.stages else "the network's input"
        raise call.refused(f"it receives {receives}, which is not Gaussian", "Put a weighted layer before it.")
    norm = x.stages[-1]
    has_kink = isinstance(activation, PiecewiseLinear) and activation != LINEAR
    if has_kink and isinstance(norm, Nonlinearity) and norm.gamma is not None and norm.gamma <= weights.LEAST_GAMMA:
        raise call.refused(
            f"γ of {norm.name!r} is 0, so that all it receives is 0, where its slope jumps",
            "Predict for the γ that it is to have, or put the norm at the end of a residual branch.",
        )
    if x.units == "other":
        call.remarks.append("it receives a sum of which a part is not Gaussian; it is taken as Gaussian with its mean")
    return x.activated(call.name, activation)
