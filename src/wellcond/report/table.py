"""Rows as people read them: numbers of the whole network, and a table with one line per layer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from wellcond.results import Row, number, text_table
from wellcond.results.quantities import (
    DYING,
    FULL,
    GRADIENT,
    GRADIENT_NORM,
    INPUT,
    UNITS,
    WEIGHT_NORM,
    MatrixQuantities,
)
from wellcond.results.text import shortened

Line = Mapping[str, float]
"""The quantities of one layer."""
MATRICES = {"Σx": INPUT, "Σ∇h": GRADIENT}
"""The names of the quantities of each matrix, by its symbol."""


@dataclass(frozen=True)
class Pivot:
    """Rows by layer and quantity; layers in the order in which they first appear.

    Attributes:
        network: Quantity → value, of the whole network.
        layers: Layer → quantity → value.

    Example:
        >>> rows = [Row(None, "", "loss", 2.0, ""), Row(None, "fc1", "dying", 3.0, "units")]
        >>> pivot = Pivot.of(rows)
        >>> pivot.network["loss"], pivot.column("dying")
        (2.0, {'fc1': 3.0})
    """

    network: dict[str, float]
    layers: dict[str, dict[str, float]]

    @classmethod
    def of(cls, rows: Iterable[Row]) -> Pivot:
        """The rows arranged; those with a training step belong to a curve and are left out."""
        network: dict[str, float] = {}
        layers: dict[str, dict[str, float]] = {}
        for row in rows:
            if row.step is None:
                (layers.setdefault(row.layer, {}) if row.layer else network)[row.quantity] = row.value
        return cls(network, layers)

    def column(self, quantity: str) -> dict[str, float]:
        """One quantity by layer, of the layers that have it."""
        return {name: line[quantity] for name, line in self.layers.items() if quantity in line}


@dataclass(frozen=True)
class Column:
    """A column of the table of layers: which quantity, how it is written, and which end of it is bad.

    Attributes:
        title: The heading.
        quantity: What is shown.
        meaning: The heading in words.
        maximum: The quantity that is its maximum, written behind a slash.
        worst: The bad end.

    Example:
        >>> Column("rank", "rank", "", maximum="dimension").text({"rank": 3.0, "dimension": 8.0})
        '3/8'
    """

    title: str
    quantity: str
    meaning: str
    maximum: str = ""
    worst: Literal["highest", "lowest", ""] = ""

    def text(self, line: Line) -> str:
        """The cell of a layer."""
        if self.quantity not in line:
            return "–"
        if self.maximum:
            return f"{line[self.quantity]:.0f}/{line[self.maximum]:.0f}"
        return number(line[self.quantity])

    def badness(self, line: Line) -> float:
        """A number to compare layers by, larger is worse; −inf where there is nothing to compare."""
        if not self.worst or self.quantity not in line:
            return float("-inf")
        share = line[self.quantity] / max(line[self.maximum], 1.0) if self.maximum else line[self.quantity]
        return share if self.worst == "highest" else -share

    def worst_layers(self, layers: Mapping[str, Line]) -> set[str]:
        """The layers at the bad end; none where all are alike."""
        badness = {name: self.badness(line) for name, line in layers.items()}
        known = [value for value in badness.values() if value > float("-inf")]
        if not known or min(known) == max(known):
            return set()
        return {name for name, value in badness.items() if value == max(known)}


def _lambda_max(symbol: str, names: MatrixQuantities) -> Column:
    what = "what the layer receives" if names is INPUT else "the gradient at the layer's output"
    return Column(f"λmax {symbol}", names.lambda_max, f"magnitude of {what}")


def _kappa(symbol: str, names: MatrixQuantities, share: float) -> Column:
    meaning = "largest eigenvalue over the median one" if share == 0.5 else f"λmax over that at {share:.0%}"
    return Column(f"κ{100 * share:.0f} {symbol}", names.kappa[share], meaning, worst="highest")


def _rank(symbol: str, names: MatrixQuantities, title: str) -> Column:
    return Column(title, names.rank, f"numerical rank of {symbol}", maximum=names.dimension, worst="lowest")


_UNITS = (
    Column("dead", DYING, "ReLUs that are 0 on every example", maximum=UNITS, worst="highest"),
    Column("full", FULL, "ReLUs that are positive on every example", maximum=UNITS, worst="highest"),
)

COLUMNS = (
    *(
        column
        for symbol, names in MATRICES.items()
        for column in (_lambda_max(symbol, names), _kappa(symbol, names, 0.5), _rank(symbol, names, "rank"))
    ),
    *_UNITS,
)
"""What fits a terminal."""

ALL_COLUMNS = (
    *(
        column
        for symbol, names in MATRICES.items()
        for column in (
            _lambda_max(symbol, names),
            *(_kappa(symbol, names, share) for share in names.kappa),
            _rank(symbol, names, f"rank {symbol}"),
        )
    ),
    *_UNITS,
    Column("‖θ‖", WEIGHT_NORM, "norm of the layer's parameters"),
    Column("‖∂L/∂θ‖", GRADIENT_NORM, "norm of the loss's gradient in them"),
)
"""What a page shows."""


def shown_columns(pivot: Pivot) -> tuple[list[Column], dict[str, dict[str, float]]]:
    """The columns of `COLUMNS` that were measured, and the layers that have any of them."""
    columns = [c for c in COLUMNS if pivot.column(c.quantity)]
    return columns, {name: line for name, line in pivot.layers.items() if any(c.quantity in line for c in columns)}


def layer_text(rows: Iterable[Row]) -> str:
    """The table of layers as plain text; empty where no layer was measured."""
    columns, layers = shown_columns(Pivot.of(rows))
    body = [[shortened(name), *(c.text(line) for c in columns)] for name, line in layers.items()]
    return text_table(["layer", *(c.title for c in columns)], body) if body else ""
