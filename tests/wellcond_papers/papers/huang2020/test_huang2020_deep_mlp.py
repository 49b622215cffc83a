"""Figures V to VII, XI and XIII of huang2020: deep MLPs over training."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import nn

from wellcond.results import Row
from wellcond.results.quantities import DYING, FINAL_LOSS, GRADIENT, INPUT, KRONECKER, LOSS, TRAINED_LR, WEIGHT_NORM
from wellcond_papers.experiments.experiment import Job
from wellcond_papers.experiments.table import Record, Table
from wellcond_papers.models import mlp
from wellcond_papers.papers.huang2020 import explosion, fig5, fig7, fig13
from wellcond_papers.papers.huang2020.conditioning import layer_rows
from wellcond_papers.papers.huang2020.deep_mlp import Batch, at_step, by_seed, changes, shared_looks, trained
from wellcond_papers.papers.huang2020.equal_loss import at_loss, better_conditioned_at_equal_loss
from wellcond_papers.papers.huang2020.fig6 import better_conditioned

SETTINGS: dict[str, Any] = {
    "data": "digits", "depth": 3, "units": 8, "batch": 200, "epochs": 1, "measured": 50, "norm": "none", "init": "he",
    "optimizer": "SGD", "rates": [1e-6, 0.2], "seed": 0,
}  # fmt: skip


def layers(arm: str, quantity: str, looks: dict[int, list[float]]) -> Record:
    rows = [Row(s, f"fc{k}", quantity, v, "") for s, values in looks.items() for k, v in enumerate(values, start=1)]
    return Record({"arm": arm}, rows)


def test_scaling_all_weights_scales_inputs_and_not_their_conditioning() -> None:
    # Theorem 1 of the source: α in every layer makes Σx of layer k α^(2(k−1)) times as large
    model = mlp([6, 8, 8, 3], init="he", bias=False, seed=0)
    batch = torch.randn(40, 6, generator=torch.Generator().manual_seed(0)), torch.arange(40) % 3
    before = {(row.layer, row.quantity): row.value for row in layer_rows(model, batch, 0)}
    with torch.no_grad():
        for weight in model.parameters():
            weight *= 2.0
    after = {(row.layer, row.quantity): row.value for row in layer_rows(model, batch, 0)}
    for k in (1, 2, 3):
        growth = after[f"fc{k}", INPUT.lambda_max] / before[f"fc{k}", INPUT.lambda_max]
        assert growth == pytest.approx(4.0 ** (k - 1), rel=1e-9)
        assert after[f"fc{k}", INPUT.kappa[0.5]] == pytest.approx(before[f"fc{k}", INPUT.kappa[0.5]], rel=1e-6)


def test_the_probe_leaves_the_network_as_it_is() -> None:
    model = mlp([6, 8, 3], norm="batch", seed=0)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    layer_rows(model, (torch.randn(20, 6), torch.arange(20) % 3), 0)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


@pytest.mark.slow
def test_the_rate_with_the_lowest_loss_is_the_one_that_is_kept() -> None:
    rows = trained(Job(SETTINGS), lambda model, batch, step: [])
    finals = {row.layer: row.value for row in rows if row.quantity == FINAL_LOSS}
    assert finals["lr 0.2"] < finals["lr 1e-06"]
    assert finals[""] == finals["lr 0.2"]
    assert [row.value for row in rows if row.quantity == TRAINED_LR] == [0.2]


def test_a_rate_that_diverges_is_not_the_best() -> None:
    rows = trained(Job(SETTINGS | {"rates": [1e30, 0.1]}), lambda model, batch, step: [])
    assert [row.value for row in rows if row.quantity == TRAINED_LR] == [0.1]


def test_layers_are_kept_at_the_rate_that_networks_are_compared_at() -> None:
    seen: list[int] = []

    def look(model: nn.Module, batch: Batch, step: int) -> list[Row]:
        seen.append(step)
        return []

    rows = trained(Job(SETTINGS | {"compared_lr": 1e-6, "looks": [0.0, 0.5, 1.0]}), look)
    assert [row.value for row in rows if row.quantity == TRAINED_LR] == [1e-6]
    assert seen == [0, 4, 7], "at one rate alone"
    assert {row.layer for row in rows if row.quantity == FINAL_LOSS} == {"", "lr 1e-06", "lr 0.2"}


def fitted(arm: str, losses: list[float], kappas: list[float]) -> Record:
    """Two hidden layers with the same κ, at looks of these losses."""
    of_layers = [
        Row(step, layer, GRADIENT.kappa[0.5], kappa, "")
        for step, kappa in enumerate(kappas)
        for layer in ("fc1", "fc2", "fc3")
    ]
    return Record({"arm": arm, "seed": 0}, [Row(k, "", LOSS, loss, "") for k, loss in enumerate(losses)] + of_layers)


def test_a_network_that_fits_faster_is_compared_at_the_others_loss() -> None:
    plain = fitted("plain", [4.0, 1.0, 0.25], [10.0, 100.0, 1000.0])
    bn = fitted("BN", [4.0, 0.25, 0.01], [5.0, 500.0, 5000.0])
    table = Table([plain, bn])
    later = better_conditioned("Σ∇h", GRADIENT, [("plain", "BN")], at_start=False)
    assert later.check(table).verdict == "does not hold"
    assert better_conditioned_at_equal_loss("Σ∇h", GRADIENT, [("plain", "BN")], [0.5]).check(table).verdict == "holds"
    assert at_loss(plain, GRADIENT.kappa[0.5], 0.5) == pytest.approx({"fc1": 10**2.5, "fc2": 10**2.5})
    assert at_loss(plain, GRADIENT.kappa[0.5], 0.1) == {}
    without = Table([fitted("plain", [], [10.0]), bn])
    claim = better_conditioned_at_equal_loss("Σ∇h", GRADIENT, [("plain", "BN")], [0.5])
    assert claim.check(without).verdict == "not tested"


def test_magnitudes_that_halve_from_layer_to_layer_vanish() -> None:
    falling = [2.0**-k for k in range(20)]
    records = [layers("plain, LeCun", INPUT.lambda_max, {0: falling})]
    records.append(layers("plain, LeCun", GRADIENT.lambda_max, {0: falling[::-1]}))
    assert fig5.vanishes.check(Table(records)).verdict == "holds"
    assert fig5.he_keeps.check(Table([layers("plain, He", INPUT.lambda_max, {0: falling})])).verdict == "does not hold"


def test_change_is_over_training_and_layer_by_layer() -> None:
    table = Table([layers("BN", INPUT.lambda_max, {0: [9.0, 1.0, 4.0], 5: [9.0, 3.0, 2.0]})])
    assert changes(table, "BN", INPUT.lambda_max) == {"fc2": [3.0], "fc3": [2.0]}
    assert at_step(table, "BN", INPUT.lambda_max) == {"fc2": 3.0, "fc3": 2.0}


def test_changes_at_other_times_in_other_seeds_do_not_cancel() -> None:
    early, late = {0: [1.0, 9.0, 1.0], 5: [1.0, 1.0, 1.0]}, {0: [1.0, 1.0, 1.0], 5: [1.0, 9.0, 1.0]}
    table = Table([layers("BN", INPUT.lambda_max, looks) for looks in (early, late)])
    assert changes(table, "BN", INPUT.lambda_max) == {"fc2": [9.0, 9.0], "fc3": [1.0, 1.0]}


def test_better_conditioned_looks_at_the_start_or_at_what_follows() -> None:
    quantity = INPUT.kappa[0.5]
    table = Table(
        [
            layers("plain", quantity, {0: [1.0, 9.0], 5: [1.0, 2.0]}),
            layers("BN", quantity, {0: [1.0, 3.0], 5: [1.0, 4.0]}),
        ]
    )
    start, later = (better_conditioned("Σx", INPUT, [("plain", "BN")], at_start=flag) for flag in (True, False))
    assert (start.check(table).verdict, later.check(table).verdict) == ("holds", "does not hold")


def test_adam_evens_out_if_its_layers_are_closer_together_in_training() -> None:
    even, uneven = [1.0, 1.0, 2.0], [1.0, 1.0, 50.0]
    for first, verdict in ((even, "holds"), (uneven, "does not hold")):
        second = uneven if first is even else even
        table = Table(
            [
                layers("plain", INPUT.lambda_max, {0: uneven, 5: first}),
                layers("plain, SGD", INPUT.lambda_max, {0: uneven, 5: second, 9: even}),
            ]
        )
        assert fig7.adam_adjusts.check(table).verdict == verdict


def test_gradients_that_double_downwards_explode_and_level_ones_do_not() -> None:
    exploding, level = [2.0**k for k in range(12)][::-1], [1.0] * 12
    check = explosion.explodes("BN MLP").check
    assert check(Table([layers("BN MLP", KRONECKER.lambda_max, {0: exploding})])).verdict == "holds"
    assert check(Table([layers("BN MLP", KRONECKER.lambda_max, {0: level})])).verdict == "does not hold"
    after = explosion.all_are_small_after_a_step("BN MLP").check
    small = {0: exploding} | {step: [value / 100 for value in exploding] for step in range(1, 8)}
    assert after(Table([layers("BN MLP", KRONECKER.lambda_max, small)])).verdict == "holds"
    assert (
        after(Table([layers("BN MLP", KRONECKER.lambda_max, dict.fromkeys(range(8), level))])).verdict
        == "does not hold"
    )


def test_only_layers_whose_weights_grew_must_have_small_gradients() -> None:
    weights = layers("BN MLP", WEIGHT_NORM, {0: [1.0] * 4, 1: [1.0, 50.0, 2.0, 1.0]}).rows
    check = explosion.is_small_after_a_step("BN MLP").check
    for grown, verdict in ((1.0, "holds"), (99.0, "does not hold")):
        looks = {0: [9.0, 100.0, 9.0, 9.0]} | {step: [9.0, grown, 900.0, 9.0] for step in range(1, 8)}
        gradients = layers("BN MLP", KRONECKER.lambda_max, looks).rows
        outcome = check(Table([Record({"arm": "BN MLP"}, [*weights, *gradients])]))
        assert outcome.verdict == verdict
        assert "of 7 cases" in outcome.measured
    assert check(Table([layers("BN MLP", WEIGHT_NORM, {0: [1.0] * 4, 1: [1.0] * 4})])).verdict == "not tested"


def test_a_seed_that_diverged_is_compared_while_it_lasts() -> None:
    def run(arm: str, seed: int, looks: dict[int, list[float]]) -> Record:
        return Record({"arm": arm, "seed": seed}, layers(arm, INPUT.kappa[0.5], looks).rows)

    bn = [run("BN", seed, {0: [1.0, 1.0], 5: [1.0, 2.0], 9: [1.0, 50.0]}) for seed in (0, 1)]
    plain = [run("plain", 0, {0: [1.0, 1.0], 5: [1.0, 40.0]}), run("plain", 1, {0: [1.0, 1.0], 5: [1.0, 4.0]})]
    [pair, _] = by_seed(Table([*bn, *plain]), "plain", "BN")
    assert list(shared_looks(pair, INPUT.kappa[0.5])) == [0, 5]
    later = better_conditioned("Σx", INPUT, [("plain", "BN")], at_start=False)
    assert later.check(Table([*bn, *plain])).verdict == "holds"
    near = run("plain", 1, {0: [1.0, 1.0], 5: [1.0, 0.5]})
    assert "a tie in 1" in later.check(Table([*bn, plain[0], near])).measured


def test_bn_that_diverges_less_often_stabilizes_the_training() -> None:
    def tried(arm: str, losses: list[float]) -> Record:
        return Record({"arm": arm}, [Row(None, f"lr {k}", FINAL_LOSS, loss, "") for k, loss in enumerate(losses)])

    check = fig5.diverges_less({"": ("plain", "BN")}, paper="").check
    lost, finite = [0.1, math.inf], [0.1, 0.1]
    for plain, bn, verdict in (
        (lost, finite, "holds"),
        (finite, lost, "does not hold"),
        (finite, finite, "not tested"),
    ):
        assert check(Table([tried("plain", plain), tried("BN", bn)])).verdict == verdict


def test_units_that_no_image_switches_on_are_dying() -> None:
    model = mlp([4, 3, 3, 2], init="he", seed=0)
    with torch.no_grad():
        model.fc2.bias.copy_(torch.tensor([-1e6, 0.0, 1e6]))
    rows = fig13.count_neurons(model, (torch.randn(30, 4), torch.arange(30) % 2), 7)
    values = {(row.layer, row.quantity): row.value for row in rows}
    assert values["fc2", DYING] >= 1
    assert values["fc2", fig13.FULL] >= 1
    more_above = Table([layers("plain", DYING, {0: [0.0, 1.0, 3.0, 5.0]})])
    assert fig13.grow_with_depth("dying").check(more_above).verdict == "holds"
