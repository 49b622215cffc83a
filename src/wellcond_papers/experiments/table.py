"""`Table`: the rows of many cells, with their settings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, overload

from wellcond.results import Row
from wellcond.results.quantities import DIVERGED_AT


@dataclass(frozen=True)
class Record:
    """One finished cell.

    Attributes:
        settings: Everything that determines its numbers.
        rows: The measured rows.
        seconds: The time it took.
    """

    settings: Mapping[str, Any]
    rows: Sequence[Row]
    seconds: float = 0.0

    @property
    def arm(self) -> str:
        """The network or method."""
        return str(self.settings["arm"])

    @property
    def has_diverged(self) -> bool:
        """Whether its training ended early."""
        return any(row.quantity == DIVERGED_AT for row in self.rows)

    def series(self, quantity: str, layer: str = "") -> dict[int, float]:
        """One quantity of one layer by step, in the order of the steps; rows without a step count as step 0."""
        chosen = {row.step or 0: row.value for row in self.rows if row.quantity == quantity and row.layer == layer}
        return dict(sorted(chosen.items()))

    def by_layer(self, quantity: str, step: int | None = None) -> dict[str, float]:
        """One quantity by layer, in the order of the rows, at one step; None for the last one of each layer."""
        return {
            row.layer: row.value for row in self.rows if row.quantity == quantity and (step is None or row.step == step)
        }

    def last(self, quantity: str, layer: str = "") -> float:
        """The last value; raises KeyError if there is none."""
        series = self.series(quantity, layer)
        if not series:
            raise KeyError(f"{self.settings.get('arm')}: no {quantity!r} of layer {layer!r}")
        return series[max(series)]


@dataclass(frozen=True)
class Table(Sequence[Record]):
    """Finished cells; the claims and the picture of an experiment are made from it.

    Example:
        >>> rows = [Row(0, "fc1", "kappa", 4.0, ""), Row(0, "fc2", "kappa", 2.0, "")]
        >>> table = Table([Record({"arm": "BN", "seed": 0}, rows), Record({"arm": "BN", "seed": 1}, rows)])
        >>> table.arm("BN").mean_by_layer("kappa")
        {'fc1': 4.0, 'fc2': 2.0}
    """

    records: Sequence[Record]

    @overload
    def __getitem__(self, index: int) -> Record: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Record]: ...
    def __getitem__(self, index: int | slice) -> Record | Sequence[Record]:
        return self.records[index]

    def __len__(self) -> int:
        return len(self.records)

    def __iter__(self) -> Iterator[Record]:
        return iter(self.records)

    @property
    def arms(self) -> list[str]:
        """The names of the arms, in their order."""
        return list(dict.fromkeys(record.arm for record in self))

    def where(self, **settings: Any) -> Table:
        """The cells with these settings."""
        required = settings.items()
        return Table([r for r in self if all(r.settings.get(name) == value for name, value in required)])

    def arm(self, name: str) -> Table:
        """The cells of one arm: its seeds."""
        return self.where(arm=name)

    def lasts(self, quantity: str, layer: str = "") -> list[float]:
        """The last value of every cell that has one."""
        all_series = (record.series(quantity, layer) for record in self)
        return [series[max(series)] for series in all_series if series]

    def mean_series(self, quantity: str, layer: str = "") -> dict[int, float]:
        """One quantity by step, the mean over the cells that have it there."""
        return _means(record.series(quantity, layer) for record in self)

    def mean_by_layer(self, quantity: str, step: int | None = None) -> dict[str, float]:
        """One quantity by layer, the mean over the cells."""
        return _means(record.by_layer(quantity, step) for record in self)

    def steps(self, quantity: str) -> list[int]:
        """The steps at which a quantity was measured in some cell."""
        return sorted({row.step or 0 for record in self for row in record.rows if row.quantity == quantity})


def _means(columns: Iterator[dict[Any, float]]) -> dict[Any, float]:
    gathered: dict[Any, list[float]] = {}
    for column in columns:
        for place, value in column.items():
            gathered.setdefault(place, []).append(value)
    return {place: fmean(values) for place, values in gathered.items()}
