"""The rows of a run directory as columns, also while a process writes to it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from wellcond.recording.directory.segments import LISTINGS, NAME, TEXTS, covers, listed, read_table
from wellcond.recording.history import EMPTY, Columns, History, Series

if TYPE_CHECKING:
    import pyarrow


@dataclass(frozen=True)
class Recorded:
    """What the files of rows hold.

    Attributes:
        history: The rows.
        times: Seconds since 1970 at which rows were written, by the first of their steps.
        notes: What could not be read, and why.
    """

    history: History
    times: Series
    notes: tuple[str, ...]


def read_rows(folder: Path, reader: Reader | None = None) -> Recorded:
    """Read all files of rows; those that are damaged, or are not ours, are left out and named.

    Args:
        folder: The folder of these files.
        reader: One that has read some of them before, which it does not read again.
    """
    reader = reader or Reader()
    parts, notes = _parts(folder, reader)
    foreign = sorted(path.name for path in folder.glob("*.parquet") if not NAME.fullmatch(path.name))
    notes += [f"{name} was left out: it is no file of this run." for name in foreign]
    history = History.of_columns([part.columns for part in parts], list(reader.series), reader.units)
    times = [part.times for part in parts] or [EMPTY]
    return Recorded(
        history,
        Series(np.concatenate([each.steps for each in times]), np.concatenate([each.values for each in times])),
        tuple(notes),
    )


def _parts(folder: Path, reader: Reader) -> tuple[list[Part], list[str]]:
    """The rows of every file that no other one covers. A file that was merged meanwhile is read as what it became."""
    damaged: dict[Path, str] = {}
    current: list[Path] = []
    for _ in range(LISTINGS):
        current.clear()
        try:
            for path in listed(folder):
                if path in damaged or (current and covers(current[-1], path)):
                    continue
                try:
                    if path not in reader.parts:
                        reader.parts[path] = reader.read(path)
                    current.append(path)
                except FileNotFoundError:
                    raise
                except (OSError, ValueError) as error:
                    damaged[path] = f"{path.name} was left out: it is damaged ({str(error).splitlines()[0]})."
        except FileNotFoundError:
            continue
        break
    reader.parts = {path: reader.parts[path] for path in current}
    return list(reader.parts.values()), list(damaged.values())


class Part(NamedTuple):
    """The rows of one file, and the times at which they were written, by the first of their steps."""

    columns: Columns
    times: Series


class Reader:
    """Reads files, and numbers the series in them in the order in which they first come.

    Attributes:
        parts: What was read of each file.
        series: Number of each quantity and layer.
        units: Unit of each quantity.
    """

    def __init__(self) -> None:
        self.parts: dict[Path, Part] = {}
        self.series: dict[tuple[str, str], int] = {}
        self.units: dict[str, str] = {}

    def read(self, path: Path) -> Part:
        """The rows of one file."""
        table = read_table(path, dictionaries=TEXTS).unify_dictionaries().combine_chunks()
        quantities, layers, units = (_indices(table, name) for name in ("quantity", "layer", "unit"))
        steps, values, times = (table[name].to_numpy() for name in ("step", "value", "time"))
        changes = np.flatnonzero(np.diff(times, prepend=np.nan))
        first = _first_of_each(quantities[0], len(quantities[1]))
        self.units |= {quantities[1][i]: units[1][units[0][row]] for i, row in first.items()}
        return Part(Columns(steps, values, self._numbered(quantities, layers)), Series(steps[changes], times[changes]))

    def _numbered(self, quantities: Coded, layers: Coded) -> NDArray[np.int32]:
        """The number of each row's series."""
        local = quantities[0] * len(layers[1]) + layers[0]
        numbers = np.zeros(len(quantities[1]) * len(layers[1]), np.int32)
        for code in np.flatnonzero(np.bincount(local, minlength=len(numbers))).tolist():
            quantity, layer = divmod(code, len(layers[1]))
            numbers[code] = self.series.setdefault((quantities[1][quantity], layers[1][layer]), len(self.series))
        numbered: NDArray[np.int32] = numbers[local]
        return numbered


class EndsReader(Reader):
    """Of the whole network it reads everything, and of layers only the last number of each series in a file."""

    def read(self, path: Path) -> Part:
        (steps, values, series), times = super().read(path)
        stays = np.array([not layer for _, layer in self.series], bool)[series]
        last = np.full(len(self.series), -1)
        last[series] = np.arange(len(series))  # of equal places the last one counts
        stays[last[last >= 0]] = True
        return Part(Columns(steps[stays], values[stays], series[stays]), times)


Coded = tuple[NDArray[np.int32], list[str]]
"""A column of names: the index of each, and the names."""


def _indices(table: pyarrow.Table, name: str) -> Coded:
    column = table[name].combine_chunks()
    return column.indices.to_numpy(), column.dictionary.to_pylist()


def _first_of_each(codes: NDArray[np.int32], count: int) -> dict[int, int]:
    """The first row that has each of the codes."""
    first = np.full(count, -1)
    first[codes[::-1]] = np.arange(len(codes))[::-1]
    return {code: row for code, row in enumerate(first.tolist()) if row >= 0}
