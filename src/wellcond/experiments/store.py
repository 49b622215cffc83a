"""`Store`: finished cells in a folder, one file each, which no run computes again."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from wellcond.errors import CorruptData
from wellcond.experiments.experiment import Cell
from wellcond.experiments.table import Record
from wellcond.results import Row
from wellcond.results.files import write_atomically
from wellcond.results.result import as_json


@dataclass(frozen=True)
class Store:
    """The cells of a run directory.

    Attributes:
        folder: Holds `cells/<key>.json` for finished cells and `checkpoints/<key>/` for those under way.
    """

    folder: Path

    def path(self, cell: Cell) -> Path:
        """The file of a finished cell."""
        return self.folder / "cells" / f"{cell.key}.json"

    def checkpoints(self, cell: Cell) -> Path:
        """The folder for the checkpoints of a cell."""
        return self.folder / "checkpoints" / cell.key

    def put(self, cell: Cell, record: Record) -> None:
        """Keep a finished cell; it is written whole or not at all."""
        content: dict[str, Any] = {
            "experiment": cell.experiment,
            "settings": dict(cell.settings),
            "seconds": round(record.seconds, 3),
            "rows": [list(as_json(row)) for row in record.rows],
        }
        path = self.path(cell)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, (json.dumps(content | {"checksum": _checksum(content)}) + "\n").encode())

    def get(self, cell: Cell) -> Record | None:
        """A finished cell; None if it is not.

        Raises:
            CorruptData: Its file is damaged.
        """
        path = self.path(cell)
        if not path.is_file():
            return None
        try:
            content = json.loads(path.read_bytes())
            checksum = content.pop("checksum")
            rows = [Row(step, layer, name, float(value), unit) for step, layer, name, value, unit in content["rows"]]
        except (ValueError, KeyError, TypeError) as error:
            raise CorruptData(f"{path} is damaged ({error}).") from error
        if checksum != _checksum(content):
            raise CorruptData(f"{path} is damaged: its checksum is wrong.")
        return Record(content["settings"], rows, content["seconds"])

    def finished(self, cells: Iterable[Cell]) -> dict[str, Record]:
        """The finished ones among these cells, by their key; damaged files count as missing."""
        found = {}
        for cell in cells:
            try:
                record = self.get(cell)
            except CorruptData:
                continue
            if record is not None:
                found[cell.key] = record
        return found


def _checksum(content: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]
