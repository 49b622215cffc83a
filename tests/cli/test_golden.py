"""What the terminal prints, to the character.

The files in `golden/` are what the commands print for a real network, with its numbers masked, since they vary with the
platform; for problems whose numbers are exact; and, for the layout of numbers, for results written by hand (`by-hand`).
After a change that is meant to be seen, write them again, and read the difference before you commit it:

    RENEW_GOLDEN=1 python -m pytest tests/cli/test_golden.py && git diff tests/cli/golden
"""

from __future__ import annotations

import importlib
import os
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import made_results
import pytest
from command import run, script

import wellcond as wc
from wellcond.diagnosis.inspection.inspect import inspect

GOLDEN = Path(__file__).parent / "golden"
QUADRATIC = """
import torch
import wellcond as wc

def ok():
    model = torch.nn.Sequential(torch.nn.Linear(1, 1, bias=False)).double()
    torch.nn.init.ones_(model[0].weight)
    return wc.Problem(model, torch.nn.MSELoss(), (torch.ones(2, 1).double(), torch.zeros(2, 1).double()))
"""
"""The loss is w²: its Hessian is 2, and all numbers are exact. The target `train.py:ok` looks like an emoji."""
REAL = """
import torch
import wellcond as wc
from torch.nn import Linear, ReLU

def build():
    torch.manual_seed(0)
    model = torch.nn.Sequential()
    for name in ("first", "second", "third"):
        model.add_module(name, Linear(8, 8))
        model.add_module(f"{name}_relu", ReLU())
    model.add_module("head", Linear(8, 2))
    inputs = 300 * torch.rand(32, 8)
    targets = (inputs[:, 0] > inputs[:, 1]).long()
    problem = wc.Problem(model.double(), torch.nn.CrossEntropyLoss(), (inputs.double(), targets))
    return problem, torch.optim.SGD(model.parameters(), lr=0.1)
"""
"""A small network whose inputs are not scaled."""


def healthy() -> wc.Diagnosis:
    diagnosis = made_results.diagnosis()
    evidence = replace(diagnosis.evidence, inspection=inspect(diagnosis.evidence.problem))
    return replace(diagnosis, findings=(), failed={}, evidence=evidence)


BY_HAND: dict[str, tuple[str, Callable[..., Any]]] = {
    "diagnose-by-hand": ("measure", lambda *_, **__: made_results.diagnosis()),
    "diagnose-healthy-by-hand": ("measure", lambda *_, **__: healthy()),
    "treat-by-hand": ("compare", lambda *_, **__: made_results.treatment()),
    "demo": ("diagnosed_and_treated", lambda *_, **__: (made_results.diagnosis(), made_results.treatment())),
}
"""What stands in for the measurement, by the name it has in the file of the command."""


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("diagnose-by-hand", ["diagnose", "train.py:ok", "--fail-on", "never"]),
        ("diagnose-healthy-by-hand", ["diagnose", "train.py:ok"]),
        ("treat-by-hand", ["treat", "train.py:ok"]),
        ("demo", ["demo", "--out", "demo.json"]),
        ("probe", ["probe", "train.py:ok", "--steps", "3", "--span", "1", "3", "--layer", "0"]),
        ("suggest-lr", ["suggest-lr", "train.py:ok", "--momentum", "0", "--steps", "4"]),
        ("predict-lr", ["predict-lr", "train.py:ok", "--momentum", "0"]),
        ("predict-lr-arch", ["predict-lr", "--arch", "fc 784-1000-1000-10", "--gamma", "0.5:2"]),
        ("help", ["--help"]),
    ],
)
def test_what_a_command_prints(
    name: str, arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script(tmp_path, header=QUADRATIC)
    monkeypatch.chdir(tmp_path)
    if name in BY_HAND:
        monkeypatch.setattr(importlib.import_module(f"wellcond.cli.commands.{arguments[0]}"), *BY_HAND[name])
    result = run(*arguments, width=100)
    assert result.exit_code == 0, result.output
    text = result.stdout.replace(str(tmp_path.resolve()), "…")
    for what_varies, shown in ((r"\d+ s; layer", "… s; layer"), (r"± \de-1\d", "± …")):  # time, rounding
        text = re.sub(what_varies, shown, text)
    assert_golden(name, text)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("diagnose", ["diagnose", "train.py:build", "--fail-on", "never"]),
        ("treat", ["treat", "train.py:build", "--remedies", "scale-inputs", "--steps", "20", "--seeds", "2"]),
    ],
)
def test_what_a_command_prints_for_a_real_network(
    name: str, arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script(tmp_path, header=REAL)
    monkeypatch.chdir(tmp_path)
    result = run(*arguments, width=1000)  # so that the length of a number moves no word to another line
    assert result.exit_code == 0, result.output
    assert_golden(name, masked(result.stdout))


NUMBER = r"(?<![\w.])(± |-)?(\d+([.,]\d+)*(e[-+]?\d+)?|∞)( (ms|s|min))?(?!\w)"
BARS = r"[▏▎▍▌▋▊▉█▁▂▃▄▅▆▇]+"
TIME = " A step takes # times as long."


def masked(text: str) -> str:
    """Without numbers, bars, times and the widths of columns; words and the order of lines stay."""
    text = re.sub(NUMBER, "#", re.sub(BARS, "", text)).replace(TIME, "")
    text = re.sub("──+", "──", text)
    return "".join(f"{re.sub('(?<=[^ ]) {2,}', '  ', line)}\n" for line in text.splitlines())


def assert_golden(name: str, text: str) -> None:
    text = "".join(f"{line.rstrip()}\n" for line in text.splitlines())
    golden = GOLDEN / f"{name}.txt"
    if os.environ.get("RENEW_GOLDEN"):
        golden.write_text(text, encoding="utf-8")
    assert text == golden.read_text(encoding="utf-8")
