"""What each type of layer, or function called in a forward pass, means to mean-field theory. One registry each."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrize

from wellcond.meanfield import weights
from wellcond.meanfield.convolution import AveragePool, Convolution, Flatten, GlobalPool
from wellcond.meanfield.field import Window
from wellcond.meanfield.gaussian import Activation, PiecewiseLinear, Smooth
from wellcond.meanfield.signals import LINEAR, NotUnderstood, Scaling, Signal
from wellcond.meanfield.stages import Affine, Nonlinearity


@dataclass
class Call:
    """One call in a forward pass: of a module, or of a function named `name`.

    arguments: those behind the signal. shape, output: of the signal and of what came out, None where they are not known.
    """

    name: str
    what: Any
    arguments: tuple[Any, ...] = ()
    options: dict[str, Any] = field(default_factory=dict)
    shape: torch.Size | None = None
    output: torch.Size | None = None
    notes: list[str] = field(default_factory=list)

    def argument(self, place: int, name: str, default: Any) -> Any:
        """By its place behind the signal or by its name."""
        return self.arguments[place] if place < len(self.arguments) else self.options.get(name, default)

    def refused(self, why: str | None = None, cure: str | None = None) -> NotUnderstood:
        what = type(self.what).__name__ if isinstance(self.what, nn.Module) else f"{self.what}()"
        article = "an" if what[0] in "AEIOU" else "a"
        reasons = {key: text for key, text in (("why", why), ("cure", cure)) if text is not None}
        return NotUnderstood(self.name, f"{article} {what}" if isinstance(self.what, nn.Module) else what, **reasons)

    @property
    def sizes(self) -> tuple[tuple[int, int], tuple[int, int]]:
        """Height and width of the feature map before and behind; a sequence is a map of height 1."""
        if self.shape is None or self.output is None:
            raise self.refused(
                "what it does depends on the size of the feature maps",
                "Pass inputs=a batch of examples, or inputs=the shape of one, such as (3, 32, 32).",
            )
        before, behind = (_height_and_width(shape) for shape in (self.shape, self.output))
        return before, behind


Rule = Callable[[Call, Signal], Signal]


def _height_and_width(shape: torch.Size) -> tuple[int, int]:
    height, width = (1, 1, *shape[2:])[-2:]
    return height, width


# weights


def _linear(call: Call, x: Signal) -> Signal:
    if call.shape is not None and len(call.shape) != 2:
        raise call.refused(
            f"it acts on each of the positions of {tuple(call.shape)}",
            "Flatten what it receives, or use a convolution.",
        )
    return x.affine(Affine(call.name, *_measured(call)))


def _convolution(call: Call, x: Signal) -> Signal:
    layer = call.what
    if layer.padding_mode != "zeros":
        raise call.refused(f"its padding is of the mode {layer.padding_mode!r}", "Pad with zeros.")
    before, behind = call.sizes
    padding = layer.padding
    if isinstance(padding, str):
        reach = [(k - 1) * d for k, d in zip(layer.kernel_size, layer.dilation, strict=True)]
        if padding == "same" and any(r % 2 for r in reach):
            raise call.refused("its padding differs from side to side", "Use an odd kernel.")
        padding = [r // 2 if padding == "same" else 0 for r in reach]
    parts = [(*fill, *values)[-2:] for fill, values in _filled(layer, padding)]
    window = Window(before, *parts)
    assert window.outputs == behind
    if layer.in_channels // layer.groups < 8 < layer.in_channels:
        call.notes.append(
            f"{call.name}: a group of it sees {layer.in_channels // layer.groups} channels, which is not many"
        )
    fan_in, w2, b2, trains_weight, trains_bias = _measured(call)
    return x.affine(Convolution(call.name, fan_in, w2, b2, trains_weight, trains_bias, window=window), behind)


def _filled(layer: Any, padding: Any) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Of a convolution of sequences: what it does along the height that it does not have."""
    return [((1,), layer.kernel_size), ((1,), layer.stride), ((0,), tuple(padding)), ((1,), layer.dilation)]


def _measured(call: Call) -> tuple[Tensor, Tensor, Tensor, bool, bool]:
    layer = call.what
    if parametrize.is_parametrized(layer):
        raise call.refused("its weight is computed from other parameters", "Remove the parametrization.")
    call.notes += weights.remarks_on_layer(call.name, layer)
    trained = weights.is_trained(layer.weight), weights.is_trained(layer.bias)
    fan_in = torch.tensor(float(weights.fan_in_of(layer)), dtype=torch.float64)
    return fan_in, weights.sigma_w2(layer), weights.sigma_b2(layer), *trained


# norms


def _batchnorm(call: Call, x: Signal) -> Signal:
    if x.units != "gaussian":
        call.notes.append(
            f"{call.name}: what it receives is not Gaussian, so that s² differs from unit to unit; its mean counts"
        )
    return _norm(call, x, "batch")


def _layernorm(call: Call, x: Signal) -> Signal:
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


def _norm(call: Call, x: Signal, kind: Any) -> Signal:
    norm = call.what
    call.notes += weights.remarks_on_norm(call.name, norm)
    trains = weights.is_trained(getattr(norm, "weight", None)) or weights.is_trained(getattr(norm, "bias", None))
    return x.normed(Nonlinearity(call.name, LINEAR, kind, weights.gamma(norm), trains))


# activations


def _activation_module(call: Call, x: Signal) -> Signal:
    module = copy.copy(call.what)
    if hasattr(module, "inplace"):
        module.inplace = False
    return _activated(call, x, Smooth(type(module).__name__.lower(), module.forward))


def _relu(call: Call, x: Signal) -> Signal:
    return _activated(call, x, PiecewiseLinear(0.0))


def _leaky_relu(call: Call, x: Signal) -> Signal:
    slope = call.what.negative_slope if isinstance(call.what, nn.Module) else call.argument(0, "negative_slope", 0.01)
    return _activated(call, x, PiecewiseLinear(float(slope)))


def _activation_function(call: Call, x: Signal) -> Signal:
    function: Any = getattr(F, call.what, None) or getattr(torch, call.what)
    options = {key: value for key, value in call.options.items() if key != "inplace"}
    return _activated(call, x, Smooth(call.what, lambda a: function(a, *call.arguments, **options)))


def _activated(call: Call, x: Signal, activation: Activation) -> Signal:
    if x.units == "activated" or not x.stages:
        receives = "an activation's output" if x.stages else "the network's input"
        raise call.refused(f"it receives {receives}, which is not Gaussian", "Put a weighted layer before it.")
    if x.units == "other":
        call.notes.append(
            f"{call.name}: it receives a sum of which a part went through an activation; its mean is not followed, and "
            "the prediction is rough"
        )
    return x.activated(call.name, activation)


# positions


def _same(call: Call, x: Signal) -> Signal:
    return x


def _dropout(call: Call, x: Signal) -> Signal:
    call.notes.append(f"{call.name}: dropout is taken as off")
    return x


def _reshape(call: Call, x: Signal) -> Signal:
    if x.size is None or call.output is None:
        return x
    if len(call.output) == 2 and call.shape is not None:
        return x.moved(Flatten(), None)
    if call.output == call.shape:
        return x
    raise call.refused(f"it takes {tuple(call.shape or ())} to {tuple(call.output)}", "Flatten to (N, features).")


def _mean(call: Call, x: Signal) -> Signal:
    """AdaptiveAvgPool, x.mean(...): the mean over all positions, or over windows of them."""
    (h, w), (new_h, new_w) = call.sizes
    assert call.shape is not None and call.output is not None
    if x.size is None or call.output[:2] != call.shape[:2] or len(call.output) not in (2, len(call.shape)):
        raise call.refused("it averages over something else than positions")
    if (new_h, new_w) == (1, 1):
        return x.moved(GlobalPool(), None)
    if h % new_h or w % new_w:
        raise call.refused(f"its windows differ: {h}×{w} positions become {new_h}×{new_w}")
    window = (h // new_h, w // new_w)
    return x.moved(AveragePool(Window((h, w), window, window)), (new_h, new_w))


def _average_pool(call: Call, x: Signal) -> Signal:
    pool = call.what
    if pool.ceil_mode or not pool.count_include_pad or getattr(pool, "divisor_override", None):
        raise call.refused(
            "windows at the border have a divisor of their own", "Leave its options as they are by default."
        )
    before, behind = call.sizes
    one = isinstance(pool, nn.AvgPool1d)
    kernel, stride, padding = (
        (fill, _pair(value)[-1]) if one else _pair(value)
        for fill, value in ((1, pool.kernel_size), (1, pool.stride), (0, pool.padding))
    )
    return x.moved(AveragePool(Window(before, kernel, stride, padding)), behind)


def _pair(value: Any) -> tuple[int, int]:
    first, second = (value, value) if isinstance(value, int) else (value[0], value[-1])
    return first, second


def _slice(call: Call, x: Signal) -> Signal:
    """x[:, :, ::s, ::s]: every s-th position, the first channels all there."""
    index = call.arguments[0]
    steps = [i.step or 1 for i in index if isinstance(i, slice) and i.start is None and i.stop is None]
    if not isinstance(index, tuple) or len(steps) != len(index) or steps[:2] != [1] * len(steps[:2]):
        raise call.refused("it takes a part of the signal")
    if set(steps) == {1}:
        return x
    before, behind = call.sizes
    stride = (1, *steps[2:])[-2:]
    return x.moved(AveragePool(Window(before, (1, 1), (stride[0], stride[1]))), behind)


def _pad(call: Call, x: Signal) -> Signal:
    """Channels of zeros behind: mean squares over channels are smaller by the share of the others."""
    pads = tuple(call.arguments[0])
    if not any(pads):
        return x
    if call.shape is None or call.output is None or any(pads[: 2 * (len(call.shape) - 2)]) or call.options.get("value"):
        raise call.refused("it pads with something else than channels of zeros")
    share = torch.tensor(call.shape[1] / call.output[1], dtype=torch.float64)
    call.notes.append(f"{call.name}: appended channels of zeros count as a part of all channels alike")
    return x.moved(Scaling(share), x.size)


def _scaled(call: Call, x: Signal) -> Signal:
    factor = call.arguments[0] if call.arguments else None
    if not isinstance(factor, (int, float)):
        raise call.refused("it multiplies signals, or by a parameter")
    square = float(factor) ** (-2 if call.what == "truediv" else 2)
    return x.moved(Scaling(torch.tensor(square, dtype=torch.float64)), x.size)


SMOOTH = (
    nn.Tanh, nn.GELU, nn.SiLU, nn.Sigmoid, nn.ELU, nn.SELU, nn.CELU, nn.Softplus, nn.Mish, nn.Softsign, nn.LogSigmoid,
    nn.Hardtanh, nn.ReLU6, nn.Hardswish, nn.Hardsigmoid, nn.Tanhshrink,
)  # fmt: skip
MODULES: dict[type[nn.Module], Rule] = {
    nn.Linear: _linear,
    nn.Conv1d: _convolution,
    nn.Conv2d: _convolution,
    **dict.fromkeys((nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm), _batchnorm),
    nn.LayerNorm: _layernorm,
    nn.RMSNorm: _layernorm,
    nn.ReLU: _relu,
    nn.LeakyReLU: _leaky_relu,
    **dict.fromkeys(SMOOTH, _activation_module),
    nn.Identity: _same,
    **dict.fromkeys((nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout), _dropout),
    nn.Flatten: _reshape,
    nn.Unflatten: _reshape,
    nn.AdaptiveAvgPool1d: _mean,
    nn.AdaptiveAvgPool2d: _mean,
    nn.AvgPool1d: _average_pool,
    nn.AvgPool2d: _average_pool,
}
FUNCTIONS: dict[str, Rule] = {
    "relu": _relu,
    "leaky_relu": _leaky_relu,
    **dict.fromkeys(
        ("tanh", "sigmoid", "gelu", "silu", "elu", "selu", "celu", "softplus", "mish", "softsign", "logsigmoid")
        + ("hardtanh", "relu6", "hardswish", "hardsigmoid", "erf"),
        _activation_function,
    ),
    **dict.fromkeys(("dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout"), _dropout),
    **dict.fromkeys(("flatten", "view", "reshape", "squeeze"), _reshape),
    **dict.fromkeys(("contiguous", "clone", "float", "double"), _same),
    **dict.fromkeys(("mean", "adaptive_avg_pool1d", "adaptive_avg_pool2d"), _mean),
    "getitem": _slice,
    "pad": _pad,
    **dict.fromkeys(("mul", "truediv"), _scaled),
}
CURES = {
    "MaxPool": "Use a stride or an average pooling instead, or measure instead of predicting.",
    "GroupNorm": "Use a BatchNorm, or LayerNorm behind linear layers.",
    "ConvTranspose": "Predict for the part of the network before it.",
    "PReLU": "Use nn.LeakyReLU: a slope that is trained has no term here.",
    "softmax": "Predict for the network without it: up to its logits.",
    "Softmax": "Predict for the network without it: up to its logits.",
}
"""By a part of a type's or a function's name."""


def rule_of(call: Call) -> Rule:
    """The rule of a module whose type, or a base whose `forward` it keeps, has one; or of a function."""
    rule: Rule | None = None
    if isinstance(call.what, nn.Module):
        kept = (cls for cls in type(call.what).__mro__ if cls in MODULES and type(call.what).forward is cls.forward)
        rule = MODULES.get(next(kept, nn.Module))
    else:
        rule = FUNCTIONS.get(call.what)
    if rule is None:
        name = type(call.what).__name__ if isinstance(call.what, nn.Module) else call.what
        raise call.refused(cure=next((cure for part, cure in CURES.items() if part in name), None))
    return rule
