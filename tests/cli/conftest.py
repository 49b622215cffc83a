from __future__ import annotations

import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner, Result

from wellcond.cli.app import app

Run = Callable[..., Result]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run the command line in a terminal of 80 columns; threads as before afterwards."""
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("NO_COLOR", "1")
    threads = torch.get_num_threads()

    def invoke(*arguments: object) -> Result:
        result = CliRunner().invoke(app, [str(each) for each in arguments])
        assert torch.get_num_threads() == threads
        return result

    return invoke


@pytest.fixture
def script(tmp_path: Path) -> Callable[..., Path]:
    """Write a user's file and return its path."""

    def write(code: str, name: str = "train.py") -> Path:
        path = tmp_path / name
        path.write_text(textwrap.dedent(code), encoding="utf-8")
        return path

    return write
