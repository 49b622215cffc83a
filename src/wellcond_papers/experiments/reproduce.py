"""Run experiments, and write their rows, pictures and verdicts."""

from __future__ import annotations

import contextlib
import json
import os
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict, Unpack, overload

import torch

from wellcond.errors import CorruptData, DataNotFound, InvalidProblem, MissingExtra
from wellcond.results import Progress, Row
from wellcond.results.files import write_atomically
from wellcond.treatment.launching.by_name import LauncherName, launcher_of
from wellcond.treatment.launching.launcher import InProcess, Launcher
from wellcond.treatment.launching.ray_launcher import Ray
from wellcond_papers.data.load import load
from wellcond_papers.data.locate import data_root
from wellcond_papers.experiments import catalog as catalog
from wellcond_papers.experiments.experiment import Experiment, Job
from wellcond_papers.experiments.reproduction import Failure, Reproduction
from wellcond_papers.experiments.rows import write_parquet, write_rows
from wellcond_papers.experiments.running.run_all import run_all
from wellcond_papers.experiments.running.store import Ended, Store
from wellcond_papers.experiments.running.task import Task
from wellcond_papers.experiments.scales import Scale
from wellcond_papers.experiments.table import Table
from wellcond_papers.training.distributed import is_writer, join_processes, process_count

Folder = str | os.PathLike[str]
Several = list[str] | list[Experiment] | tuple[str | Experiment, ...]


@dataclass(frozen=True)
class NamedMeasure:
    """The measurement of an experiment of the catalog, found by name wherever it is run.

    Attributes:
        name: The experiment.
    """

    name: str

    def __call__(self, job: Job) -> Iterable[Row]:
        return catalog.experiment(self.name).measure(job)


class Options(TypedDict, total=False):
    """The keyword arguments of `reproduce`."""

    out: Folder
    device: str
    data: Folder | None
    launcher: LauncherName | Launcher
    workers: int | None
    progress: Progress


@overload
def reproduce(names: str | Experiment, scale: Scale = ..., **options: Unpack[Options]) -> Reproduction: ...
@overload
def reproduce(names: Several, scale: Scale = ..., **options: Unpack[Options]) -> list[Reproduction]: ...
def reproduce(
    names: str | Experiment | Several,
    scale: Scale = "laptop",
    *,
    out: Folder = "runs",
    device: str = "cpu",
    data: Folder | None = None,
    launcher: LauncherName | Launcher = "in-process",
    workers: int | None = None,
    progress: Progress = lambda what, share: None,
) -> Reproduction | list[Reproduction]:
    """Run experiments, or the cells of them that have not finished yet.

    The cells of all experiments share one queue, so that no worker waits. Started by `torchrun`, all processes train
    the network of each cell together, and the first one writes the files.

    Args:
        names: A name such as "santurkar2018-fig9"; `catalog.names()` lists all. A list holds several; in it "wei2019"
            stands for all experiments of that source and "all" for every one. An `Experiment` of your own works too.
        scale: "smoke", "laptop", "gpu", "stand-in" or "paper".
        out: Cells, rows, table, picture and verdict go to `out/name/scale`. Finished cells are never run again; those
            that failed are.
        device: Where to train and measure.
        data: The folder with the data sets; None means $WELLCOND_DATA, else `./data`.
        launcher: Where cells are run: "in-process", "processes", "ray" or a `Launcher`.
        workers: Cells that run at once; None for one per core.
        progress: Called as (what is being done, share of all work done).

    Returns:
        The result; a list of results if a list of names was passed.

    Raises:
        InvalidProblem: A name is unknown, or an experiment has no such scale.
        DataNotFound: A data set is missing: nothing has been run.

    Example:
        >>> reproduce("santurkar2018-fig9", "smoke")  # doctest: +SKIP
    """
    join_processes()
    requested = [names] if isinstance(names, (str, Experiment)) else list(names)
    experiments = _experiments(requested, scale)
    if isinstance(names, str) and len(experiments) != 1:
        raise InvalidProblem(f"{names!r} stands for {len(experiments)} experiments; write [{names!r}].")
    used = launcher if isinstance(launcher, Launcher) else launcher_of(launcher, workers)
    if process_count() > 1 and not isinstance(used, InProcess):
        raise InvalidProblem("under torchrun all processes train one network together; leave the launcher out.")
    check_device(device, used)
    root = data_root(data).absolute()
    check_data({name for each in experiments for name in each.data(scale)}, root)
    tasks = {each.name: _tasks(each, scale, Path(out).absolute(), device, root) for each in experiments}
    ended = iter(run_all([task for own in tasks.values() for task in own], used, progress))
    runs = [reproduction_of(each, scale, [next(ended) for _ in tasks[each.name]]) for each in experiments]
    folders = [Path(out).absolute() / each.name / scale for each in experiments]
    written = list(zip(runs, folders, strict=True)) if is_writer() else []
    for run, folder in written:
        _write_rows(run, folder)
    errors = [error for run, folder in written if (error := _write_verdict(run, folder))]
    if errors:  # raised last, so that the files of the other experiments are written
        raise errors[0]
    return runs[0] if isinstance(names, (str, Experiment)) else runs


def check_device(device: str, launcher: Launcher) -> None:
    """Check that the device exists, before any work; the machines of a cluster have their own.

    Raises:
        InvalidProblem: It does not exist.
    """
    try:
        kind = torch.device(device).type
    except RuntimeError as error:
        raise InvalidProblem(f"there is no device {device!r}; write cpu, cuda or cuda:1.") from error
    if kind == "cuda" and not torch.cuda.is_available() and not isinstance(launcher, Ray):
        raise InvalidProblem("torch finds no CUDA device here; leave device out to use the CPU.")


def check_data(names: Iterable[str], root: Path) -> None:
    """Check that the data sets are there, before any work.

    Raises:
        DataNotFound: Some are missing; the message says what to fetch, and where to put it.
    """
    missing = [text for name in sorted(names) if (text := missing_data(name, root))]
    if missing:
        raise DataNotFound("\n".join(missing))


def missing_data(name: str, root: Path) -> str:
    """What to fetch of a data set and where to put it; "" if it is there."""
    try:
        for is_train in (True, False):
            load(name, root, train=is_train)
    except CorruptData as error:
        return f"{error} Delete it and fetch it again."
    except (DataNotFound, ValueError) as error:
        return str(error)
    return ""


def _experiments(requested: Sequence[str | Experiment], scale: Scale) -> list[Experiment]:
    experiments: dict[str, Experiment] = {}
    for each in requested:
        own = [catalog.with_scale(each, scale)] if isinstance(each, Experiment) else catalog.chosen([each], scale)
        for known in own:
            if experiments.setdefault(known.name, known) is not known:
                raise InvalidProblem(f"two experiments are called {known.name!r}; each needs a name of its own.")
    return list(experiments.values())


def _tasks(experiment: Experiment, scale: Scale, out: Path, device: str, data: Path) -> list[Task]:
    cells = experiment.cells(scale)
    store = Store(out / cells[0].experiment / scale)
    minutes = experiment.minutes.get(scale, 1.0) / max(len(cells), 1)
    return [Task(cell, measure_of(experiment), store, data, minutes, device=device) for cell in cells]


def measure_of(experiment: Experiment) -> Callable[[Job], Iterable[Row]]:
    """The function that runs its cells. One in the catalog is looked up by name, since a closure cannot be pickled."""
    is_in_catalog = experiment.name in catalog.names() and catalog.experiment(experiment.name) is experiment
    return NamedMeasure(experiment.name) if is_in_catalog else experiment.measure


def reproduction_of(experiment: Experiment, scale: Scale, ended: Sequence[Ended]) -> Reproduction:
    """The result of cells that have ended."""
    table = Table([each.record for each in ended if each.record is not None])
    return Reproduction(experiment, scale, table, failures_of(ended), made_with(ended))


def failures_of(ended: Iterable[Ended]) -> list[Failure]:
    """The cells that failed."""
    return [Failure(each.cell.settings, each.error) for each in ended if each.record is None]


def made_with(ended: Iterable[Ended]) -> dict[str, str]:
    """The device and versions of all cells; several if they differ."""
    by_name: dict[str, list[str]] = {}
    for each in ended:
        for name, value in each.made_with.items():
            by_name.setdefault(name, []).append(value)
    return {name: ", ".join(dict.fromkeys(values)) for name, values in by_name.items()}


def _write_rows(run: Reproduction, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    write_rows(folder / "rows.json", run)
    with contextlib.suppress(MissingExtra):
        write_parquet(folder / "table.parquet", run)


def _write_verdict(run: Reproduction, folder: Path) -> Exception | None:
    """Write the verdict, and the picture where matplotlib is installed; return the exception if one of them raises."""
    try:
        verdict = json.dumps(run.judgment(), indent=1, ensure_ascii=False) + "\n"
        write_atomically(folder / "verdict.json", verdict.encode())
        write_atomically(folder / "verdict.txt", f"{run}\n".encode())
        run.save(folder / "figure.png")
    except MissingExtra:
        return None
    except Exception as error:
        if run.failures:  # they are the cause, and are reported anyway
            warnings.warn(
                f"{run.experiment.name} is not drawn: rows of failed cells are missing ({error}).", stacklevel=3
            )
            return None
        error.add_note(
            f"This happened in the verdict or the picture of {run.experiment.name}; its rows are in {folder}."
        )
        return error
    return None
