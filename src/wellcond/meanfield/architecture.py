"""A network told in a line: all that mean-field theory needs to know of it.

    fc 784-1000-1000-1000-10                     widths of the input, the hidden layers and the output
    conv 1x28x28 30-60-90 k3 s2 10               channels × height × width, channels of the layers, outputs

and then, in any order: k3 s2 p1 (kernel, stride, padding), flatten or pool (what the last layer sees), bn, ln or
vanilla, an activation, residual, gamma=1, sigma_w2=2, sigma_b2=0.5.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from numbers import Real
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from wellcond.meanfield.convolution import Convolution, Flatten, GlobalPool
from wellcond.meanfield.field import Window
from wellcond.meanfield.gaussian import Activation, PiecewiseLinear, Smooth
from wellcond.meanfield.stages import Affine, Nonlinearity, Residual, Stage

Number = float | Tensor
"""Of one network, or of a grid of them: tensors broadcast."""
Parameters = Literal["weights", "all"]

ACTIVATIONS: dict[str, Activation] = {
    "relu": PiecewiseLinear(0.0),
    "leaky_relu": PiecewiseLinear(0.01),
    "linear": PiecewiseLinear(1.0),
    "tanh": Smooth("tanh", torch.tanh),
    "erf": Smooth("erf", torch.erf),
    "sigmoid": Smooth("sigmoid", torch.sigmoid),
    "gelu": Smooth("gelu", F.gelu),
    "silu": Smooth("silu", F.silu),
    "softplus": Smooth("softplus", F.softplus),
    "mish": Smooth("mish", F.mish),
}
NORMS: dict[str, Literal["batch", "layer", "none"]] = {"bn": "batch", "ln": "layer", "vanilla": "none"}
NUMBER = r"([+-]?(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?)"
WORDS: dict[str, tuple[str, Callable[[str], Any]]] = {
    r"k(\d+)": ("kernel", int),
    r"s(\d+)": ("stride", int),
    r"p(\d+)": ("padding", int),
    r"(\d+)": ("outputs", int),
    r"(flatten|pool)": ("head", str),
    rf"({'|'.join(NORMS)})": ("norm", NORMS.__getitem__),
    rf"({'|'.join(ACTIVATIONS)}|leaky_relu\([\d.]+\))": ("activation", str),
    r"(residual)": ("residual", bool),
    rf"gamma={NUMBER}": ("gamma", float),
    rf"sigma_w2={NUMBER}": ("sigma_w2", float),
    rf"sigma_b2={NUMBER}": ("sigma_b2", float),
}
"""The words of a line that may stand in any order: the argument of `Architecture` that each is."""
CONVOLUTIONAL = {"kernel", "stride", "padding", "outputs", "head"}
BOUNDS: dict[str, tuple[str, Callable[[float], bool]]] = {
    "gamma": ("above 0", lambda x: x > 0),
    "sigma_w2": ("above 0", lambda x: x > 0),
    "sigma_b2": ("0 or above", lambda x: x >= 0),
    "padding": ("0 or above", lambda x: x >= 0),
}
SPELLING = """
    fc 784-1000-1000-1000-10
    fc 784-300-300-10 tanh vanilla sigma_w2=1.5
    conv 1x28x28 30-60-90 k3 s2 10
    conv 3x32x32 64-64-64 k3 p1 10 pool residual"""


@dataclass(frozen=True)
class Architecture:
    """A network with one kind of layer, norm and activation throughout, and a linear layer on top.

    input: (features,), or (channels, height, width) for convolutions. hidden: units or channels of the layers.
    kernel, stride, padding: of every convolution. head: what the last layer sees of a feature map, all its positions or
    their mean. residual: every hidden layer but the first adds to what it received, z + W φ(norm(z)). Weights are
    N(0, σ_w²/fan_in), biases N(0, σ_b²), γ is that of every norm. Hidden widths, γ and variances may be tensors that
    broadcast: a grid of networks.

    >>> net = Architecture.parse("conv 1x28x28 30-60-90 k3 s2 10")
    >>> net.hidden, net.sizes
    ((30, 60, 90), [(28, 28), (13, 13), (6, 6), (2, 2)])
    >>> str(net)
    'conv 1x28x28 30-60-90 k3 s2 10'
    """

    input: tuple[int, ...]
    hidden: tuple[Number, ...]
    outputs: int
    norm: Literal["batch", "layer", "none"] = "batch"
    activation: str | Activation = "relu"
    kernel: int = 3
    stride: int = 1
    padding: int = 0
    head: Literal["flatten", "pool"] = "flatten"
    residual: bool = False
    gamma: Number = 1.0
    sigma_w2: Number = 2.0
    sigma_b2: Number = 0.5

    def __post_init__(self) -> None:
        for name in ("input", "hidden", "outputs", "kernel", "stride", "padding", "gamma", "sigma_w2", "sigma_b2"):
            value = getattr(self, name)
            for number in value if isinstance(value, tuple) else (value,):
                check_number(name, number)
        _ = self.grid
        if len(self.input) not in (1, 3):
            raise ValueError(f"input is {self.input}; it must be (features,) or (channels, height, width).")
        for name, allowed in (("norm", tuple(NORMS.values())), ("head", ("flatten", "pool"))):
            if getattr(self, name) not in allowed:
                raise ValueError(f"{name} is {getattr(self, name)!r}; it must be one of {allowed}.")
        activation_named(self.activation)
        for layer, size in enumerate(self.sizes):
            if min(size, default=1) < 1:
                raise ValueError(f"convolution {layer} leaves no position: {self.sizes[layer - 1]} becomes {size}.")
        if self.residual and (len({str(n) for n in self.hidden}) > 1 or len(set(self.sizes[1:])) > 1):
            raise ValueError(
                "a residual network adds what a layer received to what it gives: all hidden layers must be of one "
                f"width and size, but they are {self.hidden} and {self.sizes[1:]}."
            )

    @classmethod
    def parse(cls, text: str) -> Architecture:
        """An architecture from its line; `str` gives it back."""
        if found := re.fullmatch(r"fc (\d+(?:-\d+)+)((?: \S+)*)", " ".join(text.split())):
            first, *hidden, outputs = (int(n) for n in found[1].split("-"))
            return cls((first,), tuple(hidden), outputs, **_options(text, found[2], set()))
        if found := re.fullmatch(r"conv (\d+x\d+x\d+) (\d+(?:-\d+)*)((?: \S+)*)", " ".join(text.split())):
            options = _options(text, found[3], CONVOLUTIONAL)
            if "outputs" not in options:
                raise ValueError(f"{text!r} does not say how many outputs there are. A line is such as{SPELLING}")
            size, channels = (tuple(int(n) for n in re.split("[x-]", part)) for part in found.groups()[:2])
            return cls(size, channels, **options)
        raise ValueError(f"{text!r} is no architecture. A line is such as{SPELLING}")

    def __str__(self) -> str:
        widths = "-".join(_spelled(n) for n in self.hidden)
        words = [f"fc {self.input[0]}-{widths}-{self.outputs}" if widths else f"fc {self.input[0]}-{self.outputs}"]
        if self.is_convolutional:
            words = ["conv", "x".join(map(str, self.input)), widths, f"k{self.kernel}"]
            words += [f"s{self.stride}"] * (self.stride != 1) + [f"p{self.padding}"] * (self.padding != 0)
            words += [str(self.outputs)] + [self.head] * (self.head != "flatten")
        name = activation_named(self.activation).name
        words += [word for word, norm in NORMS.items() if norm == self.norm != "batch"]
        words += [name] * (name != "relu") + ["residual"] * self.residual
        for option, usual in (("gamma", 1.0), ("sigma_w2", 2.0), ("sigma_b2", 0.5)):
            value = getattr(self, option)
            if isinstance(value, Tensor) or value != usual:
                words.append(f"{option}={_spelled(value)}")
        return " ".join(words)

    @property
    def is_convolutional(self) -> bool:
        return len(self.input) == 3

    @property
    def sizes(self) -> list[tuple[int, ...]]:
        """Height and width of the input and of what every hidden layer gives; empty tuples for dense layers."""
        sizes = [self.input[1:]]
        for _ in self.hidden:
            sizes.append(tuple((n + 2 * self.padding - self.kernel) // self.stride + 1 for n in sizes[-1]))
        return sizes

    @property
    def grid(self) -> torch.Size:
        """The shape of the grid of networks that this is; () for one."""
        widths = {f"width {k}": width for k, width in enumerate(self.hidden, 1)}
        return grid_of({**widths, "gamma": self.gamma, "sigma_w2": self.sigma_w2, "sigma_b2": self.sigma_b2})

    def each(self) -> Iterator[Architecture]:
        """The networks of the grid one by one, the last dimension first."""
        numbers = (self.gamma, self.sigma_w2, self.sigma_b2, *self.hidden)
        columns = (_float64(n).expand(self.grid).flatten().tolist() for n in numbers)
        for gamma, sigma_w2, sigma_b2, *hidden in zip(*columns, strict=True):
            yield replace(self, gamma=gamma, sigma_w2=sigma_w2, sigma_b2=sigma_b2, hidden=tuple(hidden))

    def stages(self, parameters: Parameters = "weights") -> list[Stage]:
        """The layers as mean-field theory sees them. parameters: weights alone, or biases, γ and β too."""
        trains_all = parameters == "all"
        layers = [self._layer(k, trains_all) for k in range(len(self.hidden))]
        activation, gamma = activation_named(self.activation), _float64(self.gamma)
        nonlinearities = [
            Nonlinearity(f"norm{k}", activation, self.norm, gamma, trains_all) for k in range(1, len(layers) + 1)
        ]
        stages: list[Stage] = []
        for k, (layer, nonlinearity) in enumerate(zip(layers, nonlinearities, strict=True)):
            if self.residual and k > 0:
                stages[-1:] = [Residual([stages[-1], layer])]
            else:
                stages.append(layer)
            stages.append(nonlinearity)
        positions = 1
        if self.is_convolutional:
            stages.append(Flatten() if self.head == "flatten" else GlobalPool())
            positions = math.prod(self.sizes[-1]) if self.head == "flatten" else 1
        fan_in = _float64((self.input[:1] + self.hidden)[-1]) * positions
        return [*stages, Affine("head", fan_in, *self._variances, trains_bias=trains_all)]

    def _layer(self, k: int, trains_bias: bool) -> Affine:
        fan_in = _float64((self.input[:1] + self.hidden)[k])
        if not self.is_convolutional:
            return Affine(f"fc{k + 1}", fan_in, *self._variances, trains_bias=trains_bias)
        height, width = self.sizes[k]
        square = [(n, n) for n in (self.kernel, self.stride, self.padding)]
        window = Window((height, width), *square)
        name, fan_in = f"conv{k + 1}", fan_in * window.sites
        return Convolution(name, fan_in, *self._variances, trains_bias=trains_bias, window=window)

    @property
    def _variances(self) -> tuple[Tensor, Tensor]:
        return _float64(self.sigma_w2), _float64(self.sigma_b2)


def activation_named(name: str | Activation) -> Activation:
    """By its name in a line; "leaky_relu(0.2)" tells the slope too."""
    if isinstance(name, Activation):
        return name
    if found := re.fullmatch(r"leaky_relu\((\d*\.?\d+)\)", name):
        return PiecewiseLinear(float(found[1]))
    if name not in ACTIVATIONS:
        raise ValueError(f"there is no activation {name!r} here; these are: {', '.join(ACTIVATIONS)}.")
    return ACTIVATIONS[name]


def _options(text: str, words: str, convolutional: set[str]) -> dict[str, Any]:
    """Arguments of `Architecture` from the words after the widths. convolutional: which of those are known."""
    options: dict[str, Any] = {}
    for word in words.split():
        if "maxpool" in re.sub("[-_]", "", word.lower()):
            raise ValueError(f"{text!r}: there is no mean-field theory of max pooling here. Use a stride instead.")
        matches = ((re.fullmatch(pattern, word), *meaning) for pattern, meaning in WORDS.items())
        name, value = next(((name, convert(found[1])) for found, name, convert in matches if found), ("", None))
        if not name or name in CONVOLUTIONAL - convolutional:
            raise ValueError(f"{text!r}: {word!r} is not understood here. A line is such as{SPELLING}")
        if name in options:
            raise ValueError(f"{text!r}: {word!r} tells the {name} a second time.")
        options[name] = value
    return options


def check_number(name: str, value: Number) -> None:
    """Refuse what the argument of that name of `Architecture` cannot be."""
    allowed, holds = BOUNDS.get(name, ("1 or above", lambda x: x >= 1))
    if not isinstance(value, (Real, Tensor)) or (isinstance(value, Tensor) and value.is_complex()):
        raise TypeError(f"{name} is of type {type(value).__name__}; it must be a real number, or a tensor of them.")
    if isinstance(value, Tensor) and not value.numel():
        raise ValueError(f"{name} is a tensor without elements; give one for every network of the grid.")
    for x in value.flatten().tolist() if isinstance(value, Tensor) else (value,):
        if not math.isfinite(x):
            raise ValueError(f"{name} is {x}; it must be finite and {allowed}.")
        if not holds(x):
            raise ValueError(f"{name} is {x}; it must be {allowed}.")


def grid_of(numbers: Mapping[str, Number]) -> torch.Size:
    """The shape to which they broadcast."""
    shapes = {name: tuple(value.shape) for name, value in numbers.items() if isinstance(value, Tensor)}
    try:
        return torch.Size(np.broadcast_shapes(*shapes.values()))
    except ValueError as error:
        told = ", ".join(f"{name} {shape}" for name, shape in shapes.items())
        raise ValueError(f"tensors of these shapes do not broadcast to one grid: {told}.") from error


def _float64(value: Number) -> Tensor:
    return torch.as_tensor(value, dtype=torch.float64)


def _spelled(value: Number) -> str:
    if isinstance(value, Tensor):
        low, high = float(value.min()), float(value.max())
        return f"{low:g}…{high:g}" if low != high else f"{low:g}"
    return str(int(value)) if value == int(value) else str(value)
