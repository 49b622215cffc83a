from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from zoo import ARCHITECTURES, CLASSES, integers, normal, seeded

import wellcond as wc
from wellcond.errors import UnknownLayer
from wellcond.layerwise.activations import Activations, activations
from wellcond.layerwise.covariate_shift import covariate_shift
from wellcond.results.files import OutputError
from wellcond.results import Row

pictures = pytest.importorskip("wellcond.report.activations")


def run(architecture: str, steps: int = 3) -> tuple[dict[int, Activations], list[Row], list[Row]]:
    """{step: activations}, rows of their changes and of covariate shift, over a short training."""
    case = ARCHITECTURES[architecture]()
    optimizer = torch.optim.SGD(case.model.parameters(), lr=0.1)
    found: dict[int, Activations] = {}
    changes: list[Row] = []
    shifts: list[Row] = []
    for step in range(steps):
        found[step] = activations(case.problem())
        shifts += covariate_shift(case.problem(), optimizer).rows(step)
        if step:
            changes += found[step].change_from(found[step - 1]).rows(step)
        optimizer.zero_grad()
        case.loss(case.model(case.batch[0]), case.batch[1]).backward()
        optimizer.step()
    return found, changes, shifts


RUNS = {name: run(name) for name in ("mlp_relu", "cnn_running")}
HISTOGRAMS = {name: found for name, (found, _, _) in RUNS.items()}
CHANGES = {name: changes for name, (_, changes, _) in RUNS.items()}
SHIFTS = {name: shifts for name, (_, _, shifts) in RUNS.items()}


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The figures, as they are handed over for writing."""
    figures: list[Any] = []
    save = pictures.save_figure
    monkeypatch.setattr(pictures, "save_figure", lambda figure, path: figures.append(figure) or save(figure, path))
    return figures


def heights(axes: Any) -> list[list[float]]:
    return [[float(y) for y in line.get_ydata()] for line in axes.get_lines()]


def test_histograms_are_drawn_a_row_a_network_and_a_column_a_layer(tmp_path: Path, drawn: list[Any]) -> None:
    path = pictures.save_histograms(HISTOGRAMS, tmp_path / "histograms.png")
    assert path.read_bytes().startswith(b"\x89PNG")
    panels = drawn[0].axes
    titles = [axes.get_title("left") for axes in panels if axes.axison]
    assert titles == ["0", "2", "4", "0", "1", "4", "7"]
    assert len(panels) == 8


def test_a_ridge_is_the_density_of_its_step(tmp_path: Path, drawn: list[Any]) -> None:
    pictures.save_histograms({"net": HISTOGRAMS["mlp_relu"]}, tmp_path / "one.png", ["2"], unit=1)
    (axes,) = drawn[0].axes
    ridges = [patch for patch in axes.patches if patch.get_fill()]
    assert len(ridges) == 3
    assert [label.get_text() for label in axes.get_yticklabels()] == ["0", "1", "2"]
    densities = [found["2"].unit_histogram(1).density for found in HISTOGRAMS["mlp_relu"].values()]
    highest = max(float(density.max()) for density in densities)
    for level, (ridge, density) in enumerate(zip(ridges, densities, strict=True)):
        values, edges, baseline = ridge.get_data()
        assert baseline == level
        assert (values - level).tolist() == pytest.approx((density * pictures.OVERLAP / highest).tolist(), abs=1e-12)
        assert edges.tolist() == HISTOGRAMS["mlp_relu"][level]["2"].edges.tolist()


def test_what_lies_beyond_the_edges_is_written_beside_the_ridge(tmp_path: Path, drawn: list[Any]) -> None:
    case = ARCHITECTURES["mlp_tanh"]()
    narrow = activations(case.problem(), ["0"], span=(0.0, 0.5))
    counts = narrow["0"].counts.sum(0)
    share = 1 - float(counts[1:-1].sum() / counts.sum())
    pictures.save_histograms({"net": {0: narrow}}, tmp_path / "narrow.png")
    assert [text.get_text() for text in drawn[0].axes[0].texts] == [f"{share:.0%} outside"]


def test_changes_of_moments_are_drawn_over_training(tmp_path: Path, drawn: list[Any]) -> None:
    pictures.save_moment_changes({"net": CHANGES["mlp_relu"]}, tmp_path / "changes.png", ["0", "4"])
    panels = drawn[0].axes
    wanted = [("mean_change", "0"), ("mean_change", "4"), ("variance_change", "0"), ("variance_change", "4")]
    for axes, (quantity, layer) in zip(panels, wanted, strict=True):
        values = [row.value for row in CHANGES["mlp_relu"] if (row.quantity, row.layer) == (quantity, layer)]
        assert heights(axes) == [values]
        assert axes.get_yscale() == "log"
    assert [axes.get_title("left") for axes in panels[:2]] == ["0", "4"]


def test_covariate_shift_over_training_leaves_out_the_first_layer(tmp_path: Path, drawn: list[Any]) -> None:
    path = pictures.save_covariate_shift(SHIFTS, tmp_path / "shift.png")
    assert path.read_bytes().startswith(b"\x89PNG")
    panels = drawn[0].axes
    assert [axes.get_title("left") for axes in panels[:3]] == ["2 / 1", "4", "7"]
    cosines = [
        [row.value for row in SHIFTS[name] if (row.quantity, row.layer) == ("shift_cosine", layer)]
        for name, layer in (("mlp_relu", "2"), ("cnn_running", "1"))
    ]
    for found, expected in zip(heights(panels[3])[:2], cosines, strict=True):
        assert found == pytest.approx(expected, nan_ok=True)


def test_covariate_shift_of_one_step_is_drawn_against_the_layer(tmp_path: Path, drawn: list[Any]) -> None:
    rows = [row for row in SHIFTS["mlp_relu"] if row.step == 0]
    pictures.save_covariate_shift({"net": rows, "again": rows}, tmp_path / "layers.png")
    left, right = drawn[0].axes
    differences = [row.value for row in rows if row.quantity == "shift_difference"]
    assert differences[0] == 0.0
    line, zeros = heights(left)[:2]
    assert math.isnan(line[0])
    assert line[1:] == differences[1:]
    assert 0 < zeros[0] < min(differences[1:])  # a triangle below all others
    assert heights(right)[0] == [row.value for row in rows if row.quantity == "shift_cosine"]
    assert [label.get_text() for label in left.get_xticklabels()] == ["0", "2", "4"]


def test_networks_with_other_layers_are_drawn_against_the_depth(tmp_path: Path, drawn: list[Any]) -> None:
    rows = {name: [row for row in found if row.step == 0] for name, found in SHIFTS.items()}
    pictures.save_covariate_shift(rows, tmp_path / "depth.png")
    _, right = drawn[0].axes
    assert [list(line.get_xdata()) for line in right.get_lines()] == [
        [0, 0.5, 1],
        pytest.approx([0, 1 / 3, 2 / 3, 1]),
    ]
    assert right.get_xlabel().startswith("depth")


def test_a_network_of_one_layer_can_be_drawn_against_the_layer(tmp_path: Path) -> None:
    model = seeded(lambda: nn.Linear(4, CLASSES))
    problem = wc.Problem(model, nn.CrossEntropyLoss(), (normal(6, 4), integers(CLASSES, 6)))
    shift = covariate_shift(problem, torch.optim.SGD(model.parameters(), lr=0.1))
    assert pictures.save_covariate_shift({"net": shift.rows()}, tmp_path / "one.png").exists()


def test_unknown_layers_empty_rows_and_missing_folders_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UnknownLayer, match="'9'"):
        pictures.save_moment_changes(CHANGES, tmp_path / "a.png", ["9"])
    with pytest.raises(ValueError, match="no layer to draw"):
        pictures.save_covariate_shift(CHANGES, tmp_path / "a.png")
    with pytest.raises(ValueError, match="unit is 99"):
        pictures.save_histograms(HISTOGRAMS, tmp_path / "a.png", unit=99)
    with pytest.raises(OutputError, match="does not exist"):
        pictures.save_histograms(HISTOGRAMS, tmp_path / "nowhere" / "a.png")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("save", ["histograms", "moment_changes", "covariate_shift"])
@pytest.mark.parametrize(
    ("series", "words"),
    [
        ({}, "an empty mapping cannot be drawn; pass {'name'"),
        ([], "a list cannot be drawn"),
        ({"net": []}, "'net' is empty"),
        ({"net": HISTOGRAMS["mlp_relu"][0]}, "'net' is a Activations of another kind"),
        (HISTOGRAMS["mlp_relu"][0], "is a LayerActivations of another kind"),
    ],
)
def test_what_cannot_be_drawn_is_refused_with_what_to_pass(save: str, series: Any, words: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=words):
        getattr(pictures, f"save_{save}")(series, tmp_path / "a.png")


def test_one_layer_may_be_named_alone(tmp_path: Path, drawn: list[Any]) -> None:
    pictures.save_moment_changes(CHANGES, tmp_path / "a.png", "4")
    assert drawn[0].axes[0].get_title("left") == "4"


@pytest.mark.parametrize(("top", "is_plain"), [(0.031, True), (0.5, False)], ids=["narrow", "wide"])
def test_a_narrow_logarithmic_axis_has_plain_numbers(
    top: float, is_plain: bool, tmp_path: Path, drawn: list[Any]
) -> None:
    values = {0: 0.026, 1: top}
    rows = [Row(step, "0", quantity, v, "") for step, v in values.items() for quantity in pictures.CHANGE]
    pictures.save_moment_changes({"net": rows}, tmp_path / "a.png")
    axes = drawn[0].axes[0]
    low, high = axes.get_ylim()
    ticks = zip(axes.get_yticks(), axes.get_yticklabels(), strict=True)
    labels = [label.get_text() for place, label in ticks if low <= place <= high]
    assert axes.get_yscale() == "log"
    assert all("times" not in label for label in labels)
    assert (len(labels) > 2 and all(0.02 < float(label) < 0.04 for label in labels)) == is_plain
