"""Experiments by name, several in one queue, and the files that they leave."""

from __future__ import annotations

import json
import math
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import NoReturn

import pytest
import toy

from wellcond.errors import CorruptData, DataNotFound, InvalidProblem
from wellcond.results import Row
from wellcond.treatment.launching.launcher import InProcess
from wellcond_papers.experiments import catalog as catalog
from wellcond_papers.experiments.claims import Claim, Outcome
from wellcond_papers.experiments.reproduce import reproduce
from wellcond_papers.experiments.reproduction import Failure, Reproduction
from wellcond_papers.experiments.rows import read_rows, write_parquet, write_rows
from wellcond_papers.experiments.running.task import Task
from wellcond_papers.experiments.table import Record, Table

HOLDS = Claim("always", "always", lambda table: Outcome("holds", ""))
SECOND = replace(toy.TOY, name="toy-fig2", minutes={"smoke": 5.0, "paper": 1.0})


@pytest.fixture
def catalogd(monkeypatch: pytest.MonkeyPatch) -> None:
    """A catalog with two figures of one source, whose second has no scale "gpu"."""
    known = {"toy-fig1": replace(toy.TOY, scales={**toy.TOY.scales, "gpu": {"steps": 1}}), "toy-fig2": SECOND}
    monkeypatch.setattr(catalog, "names", lambda: tuple(known))
    for name, each in known.items():
        module = ModuleType(name)
        module.EXPERIMENT = each  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, f"wellcond_papers.papers.{name.replace('-', '.')}", module)


@pytest.mark.usefixtures("catalogd")
def test_a_source_and_all_stand_for_the_experiments_that_have_the_scale(tmp_path: Path) -> None:
    assert [each.name for each in catalog.chosen(["toy"], "smoke")] == ["toy-fig1", "toy-fig2"]
    assert [each.name for each in catalog.chosen(["all"], "gpu")] == ["toy-fig1"]
    with pytest.raises(InvalidProblem, match="toy-fig2 has no scale 'gpu'; it has smoke, paper"):
        catalog.chosen(["toy-fig2"], "gpu")
    with pytest.raises(InvalidProblem, match="Closest: toy-fig"):
        reproduce("toy-fig3", out=tmp_path)
    with pytest.raises(InvalidProblem, match=r"stands for 2 experiments; write \['toy'\]"):
        reproduce("toy", "smoke", out=tmp_path)


@pytest.mark.slow
@pytest.mark.usefixtures("catalogd")
def test_the_cells_of_all_go_into_one_queue_the_longest_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    queues: list[list[str]] = []
    original = InProcess.run

    def spy(self: InProcess, tasks: list[Task], tell: object) -> object:
        queues.append([task.cell.experiment for task in tasks])
        return original(self, tasks, tell)  # type: ignore[arg-type]

    monkeypatch.setattr(InProcess, "run", spy)
    runs = reproduce(["toy"], "smoke", out=tmp_path)
    assert queues == [["toy-fig2"] * 4 + ["toy-fig1"] * 4]
    assert [run.experiment.name for run in runs] == ["toy-fig1", "toy-fig2"]
    assert all(record.settings["steps"] == 3 for run in runs for record in run.table)


@pytest.mark.slow
def test_a_second_run_computes_nothing(tmp_path: Path) -> None:
    first = reproduce(toy.TOY, "smoke", out=tmp_path)
    never = replace(toy.TOY, measure=lambda job: pytest.fail("it was run again"))
    again = reproduce(never, "smoke", out=tmp_path)
    assert [(r.settings, r.rows) for r in again.table] == [(r.settings, r.rows) for r in first.table]


@pytest.mark.slow
def test_a_figure_of_another_ones_runs_does_not_repeat_them(tmp_path: Path) -> None:
    shown_again = replace(SECOND, arms={"fast": toy.TOY.arms["fast"]}, claims=[HOLDS], runs_of="toy-fig1")
    both = reproduce([toy.TOY, shown_again], "smoke", out=tmp_path)
    assert [each.rows for each in both[1].table] == [each.rows for each in both[0].table.arm("fast")]
    never = replace(shown_again, measure=lambda job: pytest.fail("it was run again"))
    alone = reproduce(never, "smoke", out=tmp_path)
    assert not alone.missing
    assert (tmp_path / "toy-fig2" / "smoke" / "verdict.txt").exists()


@pytest.mark.slow
def test_a_half_written_cell_is_reported_and_redone(tmp_path: Path) -> None:
    first = reproduce(toy.TOY, "smoke", out=tmp_path)
    damaged = sorted(tmp_path.rglob("cells/*.json"))[0]
    damaged.write_bytes(damaged.read_bytes()[:100])
    with pytest.warns(UserWarning, match=damaged.name):
        again = reproduce(toy.TOY, "smoke", out=tmp_path)
    assert [(r.settings, r.rows) for r in again.table] == [(r.settings, r.rows) for r in first.table]


def test_missing_data_is_named_before_the_work(tmp_path: Path) -> None:
    with pytest.raises(DataNotFound, match=str(tmp_path / "data")):
        reproduce(toy.TOY, "paper", out=tmp_path / "runs", data=tmp_path / "data")
    assert not (tmp_path / "runs").exists()


@pytest.mark.slow
def test_what_a_run_leaves_behind(tmp_path: Path) -> None:
    run = reproduce(toy.with_arms(bad={"raises": True}), "smoke", out=tmp_path)
    folder = tmp_path / "toy-fig1" / "smoke"
    assert (folder / "figure.png").read_bytes().startswith(b"\x89PNG")
    verdict = json.loads((folder / "verdict.json").read_text())
    assert verdict["verdict"] == run.verdict() == "holds"
    assert [each["settings"]["arm"] for each in verdict["failed"]] == ["bad", "bad"]
    lines = pytest.importorskip("pyarrow.parquet").read_table(folder / "table.parquet").to_pylist()
    assert len(lines) == len(run.rows()) + 2
    assert [line["error"] is None for line in lines] == [True] * len(run.rows()) + [False] * 2
    assert {"arm", "seed", "lr", *Row._fields} <= set(lines[0])
    assert [line["value"] for line in lines[:-2]] == [row.value for row in run.rows()]


def test_without_pyarrow_and_matplotlib_the_rest_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for library in ("pyarrow", "matplotlib.figure", "wellcond.report.figures.shown"):
        monkeypatch.setitem(sys.modules, library, None)
    reproduce(toy.TOY, "smoke", out=tmp_path)
    written = {path.name for path in (tmp_path / "toy-fig1" / "smoke").iterdir() if path.is_file()}
    assert written == {"rows.json", "verdict.json", "verdict.txt"}


@pytest.mark.usefixtures("catalogd")
def test_a_picture_that_fails_takes_no_other_files_with_it(tmp_path: Path) -> None:
    broken = replace(toy.TOY, name="toy-fig0", draw=lambda table: 1 / 0)
    with pytest.raises(ZeroDivisionError) as raised:
        reproduce([broken, toy.TOY], "smoke", out=tmp_path)
    assert "toy-fig0" in raised.value.__notes__[0]
    assert (tmp_path / "toy-fig0" / "smoke" / "rows.json").is_file()
    assert (tmp_path / "toy-fig1" / "smoke" / "figure.png").is_file()


@pytest.mark.usefixtures("catalogd")
def test_rows_are_read_back_with_six_digits(tmp_path: Path) -> None:
    rows = [
        Row(0, "a", "kappa", 1 / 3, ""),
        Row(0, "b", "kappa", math.inf, ""),
        Row(5, "a", "kappa", 1234567.0, ""),
        Row(None, "", "cost", 2.0, "u"),
    ]
    records = [Record({"arm": arm, "seed": 0, "sizes": [1, 2]}, rows, 1.26) for arm in ("slow", "fast")]
    failure = Failure({"arm": "fast", "seed": 1, "sizes": [1, 2]}, "ValueError: no")
    run = Reproduction(catalog.experiment("toy-fig1"), "smoke", Table(records), [failure], {"device": "cpu"})
    path = write_rows(tmp_path / "rows.json", run)
    again = read_rows(path)
    assert (again.experiment.name, again.scale, again.made_with) == ("toy-fig1", "smoke", {"device": "cpu"})
    assert [record.settings for record in again.table] == [record.settings for record in records]
    assert again.failures == [failure]
    first = again.table[0]
    assert first.series("kappa", "a") == {0: 0.333333, 5: 1234570.0}
    assert first.by_layer("kappa", 0) == {"a": 0.333333, "b": math.inf}
    assert list(first.by_layer("kappa")) == list(records[0].by_layer("kappa"))
    assert first.last("cost") == 2.0
    assert write_rows(tmp_path / "again.json", again).read_bytes() == path.read_bytes()


def test_other_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "rows.json"
    path.write_text('{"rows": []}')
    with pytest.raises(CorruptData, match="holds no rows"):
        read_rows(path)


def test_settings_of_any_kind_fit_into_a_table(tmp_path: Path) -> None:
    """A list, numbers mixed with text, whole numbers mixed with others, and a name that a row has too."""
    parquet = pytest.importorskip("pyarrow.parquet")
    row = Row(0, "", "loss", 1.0, "")
    settings = [{"arm": "a", "sizes": [1], "lr": 1, "norm": None, "step": 3}, {"arm": "b", "lr": 0.5, "norm": 4}]
    run = Reproduction(toy.TOY, "smoke", Table([Record(each, [row]) for each in settings]))
    lines = parquet.read_table(write_parquet(tmp_path / "table.parquet", run)).to_pylist()
    assert [line["sizes"] for line in lines] == ["[1]", None]
    assert [line["lr"] for line in lines] == [1.0, 0.5]
    assert [line["step_setting"] for line in lines] == [3, None]
    assert [line["step"] for line in lines] == [0, 0]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"arms": ["quick"]}, "no arm 'quick'; it has slow, fast"),
        ({"seeds": 0}, "has no cells at scale 'smoke'"),
        ({"activation": math.sin}, "the setting 'activation' of toy-fig1"),
        ({"lr": math.nan}, "the setting 'lr' of toy-fig1 cannot be nan"),
    ],
)
def test_settings_that_make_no_cells_are_named(settings: dict[str, object], message: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidProblem, match=message):
        reproduce(replace(toy.TOY, arms={"slow": {}, "fast": {}}, scales={"smoke": settings}), "smoke", out=tmp_path)


def test_an_arm_that_is_named_twice_is_run_and_counted_once() -> None:
    twice = replace(toy.TOY, scales={"smoke": {"steps": 3, "arms": ["slow", "slow"]}})
    assert len(twice.cells("smoke")) == 1


def test_without_a_finished_cell_nothing_holds_and_the_failure_is_told(tmp_path: Path) -> None:
    def draw(table: Table) -> NoReturn:
        raise KeyError("no rows")

    broken = replace(toy.TOY, arms={"slow": {"raises": True}}, claims=[HOLDS], draw=draw)
    with pytest.warns(UserWarning, match="toy-fig1 is not drawn"):
        run = reproduce(broken, "smoke", out=tmp_path, launcher=InProcess(retries=0))
    assert run.verdict() == "not tested"
    assert "this arm always fails" in run.failures[0].error


def test_a_launcher_or_a_name_that_cannot_be_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidProblem, match="there are in-process, processes, ray"):
        reproduce(toy.TOY, "smoke", out=tmp_path, launcher="rey")  # type: ignore[arg-type]
    with pytest.raises(InvalidProblem, match="two experiments are called 'toy-fig1'"):
        reproduce((toy.TOY, replace(toy.TOY, title="another")), "smoke", out=tmp_path)
