"""An evening on a GPU: what it runs, in which order, and that neither a kill nor the end of the time loses a cell."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from smoke_evening import ENTRIES, evening_in, plan_in

from benchmarks.evening import __main__ as command
from benchmarks.evening import evening, packing
from benchmarks.evening.evening import Evening
from benchmarks.evening.packing import pack, take
from benchmarks.evening.plan import Plan
from benchmarks.evening.queue import QUEUE, Entry
from wellcond_papers.experiments import catalog
from wellcond_papers.experiments.reproduce import NamedMeasure, reproduction_of
from wellcond_papers.experiments.reproduction import Reproduction
from wellcond_papers.experiments.rows import add_rows, read_rows, write_rows
from wellcond_papers.experiments.running.store import Ended, Store
from wellcond_papers.experiments.running.task import Task
from wellcond_papers.experiments.table import Record, Table

ROOT = Path(__file__).resolve().parents[1]
SCRIPT = Path(__file__).with_name("smoke_evening.py")
CELLS = sum(len(entry.cells()) for entry in ENTRIES)


def cells_of(run: Reproduction) -> list[object]:
    return [(dict(record.settings), record.rows) for record in run.table]


def reproduced(name: str, folder: Path, which: Callable[[Mapping[str, Any]], bool] = lambda _: True) -> Reproduction:
    """An experiment at smoke scale, one cell after the other in this process, without its picture."""
    experiment = catalog.experiment(name)
    cells, store = [cell for cell in experiment.cells("smoke") if which(cell.settings)], Store(folder)
    ended = [Task(cell, experiment.measure, store).run(lambda what, share: None) for cell in cells]
    return reproduction_of(experiment, "smoke", ended)


def chosen(running: Evening) -> list[Task]:
    """What it would run now, one after the other, if nothing ended."""
    tasks = iter(running.following(running.runnable()))
    return list(iter(lambda: next(tasks), None))


# the queue


def test_every_entry_has_cells() -> None:
    for entry in QUEUE:
        assert entry.cells(), entry
    keys = [cell.key for entry in QUEUE for cell in entry.cells()]
    assert len(keys) == len(set(keys)), "a cell is in two entries"


@pytest.mark.slow
def test_what_is_committed_is_not_run_again(tmp_path: Path) -> None:
    plan = Plan(QUEUE, command.ROWS, tmp_path)
    done = [entry.name for entry in QUEUE if not plan.left(entry)]
    assert done[:6] == [f"santurkar2018-fig{number}" for number in (6, 7, 10, 11, 13, 14)]


@pytest.mark.slow
def test_the_command_needs_torch_and_numpy_alone_and_its_list_fits_a_terminal(tmp_path: Path) -> None:
    others = ("rich", "typer", "click", "matplotlib", "pyarrow", "safetensors", "pandas", "scipy", "sklearn", "ray")
    code = f"""
import runpy, sys
for name in {others}:
    sys.modules[name] = None
sys.argv = ["evening", "--list", "--data", "{tmp_path}"]
runpy.run_module("benchmarks.evening", run_name="__main__")
"""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "src")])}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    assert max(map(len, done.stdout.splitlines())) <= 80


# what is run next


def test_the_order_is_that_of_the_queue_and_the_longest_come_first(tmp_path: Path) -> None:
    running = evening_in(tmp_path)
    running.end = time.monotonic() + 3600
    tasks = chosen(running)
    first, second = ([cell.key for cell in entry.cells()] for entry in ENTRIES)
    assert {task.cell.key for task in tasks[: len(first)]} == set(first)
    assert {task.cell.key for task in tasks[len(first) :]} == set(second)
    fast, slow = (Record(cell.settings, [], seconds) for cell, seconds in zip(ENTRIES[1].cells(), (1, 2), strict=True))
    known = Reproduction(ENTRIES[1].experiment, "laptop", Table([fast, slow]), made_with={"device": "cpu"})
    running.plan.rows.mkdir()
    write_rows(running.plan.rows / "santurkar2018-fig8-laptop.json", known)
    assert [(each.cell.settings["arm"], each.seconds) for each in running.plan.left(ENTRIES[1], "cpu")] == [
        (slow.arm, 2),
        (fast.arm, 1),
    ]


def test_a_cell_that_cannot_finish_is_not_begun_unless_it_can_continue_elsewhere(tmp_path: Path) -> None:
    long = [replace(entry, minutes=10) for entry in ENTRIES]
    running = evening_in(tmp_path, stays=False)
    running.plan = replace(running.plan, entries=long)
    running.end = time.monotonic() + evening.WORTHWHILE + 5
    assert {task.cell.experiment for task in chosen(running)} == {"lange2022-fig3"}
    running._running.clear()
    running.plan = replace(running.plan, entries=[replace(e, checkpoint=evening.TRAVELS + 1) for e in long])
    assert chosen(running) == []
    running.stays = True
    assert len(chosen(running)) == CELLS


def test_no_more_is_run_at_once_than_the_memory_holds(tmp_path: Path) -> None:
    running = evening_in(tmp_path)
    running.end = time.monotonic() + 3600
    running.plan = replace(running.plan, entries=[replace(entry, memory=60) for entry in ENTRIES])
    assert len(chosen(running)) == 2


def test_what_measures_time_runs_alone(tmp_path: Path) -> None:
    running = evening_in(tmp_path)
    running.end = time.monotonic() + 3600
    first, second = ENTRIES
    running.plan = replace(running.plan, entries=[replace(first, alone=True), second])
    assert len(chosen(running)) == 1
    running._running.clear()
    running.plan = replace(running.plan, entries=[first, replace(second, alone=True)])
    assert {task.cell.experiment for task in chosen(running)} == {"lange2022-fig3"}


def test_cells_without_their_data_are_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    entries = [Entry("lange2022-fig6", "one question", 1, lambda s: s["data"] == "cifar100"), ENTRIES[1]]
    running = evening_in(tmp_path)
    running.plan = replace(running.plan, entries=entries)
    assert {each.cell.experiment for each in running.runnable()} == {"santurkar2018-fig8"}
    assert "left out, for want of cifar100" in capsys.readouterr().out
    assert "needs cifar100" in command.table(running.plan, tmp_path, "cpu")


# an evening


@pytest.mark.slow
def test_a_kill_loses_no_finished_cell_and_the_rows_are_those_of_a_run_without_a_queue(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "src")])}
    running = subprocess.Popen(
        [sys.executable, str(SCRIPT), str(tmp_path)], stdout=subprocess.PIPE, text=True, env=environment
    )
    assert running.stdout is not None
    for _ in range(2):
        assert "finished" in running.stdout.readline()
    running.kill()
    running.communicate()
    finished = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("cells/*.json")}
    assert 2 <= len(finished) < CELLS
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0})
    evening_in(tmp_path).run(5)
    assert all(path.stat().st_mtime_ns == then for path, then in finished.items())
    assert len(list(tmp_path.rglob("cells/*.json"))) == CELLS
    for entry in ENTRIES:
        alone = reproduced(entry.name, tmp_path / "alone", entry.which)
        expected = read_rows(write_rows(tmp_path / "expected.json", alone))
        rows = read_rows(tmp_path / "rows" / f"{entry.name}-smoke.json")
        assert cells_of(rows) == cells_of(expected)
    assert all(" 0.0 " in line for line in command.table(plan_in(tmp_path), tmp_path, "cpu").splitlines()[1:-1])


def test_a_cell_that_was_saved_just_before_a_kill_gets_its_rows(tmp_path: Path) -> None:
    plan, cell = plan_in(tmp_path), ENTRIES[1].cells()[0]
    store = plan.store(cell, "smoke")
    store.put(Task(cell, NamedMeasure(cell.experiment), store).run(lambda what, share: None))
    evening_in(tmp_path).run(0)
    assert cell.key not in {planned.cell.key for planned in plan.left(ENTRIES[1])}
    assert len(plan.left(ENTRIES[1])) == len(ENTRIES[1].cells()) - 1


@pytest.mark.slow
def test_when_it_is_asked_to_end_it_packs_what_has_finished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    add_to = Plan.add_rows

    def added_and_asked(plan: Plan, ended: Iterable[Ended]) -> None:
        ended = list(ended)
        add_to(plan, ended)
        if ended:
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(Plan, "add_rows", added_and_asked)
    evening_in(tmp_path).run(5)
    monkeypatch.undo()
    stored = {path.name for path in tmp_path.rglob("cells/*.json")}
    assert 1 <= len(stored) < CELLS
    with tarfile.open(tmp_path / "out" / "cells-1.tar.gz") as archive:
        assert {Path(name).name for name in archive.getnames()} == stored
    take([tmp_path / "out" / "cells-1.tar.gz"], plan_in(tmp_path / "home"))
    for path in (tmp_path / "rows").iterdir():
        assert path.read_bytes() == (tmp_path / "home" / "rows" / path.name).read_bytes()


@pytest.mark.slow
def test_it_ends_in_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evening, "MARGIN", 1.0)
    long = Entry("santurkar2018-fig8", "a cell of half a minute", 1e-6)
    running = evening_in(tmp_path)
    running.plan = replace(running.plan, entries=[long])
    begin = time.monotonic()
    running.run(minutes=5 / 60)
    assert time.monotonic() - begin < 5
    assert not list(tmp_path.rglob("cells/*.json"))
    assert command.table(running.plan, tmp_path, "cpu").splitlines()[1].split()[2].startswith("0/")


# what leaves the machine


def test_archives_keep_the_limits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing, "ROOM", 4096)
    monkeypatch.setattr(packing, "LARGEST", 100_000)
    monkeypatch.setattr(packing, "TOTAL", 300_000)
    files = [tmp_path / "runs" / f"{number}.pt" for number in range(12)]
    files[0].parent.mkdir()
    for file in files:
        file.write_bytes(os.urandom(40_000))
    files[3].write_bytes(os.urandom(100_000))
    out = tmp_path / "out"
    left_out = pack(files, tmp_path / "runs", out, "checkpoints")
    sizes = [path.stat().st_size for path in out.iterdir()]
    assert max(sizes) <= 100_000
    assert sum(sizes) <= 300_000
    assert left_out == [files[3], *files[7:]]
    monkeypatch.setattr(packing, "FILES", 3)
    others = [out / f"cells-{number}.tar.gz" for number in (1, 2)]
    for path in others:
        path.write_bytes(b"cells")
    assert pack(files, tmp_path / "runs", out, "checkpoints", others) == files[2:]
    assert {path.name for path in out.iterdir()} == {"cells-1.tar.gz", "cells-2.tar.gz", "checkpoints-1.tar.gz"}


def test_checkpoints_are_taken_of_cells_that_have_not_finished(tmp_path: Path) -> None:
    there, here = plan_in(tmp_path / "there"), plan_in(tmp_path / "here")
    cells = ENTRIES[0].cells()
    for cell in cells[:2]:
        folder = there.store(cell, "smoke").checkpoints(cell)
        folder.mkdir(parents=True)
        (folder / "state.pt").write_bytes(b"state")
        (folder / ".half-written.tmp").write_bytes(b"state")
    files = sorted(there.runs.glob("*/*/checkpoints/*/[!.]*"))
    assert pack(files, there.runs, tmp_path / "out", "checkpoints") == []
    store = here.store(cells[0], "smoke")
    store.put(Task(cells[0], NamedMeasure("lange2022-fig3"), store).run(lambda what, share: None))
    assert take([tmp_path / "out" / "checkpoints-1.tar.gz"], here) == [
        "lange2022-fig3, smoke: 0 cells finished, 1 under way"
    ]
    assert [path.parent.name for path in here.runs.rglob("state.pt")] == [cells[1].key]


def test_rows_of_a_part_grow_into_those_of_the_whole(tmp_path: Path) -> None:
    whole = reproduced("santurkar2018-fig8", tmp_path)
    first, second = (replace(whole, table=Table([record])) for record in whole.table)
    elsewhere = replace(first, made_with={**whole.made_with, "device": "another"})
    path = tmp_path / "rows.json"
    for part in (second, elsewhere):
        add_rows(path, part)
    grown = read_rows(path)
    write_rows(tmp_path / "whole.json", whole)
    assert cells_of(grown) == cells_of(read_rows(tmp_path / "whole.json"))
    assert grown.missing == []
    assert grown.made_with["device"] == f"{whole.made_with['device']}, another"
    changed = replace(whole, table=Table([replace(record, rows=()) for record in whole.table]))
    add_rows(path, changed)
    assert cells_of(read_rows(path)) == cells_of(grown), "what a file has stays"
