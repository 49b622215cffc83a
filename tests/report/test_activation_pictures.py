from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import nn
from zoo import ARCHITECTURES, CLASSES, integers, normal, seeded

import wellcond as wc
from wellcond.errors import UnknownLayer
from wellcond.measurements.layers.activations import Activations, activations
from wellcond.measurements.layers.covariate_shift import covariate_shift
from wellcond.results import Row
from wellcond.results.quantities import MEAN_CHANGE, SHIFT_COSINE, SHIFT_DIFFERENCE, VARIANCE_CHANGE

pytest.importorskip("matplotlib")

from wellcond.report.figures.activations import (
    CHANGE,
    OVERLAP,
    covariate_shift_figure,
    histograms_figure,
    moment_changes_figure,
)


def run(architecture: str, steps: int = 3) -> tuple[dict[int, Activations], list[Row], list[Row]]:
    """{step: activations}, rows of their changes and of covariate shift, over a short training."""
    case = ARCHITECTURES[architecture]()
    optimizer = torch.optim.SGD(case.model.parameters(), lr=0.1)
    outputs: dict[int, Activations] = {}
    changes: list[Row] = []
    shifts: list[Row] = []
    for step in range(steps):
        outputs[step] = activations(case.problem())
        shifts += covariate_shift(case.problem(), optimizer).rows(step)
        if step:
            changes += outputs[step].change_from(outputs[step - 1]).rows(step)
        optimizer.zero_grad()
        case.loss(case.model(case.batch[0]), case.batch[1]).backward()
        optimizer.step()
    return outputs, changes, shifts


RUNS = {name: run(name) for name in ("mlp_relu", "cnn_running")}
HISTOGRAMS = {name: outputs for name, (outputs, _, _) in RUNS.items()}
CHANGES = {name: changes for name, (_, changes, _) in RUNS.items()}
SHIFTS = {name: shifts for name, (_, _, shifts) in RUNS.items()}


def heights(axes: Any) -> list[list[float]]:
    return [[float(y) for y in line.get_ydata()] for line in axes.get_lines()]


def test_histograms_by_network_layer_and_step() -> None:
    panels = histograms_figure(HISTOGRAMS).axes
    titles = [axes.get_title("left") for axes in panels if axes.axison]
    assert titles == ["0", "2", "4", "0", "1", "4", "7"]
    assert len(panels) == 8
    (axes,) = histograms_figure({"net": HISTOGRAMS["mlp_relu"]}, ["2"], unit=1).axes
    ridges = [patch for patch in axes.patches if patch.get_fill()]
    assert len(ridges) == 3
    assert [label.get_text() for label in axes.get_yticklabels()] == ["0", "1", "2"]
    densities = [outputs["2"].unit_histogram(1).density for outputs in HISTOGRAMS["mlp_relu"].values()]
    highest = max(float(density.max()) for density in densities)
    for level, (ridge, density) in enumerate(zip(ridges, densities, strict=True)):
        values, edges, baseline = ridge.get_data()
        assert baseline == level
        assert (values - level).tolist() == pytest.approx((density * OVERLAP / highest).tolist(), abs=1e-12)
        assert edges.tolist() == HISTOGRAMS["mlp_relu"][level]["2"].edges.tolist()


def test_the_share_beyond_the_edges_is_written_next_to_the_ridge() -> None:
    case = ARCHITECTURES["mlp_tanh"]()
    narrow = activations(case.problem(), layers=["0"], bounds=(0.0, 0.5))
    counts = narrow["0"].counts.sum(0)
    share = 1 - float(counts[1:-1].sum() / counts.sum())
    (axes,) = narrow.figure().axes
    assert [text.get_text() for text in axes.texts] == [f"{share:.0%} outside"]
    assert (list(axes.get_yticks()), axes.get_ylabel()) == ([], "density")


def test_changes_of_moments_are_drawn_over_training() -> None:
    panels = moment_changes_figure({"net": CHANGES["mlp_relu"]}, ["0", "4"]).axes
    drawn = [(MEAN_CHANGE, "0"), (MEAN_CHANGE, "4"), (VARIANCE_CHANGE, "0"), (VARIANCE_CHANGE, "4")]
    for axes, (quantity, layer) in zip(panels, drawn, strict=True):
        values = [row.value for row in CHANGES["mlp_relu"] if (row.quantity, row.layer) == (quantity, layer)]
        assert heights(axes) == [values]
        assert axes.get_yscale() == "log"
    assert [axes.get_title("left") for axes in panels[:2]] == ["0", "4"]
    assert moment_changes_figure(CHANGES, "4").axes[0].get_title("left") == "4"


def test_layers_and_units_that_are_not_there_are_refused() -> None:
    with pytest.raises(UnknownLayer, match="'9'"):
        moment_changes_figure(CHANGES, ["9"])
    with pytest.raises(ValueError, match="unit is 99"):
        histograms_figure(HISTOGRAMS, unit=99)


def test_covariate_shift_over_training_leaves_out_the_first_layer() -> None:
    panels = covariate_shift_figure(SHIFTS).axes
    assert [axes.get_title("left") for axes in panels[:3]] == ["2 / 1", "4", "7"]
    cosines = [
        [row.value for row in SHIFTS[name] if (row.quantity, row.layer) == (SHIFT_COSINE, layer)]
        for name, layer in (("mlp_relu", "2"), ("cnn_running", "1"))
    ]
    for curve, expected in zip(heights(panels[3])[:2], cosines, strict=True):
        assert curve == pytest.approx(expected, nan_ok=True)


def test_one_step_is_drawn_against_the_layer() -> None:
    rows = [row for row in CHANGES["mlp_relu"] if row.step == 1]
    left, _ = moment_changes_figure({"": rows}).axes
    assert heights(left)[0] == [row.value for row in rows if row.quantity == MEAN_CHANGE]
    rows = [row for row in SHIFTS["mlp_relu"] if row.step == 0]
    left, right = covariate_shift_figure({"net": rows, "again": rows}).axes
    differences = [row.value for row in rows if row.quantity == SHIFT_DIFFERENCE]
    assert differences[0] == 0.0
    line, zeros = heights(left)[:2]
    assert math.isnan(line[0])
    assert line[1:] == differences[1:]
    assert 0 < zeros[0] < min(differences[1:])  # a triangle below all others
    assert heights(right)[0] == [row.value for row in rows if row.quantity == SHIFT_COSINE]
    assert [label.get_text() for label in left.get_xticklabels()] == ["0", "2", "4"]


def test_networks_with_other_layers_are_drawn_against_the_depth() -> None:
    rows = {name: [row for row in shifts if row.step == 0] for name, shifts in SHIFTS.items()}
    _, right = covariate_shift_figure(rows).axes
    assert [list(line.get_xdata()) for line in right.get_lines()] == [
        [0, 0.5, 1],
        pytest.approx([0, 1 / 3, 2 / 3, 1]),
    ]
    assert right.get_xlabel().startswith("depth")


def test_a_network_of_one_layer_can_be_drawn_against_the_layer() -> None:
    model = seeded(lambda: nn.Linear(4, CLASSES))
    problem = wc.Problem(model, nn.CrossEntropyLoss(), (normal(6, 4), integers(CLASSES, 6)))
    shift = covariate_shift(problem, torch.optim.SGD(model.parameters(), lr=0.1))
    for result in (shift, wc.conditioning(problem)):
        assert [label.get_text() for label in result.figure().axes[0].get_xticklabels()] == ["(model)"]


@pytest.mark.parametrize(("top", "is_plain"), [(0.031, True), (0.5, False)], ids=["narrow", "wide"])
def test_a_narrow_logarithmic_axis_has_plain_numbers(top: float, is_plain: bool) -> None:
    values = {0: 0.026, 1: top}
    rows = [Row(step, "0", quantity, v, "") for step, v in values.items() for quantity in CHANGE]
    axes = moment_changes_figure({"net": rows}).axes[0]
    low, high = axes.get_ylim()
    ticks = zip(axes.get_yticks(), axes.get_yticklabels(), strict=True)
    labels = [label.get_text() for place, label in ticks if low <= place <= high]
    assert axes.get_yscale() == "log"
    assert all("times" not in label for label in labels)
    assert (len(labels) > 2 and all(0.02 < float(label) < 0.04 for label in labels)) == is_plain
