"""What the commands of all experiments share: their options, and the picture and the numbers that they write."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wellcond.results.files import check_writable, write_atomically
from wellcond.results.result import as_json, picture

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def parser(description: str | None, data: str | None = None) -> argparse.ArgumentParser:
    """A parser with `--out`, and with `--data` where data sets are read."""
    made = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    if data is not None:
        made.add_argument("--data", help=f"folder that holds {data} (default: $WELLCOND_DATA or ./data)")
    made.add_argument("--out", type=Path, default=Path("docs/figures"), help="folder for the picture and the numbers")
    return made


def output_files(folder: Path, name: str) -> tuple[Path, Path]:
    """The picture and the numbers, in a folder that is made; refused before the work if they cannot be written."""
    folder.mkdir(parents=True, exist_ok=True)
    return check_writable(folder / f"{name}.png"), check_writable(folder / f"{name}.json")


def write(files: tuple[Path, Path], figure: Figure, numbers: Any) -> None:
    """Write the picture, and the numbers as JSON."""
    write_atomically(files[0], picture(figure))
    write_atomically(files[1], (json_by_line(as_json(numbers)) + "\n").encode())


def json_by_line(value: Any, levels: int = 2) -> str:
    """JSON whose outer levels have one entry per line, and whose columns and records are a line each.

    Example:
        >>> print(json_by_line({"runs": [{"seed": 0}, {"seed": 1}]}))
        {
        "runs": [
        {"seed": 0},
        {"seed": 1}
        ]
        }
    """
    if levels == 0 or not isinstance(value, (dict, list)):
        return json.dumps(value, allow_nan=False)
    if isinstance(value, list):
        return "[\n" + ",\n".join(json_by_line(item, levels - 1) for item in value) + "\n]"
    entries = (f"{json.dumps(key)}: {json_by_line(item, levels - 1)}" for key, item in value.items())
    return "{\n" + ",\n".join(entries) + "\n}"
