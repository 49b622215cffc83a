"""How far the first two moments of layers' outputs have moved between two steps of a training."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import Tensor

from wellcond.results import ByLayer, Row, number, quantities, text_table
from wellcond.results.text import WHOLE_MODEL

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class MomentChange:
    """The change of one layer's moments, over its units; a relative change from zero is nan.

    Attributes:
        mean: ‖μ − μ'‖.
        variance: ‖σ² − σ'²‖.
        relative_mean: ‖μ − μ'‖/‖μ'‖, with μ' the earlier one.
        relative_variance: ‖σ² − σ'²‖/‖σ'²‖.
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
    """One entry per layer.

    Attributes:
        layers: The entries by name.
    """

    layers: dict[str, MomentChange]

    def rows(self, step: int | None = None) -> list[Row]:
        rows = []
        for name, change in self.layers.items():
            values = {
                quantities.MEAN_CHANGE: change.mean,
                quantities.VARIANCE_CHANGE: change.variance,
                quantities.RELATIVE_MEAN_CHANGE: change.relative_mean,
                quantities.RELATIVE_VARIANCE_CHANGE: change.relative_variance,
            }
            rows += [Row(step, name, quantity, value, "") for quantity, value in values.items()]
        return rows

    def figure(self) -> Figure:
        """The changes against the layer."""
        from wellcond.report.activations import moment_changes_figure

        return moment_changes_figure({"": self.rows()})

    def __str__(self) -> str:
        header = ["layer", "‖Δμ‖", "‖Δσ²‖", "‖Δμ‖/‖μ‖", "‖Δσ²‖/‖σ²‖"]
        body = [
            [name or WHOLE_MODEL, *map(number, (c.mean, c.variance, c.relative_mean, c.relative_variance))]
            for name, c in self.layers.items()
        ]
        return text_table(header, body)
