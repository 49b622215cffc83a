"""Small plots of a finding: one quantity by layer or over training, with its limits and the layer to blame."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from wellcond.diagnosis.finding import Finding
from wellcond.report.bars import MOST_BLOCKS, block
from wellcond.report.figures.style import LOG_FROM
from wellcond.results import Row, number
from wellcond.results.quantities import TRAINED_LR, title_of
from wellcond.results.text import named

EMPTY = 0.06
"""Height of the smallest value, so that it can be seen."""


@dataclass(frozen=True)
class Strip:
    """One quantity, in the order of the layers or of the training steps.

    Attributes:
        title: Name of the quantity.
        labels: Layers, or steps.
        values: One number per label.
        marked: Places of the layer to blame.
        limits: Numbers to compare with, by name.
        is_curve: Whether it runs over training steps.
    """

    title: str
    labels: tuple[str, ...]
    values: tuple[float, ...]
    marked: frozenset[int] = frozenset()
    limits: tuple[tuple[str, float], ...] = ()
    is_curve: bool = False

    @property
    def is_log(self) -> bool:
        """Whether heights are on a logarithmic scale."""
        finite = self._finite()
        return bool(finite) and min(finite) >= 0 and max(finite) > LOG_FROM * min(v for v in [*finite, 1e308] if v > 0)

    def height(self, value: float) -> float:
        """The height of a value, from 0 to 1; infinity and NaN are at the top, and zero is below everything."""
        if not math.isfinite(value):
            return 1.0
        finite = self._finite()
        if self.is_log:
            if value <= 0:
                return 0.0
            finite, value = [math.log(v) for v in finite if v > 0], math.log(value)
        low, high = min(finite), max(finite)
        if not self.is_log and low >= 0:
            low = 0.0  # the length of a bar is proportional to its value
        share = (value - low) / (high - low) if high > low else 1.0
        return EMPTY + (1 - EMPTY) * min(max(share, 0.0), 1.0)

    def _finite(self) -> list[float]:
        """All numbers that set the scale."""
        numbers = [*self.values, *(value for _, value in self.limits)]
        return [value for value in numbers if math.isfinite(value)]

    def sparkline(self) -> list[tuple[str, bool]]:
        """One character per value and whether it is marked; of many values, those farthest from the middle."""
        heights = [self.height(value) for value in self.values]
        middle = sorted(heights)[len(heights) // 2]
        size = -(-len(heights) // MOST_BLOCKS)
        characters = []
        for begin in range(0, len(heights), size):
            group = range(begin, min(begin + size, len(heights)))
            blamed = [i for i in group if i in self.marked]
            farthest = max(blamed or group, key=lambda i: abs(heights[i] - middle))
            character = "!" if math.isnan(self.values[farthest]) else block(heights[farthest])
            characters.append((character, bool(blamed)))
        return characters

    def caption(self) -> str:
        """The values of the layer to blame, and the range of the others."""
        if self.is_curve:
            return f"{number(self.values[0])} at first, {number(self.values[-1])} after {self.labels[-1]} steps"
        values = dict(enumerate(self.values))
        blamed = ", ".join([f"{named(self.labels[i])}: {number(values.pop(i))}" for i in sorted(self.marked)][:3])
        others = _range(values.values())
        return "; ".join(part for part in (blamed, f"others {others}" if blamed and others else others) if part)


def strips(finding: Finding) -> list[Strip]:
    """The plots of a finding: one per quantity with several layers, or with several steps.

    Example:
        >>> rows = tuple(Row(None, f"fc{i}", "gradient_norm", value, "") for i, value in enumerate([1e-6, 1e-3, 1.0]))
        >>> finding = Finding(rule="vanishing-gradient", layer="fc0", severity="severe", summary="", rows=rows)
        >>> strip, = strips(finding)
        >>> "".join(character for character, _ in strip.sparkline()), strip.caption()
        ('▁▅█', 'fc0: 1e-06; others 0.001 to 1')
    """
    quantities = dict.fromkeys(row.quantity for row in finding.rows if row.quantity != TRAINED_LR)
    plots: list[Strip] = []
    for quantity in quantities:
        title = title_of(quantity)
        for rate, points in _runs(finding.rows, quantity):
            labels, values = tuple(str(step) for step, _ in points), tuple(value for _, value in points)
            plots.append(Strip(f"{title} at lr {rate:g}" if rate else title, labels, values, is_curve=True))
        by_layer = {r.layer: r.value for r in finding.rows if r.quantity == quantity and r.step is None and r.layer}
        if len(by_layer) > 1:
            marked = frozenset(i for i, layer in enumerate(by_layer) if _is_of(layer, finding.layer))
            # limits belong to the first quantity, which is the one that the rule judges
            limits = () if plots else tuple(finding.limits.items())
            plots.append(Strip(title, tuple(by_layer), tuple(by_layer.values()), marked, limits))
    return plots


def _runs(rows: Iterable[Row], quantity: str) -> list[tuple[float, list[tuple[int, float]]]]:
    """A quantity over training, one list of points per run: a new run begins where the steps start again.

    Returns:
        The learning rate of each run of two points or more, 0 if it is not known, and its points.
    """
    runs: list[tuple[float, list[tuple[int, float]]]] = []
    rate = 0.0
    for row in rows:
        if row.quantity == TRAINED_LR:
            rate = row.value
        elif row.quantity == quantity and row.step is not None and not row.layer:
            is_next = bool(runs) and row.step > runs[-1][1][-1][0]
            points = runs.pop()[1] if is_next else []
            runs.append((rate, [*points, (row.step, row.value)]))
    return [(rate, points) for rate, points in runs if len(points) > 1]


def _is_of(layer: str, blamed: str) -> bool:
    """Whether a layer is the one to blame, is inside it, or holds the parameter to blame."""
    return bool(blamed) and (layer == blamed or layer.startswith(f"{blamed}.") or blamed.startswith(f"{layer}."))


def _range(values: Iterable[float]) -> str:
    numbers: Sequence[float] = [value for value in values if not math.isnan(value)]
    if not numbers:
        return ""
    low, high = number(min(numbers)), number(max(numbers))
    return low if low == high else f"{low} to {high}"
