"""Headlines made from rows by hand."""

from __future__ import annotations

import math

from wellcond.report.facts import compare_facts, facts
from wellcond.results import Row


def column(quantity: str, *values: float) -> list[Row]:
    return [Row(None, f"fc{i}", quantity, value, "") for i, value in enumerate(values, start=1)]


def network(**values: float) -> list[Row]:
    return [Row(None, "", quantity, value, "") for quantity, value in values.items()]


def said(rows: list[Row]) -> dict[str, str]:
    return {fact.title: fact.text for fact in facts(rows)}


def test_nothing_measured_says_nothing() -> None:
    assert facts([]) == []


def test_a_fading_signal_is_told_forwards() -> None:
    text = said(column("lambda_max(Σx)", 10.0, 1.0, 1e-3))["signal, forward"]
    assert text == "λmax of Σx falls 10,000-fold: 10 at fc1, 0.001 at fc3"


def test_a_fading_gradient_is_told_backwards() -> None:
    text = said(column("lambda_max(Σ∇h)", 1e-3, 1.0, 10.0))["gradient, backward"]
    assert text == "λmax of Σ∇h falls 10,000-fold going back: 10 at fc3, 0.001 at fc1"


def test_an_exploding_gradient_rises_going_back() -> None:
    text = said(column("lambda_max(Σ∇h)", 50.0, 1.0))["gradient, backward"]
    assert text == "λmax of Σ∇h rises 50-fold going back: 1 at fc2, 50 at fc1"


def test_a_gradient_that_is_zero_has_no_factor() -> None:
    text = said(column("lambda_max(Σ∇h)", 0.0, 1.0))["gradient, backward"]
    assert text == "λmax of Σ∇h falls to 0: 1 at fc2, 0 at fc1"


def test_gradients_of_convolutions_are_said_to_be_per_position() -> None:
    rows = [*network(convolutions=2.0), *column("lambda_max(Σ∇h)", 1.0, 4.0), *column("lambda_max(Σx)", 1.0, 4.0)]
    assert said(rows)["gradient, backward"].endswith("1 at fc1 (convolutions: per position)")
    assert "position" not in said(rows)["signal, forward"]


def test_one_layer_has_no_range() -> None:
    assert said(column("lambda_max(Σx)", 2.0))["signal, forward"] == "λmax of Σx is 2 at fc1"


def test_numbered_layers_are_called_layers() -> None:
    rows = [Row(None, "0", "lambda_max(Σx)", 2.0, "")]
    assert said(rows)["signal, forward"] == "λmax of Σx is 2 at layer 0"


def test_the_worst_condition_number_is_named_with_its_layer() -> None:
    assert said(column("kappa_50%(Σx)", 3.0, 2e9, 5.0))["most uneven input"] == "κ50 of Σx is 2.0e9 at fc2"


def test_infinite_condition_numbers_are_counted() -> None:
    text = said(column("kappa_50%(Σ∇h)", 3.0, math.inf, math.inf))["most uneven gradient"]
    assert text == "κ50 of Σ∇h is ∞ at fc2, and at 1 more"


def test_the_rank_is_compared_with_the_size() -> None:
    rows = [*column("rank(Σx)", 8.0, 3.0), *column("dimension(Σx)", 16.0, 4.0)]
    assert said(rows)["lowest input rank"] == "8 of 16 directions at fc1"
    full = [*column("rank(Σx)", 4.0), *column("dimension(Σx)", 4.0)]
    assert said(full)["lowest input rank"] == "full at every layer"


def test_dead_units_are_counted_where_their_share_is_largest_and_in_all() -> None:
    rows = [*column("dying", 3.0, 2.0), *column("full", 0.0, 0.0), *column("units", 100.0, 4.0)]
    assert said(rows)["dead ReLUs"] == "2 of 4 at fc2; 5 of 104 in all"
    assert said(rows)["always-on ReLUs"] == "none of 104"


def test_networks_are_compared_in_one_order_with_gaps() -> None:
    table = compare_facts({"a": network(loss=1.0, examples=5.0), "b": column("lambda_max(Σx)", 2.0)})
    assert [line.title for line in table] == ["loss", "signal, forward"]
    assert table[0].texts == {"a": "1 on 5 examples", "b": ""}
