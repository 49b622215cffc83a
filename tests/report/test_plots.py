"""Figures: that plotly accepts them, and that nothing is left out of them."""

from __future__ import annotations

import math
from typing import Any

import plotly.graph_objects as go
import pytest
from subjects import AWKWARD, SOUND

from wellcond.report.pivot import Pivot
from wellcond.report import plots
from wellcond.report.gallery import panels
from wellcond.report.scale import LogScale
from wellcond.results import Row


def with_colours(node: Any, key: str = "") -> Any:
    """As the page does: names of CSS variables become colours."""
    if isinstance(node, dict):
        return {name: with_colours(value, name) for name, value in node.items()}
    if isinstance(node, list):
        return [with_colours(each, key) for each in node]
    return "#123456" if key.endswith("color") and isinstance(node, str) and not node.startswith("rgba") else node


def test_plotly_accepts_every_figure() -> None:
    extra = [Row(None, "", f"density({x})", y, "") for x, y in ((0.0, 1.0), (1.0, 0.5))]
    extra += [Row(0, "", "training_loss", 1.0, ""), Row(1, "", "training_loss", math.nan, "")]
    drawn = [f for panel in panels({"a": AWKWARD.rows() + extra, "b": SOUND.rows()}) for f in panel.figures.values()]
    # training; two magnitudes; κ of two matrices and two networks; units of two networks; one density
    assert len(drawn) == 1 + 2 + 4 + 2 + 1
    for figure in drawn:
        go.Figure(with_colours(figure))


def test_every_panel_says_which_way_is_good() -> None:
    for panel in panels({"a": AWKWARD.rows()}):
        assert "good" in panel.note or "better" in panel.note
        assert all(f["layout"]["yaxis"]["title"]["text"] for f in panel.figures.values())
        assert all(f["layout"]["xaxis"]["title"]["text"] for f in panel.figures.values())


def test_a_zero_is_drawn_at_the_bottom() -> None:
    rows = [Row(None, name, "lambda_max(Σx)", value, "") for name, value in (("a", 0.0), ("b", 2.0))]
    figure = plots.magnitude_figure({"net": Pivot.of(rows)}, "Σx")
    line, mark = figure["data"]
    assert line["y"] == [None, 2.0]
    assert (mark["x"], mark["customdata"], mark["marker"]["symbol"]) == (["a"], ["0"], ["triangle-down"])
    assert mark["y"][0] < 1
    assert figure["layout"]["yaxis"]["ticktext"][0] == "0"


def test_lines_that_are_infinite_together_are_all_seen() -> None:
    rows = [Row(None, "a", "lambda_max(Σx)", 1.0, "")]
    rows += [Row(None, "a", f"kappa_{p}(Σx)", math.inf if p != "20%" else 3.0, "") for p in plots.SHARES]
    pivot = Pivot.of(rows)
    figure = plots.kappa_figure(pivot, "Σx", plots.kappa_scale([pivot], "Σx"))
    heights = [trace["y"][0] for trace in figure["data"] if trace["mode"] == "markers"]
    assert len(set(heights)) == 3
    assert min(heights) > 10


def test_a_layer_without_dead_or_full_units_says_so() -> None:
    rows = [Row(None, "a", quantity, value, "") for quantity, value in (("dying", 0.0), ("full", 0.0), ("units", 8.0))]
    layout = plots.neurons_figure(Pivot.of(rows))["layout"]
    assert layout["annotations"][0]["text"] == "none of 8 units is dead or always on"


def test_a_density_that_is_not_finite_says_so() -> None:
    figure = plots.density_figure([Row(None, "", "density(nan)", math.nan, "")], 0)
    assert figure["data"] == []
    assert "NaN" in figure["layout"]["annotations"][0]["text"]


def test_many_layers_keep_few_labels_and_all_points() -> None:
    rows = [Row(None, f"blocks.{i}.attention.query", "lambda_max(Σx)", 1.0 + i, "") for i in range(200)]
    figure = plots.magnitude_figure({"net": Pivot.of(rows)}, "Σx")
    assert len(figure["data"][0]["x"]) == 200
    assert len(figure["layout"]["xaxis"]["tickvals"]) <= plots.MOST_LAYER_TICKS


@pytest.mark.parametrize("values", [[1e-308, 1e308, 0.0, math.inf], [5.0], [math.inf], [0.0], [1.0, 1.0]])
def test_any_values_have_a_finite_axis(values: list[float]) -> None:
    scale = LogScale.of(values)
    axis = scale.axis()
    numbers = [*axis["tickvals"], *axis["range"], *(scale.place(value) for value in values)]
    assert all(math.isfinite(each) for each in numbers)
    assert all(tick > 0 for tick in axis["tickvals"])
    assert axis["range"][0] < axis["range"][1]
