"""Segments: the Parquet files of a run, each of which holds the rows of one append or of several that were merged."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wellcond.errors import MissingExtra
from wellcond.results import Row
from wellcond.results.files import write_atomically

if TYPE_CHECKING:
    import pyarrow

SEGMENT = re.compile(r"(\d{6,})-(\d{6,})\.parquet")
TYPES = {
    "time": "DOUBLE",
    "step": "INT64",
    "layer": "BYTE_ARRAY",
    "quantity": "BYTE_ARRAY",
    "value": "DOUBLE",
    "unit": "BYTE_ARRAY",
}
"""How Parquet stores each column."""
TEXTS = [name for name, kind in TYPES.items() if kind == "BYTE_ARRAY"]
THINNED = b"wellcond.thinned"
"""Metadata of a file: how many times every second step of its rows was dropped."""
SMALL = 2**12
"""Rows of a file that stays in memory too, for the merge that comes soon."""
LISTINGS = 20
"""Attempts to list a folder that a writer changes at the same time."""


@dataclass(frozen=True)
class Segment:
    """One file of rows.

    Attributes:
        path: The file.
        first: Number of the first append whose rows it holds.
        last: Number of the last one.
        rows: Number of rows.
        size: Bytes of the file.
        thinned: How many times every second step was dropped.
        last_step: Step of its last row.
        table: Its rows, if it is small and was written by this process.
    """

    path: Path
    first: int
    last: int
    rows: int
    size: int
    thinned: int
    last_step: int
    table: pyarrow.Table | None = field(default=None, repr=False, compare=False)

    def is_before(self, other: Segment) -> bool:
        """Whether the two can be merged: thinned alike, with nothing in between, not even a damaged file."""
        return self.thinned == other.thinned and self.last + 1 == other.first

    def read(self) -> pyarrow.Table:
        """Its rows, read on this thread alone: a training may be using the others."""
        return read_table(self.path, use_threads=False) if self.table is None else self.table


def arrow() -> tuple[Any, Any]:
    """`pyarrow` and `pyarrow.parquet`; raises `MissingExtra` without them."""
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as error:
        raise MissingExtra("pyarrow", "record") from error
    return pyarrow, parquet


def as_table(rows: Iterable[Row], time: float) -> pyarrow.Table:
    """Rows as a table, with names as indices into dictionaries; rows without a step are not part of a run."""
    pa = arrow()[0]
    columns = list(zip(*(row for row in rows if row.step is not None), strict=True)) or [()] * len(Row._fields)
    arrays = dict(zip(Row._fields, columns, strict=True)) | {"time": [time] * len(columns[0])}
    types = {"BYTE_ARRAY": pa.dictionary(pa.int32(), pa.string()), "INT64": pa.int64(), "DOUBLE": pa.float64()}
    return pa.table({name: pa.array(arrays[name], types[kind]) for name, kind in TYPES.items()})


def merged(tables: Sequence[pyarrow.Table]) -> pyarrow.Table:
    """The rows of several tables, with one dictionary of names for all."""
    return arrow()[0].concat_tables(tables).unify_dictionaries().combine_chunks()


def write_segment(
    folder: Path, first: int, last: int, table: pyarrow.Table, *, thinned: int = 0, is_durable: bool = False
) -> Segment:
    """Write one file; raises `OutputError` if it cannot be written, and then there is none.

    Args:
        folder: Where the files are.
        first: Number of the first append whose rows it holds.
        last: Number of the last one.
        table: The rows.
        thinned: How many times every second step was dropped.
        is_durable: Whether to wait until it is on the disk.

    Returns:
        The segment; a small one, which is merged soon, with its rows.
    """
    pa, parquet = arrow()
    content = pa.BufferOutputStream()
    parquet.write_table(
        table.replace_schema_metadata({THINNED: str(thinned)}),
        content,
        compression="zstd",
        use_dictionary=[name for name in TYPES if name != "value"],
        store_schema=False,  # names are strings to every reader, and no categories
        column_encoding={"value": "BYTE_STREAM_SPLIT"},  # many numbers are float32: half of their bytes are zeros
    )
    path = folder / f"{first:06d}-{last:06d}.parquet"
    buffer = content.getvalue()
    write_atomically(path, buffer, is_durable=is_durable)
    last_step = int(table["step"].to_numpy().max(initial=0))
    in_memory = table if table.num_rows < SMALL else None
    return Segment(path, first, last, table.num_rows, buffer.size, thinned, last_step, in_memory)


def read_table(path: Path, *, use_threads: bool = True) -> pyarrow.Table:
    """The rows of a file, with names as indices into dictionaries; raises `ValueError` or `OSError` if it has none."""
    pa, parquet = arrow()
    # opened once: a writer may put another file in its place
    with pa.OSFile(str(path)) as source:
        file = parquet.ParquetFile(source, metadata=_metadata(source), read_dictionary=TEXTS)
        return merged([file.read(use_threads=use_threads)])


def open_segment(path: Path) -> Segment:
    """What the end of a file says about it, without its rows; raises `ValueError` or `OSError` if it is damaged."""
    first, last = _numbers(path)
    metadata = _metadata(path)
    place = list(TYPES).index("step")
    steps = [metadata.row_group(i).column(place).statistics for i in range(metadata.num_row_groups)]
    thinned = int((metadata.metadata or {}).get(THINNED, 0))
    last_step = max((each.max for each in steps if each is not None and each.has_min_max), default=0)
    return Segment(path, first, last, metadata.num_rows, path.stat().st_size, thinned, last_step)


def _metadata(source: Any) -> Any:
    """The end of a file, which says what it holds; raises `ValueError` if this is not rows of a run."""
    metadata = arrow()[1].read_metadata(source)
    columns = [metadata.schema.column(i) for i in range(metadata.num_columns)]
    if {column.name: column.physical_type for column in columns} != TYPES:
        raise ValueError("its columns are not those of a run")
    return metadata


def listed(folder: Path) -> list[Path]:
    """The files of rows, oldest first, and a merged one before those it covers.

    A listing during which a writer merges files could miss both the old ones and the new one. Two that agree do not.
    """
    before = None
    for _ in range(LISTINGS):
        names = {entry.name for entry in folder.iterdir() if SEGMENT.fullmatch(entry.name)}
        if names == before:
            break
        before = names
    paths = [folder / name for name in names]
    return sorted(paths, key=lambda path: (_numbers(path)[0], -_numbers(path)[1]))


def covers(path: Path, other: Path) -> bool:
    """Whether a merged file holds the rows of another one."""
    first, last = _numbers(path)
    return first <= _numbers(other)[0] and _numbers(other)[1] <= last


def last_number(path: Path) -> int:
    """Number of the last append whose rows a file holds."""
    return _numbers(path)[1]


def until(table: pyarrow.Table, step: int) -> pyarrow.Table:
    """The rows up to a step."""
    return table.filter(arrow()[0].array(table["step"].to_numpy() <= step))


def _numbers(path: Path) -> tuple[int, int]:
    match = SEGMENT.fullmatch(path.name)
    if match is None:
        raise ValueError("its name is not that of a segment")
    return int(match[1]), int(match[2])
