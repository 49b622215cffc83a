"""Curves against the layer and of training, and what cannot be drawn."""

from __future__ import annotations

import math
import re
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from subjects import AWKWARD, AWKWARD_NAME, SOUND, column, drawn, legend, losses

import wellcond as wc
from wellcond.measurements.layers.activations import activations
from wellcond.report.figures.activations import covariate_shift_figure, histograms_figure, moment_changes_figure
from wellcond.report.figures.curves import layers_figure, training_figure
from wellcond.report.figures.landscape import ribbons_figure, slice_figure, walk_figure
from wellcond.report.figures.spectra import density_figure
from wellcond.report.figures.style import LogScale
from wellcond.results import quantities as q

pytest.importorskip("matplotlib")


def test_zero_and_infinity_are_at_the_edges_of_a_plot_by_layer() -> None:
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
    assert legend(layers_figure({"": SOUND.rows()})) == ["Σx", "Σ∇h"]


@pytest.mark.parametrize("values", [[1e-308, 1e308, 0.0, math.inf], [5.0], [math.inf], [0.0], [1.0, 1.0]])
def test_any_values_have_a_finite_axis(values: list[float]) -> None:
    scale = LogScale.of(values)
    axis = scale.axis()
    numbers = [*axis["tickvals"], *axis["range"], *(scale.place(value) for value in values)]
    assert all(math.isfinite(each) for each in numbers)
    assert all(tick > 0 for tick in axis["tickvals"])
    assert axis["range"][0] < axis["range"][1]


def test_training_is_the_mean_of_runs_and_ends_where_one_diverged() -> None:
    runs = {"sgd": [losses(4.0, 2.0, 1.0), losses(2.0, 4.0)], "bnp": [losses(3.0, 1.0, 0.5)]}
    (axes,) = training_figure(runs, y_label="mean of 5 steps").axes
    assert drawn(axes) == {"sgd": ([1, 2], [3.0, 3.0]), "bnp": ([1, 2, 3], [3.0, 1.0, 0.5])}
    assert [list(line.get_xdata()) for line in axes.get_lines() if line.get_marker() == "x"] == [[2]]
    assert (axes.get_yscale(), axes.get_ylabel()) == ("log", "mean of 5 steps")


MODEL = torch.nn.Sequential(torch.nn.Linear(1, 2), torch.nn.Linear(2, 1))
MEASURED = activations(wc.Problem(MODEL, torch.nn.MSELoss(), (torch.ones(2, 1), torch.ones(2, 1))))
ROWS = losses(1.0)
FIGURES = {
    layers_figure: "{'name': diagnose(problem).rows()}",
    training_figure: "{'name': [run.rows(), …]}",
    density_figure: "{'name': density(Hessian(problem))}",
    histograms_figure: "{'name': {step: activations(problem)}}",
    moment_changes_figure: "{'name': rows}, with rows += activations(problem).change_from(before).rows(step)",
    covariate_shift_figure: "{'name': rows}, with rows += covariate_shift(problem, optimizer).rows(step)",
    ribbons_figure: "{'name': rows}, with rows += landscape(problem, lr).rows(step)",
    walk_figure: "{'name': landscape(problem, lr)}",
}
"""What each of them draws."""


@pytest.mark.parametrize("draw", FIGURES)
@pytest.mark.parametrize(
    ("series", "words"),
    [
        ({}, "an empty mapping cannot be drawn; pass {example}, by the names of networks."),
        (ROWS, "a list cannot be drawn; pass {example}, by the names of networks."),
        ({"a": SimpleNamespace()}, "'a' is a SimpleNamespace of another kind; pass {example}."),
        ({"a": MEASURED}, "'a' is a Activations of another kind; pass {example}."),
        (MEASURED, "'0' is a LayerActivations of another kind; pass {example}."),
    ],
    ids=["empty", "list", "object", "activations", "without_name"],
)
def test_what_cannot_be_drawn_is_refused_with_what_to_pass(draw: Any, series: Any, words: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(words.format(example=FIGURES[draw]))}$"):
        draw(series)


@pytest.mark.parametrize(
    ("draw", "subject", "words"),
    [
        *((draw, {"a": []}, "'a' is empty") for draw in FIGURES if draw not in (density_figure, walk_figure)),
        *((draw, {"a": ROWS}, "'a' is a list of another kind") for draw in (density_figure, walk_figure)),
        (training_figure, {"a": ROWS}, "'a' is a list of another kind"),
        (histograms_figure, {"a": ROWS}, "'a' is a list of another kind"),
        (ribbons_figure, {"a": column(q.TRACE, 1.0)}, "no row is of 'loss_least'"),
        (covariate_shift_figure, {"a": ROWS}, "no layer to draw"),
        (slice_figure, {"a": 1}, "a dict cannot be drawn"),
    ],
)
def test_rows_of_another_kind_are_refused(draw: Any, subject: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        draw(subject)
