"""Cells in this process and in others: what raises, what is killed, and the same table from all."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest
import toy

from wellcond.errors import InvalidProblem, Unsupported
from wellcond.treatment.launching.launcher import InProcess
from wellcond.treatment.launching.processes import Processes
from wellcond_papers.experiments.reproduce import reproduce
from wellcond_papers.experiments.reproduction import Reproduction


def cells_of(run: Reproduction) -> list[object]:
    return [(dict(record.settings), record.rows) for record in run.table]


@pytest.mark.slow
def test_what_raises_once_is_tried_again(tmp_path: Path) -> None:
    experiment = toy.with_arms(shy={"raises_once": str(tmp_path / "marker")})
    run = reproduce(experiment, "smoke", out=tmp_path)
    assert not run.failures
    assert len(run.table) == 6


@pytest.mark.slow
def test_what_always_raises_is_recorded_and_the_others_are_complete(tmp_path: Path) -> None:
    run = reproduce(toy.with_arms(bad={"raises": True}), "smoke", out=tmp_path)
    assert [failure.settings["arm"] for failure in run.failures] == ["bad", "bad"]
    assert run.failures[0].error.startswith("ArithmeticError: this arm always fails (toy.py, line")
    assert cells_of(run) == cells_of(reproduce(toy.TOY, "smoke", out=tmp_path / "alone"))
    assert run.verdict() == "holds"


@pytest.mark.slow
def test_it_is_not_tried_more_often_than_asked_for(tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    experiment = toy.with_arms(shy={"raises_once": str(marker)})
    run = reproduce(experiment, "smoke", out=tmp_path, launcher=InProcess(retries=0))
    assert [failure.settings["seed"] for failure in run.failures] == [0]
    again = reproduce(experiment, "smoke", out=tmp_path, launcher=InProcess(retries=0))
    assert not again.failures, "a failed cell is tried again in the next run"


def test_progress_never_falls_and_ends_at_one(tmp_path: Path) -> None:
    shares: list[float] = []
    reproduce(toy.TOY, "smoke", out=tmp_path, progress=lambda what, share: shares.append(share))
    assert shares == sorted(shares)
    assert shares[-1] == pytest.approx(1)


@pytest.mark.slow
def test_ctrl_c_keeps_what_is_finished(tmp_path: Path) -> None:
    def stop(what: str, share: float) -> None:
        if share > 0.6:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        reproduce(toy.TOY, "smoke", out=tmp_path, progress=stop)
    finished = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("cells/*.json")}
    assert len(finished) == 2
    run = reproduce(toy.TOY, "smoke", out=tmp_path)
    assert len(run.table) == 4
    assert all(path.stat().st_mtime_ns == time for path, time in finished.items())


@pytest.mark.slow
def test_processes_survive_a_cell_that_raises_and_a_killed_worker(tmp_path: Path) -> None:
    experiment = toy.with_arms(bad={"raises": True}, killed={"killed_once": str(tmp_path / "marker")})
    reports: list[str] = []
    run = reproduce(
        experiment,
        "smoke",
        out=tmp_path / "processes",
        launcher=Processes(workers=2, retries=1),
        progress=lambda what, share: reports.append(what),
    )
    assert (tmp_path / "marker").exists()
    here = reproduce(experiment, "smoke", out=tmp_path / "here")
    assert len(run.table) == 6
    assert cells_of(run) == cells_of(here)
    assert run.failures == here.failures
    assert any("step" in what for what in reports)


@pytest.mark.slow
def test_a_worker_that_is_killed_every_time_is_a_failure_that_says_so(tmp_path: Path) -> None:
    settings = {"lr": 0.1, "killed": str(tmp_path / "marker"), "steps": 3}
    experiment = replace(toy.TOY, arms={"killed": settings}, scales={"smoke": {}})
    run = reproduce(experiment, "smoke", out=tmp_path, launcher=Processes(workers=1, retries=0))
    assert {failure.error for failure in run.failures} == {"its process was killed by SIGKILL"}
    assert run.outcomes[0].verdict == "not tested"


@pytest.mark.slow
def test_no_process_is_left_after_ctrl_c(tmp_path: Path) -> None:
    def stop(what: str, share: float) -> None:
        raise KeyboardInterrupt

    before = children()
    with pytest.raises(KeyboardInterrupt):
        reproduce(toy.TOY, "smoke", out=tmp_path, launcher=Processes(workers=1), progress=stop)
    assert children() <= before


def children() -> set[str]:
    """The processes that this one has started, but for multiprocessing's own helper."""
    own = str(os.getpid())
    return {
        stat.parent.name
        for stat in Path("/proc").glob("[0-9]*/stat")
        if stat.exists() and stat.read_text().rpartition(")")[2].split()[1] == own
        if b"spawn_main" in (stat.parent / "cmdline").read_bytes()
    }


@pytest.mark.slow
def test_a_function_that_cannot_travel_is_refused(tmp_path: Path) -> None:
    experiment = replace(toy.TOY, measure=lambda job: [])
    with pytest.raises(Unsupported, match="top level of a module"):
        reproduce(experiment, "smoke", out=tmp_path, launcher=Processes(workers=1))


def test_a_missing_device_is_said_before_the_work(tmp_path: Path) -> None:
    with pytest.raises(InvalidProblem, match="no device 'cdua'"):
        reproduce(toy.TOY, "smoke", out=tmp_path, device="cdua")
    assert not list(tmp_path.iterdir())
