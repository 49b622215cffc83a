"""What all commands share: JSON on standard output, files in the form of their suffix, refusals before the work."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from command import one_line, parsed, run, script

COMMANDS: dict[str, tuple[str, ...]] = {
    "diagnose": (),
    "probe": ("--steps", "2", "--layer", "0"),
    "suggest-lr": ("--steps", "2"),
    "treat": ("--steps", "2", "--lr", "0.1", "--seeds", "1"),
    "predict-lr": (),
}
RESULTS = {
    "diagnose": "Diagnosis",
    "probe": "Probe",
    "suggest-lr": "SuggestedRate",
    "treat": "Treatment",
    "predict-lr": "SuggestedRate",
}


@pytest.mark.parametrize("command", COMMANDS)
def test_json_is_all_there_is_on_standard_output(command: str, tmp_path: Path) -> None:
    rows = tmp_path / "rows.csv"
    content = parsed(run(command, f"{script(tmp_path)}:build", *COMMANDS[command], "--json", "--out", rows))
    assert content["result"] == RESULTS[command]
    assert {"step", "layer", "quantity", "value", "unit"} == set(content["rows"][0])
    assert content["values"]
    lines = rows.read_text(encoding="utf-8").splitlines()
    assert len(lines) == 1 + len(content["rows"])


def test_json_of_an_architecture() -> None:
    content = parsed(run("predict-lr", "--arch", "fc 784-100-10", "--gamma", "0.5:2", "--json"))
    assert len(content["values"]["gammas"]) == 61
    assert len(content["values"]["as_trained"]["max_lr"]) == 61


@pytest.mark.parametrize("command", COMMANDS)
def test_files_are_written_in_the_form_of_their_suffix(command: str, tmp_path: Path) -> None:
    begins: dict[str, bytes] = {"html": b"<!doctype html>", "png": b"\x89PNG", "json": b"{", "csv": b"step,layer"}
    paths = {tmp_path / f"a.{form}": begin for form, begin in begins.items()}
    options = [each for path in paths for each in ("--out", path)]
    result = run(command, f"{script(tmp_path)}:build", *COMMANDS[command], *options, width=300)
    assert result.exit_code == 0, result.output
    for path, begin in paths.items():
        assert path.read_bytes().startswith(begin)
        assert f"written: {path}\n" in result.output
    assert set(tmp_path.iterdir()) == {*paths, tmp_path / "train.py"}


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize(
    ("name", "said"),
    [("no/a.html", "does not exist"), ("a.txt", "a.txt has no known form; end it in one of .html, .png")],
)
def test_a_file_that_cannot_be_written_is_refused_before_the_users_code_runs(
    command: str, name: str, said: str, tmp_path: Path
) -> None:
    path = script(tmp_path, "raise SystemError('ran')")
    assert said in one_line(run(command, f"{path}:build", "--out", tmp_path / name))


def test_without_matplotlib_a_picture_is_refused_before_the_users_code_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    path = script(tmp_path, "raise SystemError('ran')")
    message = one_line(run("treat", f"{path}:build", "--out", tmp_path / "curves.png"))
    assert message == 'matplotlib is not installed. Run:  pip install "wellcond[plots]"'


@pytest.mark.parametrize(
    ("command", "options", "said"),
    [
        ("probe", ["--lr", "-1"], "lr is -1"),
        ("probe", ["--steps", "0"], "steps is 0"),
        ("probe", ["--direction", "up"], "direction"),
        ("suggest-lr", ["--steps", "0"], "--steps"),
        ("suggest-lr", ["--momentum", "1"], "momentum is 1"),
        ("treat", ["--remedy", "adam"], "a remedy must be one of bnp, last-bn, scale-amended, not 'adam'"),
        ("treat", ["--lr", "-0.1"], "a learning rate must be > 0 and finite, not -0.1"),
        ("treat", ["--lr", "fast"], "Invalid value for '--lr'"),
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
    command: str, options: list[Any], said: str, tmp_path: Path
) -> None:
    takes_target = command not in ("demo", "predict-lr --arch") and (command != "predict-lr" or options)
    target = [f"{script(tmp_path)}:build"] if takes_target else []
    result = run(*command.split(), *target, *options, width=200)
    assert result.exit_code == 2
    assert said in " ".join(result.stderr.split())
