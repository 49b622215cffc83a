"""Results in a notebook: in the order of a page, without scripts, in its theme, and seen by nothing outside of them."""

from __future__ import annotations

import io
import math
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from browser import Browser
from documents import Document
from made_findings import AWKWARD_NAME, DEAD, DIVERGED, UNSCALED
from made_runs import HOSTILE, small_run
from subjects import AWKWARD, SOUND

from wellcond.recording.history import History
from wellcond.recording.run import Run
from wellcond.report.html.cards import strip_plot
from wellcond.report.html.notebook import LINE_WIDTH, WORST_LAYERS, diagnosis_fragment, treatment_fragment
from wellcond.report.strips import Strip, strips
from wellcond.results import Result, Row
from wellcond.results import quantities as q

MARKUP = "<b>&"


@dataclass(frozen=True)
class Answer(Result):
    """A result without a form of its own."""

    text: str

    def rows(self, step: int | None = None) -> list[Row]:
        return [Row(step, "", "answer", 42.0, "")]

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True)
class Arms:
    """Stands in for a treatment."""

    title: str = "Loss after 2 steps"
    code: str = "x < 1"
    notes: tuple[str, ...] = (MARKUP,)
    untreated: Any = field(default_factory=lambda: SimpleNamespace(name="untreated"))
    best: Any = None

    def verdict(self) -> str:
        return f"{MARKUP} helps."

    def table(self) -> tuple[list[str], list[list[str]]]:
        return ["arm", "loss"], [[MARKUP, "0.3"]]

    def figure(self) -> Any:
        return Answer("").figure()


def fragments() -> dict[str, str]:
    return {
        "diagnosis": diagnosis_fragment(AWKWARD),  # type: ignore[arg-type]
        "finding": replace(UNSCALED, summary=MARKUP)._repr_html_(),
        "run": small_run(HOSTILE)._repr_html_(),
        "treatment": treatment_fragment(Arms()),  # type: ignore[arg-type]
        "result": Answer(MARKUP)._repr_html_(),
    }


@pytest.mark.parametrize("name", fragments())
def test_a_fragment_is_whole_has_no_script_and_loads_nothing(name: str) -> None:
    text = fragments()[name]
    document = Document(text)
    assert document.scripts == []
    assert document.tags[0] == ("style", {})
    assert document.tags[1] == ("div", {"class": "wellcond"})
    assert text.count("{") == text.count("}")
    assert "url(" not in text
    assert not [attributes for _, attributes in document.tags if any(each.startswith("on") for each in attributes)]
    assert "<b>" not in text
    assert "<img" not in text
    assert len(text.encode()) < 30_000


def test_a_diagnosis_is_in_the_order_of_its_page_with_the_numbers_folded() -> None:
    text = diagnosis_fragment(AWKWARD)  # type: ignore[arg-type]
    words = Document(text).words
    order = ("Verdict: 3", "vanishing-gradient", "Why Each ReLU halves", "Net", "Numbers", "2.3 on 64 examples")
    places = [words.index(part) for part in order]
    assert places == sorted(places)
    assert "<details><summary>Numbers</summary>" in text
    sound = Document(diagnosis_fragment(SOUND))  # type: ignore[arg-type]
    assert "verdict sound" in sound.classes
    assert "tree" not in sound.classes


def test_two_diagnoses_in_one_notebook_link_to_findings_of_their_own() -> None:
    documents = [
        Document(diagnosis_fragment(each))  # type: ignore[arg-type]
        for each in (AWKWARD, replace(AWKWARD, findings=AWKWARD.findings[:1]))
    ]
    ids = [{str(a["id"]) for _, a in each.tags if "id" in a} for each in documents]
    links = [{str(a["href"])[1:] for tag, a in each.tags if tag == "a"} for each in documents]
    assert ids == links
    assert not ids[0] & ids[1]


def test_a_finding_says_what_it_found_though_no_verdict_is_above_it() -> None:
    words = Document(UNSCALED._repr_html_()).words
    assert UNSCALED.summary in words
    assert f"This explains severe vanishing-gradient at fc1 {UNSCALED.consequences[0].summary}" in words
    assert AWKWARD_NAME in Document(DEAD._repr_html_()).words


def test_a_run_has_its_curves_its_worst_layers_and_what_is_over_folded() -> None:
    run = small_run()
    text = run._repr_html_()
    document = Document(text)
    assert document.words.index(run.verdict()) < document.words.index("loss by step")
    first = run.history.series(q.TRAINING_LOSS).values[0]
    assert f"{first:.3g} at first" in document.words
    assert sum(tag == "tr" for tag, _ in document.tags) == 1 + WORST_LAYERS
    ended = [each for each in run.findings if each.until is not None]
    folded = text[text.index(f"<details><summary>{len(ended)} that ended") :]
    assert ended
    for finding in run.findings:
        assert (f"<h3>{finding.rule}" in folded) == (finding in ended)


def test_a_run_without_anything_is_shown() -> None:
    assert "Nothing was recorded yet." in Document(Run.of(History(), [], {})._repr_html_()).words


def test_a_curve_has_gaps_where_it_is_not_finite() -> None:
    (strip,) = strips(DIVERGED)  # 1, 2, NaN, 8
    svg = strip_plot(strip)
    assert [points.count(",") for points in svg.split('points="')[1:]] == [2, 1]
    assert "nan" not in svg
    assert strip_plot(Strip("loss", ("1", "2"), (math.nan, math.inf), is_curve=True)).count("<polyline") == 0


def test_remedies_are_shown_with_the_lines_to_write_if_they_help() -> None:
    assert "x < 1" not in Document(treatment_fragment(Arms())).words  # type: ignore[arg-type]
    helping = Document(treatment_fragment(Arms(best=SimpleNamespace(name="he"))))  # type: ignore[arg-type]
    assert f"{MARKUP} helps." in helping.words
    assert "x < 1" in helping.words
    assert f"arm loss {MARKUP} 0.3" in helping.words


def test_text_is_broken_into_lines_and_tables_are_not() -> None:
    sentence, table = "word " * 60, "name    " + "1.0  " * 60
    text = Document(Answer(f"{sentence}\n{table}")._repr_html_()).text
    lines = "".join(text).splitlines()
    assert max(map(len, lines[:-1])) <= LINE_WIDTH
    assert lines[-1].split() == table.split()


@pytest.mark.slow
def test_a_figure_is_in_the_cell_and_in_no_window() -> None:
    pytest.importorskip("matplotlib")
    import matplotlib.pyplot as plt
    from matplotlib.image import imread

    open_before = plt.get_fignums()
    figure = small_run().figure()
    png = figure._repr_png_()  # type: ignore[attr-defined]
    pixels = imread(io.BytesIO(png))
    width, height = figure.get_size_inches()
    assert pixels.shape[:2] == (round(90 * height), round(90 * width))
    assert len(np.unique(pixels.reshape(-1, pixels.shape[-1]), axis=0)) > 10  # something is drawn
    assert plt.get_fignums() == open_before


# in a browser

PAGE = """<!doctype html><html {html}><head><meta name="viewport" content="width=device-width"><style>
.jp-RenderedHTMLCommon tbody tr:nth-child(odd) {{ background: rgb(255, 0, 0); }}
.jp-RenderedHTMLCommon td {{ text-align: left; color: rgb(255, 0, 0); }}
.jp-RenderedHTMLCommon pre {{ color: rgb(255, 0, 0); }}
</style></head><body {body}><div class="jp-RenderedHTMLCommon">{fragment}</div>
<section id="outside"><h3>h</h3><p class="note">p</p><pre>x</pre><table><tr><td>1</td></tr></table></section>
</body></html>"""
THEMES = {
    "JupyterLab": ("", 'data-jp-theme-light="{}"', ("true", "false")),
    "VS Code": ("", 'class="vscode-{}"', ("light", "dark")),
    "Colab": ('theme="{}"', "", ("light", "dark")),
}


def show(opened: Browser, path: Path, fragment: str, html: str = "", body: str = "", **options: Any) -> None:
    path.write_text(PAGE.format(html=html, body=body, fragment=fragment), encoding="utf-8")
    opened.open(path, **options)


@pytest.mark.slow
@pytest.mark.parametrize("editor", THEMES)
@pytest.mark.parametrize("is_dark", [False, True])
def test_the_theme_of_the_notebook_counts_and_not_that_of_the_system(
    opened: Browser, tmp_path: Path, editor: str, is_dark: bool
) -> None:
    html, body, (light, dark) = THEMES[editor]
    mode = dark if is_dark else light
    text = diagnosis_fragment(AWKWARD)  # type: ignore[arg-type]
    show(opened, tmp_path / "a.html", text, html.format(mode), body.format(mode), is_dark=not is_dark)
    paper = opened.run("getComputedStyle(document.querySelector('.wellcond')).backgroundColor")
    card = opened.run("getComputedStyle(document.querySelector('.finding')).backgroundColor")
    assert paper == card == ("rgb(20, 23, 28)" if is_dark else "rgb(255, 255, 255)")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["diagnosis", "run", "treatment"])
def test_nothing_outside_changes_and_nothing_outside_changes_it(opened: Browser, tmp_path: Path, name: str) -> None:
    styles = """JSON.stringify([...document.querySelectorAll("#outside, #outside *")].map((each) => {
      const style = getComputedStyle(each);
      return [...style].filter((key) => !/size|width|origin/.test(key)).map((key) => style.getPropertyValue(key));
    }))"""
    show(opened, tmp_path / "a.html", "")
    before = opened.run(styles)
    show(opened, tmp_path / "a.html", fragments()[name])
    assert opened.run(styles) == before
    inside = """[...document.querySelectorAll(".wellcond tr, .wellcond td, .wellcond pre")].flatMap((each) => {
      const style = getComputedStyle(each);
      return [style.color, style.backgroundColor];
    })"""
    shown = opened.run(inside)
    assert shown
    assert "rgb(255, 0, 0)" not in shown
    assert opened.complaints == []
    assert len(opened.requests) == 1


@pytest.mark.slow
@pytest.mark.parametrize("name", fragments())
def test_a_narrow_cell_is_enough(opened: Browser, tmp_path: Path, name: str) -> None:
    show(opened, tmp_path / "a.html", fragments()[name], width=400)
    assert opened.run("document.documentElement.scrollWidth") == 400
