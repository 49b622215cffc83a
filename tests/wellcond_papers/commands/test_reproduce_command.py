"""`wellcond reproduce`: the list, a run, and what is said before any work."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from command import one_line, run, words

from wellcond_papers.experiments.catalog import names
from wellcond_papers.experiments.reproduction import SMOKE_CAVEAT, Reproduction

NAME = "lange2022-fig8"
"""An experiment that takes a second at the smallest scale."""


def test_without_a_name_all_are_listed_with_their_cost_and_data(tmp_path: Path) -> None:
    result = run("reproduce", "--data", tmp_path, width=160)
    assert result.exit_code == 0
    assert all(name in result.output for name in names())
    assert all(word in result.output for word in ("smoke", "laptop", "gpu", "paper", "cifar10 missing"))
    assert str(tmp_path) in result.output


@pytest.mark.parametrize("width", [80, 120])
def test_the_list_has_one_line_per_experiment(width: int, tmp_path: Path) -> None:
    lines = run("reproduce", "--data", tmp_path, width=width).output.splitlines()
    head = next(k for k, line in enumerate(lines) if "experiment" in line)
    listed = lines[head + 2 : head + 2 + len(names())]
    assert [line.split()[0] for line in listed] == list(names())
    assert max(map(len, listed)) <= width
    assert all(not line.rstrip().endswith("…") for line in listed), "titles alone are shortened"
    assert any("ResNet-LastBN" in line for line in listed) == (width == 120), "titles need room"


def test_the_list_as_json(tmp_path: Path) -> None:
    content = json.loads(run("reproduce", "--data", tmp_path, "--json").stdout)
    assert [each["name"] for each in content] == list(names())
    entry = next(each for each in content if each["name"] == NAME)
    assert set(entry["minutes"]) == {"smoke", "laptop", "paper"}
    assert entry["data"]
    assert not any(entry["data"].values())


@pytest.mark.slow
def test_a_run_prints_claims_and_verdict_and_says_where_the_files_are(tmp_path: Path) -> None:
    result = run("reproduce", NAME, "--scale", "smoke", "--out", tmp_path, width=160)
    assert result.exit_code == 0, result.output
    assert all(word in result.output for word in ("claim", "paper", "found", "verdict: ", SMOKE_CAVEAT))
    folder = tmp_path / NAME / "smoke"
    assert f"rows.json, table.parquet, figure.png in {folder}" in words(result.output)
    again = json.loads(run("reproduce", NAME, "--scale", "smoke", "--out", tmp_path, "--json").stdout)
    assert again[0]["verdict"] == json.loads((folder / "verdict.json").read_text())["verdict"]
    assert again[0]["folder"] == str(folder)
    assert again[0]["caveat"] == SMOKE_CAVEAT


def test_missing_data_is_named_with_its_place_and_nothing_is_run(tmp_path: Path) -> None:
    result = run("reproduce", NAME, "--scale", "laptop", "--data", tmp_path / "data", "--out", tmp_path)
    assert result.exit_code == 1
    assert result.stderr.startswith("error: the files of ")
    assert str(tmp_path / "data") in result.stderr
    assert "Nothing was run. --data DIR names another folder; --download fetches" in result.stderr
    assert not list(tmp_path.iterdir())


def test_download_fetches_what_is_missing_and_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fetched: list[str] = []
    monkeypatch.setattr(
        "wellcond_papers.commands.reproduce.download", lambda name, root, progress: fetched.append(name)
    )
    run("reproduce", NAME, "--scale", "laptop", "--data", tmp_path, "--out", tmp_path, "--download")
    assert fetched == ["cifar10"]
    run("reproduce", "huang2020-fig10", "--scale", "paper", "--data", tmp_path, "--out", tmp_path, "--download")
    assert fetched == ["cifar10"], "ImageNet is not for all"


def test_a_wrong_name_or_scale_is_answered_with_what_there_is(tmp_path: Path) -> None:
    assert "Closest: lange2022-fig8" in one_line(run("reproduce", "lange2022-figure8", "--out", tmp_path))
    message = one_line(run("reproduce", NAME, "--scale", "gpu", "--out", tmp_path))
    assert message == f"{NAME} has no scale 'gpu'; it has smoke, laptop, paper."
    assert run("reproduce", NAME, "--scale", "tiny").exit_code == 2


def test_ctrl_c_says_how_to_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object, **__: object) -> list[Reproduction]:
        raise KeyboardInterrupt

    monkeypatch.setattr("wellcond_papers.commands.reproduce.run", interrupted)
    result = run("reproduce", NAME, "--scale", "smoke", "--out", tmp_path)
    assert result.exit_code == 130
    assert "run the same command again to continue" in result.stderr
