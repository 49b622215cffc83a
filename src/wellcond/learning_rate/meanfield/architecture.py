"""A network in one line: all that mean-field theory needs to know about it.

    fc 784-1000-1000-1000-10                     widths of the input, the hidden layers and the output
    conv 1x28x28 30-60-90 k3 s2 10               channels × height × width, channels of the layers, outputs

and then, in any order: k3 s2 p1 (kernel, stride, padding), flatten or pool (the last layer's input), bn, ln or
vanilla, an activation, residual, gamma=1, sigma_w2=2, sigma_b2=0.5.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from wellcond.learning_rate.meanfield.feature_maps import Convolution, Flatten, GlobalPool, Window, two
from wellcond.learning_rate.meanfield.gaussian import Activation, PiecewiseLinear, Smooth
from wellcond.learning_rate.meanfield.moments import Number, check_number, float64, grid_of
from wellcond.learning_rate.meanfield.stages import Affine, Nonlinearity, Norm, Residual, Stage

Parameters = Literal["weights", "all"]

ACTIVATIONS: dict[str, Activation] = {
    "relu": PiecewiseLinear(0.0),
    "leaky_relu": PiecewiseLinear(0.01),
    "linear": PiecewiseLinear(1.0),
    **{f.__name__: Smooth(f.__name__, f) for f in (torch.tanh, torch.erf, torch.sigmoid, F.gelu, F.silu)},
    **{f.__name__: Smooth(f.__name__, f) for f in (F.softplus, F.mish)},
}
NORMS: dict[str, Norm] = {"bn": "batch", "ln": "layer", "vanilla": "none"}
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
"""The words that may stand in any order, and the argument of `Architecture` that each sets."""
CONVOLUTIONAL = {"kernel", "stride", "padding", "outputs", "head"}
EXAMPLE_LINES = """
    fc 784-1000-1000-1000-10
    fc 784-300-300-10 tanh vanilla sigma_w2=1.5
    conv 1x28x28 30-60-90 k3 s2 10
    conv 3x32x32 64-64-64 k3 p1 10 pool residual"""


@dataclass(frozen=True)
class Architecture:
    """A network with one kind of layer, norm and activation throughout, and a linear layer on top.

    Weights are N(0, σ_w²/fan_in) and biases N(0, σ_b²). Hidden widths, γ and the variances may be tensors that
    broadcast: a grid of networks.

    Attributes:
        input: Shape of an input: (features,), or (channels, height, width) for convolutions.
        hidden: Units or channels of the hidden layers.
        outputs: Number of outputs.
        norm: Norm after every hidden layer.
        activation: Name of the activation, or the function itself.
        kernel: Kernel size of every convolution.
        stride: Stride of every convolution.
        padding: Padding of every convolution.
        head: Whether the last layer receives all positions of a feature map or their mean.
        residual: Whether every hidden layer but the first adds to its input, z + W φ(norm(z)).
        gamma: γ of every norm.
        sigma_w2: σ_w².
        sigma_b2: σ_b².

    Raises:
        ValueError: A number is out of range, or the layers do not fit together.
        TypeError: A number is not one.

    Example:
        >>> net = Architecture.parse("conv 1x28x28 30-60-90 k3 s2 10")
        >>> net.hidden, net.sizes
        ((30, 60, 90), [(28, 28), (13, 13), (6, 6), (2, 2)])
        >>> str(net)
        'conv 1x28x28 30-60-90 k3 s2 10'
    """

    input: tuple[int, ...]
    hidden: tuple[Number, ...]
    outputs: int
    norm: Norm = "batch"
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
                "a residual network adds a layer's input to its output: all hidden layers must have one width and "
                f"size, but they have {self.hidden} and {self.sizes[1:]}."
            )

    @classmethod
    def parse(cls, text: str) -> Architecture:
        """Read an architecture from a line; `str` writes it again.

        Args:
            text: Line such as "fc 784-1000-10" or "conv 1x28x28 30-60-90 k3 s2 10".

        Returns:
            The architecture.

        Raises:
            ValueError: The line is not understood; the message shows lines that are.
        """
        if match := re.fullmatch(r"fc (\d+(?:-\d+)+)((?: \S+)*)", " ".join(text.split())):
            first, *hidden, outputs = (int(n) for n in match[1].split("-"))
            return cls((first,), tuple(hidden), outputs, **_options(text, match[2], is_convolutional=False))
        if match := re.fullmatch(r"conv (\d+x\d+x\d+) (\d+(?:-\d+)*)((?: \S+)*)", " ".join(text.split())):
            options = _options(text, match[3], is_convolutional=True)
            if "outputs" not in options:
                raise ValueError(
                    f"{text!r} does not say how many outputs there are. Write lines such as{EXAMPLE_LINES}"
                )
            size, channels = (tuple(int(n) for n in re.split("[x-]", part)) for part in match.groups()[:2])
            return cls(size, channels, **options)
        raise ValueError(f"{text!r} is not an architecture. Write lines such as{EXAMPLE_LINES}")

    def __str__(self) -> str:
        widths = "-".join(_written(n) for n in self.hidden)
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
                words.append(f"{option}={_written(value)}")
        return " ".join(words)

    @property
    def is_convolutional(self) -> bool:
        """Whether the inputs are images."""
        return len(self.input) == 3

    @property
    def sizes(self) -> list[tuple[int, ...]]:
        """Height and width of the input and of every hidden layer's output; empty tuples for dense layers."""
        sizes = [self.input[1:]]
        for _ in self.hidden:
            sizes.append(tuple((n + 2 * self.padding - self.kernel) // self.stride + 1 for n in sizes[-1]))
        return sizes

    @property
    def grid(self) -> torch.Size:
        """The shape of the grid of networks; () for one network."""
        widths = {f"width {k}": width for k, width in enumerate(self.hidden, 1)}
        return grid_of({**widths, "gamma": self.gamma, "sigma_w2": self.sigma_w2, "sigma_b2": self.sigma_b2})

    def each(self) -> Iterator[Architecture]:
        """The networks of the grid one by one, the last dimension first."""
        numbers = (self.gamma, self.sigma_w2, self.sigma_b2, *self.hidden)
        columns = (float64(n).expand(self.grid).flatten().tolist() for n in numbers)
        for gamma, sigma_w2, sigma_b2, *hidden in zip(*columns, strict=True):
            yield replace(self, gamma=gamma, sigma_w2=sigma_w2, sigma_b2=sigma_b2, hidden=tuple(hidden))

    def stages(self, parameters: Parameters = "weights") -> list[Stage]:
        """The layers as mean-field theory sees them; only weights are trained, or "all", with biases, γ and β."""
        trains_all = parameters == "all"
        activation, gamma = activation_named(self.activation), float64(self.gamma)
        variances = float64(self.sigma_w2), float64(self.sigma_b2)
        widths = [float64(n) for n in (self.input[0], *self.hidden)]
        stages: list[Stage] = []
        for k, (before, after) in enumerate(pairwise(self.sizes)):
            if self.is_convolutional:
                window = Window(two(before), *map(two, (self.kernel, self.stride, self.padding)))
                fan_in = widths[k] * window.sites
                layer: Affine = Convolution(f"conv{k + 1}", fan_in, *variances, trains_bias=trains_all, window=window)
            else:
                layer = Affine(f"fc{k + 1}", widths[k], *variances, trains_bias=trains_all)
            if self.residual and k > 0:
                stages[-1:] = [Residual([stages[-1], layer])]
            else:
                stages.append(layer)
            stages.append(Nonlinearity(f"norm{k + 1}", activation, self.norm, gamma, trains_all, math.prod(after)))
        features = widths[-1]
        if self.is_convolutional:
            positions = math.prod(self.sizes[-1])
            stages.append(Flatten() if self.head == "flatten" else GlobalPool(positions))
            features = features * (positions if self.head == "flatten" else 1)
        return [*stages, Affine("head", features, *variances, trains_bias=trains_all)]


def activation_named(name: str | Activation) -> Activation:
    """An activation by its name in a line; "leaky_relu(0.2)" has its slope in it."""
    if isinstance(name, Activation):
        return name
    if match := re.fullmatch(r"leaky_relu\((\d*\.?\d+)\)", name):
        return PiecewiseLinear(float(match[1]))
    if name not in ACTIVATIONS:
        raise ValueError(f"there is no activation {name!r} here; choose one of {', '.join(ACTIVATIONS)}.")
    return ACTIVATIONS[name]


def _options(text: str, words: str, *, is_convolutional: bool) -> dict[str, Any]:
    """Arguments of `Architecture` from the words after the widths."""
    options: dict[str, Any] = {}
    for word in words.split():
        if "maxpool" in re.sub("[-_]", "", word.lower()):
            raise ValueError(f"{text!r}: there is no mean-field theory of max pooling here. Use a stride instead.")
        matches = ((re.fullmatch(pattern, word), *meaning) for pattern, meaning in WORDS.items())
        name, value = next(((name, convert(match[1])) for match, name, convert in matches if match), ("", None))
        if not name or (name in CONVOLUTIONAL and not is_convolutional):
            raise ValueError(f"{text!r}: {word!r} is not understood here. Write lines such as{EXAMPLE_LINES}")
        if name in options:
            raise ValueError(f"{text!r}: {word!r} sets the {name} a second time.")
        options[name] = value
    return options


def _written(value: Number) -> str:
    if isinstance(value, Tensor):
        low, high = float(value.min()), float(value.max())
        return f"{low:g}…{high:g}" if low != high else f"{low:g}"
    return str(int(value)) if value == int(value) else str(value)
