"""`sweep`: an experiment, or a function of yours, at every point of a grid of settings and with several seeds."""

from __future__ import annotations

import contextlib
import difflib
import itertools
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from wellcond.errors import InvalidProblem, MissingExtra
from wellcond.results import Progress
from wellcond.treatment.launching.by_name import LauncherName, launcher_of
from wellcond.treatment.launching.launcher import Launcher
from wellcond_papers.data.locate import data_root
from wellcond_papers.experiments import catalog as catalog
from wellcond_papers.experiments.experiment import Cell, Experiment
from wellcond_papers.experiments.reproduce import (
    check_data,
    check_device,
    failures_of,
    made_with,
    measure_of,
)
from wellcond_papers.experiments.rows import write_parquet
from wellcond_papers.experiments.running.run_all import run_all
from wellcond_papers.experiments.running.store import Store
from wellcond_papers.experiments.running.task import Task
from wellcond_papers.experiments.running.user_function import UserFunction
from wellcond_papers.experiments.scales import Scale
from wellcond_papers.experiments.swept import Sweep, is_number
from wellcond_papers.experiments.table import Table

Grid = Mapping[str, Sequence[Any]]
"""Values by the name of the setting."""


def sweep(
    target: str | Experiment | Callable[..., Any],
    grid: Grid,
    seeds: int | None = None,
    *,
    scale: Scale = "laptop",
    out: str | os.PathLike[str] = "runs",
    device: str = "cpu",
    data: str | os.PathLike[str] | None = None,
    launcher: LauncherName | Launcher = "in-process",
    workers: int | None = None,
    x: str | None = None,
    y: str | None = None,
    quantity: str | None = None,
    progress: Progress = lambda what, share: None,
) -> Sweep:
    """Run every point of a grid, or those that have not finished yet.

    Args:
        target: The name of an experiment, whose settings the grid overrides; or a function, or "file.py:function",
            which is called with the values of a point and, if it takes one, `seed`. It returns a mapping of names to
            numbers, or rows.
        grid: Values by setting; `{"lr": [0.1, 0.01], "gamma": [1.0, 2.0]}` has four points.
        seeds: The number of seeds at each point; None for that of the scale, or one.
        scale: The scale of the experiment.
        out: Cells, table and picture go to `out/sweeps/name`. Finished cells are never run again; those that failed
            are. If the code of a function has changed, all its cells are new.
        device: Where an experiment trains and measures.
        data: The folder with the data sets of an experiment.
        launcher: Where cells are run: "in-process", "processes", "ray" or a `Launcher`.
        workers: Cells that run at once; None for one per core.
        x: The setting along the x axis; by default the learning rate, else the first with several numbers.
        y: The setting along the y axis; by default the next one with several numbers.
        quantity: The quantity that is drawn; by default a loss if there is one.
        progress: Called as (what is being done, share of all work done).

    Returns:
        All rows with their settings.

    Raises:
        InvalidProblem: The target does not take a setting of the grid.

    Example:
        >>> def parabola(x, y):
        ...     return {"height": x**2 + y}
        >>> result = sweep(parabola, {"x": [1.0, 2.0], "y": [0.0]}, out=getfixture("tmp_path"))
        >>> [row.value for row in result.rows()]
        [1.0, 4.0]
    """
    grid = {name: _each_once(values) for name, values in grid.items()}
    if not grid or not all(grid.values()):
        raise InvalidProblem("the grid is empty; name a setting and its values, such as {'lr': [0.1, 0.01]}.")
    numeric = [name for name, values in grid.items() if all(map(is_number, values))]
    for axis in (x, y):
        if axis is not None and (axis not in numeric or x == y):
            known = ", ".join(numeric) or "none"
            raise InvalidProblem(f"{axis!r} cannot be this axis of the picture; settings with numbers: {known}.")
    root = data_root(data).absolute()
    used = launcher if isinstance(launcher, Launcher) else launcher_of(launcher, workers)
    check_device(device, used)
    if isinstance(target, Experiment) or (isinstance(target, str) and ":" not in target):
        if isinstance(target, str) and target.endswith(".py"):
            raise InvalidProblem(f"{target!r} names no function; write {target}:FUNCTION.")
        experiment = target if isinstance(target, Experiment) else catalog.experiment(target)
        cells = _cells(catalog.with_scale(experiment, scale), scale, grid, seeds)
        measure, name = measure_of(experiment), f"{experiment.name}-{scale}"
        check_data({cell.settings["data"] for cell in cells if cell.settings.get("data")}, root)
    else:
        function = UserFunction.in_file(target) if isinstance(target, str) else UserFunction.of(target)
        function.check(list(grid), seeds)
        settings = [point | {"seed": seed} for point in _points(grid) for seed in range(seeds or 1)]
        cells = [Cell(function.name, each, function.version) for each in settings]
        measure, name = function, function.name
    folder = Path(out).absolute() / "sweeps" / name
    ended = run_all([Task(cell, measure, Store(folder), root, device=device) for cell in cells], used, progress)
    table = Table([each.record for each in ended if each.record is not None])
    result = Sweep(name, grid, table, failures_of(ended), made_with(ended), x, y, quantity)
    result.save(folder / "sweep.json")
    with contextlib.suppress(MissingExtra):
        write_parquet(folder / "table.parquet", result)
    (folder / "figure.png").unlink(missing_ok=True)  # that of another grid
    if result.has_picture:
        with contextlib.suppress(MissingExtra):
            result.save(folder / "figure.png")
    return result


def _each_once(values: Sequence[Any]) -> list[Any]:
    """The values as JSON stores them, without repetitions, which would count twice in every mean."""
    distinct = {}
    for value in values:
        plain = value.item() if isinstance(value, np.generic) else value
        try:
            distinct[json.dumps(plain, allow_nan=False)] = plain
        except (TypeError, ValueError) as error:
            raise InvalidProblem(f"{value!r} cannot be a value of the grid; write finite numbers and text.") from error
    return list(distinct.values())


def _points(grid: Grid) -> list[dict[str, Any]]:
    return [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]


def _cells(experiment: Experiment, scale: Scale, grid: Grid, seeds: int | None) -> list[Cell]:
    """The cells of the scale, arm by arm, at every point of the grid."""
    cells = experiment.cells(scale)
    known = dict.fromkeys(name for cell in cells for name in cell.settings)
    for name in grid:
        if name not in known or name == "seed":
            close = difflib.get_close_matches(name, known, n=3, cutoff=0.4) or list(known)
            hint = "set the number of seeds instead" if name == "seed" else f"closest: {', '.join(close)}"
            raise InvalidProblem(f"{experiment.name} has no setting {name!r} to sweep; {hint}.")
    arms = list(dict.fromkeys(cell.settings["arm"] for cell in cells))
    for arm in grid.get("arm", ()):
        if arm not in arms:
            raise InvalidProblem(f"{experiment.name} has no arm {arm!r} at this scale; it has {', '.join(arms)}.")
    first = {cell.settings["arm"]: cell for cell in cells if cell.settings["seed"] == 0}
    count = experiment.scales[scale].get("seeds", 1) if seeds is None else seeds
    swept = {}
    for arm, cell in first.items():
        for point in _points(grid):
            if point.get("arm", arm) == arm:
                for seed in range(count):
                    at_point = replace(cell, settings={**cell.settings, **point, "seed": seed})
                    swept[at_point.key] = at_point
    return list(swept.values())
