"""What a network has done to its input so far: the stages that a value in its forward pass has gone through."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from wellcond.errors import WellcondError
from wellcond.meanfield.gaussian import Activation, PiecewiseLinear
from wellcond.meanfield.means import AboutMean
from wellcond.meanfield.stages import Affine, Nonlinearity, Residual, Stage

LINEAR = PiecewiseLinear(1.0)
Units = Literal["gaussian", "activated", "other"]
CURE = "Take it out, or measure instead of predicting: wc.eigenvalues(wc.GGN(problem))."


class NotUnderstood(WellcondError, ValueError):
    """Mean-field theory has no rule for a part of the network."""

    def __init__(self, name: str, what: str, why: str | None = None, cure: str | None = None) -> None:
        why = why or "mean-field theory here has no rule for it"
        super().__init__(f"layer {name!r} is {what}: {why}. {cure or CURE}")


@dataclass(frozen=True)
class Signal:
    """stages: those gone through. size: height and width of a feature map. units: how they are distributed in a layer.

    "gaussian": with mean 0, as behind independent weights. "activated": as behind an activation. "other": the input, or
    a sum of unlike parts.
    """

    stages: tuple[Stage, ...] = ()
    size: tuple[int, int] | None = None
    units: Units = "other"

    def affine(self, stage: Affine, size: tuple[int, int] | None = None) -> Signal:
        """Behind weights."""
        return Signal((*self.stages, stage), size, "gaussian")

    def moved(self, stage: Stage, size: tuple[int, int] | None) -> Signal:
        """Behind something linear without weights: a pooling, a factor."""
        return replace(self, stages=(*self.stages, stage), size=size)

    def normed(self, stage: Nonlinearity) -> Signal:
        """Behind a norm."""
        return replace(self, stages=(*self.stages, stage), units="gaussian" if self.units == "gaussian" else "other")

    def activated(self, name: str, activation: Activation) -> Signal:
        """Behind an activation, which joins a norm right before it: their derivatives are not independent."""
        last = self.stages[-1] if self.stages else None
        if isinstance(last, Nonlinearity) and last.norm != "none" and last.activation == LINEAR:
            return replace(self, stages=(*self.stages[:-1], replace(last, activation=activation)), units="activated")
        stage = Nonlinearity(name, activation)
        told = AboutMean.of(stage) if self.units == "other" else stage
        return replace(self, stages=(*self.stages, told), units="activated")

    def plus(self, other: Signal, name: str) -> Signal:
        """The sum of two ways from where they parted."""
        parted = next(
            (k for k, (a, b) in enumerate(zip(self.stages, other.stages, strict=False)) if a is not b),
            min(len(self.stages), len(other.stages)),
        )
        ways = [(way, way.stages[parted:]) for way in (self, other)]
        ways.sort(key=lambda way: way[0].units != "gaussian" or not any(map(_has_weights, way[1])))
        (first, branch), (second, shortcut) = ways
        if set(named(branch)) & set(named(shortcut)):
            raise NotUnderstood(name, "a sum", "its two parts use the same layer")
        if first.units != "gaussian" or not any(map(_has_weights, branch)):
            raise NotUnderstood(
                name, "a sum", "neither of its parts ends in weights of its own, so that they correlate"
            )
        units: Units = "gaussian" if second.units == "gaussian" else "other"
        return Signal((*self.stages[:parted], Residual(branch, shortcut)), self.size, units)


def named(stages: Sequence[Stage]) -> Iterator[str]:
    """Names of the layers that may have parameters, also inside of residual stages."""
    for stage in every(stages):
        if isinstance(stage, Affine) or (isinstance(stage, Nonlinearity) and stage.norm != "none"):
            yield stage.name


def every(stages: Sequence[Stage]) -> Iterator[Stage]:
    """All stages, the residual ones' own instead of them."""
    for stage in stages:
        if isinstance(stage, Residual):
            yield from every(stage.branch)
            yield from every(stage.shortcut)
        else:
            yield stage


def _has_weights(stage: Stage) -> bool:
    return any(isinstance(inner, Affine) for inner in every([stage]))
