"""Every experiment: its shape, its smoke run and picture; and committed rows, whose verdicts depend on the arms."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from wellcond_papers.experiments.catalog import experiment, names
from wellcond_papers.experiments.reproduce import reproduce
from wellcond_papers.experiments.rows import read_rows
from wellcond_papers.experiments.running.store import Store
from wellcond_papers.experiments.scales import SCALES
from wellcond_papers.experiments.table import Record, Table

PUBLISHED = {
    "huang2020": [*(f"fig{k}" for k in range(1, 16)), "table-a", "table-b"],
    "lange2022": [*(f"fig{k}" for k in range(3, 10)), "table2", "table3"],
    "santurkar2018": [f"fig{k}" for k in range(6, 15)],
    "wei2019": [f"fig{k}" for k in range(1, 5)],
    "zhang2018": ["fig1", "fig2", "table1"],
}
"""The figures and tables of the sources that rest on experiments."""
COMMITTED = sorted((Path(__file__).parents[3] / "docs" / "reproduction" / "rows").glob("*.json"))


def test_every_figure_and_table_of_the_sources_is_there() -> None:
    assert list(names()) == [f"{source}-{figure}" for source, figures in PUBLISHED.items() for figure in figures]


@pytest.mark.parametrize("name", names())
def test_an_experiment_says_what_it_is(name: str) -> None:
    subject = experiment(name)
    assert subject.name == name
    assert subject.title
    assert subject.says
    assert subject.claims
    assert {"smoke", "paper"} <= set(subject.scales) <= set(SCALES)
    assert set(subject.minutes) == set(subject.scales)
    for scale in subject.scales:
        cells = subject.cells(scale)
        assert len({cell.key for cell in cells}) == len(cells) > 0
    assert set(subject.data("smoke")) <= {"digits"}, "a smoke run needs embedded data alone"
    assert ("stand-in" in subject.scales) == bool(subject.stand_in) == ("imagenet" in subject.data("paper"))
    arms = set(subject.arms)
    assert subject.contrast, "some pair of arms must matter to the verdict"
    assert {arm for pair in subject.contrast for arm in pair} <= arms


@pytest.mark.slow
@pytest.mark.parametrize("name", names())
def test_a_smoke_run_gives_rows_outcomes_and_a_picture(name: str, tmp_path: Path) -> None:
    run = reproduce(name, "smoke", out=tmp_path)
    cells, folder = run.experiment.cells("smoke"), tmp_path / name / "smoke"
    assert len(run.table) == len(cells)
    assert all(record.rows for record in run.table)
    assert all(outcome.measured for outcome in run.outcomes)
    assert (folder / "figure.png").read_bytes().startswith(b"\x89PNG")
    store = Store(tmp_path / cells[0].experiment / "smoke")
    stored = store.finished(cells)  # a second run would take all of them from there
    records = [stored[cell.key].record for cell in cells]
    assert [record and record.rows for record in records] == [record.rows for record in run.table]


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
    subject, cells = run.experiment, run.experiment.cells(run.scale)
    have = {subject.cell(record.settings).key for record in run.table}
    assert path.stem == f"{subject.name}-{run.scale}"
    assert set() < have <= {cell.key for cell in cells}
    assert not run.failures


@pytest.mark.parametrize("path", COMMITTED, ids=lambda path: path.stem)
def test_a_verdict_changes_when_two_arms_are_exchanged(path: Path) -> None:
    run = read_rows(path)
    arms = {arm for pair in run.experiment.contrast for arm in pair}
    before = [outcome.verdict for outcome in run.outcomes]
    if run.missing and (not arms <= set(run.table.arms) or set(before) == {"not tested"}):
        pytest.skip("the runs that it compares have not all finished")
    other = exchanged(run.table, run.experiment.contrast)
    assert [claim.check(other).verdict for claim in run.experiment.claims] != before
