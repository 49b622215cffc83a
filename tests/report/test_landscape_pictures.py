"""Pictures of the loss landscape show what the rows and results say."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from wellcond.surface.landscape import Landscape
from wellcond.surface.slices import LossSlice
from wellcond.results.files import OutputError
from wellcond.results import Row

pytest.importorskip("matplotlib")

from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure

from wellcond.report import landscape as pictures

PNG = b"\x89PNG"


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    """The figures that are saved."""
    figures: list[Figure] = []
    save = pictures.save_figure

    def keep(figure: Figure, path: Any) -> Path:
        figures.append(figure)
        return save(figure, path)

    monkeypatch.setattr(pictures, "save_figure", keep)
    return figures


def walk(scale: float = 1.0) -> Landscape:
    lengths = torch.tensor([0.1, 0.2, 0.4], dtype=torch.float64)
    losses = scale * torch.tensor([3.0, 2.0, 5.0], dtype=torch.float64)
    return Landscape(lengths, losses, 2 * lengths, 4 * lengths, 4.0 * scale, 1.5, "gradient", "batch", 4, 0, ())


def run(scale: float = 1.0) -> list[Row]:
    return [row for step in (0, 10, 20) for row in walk(scale * (1 + step)).rows(step)]


def lines(axes: Axes) -> list[tuple[list[float], list[float]]]:
    return [(list(line.get_xdata()), list(line.get_ydata())) for line in axes.lines]


def plane(losses: torch.Tensor) -> LossSlice:
    coordinates = torch.linspace(-1, 1, len(losses), dtype=torch.float64)
    names = ("random",) * losses.dim()
    return LossSlice(coordinates, losses, names, True, "batch", losses.numel(), 0, 0, ())


# ribbons


def test_ribbons_reach_from_the_least_to_the_greatest_of_every_walk(tmp_path: Path, drawn: list[Figure]) -> None:
    path = pictures.save_ribbons({"plain": run(), "BatchNorm": run(0.5)}, tmp_path / "ribbons.png")
    assert path.read_bytes().startswith(PNG)
    assert list(tmp_path.iterdir()) == [path]
    loss, change, beta = drawn[0].axes
    for axes, low, high in ((loss, [2, 22, 42], [5, 55, 105]), (change, [0.2] * 3, [0.8] * 3)):
        ribbon = next(c for c in axes.collections if isinstance(c, PolyCollection))
        corners = {(float(x), round(float(y), 9)) for x, y in ribbon.get_paths()[0].vertices}
        assert corners == {*zip([0.0, 10.0, 20.0], low, strict=True), *zip([0.0, 10.0, 20.0], high, strict=True)}
        assert len(axes.collections) == 2
    assert ([0, 10, 20], [4.0, 44.0, 84.0]) in lines(loss)
    assert lines(beta) == [([0, 10, 20], [0.5, 0.5, 0.5])] * 2
    assert [text.get_text() for text in drawn[0].legends[0].get_texts()] == ["plain", "BatchNorm"]
    assert all(axes.get_xlabel() == "training step" for axes in drawn[0].axes)


def test_an_axis_is_logarithmic_where_values_span_decades_and_only_there(tmp_path: Path, drawn: list[Figure]) -> None:
    pictures.save_ribbons({"a": run(), "b": run(0.01)}, tmp_path / "a.png")
    loss, change, beta = drawn[0].axes
    assert (loss.get_yscale(), change.get_yscale(), beta.get_yscale()) == ("log", "linear", "linear")


def test_rows_in_any_order_are_drawn_in_that_of_training(tmp_path: Path, drawn: list[Figure]) -> None:
    pictures.save_ribbons({"a": run()[::-1]}, tmp_path / "a.png")
    assert ([0, 10, 20], [4.0, 44.0, 84.0]) in lines(drawn[0].axes[0])


def test_what_is_not_finite_is_a_gap(tmp_path: Path, drawn: list[Figure]) -> None:
    rows = [row._replace(value=math.inf) if row.quantity == "beta" and row.step == 10 else row for row in run()]
    pictures.save_ribbons({"a": rows}, tmp_path / "a.png")
    ((_, heights),) = lines(drawn[0].axes[2])
    assert math.isnan(heights[1])
    assert heights[::2] == [0.5, 0.5]


# walks


@pytest.mark.parametrize("as_rows", [False, True])
def test_a_walk_is_drawn_against_step_length_and_distance(as_rows: bool, tmp_path: Path, drawn: list[Figure]) -> None:
    one = walk()
    path = pictures.save_walk({"here": one.rows(7) if as_rows else one}, tmp_path / "walk.png")
    assert path.read_bytes().startswith(PNG)
    left, right = drawn[0].axes
    assert lines(left) == [([0.1, 0.2, 0.4], [3.0, 2.0, 5.0])]
    assert lines(right) == [((4 * one.step_lengths).tolist(), (2 * one.step_lengths).tolist())]


def test_rows_of_several_steps_are_no_single_walk(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="several training steps"):
        pictures.save_walk({"run": run()}, tmp_path / "walk.png")


# slices


def test_a_line_is_drawn_over_its_coordinates(tmp_path: Path, drawn: list[Figure]) -> None:
    losses = torch.tensor([9.0, 1.0, math.nan, 2.0, 8.0], dtype=torch.float64)
    path = pictures.save_slice(plane(losses), tmp_path / "line.png")
    assert path.read_bytes().startswith(PNG)
    (axes,) = drawn[0].axes
    places, heights = lines(axes)[0]
    assert places == [-1.0, -0.5, 0.0, 0.5, 1.0]
    assert math.isnan(heights[2])
    assert heights[3:] == [2.0, 8.0]
    assert "random" in axes.get_xlabel()


@pytest.mark.parametrize("top", [10.0, 1e6], ids=["linear", "logarithmic"])
def test_a_plane_has_its_colours_from_the_least_loss_to_the_greatest(
    top: float, tmp_path: Path, drawn: list[Figure]
) -> None:
    losses = torch.full((5, 5), top, dtype=torch.float64)
    losses[1, 3] = 1.0  # α = −1/2, β = 1/2
    losses[4, 4] = math.nan
    path = pictures.save_slice(plane(losses), tmp_path / "plane.png")
    assert path.read_bytes().startswith(PNG)
    axes, bar = drawn[0].axes
    filled = axes.collections[0]
    assert filled.get_clim() == (1.0, top)
    assert type(filled.norm).__name__ == ("LogNorm" if top > 30 else "Normalize")
    least = next(p for p in filled.get_paths() if len(p.vertices))
    assert least.vertices.mean(0) == pytest.approx([-0.5, 0.5], abs=0.05)
    assert bar.get_yticklabels()[0].get_text() == "1"


@pytest.mark.parametrize("value", [2.0, 0.0, math.nan], ids=["flat", "zero", "nowhere_finite"])
def test_planes_without_contours_are_drawn_all_the_same(value: float, tmp_path: Path) -> None:
    path = pictures.save_slice(plane(torch.full((3, 3), value, dtype=torch.float64)), tmp_path / "plane.png")
    assert path.read_bytes().startswith(PNG)


def test_losses_of_zero_keep_a_linear_scale(tmp_path: Path, drawn: list[Figure]) -> None:
    slice_ = plane(torch.tensor([1e6, 0.0, 1e6], dtype=torch.float64))
    pictures.save_slice(dataclasses.replace(slice_, directions=("gradient",)), tmp_path / "line.png")
    assert drawn[0].axes[0].get_yscale() == "linear"


@pytest.mark.parametrize(
    ("save", "subject", "words"),
    [
        ("ribbons", {}, r"empty mapping(.|\n)*landscape\(problem, lr\)\.rows\(step\)"),
        ("ribbons", {"a": []}, "'a' is empty"),
        ("ribbons", run(), "a list cannot be drawn"),
        ("ribbons", {"a": walk()}, "'a' is a Landscape"),
        ("ribbons", {"a": [Row(0, "", "trace", 1.0, "")]}, "no row is of 'loss_min'"),
        ("walk", {}, "empty mapping"),
        ("walk", walk(), "a Landscape cannot be drawn"),
        ("walk", {"a": []}, "'a' is empty"),
        ("walk", {"a": [Row(0, "", "trace", 1.0, "")]}, "'a' has no row of 'step_length\\[0\\]'"),
        ("slice", {"a": 1}, "a dict cannot be drawn"),
    ],
)
def test_what_cannot_be_drawn_is_refused_with_what_to_pass(save: str, subject: Any, words: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=words):
        getattr(pictures, f"save_{save}")(subject, tmp_path / "a.png")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_missing_is_said_before_drawing(tmp_path: Path, drawn: list[Figure]) -> None:
    for save, subject in (
        (pictures.save_ribbons, {"a": run()}),
        (pictures.save_walk, {"a": walk()}),
        (pictures.save_slice, plane(torch.ones(3))),
    ):
        with pytest.raises(OutputError, match="does not exist"):
            save(subject, tmp_path / "missing" / "a.png")
    assert drawn == []
