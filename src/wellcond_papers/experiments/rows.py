"""The rows of a run as files: `rows.json`, which is small enough to be committed, and `table.parquet`."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from wellcond.errors import CorruptData, MissingExtra
from wellcond.results import Row
from wellcond.results.files import write_atomically
from wellcond.results.result import as_json
from wellcond_papers.experiments.catalog import experiment
from wellcond_papers.experiments.reproduction import CellResult, Failure, Reproduction
from wellcond_papers.experiments.table import Record, Table

DIGITS = 6
"""Significant digits of the values in `rows.json`."""


def write_rows(path: str | os.PathLike[str], run: Reproduction) -> Path:
    """Write all cells as JSON: shared settings once, one line per cell, values with 6 digits.

    The rows of a cell are its series: [layer, quantity, unit, steps, values].
    """
    cells = [record.settings for record in run.table] + [failure.settings for failure in run.failures]
    shared = {
        name: value for name, value in (cells[0] if cells else {}).items() if all(c.get(name) == value for c in cells)
    }
    head = {
        "experiment": run.experiment.name,
        "scale": run.scale,
        "made_with": dict(run.made_with),
        "settings": shared,
    }

    def own(settings: Mapping[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in settings.items() if name not in shared}

    lines = [
        {"settings": own(record.settings), "seconds": round(record.seconds, 1), "series": _series(record.rows)}
        for record in run.table
    ]
    failed = [{"settings": own(failure.settings), "error": failure.error} for failure in run.failures]
    parts = [f"{_text(name)}: {_text(value)}" for name, value in head.items()]
    for name, entries in (("cells", lines), ("failed", failed)):
        parts.append(f"{_text(name)}: [\n" + ",\n".join(map(_text, entries)) + "\n]")
    return write_atomically(Path(path), ("{\n" + ",\n".join(parts) + "\n}\n").encode())


def add_rows(path: Path, run: Reproduction) -> Path:
    """Add the cells of a run to those of a file, if there is one. What the file has finished stays as it is."""
    return write_rows(path, read_rows(path).joined(run) if path.exists() else run)


def read_rows(path: str | os.PathLike[str]) -> Reproduction:
    """Read what `write_rows` wrote.

    Raises:
        CorruptData: The file holds something else.
    """
    try:
        content = json.loads(Path(path).read_bytes())
        shared = content["settings"]
        records = [
            Record(shared | cell["settings"], list(_rows(cell["series"])), cell["seconds"]) for cell in content["cells"]
        ]
        failures = [Failure(shared | cell["settings"], cell["error"]) for cell in content["failed"]]
        name, scale, made_with = content["experiment"], content["scale"], content["made_with"]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CorruptData(f"{path} holds no rows of an experiment ({error}).") from error
    return Reproduction(experiment(name), scale, Table(records), failures, made_with)


def write_parquet(path: Path, result: CellResult) -> Path:
    """Write one table: the settings, step, layer, quantity, value, unit; and error, in the one row of a failed cell.

    Raises:
        MissingExtra: pyarrow is not installed.
    """
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as error:
        raise MissingExtra("pyarrow", "sweep") from error
    lines = list(result.lines())
    names = list(dict.fromkeys(name for line in lines for name in line))
    columns = {name: _column([line.get(name) for line in lines]) for name in names}
    content = io.BytesIO()
    parquet.write_table(pyarrow.table(columns), content)
    return write_atomically(path, content.getvalue())


def _column(values: Sequence[Any]) -> list[Any]:
    """Values of one type: numbers, else text; lists and mappings as JSON."""
    kinds = {type(value) for value in values if value is not None}
    if kinds <= {int, float} and float in kinds:
        return [None if value is None else float(value) for value in values]
    if len(kinds) <= 1 and kinds <= {bool, int, float, str}:
        return list(values)
    return [value if value is None or isinstance(value, str) else json.dumps(value) for value in values]


def _series(rows: Iterable[Row]) -> list[list[Any]]:
    columns: dict[tuple[str, str, str], tuple[list[int | None], list[Any]]] = {}
    for row in rows:
        steps, values = columns.setdefault((row.layer, row.quantity, row.unit), ([], []))
        steps.append(row.step)
        values.append(as_json(_rounded(row.value)))
    return [[*key, steps, values] for key, (steps, values) in columns.items()]


def _rows(series: Iterable[Sequence[Any]]) -> Iterator[Row]:
    for layer, quantity, unit, steps, values in series:
        for step, value in zip(steps, values, strict=True):
            yield Row(step, layer, quantity, float(value), unit)


def _rounded(value: float) -> float:
    return float(f"{value:.{DIGITS}g}")


def _text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
