"""The commands that the documentation shows on the examples do what it says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from command import run

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/*.py")]
SHOWN = {
    command for page in PAGES for command in re.findall(r"wellcond (\S+) (examples/[\w./:]+)", page.read_text("utf-8"))
}
QUICK = {
    "diagnose": ("--fail-on", "never"),
    "treat": ("--steps", 1, "--remedies", "bnp", "--seeds", 1),
    "suggest-lr": ("--steps", 1),
}


@pytest.mark.slow
@pytest.mark.parametrize(("command", "target"), sorted(SHOWN))
def test_a_command_that_is_shown_runs(command: str, target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    result = run(command, target, *QUICK.get(command, ()))
    assert result.exit_code == 0, result.output
    assert result.output.startswith(f"{target}: Problem(Sequential, ")


@pytest.mark.slow
def test_the_network_that_does_not_train_stays_at_chance(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    result = run("treat", "examples/digits.py:build", *QUICK["treat"])
    assert re.search(r"untreated\s+\S+\s+2\.3", result.output)  # log 10
