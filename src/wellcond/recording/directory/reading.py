"""The rows of a run directory as columns, also while a process writes to it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from wellcond.recording.directory.segments import LISTINGS, SEGMENT, covers, listed, read_table
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
    foreign = sorted(path.name for path in folder.glob("*.parquet") if not SEGMENT.fullmatch(path.name))
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
    current: dict[Version, Part] = {}
    for _ in range(LISTINGS):
        current.clear()
        path = folder
        try:
            for each in listed(folder):
                if each in damaged or (current and covers(path, each)):
                    continue
                try:
                    version = _version(each)
                    current[version] = reader.parts[version] = reader.parts.get(version) or reader.read(each)
                    path = each
                except FileNotFoundError:
                    raise
                except (OSError, ValueError) as error:
                    damaged[each] = f"{each.name} was left out: it is damaged ({str(error).splitlines()[0]})."
        except FileNotFoundError:
            continue
        break
    reader.parts = current
    return list(current.values()), list(damaged.values())


Version = tuple[Path, int, int]
"""A file as it was when it was read: thinning and resuming put another one in its place."""


def _version(path: Path) -> Version:
    status = path.stat()
    return path, status.st_ino, status.st_mtime_ns


class Part(NamedTuple):
    """The rows of one file, and the times at which they were written, by the first of their steps."""

    columns: Columns
    times: Series


class Reader:
    """Reads files, and numbers the series in them in the order in which they first come.

    Attributes:
        parts: What was read, by file.
        series: Number of each quantity and layer.
        units: Unit of each quantity.
    """

    def __init__(self) -> None:
        self.parts: dict[Version, Part] = {}
        self.series: dict[tuple[str, str], int] = {}
        self.units: dict[str, str] = {}
        self._numbers: dict[tuple[tuple[str, ...], tuple[str, ...]], NDArray[np.int32]] = {}

    def read(self, path: Path) -> Part:
        """The rows of one file."""
        table = read_table(path)
        quantities, layers, units = (_indices(table, name) for name in ("quantity", "layer", "unit"))
        steps, values, times = (table[name].to_numpy() for name in ("step", "value", "time"))
        changes = np.flatnonzero(np.diff(times, prepend=np.nan))
        first = _first_of_each(quantities[0], len(quantities[1]))
        self.units |= {quantities[1][i]: units[1][units[0][row]] for i, row in first.items()}
        return Part(Columns(steps, values, self._numbered(quantities, layers)), Series(steps[changes], times[changes]))

    def _numbered(self, quantities: Coded, layers: Coded) -> NDArray[np.int32]:
        """The number of each row's series."""
        local = quantities[0] * len(layers[1]) + layers[0]
        # most files of a run have the same names in the same order
        unknown = np.full(len(quantities[1]) * len(layers[1]), -1, np.int32)
        numbers = self._numbers.setdefault((tuple(quantities[1]), tuple(layers[1])), unknown)
        is_used = np.bincount(local, minlength=len(numbers)) > 0
        for code in np.flatnonzero(is_used & (numbers < 0)).tolist():
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
