"""Figures I to IV of huang2020: the full Fisher matrix and those of the layers."""

from __future__ import annotations

import math
from typing import Any

import pytest

from wellcond.results import Row
from wellcond.results.quantities import FISHER, GRADIENT_NORM, HESSIAN
from wellcond_papers.experiments.experiment import Job
from wellcond_papers.experiments.table import Record, Table
from wellcond_papers.papers.huang2020.fisher import measure
from wellcond_papers.papers.huang2020.fisher_claims import (
    greater_with_bn,
    greater_without_bn,
    layers_agree,
    layers_are_better,
    pairs,
    whole_is_better,
)
from wellcond_papers.papers.huang2020.sub_hessian import (
    has_negative_eigenvalues,
    indicates_the_gradient,
    is_fisher_without_bn,
    same_order,
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


def test_networks_whose_order_depends_on_the_seed_are_a_tie() -> None:
    kappas = {"": 1.0, "fc1": 1.0}
    plain = [network("plain F", kappas, magnitude) for magnitude in (1.0, 1.2, 5.0)]
    near, far = (
        [network("BN F", kappas, magnitude) for magnitude in seeds] for seeds in ((2.0, 2.1, 3.0), (20.0, 30.0))
    )
    assert greater_without_bn(Table([*plain, *near]), "F", FISHER.lambda_max) == {"": None, "fc1": None}
    assert greater_with_bn("F").check(Table([*plain, *near])).verdict == "holds in part"
    assert layers_agree("F").check(Table([*plain, *near])).verdict == "holds in part"
    assert greater_with_bn("F").check(Table([*plain, *far])).verdict == "holds"


def test_two_infinite_condition_numbers_say_nothing() -> None:
    both = Table([network("plain F", {"": math.inf, "fc1": math.inf}), network("BN F", {"": math.inf, "fc1": 2.0})])
    assert pairs(both, "F", FISHER.kappa[0.5]) == {"fc1": (math.inf, 2.0)}
    assert whole_is_better("F").check(both).verdict == "not tested"
    assert layers_are_better("F").check(both).verdict == "holds"


def test_the_greater_magnitude_with_bn_is_counted_in_the_whole_and_in_the_layers() -> None:
    table = Table([network("plain F", {"": 1.0, "fc1": 1.0}), network("BN F", {"": 1.0, "fc1": 1.0}, 3.0)])
    assert greater_with_bn("F").check(table).verdict == "holds"
    assert "3 times in the whole" in greater_with_bn("F").check(table).measured


@pytest.mark.slow
def test_a_sub_hessian_is_the_sub_fisher_matrix_of_a_rectifier_network_and_not_with_bn() -> None:
    def largest(norm: str, labels: str | None, quantity: str) -> dict[str, float]:
        rows = measure(Job(SETTINGS | {"norm": norm, "labels": labels}))
        return {row.layer: row.value for row in rows if row.quantity == quantity and row.layer}

    fisher, hessian = largest("none", "model", FISHER.lambda_max), largest("none", None, HESSIAN.lambda_max)
    assert hessian == pytest.approx(fisher, rel=2e-3)
    assert largest("batch", None, HESSIAN.lambda_max) != pytest.approx(
        largest("batch", "model", FISHER.lambda_max), rel=0.1
    )


@pytest.mark.slow
def test_a_sub_hessian_has_negative_eigenvalues_with_bn_alone_and_not_in_the_last_layer() -> None:
    records = [
        Record({"arm": f"{network} H"}, measure(Job(SETTINGS | {"norm": norm, "labels": None})))
        for network, norm in (("plain", "none"), ("BN", "batch"))
    ]
    outcome = has_negative_eigenvalues.check(Table(records))
    assert "in 0 of 3 layers of plain" in outcome.measured
    assert "in 2 of 3 layers of BN" in outcome.measured
    assert outcome.verdict == "does not hold"
    assert has_negative_eigenvalues.check(Table([Record({"arm": "BN H"}, records[1].rows)])).verdict == "holds in part"


def of_layer(arm: str, values: dict[str, float], quantity: str) -> Record:
    return Record({"arm": arm}, [Row(None, layer, quantity, value, "") for layer, value in values.items()])


def test_pairs_of_layers_with_nearly_the_same_gradient_say_nothing() -> None:
    gradients = {("BN", "fc1"): 1.0, ("BN", "fc2"): 1.9, ("plain", "fc1"): 4.0}
    backwards = {("BN", "fc1"): 3.0, ("BN", "fc2"): 2.0, ("plain", "fc1"): 1.0}
    assert same_order(gradients, gradients, within=True) == []
    assert same_order(gradients, gradients, within=False) == [True, True]
    assert same_order(gradients, backwards, within=False) == [False, False]


def test_sub_hessians_in_the_order_of_the_gradients_indicate_them() -> None:
    gradients = of_layer("plain H", {"fc1": 1.0, "fc2": 5.0}, GRADIENT_NORM).rows
    for curvature, verdict in (({"fc1": 0.1, "fc2": 0.9}, "holds"), ({"fc1": 0.9, "fc2": 0.1}, "does not hold")):
        rows = of_layer("plain H", curvature, HESSIAN.lambda_max).rows
        assert indicates_the_gradient.check(Table([Record({"arm": "plain H"}, [*gradients, *rows])])).verdict == verdict
    assert is_fisher_without_bn.check(Table([])).verdict == "not tested"
