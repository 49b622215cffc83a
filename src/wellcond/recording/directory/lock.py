"""One writer at a time: a lock that the system releases when its holder ends, however it ends."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import socket
import time
import weakref
from pathlib import Path

from wellcond.errors import OutputError, RunInUse

LOCK = "run.lock"
PATIENCE = 0.2
"""Seconds to wait for a lock: a reader that asks whether the run is written holds it for a moment."""
LOCK_BYTE = 1 << 30
"""Byte that is locked on Windows, where a locked byte cannot be read: far beyond the text."""
WITHOUT_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)
"""Errors of file systems that have no locks."""

_HELD: weakref.WeakSet[Lock] = weakref.WeakSet()
"""Locks of this process."""


class Lock:
    """The lock of a run directory. A killed process leaves none, and a forked one has none.

    Args:
        folder: The run directory.

    Raises:
        RunInUse: Another process, or another recorder of this one, holds it.
        OutputError: The file cannot be written.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / LOCK
        try:
            self._file = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o666)
        except OSError as error:
            raise OutputError(f"{self.path} could not be written: {error.strerror}.") from error
        deadline = time.monotonic() + PATIENCE
        while not _take(self._file):
            if time.monotonic() > deadline:
                holder = _holder(self.path)
                os.close(self._file)
                raise RunInUse(folder, holder)
            time.sleep(0.01)
        self.is_held = True
        text = json.dumps({"pid": os.getpid(), "host": socket.gethostname()}).encode()
        try:
            os.ftruncate(self._file, 0)
            os.pwrite(self._file, text, 0) if hasattr(os, "pwrite") else os.write(self._file, text)
        except OSError as error:
            self.release()
            raise OutputError(f"{self.path} could not be written: {error.strerror}.") from error
        _HELD.add(self)

    def check(self) -> None:
        """Raise `OutputError` if this is no longer the lock of the folder, as when the folder was deleted."""
        try:
            is_same = os.path.samestat(os.fstat(self._file), self.path.stat()) if self.is_held else False
        except OSError:
            is_same = False
        if not is_same:
            raise OutputError(f"{self.path} is gone or replaced: the run directory was deleted, moved or unmounted.")

    def release(self) -> None:
        """Let another process write."""
        if self.is_held:
            self.is_held = False
            os.close(self._file)


def is_locked(folder: Path) -> bool:
    """Whether a process writes to a run directory."""
    try:
        file = os.open(folder / LOCK, os.O_RDWR if os.name == "nt" else os.O_RDONLY)
    except OSError:
        return False
    try:
        return not _take(file, is_shared=True)
    finally:
        os.close(file)


def _take(file: int, *, is_shared: bool = False) -> bool:
    """Lock an open file if nobody else has; where the file system has no locks, nobody has.

    Readers share theirs, so that none takes another one for a writer.
    """
    try:
        if os.name == "nt":
            import msvcrt

            os.lseek(file, LOCK_BYTE, os.SEEK_SET)
            msvcrt.locking(file, msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined,unused-ignore]
            os.lseek(file, 0, os.SEEK_SET)
        else:
            import fcntl

            fcntl.flock(file, (fcntl.LOCK_SH if is_shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)  # type: ignore[attr-defined,unused-ignore]
    except OSError as error:
        return error.errno in WITHOUT_LOCKS
    return True


def _holder(path: Path) -> str:
    """The process that holds a lock, in words."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        text = json.loads(path.read_text(encoding="utf-8"))
        return f"process {text['pid']} on {text['host']}"
    return "another process"


def _release_all() -> None:
    """In a forked process, such as a worker of a loader: it would otherwise hold the lock after the writer's end."""
    for lock in list(_HELD):
        lock.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_release_all)
