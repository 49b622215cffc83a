"""Rows arranged the way people read them: numbers of the whole network, and a table with one line a layer."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from wellcond.results import Row


@dataclass(frozen=True)
class Pivot:
    """One moment's rows, by layer and quantity; layers in the order in which they first appear.

    >>> rows = [Row(None, "", "loss", 2.0, ""), Row(None, "fc1", "dying", 3.0, "units")]
    >>> pivot = Pivot.of(rows)
    >>> pivot.network["loss"], pivot.column("dying")
    (2.0, {'fc1': 3.0})
    """

    network: dict[str, float]
    layers: dict[str, dict[str, float]]

    @classmethod
    def of(cls, rows: Iterable[Row]) -> Pivot:
        """Rows with a training step belong to a curve, not to a table, and are left out."""
        network: dict[str, float] = {}
        layers: dict[str, dict[str, float]] = {}
        for row in rows:
            if row.step is None:
                (layers.setdefault(row.layer, {}) if row.layer else network)[row.quantity] = row.value
        return cls(network, layers)

    def column(self, quantity: str) -> dict[str, float]:
        """One quantity by layer, of the layers that have it."""
        return {name: line[quantity] for name, line in self.layers.items() if quantity in line}
