from __future__ import annotations

from pathlib import Path

import pytest
import torch
from subjects import AWKWARD, SOUND

import wellcond as wc

figures = pytest.importorskip("wellcond.report.figures")


def test_a_picture_of_two_networks_is_written(tmp_path: Path) -> None:
    path = figures.save_png({"plain": AWKWARD.rows(), "batchnorm": SOUND.rows()}, tmp_path / "figure.png")
    assert path.read_bytes().startswith(b"\x89PNG")
    assert list(tmp_path.iterdir()) == [path]


def test_a_picture_of_densities_is_written(tmp_path: Path) -> None:
    found = {str(probes): wc.density(torch.diag(torch.arange(9.0)), probes=probes, steps=4) for probes in (1, 3)}
    path = figures.save_density_png(found, tmp_path / "density.png")
    assert path.read_bytes().startswith(b"\x89PNG")
