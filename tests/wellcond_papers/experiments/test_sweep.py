"""Grids of settings over experiments and functions; a killed sweep ends in the same table."""

from __future__ import annotations

import json
import math
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import toy

from wellcond.errors import InvalidProblem, OutputError, Unsupported
from wellcond.results import Row
from wellcond.results.quantities import DIVERGED_AT, TRAINING_LOSS
from wellcond_papers.experiments.sweep import sweep
from wellcond_papers.experiments.swept import Sweep

SLOW = """
import os, pathlib, time, torch

def train(lr, width, seed=0):
    with open(pathlib.Path(__file__).with_name("workers"), "a") as file:
        print(os.getpid(), file=file)
    time.sleep(0.2)
    generator = torch.Generator().manual_seed(seed)
    weights = torch.randn(width, generator=generator)
    for _ in range(20):
        weights = weights - lr * torch.sin(weights)
    return {"loss": weights.square().mean(), "largest": weights.max()}
"""
GRID = {"lr": [0.1, 0.3, 0.5], "width": [10, 20]}
CELLS = 12


def bowl(lr: float, gamma: float = 1.0, seed: int = 0) -> list[Row]:
    """A loss that diverges above a rate of 2/γ, which it knows."""
    if lr > 2 / gamma:
        return [Row(3, "", DIVERGED_AT, 3, "")]
    return [Row(0, "", "loss", 1.0, ""), Row(9, "", "loss", gamma + lr + seed, ""), Row(0, "", "max_lr", 2 / gamma, "")]


def test_a_function_is_called_at_every_point_with_every_seed(tmp_path: Path) -> None:
    result = sweep(bowl, {"lr": [0.1, 0.2], "gamma": [1.0, 2.0]}, 2, out=tmp_path)
    points = [(r.settings["lr"], r.settings["gamma"], r.settings["seed"]) for r in result.table]
    assert points == [(lr, gamma, seed) for lr in (0.1, 0.2) for gamma in (1.0, 2.0) for seed in (0, 1)]
    assert [r.last("loss") for r in result.table] == [gamma + lr + seed for lr, gamma, seed in points]
    lines = (
        pytest.importorskip("pyarrow.parquet").read_table(tmp_path / "sweeps" / "bowl" / "table.parquet").to_pylist()
    )
    assert len(lines) == len(result.rows())
    assert list(lines[0]) == ["lr", "gamma", "seed", *Row._fields, "error"]
    assert json.loads((tmp_path / "sweeps" / "bowl" / "sweep.json").read_text())["grid"] == result.grid


@pytest.mark.slow
def test_finished_cells_of_another_grid_are_used_again(tmp_path: Path) -> None:
    calls: list[float] = []

    def counted(lr: float) -> dict[str, float]:
        calls.append(lr)
        return {"loss": lr}

    sweep(counted, {"lr": [0.1, 0.2]}, out=tmp_path)
    result = sweep(counted, {"lr": np.array([0.2, 0.3])}, out=tmp_path)
    assert calls == [0.1, 0.2, 0.3]
    assert [row.value for row in result.rows()] == [0.2, 0.3]


def test_a_changed_function_is_run_anew(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    for factor in (1, 2):
        path.write_text(f"def scaled(lr):\n    return {{'loss': {factor} * lr}}\n")
        result = sweep(f"{path}:scaled", {"lr": [3.0]}, out=tmp_path)
        assert [row.value for row in result.rows()] == [3.0 * factor]


@pytest.mark.parametrize(
    ("grid", "seeds", "message"),
    [
        ({}, None, "the grid is empty"),
        ({"lr": []}, None, "the grid is empty"),
        ({"lr": [math.nan]}, None, "cannot be a value"),
        ({"rate": [1.0]}, None, "cannot be swept over 'rate'; it takes lr, gamma, seed"),
        ({"lr": [1.0], "seed": [1]}, None, "set the number of seeds instead"),
        ({"gamma": [1.0]}, None, "also needs lr"),
    ],
)
def test_what_a_function_cannot_be_called_with_is_refused(
    grid: dict[str, list[float]], seeds: int | None, message: str, tmp_path: Path
) -> None:
    with pytest.raises(InvalidProblem, match=message):
        sweep(bowl, grid, seeds, out=tmp_path)
    assert not list(tmp_path.iterdir())


def test_seeds_of_a_function_without_one_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidProblem, match="takes no seed"):
        sweep(lambda lr: {"loss": lr}, {"lr": [1.0]}, 2, out=tmp_path)


def test_what_a_function_should_return_is_said(tmp_path: Path) -> None:
    result = sweep(lambda lr: lr, {"lr": [1.0]}, out=tmp_path)
    assert 'returned a float; return a mapping of names to numbers, such as {"loss": 0.1}' in result.failures[0].error


@pytest.mark.slow
def test_an_experiment_is_run_arm_by_arm_with_other_settings(tmp_path: Path) -> None:
    result = sweep(toy.TOY, {"steps": [1, 2]}, 1, scale="smoke", out=tmp_path)
    assert [(r.arm, r.settings["steps"], len(r.rows)) for r in result.table] == [
        ("slow", 1, 1), ("slow", 2, 2), ("fast", 1, 1), ("fast", 2, 2),
    ]  # fmt: skip
    one = sweep(toy.TOY, {"arm": ["fast"], "lr": [0.5]}, scale="smoke", out=tmp_path)
    assert [(r.arm, r.settings["seed"], r.settings["lr"]) for r in one.table] == [("fast", 0, 0.5), ("fast", 1, 0.5)]
    assert one.drawn == TRAINING_LOSS


@pytest.mark.parametrize(
    ("grid", "message"),
    [
        ({"stepz": [1]}, "no setting 'stepz' to sweep; closest: steps"),
        ({"seed": [1]}, "set the number of seeds instead"),
        ({"arm": ["quick"]}, "no arm 'quick' at this scale; it has slow, fast"),
    ],
)
def test_a_setting_that_an_experiment_has_not_is_refused(
    grid: dict[str, list[object]], message: str, tmp_path: Path
) -> None:
    with pytest.raises(InvalidProblem, match=message):
        sweep(toy.TOY, grid, scale="smoke", out=tmp_path)


def test_a_missing_file_is_said(tmp_path: Path) -> None:
    with pytest.raises(Unsupported, match="there is no file"):
        sweep(f"{tmp_path}/train.py:train", {"lr": [0.1]}, out=tmp_path)


@pytest.fixture
def swept(tmp_path: Path) -> Sweep:
    return sweep(bowl, {"gamma": [0.5, 1.0, 2.0], "lr": [0.5, 1.5, 3.0]}, 2, out=tmp_path)


@pytest.mark.slow
def test_the_heat_map_has_the_rate_along_it_and_the_limit_as_a_line(swept: Sweep, tmp_path: Path) -> None:
    assert swept.axes == ["lr", "gamma"]
    assert (tmp_path / "sweeps" / "bowl" / "figure.png").read_bytes().startswith(b"\x89PNG")
    axes = swept.figure().axes[0]
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("lr", "gamma")
    grid = axes.collections[0].get_array()
    means = {(gamma, lr): gamma + lr + 0.5 for gamma in (0.5, 1.0, 2.0) for lr in (0.5, 1.5, 3.0) if lr <= 2 / gamma}
    expected = [[means.get((gamma, lr), math.nan) for lr in (0.5, 1.5, 3.0)] for gamma in (0.5, 1.0, 2.0)]
    np.testing.assert_allclose(np.ma.filled(grid, math.nan).reshape(3, 3), expected)
    (line,) = axes.lines
    assert line.get_label() == "limit, measured"
    assert list(line.get_ydata()) == [0.5, 1.5, 2.5], "at the middle of every row"
    # limits of 4, 2 and 1 among rates of ½, 1½ and 3: beyond the last, between the last two, between the first two
    assert list(line.get_xdata()) == sorted(line.get_xdata(), reverse=True)
    assert 1.5 < line.get_xdata()[1] < 2.5


@pytest.mark.slow
def test_one_setting_makes_curves_and_none_makes_no_picture(tmp_path: Path) -> None:
    curves = sweep(bowl, {"lr": [0.01, 0.1, 1.0], "gamma": [1.0]}, 2, out=tmp_path)
    (axes,) = curves.figure().axes
    assert list(axes.lines[0].get_xdata()) == [0.01, 0.1, 1.0]
    assert axes.get_xscale() == "log"
    assert list(axes.lines[0].get_ydata()) == pytest.approx([1.51, 1.6, 2.5])
    single = sweep(bowl, {"lr": [0.1]}, out=tmp_path / "single")
    assert not (tmp_path / "single" / "sweeps" / "bowl" / "figure.png").exists()
    with pytest.raises(OutputError, match="no setting of the grid has several numbers"):
        single.figure()


@pytest.mark.slow
def test_the_text_counts_seeds_diverged_runs_and_failures(swept: Sweep) -> None:
    text = str(swept)
    assert "18 cells finished, 0 failed" in text
    line = next(line for line in text.splitlines() if line.startswith("gamma = 2, lr = 3"))
    assert line.split()[-2:] == ["2", "2"]


@pytest.mark.slow
def test_a_sweep_killed_in_the_middle_ends_in_the_same_table(tmp_path: Path) -> None:
    """It is killed with two workers, which end too, and goes on in one process."""
    parquet = pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "train.py"
    path.write_text(SLOW)
    target, folder = f"{path}:train", tmp_path / "killed" / "sweeps" / "train-train"
    sweep(target, GRID, 2, out=tmp_path / "whole")
    (tmp_path / "workers").unlink()
    start = "from wellcond.cli.main import main; main()"
    arguments = [f"--grid={name}={','.join(map(str, values))}" for name, values in GRID.items()]
    arguments += ["--seeds=2", f"--out={tmp_path / 'killed'}", "--launcher=processes", "--workers=2"]
    process = subprocess.Popen([sys.executable, "-c", start, "sweep", target, *arguments], stdout=subprocess.DEVNULL)
    begun = tmp_path / "workers"
    wait_until(lambda: begun.exists() and len(set(begun.read_text().split())) == 2, seconds=120)
    wait_until(lambda: len(list(folder.glob("cells/*.json"))) >= 3, seconds=120)
    process.kill()
    process.wait()
    times = {file: file.stat().st_mtime_ns for file in folder.glob("cells/*.json")}
    assert 3 <= len(times) < CELLS
    assert not (folder / "table.parquet").exists()
    workers = {int(line) for line in begun.read_text().split()}
    wait_until(lambda: not any(map(is_running, workers)), seconds=20)
    resumed = sweep(target, GRID, 2, out=tmp_path / "killed")
    assert len(resumed.table) == CELLS
    assert all(file.stat().st_mtime_ns == moment for file, moment in times.items())
    tables = [parquet.read_table(each) for each in tmp_path.glob("*/sweeps/train-train/table.parquet")]
    assert tables[0].equals(tables[1])


def wait_until(is_true: Callable[[], bool], seconds: float) -> None:
    end = time.monotonic() + seconds
    while not is_true():
        assert time.monotonic() < end, "it took too long"
        time.sleep(0.02)


def is_running(process: int) -> bool:
    """Whether it is there, and more than an entry in the list of processes."""
    try:
        status = Path(f"/proc/{process}/stat").read_text()
    except FileNotFoundError:
        return False
    return status.rpartition(")")[2].split()[0] != "Z"


def test_a_value_that_is_named_twice_counts_once(tmp_path: Path) -> None:
    result = sweep(bowl, {"lr": [0.1, 0.1, 1, True]}, out=tmp_path)
    assert [record.settings["lr"] for record in result.table] == [0.1, 1, True]


def test_the_picture_of_another_grid_goes(tmp_path: Path) -> None:
    picture = tmp_path / "sweeps" / "bowl" / "figure.png"
    sweep(bowl, {"lr": [0.1, 0.2]}, out=tmp_path)
    assert picture.is_file()
    sweep(bowl, {"lr": [0.1]}, out=tmp_path, x=None)
    assert not picture.exists()


def test_an_axis_has_numbers_and_is_one_of_two(tmp_path: Path) -> None:
    for axes in ({"x": "gamma"}, {"x": "lr", "y": "lr"}):
        with pytest.raises(InvalidProblem, match="settings with numbers: lr"):
            sweep(bowl, {"lr": [0.1], "gamma": ["a"]}, out=tmp_path, **axes)  # type: ignore[arg-type]


def test_a_function_that_exits_or_returns_no_numbers_fails_in_its_own_cell(tmp_path: Path) -> None:
    def odd(kind: str) -> dict[str, object]:
        if kind == "exits":
            sys.exit("bye")
        return {} if kind == "empty" else {"loss": "low"}

    result = sweep(odd, {"kind": ["exits", "empty", "text"]}, out=tmp_path)
    errors = [failure.error for failure in result.failures]
    for error, text in zip(errors, ("SystemExit: bye", "an empty mapping", "no number as 'loss'"), strict=True):
        assert text in error


def test_other_values_around_a_function_make_other_cells(tmp_path: Path) -> None:
    def times(factor: float) -> Callable[..., dict[str, float]]:
        def product(lr: float) -> dict[str, float]:
            return {"loss": factor * lr}

        return product

    typed: dict[str, Callable[..., dict[str, float]]] = {}
    functions = [times(2.0), times(3.0), partial(bowl, gamma=0.5), partial(bowl, gamma=0.25)]
    for factor in (2, 3):
        exec(f"def typed(lr): return {{'loss': {factor} * lr}}", typed)
        functions.append(typed["typed"])
    losses = [sweep(each, {"lr": [1.0]}, out=tmp_path).table[0].last("loss") for each in functions]
    assert losses == [2.0, 3.0, 1.5, 1.25, 2.0, 3.0]
