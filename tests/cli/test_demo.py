from __future__ import annotations

import webbrowser
from pathlib import Path

import made_results
import pytest
from command import parsed, run, words
from suites import assert_progress_rises
from torch import nn

from wellcond.cli.commands import demo


@pytest.mark.slow
def test_the_demo_says_what_is_wrong_what_helps_and_writes_one_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo, "EXAMPLES", 128)
    monkeypatch.setattr(demo, "STEPS", 10)
    monkeypatch.setattr(demo, "SEEDS", (0,))
    out = tmp_path / "demo.html"
    result = run("demo", "--depth", 6, "--width", 16, "--out", out)
    assert result.exit_code == 0, result.output
    text = words(result.output)
    places = [text.index(part) for part in ("A 6-layer network", "What is wrong", "What helps", "untreated, lr 0.1")]
    assert places == sorted(places)
    assert list(tmp_path.iterdir()) == [out]
    page = out.read_text(encoding="utf-8")
    order = [page.index(part) for part in ('class="verdict', "The model", "What helps", "Short runs", "All layers")]
    assert order == sorted(order)


@pytest.mark.slow
def test_the_network_of_the_demo_is_diagnosed_and_treated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "STEPS", 5)
    monkeypatch.setattr(demo, "SEEDS", (0,))
    monkeypatch.setattr(demo, "REMEDIES", ("rate", "batchnorm"))
    reports: list[tuple[str, float]] = []
    diagnosis, treatment = demo.diagnosed_and_treated(20, 16, lambda *report: reports.append(report))
    assert_progress_rises(reports)
    assert 0.9 < reports[-1][1] <= 1
    assert diagnosis.findings[0].severity == "severe"
    assert "batchnorm" in treatment.arms
    assert treatment.verdict()


def test_the_network_of_the_demo_has_lecuns_weights() -> None:
    problem, _ = demo.setup(20, 64)
    sizes = {layer.weight.shape for layer in problem.model if isinstance(layer, nn.Linear)}
    assert sizes == {(64, 64), (10, 64)}
    assert float(problem.model.fc3.weight.detach().var()) == pytest.approx(1 / 64, rel=0.1)


@pytest.mark.slow
def test_the_page_is_opened_when_asked_and_the_picture_is_of_the_curves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []
    monkeypatch.setattr(webbrowser, "open", opened.append)
    results = made_results.diagnosis(), made_results.treatment()
    monkeypatch.setattr(demo, "diagnosed_and_treated", lambda *_: results)
    page, picture = tmp_path / "a.html", tmp_path / "a.png"
    content = parsed(run("demo", "--json", "--open", "--out", page, "--out", picture))
    assert opened == [page.as_uri()]
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert content["values"]["diagnosis"]["findings"][0]["rule"] == "unscaled-input"
    assert "What helps" in page.read_text(encoding="utf-8")
