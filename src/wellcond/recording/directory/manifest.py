"""The manifest: what is recorded, by which versions, how large it may get, and when it was written."""

from __future__ import annotations

import json
import os
import platform
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from wellcond.errors import CorruptData, DataNotFound
from wellcond.results.files import write_atomically
from wellcond.results.result import as_json
from wellcond.results.version import __version__

MANIFEST = "run.json"
SCHEMA = 1
"""Version of the layout of a run directory; one that changes the meaning of a file adds one."""
OF_THE_START = ("schema", "created", "lives", "columns")
"""Entries that stay when a run goes on."""
MEANINGS = {
    "time": "seconds since 1970 at which the row was written",
    "step": "optimizer steps, from 1",
    "layer": "name of the module; empty for the whole network",
    "quantity": "name of the number",
    "value": "the number",
    "unit": "its unit, or empty",
}


def new_manifest(entries: Mapping[str, Any], max_bytes: int, time: float) -> dict[str, Any]:
    """The manifest of a run that begins; `entries` say what is recorded: model, optimizer, budget."""
    return {
        "schema": SCHEMA,
        "status": "running",
        "created": time,
        "lives": [],
        "columns": MEANINGS,
        "max_bytes": max_bytes,
        "versions": {"wellcond": __version__, "torch": torch.__version__, "python": platform.python_version()},
        **as_json(entries),
    }


def continued(earlier: Mapping[str, Any], fresh: Mapping[str, Any]) -> dict[str, Any]:
    """The manifest of a run that goes on: it begins when it began, and is described as it is now."""
    now = {name: value for name, value in fresh.items() if name not in OF_THE_START}
    return {**earlier, **now, "lives": [*earlier["lives"]]}


def new_life(first_step: int, time: float) -> dict[str, Any]:
    """One process that writes to a run: from when, from which step."""
    return {"started": time, "first_step": first_step, "pid": os.getpid(), "host": socket.gethostname()}


def write_manifest(folder: Path, manifest: Mapping[str, Any]) -> None:
    """Write it, so that a power cut leaves the old or the new one."""
    text = json.dumps(manifest, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    write_atomically(folder / MANIFEST, text.encode(), is_durable=True)


def read_manifest(folder: Path) -> dict[str, Any]:
    """The manifest of a run directory.

    Raises:
        DataNotFound: There is no run here.
        CorruptData: It is damaged, or of a later version of the layout.
    """
    path = folder / MANIFEST
    try:
        manifest: dict[str, Any] = json.loads(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError) as error:
        raise DataNotFound(f"{folder} holds no recorded run: there is no {MANIFEST} in it.") from error
    except OSError as error:
        raise CorruptData(f"{path} cannot be read: {error.strerror}.") from error
    except ValueError as error:
        raise CorruptData(
            f"{path} is damaged: {error}. The rows can still be read: pandas.read_parquet({str(folder / 'rows')!r})."
        ) from error
    version = manifest.get("schema") if isinstance(manifest, dict) else None
    if not isinstance(version, int):
        raise CorruptData(f"{path} is no manifest of a recorded run: it has no version of a schema.")
    if version > SCHEMA:
        raise CorruptData(
            f"{folder} was recorded by a later wellcond (schema {version}; this one reads up to {SCHEMA}). "
            "Run:  pip install --upgrade wellcond"
        )
    return manifest
