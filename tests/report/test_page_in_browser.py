"""The page of a diagnosis in a browser: drawn to scale, readable in both themes and on a phone, and harmless."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from browser import Browser
from made_findings import AWKWARD_NAME, VANISHING
from subjects import AWKWARD, SOUND, column, density, losses

from wellcond.report.html import plots
from wellcond.report.html.document import document, placed
from wellcond.report.html.notebook import finding_fragment
from wellcond.report.html.page import page
from wellcond.report.table import Pivot
from wellcond.results.quantities import DYING, FULL, INPUT, UNITS

pytestmark = pytest.mark.slow

HOSTILE = "</script><img src=x onerror=\"document.title='gone'\">"
UNFOLD = "document.querySelectorAll('details').forEach((each) => { each.open = true; })"
PLOTS = """[...document.querySelectorAll(".plot > div")].map((host) => {
  const picture = host.querySelector("svg");
  if (!picture) return null;
  const marks = picture.querySelectorAll(".curve, rect, circle, path:not(.curve)").length;
  return { marks, width: picture.clientWidth, room: host.clientWidth, text: picture.textContent };
})"""
LOW_CONTRAST = """(() => {
  const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const rgb = (color, below) => {
    canvas.fillStyle = `rgb(${below})`; canvas.fillRect(0, 0, 1, 1);
    canvas.fillStyle = color; canvas.fillRect(0, 0, 1, 1);
    return [...canvas.getImageData(0, 0, 1, 1).data].slice(0, 3);
  };
  const light = (color) => {
    const [r, g, b] = color.map((each) => (each /= 255) <= 0.04045 ? each / 12.92 : ((each + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const paper = (element) => {
    const below = element.parentElement ? paper(element.parentElement) : [255, 255, 255];
    return rgb(getComputedStyle(element).backgroundColor, below);
  };
  const shown = [...document.querySelectorAll("body *")].filter((element) =>
    element.checkVisibility() && [...element.childNodes].some((node) => node.nodeType === 3 && node.data.trim()));
  return shown.filter((element) => {
    const style = getComputedStyle(element), below = paper(element);
    const ink = rgb(element instanceof SVGElement ? style.fill : style.color, below);
    const [high, low] = [light(ink), light(below)].sort((a, b) => b - a);
    return (high + 0.05) / (low + 0.05) < 4.5;
  }).map((element) => element.outerHTML.slice(0, 120));
})()"""
"""Elements with text whose contrast is below the 4.5 that WCAG asks for."""


def write(folder: Path, text: str) -> Path:
    path = folder / "page.html"
    path.write_text(text, encoding="utf-8")
    return path


def whole_page() -> str:
    """A page with every kind of plot."""
    return page(
        {"a": AWKWARD, "b": SOUND},
        rows={"a": losses(2.0, 1.0, 0.5), "b": losses(2.0, math.nan, 3.0)},
        densities={"a": density(1.0, 0.5, 0.1)},
    )


def open_plot(opened: Browser, folder: Path, *drawn: plots.Plot) -> None:
    """Open a page that holds these plots alone."""
    every: dict[str, plots.Plot] = {}
    body = placed({str(i): plot for i, plot in enumerate(drawn)}, every)
    opened.open(write(folder, document("plots", body, every)))


def box(opened: Browser, element: str) -> list[float]:
    """Left end, top, width and height of an element, in pixels."""
    sides: list[float] = opened.run(f"((b) => [b.left, b.top, b.width, b.height])({element}.getBoundingClientRect())")
    return sides


def points(opened: Browser, selector: str = ".curve") -> list[list[tuple[float, float]]]:
    """Places and heights of every curve, in pixels from the bottom."""
    paths = opened.run(f"[...document.querySelectorAll('{selector}')].map((each) => each.getAttribute('d'))")
    pairs = [re.findall(r"[ML]([-\d.]+) ([-\d.]+)", path) for path in paths]
    return [[(float(x), -float(y)) for x, y in path] for path in pairs]


@pytest.mark.parametrize(("width", "is_dark"), [(1200, False), (400, True)])
def test_every_plot_is_drawn_without_a_complaint_or_a_request(
    opened: Browser, tmp_path: Path, width: int, is_dark: bool
) -> None:
    opened.open(write(tmp_path, whole_page()), width=width, is_dark=is_dark)
    assert opened.run("document.querySelector('details.expert').open") is False
    assert opened.run(PLOTS) == [None] * 10
    opened.run(UNFOLD)
    opened.frames()
    drawn = opened.run(PLOTS)
    # training; two magnitudes; κ of two matrices and two networks; units of two networks; one density
    assert len(drawn) == 1 + 2 + 4 + 2 + 1
    assert all(each["marks"] > 0 and each["width"] == each["room"] > 250 for each in drawn)
    assert opened.run("document.documentElement.scrollWidth") == width  # nothing sticks out
    assert opened.run(LOW_CONTRAST) == []
    assert len(opened.requests) == 1
    assert opened.complaints == []


def test_plots_follow_the_width_and_the_theme_without_a_new_page(opened: Browser, tmp_path: Path) -> None:
    color = "getComputedStyle(document.querySelector('.curve')).stroke"
    open_plot(opened, tmp_path, plots.training_plot({"a": ([1, 2], [2.0, 1.0])}))
    assert opened.run(color) == "rgb(213, 94, 0)"
    opened.resize(500)
    opened.frames()
    (drawn,) = opened.run(PLOTS)
    assert drawn["width"] == drawn["room"] < 500
    opened._call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark"}])
    assert opened.run(color) == "rgb(255, 138, 61)"


def test_a_curve_is_to_scale(opened: Browser, tmp_path: Path) -> None:
    linear = plots.training_plot({"a": ([1, 2, 5], [2.0, 1.5, 0.5])})
    logarithmic = plots.training_plot({"b": ([1, 2, 3], [1.0, 1e4, 1e6])})
    open_plot(opened, tmp_path, linear, logarithmic)
    (first, second, third), (low, middle, high) = points(opened)
    assert (third[0] - second[0]) / (second[0] - first[0]) == pytest.approx(3, abs=0.01)
    assert (first[1] - second[1]) / (second[1] - third[1]) == pytest.approx(0.5, abs=0.01)
    assert (middle[1] - low[1]) / (high[1] - middle[1]) == pytest.approx(2, abs=0.01)
    labels = "[...document.querySelectorAll('#figure-0 text[text-anchor=end]')]"
    ticks = opened.run(f"{labels}.map((each) => [each.textContent, each.getAttribute('y')])")
    zero, two = (-float(y) + 4 for y in (dict(ticks)["0"], dict(ticks)["2"]))
    assert (first[1], third[1]) == (pytest.approx(two, abs=0.1), pytest.approx(zero + (two - zero) / 4, abs=0.1))


def test_a_loss_between_gaps_is_a_dot(opened: Browser, tmp_path: Path) -> None:
    curves = {"a": ([1, 2, 3], [2.0, math.nan, math.nan]), "b": ([1, 2, 3], [2.0, 1.0, math.nan])}
    open_plot(opened, tmp_path, plots.training_plot(curves))
    assert opened.run("document.querySelectorAll('circle').length") == 1


def test_bars_are_stacked_shares(opened: Browser, tmp_path: Path) -> None:
    rows = [*column(DYING, 2.0, 0.0), *column(FULL, 4.0, 8.0), *column(UNITS, 8.0, 8.0)]
    open_plot(opened, tmp_path, plots.neurons_plot(Pivot.of(rows)))
    boxes = opened.run("[...document.querySelectorAll('rect')].map((r) => [r.y.baseVal.value, r.height.baseVal.value])")
    (dead_y, dead), (_, none), (full_y, full), (_, whole) = boxes
    assert (dead / whole, none, full / whole) == (pytest.approx(0.25), 0, pytest.approx(0.5))
    assert full_y + full == pytest.approx(dead_y)


def test_the_pointer_shows_the_numbers_below_it(opened: Browser, tmp_path: Path) -> None:
    rows = column(INPUT.lambda_max, 1.0, 1.0) + [
        row for name in INPUT.kappa.values() for row in column(name, 3.0, math.inf)
    ]
    kappas = Pivot.of(rows)
    steps = plots.training_plot({"": ([12_345, 12_346], [2.0, 1.0])})
    open_plot(opened, tmp_path, plots.kappa_plot(kappas, "Σx", plots.kappa_scale([kappas], "Σx")), steps)
    tip, picture = "document.querySelector('#figure-{} .tip')", "document.querySelector('#figure-{} svg')"
    for figure, share, text in (
        (0, 0.9, ["fc2", "κ20%: ∞", "κ50%: ∞", "κ80%: ∞", "κ100%: ∞"]),
        (0, 0.2, ["fc1", "κ20%: 3", "κ50%: 3", "κ80%: 3", "κ100%: 3"]),
        (1, 0.1, ["12345", "2"]),
    ):
        left, top, width, height = box(opened, picture.format(figure))
        opened.mouse("Moved", left + share * width, top + height / 2)
        assert opened.run(f"[...{tip.format(figure)}.children].map((each) => each.textContent)") == text
        assert opened.run(f"{tip.format(figure)}.checkVisibility()")
    opened.mouse("Moved", 1, 1)
    assert not opened.run(f"{tip.format(1)}.checkVisibility()")


def test_names_do_nothing(opened: Browser, tmp_path: Path) -> None:
    rows = [row._replace(layer=HOSTILE) if row.layer == "fc1" else row for row in AWKWARD.rows()]
    finding = replace(VANISHING, layer=HOSTILE, summary=HOSTILE, remedy=f"# {HOSTILE}")
    opened.open(write(tmp_path, page({HOSTILE: replace(AWKWARD, measured_rows=rows, findings=(finding,))})))
    opened.run(UNFOLD)
    opened.frames()
    left, top, *_ = box(opened, "document.querySelector('svg')")
    opened.mouse("Moved", left + 99, top + 99)
    assert opened.run("document.title").startswith("Diagnosis of </script>")
    assert opened.run("document.images.length") == 0
    assert AWKWARD_NAME in opened.run("document.querySelector('.plot svg').textContent")
    assert len(opened.requests) == 1
    assert opened.complaints == []


def test_the_table_is_sorted_by_a_click(opened: Browser, tmp_path: Path) -> None:
    opened.open(write(tmp_path, page({"net": AWKWARD})))
    opened.run(UNFOLD)
    names = "[...document.querySelectorAll('table.layers tbody th')].map((each) => each.textContent)"
    click = "[...document.querySelectorAll('table.layers button')].find((b) => b.textContent === 'κ50 Σx').click()"
    assert opened.run(names) == ["fc1", AWKWARD_NAME]
    opened.run(click)
    assert opened.run(names) == [AWKWARD_NAME, "fc1"]  # ∞ first
    opened.run(click)
    assert opened.run(names) == ["fc1", AWKWARD_NAME]


@pytest.mark.parametrize("limits", [{"warning": 0.8, "severe": 0.95}, {"warning": 0.2, "severe": 0.9}, {"severe": 1.0}])
def test_names_of_limits_cover_nothing(opened: Browser, tmp_path: Path, limits: dict[str, Any]) -> None:
    opened.open(
        write(tmp_path, finding_fragment(replace(VANISHING, rows=column("gradient_norm", 0.5, 1.0), limits=limits)))
    )
    names = opened.run("document.querySelectorAll('.limit em').length")
    assert names == len(limits)
    places = [f"document.querySelectorAll('.limit em')[{i}]" for i in range(names)]
    boxes = sorted(box(opened, each)[1::2] for each in ("document.querySelector('figcaption')", *places))
    assert all(top >= above + height - 1 for (above, height), (top, _) in pairwise(boxes))
