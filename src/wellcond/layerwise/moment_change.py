"""How far the first two moments of layers' outputs have moved between two steps of a training."""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor

from wellcond.results import ByLayer, Row, number, text_table


@dataclass(frozen=True)
class MomentChange:
    """Of one layer: mean ‖μ − μ'‖, variance ‖σ² − σ'²‖ over its units, and both relative to ‖μ'‖ and ‖σ'²‖ before.

    A relative change from zero is nan.
    """

    mean: float
    variance: float
    relative_mean: float
    relative_variance: float

    @staticmethod
    def between(before: tuple[Tensor, Tensor], after: tuple[Tensor, Tensor]) -> MomentChange:
        """Of (mean, variance), each (units,)."""
        absolute = [float((new - old).norm()) for old, new in zip(before, after, strict=True)]
        sizes = [float(old.norm()) for old in before]
        relative = [change / size if size else math.nan for change, size in zip(absolute, sizes, strict=True)]
        return MomentChange(*absolute, *relative)


@dataclass(frozen=True)
class MomentChanges(ByLayer[MomentChange]):
    """One entry a layer."""

    layers: dict[str, MomentChange]

    def rows(self, step: int | None = None) -> list[Row]:
        """Four rows a layer. step: the training step of the later of the two measurements."""
        out = []
        for name, change in self.layers.items():
            named = {
                "mean_change": change.mean,
                "variance_change": change.variance,
                "relative_mean_change": change.relative_mean,
                "relative_variance_change": change.relative_variance,
            }
            out += [Row(step, name, quantity, value, "") for quantity, value in named.items()]
        return out

    def __str__(self) -> str:
        header = ["layer", "‖Δμ‖", "‖Δσ²‖", "‖Δμ‖/‖μ‖", "‖Δσ²‖/‖σ²‖"]
        body = [
            [name or "(model)", *map(number, (c.mean, c.variance, c.relative_mean, c.relative_variance))]
            for name, c in self.layers.items()
        ]
        return text_table(header, body)
