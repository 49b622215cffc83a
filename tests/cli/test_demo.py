from __future__ import annotations

import webbrowser
from pathlib import Path

import made_results
import pytest
from command import parsed, run, words

from wellcond.cli.commands import demo
from wellcond_papers.experiments import demo_networks


@pytest.mark.slow
def test_the_demo_says_what_is_wrong_what_helps_and_writes_one_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("sklearn")
    monkeypatch.setattr(demo_networks, "EXAMPLES", 128)
    monkeypatch.setattr(demo_networks, "STEPS", 10)
    monkeypatch.setattr(demo_networks, "SEEDS", (0,))
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


def test_the_page_is_opened_when_asked_and_the_picture_is_of_the_curves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []
    monkeypatch.setattr(webbrowser, "open", opened.append)
    made = made_results.diagnosis(), made_results.treatment()
    monkeypatch.setattr(demo, "diagnosed_and_treated", lambda *_: made)
    page, picture = tmp_path / "a.html", tmp_path / "a.png"
    content = parsed(run("demo", "--json", "--open", "--out", page, "--out", picture))
    assert opened == [page.as_uri()]
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert content["values"]["diagnosis"]["findings"][0]["rule"] == "unscaled-input"
    assert "What helps" in page.read_text(encoding="utf-8")
