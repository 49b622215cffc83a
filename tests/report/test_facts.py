"""Headlines and the table of layers, for rows written by hand."""

from __future__ import annotations

import math

import pytest
from subjects import column, network

from wellcond.report.facts import facts
from wellcond.report.table import Column
from wellcond.results import Row
from wellcond.results import quantities as q
from wellcond.results.text import grouped, shortened


def texts(rows: list[Row]) -> dict[str, str]:
    return {fact.title: fact.texts["net"] for fact in facts({"net": rows})}


@pytest.mark.parametrize(
    ("title", "rows", "text"),
    [
        (
            "signal, forward",
            column(q.INPUT.lambda_max, 10, 1, 1e-3),
            "λmax of Σx from 10 at fc1 to 0.001 at fc3",
        ),
        ("signal, forward", column(q.INPUT.lambda_max, 2.0), "λmax of Σx is 2 at fc1"),
        (
            "gradient, backward",
            column(q.GRADIENT.lambda_max, 1e-3, 1, 10),
            "λmax of Σ∇h from 10 at fc3 to 0.001 at fc1",
        ),
        ("signal, forward", [Row(None, "0", q.INPUT.lambda_max, 2.0, "")], "λmax of Σx is 2 at layer 0"),
        (
            "signal, forward",
            [*column(q.INPUT.lambda_max, 1, 4), *network(**{q.CONVOLUTIONS: 2.0})],
            "λmax of Σx from 1 at fc1 to 4 at fc2",
        ),
        (
            "gradient, backward",
            [*column(q.GRADIENT.lambda_max, 1, 4), *network(**{q.CONVOLUTIONS: 2.0})],
            "λmax of Σ∇h from 4 at fc2 to 1 at fc1 (convolutions: per position)",
        ),
        ("gradient, backward", column(q.GRADIENT.lambda_max, 0, 1), "λmax of Σ∇h from 1 at fc2 to 0 at fc1"),
        ("most uneven input", column(q.INPUT.kappa[0.5], 3, 2e9, 5), "κ50 of Σx up to 2.0e9, at fc2"),
        (
            "most uneven input",
            column(q.INPUT.kappa[0.5], 3, math.inf, math.inf),
            "κ50 of Σx up to ∞, at fc2, and at 1 more",
        ),
        (
            "ReLUs",
            [*column(q.DYING, 3, 2), *column(q.FULL, 0, 1), *column(q.UNITS, 100, 4)],
            "5 dead, 1 always on, of 104",
        ),
        (
            "ReLUs",
            [*column(q.DYING, 0, 0), *column(q.FULL, 0, 0), *column(q.UNITS, 100, 4)],
            "none of 104 dead or always on",
        ),
        ("loss", network(**{q.LOSS: 1.5}), "1.5"),
        ("largest stable lr", network(**{q.MAX_LR: 0.5, q.MOMENTUM: 0.0}), "0.5 without momentum"),
        (
            "largest stable lr",
            network(**{q.MAX_LR: 0.95, q.MOMENTUM: 0.9, q.LR: 0.1, q.TRAINED_MAX_LR: 2.0}),
            "0.95 with momentum 0.9; 2 after the training below; the optimizer is at 0.1",
        ),
        ("largest stable lr", network(**{q.MAX_LR: 0.007, q.LR: 0.001}), "0.007; the optimizer is at 0.001"),
        (
            "largest stable lr",
            network(**{q.MAX_LR: math.inf, q.MOMENTUM: 0.9}),
            "no limit: the loss does not curve upwards here",
        ),
        (
            "training",
            network(**{q.FINAL_LOSS: 0.25, q.STEPS: 100.0, q.TRAINED_LR: 0.3, q.TEST_ACCURACY: 89.0}),
            "loss 0.25 after 100 steps at lr 0.3; 89 % of unseen examples right",
        ),
    ],
)
def test_what_rows_say(title: str, rows: list[Row], text: str) -> None:
    assert texts(rows)[title] == text


def test_networks_are_compared_in_one_order_with_gaps() -> None:
    table = facts({"a": network(**{q.LOSS: 1.0, q.EXAMPLES: 5.0}), "b": column(q.INPUT.lambda_max, 2.0)})
    assert [line.title for line in table] == ["loss", "signal, forward"]
    assert table[0].texts == {"a": "1 on 5 examples", "b": ""}
    assert facts({"net": []}) == []


KAPPA = Column("κ", "kappa", "", worst="highest")
RANK = Column("rank", "rank", "", maximum="size", worst="lowest")


def test_the_worst_layers_are_at_the_bad_end_and_relative_to_their_size() -> None:
    layers = {"a": {"kappa": 5.0}, "b": {"kappa": math.inf}, "c": {}}
    assert KAPPA.worst_layers(layers) == {"b"}
    assert [KAPPA.text(line) for line in layers.values()] == ["5", "∞", "–"]
    ranks = {"a": {"rank": 3.0, "size": 4.0}, "b": {"rank": 8.0, "size": 16.0}}
    assert RANK.worst_layers(ranks) == {"b"}
    assert RANK.text(ranks["b"]) == "8/16"
    assert KAPPA.worst_layers({"a": {"kappa": 2.0}, "b": {"kappa": 2.0}}) == set()


def test_long_names_and_lists_are_shortened() -> None:
    assert (shortened("a.very.long.name.of.a.layer", 10), shortened("fc1")) == ("…f.a.layer", "fc1")
    reasons = {f"bn{i}": "a norm" for i in range(5)} | {"fc": "frozen"}
    assert grouped(reasons) == {"a norm": "bn0 … bn4 (5)", "frozen": "fc"}
