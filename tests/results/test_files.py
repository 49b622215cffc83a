from __future__ import annotations

import os
from pathlib import Path

import pytest

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
