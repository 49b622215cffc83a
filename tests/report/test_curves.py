"""Curves against the layer, of densities, of training and of rates."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from subjects import AWKWARD, AWKWARD_NAME, SOUND

from wellcond.errors import MissingExtra, OutputError
from wellcond.report.curves import density_figure, layers_figure, rates_figure, training_figure
from wellcond.report.style import new_figure, save_figure
from wellcond.results import Row
from wellcond.results.quantities import TRAINING_LOSS

pytest.importorskip("matplotlib")


def drawn(axes: Any) -> dict[str, tuple[list[float], list[float]]]:
    """The lines that have a name."""
    named = [line for line in axes.get_lines() if not line.get_label().startswith("_")]
    return {line.get_label(): (list(line.get_xdata()), list(line.get_ydata())) for line in named}


def legend(figure: Any) -> list[str]:
    return [text.get_text() for each in figure.legends for text in each.get_texts()]


def run(*losses: float) -> list[Row]:
    return [Row(step, "", TRAINING_LOSS, loss, "") for step, loss in enumerate(losses, start=1)]


def test_two_networks_are_drawn_against_the_layer_with_zero_and_infinity_at_the_edges() -> None:
    figure = layers_figure({"plain": AWKWARD.rows(), "batchnorm": SOUND.rows()})
    left, right = figure.axes
    assert legend(figure) == ["plain, Σx", "plain, Σ∇h", "batchnorm, Σx", "batchnorm, Σ∇h"]
    assert [label.get_text() for label in left.get_xticklabels()] == ["fc1", AWKWARD_NAME, "fc2"]
    for axes, mark, edge in ((left, "v", "0"), (right, "^", "∞")):
        marks = [line for line in axes.get_lines() if line.get_marker() == mark]
        assert [float(line.get_xdata()[0]) for line in marks] == [1.0, 1.0]
        ticks = {
            label.get_text(): place for label, place in zip(axes.get_yticklabels(), axes.get_yticks(), strict=True)
        }
        assert all(float(line.get_ydata()[0]) == pytest.approx(ticks[edge]) for line in marks)


def test_one_network_without_a_name_is_told_by_its_matrices() -> None:
    assert legend(layers_figure({"": SOUND.rows()})) == ["Σx", "Σ∇h"]


def test_densities_are_drawn_six_decades_deep_in_their_bands() -> None:
    grid, heights = torch.tensor([0.0, 1.0, 2.0]), torch.tensor([4.0, 1.0, 0.0])
    one = SimpleNamespace(grid=grid, density=heights, error=torch.tensor([0.5, math.nan, 0.1]))
    (axes,) = density_figure({"a": one}).axes
    assert drawn(axes) == {"a": ([0.0, 1.0, 2.0], [4.0, 1.0, 0.0])}
    assert axes.get_ylim() == pytest.approx((4e-6, 8.0))
    corners = {tuple(map(float, corner)) for corner in axes.collections[0].get_paths()[0].vertices}
    assert {(0.0, 3.0), (0.0, 5.0), (1.0, 1.0)} <= corners


def test_training_is_the_mean_of_its_repetitions_and_ends_where_one_diverged() -> None:
    (axes,) = training_figure({"sgd": [run(4.0, 2.0, 1.0), run(2.0, 4.0)], "bnp": [run(3.0, 1.0, 0.5)]}).axes
    assert drawn(axes) == {"sgd": ([1.0, 2.0], [3.0, 3.0]), "bnp": ([1.0, 2.0, 3.0], [3.0, 1.0, 0.5])}
    assert [list(line.get_xdata()) for line in axes.get_lines() if line.get_marker() == "x"] == [[2.0]]
    assert axes.get_yscale() == "log"


def test_rates_are_drawn_with_their_limits_and_what_diverged_is_crossed() -> None:
    trial = SimpleNamespace(
        rates=torch.tensor([0.1, 1.0, 10.0]),
        final=torch.tensor([2.0, 1.0, math.nan]),
        diverged=torch.tensor([False, False, True]),
        loss=3.0,
        steps=20,
    )
    figure = rates_figure(trial, {"measured": 2.0, "none": math.inf})
    (axes,) = figure.axes
    assert list(axes.get_lines()[0].get_ydata()) == [2.0, 1.0]
    assert [list(line.get_xdata()) for line in axes.get_lines() if line.get_marker() == "x"] == [[10.0]]
    assert legend(figure) == ["before the first step", "diverged", "measured: 2"]
    assert axes.get_ylabel() == "loss after 20 steps"


@pytest.mark.parametrize(("form", "begins"), [("png", b"\x89PNG"), ("svg", b"<?xml"), ("pdf", b"%PDF")])
def test_a_figure_is_written_in_the_form_of_its_suffix(form: str, begins: bytes, tmp_path: Path) -> None:
    path = save_figure(layers_figure({"": SOUND.rows()}), tmp_path / f"figure.{form}")
    assert path.read_bytes().startswith(begins)
    assert list(tmp_path.iterdir()) == [path]


def test_a_place_or_a_suffix_that_is_no_picture_is_refused(tmp_path: Path) -> None:
    figure = new_figure(1, 1)
    with pytest.raises(OutputError, match=r"not the name of a picture; end it in one of \.png, \.svg, \.pdf"):
        save_figure(figure, tmp_path / "figure.txt")
    with pytest.raises(OutputError, match="does not exist"):
        save_figure(figure, tmp_path / "missing" / "figure.png")
    assert list(tmp_path.iterdir()) == []


def test_without_matplotlib_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(MissingExtra, match=r'pip install "wellcond\[plots\]"'):
        layers_figure({"": SOUND.rows()})


@pytest.mark.parametrize(
    ("draw", "subject", "words"),
    [
        (layers_figure, {}, "an empty mapping cannot be drawn"),
        (layers_figure, {"a": []}, "'a' is empty"),
        (density_figure, {"a": SOUND.rows()}, r"'a' is a list of another kind; pass \{'name': density\("),
        (training_figure, {"a": run(1.0)}, "'a' is a list of another kind"),
    ],
)
def test_what_cannot_be_drawn_is_refused_with_what_to_pass(draw: Any, subject: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        draw(subject)
