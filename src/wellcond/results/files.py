"""Files that are written whole or not at all."""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
from collections.abc import Iterator
from pathlib import Path

from wellcond.errors import OutputError, WellcondError


def check_writable(path: str | Path) -> Path:
    """The file to write, links followed; raises `OutputError` before the work rather than after it."""
    with naming(path):
        name = Path(path).expanduser()
        old = _status(name)
        target = name if _is_special(old) else name.resolve()
        if old is not None and stat.S_ISDIR(old.st_mode):
            raise OutputError(f"{path} is a folder; name a file in it, such as {Path(path) / 'report.html'}.")
        if old is not None and stat.S_ISSOCK(old.st_mode):
            raise OutputError(f"{path} is a socket, which holds no file; name another one.")
        if not target.parent.is_dir():
            raise OutputError(f"the folder {target.parent} does not exist; make it first, or name another file.")
        if not _is_special(old) and not os.access(target.parent, os.W_OK):
            raise OutputError(f"the folder {target.parent} cannot be written to; name another file.")
        if old is not None and not os.access(target, os.W_OK):
            raise OutputError(f"{path} is read-only; name another file.")
    return target


TEMPORARY = ".wellcond-*.tmp"
"""Names of files that are being written; what is left of one when its writer is killed can be removed."""


def write_atomically(path: str | Path, content: bytes, *, is_durable: bool = False) -> Path:
    """Write a file next to its place and move it there; after a failure an older file is as it was.

    An older file passes its mode and owner on; a new one gets the mode that the umask allows. A pipe or a device, such
    as /dev/null, is written to and stays what it is.

    Args:
        path: The file.
        content: What it will hold.
        is_durable: Whether to wait until the content is on the disk before it gets its name: a power cut then leaves
            the old file or the new one.

    Returns:
        The file that was written, links followed.
    """
    target = check_writable(path)
    with naming(path):
        old = _status(target)
        if _is_special(old):
            # without waiting: a pipe that nobody reads from would hold the caller up for ever
            with os.fdopen(os.open(target, os.O_WRONLY | os.O_NONBLOCK), "wb") as device:
                os.set_blocking(device.fileno(), True)
                device.write(content)
            return target
        temporary = target.with_name(TEMPORARY.replace("*", secrets.token_hex(8)))
        mode = 0o666 if old is None else 0o600  # what replaces a private file is private from its first byte
        try:
            with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
                file.write(content)
                if is_durable:
                    file.flush()
                    os.fsync(file.fileno())
            if old is not None:
                with contextlib.suppress(PermissionError):  # only root may give a file away
                    os.chown(temporary, old.st_uid, old.st_gid)
                temporary.chmod(stat.S_IMODE(old.st_mode))
            os.replace(temporary, target)
        finally:
            temporary.unlink(missing_ok=True)
    return target


def _status(path: Path) -> os.stat_result | None:
    try:
        return path.stat()
    except FileNotFoundError:
        return None


def _is_special(status: os.stat_result | None) -> bool:
    """Whether it is neither a regular file nor a folder."""
    return status is not None and not stat.S_ISREG(status.st_mode) and not stat.S_ISDIR(status.st_mode)


@contextlib.contextmanager
def naming(path: str | Path) -> Iterator[None]:
    """Turn an error of the system, such as a name that is too long, into an `OutputError` that names the file."""
    try:
        yield
    except WellcondError:
        raise
    except (OSError, RuntimeError, ValueError) as error:  # also an unknown ~user, or a NUL in the name
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise OutputError(f"{path} could not be written: {reason}.") from error
