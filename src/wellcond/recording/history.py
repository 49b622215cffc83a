"""`History`: every number of a run as series over steps, which is what rules of a run judge and what pages draw."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
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
        self._units: dict[str, str] = {}
        self.add(rows)

    @classmethod
    def of_columns(
        cls,
        steps: NDArray[np.int64],
        values: NDArray[np.float64],
        layers: tuple[NDArray[np.int32], Sequence[str]],
        quantities: tuple[NDArray[np.int32], Sequence[str]],
        units: Mapping[str, str] | None = None,
    ) -> History:
        """A history of millions of rows at once.

        Args:
            steps: (n,), in the order in which they were recorded.
            values: (n,).
            layers: Index of every row's layer, (n,), and the names of the layers.
            quantities: Index of every row's quantity, (n,), and the names of the quantities.
            units: Unit by quantity.

        Returns:
            The history. If a number was recorded twice at one step, the later one counts.

        Example:
            >>> steps, values, zeros = np.array([1, 2]), np.array([2.3, 2.1]), np.zeros(2, np.int32)
            >>> history = History.of_columns(steps, values, (zeros, [""]), (zeros, ["training_loss"]))
            >>> history.series("training_loss").values.tolist()
            [2.3, 2.1]
        """
        history = cls()
        history._units = dict(units or {})
        keys = quantities[0].astype(np.int64) * len(layers[1]) + layers[0]
        order = _stable_order(keys)
        keys, steps, values = keys[order], steps[order], values[order]
        is_same = keys[1:] == keys[:-1]
        if np.any(is_same & (steps[1:] <= steps[:-1])):  # a step came late, or again
            order = np.lexsort((steps, keys))  # stable: of equal ones the last is the later
            keys, steps, values = keys[order], steps[order], values[order]
            is_last = np.append((keys[1:] != keys[:-1]) | (steps[1:] != steps[:-1]), True)
            keys, steps, values = keys[is_last], steps[is_last], values[is_last]
            is_same = keys[1:] == keys[:-1]
        starts = np.flatnonzero(np.append(True, ~is_same)) if len(keys) else np.empty(0, np.int64)
        for start, end in zip(starts.tolist(), [*starts[1:].tolist(), len(keys)], strict=True) if len(keys) else ():
            quantity, layer = divmod(int(keys[start]), len(layers[1]))
            growing = _Growing(steps[start:end], values[start:end], end - start)
            history._growing.setdefault(quantities[1][quantity], {})[layers[1][layer]] = growing
        return history

    def add(self, rows: Iterable[Row]) -> None:
        """Append rows of later steps; rows without a step are not part of the history."""
        for step, layer, quantity, value, unit in rows:
            if step is not None:
                self._growing.setdefault(quantity, {}).setdefault(layer, _Growing()).append(step, value)
                self._units[quantity] = unit

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

    def unit(self, quantity: str) -> str:
        """The unit of a quantity's numbers, or ""."""
        return self._units.get(quantity, "")

    @property
    def last_step(self) -> int:
        """The last step of all series; 0 if there is none.

        Example:
            >>> History([Row(7, "", "lr", 0.1, "")]).last_step, History().last_step
            (7, 0)
        """
        return max((int(series.steps[-1]) for _, _, series in self), default=0)

    def __len__(self) -> int:
        """Number of rows."""
        return sum(len(series) for _, _, series in self)

    def __iter__(self) -> Iterator[tuple[str, str, Series]]:
        """Quantity, layer and series of each."""
        for quantity, layers in self._growing.items():
            for layer, growing in layers.items():
                yield quantity, layer, growing.series()

    def rows(self) -> list[Row]:
        """Every number, by step.

        Example:
            >>> History([Row(1, "", "training_loss", 2.3, ""), Row(1, "fc", "weight_norm", 4.0, "")]).rows()
            [Row(step=1, layer='', quantity='training_loss', value=2.3, unit=''),
             Row(step=1, layer='fc', quantity='weight_norm', value=4.0, unit='')]
        """
        rows = [
            Row(step, layer, quantity, value, self.unit(quantity))
            for quantity, layer, series in self
            for step, value in zip(series.steps.tolist(), series.values.tolist(), strict=True)
        ]
        return sorted(rows, key=lambda row: row.step or 0)


def _stable_order(keys: NDArray[np.int64]) -> NDArray[np.int64]:
    """`np.argsort(keys, kind="stable")` of integers from 0, by their halves: sixteen bits are sorted in linear time."""
    order = np.argsort(keys.astype(np.uint16), kind="stable")
    for shift in range(16, int(keys.max(initial=0)).bit_length(), 16):
        digits = (keys >> shift).astype(np.uint16)
        order = order[np.argsort(digits[order], kind="stable")]
    return order
