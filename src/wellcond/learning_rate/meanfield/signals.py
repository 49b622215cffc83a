"""The signal on its way through a network, and the rules for calls that have no weights."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch

from wellcond.errors import Unsupported
from wellcond.learning_rate.meanfield.feature_maps import AveragePool, Flatten, GlobalPool, Window, two
from wellcond.learning_rate.meanfield.gaussian import Activation, PiecewiseLinear
from wellcond.learning_rate.meanfield.moments import float64
from wellcond.learning_rate.meanfield.stages import Affine, Nonlinearity, Residual, Scaling, Stage, every
from wellcond.network.recording import Call, Value

Units = Literal["gaussian", "activated", "other"]
LINEAR = PiecewiseLinear(1.0)
SPELLINGS = {
    "iadd": "add", "imul": "mul", "multiply": "mul", "itruediv": "div", "truediv": "div", "true_divide": "div",
    "divide": "div",
}  # fmt: skip
CURE = "Take it out, or measure instead of predicting: wc.eigenvalues(wc.GGN(problem))."


@dataclass(frozen=True)
class Step:
    """One call that changes the signal, as rules see it.

    Attributes:
        name: The name of the module; for a function, that of the module it is called in, and its own.
        what: The module; None for a function.
        kind: The name of the module's type, or the function's under one spelling.
        inside: The name of the module whose forward pass makes the call.
        arguments: The positional arguments other than the signal.
        options: The named arguments.
        shape: Of the signal.
        output: Of what came out; empty if the call raised.
        remarks: What the theory takes to be different from what it is. Rules add to them.
    """

    name: str
    what: Any
    kind: str
    inside: str
    arguments: tuple[Any, ...]
    options: dict[str, Any]
    shape: torch.Size
    output: torch.Size
    remarks: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, call: Call, signal: Value) -> Step:
        """A call that takes the signal."""
        name, kind = call.name, type(call.module).__name__
        if call.module is None:
            name, kind = f"{call.inside}.{name}".lstrip("."), SPELLINGS.get(name, name)
        arguments = tuple(arg for arg in call.args if not (isinstance(arg, Value) and arg == signal))
        output = call.gives[0].shape if call.gives else torch.Size()
        return cls(name, call.module, kind, call.inside, arguments, call.kwargs, signal.shape, output)

    def argument(self, place: int, name: str, default: Any) -> Any:
        """An argument by its place after the signal or by its name."""
        return self.arguments[place] if place < len(self.arguments) else self.options.get(name, default)

    def refused(self, why: str = "mean-field theory here has no rule for it", cure: str = CURE) -> Unsupported:
        """The error that names the layer, the cause and the cure."""
        if self.what is not None:
            return refusal(self.name, f"{'an' if self.kind[0] in 'AEIOU' else 'a'} {self.kind}", why, cure)
        where = f"layer {self.inside!r}" if self.inside else "the network"
        return Unsupported(f"{self.kind}() in the forward pass of {where}: {why}. {cure}")

    @property
    def sizes(self) -> tuple[tuple[int, int], tuple[int, int]]:
        """Height and width of the feature map before and after."""
        return two(self.shape[2:]), two(self.output[2:])


def refusal(name: str, what: str, why: str, cure: str = CURE) -> Unsupported:
    """The error for a layer that mean-field theory cannot read."""
    return Unsupported(f"layer {name!r} is {what}: {why}. {cure}")


@dataclass(frozen=True)
class Signal:
    """A value in the forward pass that depends on the network's input.

    Attributes:
        stages: What it has gone through.
        size: Height and width of a feature map; None for a vector. A sequence is a map of height 1.
        units: How the units of a layer are distributed: "gaussian" with mean 0, as after independent weights;
            "activated", as after an activation; "other", as the input, or a sum of unlike parts.
    """

    stages: tuple[Stage, ...] = ()
    size: tuple[int, int] | None = None
    units: Units = "other"

    def then(self, stage: Stage, size: tuple[int, int] | None, units: Units | None = None) -> Signal:
        """After one more stage; what is linear and has no weights leaves the units as they are."""
        return Signal((*self.stages, stage), size, units or self.units)

    def activated(self, name: str, activation: Activation) -> Signal:
        """After an activation, which joins a norm directly before it: their derivatives are not independent."""
        last = self.stages[-1]
        if isinstance(last, Nonlinearity) and last.norm != "none" and last.activation == LINEAR:
            return replace(self, stages=(*self.stages[:-1], replace(last, activation=activation)), units="activated")
        # the mean of a sum is known only when all stages are: `with_means` fills it in
        stage = Nonlinearity(name, activation, mean=float64(0.0) if self.units == "other" else None)
        return self.then(stage, self.size, "activated")

    def plus(self, other: Signal, step: Step) -> Signal:
        """The sum of two paths from where they parted."""
        parted = next(
            (k for k, (a, b) in enumerate(zip(self.stages, other.stages, strict=False)) if a is not b),
            min(len(self.stages), len(other.stages)),
        )
        paths = [(path, path.stages[parted:]) for path in (self, other)]
        paths.sort(key=lambda path: path[0].units != "gaussian" or not _has_weights(path[1]))
        (first, branch), (second, shortcut) = paths
        if _names(branch) & _names(shortcut):
            raise step.refused("its two parts use the same layer")
        if first.units != "gaussian" or not _has_weights(branch):
            raise step.refused("neither of its parts ends in weights of its own, so they are correlated")
        units: Units = "gaussian" if second.units == "gaussian" else "other"
        return Signal((*self.stages[:parted], Residual(branch, shortcut)), self.size, units)


def _has_weights(stages: tuple[Stage, ...]) -> bool:
    return any(isinstance(stage, Affine) for stage in every(stages))


def _names(stages: tuple[Stage, ...]) -> set[str]:
    """Of the layers that may have parameters."""
    layers = (stage for stage in every(stages) if isinstance(stage, (Affine, Nonlinearity)))
    return {layer.name for layer in layers if isinstance(layer, Affine) or layer.norm != "none"}


Rule = Callable[[Step, Signal], Signal]

# positions, shapes and factors


def same(step: Step, x: Signal) -> Signal:
    """Nothing happens to the signal."""
    return x


def dropout(step: Step, x: Signal) -> Signal:
    """Off, as where λ_max is measured."""
    step.remarks.append("dropout is taken as off")
    return x


def reshape(step: Step, x: Signal) -> Signal:
    """A feature map becomes a vector; a vector stays one."""
    if x.size is None or step.output == step.shape:
        return x
    if len(step.output) == 2 and step.output[0] == step.shape[0]:
        return x.then(Flatten(), None)
    raise step.refused(f"it takes {tuple(step.shape)} to {tuple(step.output)}", "Flatten to (N, features).")


def adaptive_pool(step: Step, x: Signal) -> Signal:
    """The mean over all positions, or over windows of them."""
    (h, w), (new_h, new_w) = step.sizes
    if (new_h, new_w) == (1, 1):
        return x.then(GlobalPool(h * w), None)
    if h % new_h or w % new_w:
        raise step.refused(f"its windows differ: {h}×{w} positions become {new_h}×{new_w}")
    window = (h // new_h, w // new_w)
    return x.then(AveragePool(Window((h, w), window, window)), (new_h, new_w))


def mean(step: Step, x: Signal) -> Signal:
    """x.mean((2, 3)): over all positions."""
    dims, rank = step.argument(0, "dim", None), len(step.shape)
    axes = {axis % rank for axis in ([dims] if isinstance(dims, int) else dims or [])}
    if x.size is None or axes != set(range(2, rank)):
        raise step.refused("it averages over something other than the positions of a feature map")
    return x.then(GlobalPool(math.prod(x.size)), None)


def average_pool(step: Step, x: Signal) -> Signal:
    """The mean over windows."""
    pool = step.what
    if pool.ceil_mode or not pool.count_include_pad or getattr(pool, "divisor_override", None):
        raise step.refused("windows at the border have another divisor", "Leave its options at their defaults.")
    before, after = step.sizes
    window = Window(before, two(pool.kernel_size), two(pool.stride), two(pool.padding, 0))
    return x.then(AveragePool(window), after)


def strided(step: Step, x: Signal) -> Signal:
    """x[:, :, ::s, ::s]: every s-th position of all channels."""
    index = step.arguments[0] if isinstance(step.arguments[0], tuple) else (step.arguments[0],)
    if any(not isinstance(part, slice) or part.start is not None or part.stop is not None for part in index):
        raise step.refused("it takes a part of the signal")
    steps = [part.step or 1 for part in index] + [1] * (len(step.shape) - len(index))
    if steps[:2] != [1, 1]:
        raise step.refused("it takes a part of the examples or channels")
    if set(steps) == {1}:
        return x
    before, after = step.sizes
    return x.then(AveragePool(Window(before, (1, 1), two(steps[2:]))), after)


def pad(step: Step, x: Signal) -> Signal:
    """Channels of zeros appended: mean squares over channels are smaller by the share of the others."""
    pads = tuple(step.argument(0, "pad", ()))
    if not any(pads):
        return x
    if any(pads[: 2 * (len(step.shape) - 2)]) or step.options.get("value"):
        raise step.refused("it pads with something other than channels of zeros")
    share = step.shape[1] / step.output[1]
    step.remarks.append("appended channels of zeros count as a part of all channels alike")
    return x.then(Scaling(float64(share), share), x.size)


def scaled(step: Step, x: Signal) -> Signal:
    """The signal times a number, or divided by one."""
    factor = step.argument(0, "other", None)
    if not isinstance(factor, (int, float)):
        raise step.refused("it multiplies signals, or by a parameter")
    factor = 1 / factor if step.kind == "div" else float(factor)
    return x.then(Scaling(float64(factor**2), factor), x.size)
