"""Find the files of a data set, or say which are missing and where to put them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from wellcond.errors import DataNotFound

ROOT_VARIABLE = "WELLCOND_DATA"
DEFAULT_ROOT = "data"


def data_root(root: str | os.PathLike[str] | None) -> Path:
    """The folder that is passed; for None the one named by $WELLCOND_DATA, else `./data`."""
    return Path(os.environ.get(ROOT_VARIABLE) or DEFAULT_ROOT if root is None else root).expanduser()


def locate(name: str, wanted: Sequence[Sequence[str]], folders: Sequence[Path], instruction: str) -> list[Path]:
    """The files of the first folder that holds them all.

    Files are never gathered from two folders: they could be two versions of the data.

    Args:
        name: What the data set is called.
        wanted: For each file, the spellings accepted, preferred first.
        folders: Where to look, in order.
        instruction: What to do where they are missing.

    Raises:
        DataNotFound: No folder holds them all.
    """
    reports = []
    for folder in folders:
        found = [next((folder / s for s in spellings if (folder / s).is_file()), None) for spellings in wanted]
        complete = [path for path in found if path is not None]
        if len(complete) == len(wanted):
            return complete
        missing = [spellings[0] for spellings, path in zip(wanted, found, strict=True) if path is None]
        state = f"without {', '.join(missing)}" if folder.is_dir() else "no such folder"
        reports.append(f"{folder} ({state})")
    needed = "\n             ".join(" or ".join(spellings) for spellings in wanted)
    raise DataNotFound(
        f"the files of {name} were not found.\n"
        f"  needed:    {needed}\n"
        f"  looked in: {'; '.join(reports)}\n"
        f"  do:        {instruction}\n"
        f"             Elsewhere: pass root=..., or set {ROOT_VARIABLE} to the folder that holds the data."
    )
