"""`RunDirectory`: the folder of a run, as the process that writes it has it open."""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wellcond.errors import OutputError
from wellcond.recording.directory import findings_log, manifest, merging
from wellcond.recording.directory.findings_log import FindingEvent
from wellcond.recording.directory.lock import Lock
from wellcond.recording.directory.segments import (
    Segment,
    as_table,
    covers,
    last_number,
    listed,
    merged,
    open_segment,
    until,
    write_segment,
)
from wellcond.results import Row
from wellcond.results.files import TEMPORARY, naming

if TYPE_CHECKING:
    import pyarrow

ROWS = "rows"
MAX_BYTES = 256 * 2**20
"""Default bound on the size of a run directory: 30 to 60 million rows before any are thinned."""
LEAST_BYTES = 2**20
FINDINGS_SHARE = 1 / 16
"""Share of the bound for findings."""
ROWS_SHARE = 7 / 8
"""Share of the bound for rows; the rest is for temporary files and the manifest."""
NEAR_SHARE = 0.95
"""Share of that from which on every append thins a few files."""
BYTES_OF_FULL = 1024
"""Bytes of the bound for each row of a full segment: it takes less than a hundredth of the bound."""
ATTEMPTS = 32
"""Times that rows are thinned after one append, over once for each file: one append alone may exceed the bound."""
WAITING_ROWS = 200_000
"""Rows that wait in memory while the disk takes none; then they are thinned."""
WAITING_LINES = 1000
"""Findings that wait, the newest ones."""


class RunDirectory:
    """A run directory that this process writes to; `wellcond.recording.directory` says what is guaranteed.

    After a failed write, `append` raises `OutputError` in one line, and the rows are written by a later one that
    succeeds. Nothing else needs to be done about it.

    Attributes:
        path: The folder.
        manifest: What run.json holds.
        earlier: What it held before, if there was a run.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     directory = RunDirectory.open(f"{folder}/a", {"optimizer": "SGD"})
        ...     directory.append([Row(1, "", "training_loss", 2.3, ""), Row(2, "", "training_loss", 2.1, "")])
        ...     directory.close()
        ...     directory.last_step, directory.manifest["status"]
        (2, 'ended')
    """

    def __init__(
        self,
        path: Path,
        lock: Lock,
        fresh: dict[str, Any],
        segments: list[Segment],
        earlier: dict[str, Any] | None = None,
    ) -> None:
        self.path = path
        self.earlier = earlier
        self.manifest = fresh if earlier is None else manifest.continued(earlier, fresh)
        self._fresh = fresh
        self._has_changed = False
        """Whether rows were written or dropped."""
        self._lock = lock
        self._segments = segments
        self._started = time.time(), time.monotonic()
        self._full = self.manifest["max_bytes"] // BYTES_OF_FULL
        self._next = _next_number(path)
        self._tidying: threading.Thread | None = None
        self._failure: BaseException | None = None
        """What ended the thread that tidies up."""
        self._waiting: list[pyarrow.Table] = []
        self._waiting_lines: list[bytes] = []

    @classmethod
    def open(cls, path: str | Path, entries: Mapping[str, Any], *, max_bytes: int = MAX_BYTES) -> RunDirectory:
        """Begin a run in a new or empty folder, or go on with the run that is there.

        Args:
            path: The folder; made if there is none.
            entries: What the manifest says of this run: model, optimizer, budget. They replace older ones.
            max_bytes: Bound on the size of the folder.

        Returns:
            The folder, which nobody else can write to until it is closed or this process ends.

        Raises:
            RunInUse: Another process writes to it.
            OutputError: It cannot be written to, or holds something else.
            CorruptData: The run there has a damaged manifest, or one of a later version.
            MissingExtra: pyarrow is not installed.
        """
        as_table((), 0.0)  # the first table takes long: it imports pandas if there is one
        if max_bytes < LEAST_BYTES:
            raise OutputError(f"max_bytes={max_bytes} is too small for a run; it takes {LEAST_BYTES} at least.")
        folder = Path(path).expanduser().absolute()
        with naming(folder):
            (folder / ROWS).mkdir(parents=True, exist_ok=True)
        lock = Lock(folder)
        try:
            with naming(folder):
                segments = _recovered(folder)
                now = time.time()
                earlier = manifest.read_manifest(folder) if (folder / manifest.MANIFEST).exists() else None
                directory = cls(folder, lock, manifest.new_manifest(entries, max_bytes, now), segments, earlier)
                directory._begin_life(now)
        except BaseException:
            lock.release()
            raise
        return directory

    @property
    def last_step(self) -> int:
        """The last step of the rows on the disk; 0 if there are none."""
        self._finish_tidying()
        return max((segment.last_step for segment in self._segments), default=0)

    @property
    def size(self) -> int:
        """Bytes of the rows on the disk."""
        self._finish_tidying()
        return sum(segment.size for segment in self._segments)

    def append(self, rows: Iterable[Row]) -> None:
        """Write rows of later steps, in the order of their steps, as one file; and merge or thin older ones if due.

        Raises:
            OutputError: They could not be written. They wait in memory for the next call.
        """
        table = as_table(rows, self._now())
        if table.num_rows:
            self._waiting.append(table)
        try:
            self._lock.check()
            self._write_waiting_rows()
            self._write_waiting_lines()
        except OutputError:
            self._shrink_waiting()
            raise

    def append_findings(self, events: Iterable[FindingEvent]) -> None:
        """Write that findings began or ended.

        Raises:
            OutputError: They could not be written. They wait in memory for the next call.
        """
        self._waiting_lines += [findings_log.as_line(event, self._now()) for event in events]
        del self._waiting_lines[:-WAITING_LINES]
        self._lock.check()
        self._write_waiting_lines()

    def truncate(self, step: int) -> None:
        """Drop the rows and findings after a step, from which a resumed run goes on.

        Newer files go first: if this process dies in between, a later step is the last one, and nothing is missing
        before it.

        Raises:
            OutputError: They could not be dropped.
        """
        self._lock.check()
        self._finish_tidying()
        self._has_changed = True
        waiting = (until(table, step) for table in self._waiting)
        self._waiting = [table for table in waiting if table.num_rows]
        with naming(self.path):
            for place, segment in reversed(list(enumerate(self._segments))):
                if segment.last_step <= step:
                    continue
                table = until(segment.read(), step)
                if table.num_rows:
                    self._segments[place] = self._write(segment.first, segment.last, table, thinned=segment.thinned)
                else:
                    segment.path.unlink()
                    del self._segments[place]
            self._next = _next_number(self.path)
            events, _ = findings_log.read_lines(self.path)
            findings_log.rewrite(self.path, (event for event in events if event["step"] <= step))
            self.manifest["lives"][-1]["first_step"] = min(step + 1, self.manifest["lives"][-1]["first_step"])
            manifest.write_manifest(self.path, self.manifest)

    def set_aside(self) -> Path:
        """Move the run that is here to a folder next to this one, and begin a new one.

        Returns:
            That folder, with the run as it was before this directory was opened.

        Raises:
            OutputError: It could not be moved.
        """
        self._lock.check()
        self._finish_tidying()
        with naming(self.path):
            target = _free_folder(self.path)
            manifest.write_manifest(target, self.earlier or self.manifest)
            for name in (findings_log.FINDINGS, ROWS):
                if (self.path / name).exists():
                    (self.path / name).rename(target / name)
            (self.path / ROWS).mkdir()
            self.manifest, self.earlier = self._fresh | {"lives": []}, None
            self._segments, self._next = [], 1
            self._begin_life(time.time())
        return target

    def close(self) -> None:
        """Write what waits, say in the manifest that the run ended, and release the folder.

        A run that was there, and that nothing was added to, stays as it was: training may have failed at its start.

        Raises:
            OutputError: Something could not be written; the folder is released all the same.
        """
        if not self._lock.is_held:
            return
        try:
            self.append(())
            self._finish_tidying()
            self.manifest["status"] = "ended"
            before = None if self._has_changed else self.earlier
            manifest.write_manifest(self.path, self.manifest if before is None else before)
        finally:
            self._lock.release()

    # files

    def _begin_life(self, now: float) -> None:
        self.manifest["lives"].append(manifest.new_life(self.last_step + 1, now))
        manifest.write_manifest(self.path, self.manifest)

    def _now(self) -> float:
        """Time by the clock when the folder was opened, and since then by one that cannot jump."""
        wall, ticks = self._started
        return wall + time.monotonic() - ticks

    def _write_waiting_rows(self) -> None:
        if not self._waiting:
            return
        self._finish_tidying()
        self._has_changed = True
        segment = self._write(self._next, self._next, merged(self._waiting))
        self._waiting.clear()
        self._segments.append(segment)
        self._next += 1
        # on a thread of its own: a merged file is waited for until it is on the disk, and the training is not to wait
        thread = threading.Thread(target=self._tidy, name="wellcond tidying")
        try:
            thread.start()
        except RuntimeError:  # none begins while the interpreter ends
            return
        self._tidying = thread

    def _finish_tidying(self) -> None:
        """Wait for the thread that tidies up; an error that ended it is raised here, where it is reported."""
        if self._tidying is not None:
            self._tidying.join()
            failure, self._tidying, self._failure = self._failure, None, None
            if failure is not None:
                raise failure

    def _shrink_waiting(self) -> None:
        if sum(table.num_rows for table in self._waiting) > WAITING_ROWS:
            self._waiting = [merging.thin(merged(self._waiting), is_first=not self._segments)]

    def _write(self, first: int, last: int, table: pyarrow.Table, *, thinned: int = 0) -> Segment:
        # the sources of a merge, on the disk for long, are removed; one append is not worth the wait
        return write_segment(
            self.path / ROWS, first, last, table, thinned=thinned, is_durable=first != last or thinned > 0
        )

    def _write_waiting_lines(self) -> None:
        if not self._waiting_lines:
            return
        with naming(self.path / findings_log.FINDINGS):
            size = findings_log.append_lines(self.path, self._waiting_lines)
            self._waiting_lines.clear()
            limit = int(FINDINGS_SHARE * self.manifest["max_bytes"])
            if size > limit:
                events, _ = findings_log.read_lines(self.path)
                findings_log.rewrite(self.path, findings_log.shortened(events, limit // 2))

    def _tidy(self) -> None:
        """Merge and thin files; if the disk refuses, nothing is lost, and it is tried again after the next append."""
        try:
            with contextlib.suppress(OutputError):
                self._merge_and_thin()
        except BaseException as error:
            self._failure = error

    def _merge_and_thin(self) -> None:
        """Merge the newest files if they add up to a larger one; thin the older ones if rows reach their bound."""
        count = merging.due(self._segments, self._full)
        if count > 1:
            self._replace(slice(len(self._segments) - count, len(self._segments)))
        limit = ROWS_SHARE * self.manifest["max_bytes"]
        for attempt in range(len(self._segments) + ATTEMPTS):
            # once after each append near the bound, so that none waits for all of it; above the bound, until it holds
            size = sum(segment.size for segment in self._segments)
            if size <= (limit if attempt else NEAR_SHARE * limit):
                return
            self._replace(merging.to_thin(self._segments, self._full), is_thinned=True)

    def _replace(self, place: slice, *, is_thinned: bool = False) -> None:
        """Merge neighbors into one file, and thin it if asked for; then remove those it covers."""
        sources = self._segments[place]
        tables = []
        for source in sources:
            try:
                tables.append(source.read())
            except (OSError, ValueError):  # deleted or damaged: readers name it, and the others go on without it
                self._segments.remove(source)
                return
        with naming(self.path):
            table = merged(tables)
            if is_thinned:
                table = merging.thin(table, is_first=place.start == 0)
            thinned = max(source.thinned for source in sources) + is_thinned
            target = self._write(sources[0].first, sources[-1].last, table, thinned=thinned)
            self._segments[place] = [target]
            for source in sources:
                if source.path != target.path:
                    source.path.unlink()


def _recovered(folder: Path) -> list[Segment]:
    """The segments of a run, after removing what a killed writer left: temporary files, and sources of a merge."""
    for leftover in [*folder.glob(TEMPORARY), *(folder / ROWS).glob(TEMPORARY)]:
        leftover.unlink()
    segments: list[Segment] = []
    for path in listed(folder / ROWS):
        try:
            segment = open_segment(path)
        except (ValueError, OSError):  # damaged: it stays, and readers name it
            continue
        if segments and covers(segments[-1].path, path):
            path.unlink()
        else:
            segments.append(segment)
    return segments


def _free_folder(folder: Path) -> Path:
    """A new folder next to another one, named after it: a-1, a-2 and further on."""
    for number in itertools.count(1):
        target = folder.with_name(f"{folder.name}-{number}")
        with contextlib.suppress(FileExistsError):
            target.mkdir()
            return target
    raise AssertionError("numbers do not end")


def _next_number(folder: Path) -> int:
    """The number of the next append, after those of all files, damaged ones included."""
    return max(map(last_number, listed(folder / ROWS)), default=0) + 1
