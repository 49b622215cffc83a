from __future__ import annotations

from pathlib import Path

import pytest
from command import parsed, run, words
from made_runs import small_run
from recorded import write_run

from wellcond.recording.history import History
from wellcond.recording.run import Run

ADAM = {"class": "Adam", "groups": [{"lr": 0.001, "betas": [0.9, 0.99]}]}


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    first = small_run()
    rows = [
        row._replace(value=row.value * (4.0 if row.layer == "body.4" else 0.5))
        for row in first.rows()
        if row.step <= 1000
    ]
    second = Run.of(History(rows), first.findings[:1], first.manifest)
    return write_run(tmp_path / "a", first), write_run(tmp_path / "b", second, optimizer=ADAM)


def test_what_differs_is_said_in_tables(folders: tuple[Path, Path]) -> None:
    result = run("compare", *folders, width=110)
    assert result.exit_code == 0
    text = words(result.stdout)
    assert "b has the lowest loss at step 1,000" in text
    assert "optimizer SGD Adam" in text
    assert "optimizer lr 0.1 0.001" in text
    assert "loss-spike (warning) steps 695 to 720 –" in text
    assert "dying-neurons" not in text  # both have it
    layers = [line.split() for line in result.stdout.splitlines() if line.startswith(" body.")]
    assert [(line[0], line[-2]) for line in layers[:4]] == [*[("body.4", "4")] * 3, ("body.0", "0.5")]


def test_json_and_a_page(folders: tuple[Path, Path], tmp_path: Path) -> None:
    page = tmp_path / "compare.html"
    content = parsed(run("compare", *folders, "--json", "--out", page))
    names = list(content["values"]["settings"]["optimizer"])
    assert [each.rpartition("/")[2] for each in names] == ["a", "b"]
    assert content["values"]["settings"]["optimizer lr"] == {names[0]: "0.1", names[1]: "0.001"}
    assert [content["values"]["ends"][name][0] for name in names] == [1200, 1000]
    assert "comparison-data" in page.read_text(encoding="utf-8")


@pytest.mark.slow
def test_two_different_runs_are_needed(folders: tuple[Path, Path]) -> None:
    assert "name two or more runs" in words(run("compare", folders[0]).output)
    assert "a run is named twice" in words(run("compare", folders[0], folders[0]).output)
