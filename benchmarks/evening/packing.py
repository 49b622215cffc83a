"""What leaves the machine: finished cells and small checkpoints, in a few files of limited size."""

from __future__ import annotations

import io
import shutil
import tarfile
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks.evening.plan import Plan
from wellcond.results.files import write_atomically
from wellcond_papers.experiments import catalog

MIB = 2**20
FILES = 8
"""Files in all."""
LARGEST = 16 * MIB
"""Bytes of a file."""
TOTAL = 64 * MIB
"""Bytes of all files together."""
BLOCK = 512
"""Bytes of a block, in which archives are written; a member has a header of up to three."""
ROOM = MIB // 8
"""Bytes of a file that the archive and the compression themselves may need."""


def pack(files: Sequence[Path], root: Path, out: Path, kind: str, others: Sequence[Path] = ()) -> list[Path]:
    """Write files into archives `kind-1.tar.gz`, …, within the limits; older archives of that kind are replaced.

    Args:
        files: The files; those that matter most first.
        root: The folder that names in the archives begin at.
        out: The folder for the archives.
        kind: What they hold.
        others: Further files that leave the machine, and count towards the limits.

    Returns:
        The files that found no place.
    """
    count, total = FILES - len(others), TOTAL - sum(path.stat().st_size for path in others)
    loads: list[list[Path]] = []
    left_out = []
    for file in files:
        fitting = [load for load in loads if _size([*load, file]) <= LARGEST]
        if _size([file]) > LARGEST or (not fitting and len(loads) == count) or _total([*loads, [file]]) > total:
            left_out.append(file)
        elif fitting:
            fitting[0].append(file)
        else:
            loads.append([file])
    out.mkdir(parents=True, exist_ok=True)
    paths = [out / f"{kind}-{place}.tar.gz" for place in range(1, len(loads) + 1)]
    for path, load in zip(paths, loads, strict=True):
        content = io.BytesIO()
        with tarfile.open(fileobj=content, mode="w:gz", compresslevel=1) as archive:
            for file in load:
                archive.add(file, str(file.relative_to(root)))
        write_atomically(path, content.getvalue())
    for old in set(out.glob(f"{kind}-*.tar.gz")) - set(paths):
        old.unlink()
    return left_out


def take(archives: Iterable[Path], plan: Plan) -> list[str]:
    """Add the finished cells of archives to the rows, and the checkpoints of unfinished ones to the store.

    Returns:
        What was taken, a line for each experiment.
    """
    lines = []
    with tempfile.TemporaryDirectory() as folder:
        for path in archives:
            with tarfile.open(path) as archive:
                archive.extractall(folder, filter="data")
        came = replace(plan, runs=Path(folder))
        for name, scale in plan.experiments:
            cells = catalog.experiment(name).cells(scale)
            there, here = came.store(cells[0], scale), plan.store(cells[0], scale)
            finished = there.finished(cells)
            for ended in finished.values():
                here.put(ended)
            plan.add_rows(finished.values())
            known = here.finished(cells)
            states = [cell for cell in cells if cell.key not in known and there.checkpoints(cell).is_dir()]
            for cell in states:
                shutil.copytree(there.checkpoints(cell), here.checkpoints(cell), dirs_exist_ok=True)
            if finished or states:
                lines.append(f"{name}, {scale}: {len(finished)} cells finished, {len(states)} under way")
    return lines


def _size(load: Iterable[Path]) -> int:
    """Bytes of an archive of these files, at most."""
    return ROOM + sum((file.stat().st_size // BLOCK + 4) * BLOCK for file in load)


def _total(loads: Iterable[Iterable[Path]]) -> int:
    return sum(map(_size, loads))
