"""The claims about LastBN and about blocked layers hold of the paper's own numbers, and fail where arms are swapped."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from wellcond.results import Row
from wellcond.results.quantities import DIVERGED_AT, FINAL_LOSS, INPUT, TEST_ACCURACY, TRAINING_LOSS
from wellcond_papers.experiments.table import Record, Table
from wellcond_papers.papers.huang2020 import fig12, fig15, layers_over_training, table_a, table_b


def table_of(values: Mapping[str, float], quantity: str = TEST_ACCURACY) -> Table:
    """One cell per arm with one number each, tested on the 50 000 images of ImageNet."""
    return Table(
        [Record({"arm": arm, "data": "imagenet"}, [Row(1, "", quantity, value, "")]) for arm, value in values.items()]
    )


def swapped(table: Table, a: str, b: str) -> Table:
    other = {a: b, b: a}
    return Table([Record({**r.settings, "arm": other.get(r.arm, r.arm)}, r.rows) for r in table])


def accuracy(percent_wrong: float) -> float:
    return 1 - percent_wrong / 100


def test_table_b_holds_of_the_papers_errors_in_every_claim() -> None:
    accuracies = {
        table_b.arm(name, depth): accuracy(error)
        for family in table_b.FAMILIES
        for name in (family, table_b.LAST_BN[family])
        for depth, error in zip(table_b.DEPTHS, table_b.PAPER[name.removeprefix("small ")], strict=True)
    }
    assert {claim.check(table_of(accuracies)).verdict for claim in table_b.EXPERIMENT.claims} == {"holds"}
    pair = table_b.arm("VGG", 56), table_b.arm("VGG-LastBN", 56)
    verdicts = [claim.check(swapped(table_of(accuracies), *pair)).verdict for claim in table_b.EXPERIMENT.claims]
    assert verdicts[0] == "holds in part"
    assert verdicts[-1] == "does not hold"


def test_two_networks_that_guess_do_not_get_worse_and_a_tie_is_no_improvement() -> None:
    vgg = {table_b.arm("VGG", 20): accuracy(46.4), table_b.arm("VGG", 44): 0.1, table_b.arm("VGG", 56): 0.1}
    worse = table_b.changes_with_depth("VGG", "worse", 1)
    assert worse.check(table_of(vgg)).verdict == "holds"
    better = table_b.changes_with_depth("VGG", "better", -1)
    assert better.check(table_of(vgg)).verdict == "does not hold"
    tie = {table_b.arm("VGG", 20): accuracy(12.0), table_b.arm("VGG-LastBN", 20): accuracy(11.9)}
    assert table_b.improves("VGG").check(table_of(tie)).verdict == "holds in part"


def test_table_a_holds_of_the_papers_errors_but_for_a_gain_that_its_test_images_cannot_tell() -> None:
    accuracies = {
        table_a.arm(network, depth, column): accuracy(error)
        for network, depths in table_a.PAPER.items()
        for depth, errors in depths.items()
        for column, error in zip(table_a.COLUMNS, errors, strict=True)
    }
    improves, amplified = table_a.EXPERIMENT.claims
    assert improves.check(table_of(accuracies)).verdict == "holds"
    assert amplified.check(table_of(accuracies)).verdict == "holds in part"
    clear = accuracies | {table_a.arm("ResNet-LastBN", 50, "dropout 0.3"): accuracy(23.3)}  # 0.51 against 0.21
    assert amplified.check(table_of(clear)).verdict == "holds"
    table = table_of(accuracies)
    assert table_a.gains(table, 18)["WD 2e-4"] == pytest.approx([1.11])
    for column in table_a.COLUMNS:
        table = swapped(table, *(table_a.arm(network, 50, column) for network in table_a.NETWORKS))
    assert table_a.improves.check(table).verdict == "does not hold"


def test_table_a_does_not_tell_seeds_apart_that_overlap() -> None:
    arms = [table_a.arm(network, 18, "standard") for network in table_a.NETWORKS]
    runs = [(arms[0], 40.0), (arms[0], 42.0), (arms[1], 39.5), (arms[1], 42.3)]
    rows = [(name, Row(1, "", TEST_ACCURACY, accuracy(error), "")) for name, error in runs]
    table = Table([Record({"arm": name}, [row]) for name, row in rows])
    assert table_a.improves.check(table).verdict == "holds in part"
    assert table_a.improves.check(Table(table[::2])).verdict == "holds"


def test_blocked_layers_must_cost_something() -> None:
    losses = {"1111": 0.2, "0111": 0.3, "1011": 0.4, "1101": 0.5, "1110": 0.3, "0000": 1.0}
    _, costs, *_, with_warm_up = fig12.EXPERIMENT.claims
    assert costs.check(table_of(losses, FINAL_LOSS)).verdict == "holds"
    assert costs.check(swapped(table_of(losses, FINAL_LOSS), "1111", "0000")).verdict == "does not hold"
    assert costs.check(table_of({"0111": 0.3}, FINAL_LOSS)).verdict == "not tested"
    some = costs.check(table_of({"1111": 0.2, "0111": 0.3, "1011": 0.4}, FINAL_LOSS))
    assert (some.verdict, some.measured.count("not run")) == ("holds in part", 3)
    warm = {f"{digits}{fig12.WARM}": accuracy(loss) for digits, loss in losses.items()}
    assert with_warm_up.check(table_of(warm)).verdict == "holds"
    assert with_warm_up.check(table_of(losses)).verdict == "not tested"


def test_only_the_network_with_a_final_norm_keeps_the_magnitude() -> None:
    series = {"ResNet": [1.0, 50.0], "PreResNet": [3.0, 4.0], "PreResNet-v1": [40.0, 2.0]}
    table = Table(
        [
            Record({"arm": arm}, [Row(k, "fc", INPUT.lambda_max, value, "") for k, value in enumerate(values)])
            for arm, values in series.items()
        ]
    )
    varies, keeps = fig15.magnitude_varies().check, fig15.only_a_norm_keeps_it().check
    assert (varies(table).verdict, keeps(table).verdict) == ("holds", "holds")
    assert varies(swapped(table, "PreResNet", "ResNet")).verdict == "does not hold"
    assert keeps(swapped(table, "PreResNet", "PreResNet-v1")).verdict == "does not hold"
    assert fig15.magnitude_varies(fig15.OF_110).check(table).verdict == "not tested"
    alone = table_of({"PreResNet": 1.0}, TRAINING_LOSS)
    assert fig15.trains_faster().check(alone).verdict == "not tested"
    lost = table_of({"PreResNet-v1": 10.0}, DIVERGED_AT)
    assert fig15.trains_faster().check(Table([*alone, *lost])).verdict == "holds"
    assert fig15.trains_faster().check(lost).verdict == "not tested"


def test_layers_are_compared_after_the_start_and_without_the_first() -> None:
    def record(arm: str, kappas: Mapping[str, float], at_start: float) -> Record:
        rows = [Row(0, layer, INPUT.kappa[0.5], at_start, "") for layer in kappas]
        return Record({"arm": arm}, rows + [Row(9, layer, INPUT.kappa[0.5], k, "") for layer, k in kappas.items()])

    bn = record("BN", {"conv": 9.0, "conv1": 2.0, "fc": 3.0}, at_start=100.0)
    plain = record("plain", {"conv": 1.0, "conv1": 20.0, "fc": float("inf")}, at_start=1.0)
    better = layers_over_training.CLAIMS[0]
    assert better.check(Table([bn, plain])).verdict == "holds"
    assert better.check(swapped(Table([bn, plain]), "BN", "plain")).verdict == "does not hold"
    assert better.check(Table([bn])).verdict == "not tested"
