"""Every experiment: its shape, its smoke run and picture; and committed rows, whose verdicts depend on the arms."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from wellcond.results.result import picture
from wellcond_papers.experiments.catalog import experiment, names
from wellcond_papers.experiments.experiment import SCALES, Cell
from wellcond_papers.experiments.reproduce import reproduce
from wellcond_papers.experiments.rows import read_rows
from wellcond_papers.experiments.table import Record, Table

PUBLISHED = {
    "huang2020": [*(f"fig{k}" for k in range(1, 16)), "table-a", "table-b"],
    "lange2022": [f"fig{k}" for k in range(3, 10)],
    "santurkar2018": [f"fig{k}" for k in range(6, 15)],
    "wei2019": [f"fig{k}" for k in range(1, 5)],
    "zhang2018": ["fig1", "table1"],
}
"""The figures and tables of the sources that rest on experiments."""
COMMITTED = sorted((Path(__file__).parents[3] / "docs" / "reproduction" / "rows").glob("*.json"))


def test_every_figure_and_table_of_the_sources_is_there() -> None:
    assert list(names()) == [f"{source}-{figure}" for source, figures in PUBLISHED.items() for figure in figures]


@pytest.mark.parametrize("name", names())
def test_an_experiment_says_what_it_is(name: str) -> None:
    found = experiment(name)
    assert found.name == name
    assert found.title
    assert found.says
    assert found.claims
    assert {"smoke", "paper"} <= set(found.scales) <= set(SCALES)
    assert set(found.minutes) == set(found.scales)
    for scale in found.scales:
        cells = found.cells(scale)
        assert len({cell.key for cell in cells}) == len(cells) > 0
    assert set(found.data("smoke")) <= {"digits"}, "a smoke run needs embedded data alone"
    arms = set(found.arms)
    assert found.contrast, "some pair of arms must matter to the verdict"
    assert {arm for pair in found.contrast for arm in pair} <= arms


@pytest.mark.slow
@pytest.mark.parametrize("name", names())
def test_a_smoke_run_gives_rows_outcomes_and_a_picture(name: str, tmp_path: Path) -> None:
    first = reproduce(name, "smoke", out=tmp_path)
    assert len(first.table) == len(first.experiment.cells("smoke"))
    assert all(record.rows for record in first.table)
    assert all(outcome.measured for outcome in first.outcomes)
    assert picture(first.figure(), dpi=50).startswith(b"\x89PNG")
    files = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("cells/*.json")}
    again = reproduce(name, "smoke", out=tmp_path)
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("cells/*.json")} == files
    assert [record.rows for record in again.table] == [record.rows for record in first.table]


def exchanged(table: Table, pairs: Sequence[tuple[str, str]]) -> Table:
    """The table with what was measured in one arm of a pair put into the other, seed by seed."""
    rows = {(record.arm, record.settings["seed"]): record.rows for record in table}
    other = {a: b for pair in pairs for a, b in (pair, pair[::-1])}

    def moved(record: Record) -> Record:
        place = other.get(record.arm, record.arm), record.settings["seed"]
        return Record(record.settings, rows.get(place, record.rows), record.seconds)

    return Table([moved(record) for record in table])


@pytest.mark.parametrize("path", COMMITTED, ids=lambda path: path.stem)
def test_committed_rows_are_those_of_the_experiment_as_it_is(path: Path) -> None:
    run = read_rows(path)
    found, cells = run.experiment, run.experiment.cells(run.scale)
    have = {Cell(found.name, record.settings, found.version).key for record in run.table}
    assert path.stem == f"{found.name}-{run.scale}"
    assert have == {cell.key for cell in cells}
    assert not run.failures


@pytest.mark.parametrize("path", COMMITTED, ids=lambda path: path.stem)
def test_a_verdict_changes_when_two_arms_are_exchanged(path: Path) -> None:
    run = read_rows(path)
    other = exchanged(run.table, run.experiment.contrast)
    before = [outcome.verdict for outcome in run.outcomes]
    assert [claim.check(other).verdict for claim in run.experiment.claims] != before
