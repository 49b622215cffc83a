"""Download a data set from its publisher: checked, unpacked and complete, or nothing at all."""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
import tarfile
import tempfile
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path, PurePosixPath

from wellcond.errors import CorruptData, DataNotFound
from wellcond.results import Progress
from wellcond_papers.data.locate import PUBLISHED, data_root

_Report = Callable[[float], None]
CHUNK = 1 << 20
TIMEOUT = 60
"""Seconds without data after which a server counts as unreachable."""


def download(
    name: str,
    root: str | os.PathLike[str] | None = None,
    progress: Progress | None = None,
    *,
    mirror: str | None = None,
) -> Path:
    """Fetch a data set and put it where `load` looks for it.

    Every file is compared with the MD5 that its publisher gives before it is used. A file or folder appears under its
    name when it is complete and not before. Existing files are kept: gzipped files if their MD5 is right,
    unpacked folders as they are.

    Args:
        name: "mnist", "fashion-mnist", "cifar10" or "cifar100".
        root: The folder with the data sets; None means $WELLCOND_DATA, else `./data`. It is created if it is missing.
        progress: Called as (what is being done, share of all work done); None shows a bar in a terminal.
        mirror: Another address to fetch the same files from; they are checked all the same.

    Returns:
        The folder with the files.

    Raises:
        ValueError: No data set of this name can be fetched.
        DataNotFound: The server cannot be reached or does not have the file.
        CorruptData: What it sent is not what was published.

    Example:
        >>> download("cifar10", "data")  # doctest: +SKIP
        PosixPath('data/cifar-10-batches-bin')
    """
    if name not in PUBLISHED:
        raise ValueError(f"only {', '.join(PUBLISHED)} can be fetched, not {name!r}")
    published = PUBLISHED[name]
    folder = data_root(root) / published.folder
    folder.mkdir(parents=True, exist_ok=True)
    report = progress or _bar
    for k, (file, md5) in enumerate(published.files.items()):

        def part(share: float, k: int = k, file: str = file) -> None:
            report(f"fetching {file}", (k + share) / len(published.files))

        _fetch(f"{mirror or published.address}/{file}", md5, folder, published.unpacked, part)
    return folder / published.unpacked


def _fetch(url: str, md5: str, folder: Path, unpacked: str, report: _Report) -> None:
    """One file, into the folder; an archive is unpacked there instead."""
    place = folder / (unpacked or url.rpartition("/")[2])
    if place.is_dir() or (place.is_file() and _md5(place) == md5):
        report(1.0)
        return
    with tempfile.TemporaryDirectory(prefix=".download-", dir=folder) as scratch:
        fetched = Path(scratch) / "file"
        digest = _copy(url, fetched, report)
        if digest != md5:
            raise CorruptData(f"{url}: expected a file with the MD5 {md5}, found {digest}. Nothing was kept.")
        if unpacked:
            _unpack(fetched, Path(scratch), unpacked)
            fetched = Path(scratch) / unpacked
        os.replace(fetched, place)


def _copy(url: str, target: Path, report: _Report) -> str:
    """Write what the server sends to the target; return its MD5."""
    digest = hashlib.md5(usedforsecurity=False)
    try:
        with urllib.request.urlopen(url, timeout=TIMEOUT) as response, target.open("wb") as file:
            promised = int(response.headers.get("Content-Length") or 0)
            received = 0
            while chunk := response.read(CHUNK):
                file.write(chunk)
                digest.update(chunk)
                received += len(chunk)
                report(min(1.0, received / promised) if promised else 0.0)
    except (urllib.error.URLError, OSError) as error:
        raise DataNotFound(
            f"{url} cannot be fetched ({error}). Fetch it on a machine with a network and copy it here, "
            f"or pass mirror=... with another address."
        ) from error
    if promised and received != promised:
        raise CorruptData(f"{url}: expected {promised} bytes, found {received}. Nothing was kept; try again.")
    return digest.hexdigest()


def _unpack(archive: Path, target: Path, unpacked: str) -> None:
    """The plain files of a tar archive, which must all lie in the folder `unpacked` of it."""
    (target / unpacked).mkdir()
    with tarfile.open(archive) as tar:
        for member in tar:
            path = PurePosixPath(member.name)
            if member.isdir():
                continue
            if not member.isfile() or str(path.parent) != unpacked or path.name == "..":
                raise CorruptData(f"the archive holds {member.name!r}, which is no plain file in {unpacked}/.")
            content = tar.extractfile(member)
            assert content is not None  # plain files have content
            with content, (target / unpacked / path.name).open("wb") as file:
                shutil.copyfileobj(content, file)


def _md5(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "md5").hexdigest()


def _bar(what: str, share: float) -> None:
    if sys.stderr.isatty():
        filled = round(30 * share)
        end = "\n" if share == 1 else ""
        print(f"\r{what:<40} [{'█' * filled}{'·' * (30 - filled)}] {share:4.0%}", end=end, file=sys.stderr, flush=True)
