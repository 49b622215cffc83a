from __future__ import annotations

import math

from wellcond.report.table import Column
from wellcond.results.text import grouped, shortened

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
