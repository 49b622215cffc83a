"""The page of a run as text, and in a browser: drawn, searchable, usable by keyboard and on a phone, and harmless."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from browser import Browser
from made_runs import HOSTILE, findings, layer_rows, manifest, small_run, training_rows

from wellcond.recording.comparison import compare_runs
from wellcond.recording.history import History
from wellcond.recording.run import Run
from wellcond.results import Row
from wellcond.results import quantities as q

IS_DRAWN = """(selector) => [...document.querySelectorAll(selector)].every((canvas) => {
  const pixels = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
  return canvas.width > 0 && new Set(new Uint32Array(pixels.buffer)).size > 2;
})"""
"""Whether every canvas has more on it than one color."""


def content(text: str) -> dict[str, object]:
    data = re.search(r'<script type="application/json" id="run-data">(.*?)</script>', text, re.DOTALL)
    assert data is not None
    parsed: dict[str, object] = json.loads(data[1])
    return parsed


def test_the_verdict_comes_first_and_the_file_needs_nothing_else() -> None:
    text = small_run().page()
    places = [text.index(words) for words in ('class="verdict', "Loss</h2>", "Findings</h2>", "The model</h2>")]
    assert places == sorted(places)
    assert "plotly" not in text.replace("Why not plotly", "")
    assert not re.search(r"(?:src|href)=\"(?!#)", text)
    assert "url(" not in text
    assert "@import" not in text


def test_a_spike_and_nan_are_in_the_curve_of_a_long_run() -> None:
    rows = [Row(step, "", q.TRAINING_LOSS, 1.0, "") for step in range(1, 9_000)]
    rows[4_567] = rows[4_567]._replace(value=77.0)
    rows[6_000] = rows[6_000]._replace(value=float("nan"))
    (line,) = content(Run.of(History(rows), [], {}).page())["loss"]  # type: ignore[misc]
    assert len(line["steps"]) <= 2000
    assert line["values"][line["steps"].index(4_568)] == 77.0
    assert line["values"][line["steps"].index(6_001)] is None


def test_a_run_without_anything_has_a_page() -> None:
    text = Run.of(History(), [], {}).page()
    assert "Nothing was recorded yet." in text
    assert content(text)["maps"] == []


def test_the_rate_is_shaded_where_it_is_above_its_limit() -> None:
    data = content(small_run().page())
    assert data["overLimit"] == [[1200, 1200]]
    limit = data["rate"][1]  # type: ignore[index]
    assert limit["low"][0] == pytest.approx(0.9 * limit["values"][0], rel=1e-4)


def test_a_name_with_a_script_in_it_is_text_everywhere() -> None:
    text = small_run(HOSTILE).page()
    assert "<script>document.title" not in text
    assert "<img" not in text
    assert "<img" not in compare_runs({HOSTILE: small_run(), "b": small_run(HOSTILE)}).page()


def large_run(layers: int = 2000) -> Run:
    """A network of blocks with this number of layers, and findings in some."""
    inner = ("norm1", "attention.q", "attention.k", "attention.v", "norm2", "mlp.fc1", "mlp.act", "mlp.fc2")
    names = [f"blocks.{i}.{each}" for i in range(layers // len(inner)) for each in inner]
    modules = {"": "GPT", "blocks": "ModuleList"}
    for name in names:
        parts = name.split(".")
        modules |= {".".join(parts[:depth]): "Block" for depth in range(2, len(parts))}
        modules[name] = "Linear"
    rows = training_rows(1200) + layer_rows(names, range(10, 1201, 200))
    spread = tuple(replace(findings(name)[0], severity="warning") for name in names[5::97])
    return Run.of(History(rows), [*findings(names[-1]), *spread], manifest(modules))


@pytest.fixture(scope="module")
def small_page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_run().save(tmp_path_factory.mktemp("page") / "run.html")


def scroll_through(opened: Browser) -> None:
    """Bring everything into view, so that it is drawn."""
    height, screen = opened.run("document.documentElement.scrollHeight"), 700
    for place in range(0, height + screen, screen):
        opened.run(f"scrollTo(0, {place})")
        opened.frames()


@pytest.mark.slow
@pytest.mark.parametrize(("width", "is_dark"), [(1200, False), (400, True)])
def test_every_chart_is_drawn_without_a_complaint_or_a_request(
    opened: Browser, small_page: Path, width: int, is_dark: bool
) -> None:
    opened.open(small_page, width=width, is_dark=is_dark)
    scroll_through(opened)
    opened.wait("document.querySelectorAll('canvas:not([data-drawn])').length === 0")
    assert opened.run("document.querySelectorAll('canvas').length") >= 8
    assert opened.run(f"({IS_DRAWN})('canvas')")
    assert opened.run("document.documentElement.scrollWidth") == width
    assert opened.requests == [small_page.as_uri()]
    assert opened.complaints == []


@pytest.mark.slow
def test_charts_are_drawn_when_they_are_seen(opened: Browser, small_page: Path) -> None:
    opened.open(small_page, height=500)
    assert opened.run("document.querySelector('#loss canvas').dataset.drawn") == "yes"
    assert opened.run("document.querySelector('#network canvas').dataset.drawn") is None


@pytest.mark.slow
def test_findings_stand_where_they_began_and_lead_to_their_cards(opened: Browser, small_page: Path) -> None:
    opened.open(small_page)
    left, right, width = opened.run(
        "(({left, right}) => [left, right, parseFloat(document.querySelector('.bar.severe').style.left)])"
        "(Chart.of.get(document.querySelector('#loss')).plot)"
    )
    assert width == pytest.approx(left + (right - left) * 399 / 1199, abs=0.5)
    opened.run("document.querySelector('.bar.severe').click()")
    opened.wait("Math.abs(document.getElementById('finding-1').getBoundingClientRect().top) < 120")


@pytest.mark.slow
def test_dragging_enlarges_every_chart_and_a_button_shows_all(opened: Browser, small_page: Path) -> None:
    opened.open(small_page)
    canvas = "document.querySelector('#loss canvas').getBoundingClientRect()"
    box = opened.run(f"(({{x, y, width, height}}) => [x, y, width, height])({canvas})")
    y = box[1] + 0.7 * box[3]
    opened.mouse("Moved", box[0] + 0.5 * box[2], y)
    assert "training loss" in opened.run("document.querySelector('#loss .readout').innerText")
    for kind, share in (("Pressed", 0.5), ("Moved", 0.7), ("Released", 0.75)):
        opened.mouse(kind, box[0] + share * box[2], y)
    first, last = opened.run("view.range")
    assert 500 < first < 650
    assert 850 < last < 950
    opened.run("document.querySelector('#whole-run').click()")
    assert opened.run("view.range") is None


@pytest.mark.slow
def test_the_keyboard_reaches_search_tree_charts_and_heat_map(opened: Browser, small_page: Path) -> None:
    opened.open(small_page)
    opened.press("/", *"body.5")
    assert opened.run("document.activeElement.id") == "search"
    assert opened.run("document.querySelector('#hits [aria-selected=true]').innerText").startswith("●")
    opened.press("Enter")
    assert opened.run("document.querySelector('#layer h3').textContent") == "body.5"
    assert opened.run("document.activeElement.textContent") == "body.5"
    opened.run("document.querySelector('#tree [tabindex=\"0\"]').focus()")
    opened.press("ArrowUp", "Enter")
    assert opened.run("document.querySelector('#layer h3').textContent") == "body.4"
    opened.press("ArrowLeft", "ArrowLeft")
    assert opened.run("document.activeElement.getAttribute('aria-expanded')") == "false"
    opened.press("ArrowRight")
    assert opened.run("document.activeElement.getAttribute('aria-expanded')") == "true"
    opened.wait("document.querySelector('#map canvas') !== null")
    opened.run("document.querySelector('#map canvas').focus()")
    opened.press("ArrowDown", "ArrowDown", "ArrowDown", "Enter")
    assert opened.run("document.querySelector('#layer h3').textContent") == "body.2"
    opened.run("document.querySelector('#loss canvas').focus()")
    opened.press("ArrowRight", "ArrowRight")
    assert opened.run("document.querySelector('#loss .readout').innerText").startswith("step 2")
    opened.run("document.querySelector('#map-choice [tabindex=\"0\"]').focus()")
    opened.press("ArrowRight")
    assert opened.run("document.querySelector('#map-choice [aria-checked=true]').textContent") == "update ratio"
    opened.press("/", "Escape", *"no such layer")
    assert "no layer" in opened.run("document.querySelector('#hits').innerText")
    assert opened.complaints == []


@pytest.mark.slow
def test_heat_map_cells_and_layers_show_the_numbers_of_the_run(opened: Browser, small_page: Path) -> None:
    opened.open(small_page)
    run = small_run()
    value = "(name, layer, column) => { const map = run.maps.find((each) => each.name === name);"
    value += " return gridOf(map).value(gridOf(map).code(map.rows.indexOf(nodeOf.get(layer)), column)); }"
    for name in (q.GRADIENT_NORM, q.DEAD_SHARE):
        series = run.history.series(name, "body.5")
        shown = opened.run(f"({value})('{name}', 'body.5', 60)")
        assert shown == pytest.approx(series.values[60], rel=1e-3)
    assert opened.run(f"Number.isNaN(({value})('gradient_norm', 'body.2', 119))")


@pytest.mark.slow
def test_tables_are_saved_as_csv(opened: Browser, small_page: Path) -> None:
    opened.open(small_page)
    opened.run("window.saved = {}; download = (name, lines) => { saved[name] = lines; }; undefined")
    opened.wait("document.querySelector('#map canvas') !== null || (scrollTo(0, 1500), false)")
    opened.run("document.querySelectorAll('button[data-table]').forEach((button) => button.click())")
    saved = opened.run("saved")
    assert sorted(saved) == ["findings", "gradient_norm", "layers", "network"]
    assert saved["findings"][1][:5] == ["dying-neurons", "body.3", "severe", 400, None]
    assert len(saved["gradient_norm"]) == 1 + 9
    assert opened.run("""quoted('a "b", c')""") == '"a ""b"", c"'


@pytest.mark.slow
def test_two_thousand_layers_are_painted_within_a_second(opened: Browser, tmp_path: Path) -> None:
    page = large_run().save(tmp_path / "large.html")
    assert page.stat().st_size < 4e6
    paints = []
    for _ in range(3):  # the machine may be busy
        opened.open(page)
        paints.append(opened.run("performance.getEntriesByName('first-contentful-paint')[0].startTime"))
        if min(paints) < 1000:
            break
    assert min(paints) < 1000
    opened.press("/", *"249.mlp.fc2")
    opened.press("Enter")  # the finding comes before its layer
    opened.wait("document.activeElement.classList.contains('finding')")
    opened.press("/", *"249.mlp.fc2")
    opened.press("ArrowDown", "Enter")
    assert opened.run("document.querySelector('#layer h3').textContent") == "blocks.249.mlp.fc2"
    assert opened.run("document.querySelector('[aria-selected=true]').getBoundingClientRect().height") > 0
    opened.run("document.querySelector('#map').scrollIntoView()")
    opened.wait("document.querySelector('#map canvas')?.dataset.drawn === 'yes'")
    opened.run("document.querySelector('#map-in').click()")
    assert opened.run("document.querySelector('#map-rows').textContent") == "layers 501 to 1500 of 2000"
    assert opened.complaints == []


@pytest.mark.slow
def test_a_hostile_name_does_nothing_in_a_browser(opened: Browser, tmp_path: Path) -> None:
    opened.open(small_run(HOSTILE).save(tmp_path / "run.html"), height=5000)
    opened.press("/", *"onerror")
    opened.press("ArrowDown", "Enter")
    opened.frames()
    assert opened.run("document.querySelector('#layer h3').textContent") == HOSTILE
    assert opened.run("document.title") == "Run recorded run"
    assert opened.run("document.images.length") == 0
    assert len(opened.requests) == 1
    assert opened.complaints == []


@pytest.mark.slow
def test_runs_are_drawn_over_each_other(opened: Browser, tmp_path: Path) -> None:
    opened.open(compare_runs({"a": small_run(), "b": small_run()}).save(tmp_path / "compare.html"), width=400)
    assert opened.run(f"({IS_DRAWN})('canvas[data-drawn]')")
    assert opened.run("Chart.of.get(document.querySelector('#charts .chart')).lines.length") == 2
    assert opened.run("document.documentElement.scrollWidth") == 400
    assert opened.complaints == []
