"""The evidence of a finding as small plots: one quantity by layer or over training, its limits, the layer to blame."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from wellcond.diagnosis.finding import Finding
from wellcond.results import Row, number
from wellcond.results.quantities import (
    DEAD_SHARE,
    DYING,
    FULL,
    FULL_SHARE,
    GRADIENT,
    GRADIENT_NORM,
    INPUT,
    SATURATED_SHARE,
    SENSITIVITY,
    SIGNAL_RMS,
    TRAINED_LR,
    TRAINING_LOSS,
    VARIATION,
    WEIGHT_NORM,
)
from wellcond.results.text import named

TITLES = {
    INPUT.lambda_max: "λmax of Σx",
    INPUT.kappa[0.5]: "κ50 of Σx",
    INPUT.rank: "rank of Σx",
    GRADIENT.lambda_max: "λmax of Σ∇h",
    GRADIENT.kappa[0.5]: "κ50 of Σ∇h",
    GRADIENT.rank: "rank of Σ∇h",
    GRADIENT_NORM: "‖∂L/∂θ‖",
    WEIGHT_NORM: "‖θ‖",
    DYING: "dead units",
    FULL: "always-on units",
    TRAINING_LOSS: "loss",
    SIGNAL_RMS: "RMS of outputs",
    SENSITIVITY: "‖∂ℓ/∂h‖·‖h‖",
    VARIATION: "variation over examples",
    DEAD_SHARE: "share of dead units",
    FULL_SHARE: "share of always-on units",
    SATURATED_SHARE: "share of saturated values",
}
"""How some quantities are written; the others by their names."""
LIMIT_WORDS = ("threshold", "limit", "healthy", "at most", "at least", "expected")
"""What marks a number of the evidence as one to compare with."""
LOG_FROM = 30.0
"""The ratio of the largest to the smallest value from which on a scale is logarithmic."""
EMPTY = 0.06
"""The height of the smallest value, so that it can be seen."""
BLOCKS = "▁▂▃▄▅▆▇█"
MOST_BLOCKS = 48
"""Characters of a sparkline."""


@dataclass(frozen=True)
class Strip:
    """One quantity, in the order of the layers or of the training steps.

    Attributes:
        title: What it is.
        labels: The layers, or the steps.
        values: As many numbers.
        marked: Which of them belong to the layer to blame.
        limits: Numbers to compare with, by what they are.
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
        """Whether its heights are those of logarithms."""
        finite = self._finite()
        return bool(finite) and min(finite) >= 0 and max(finite) > LOG_FROM * min(v for v in [*finite, 1e308] if v > 0)

    def height(self, value: float) -> float:
        """Where a value lies, from 0 to 1; what is infinite or NaN is at the top, and zero below everything."""
        if not math.isfinite(value):
            return 1.0
        finite = self._finite()
        if self.is_log:
            if value <= 0:
                return 0.0
            finite, value = [math.log(v) for v in finite if v > 0], math.log(value)
        low, high = min(finite), max(finite)
        if not self.is_log and low >= 0:
            low = 0.0  # a bar is as long as its value
        share = (value - low) / (high - low) if high > low else 1.0
        return EMPTY + (1 - EMPTY) * min(max(share, 0.0), 1.0)

    def _finite(self) -> list[float]:
        """All numbers that set the scale."""
        numbers = [*self.values, *(value for _, value in self.limits)]
        return [value for value in numbers if math.isfinite(value)]

    def sparkline(self) -> list[tuple[str, bool]]:
        """One character per value and whether it is marked; of many, those farthest from the middle."""
        heights = [self.height(value) for value in self.values]
        middle = sorted(heights)[len(heights) // 2]
        size = -(-len(heights) // MOST_BLOCKS)
        shown = []
        for begin in range(0, len(heights), size):
            group = range(begin, min(begin + size, len(heights)))
            blamed = [i for i in group if i in self.marked]
            of = max(blamed or group, key=lambda i: abs(heights[i] - middle))
            shown.append(("!" if math.isnan(self.values[of]) else _block(heights[of]), bool(blamed)))
        return shown

    def caption(self) -> str:
        """The blamed value, and the range of the others."""
        values = dict(enumerate(self.values))
        blamed = [f"{named(self.labels[i])}: {number(values.pop(i))}" for i in sorted(self.marked)][:3]
        if self.is_curve:
            return f"{number(self.values[0])} at first, {number(self.values[-1])} after {self.labels[-1]} steps"
        others = _range(values.values())
        limits = [f"{name} {number(value)}" for name, value in self.limits]
        return "; ".join(
            [", ".join(blamed)] * bool(blamed)
            + [f"{'others ' if blamed else ''}{others}"] * bool(others)
            + [", ".join(limits)] * bool(limits)
        )


def strips(finding: Finding) -> list[Strip]:
    """The plots of a finding: a quantity of two layers or more, or of two steps or more.

    Example:
        >>> rows = tuple(Row(None, f"fc{i}", GRADIENT_NORM, value, "") for i, value in enumerate([1e-6, 1e-3, 1.0]))
        >>> found = Finding("vanishing-gradient", "fc0", "severe", 0.9, "", {"healthy from": 1e-3}, "", "", rows)
        >>> strip, = strips(found)
        >>> "".join(block for block, _ in strip.sparkline()), strip.caption()
        ('▁▅█', 'fc0: 1e-06; others 0.001 to 1; healthy from 0.001')
    """
    quantities = dict.fromkeys(row.quantity for row in finding.rows if row.quantity != TRAINED_LR)
    limits = tuple((name, float(v)) for name, v in finding.evidence.items() if not isinstance(v, str) and _limits(name))
    drawn = []
    for quantity in quantities:
        title = TITLES.get(quantity, quantity.replace("_", " "))
        for rate, points in _runs(finding.rows, quantity):
            labels, values = tuple(str(step) for step, _ in points), tuple(value for _, value in points)
            drawn.append(Strip(f"{title} at lr {rate:g}" if rate else title, labels, values, is_curve=True))
        by_layer = {r.layer: r.value for r in finding.rows if r.quantity == quantity and r.step is None and r.layer}
        if len(by_layer) > 1:
            marked = frozenset(i for i, layer in enumerate(by_layer) if _is_of(layer, finding.layer))
            # a limit is that of the first quantity, which is the one that the rule judges
            drawn.append(Strip(title, tuple(by_layer), tuple(by_layer.values()), marked, () if drawn else limits))
    return drawn


def _runs(rows: Iterable[Row], quantity: str) -> list[tuple[float, list[tuple[int, float]]]]:
    """A quantity over training, one list of points per run: where steps begin again, another run does.

    Returns:
        The learning rate of each run of two points or more, 0 where it is not told, and its points.
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


def _limits(name: str) -> bool:
    return any(word in name.lower() for word in LIMIT_WORDS)


def _is_of(layer: str, blamed: str) -> bool:
    """Whether a layer is the one to blame, or lies in it, or holds the parameter that is."""
    return bool(blamed) and (layer == blamed or layer.startswith(f"{blamed}.") or blamed.startswith(f"{layer}."))


def _block(height: float) -> str:
    return BLOCKS[min(int(height * len(BLOCKS)), len(BLOCKS) - 1)]


def _range(values: Iterable[float]) -> str:
    finite: Sequence[float] = [value for value in values if not math.isnan(value)]
    if not finite:
        return ""
    low, high = number(min(finite)), number(max(finite))
    return low if low == high else f"{low} to {high}"
