from __future__ import annotations

import math

from wellcond.report.table import Column
from wellcond.results.text import grouped, shortened

KAPPA = Column("κ", "kappa", "", worst="highest")
RANK = Column("rank", "rank", "", maximum="size", worst="lowest")


def test_infinity_is_the_worst_and_is_written() -> None:
    layers = {"a": {"kappa": 5.0}, "b": {"kappa": math.inf}, "c": {}}
    assert KAPPA.worst_layers(layers) == {"b"}
    assert [KAPPA.text(line) for line in layers.values()] == ["5", "∞", "–"]


def test_the_lowest_rank_is_the_worst_relative_to_the_size() -> None:
    layers = {"a": {"rank": 3.0, "size": 4.0}, "b": {"rank": 8.0, "size": 16.0}}
    assert RANK.worst_layers(layers) == {"b"}
    assert RANK.text(layers["b"]) == "8/16"


def test_layers_that_are_alike_have_no_worst() -> None:
    assert KAPPA.worst_layers({"a": {"kappa": 2.0}, "b": {"kappa": 2.0}}) == set()


def test_the_end_of_a_long_name_is_kept() -> None:
    assert shortened("a.very.long.name.of.a.layer", 10) == "…f.a.layer"
    assert shortened("fc1") == "fc1"


def test_reasons_are_said_once() -> None:
    reasons = {f"bn{i}": "a norm" for i in range(5)} | {"fc": "frozen"}
    assert grouped(reasons) == {"a norm": "bn0 … bn4 (5)", "frozen": "fc"}
