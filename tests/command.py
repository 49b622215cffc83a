"""The command line and a user's file, for every test of a command."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path
from typing import Any

import torch
from typer.testing import CliRunner, Result

import wellcond as wc
from wellcond.cli.app import app

BUILD = """
import torch
import wellcond as wc

def network():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2))

def problem(model, batches=(torch.sin(torch.arange(24.0)).view(8, 3), torch.arange(8) % 2)):
    return wc.Problem(model, torch.nn.CrossEntropyLoss(), batches)

def build():
    return problem(network())

def with_optimizer():
    model = network()
    return problem(model), torch.optim.SGD(model.parameters(), lr=0.25, momentum=0.9)

def with_adam():
    model = network()
    return problem(model), torch.optim.Adam(model.parameters(), lr=1e-3)
"""
"""A small network on one batch, without an optimizer and with one."""


def run(*arguments: object, width: int = 80) -> Result:
    """Run `wellcond` with these arguments in a terminal without color."""
    threads = torch.get_num_threads()
    result = CliRunner().invoke(app, [str(each) for each in arguments], env={"COLUMNS": str(width), "NO_COLOR": "1"})
    assert torch.get_num_threads() == threads
    return result


def script(folder: Path, code: str = "", name: str = "train.py", header: str = BUILD) -> Path:
    """Write a user's file: the header and some code."""
    path = folder / name
    path.write_text(textwrap.dedent(header) + textwrap.dedent(code), encoding="utf-8")
    return path


def built(code: str = BUILD, function: str = "build") -> wc.Problem:
    """What a function of the user's file returns."""
    namespace: dict[str, Any] = {}
    exec(textwrap.dedent(code), namespace)
    problem: wc.Problem = namespace[function]()
    return problem


def words(text: str) -> str:
    """Without line breaks, which depend on the width of the terminal, and without the frame of usage errors."""
    return " ".join(text.replace("│", "").split())


def one_line(result: Result) -> str:
    """The error, which is one line on its own stream, with exit code 1 and no traceback."""
    assert result.exit_code == 1
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1
    assert "Traceback" not in result.output
    return result.stderr.removeprefix("error: ").strip()


def parsed(result: Result) -> dict[str, Any]:
    """The JSON on standard output, which holds nothing else."""
    assert result.exit_code == 0, result.output
    content: dict[str, Any] = json.loads(result.stdout)
    return content
