"""Files that are written whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path

from wellcond.errors import OutputError


def check_writable(path: str | Path) -> Path:
    """The path, resolved; raises `OutputError` before the work rather than after it."""
    target = Path(path).expanduser().resolve()
    if target.is_dir():
        raise OutputError(f"{path} is a folder; name a file in it, such as {Path(path) / 'report.html'}.")
    if not target.parent.is_dir():
        raise OutputError(f"the folder {target.parent} does not exist; make it first, or name another file.")
    if not os.access(target.parent, os.W_OK):
        raise OutputError(f"the folder {target.parent} cannot be written to; name another file.")
    return target


def write_atomically(path: str | Path, content: bytes) -> Path:
    """Write a file beside its place and move it there; after a failure an older file is as it was."""
    target = check_writable(path)
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        temporary.write_bytes(content)
        os.replace(temporary, target)
    except OSError as error:
        raise OutputError(f"{target} could not be written: {error.strerror or error}.") from error
    finally:
        temporary.unlink(missing_ok=True)
    return target
