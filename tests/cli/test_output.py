"""What all commands share: JSON on standard output, files in the form of their suffix, refusals before the work."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from command import one_line, parsed, run, script, words

COMMANDS = {
    "diagnose": ("Diagnosis", ("--fail-on", "never")),
    "probe": ("Probe", ("--steps", "2", "--layer", "0")),
    "suggest-lr": ("SuggestedRate", ("--steps", "2")),
    "treat": ("Treatment", ("--steps", "2", "--remedies", "rate", "--seeds", "1")),
    "predict-lr": ("SuggestedRate", ()),
}
"""The result of each command, and options that make it quick."""
RAISES = "raise SystemError('ran')"
BEGINS = {"html": b"<!doctype html>", "png": b"\x89PNG", "json": b"{", "csv": b"step,layer,quantity,value,unit\n"}


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
def test_json_goes_to_standard_output_and_files_follow_their_suffix(command: str, tmp_path: Path) -> None:
    kind, options = COMMANDS[command]
    paths = {form: tmp_path / f"a.{form}" for form in BEGINS}
    out = [each for path in paths.values() for each in ("--out", path)]
    result = run(command, f"{script(tmp_path)}:build", *options, "--json", *out, width=300)
    content = parsed(result)
    assert content["result"] == kind
    assert {"step", "layer", "quantity", "value", "unit"} == set(content["rows"][0])
    assert content["values"]
    assert json.loads(paths["json"].read_text(encoding="utf-8")) == content
    assert len(paths["csv"].read_text(encoding="utf-8").splitlines()) == 1 + len(content["rows"])
    for form, path in paths.items():
        assert path.read_bytes().startswith(BEGINS[form])
        assert f"written: {path}\n" in result.stderr
    assert set(tmp_path.iterdir()) == {*paths.values(), tmp_path / "train.py"}


def test_json_of_an_architecture() -> None:
    content = parsed(run("predict-lr", "--arch", "fc 784-100-10", "--gamma", "0.5:2", "--json"))
    assert len(content["values"]["gammas"]) == 61
    assert len(content["values"]["as_trained"]["max_lr"]) == 61


@pytest.mark.parametrize("command", [*COMMANDS, "demo"])
@pytest.mark.parametrize(
    ("name", "message"),
    [("no/a.html", "does not exist"), ("a.txt", "a.txt has no known form; end it in one of .html, .png")],
)
def test_an_unwritable_file_is_refused_before_the_users_code_runs(
    command: str, name: str, message: str, tmp_path: Path
) -> None:
    target = [] if command == "demo" else [f"{script(tmp_path, RAISES)}:build"]
    assert message in one_line(run(command, *target, "--out", tmp_path / name))


def test_without_matplotlib_a_picture_is_refused_before_the_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for library in ("matplotlib.figure", "wellcond.report.figures.shown"):
        monkeypatch.setitem(sys.modules, library, None)
    message = one_line(run("treat", f"{script(tmp_path, RAISES)}:build", "--out", tmp_path / "curves.png"))
    assert message == 'matplotlib is not installed. Run:  pip install "wellcond[plots]"'


@pytest.mark.parametrize(
    ("command", "options", "message"),
    [
        ("probe", ["--lr", "-1"], "lr is -1"),
        ("probe", ["--steps", "0"], "steps is 0"),
        ("probe", ["--direction", "up"], "direction"),
        ("suggest-lr", ["--steps", "0"], "--steps"),
        ("suggest-lr", ["--momentum", "1"], "momentum is 1"),
        ("treat", ["--remedies", "exercise"], "not 'exercise'"),
        ("treat", ["--steps", "0"], "steps must be ≥ 1, not 0"),
        ("treat", ["--momentum", "1"], "momentum must be ≥ 0 and < 1, not 1"),
        ("demo", ["--depth", "1"], "--depth"),
        ("demo", ["--width", "0"], "--width"),
        ("demo", ["--depth", "deep"], "--depth"),
        ("predict-lr", [], "either"),
        ("predict-lr", ["--arch", "fc 3-4-2"], "either"),
        ("predict-lr", ["--gamma", "1"], "--gamma"),
        ("predict-lr --arch", ["fc 3"], "'fc 3'"),
        ("predict-lr --arch", ["fc 3-4-2", "--gamma", "x"], "gamma"),
        ("predict-lr --arch", ["fc 3-4-2", "--gamma", "0"], "gamma"),
        ("predict-lr --arch", ["fc 3-4-2", "--momentum", "1"], "momentum"),
    ],
)
def test_arguments_that_make_no_sense_are_usage_errors(
    command: str, options: list[Any], message: str, tmp_path: Path
) -> None:
    takes_target = command not in ("demo", "predict-lr --arch") and (command != "predict-lr" or options)
    target = [f"{script(tmp_path)}:build"] if takes_target else []
    result = run(*command.split(), *target, *options, width=200)
    assert result.exit_code == 2
    assert message in words(result.stderr)
