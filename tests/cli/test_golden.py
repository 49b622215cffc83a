"""What the terminal prints, to the character, 100 columns wide.

The files in `golden/` are what the commands print for results made by hand, and for problems whose numbers are exact.
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

from wellcond.diagnosis.diagnosis import Diagnosis
from wellcond.treatment.treatment import Treatment

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
FROM_HAND: dict[str, tuple[str, Callable[..., Any]]] = {
    "diagnose": ("measure", lambda *_, **__: made_results.diagnosis()),
    "diagnose-healthy": ("measure", lambda *_, **__: replace(made_results.diagnosis(), findings=(), failed={})),
    "treat": ("compare", lambda *_, **__: made_results.treatment()),
    "demo": ("diagnosed_and_treated", lambda *_, **__: (made_results.diagnosis(), made_results.treatment())),
}
"""What stands in for the measurement, by the name it has in the file of the command."""


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("diagnose", ["diagnose", "train.py:ok", "--fail-on", "never"]),
        ("diagnose-healthy", ["diagnose", "train.py:ok"]),
        ("treat", ["treat", "train.py:ok"]),
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
    monkeypatch.setattr(Diagnosis, "verdict", lambda self: f"A verdict on {len(self.findings)} findings.")
    if name == "demo":
        monkeypatch.setattr(Treatment, "verdict", lambda self: "A verdict on remedies.")
    if name in FROM_HAND:
        monkeypatch.setattr(importlib.import_module(f"wellcond.cli.commands.{arguments[0]}"), *FROM_HAND[name])
    result = run(*arguments, width=100)
    assert result.exit_code == 0, result.output
    text = result.stdout.replace(str(tmp_path.resolve()), "…")
    for what_varies, shown in ((r"\d+ s; layer", "… s; layer"), (r"± \de-1\d", "± …")):  # time, rounding
        text = re.sub(what_varies, shown, text)
    text = "".join(f"{line.rstrip()}\n" for line in text.splitlines())
    golden = GOLDEN / f"{name}.txt"
    if os.environ.get("RENEW_GOLDEN"):
        golden.write_text(text, encoding="utf-8")
    assert text == golden.read_text(encoding="utf-8")
