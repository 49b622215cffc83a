"""`Store`: cells that have ended, in a folder, one file each; finished ones are never run again."""

from __future__ import annotations

import hashlib
import json
import shutil
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from wellcond.errors import CorruptData, OutputError
from wellcond.results import Row
from wellcond.results.files import check_writable, write_atomically
from wellcond.results.result import as_json
from wellcond_papers.experiments.experiment import Cell
from wellcond_papers.experiments.table import Record


@dataclass(frozen=True)
class Ended:
    """How a cell ended: with its rows, or with an error.

    Attributes:
        cell: The cell.
        record: The measured rows; None if it failed.
        error: The reason it failed, in one line; "" if it did not.
        attempts: The number of attempts.
        made_with: The device and the versions of the libraries.
    """

    cell: Cell
    record: Record | None
    error: str = ""
    attempts: int = 1
    made_with: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Store:
    """The cells of a run directory.

    Attributes:
        folder: Holds `cells/<key>.json` for cells that have ended and `checkpoints/<key>/` for those under way.
    """

    folder: Path

    def path(self, cell: Cell) -> Path:
        """The file of a cell that has ended."""
        return self.folder / "cells" / f"{cell.key}.json"

    def checkpoints(self, cell: Cell) -> Path:
        """The folder for the checkpoints of a cell."""
        return self.folder / "checkpoints" / cell.key

    def prepare(self) -> None:
        """Create the folder, so that an error comes before any work.

        Raises:
            OutputError: It cannot be written.
        """
        cells = self.folder / "cells"
        try:
            cells.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise OutputError(
                f"{cells} cannot be created ({error.strerror}); name another folder for results."
            ) from error
        check_writable(cells / "cell.json")

    def put(self, ended: Ended) -> None:
        """Save a cell; the file is written whole or not at all. The checkpoints of a finished one are removed."""
        content: dict[str, Any] = {
            "experiment": ended.cell.experiment,
            "settings": dict(ended.cell.settings),
            "made_with": dict(ended.made_with),
            "attempts": ended.attempts,
        }
        if ended.record is None:
            content["error"] = ended.error
        else:
            content["seconds"] = round(ended.record.seconds, 3)
            content["rows"] = [as_json(row) for row in ended.record.rows]
        self.prepare()
        write_atomically(
            self.path(ended.cell), (json.dumps(content | {"checksum": _checksum(content)}) + "\n").encode()
        )
        if ended.record is not None:
            shutil.rmtree(self.checkpoints(ended.cell), ignore_errors=True)

    def get(self, cell: Cell) -> Ended | None:
        """A cell that has ended; None if it has not.

        Raises:
            CorruptData: Its file is damaged.
        """
        path = self.path(cell)
        if not path.is_file():
            return None
        try:
            content = json.loads(path.read_bytes())
            checksum = content.pop("checksum")
            is_whole = checksum == _checksum(content)
        except (ValueError, KeyError, AttributeError, TypeError) as error:
            raise CorruptData(f"{path} is damaged: {error}.") from error
        if not is_whole:
            raise CorruptData(f"{path} is damaged: its checksum is wrong.")
        attempts, made_with = content["attempts"], content["made_with"]
        if "error" in content:
            return Ended(cell, None, content["error"], attempts, made_with)
        rows = [Row(step, layer, name, float(value), unit) for step, layer, name, value, unit in content["rows"]]
        return Ended(cell, Record(content["settings"], rows, content["seconds"]), "", attempts, made_with)

    def finished(self, cells: Iterable[Cell]) -> dict[str, Ended]:
        """The finished ones among these cells, by their key. Failed ones are to be tried again.

        A damaged file counts as missing, and a warning names it.
        """
        records = {}
        for cell in cells:
            try:
                ended = self.get(cell)
            except CorruptData as error:
                warnings.warn(f"{error} The cell is run again.", stacklevel=2)
                continue
            if ended is not None and ended.record is not None:
                records[cell.key] = ended
        return records


def _checksum(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]
