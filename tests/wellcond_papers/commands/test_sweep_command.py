"""`wellcond sweep`: values of a grid, and a function of the user's."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from command import one_line, run, script, words

from wellcond_papers.commands.sweep import axis

TRAIN = """
def train(lr, width=4, seed=0):
    if lr > 5:
        raise ValueError("too large")
    return {"loss": lr * width + seed}
"""


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("a=0.1,.5,1e-3", [0.1, 0.5, 1e-3]),
        ("a=1,2", [1, 2]),
        ("a=0.1:0.5:5", [0.1, 0.2, 0.3, 0.4, 0.5]),
        ("a=1:3:3", [1, 2, 3]),
        ("a=0:1:3", [0.0, 0.5, 1.0]),
        ("a=log:0.001:1:4", [0.001, 0.01, 0.1, 1.0]),
        ("a=log:1:100:3", [1, 10, 100]),
        ("a=true,none,batch", [True, "none", "batch"]),
    ],
)
def test_values_of_a_setting(text: str, values: list[object]) -> None:
    name, parsed = axis(text)
    assert name == "a"
    assert parsed == values
    assert [type(value) for value in parsed] == [type(value) for value in values]


@pytest.mark.parametrize(
    "text", ["lr", "lr=", "=1", "lr=1:2", "lr=log:0:1:3", "lr=a:b:c", "lr=1:2:-1", "lr=1:2:inf", "lr=1:2:2.5", "lr=,"]
)
def test_other_values_are_usage_errors(text: str, tmp_path: Path) -> None:
    result = run("sweep", "train.py:train", "--grid", text, "--out", tmp_path)
    assert result.exit_code == 2
    assert "Traceback" not in result.output


@pytest.mark.slow
def test_a_sweep_prints_its_points_and_says_where_the_table_is(tmp_path: Path) -> None:
    path = script(tmp_path, header=TRAIN)
    arguments = ["sweep", f"{path}:train", "--grid", "lr=1,2", "--grid", "width=3:5:2", "--seeds", 2, "--out", tmp_path]
    result = run(*arguments, width=120)
    assert result.exit_code == 0, result.output
    assert "8 cells finished, 0 failed" in result.output
    assert "lr = 2, width = 5 10.5 10 to 11 2" in words(result.output)
    folder = tmp_path / "sweeps" / "train-train"
    assert f"table.parquet, figure.png, sweep.json in {folder}" in words(result.output)
    content = json.loads(run(*arguments, "--json").stdout)
    assert content == json.loads((folder / "sweep.json").read_text())
    assert content["grid"] == {"lr": [1, 2], "width": [3, 5]}


@pytest.mark.slow
def test_a_failed_cell_is_printed_and_no_success(tmp_path: Path) -> None:
    path = script(tmp_path, header=TRAIN)
    result = run("sweep", f"{path}:train", "--grid", "lr=1,9", "--out", tmp_path, width=120)
    assert result.exit_code == 1
    assert "failed: lr = 9, seed = 0: ValueError: too large (train.py, line 4)" in words(result.output)
    content = json.loads((tmp_path / "sweeps" / "train-train" / "sweep.json").read_text())
    assert len(content["cells"]) == len(content["failed"]) == 1


@pytest.mark.slow
def test_a_damaged_cell_is_reported(tmp_path: Path) -> None:
    path = script(tmp_path, header=TRAIN)
    arguments = ["sweep", f"{path}:train", "--grid", "lr=1,2", "--out", tmp_path]
    first = run(*arguments)
    (cell, *_) = (tmp_path / "sweeps" / "train-train" / "cells").iterdir()
    cell.write_text("{")
    again = run(*arguments)
    assert cell.name in again.stderr
    assert "is run again" in again.stderr
    assert again.stdout == first.stdout


def test_a_wrong_target_is_one_line(tmp_path: Path) -> None:
    path = script(tmp_path, header=TRAIN)
    assert "Closest: train" in one_line(run("sweep", f"{path}:trian", "--grid", "lr=1", "--out", tmp_path))
    assert "Closest: wei2019-fig" in one_line(run("sweep", "wei2019-fig", "--grid", "lr=1", "--out", tmp_path))


def test_what_a_function_prints_is_not_part_of_the_json(tmp_path: Path) -> None:
    path = script(tmp_path, header='def train(lr):\n    print("hello")\n    return {"loss": lr}\n')
    result = run("sweep", f"{path}:train", "--grid", "lr=1,2", "--out", tmp_path, "--json")
    assert json.loads(result.stdout)["name"] == "train-train"
    assert "hello" in result.stderr


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("def train(lr: return", "SyntaxError"),
        ("import nowhere", "No module named 'nowhere'"),
        ("exit(3)", "SystemExit"),
    ],
)
def test_a_file_that_cannot_be_loaded_is_an_error_in_a_line(code: str, message: str, tmp_path: Path) -> None:
    path = script(tmp_path, header=code)
    result = run("sweep", f"{path}:train", "--grid", "lr=1", "--out", tmp_path)
    assert result.exit_code == 1
    assert f"{path} cannot be loaded" in one_line(result)
    assert message in one_line(result)


def test_a_place_where_nothing_can_be_written_is_refused_before_the_work(tmp_path: Path) -> None:
    path = script(tmp_path, header='def train(lr):\n    raise AssertionError("it ran")\n')
    result = run("sweep", f"{path}:train", "--grid", "lr=1", "--out", path)
    assert result.exit_code == 1
    assert "name another folder" in one_line(result)
    assert "it ran" not in result.output


def test_a_setting_is_named_once_and_a_file_with_its_function(tmp_path: Path) -> None:
    result = run("sweep", "train.py:train", "--grid", "lr=1", "--grid", "lr=2", "--out", tmp_path)
    assert result.exit_code == 2
    assert "names lr twice" in words(result.output)
    assert "write train.py:FUNCTION" in one_line(run("sweep", "train.py", "--grid", "lr=1"))
