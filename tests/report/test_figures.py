from __future__ import annotations

from pathlib import Path

import pytest
from subjects import AWKWARD, SOUND

figures = pytest.importorskip("wellcond.report.figures")


def test_a_picture_of_two_networks_is_written(tmp_path: Path) -> None:
    path = figures.save_png({"plain": AWKWARD.rows(), "batchnorm": SOUND.rows()}, tmp_path / "figure.png")
    assert path.read_bytes().startswith(b"\x89PNG")
    assert list(tmp_path.iterdir()) == [path]
