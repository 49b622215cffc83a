"""Rows as people read them: numbers of the whole network, and a table with one line per layer."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, SupportsFloat

from wellcond.results import Row, number, text_table
from wellcond.results.quantities import (
    DYING,
    FULL,
    GRADIENT,
    GRADIENT_NORM,
    INPUT,
    KAPPA_BY_SHARE,
    UNITS,
    WEIGHT_NORM,
)
from wellcond.results.text import shortened

Line = Mapping[str, float]
"""The quantities of one layer."""
MATRICES = {"Σx": INPUT, "Σ∇h": GRADIENT}
"""The names of the quantities of each matrix, by its symbol."""
MOST_LINES = 24
"""Lines of a table of layers, or of a model tree, in a terminal: the table of ResNet-20 needs fewer."""
READING = (
    "Σx: second moment of what a layer receives; Σ∇h: that of the gradient at its output. λmax: how large it is. "
    "κ50: how uneven, the strongest direction over the median one (1 is even). rank: number of non-zero directions."
)
"""How to read the table of layers."""


@dataclass(frozen=True)
class Pivot:
    """Rows by layer and quantity; layers in the order in which they first appear.

    Attributes:
        network: Values of the whole network, by quantity.
        layers: Values of every layer, by layer and quantity.

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


def over_training(rows: Iterable[Row], quantity: str, layer: str = "") -> tuple[list[int], list[float]]:
    """Training steps, and the values of one quantity at them; NaN, a gap in a curve, where one is not finite.

    Example:
        >>> over_training([Row(2, "", "loss", 0.5, ""), Row(1, "", "loss", 1.0, "")], "loss")
        ([1, 2], [1.0, 0.5])
    """
    chosen = [row for row in rows if (row.layer, row.quantity) == (layer, quantity)]
    by_step = {row.step or 0: row.value for row in sorted(chosen, key=lambda row: row.step or 0)}
    return list(by_step), finite_or_gap(by_step.values())


def finite_or_gap(values: Iterable[SupportsFloat]) -> list[float]:
    """The values, with NaN in place of those that are not finite."""
    return [value if math.isfinite(value) else math.nan for value in map(float, values)]


@dataclass(frozen=True)
class Column:
    """A column of the table of layers: which quantity, how it is written, and which end of it is bad.

    Attributes:
        title: Heading.
        quantity: Quantity shown.
        meaning: Heading in words.
        maximum: Quantity that is its maximum, written after a slash.
        worst: Bad end.

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

    def worst_layers(self, layers: Mapping[str, Line]) -> set[str]:
        """The layers at the bad end; none if all are alike."""
        shares = {
            name: line[self.quantity] / (max(line[self.maximum], 1.0) if self.maximum else 1.0)
            for name, line in layers.items()
            if not math.isnan(line.get(self.quantity, math.nan))
        }
        if not self.worst or len(set(shares.values())) < 2:
            return set()
        extreme = max(shares.values()) if self.worst == "highest" else min(shares.values())
        return {name for name, share in shares.items() if share == extreme}


def _columns(shares: Sequence[float], rank: str) -> list[Column]:
    """The columns of both matrices and of the units; in the title of the rank, `{symbol}` becomes the matrix."""
    columns = []
    for symbol, names in MATRICES.items():
        what = "what the layer receives" if names is INPUT else "the gradient at the layer's output"
        columns.append(Column(f"λmax {symbol}", names.lambda_max, f"magnitude of {what}"))
        for share in shares:
            meaning = "largest eigenvalue over the median one" if share == 0.5 else f"λmax over that at {share:.0%}"
            columns.append(Column(f"κ{100 * share:.0f} {symbol}", names.kappa[share], meaning, worst="highest"))
        title, meaning = rank.format(symbol=symbol), f"numerical rank of {symbol}"
        columns.append(Column(title, names.rank, meaning, maximum=names.dimension, worst="lowest"))
    return [
        *columns,
        Column("dead", DYING, "ReLUs that are 0 on every example", maximum=UNITS, worst="highest"),
        Column("full", FULL, "ReLUs that are positive on every example", maximum=UNITS, worst="highest"),
    ]


COLUMNS = _columns([0.5], "rank")
"""Columns that fit a terminal."""
ALL_COLUMNS = [
    *_columns(list(KAPPA_BY_SHARE), "rank {symbol}"),
    Column("‖θ‖", WEIGHT_NORM, "norm of the layer's parameters"),
    Column("‖∂L/∂θ‖", GRADIENT_NORM, "norm of the loss's gradient in them"),
]
"""Columns of a page."""


def shown_columns(
    pivot: Pivot, columns: Sequence[Column] = COLUMNS
) -> tuple[list[Column], dict[str, dict[str, float]]]:
    """Those of the columns that were measured, and the layers that have any of them."""
    measured = [column for column in columns if pivot.column(column.quantity)]
    layers = {n: line for n, line in pivot.layers.items() if any(column.quantity in line for column in measured)}
    return measured, layers


def excerpt(columns: Sequence[Column], layers: Mapping[str, Line]) -> tuple[list[str], str]:
    """Which layers a table lists, and what it says of the others: of many, the extremes and some evenly between.

    Example:
        >>> layers = {f"fc{i}": {"dying": float(i == 50), "units": 8.0} for i in range(200)}
        >>> names, rest = excerpt([Column("dead", "dying", "", maximum="units", worst="highest")], layers)
        >>> names[:2], "fc50" in names, rest
        (['fc0', 'fc9'], True, '24 of 200 layers: the extremes of every column, and others evenly over the depth')
    """
    names = list(layers)
    if len(names) <= MOST_LINES:
        return names, ""
    evenly = MOST_LINES - len(columns) - 1
    chosen = {names[round(i * (len(names) - 1) / evenly)] for i in range(evenly + 1)}
    for column in columns:
        worst = column.worst_layers(layers)
        chosen |= {next(name for name in names if name in worst)} if worst else set()
    shown = [name for name in names if name in chosen]
    rest = f"{len(shown)} of {len(names):,} layers: the extremes of every column, and others evenly over the depth"
    return shown, rest


def layer_text(rows: Iterable[Row]) -> str:
    """The table of layers as plain text; empty if no layer was measured."""
    columns, layers = shown_columns(Pivot.of(rows))
    names, rest = excerpt(columns, layers)
    body = [[shortened(name), *(c.text(layers[name]) for c in columns)] for name in names]
    table = text_table(["layer", *(c.title for c in columns)], body) if body else ""
    return f"{table}\n{rest}; .rows() and the page have all" if rest else table
