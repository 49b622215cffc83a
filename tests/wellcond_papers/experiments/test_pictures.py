"""The shared pictures: what is drawn, and that nothing missing or diverged breaks them."""

from __future__ import annotations

import math

import pytest

from wellcond.results import Row
from wellcond.results.quantities import DIVERGED_AT
from wellcond_papers.experiments.pictures import by_layer, draw_heat_map, heat_map, over_training, panels
from wellcond_papers.experiments.table import Record, Table


def run(arm: str, seed: int, values: list[float]) -> Record:
    rows = [Row(10 * k, "", "loss", value, "") for k, value in enumerate(values)]
    rows += [Row(0, f"fc{k}", "kappa", 10.0**k, "") for k in (1, 2)]
    return Record({"arm": arm, "seed": seed}, rows)


TABLE = Table([run("plain", 0, [4.0, 2.0]), run("plain", 1, [2.0, 2.0]), run("BN", 0, [3.0, 1.0, 0.5])])


def test_a_line_is_the_mean_of_the_seeds_of_its_arm() -> None:
    [axes] = over_training(TABLE, {"loss": "loss"}).axes
    heights = {str(line.get_label()): list(line.get_ydata()) for line in axes.lines if len(line.get_ydata()) > 1}
    assert heights == {"plain": [3.0, 2.0], "BN": [3.0, 1.0, 0.5]}


def test_a_diverged_seed_does_not_end_the_line_of_the_others() -> None:
    lost = run("BN", 1, [9.0, 8.0])
    table = Table([*TABLE, Record(lost.settings, [*lost.rows, Row(None, "", DIVERGED_AT, 15.0, "steps")])])
    [axes] = over_training(table, {"loss": "loss"}).axes
    heights = [list(line.get_ydata()) for line in axes.lines]
    assert [3.0, 1.0, 0.5] in heights
    assert [9.0, 8.0] in heights


def test_layers_are_whole_numbers() -> None:
    [axes] = by_layer(TABLE, {"κ": "kappa"}).axes
    assert all(tick == round(tick) for tick in axes.get_xticks())


def test_an_arm_without_rows_is_left_out() -> None:
    table = Table([*TABLE, Record({"arm": "lost", "seed": 0}, [])])
    assert [text.get_text() for text in over_training(table, {"loss": "loss"}).legends[0].texts] == ["plain", "BN"]
    assert [len(axes.lines) for axes in by_layer(table, {"κ": "kappa"}).axes] == [2]


def test_nothing_to_draw_is_an_empty_panel() -> None:
    assert [len(axes.lines) for axes in over_training(Table([]), {"loss": "loss"}).axes] == [0]


def test_an_infinite_value_has_a_place_above_all_others() -> None:
    rows = [Row(0, "fc1", "kappa", 100.0, ""), Row(0, "fc2", "kappa", math.inf, "")]
    [axes] = by_layer(Table([Record({"arm": "BN", "seed": 0}, rows)]), {"κ": "kappa"}).axes
    first, second = axes.lines[0].get_ydata()
    assert first == 100.0
    assert 100.0 < second < math.inf


@pytest.mark.parametrize(
    ("rate", "place"), [(0.01, 0.5), (0.1, 1.5), (math.sqrt(0.001), 1.0), (10.0, 3.5), (1e-9, -0.5)]
)
def test_a_line_lies_between_the_columns_of_its_neighbors_in_the_logarithm(rate: float, place: float) -> None:
    _, axes = panels(["map"])
    cells: dict[tuple[float, float], float | None] = {(lr, 1.0): 2.0 * lr for lr in (0.01, 0.1, 1.0)}
    draw_heat_map(axes["map"], cells, x="lr", y="γ", lines={"limit": [(rate, 1.0)]})
    [line] = axes["map"].lines
    assert line.get_xdata()[0] == pytest.approx(place)


def test_a_diverged_cell_is_left_white() -> None:
    figure = heat_map({"map": {(0.1, 1.0): 2.0, (1.0, 1.0): None}}, x="lr", y="γ")
    [mesh] = figure.axes[0].collections
    assert mesh.get_array().mask.tolist() == [[False, True]]
