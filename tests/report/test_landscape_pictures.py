"""Pictures of the loss landscape show what the rows and results say."""

from __future__ import annotations

import math

import pytest
import torch

from wellcond.measurements.landscape.landscape import Landscape
from wellcond.measurements.landscape.slices import LossSlice
from wellcond.report.figures.landscape import ribbons_figure, slice_figure, walk_figure
from wellcond.results import Cost, Row
from wellcond.results import quantities as q

pytest.importorskip("matplotlib")

from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection


def walk() -> Landscape:
    lengths = torch.tensor([0.1, 0.2, 0.4], dtype=torch.float64)
    losses = torch.tensor([3.0, 2.0, 5.0], dtype=torch.float64)
    return Landscape(lengths, losses, 2 * lengths, 4 * lengths, 4.0, 1.0, "gradient", "batch", Cost(), ())


def run(scale: float = 1.0) -> list[Row]:
    """The rows of three walks: from loss 4 down to 2 and up to 5 at step 0, in proportion to the step after it."""
    rows = []
    for step in (0, 10, 20):
        size = scale * (1 + step)
        named = {q.LOSS: 4 * size, q.LOSS_LEAST: 2 * size, q.LOSS_GREATEST: 5 * size}
        named |= {q.GRADIENT_CHANGE_LEAST: 0.2, q.GRADIENT_CHANGE_GREATEST: 0.8, q.BETA: 0.5}
        rows += [Row(step, "", quantity, value, "") for quantity, value in named.items()]
    return rows


def lines(axes: Axes) -> list[tuple[list[float], list[float]]]:
    return [(list(line.get_xdata()), list(line.get_ydata())) for line in axes.lines]


def plane(losses: torch.Tensor, directions: tuple[str, ...] = ("random", "random")) -> LossSlice:
    coordinates = torch.linspace(-1, 1, len(losses), dtype=torch.float64)
    return LossSlice(coordinates, losses, directions[: losses.dim()], False, "batch", Cost(), ())


def test_ribbons_reach_from_the_least_to_the_greatest_of_every_walk() -> None:
    figure = ribbons_figure({"plain": run(), "BatchNorm": run(0.5)})
    loss, change, beta = figure.axes
    for axes, low, high in ((loss, [2, 22, 42], [5, 55, 105]), (change, [0.2] * 3, [0.8] * 3)):
        ribbon = next(c for c in axes.collections if isinstance(c, PolyCollection))
        corners = {(float(x), round(float(y), 9)) for x, y in ribbon.get_paths()[0].vertices}
        assert corners == {*zip([0.0, 10.0, 20.0], low, strict=True), *zip([0.0, 10.0, 20.0], high, strict=True)}
        assert len(axes.collections) == 2
    assert ([0, 10, 20], [4.0, 44.0, 84.0]) in lines(loss)
    assert lines(beta) == [([0, 10, 20], [0.5, 0.5, 0.5])] * 2
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["plain", "BatchNorm"]
    assert all(axes.get_xlabel() == "training step" for axes in figure.axes)


def test_rows_in_any_order_are_drawn_by_step_with_gaps_if_not_finite() -> None:
    rows = [row._replace(value=math.inf) if row.quantity == q.BETA and row.step == 10 else row for row in run()[::-1]]
    loss, _, beta = ribbons_figure({"a": rows}).axes
    assert ([0, 10, 20], [4.0, 44.0, 84.0]) in lines(loss)
    ((_, heights),) = lines(beta)
    assert math.isnan(heights[1])
    assert heights[::2] == [0.5, 0.5]


def test_an_axis_is_logarithmic_where_values_are_positive_and_span_decades() -> None:
    panels = ribbons_figure({"a": run(), "b": run(0.01)}).axes
    assert [axes.get_yscale() for axes in panels] == ["log", "linear", "linear"]
    with_zero = slice_figure(plane(torch.tensor([1e6, 0.0, 1e6], dtype=torch.float64), ("gradient",)))
    assert with_zero.axes[0].get_yscale() == "linear"


def test_a_walk_is_drawn_against_step_length_and_distance() -> None:
    one = walk()
    figure = walk_figure({"here": one})
    left, right = figure.axes
    assert lines(left) == [([0.1, 0.2, 0.4], [3.0, 2.0, 5.0])]
    assert lines(right) == [((4 * one.step_lengths).tolist(), (2 * one.step_lengths).tolist())]
    assert len(figure.legends) == 1
    assert walk_figure({"": one}).legends == []


def test_a_line_is_drawn_over_its_coordinates() -> None:
    (axes,) = slice_figure(plane(torch.tensor([9.0, 1.0, math.nan, 2.0, 8.0], dtype=torch.float64))).axes
    places, heights = lines(axes)[0]
    assert places == [-1.0, -0.5, 0.0, 0.5, 1.0]
    assert math.isnan(heights[2])
    assert heights[3:] == [2.0, 8.0]
    assert "random" in axes.get_xlabel()


@pytest.mark.parametrize("top", [10.0, 1e6], ids=["linear", "logarithmic"])
def test_a_plane_has_its_colors_from_the_least_loss_to_the_greatest(top: float) -> None:
    losses = torch.full((5, 5), top, dtype=torch.float64)
    losses[1, 3] = 1.0  # α = −1/2, β = 1/2
    losses[4, 4] = math.nan
    axes, bar = slice_figure(plane(losses)).axes
    filled = axes.collections[0]
    assert filled.get_clim() == (1.0, top)
    assert type(filled.norm).__name__ == ("LogNorm" if top > 30 else "Normalize")
    least = next(p for p in filled.get_paths() if len(p.vertices))
    assert least.vertices.mean(0) == pytest.approx([-0.5, 0.5], abs=0.05)
    assert bar.get_yticklabels()[0].get_text() == "1"


@pytest.mark.parametrize("value", [2.0, 0.0, math.nan], ids=["flat", "zero", "nowhere_finite"])
def test_planes_without_contours_are_drawn_too(value: float) -> None:
    figure = slice_figure(plane(torch.full((3, 3), value, dtype=torch.float64)))
    assert figure.axes[0].get_xlabel() == "α  (random)"
