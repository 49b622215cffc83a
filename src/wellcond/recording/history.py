"""`History`: every number of a run as series over steps, which is what rules of a run judge and what pages draw."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

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


THINNED_SHARE = 0.8
"""Share of the rows whose series are thinned, the longest first: a few rare numbers cost nothing."""
FIRST_NUMBERS = 16
"""First numbers of a series that are never thinned: rules compare with what it was at first."""

EMPTY = Series(np.empty(0, np.int64), np.empty(0))


@dataclass(slots=True)
class _Growing:
    """Two arrays with room at their end, and lists of what has come since they were last read."""

    steps: NDArray[np.int64] = field(default_factory=lambda: np.empty(16, np.int64))
    values: NDArray[np.float64] = field(default_factory=lambda: np.empty(16))
    length: int = 0
    new_steps: list[int] = field(default_factory=list)
    new_values: list[float] = field(default_factory=list)

    @classmethod
    def of(cls, steps: NDArray[np.int64], values: NDArray[np.float64]) -> _Growing:
        if np.any(steps[1:] <= steps[:-1]):  # a step came late, or again: of equal ones the last counts
            order = np.argsort(steps, kind="stable")
            order = order[np.append(np.diff(steps[order]) > 0, True)]
            steps, values = steps[order], values[order]
        return cls(steps, values, len(steps))

    def series(self) -> Series:
        if self.new_steps:
            start, self.length = self.length, self.length + len(self.new_steps)
            if self.length > len(self.steps):
                room = 2 * self.length - len(self.steps)
                self.steps = np.concatenate((self.steps, np.empty(room, np.int64)))
                self.values = np.concatenate((self.values, np.empty(room)))
            self.steps[start : self.length], self.values[start : self.length] = self.new_steps, self.new_values
            self.new_steps.clear()
            self.new_values.clear()
        return Series(self.steps[: self.length], self.values[: self.length])

    def thin(self) -> None:
        """Drop a third or more of the older three quarters, where they are densest; the first numbers stay.

        What stays is the first number of each 2, 4, 8, … steps: so the spacing is even, however often this is repeated.
        """
        steps, values = self.series().steps, self.series().values
        older = slice(FIRST_NUMBERS, len(steps) * 3 // 4)
        since = steps[older] - steps[older][:1]
        stays, width = np.ones(len(since), bool), 1
        while len(since) > 1 and 3 * stays.sum() > 2 * len(since):
            width *= 2
            stays = np.diff(since // width, prepend=-1) > 0
        every = np.ones(len(steps), bool)
        every[older] = stays
        self.steps, self.values = steps[every], values[every]
        self.length = len(self.steps)


class Columns(NamedTuple):
    """Rows as arrays.

    Attributes:
        steps: (n,).
        values: (n,).
        series: (n,), which series each row belongs to.
    """

    steps: NDArray[np.int64]
    values: NDArray[np.float64]
    series: NDArray[np.integer]


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
        cls, parts: Sequence[Columns], names: Sequence[tuple[str, str]], units: Mapping[str, str] | None = None
    ) -> History:
        """A history of millions of rows at once.

        Args:
            parts: The rows in the order in which they were recorded; parts that fit into a cache are sorted fastest.
            names: Quantity and layer of each series.
            units: Unit by quantity.

        Returns:
            The history. If a number was recorded twice at one step, the later one counts.

        Example:
            >>> part = Columns(np.array([1, 2]), np.array([2.3, 2.1]), np.array([0, 0]))
            >>> History.of_columns([part], [("training_loss", "")]).series("training_loss").values.tolist()
            [2.3, 2.1]
        """
        history = cls()
        history._units = dict(units or {})
        counts = np.zeros(len(names), np.int64)
        for part in parts:
            counts += np.bincount(part.series, minlength=len(names))
        ends = np.cumsum(counts)
        steps, values = np.empty(counts.sum(), np.int64), np.empty(counts.sum())
        free = ends - counts  # where the next row of each series goes
        for part in parts:
            order = _stable_order(part.series)
            series = part.series[order]
            lengths = np.bincount(series, minlength=len(names))
            places = np.arange(len(series)) + (free - np.cumsum(lengths) + lengths)[series]
            steps[places], values[places] = part.steps[order], part.values[order]
            free += lengths
        for (quantity, layer), start, end in zip(names, (ends - counts).tolist(), ends.tolist(), strict=True):
            if end > start:
                growing = _Growing.of(steps[start:end], values[start:end])
                history._growing.setdefault(quantity, {})[layer] = growing
        return history

    def add(self, rows: Iterable[Row]) -> None:
        """Append rows of later steps; rows without a step are not part of the history."""
        for step, layer, quantity, value, unit in rows:
            if step is None:
                continue
            try:
                growing = self._growing[quantity][layer]
            except KeyError:
                growing = self._growing.setdefault(quantity, {}).setdefault(layer, _Growing())
                self._units[quantity] = unit
            growing.new_steps.append(step)
            growing.new_values.append(value)

    def thin(self, most_rows: int) -> None:
        """If there are more rows, widen the spacing of the older part of the longest series, until they fit.

        Series that hold a fifth of the rows between them, the shortest ones, stay as they are.

        Args:
            most_rows: Bound on the number of rows.

        Example:
            >>> history = History(Row(step, "", "training_loss", 1.0, "") for step in range(1, 33))
            >>> history.thin(30)
            >>> history.series("training_loss").steps[16:].tolist()
            [17, 19, 21, 23, 25, 26, 27, 28, 29, 30, 31, 32]
        """
        before = 0
        while most_rows < (count := len(self)) != before:  # series of one or two numbers have none to drop
            before = count
            every = sorted((g for layers in self._growing.values() for g in layers.values()), key=lambda g: -g.length)
            rest = count
            for growing in every:
                if rest <= (1 - THINNED_SHARE) * count:
                    break
                rest -= growing.length
                growing.thin()

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


def _stable_order(codes: NDArray[np.integer]) -> NDArray[np.int64]:
    """`np.argsort(codes, kind="stable")` of numbers from 0, by sixteen bits at a time, which takes linear time."""
    order = np.argsort(codes.astype(np.uint16), kind="stable")
    for shift in range(16, int(codes.max(initial=0)).bit_length(), 16):
        digits = (codes >> shift).astype(np.uint16)
        order = order[np.argsort(digits[order], kind="stable")]
    return order
