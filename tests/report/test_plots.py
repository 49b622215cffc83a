"""What the plots of a page hold: names, colors and axes that plot.js draws, and nothing left out."""

from __future__ import annotations

import math
import re
from importlib.resources import files
from typing import Any

import pytest
from subjects import AWKWARD, SOUND, column, density, losses

from wellcond.report.html import plots
from wellcond.report.html.document import json_text
from wellcond.report.html.plots import panels
from wellcond.report.table import Pivot
from wellcond.results import Row
from wellcond.results.quantities import DYING, FULL, INPUT, UNITS

COLORS = set(re.findall(r"--([\w-]+):", (files("wellcond.report.html") / "page.css").read_text(encoding="utf-8")))


def assert_drawable(plot: dict[str, Any]) -> None:
    """What plot.js relies on: axes with titles, colors of the page, and places and heights in pairs."""
    json_text(plot)  # which knows neither NaN nor infinity
    assert all(plot["layout"][axis]["title"]["text"] for axis in ("xaxis", "yaxis"))
    ticks = plot["layout"]["yaxis"]
    assert len(ticks.get("tickvals", [])) == len(ticks.get("ticktext", []))
    for trace in plot["data"]:
        assert len(trace["x"]) == len(trace["y"]) == len(trace.get("customdata", trace["x"]))
        assert (trace.get("line") or trace["marker"])["color"] in COLORS
        if plot["layout"]["xaxis"].get("type") == "category":
            assert set(trace["x"]) <= set(plot["layout"]["xaxis"]["categoryarray"])


def test_every_figure_can_be_drawn_and_every_panel_says_how_to_read_it() -> None:
    shown = panels({"a": AWKWARD.rows() + losses(1.0, math.nan), "b": SOUND.rows()}, {"a": density(1.0, 0.5)})
    drawn = [plot for panel in shown for plot in panel.plots.values()]
    # training; two magnitudes; κ of two matrices and two networks; units of two networks; one density
    assert len(drawn) == 1 + 2 + 4 + 2 + 1
    for figure in drawn:
        assert_drawable(figure)
    assert len({panel.note for panel in shown}) == len(shown) - 1  # the condition numbers of both matrices read alike


def test_a_zero_is_drawn_at_the_bottom() -> None:
    figure = plots.magnitude_plot({"net": Pivot.of(column(INPUT.lambda_max, 0.0, 2.0))}, "Σx")
    line, mark = figure["data"]
    assert line["y"] == [None, 2.0]
    assert (mark["x"], mark["customdata"], mark["marker"]["symbol"]) == (["fc1"], ["0"], ["triangle-down"])
    assert mark["y"][0] < 1
    assert figure["layout"]["yaxis"]["ticktext"][0] == "0"


def test_lines_that_are_infinite_together_are_all_seen() -> None:
    rows = column(INPUT.lambda_max, 1.0)
    rows += [row for p, name in INPUT.kappa.items() for row in column(name, math.inf if p != 0.2 else 3.0)]
    pivot = Pivot.of(rows)
    figure = plots.kappa_plot(pivot, "Σx", plots.kappa_scale([pivot], "Σx"))
    marks = [trace for trace in figure["data"] if trace["mode"] == "markers"]
    assert all(mark["customdata"] == ["∞"] for mark in marks)
    heights = [mark["y"][0] for mark in marks]
    assert len(set(heights)) == 3
    assert min(heights) > 10
    assert figure["layout"]["yaxis"]["ticktext"][-1] == "∞"


def test_a_plot_with_nothing_to_draw_says_why() -> None:
    rows = [*column(DYING, 0.0), *column(FULL, 0.0), *column(UNITS, 8.0)]
    layout = plots.neurons_plot(Pivot.of(rows))["layout"]
    assert layout["annotations"][0]["text"] == "none of 8 units is dead or always on"
    figure = plots.density_plot(density(math.nan), 0)
    assert figure["data"] == []
    assert "NaN" in figure["layout"]["annotations"][0]["text"]


def test_many_layers_keep_few_labels_and_all_points() -> None:
    rows = [Row(None, f"blocks.{i}.attention.query", INPUT.lambda_max, 1.0 + i, "") for i in range(200)]
    figure = plots.magnitude_plot({"net": Pivot.of(rows)}, "Σx")
    assert len(figure["data"][0]["x"]) == 200
    assert len(figure["layout"]["xaxis"]["tickvals"]) <= plots.MOST_LAYER_TICKS


@pytest.mark.parametrize(
    ("losses", "is_log"),
    [([2.0, 1.0, 1e-6], False), ([2.0, 1e9, math.nan], True), ([2.0, -1.0, 1e9], False), ([], False)],
)
def test_the_axis_of_losses_is_logarithmic_if_a_run_diverges(losses: list[float], is_log: bool) -> None:
    figure = plots.training_plot({"a": (list(range(len(losses))), losses), "b": ([0, 1], [2.0, 1.0])})
    assert (figure["layout"]["yaxis"].get("type") == "log") == is_log
    assert_drawable(figure)


def test_a_loss_that_is_fitted_to_zero_leaves_a_gap_on_a_logarithmic_axis() -> None:
    figure = plots.training_plot({"a": ([0, 1, 2], [2.0, 1e9, 1.0]), "b": ([0, 1, 2], [2.0, 0.0, 1e-6])})
    assert figure["layout"]["yaxis"]["type"] == "log"
    assert figure["data"][1]["y"] == [2.0, None, 1e-6]
    assert plots.training_plot({"b": ([0, 1], [2.0, 0.0])})["data"][0]["y"] == [2.0, 0.0]
