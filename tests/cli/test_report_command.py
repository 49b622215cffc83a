from __future__ import annotations

import json
from pathlib import Path

import pytest
from command import one_line, run, words
from made_runs import small_run
from recorded import write_run

from wellcond.recording.run import Run


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return write_run(tmp_path / "runs" / "a", small_run())


def test_it_prints_the_verdict_and_writes_the_page(folder: Path) -> None:
    result = run("report", folder)
    assert result.exit_code == 4
    text = words(result.stdout)
    assert "✗ Severe (dying-neurons" in text
    assert "SEVERE dying-neurons at body.3, since step 400" in text
    assert "WARNING loss-spike, steps 695 to 720" in text
    assert "<title>Run runs/a</title>" in Path("run.html").read_text(encoding="utf-8")


def test_the_exit_code_is_that_of_the_worst_finding(tmp_path: Path) -> None:
    recorded_run = small_run()
    milder = write_run(tmp_path / "b", Run.of(recorded_run.history, recorded_run.findings[1:], recorded_run.manifest))
    codes = [run("report", milder, "--fail-on", each, "--json").exit_code for each in ("severe", "warning", "never")]
    assert codes == [0, 3, 0]


def test_json_is_all_that_is_printed_and_no_page_is_written(folder: Path) -> None:
    content = json.loads(run("report", folder, "--json").stdout)
    assert content["verdict"].startswith("Severe")
    assert not Path("run.html").exists()


def test_other_forms_can_be_named(folder: Path) -> None:
    run("report", folder, "--out", "rows.csv", "--out", "a.html")
    assert Path("rows.csv").read_text(encoding="utf-8").startswith("step,layer,quantity,value,unit\n1,")
    assert Path("a.html").exists()
    assert not Path("run.html").exists()


def test_a_folder_without_a_run_is_refused_in_one_line(tmp_path: Path) -> None:
    assert "holds no recorded run" in one_line(run("report", tmp_path, "--json"))
