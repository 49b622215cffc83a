"""`History`: every number of a run as series over steps, which is what rules of a run judge and what pages draw."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from wellcond.results import Row


@dataclass(frozen=True)
class Series:
    """One quantity of one layer over the steps of a run.

    Attributes:
        steps: (n,), ascending.
        values: (n,), which may be NaN or infinite.
    """

    steps: NDArray[np.int64]
    values: NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.steps)

    def since(self, step: int) -> Series:
        """The part from this step on."""
        start = int(np.searchsorted(self.steps, step))
        return Series(self.steps[start:], self.values[start:])


EMPTY = Series(np.empty(0, np.int64), np.empty(0))


@dataclass
class _Growing:
    """Two arrays with room at their end, so that appending takes constant time."""

    steps: NDArray[np.int64] = field(default_factory=lambda: np.empty(16, np.int64))
    values: NDArray[np.float64] = field(default_factory=lambda: np.empty(16))
    length: int = 0

    def append(self, step: int, value: float) -> None:
        if self.length == len(self.steps):
            self.steps = np.concatenate((self.steps, np.empty_like(self.steps)))
            self.values = np.concatenate((self.values, np.empty_like(self.values)))
        self.steps[self.length], self.values[self.length] = step, value
        self.length += 1

    def series(self) -> Series:
        return Series(self.steps[: self.length], self.values[: self.length])


class History:
    """Series by quantity and layer; layers are in the order in which they first came.

    Example:
        >>> history = History([Row(1, "", "training_loss", 2.3, ""), Row(2, "", "training_loss", 2.1, "")])
        >>> history.series("training_loss").values.tolist()
        [2.3, 2.1]
    """

    def __init__(self, rows: Iterable[Row] = ()) -> None:
        self._growing: dict[str, dict[str, _Growing]] = {}
        self.add(rows)

    def add(self, rows: Iterable[Row]) -> None:
        """Append rows of later steps; rows without a step are not part of the history."""
        for step, layer, quantity, value, _unit in rows:
            if step is not None:
                self._growing.setdefault(quantity, {}).setdefault(layer, _Growing()).append(step, value)

    def series(self, quantity: str, layer: str = "") -> Series:
        """One quantity of one layer, "" for the whole network; empty if it was never measured."""
        growing = self._growing.get(quantity, {}).get(layer)
        return EMPTY if growing is None else growing.series()

    def layers(self, quantity: str) -> list[str]:
        """The layers in which a quantity was measured, without the whole network."""
        return [layer for layer in self._growing.get(quantity, {}) if layer]

    def quantities(self) -> Iterator[str]:
        """The names of all quantities."""
        yield from self._growing
