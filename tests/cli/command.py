"""The command line and a user's file, for every test of a command."""

from __future__ import annotations

import textwrap
from pathlib import Path

import torch
from typer.testing import CliRunner, Result

from wellcond.cli.app import app


def run(*arguments: object) -> Result:
    """Run `wellcond` with these arguments in a terminal of 80 columns without colour."""
    threads = torch.get_num_threads()
    result = CliRunner().invoke(app, [str(each) for each in arguments], env={"COLUMNS": "80", "NO_COLOR": "1"})
    assert torch.get_num_threads() == threads
    return result


def script(folder: Path, code: str, name: str = "train.py") -> Path:
    """Write a user's file."""
    path = folder / name
    path.write_text(textwrap.dedent(code), encoding="utf-8")
    return path
