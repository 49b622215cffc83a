"""Races of learning rates, on results made by hand."""

from __future__ import annotations

from wellcond.results import Row
from wellcond.results.quantities import DIVERGED_AT, LOSS, TEST_ACCURACY
from wellcond_papers.experiments.table import Record, Table
from wellcond_papers.papers.lange2022.races import (
    as_good,
    best_are_printed,
    best_rate,
    by_rate,
    converges_better,
    drawing,
    is_better,
)
from wellcond_papers.papers.lange2022.table3 import ARMS


def run(method: str, rate: float, accuracy: float, loss: float = 1.0, *, diverged: bool = False) -> Record:
    rows = [Row(100, "", TEST_ACCURACY, accuracy, ""), Row(100, "", LOSS, loss, "")]
    rows += [Row(None, "", DIVERGED_AT, 1.0, "steps")] if diverged else []
    return Record({"arm": f"row: {method} at {rate:g}", "lr": rate, "seed": 0}, rows)


RACE = Table([run("BN", 0.1, 0.5), run("BN", 0.5, 0.6), run("BN", 1.0, 0.9, diverged=True), run("BN x", 0.1, 0.8)])


def test_the_best_rate_has_the_highest_accuracy_and_a_diverged_run_none() -> None:
    assert list(by_rate(RACE, "row", "BN")) == [0.1, 0.5, 1.0]
    assert best_rate(by_rate(RACE, "row", "BN")) == 0.5


def test_a_printed_rate_is_the_best_or_as_good_or_worse() -> None:
    claim = best_are_printed("row", {"BN": 0.5})
    assert claim.check(RACE).verdict == "holds"
    assert best_are_printed("row", {"BN": 0.1}).check(RACE).verdict == "does not hold"
    assert best_are_printed("row", {"BN": 0.1}).check(RACE).measured == "BN 0.5 (60.0 %, 50.0 % at 0.1)"
    tie = Table([run("BN", 0.1, 0.603), run("BN", 0.5, 0.6)])
    assert claim.check(tie).verdict == "holds in part"
    assert claim.check(Table([run("BN", 0.5, 0.6)])).verdict == "not tested"


def test_methods_are_compared_at_their_best_rates() -> None:
    table = Table([run("SGD", 0.1, 0.5, 0.7), run("SGD", 0.5, 0.6, 0.9), run("Adam", 0.1, 0.61, 0.8)])
    assert as_good("", "", [("row", "SGD", "Adam")]).check(table).verdict == "holds"
    assert is_better("", "", [("row", "Adam", "SGD")]).check(table).verdict == "holds"
    assert is_better("", "", [("row", "SGD", "Adam")]).check(table).verdict == "does not hold"
    assert as_good("", "", [("row", "SGD", "LBFGS")]).check(table).verdict == "not tested"
    # by the loss SGD is best at the other rate
    assert converges_better("", "", ["row"], "SGD", "Adam").check(table).verdict == "holds"
    assert converges_better("", "", ["row"], "Adam", "SGD").check(table).verdict == "does not hold"


def test_a_loss_of_a_diverged_run_does_not_count() -> None:
    table = Table([run("a", 0.1, 0.5, 0.1, diverged=True), run("a", 0.5, 0.5, 0.9), run("b", 0.1, 0.5, 0.5)])
    assert converges_better("", "", ["row"], "a", "b").check(table).verdict == "does not hold"


def test_a_race_is_drawn_with_a_circle_at_the_printed_rate() -> None:
    axes = drawing({"row": {"BN": 0.5}})(RACE).axes[0]
    assert [list(line.get_xdata()) for line in axes.lines if line.get_marker() == "o"] == [[0.5]]


def test_the_optimizer_is_the_sources_where_the_name_does_not_say_otherwise() -> None:
    optimizers = {arm: own["optimizer"] for arm, own in ARMS.items()}
    assert optimizers["CNN, batch 128: vanilla at 0.1"] == "Adam"
    assert optimizers["CNN, batch 2: vanilla at 0.001"] == "SGD"
    assert optimizers["CNN, batch 2: vanilla under Adam at 0.001"] == "Adam"
    assert optimizers["CNN, batch 1: 4 things under SGD at 0.1"] == "SGD"
