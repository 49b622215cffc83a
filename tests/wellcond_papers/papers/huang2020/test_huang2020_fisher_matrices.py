"""Figures I to IV of huang2020: the full Fisher matrix and those of the layers."""

from __future__ import annotations

import math
from typing import Any

import pytest

from wellcond.results import Row
from wellcond.results.quantities import FISHER
from wellcond_papers.experiments.experiment import Job
from wellcond_papers.experiments.table import Record, Table
from wellcond_papers.papers.huang2020.fisher import (
    layers_agree,
    layers_are_better,
    measure,
    pairs,
    whole_is_better,
)

SETTINGS: dict[str, Any] = {
    "data": "digits", "size": None, "depth": 3, "units": 6, "images": 30, "batch": 30, "seed": 0,
}  # fmt: skip


def network(arm: str, kappa: dict[str, float], lambda_max: float = 1.0) -> Record:
    rows = [Row(None, layer, FISHER.kappa[0.5], value, "") for layer, value in kappa.items()]
    return Record({"arm": arm}, [*rows, *(Row(None, layer, FISHER.lambda_max, lambda_max, "") for layer in kappa)])


@pytest.mark.parametrize(
    ("norm", "labels", "gradients"), [("none", "model", 9), ("batch", "model", 9), ("none", "data", 1)]
)
def test_the_layers_blocks_share_out_the_full_matrix(norm: str, labels: str, gradients: int) -> None:
    rows = measure(Job(SETTINGS | {"norm": norm, "labels": labels}))
    values = {(row.layer, row.quantity): row.value for row in rows}
    layers = ["fc1", "fc2", "fc3"]
    # the trace of a matrix is that of its diagonal blocks, and a block's spectrum lies inside the whole one's
    assert math.isclose(sum(values[k, FISHER.trace] for k in layers), values["", FISHER.trace], rel_tol=1e-9)
    assert all(values[k, FISHER.lambda_max] <= values["", FISHER.lambda_max] * (1 + 1e-9) for k in layers)
    # softmax has one gradient less than classes
    assert values["", FISHER.rank] <= gradients * SETTINGS["images"]


def test_batches_only_regroup_the_images_of_a_network_without_batchnorm() -> None:
    whole, halves = (measure(Job(SETTINGS | {"norm": "none", "labels": "data", "batch": size})) for size in (30, 15))
    of = {row.layer: row.value for row in halves if row.quantity == FISHER.lambda_max}
    assert all(
        math.isclose(row.value, of[row.layer], rel_tol=1e-9) for row in whole if row.quantity == FISHER.lambda_max
    )


def test_a_smaller_condition_number_with_bn_is_what_the_claims_ask_for() -> None:
    table = Table([network("plain F", {"": 100.0, "fc1": 50.0}), network("BN F", {"": 10.0, "fc1": 5.0}, 2.0)])
    assert [make("F").check(table).verdict for make in (whole_is_better, layers_are_better, layers_agree)] == [
        "holds"
    ] * 3
    swapped = Table([network("BN F", {"": 100.0, "fc1": 50.0}), network("plain F", {"": 10.0, "fc1": 5.0}, 2.0)])
    assert whole_is_better("F").check(swapped).verdict == "does not hold"
    assert layers_are_better("F").check(swapped).verdict == "does not hold"


def test_a_layer_that_differs_from_the_whole_counts_against_the_agreement() -> None:
    table = Table([network("plain F", {"": 100.0, "fc1": 1.0}), network("BN F", {"": 10.0, "fc1": 5.0}, 2.0)])
    assert layers_agree("F").check(table).verdict == "does not hold"


def test_two_infinite_condition_numbers_say_nothing() -> None:
    both = Table([network("plain F", {"": math.inf, "fc1": math.inf}), network("BN F", {"": math.inf, "fc1": 2.0})])
    assert pairs(both, "F", FISHER.kappa[0.5]) == {"fc1": (math.inf, 2.0)}
    assert whole_is_better("F").check(both).verdict == "not tested"
    assert layers_are_better("F").check(both).verdict == "holds"
