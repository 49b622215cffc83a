"""An evening on a GPU: what it runs, in which order, and that neither a kill nor the end of the time loses a cell."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tarfile
import time
from dataclasses import replace
from pathlib import Path

import pytest
from smoke_evening import ENTRIES, evening_in, plan_in

from benchmarks.evening import __main__ as command
from benchmarks.evening import evening, packing
from benchmarks.evening.evening import Evening
from benchmarks.evening.packing import pack, take
from benchmarks.evening.plan import Plan
from benchmarks.evening.queue import QUEUE, Entry
from wellcond_papers.experiments.reproduce import NamedMeasure, reproduce
from wellcond_papers.experiments.reproduction import Reproduction
from wellcond_papers.experiments.rows import add_rows, read_rows, write_rows
from wellcond_papers.experiments.running.launchers import Processes
from wellcond_papers.experiments.running.task import Task
from wellcond_papers.experiments.table import Table

ROOT = Path(__file__).resolve().parents[1]
SCRIPT = Path(__file__).with_name("smoke_evening.py")
CELLS = sum(len(entry.cells()) for entry in ENTRIES)


def cells_of(run: Reproduction) -> list[object]:
    return [(dict(record.settings), record.rows) for record in run.table]


def chosen(running: Evening) -> list[Task]:
    """What it would run now, one after the other, if nothing ended."""
    tasks = iter(running._following(running._runnable()))
    return list(iter(lambda: next(tasks), None))


# the queue


def test_every_entry_has_cells() -> None:
    for entry in QUEUE:
        assert entry.cells(), entry
    keys = [cell.key for entry in QUEUE for cell in entry.cells()]
    assert len(keys) == len(set(keys)), "a cell is in two entries"


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
    known = reproduce("santurkar2018-fig8", "smoke", out=tmp_path)
    slow, fast = (replace(record, seconds=seconds) for record, seconds in zip(known.table, (1, 2), strict=True))
    kept = replace(known, table=Table([slow]), scale="laptop")
    running.plan.rows.mkdir()
    write_rows(running.plan.rows / "santurkar2018-fig8-laptop.json", replace(kept, table=Table([slow, fast])))
    assert [each.cell.settings["arm"] for each in running.plan.left(ENTRIES[1], "cpu")] == [fast.arm, slow.arm]


def test_a_cell_that_cannot_finish_is_not_begun_unless_it_can_continue_elsewhere(tmp_path: Path) -> None:
    running = evening_in(tmp_path, stays=False)
    running.end = time.monotonic() + 1
    assert {task.cell.experiment for task in chosen(running)} == {"lange2022-fig3"}
    large = [replace(entry, checkpoint=evening.TRAVELS + 1) for entry in ENTRIES]
    running.plan = replace(running.plan, entries=large)
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


def started(folder: Path) -> subprocess.Popen[str]:
    """An evening in a process of its own, of which two cells have finished."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "src")])}
    arguments = [sys.executable, str(SCRIPT), str(folder)]
    running = subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True, env=environment)
    assert running.stdout is not None
    for _ in range(2):
        assert "finished" in running.stdout.readline()
    return running


@pytest.mark.slow
def test_a_kill_loses_no_finished_cell_and_the_rows_are_those_of_a_run_without_a_queue(tmp_path: Path) -> None:
    running = started(tmp_path)
    running.kill()
    running.communicate()
    finished = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("cells/*.json")}
    assert 2 <= len(finished) < CELLS
    evening_in(tmp_path).run(5)
    assert all(path.stat().st_mtime_ns == then for path, then in finished.items())
    assert len(list(tmp_path.rglob("cells/*.json"))) == CELLS
    alone = reproduce([entry.name for entry in ENTRIES], "smoke", out=tmp_path / "alone", launcher=Processes(workers=1))
    for entry, run in zip(ENTRIES, alone, strict=True):
        kept = replace(run, table=Table([record for record in run.table if entry.which(record.settings)]))
        expected = read_rows(write_rows(tmp_path / "expected.json", kept))
        rows = read_rows(tmp_path / "rows" / f"{entry.name}-smoke.json")
        assert cells_of(rows) == cells_of(expected)
    assert all("0.0" in line for line in command.table(plan_in(tmp_path), tmp_path, "cpu").splitlines()[1:])


@pytest.mark.slow
def test_when_it_is_asked_to_end_it_packs_what_has_finished(tmp_path: Path) -> None:
    running = started(tmp_path)
    running.send_signal(signal.SIGTERM)
    begin = time.monotonic()
    running.communicate(timeout=evening.MARGIN)
    assert time.monotonic() - begin < evening.MARGIN
    assert running.returncode == 0
    stored = {path.name for path in tmp_path.rglob("cells/*.json")}
    with tarfile.open(tmp_path / "out" / "cells-1.tar.gz") as archive:
        assert {Path(name).name for name in archive.getnames()} == stored
    home = plan_in(tmp_path / "home")
    take([tmp_path / "out" / "cells-1.tar.gz"], home)
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
    assert command.table(running.plan, tmp_path, "cpu").splitlines()[1].split()[2] == "0/2"


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
    left_out = pack(files, tmp_path / "runs", out, "checkpoints", 8)
    sizes = [path.stat().st_size for path in out.iterdir()]
    assert max(sizes) <= 100_000
    assert sum(sizes) <= 300_000
    assert left_out == [files[3], *files[7:]]
    assert pack(files, tmp_path / "runs", out, "checkpoints", 1) == files[2:]
    assert [path.name for path in out.iterdir()] == ["checkpoints-1.tar.gz"]


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
    whole = reproduce("santurkar2018-fig8", "smoke", out=tmp_path)
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
