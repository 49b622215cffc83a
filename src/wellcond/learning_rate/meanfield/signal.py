"""What rules see while a network is read: the call at hand, and the signal that it changes.

The reader follows the recorded calls of a forward pass. Every value that depends on the input is a `Signal`: the stages
it has passed so far. A call that takes one is a `ReadCall`, and a rule turns both into the signal after the call:

    rule(call, x) = x.then(stage)        one more stage: a layer, a norm, a pooling
    x.plus(y)                            two paths that parted meet again: a residual stage
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch

from wellcond.errors import Unsupported
from wellcond.learning_rate.meanfield.feature_maps import two
from wellcond.learning_rate.meanfield.gaussian import Activation, PiecewiseLinear
from wellcond.learning_rate.meanfield.moments import float64
from wellcond.learning_rate.meanfield.stages import Affine, Nonlinearity, Residual, Stage, every
from wellcond.network.recording import Call, Value

Units = Literal["gaussian", "activated", "other"]
LINEAR = PiecewiseLinear(1.0)
SPELLINGS = {
    "iadd": "add", "imul": "mul", "multiply": "mul", "itruediv": "div", "truediv": "div", "true_divide": "div",
    "divide": "div",
}  # fmt: skip
CURE = "Take it out, or measure instead of predicting: wc.eigenvalues(wc.GGN(problem))."


@dataclass(frozen=True)
class ReadCall:
    """One call that changes the signal, as rules see it.

    Attributes:
        name: Name of the module; for a function, the name of the module it is called in, and its own.
        what: Module; None for a function.
        kind: Name of the module's type, or of the function under one spelling.
        inside: Name of the module whose forward pass makes the call.
        arguments: Positional arguments other than the signal.
        options: Named arguments.
        shape: Shape of the signal.
        output: Shape of the output; empty if the call raised.
        remarks: Differences between the theory and the network. Rules add to them.
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
    def of(cls, call: Call, signal: Value) -> ReadCall:
        """A call that takes the signal."""
        name, kind = call.name, type(call.module).__name__
        if call.module is None:
            name, kind = f"{call.inside}.{name}".lstrip("."), SPELLINGS.get(name, name)
        arguments = tuple(arg for arg in call.args if not (isinstance(arg, Value) and arg == signal))
        output = call.gives[0].shape if call.gives else torch.Size()
        return cls(name, call.module, kind, call.inside, arguments, call.kwargs, signal.shape, output)

    def argument(self, place: int, name: str, default: Any) -> Any:
        """An argument by its position after the signal or by its name."""
        return self.arguments[place] if place < len(self.arguments) else self.options.get(name, default)

    def refused(self, why: str = "mean-field theory here has no rule for it", cure: str = CURE) -> Unsupported:
        """The error that names the layer, the reason and what to do."""
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
        stages: Stages that it has passed.
        size: Height and width of a feature map; None for a vector. A sequence is a map of height 1.
        units: Distribution of a layer's units: "gaussian" with mean 0, as after independent weights; "activated", as
            after an activation; "other", as for the input, or a sum of unlike parts.
    """

    stages: tuple[Stage, ...] = ()
    size: tuple[int, int] | None = None
    units: Units = "other"

    def then(self, stage: Stage, size: tuple[int, int] | None, units: Units | None = None) -> Signal:
        """The signal after one more stage; linear stages without weights do not change the distribution."""
        return Signal((*self.stages, stage), size, units or self.units)

    def activated(self, name: str, activation: Activation) -> Signal:
        """The signal after an activation, which joins a norm directly before it: their slopes are not independent."""
        last = self.stages[-1]
        if isinstance(last, Nonlinearity) and last.norm != "none" and last.activation == LINEAR:
            return replace(self, stages=(*self.stages[:-1], replace(last, activation=activation)), units="activated")
        # the mean of a sum is known only when all stages are: `with_means` fills it in
        stage = Nonlinearity(name, activation, mean=float64(0.0) if self.units == "other" else None)
        return self.then(stage, self.size, "activated")

    def plus(self, other: Signal, call: ReadCall) -> Signal:
        """The sum of two paths from where they parted."""
        parted = next(
            (k for k, (a, b) in enumerate(zip(self.stages, other.stages, strict=False)) if a is not b),
            min(len(self.stages), len(other.stages)),
        )
        paths = [(path, path.stages[parted:]) for path in (self, other)]
        paths.sort(key=lambda path: path[0].units != "gaussian" or not _has_weights(path[1]))
        (first, branch), (second, shortcut) = paths
        if _names(branch) & _names(shortcut):
            raise call.refused("its two parts use the same layer")
        if first.units != "gaussian" or not _has_weights(branch):
            raise call.refused("neither of its parts ends in weights of its own, so they are correlated")
        units: Units = "gaussian" if second.units == "gaussian" else "other"
        return Signal((*self.stages[:parted], Residual(branch, shortcut)), self.size, units)


def _has_weights(stages: tuple[Stage, ...]) -> bool:
    return any(isinstance(stage, Affine) for stage in every(stages))


def _names(stages: tuple[Stage, ...]) -> set[str]:
    """Names of the layers that may have parameters."""
    layers = (stage for stage in every(stages) if isinstance(stage, (Affine, Nonlinearity)))
    return {layer.name for layer in layers if isinstance(layer, Affine) or layer.norm != "none"}


CallRule = Callable[[ReadCall, Signal], Signal]
"""(call, signal that it takes) → the signal that it gives."""
