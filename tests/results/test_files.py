from __future__ import annotations

import json
import os
import socket
import stat
import threading
from pathlib import Path

import pytest
import torch

import wellcond as wc
from wellcond.errors import OutputError
from wellcond.results.files import write_atomically


def test_an_old_file_is_replaced(tmp_path: Path) -> None:
    target = tmp_path / "report.html"
    target.write_text("old")
    assert write_atomically(target, b"new") == target.resolve()
    assert target.read_text() == "new"
    assert list(tmp_path.iterdir()) == [target]


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_a_failure_keeps_the_old_file_and_leaves_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    target = tmp_path / "report.html"
    target.write_text("old")

    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises((OutputError, KeyboardInterrupt)):
        write_atomically(target, b"new")
    assert target.read_text() == "old"
    assert list(tmp_path.iterdir()) == [target]


def test_a_place_that_cannot_be_written_says_why(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="is a folder; name a file in it"):
        write_atomically(tmp_path, b"")
    with pytest.raises(OutputError, match="does not exist; make it first"):
        write_atomically(tmp_path / "no" / "report.html", b"")


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    target, link = tmp_path / "real.html", tmp_path / "link.html"
    target.write_text("old")
    link.symlink_to(target)
    write_atomically(link, b"new")
    assert link.is_symlink()
    assert target.read_text() == "new"


@pytest.mark.parametrize("link", [False, True])
def test_a_pipe_is_written_to_and_stays_one(tmp_path: Path, link: bool) -> None:
    pipe = place = tmp_path / "report.json"
    os.mkfifo(pipe)
    if link:
        place = tmp_path / "link.json"
        place.symlink_to(pipe)
    read: list[bytes] = []
    reading = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    os.set_blocking(reading, True)
    content = b"x" * 2**20  # more than a pipe holds

    def drain() -> None:
        while part := os.read(reading, 2**16):
            read.append(part)

    thread = threading.Thread(target=drain)
    holder = os.open(pipe, os.O_WRONLY)  # so that the reader does not see an end before the first byte
    thread.start()
    write_atomically(place, content)
    os.close(holder)
    thread.join()
    os.close(reading)
    assert b"".join(read) == content
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    assert place.is_symlink() == link


def test_a_pipe_without_a_reader_and_a_socket_are_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.json")
    with pytest.raises(OutputError, match=r"pipe\.json could not be written: No such device"):
        write_atomically(tmp_path / "pipe.json", b"new")
    with socket.socket(socket.AF_UNIX) as place:
        place.bind(str(tmp_path / "s.json"))
        with pytest.raises(OutputError, match="is a socket"):
            write_atomically(tmp_path / "s.json", b"new")
        assert stat.S_ISSOCK((tmp_path / "s.json").stat().st_mode)
    assert len(list(tmp_path.iterdir())) == 2


def test_a_device_is_written_to_and_stays_one(tmp_path: Path) -> None:
    link = tmp_path / "report.json"
    link.symlink_to("/dev/null")
    wc.spectrum(torch.eye(2)).save(link)
    assert link.readlink() == Path("/dev/null")
    assert stat.S_ISCHR(link.stat().st_mode)
    link.unlink()
    link.symlink_to("/dev/full")
    with pytest.raises(OutputError, match="No space left"):
        write_atomically(link, b"new")
    assert list(tmp_path.iterdir()) == [link]


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o666])
def test_an_old_file_keeps_its_mode_and_owner(tmp_path: Path, mode: int) -> None:
    target = tmp_path / "report.json"
    target.write_text("old")
    target.chmod(mode)
    if os.geteuid() == 0:
        os.chown(target, 12345, 54321)
    before = target.stat()
    wc.spectrum(torch.eye(2)).save(target)
    after = target.stat()
    assert (after.st_mode, after.st_uid, after.st_gid) == (before.st_mode, before.st_uid, before.st_gid)
    assert json.loads(target.read_text())["result"] == "Spectrum"


@pytest.mark.parametrize("umask", [0o022, 0o077, 0o002])
def test_a_new_file_has_the_mode_that_the_umask_allows(tmp_path: Path, umask: int) -> None:
    old = os.umask(umask)
    try:
        target = write_atomically(tmp_path / "report.html", b"new")
    finally:
        os.umask(old)
    assert stat.S_IMODE(target.stat().st_mode) == 0o666 & ~umask


def test_a_name_that_is_too_long_or_impossible_is_refused(tmp_path: Path) -> None:
    for name in ("x" * 300 + ".json", "a\0b.json"):
        with pytest.raises(OutputError, match="could not be written"):
            write_atomically(tmp_path / name, b"new")
    (tmp_path / "ring.json").symlink_to(tmp_path / "ring.json")
    with pytest.raises(OutputError, match="could not be written"):
        write_atomically(tmp_path / "ring.json", b"new")
    assert write_atomically(tmp_path / ("x" * 250 + ".json"), b"new").read_bytes() == b"new"


def test_a_link_to_a_missing_file_creates_it_in_the_form_of_the_link(tmp_path: Path) -> None:
    link = tmp_path / "link.csv"
    link.symlink_to(tmp_path / "real")
    wc.spectrum(torch.eye(2)).save(link)
    assert link.is_symlink()
    assert (tmp_path / "real").read_text().startswith("step,layer")
