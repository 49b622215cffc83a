"""What the commands of all experiments share: their options, and the picture and the numbers that they write."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from wellcond.results.files import check_writable


def parser(description: str | None, data: str | None = None) -> argparse.ArgumentParser:
    """A parser with `--out`, and with `--data` where data are read.

    Args:
        description: The docstring of the experiment.
        data: The data sets that it reads.
    """
    made = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    if data is not None:
        made.add_argument("--data", help=f"folder that holds {data} (default: $WELLCOND_DATA or ./data)")
    made.add_argument("--out", type=Path, default=Path("docs/figures"), help="folder for the picture and the numbers")
    return made


def output_files(folder: Path, name: str) -> tuple[Path, Path]:
    """The picture and the numbers, in a folder that is made; refused before the work if they cannot be written."""
    folder.mkdir(parents=True, exist_ok=True)
    return check_writable(folder / f"{name}.png"), check_writable(folder / f"{name}.json")


def json_by_line(parts: Mapping[str, Iterable[Any]]) -> bytes:
    """Lists of records, each a mapping or a dataclass, as JSON with one record per line.

    Example:
        >>> print(json_by_line({"runs": [{"seed": 0}, {"seed": 1}]}).decode(), end="")
        {"runs": [
        {"seed": 0},
        {"seed": 1}
        ]}
    """
    lists = []
    for name, records in parts.items():
        lines = [json.dumps(r if isinstance(r, Mapping) else asdict(r), allow_nan=False) for r in records]
        lists.append(f'"{name}": [\n' + ",\n".join(lines) + "\n]")
    return ("{" + ",\n".join(lists) + "}\n").encode()
