"""The rows of a run directory as columns, also while a process writes to it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import numpy as np
from numpy.typing import NDArray

from wellcond.recording.directory.segments import LISTINGS, NAME, covers, listed, read_table
from wellcond.recording.history import History, Series

if TYPE_CHECKING:
    import pyarrow

Number = TypeVar("Number", np.int64, np.float64)


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


Tables = dict[Path, "pyarrow.Table"]
"""Rows of files that were read."""


def read_rows(folder: Path, known: Tables | None = None, read: Callable[[Path], pyarrow.Table] = read_table) -> Recorded:
    """Read all files of rows; those that are damaged, or are not ours, are left out and named.

    Args:
        folder: The folder of these files.
        known: Files that were read before, which are not read again; afterwards those of this time.
        read: Reads a file.
    """
    tables, notes = _tables(folder, {} if known is None else known, read)
    foreign = [path.name for path in folder.glob("*.parquet") if not NAME.fullmatch(path.name)]
    notes += [f"{name} was left out: its name is not that of a segment." for name in sorted(foreign)]
    steps = _column(tables, "step", np.int64)
    quantities = _coded(tables, "quantity")
    history = History.of_columns(
        steps, _column(tables, "value", np.float64), _coded(tables, "layer"), quantities, _units(tables)
    )
    return Recorded(history, _times(steps, _column(tables, "time", np.float64)), tuple(notes))


def read_ends(path: Path) -> pyarrow.Table:
    """The rows of a file that belong to the whole network, and the last one of every other series."""
    table = read_table(path)
    layers, names = _coded([table], "layer")
    series = _coded([table], "quantity")[0].astype(np.int64) * len(names) + layers
    last = np.full(series.max(initial=0) + 1, -1)
    last[series] = np.arange(len(series))  # of equal places the last one counts
    stays = layers == (names.index("") if "" in names else -1)
    stays[last[last >= 0]] = True
    return table.filter(stays)


def _tables(
    folder: Path, tables: Tables, read: Callable[[Path], pyarrow.Table]
) -> tuple[list[pyarrow.Table], list[str]]:
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
                    tables[path] = tables[path] if path in tables else read(path)
                    current.append(path)
                except FileNotFoundError:
                    raise
                except (OSError, ValueError) as error:
                    damaged[path] = f"{path.name} was left out: it is damaged ({str(error).splitlines()[0]})."
        except FileNotFoundError:
            continue
        break
    for path in tables.keys() - set(current):
        del tables[path]
    return [tables[path] for path in current], list(damaged.values())


def _column(tables: list[pyarrow.Table], name: str, dtype: type[Number]) -> NDArray[Number]:
    return np.concatenate([np.empty(0, dtype), *(table[name].to_numpy() for table in tables)])


def _coded(tables: list[pyarrow.Table], name: str) -> tuple[NDArray[np.int32], list[str]]:
    """A column of names as indices, and the names in the order in which they first come."""
    indices: dict[str, int] = {}
    coded = [np.empty(0, np.int32)]
    for chunk in (chunk for table in tables for chunk in table[name].chunks):
        mapping = [indices.setdefault(text, len(indices)) for text in chunk.dictionary.to_pylist()]
        coded.append(np.array(mapping, np.int32)[chunk.indices.to_numpy(zero_copy_only=False)])
    return np.concatenate(coded), list(indices)


def _units(tables: list[pyarrow.Table]) -> dict[str, str]:
    """The unit of each quantity."""
    units: dict[str, str] = {}
    for table in tables:
        pairs = table.select(["quantity", "unit"]).group_by(["quantity", "unit"]).aggregate([])
        units |= dict(zip(pairs["quantity"].to_pylist(), pairs["unit"].to_pylist(), strict=True))
    return units


def _times(steps: NDArray[np.int64], times: NDArray[np.float64]) -> Series:
    """The rows at which the time changes: one of each append."""
    starts = np.flatnonzero(np.diff(times, prepend=np.nan) != 0)
    return Series(steps[starts], times[starts])
