"""Table 1 and figures 1 and 2 of zhang2018: the compared methods, and what becomes of the claims."""

from __future__ import annotations

import pytest
import torch
from torch.optim import SGD
from torch.optim.lr_scheduler import ReduceLROnPlateau

from wellcond.optim.scale_amended import ScaleAmendedSGD
from wellcond.optim.scaled_sgd import LARS, LSALR
from wellcond.results import Row
from wellcond.results.quantities import DIVERGED_AT, TEST_ACCURACY, TRAINING_LOSS
from wellcond_papers.experiments.experiment import Job
from wellcond_papers.experiments.table import Record, Table
from wellcond_papers.models import vgg
from wellcond_papers.papers.zhang2018 import fig1, fig2, table1
from wellcond_papers.papers.zhang2018.ranking import is_ahead
from wellcond_papers.papers.zhang2018.training import optimizer_of, schedule_of
from wellcond_papers.training.schedules import Plateau


def runs(accuracies: dict[str, float | None], prefix: str = "VGG-13, CIFAR-100, ") -> Table:
    """A run of each method that ends with this accuracy, or diverges."""
    records = []
    for method, accuracy in accuracies.items():
        row = Row(3, "", DIVERGED_AT, 3.0, "") if accuracy is None else Row(9, "", TEST_ACCURACY, accuracy, "")
        records.append(Record({"arm": prefix + method}, [row]))
    return Table(records)


def test_every_method_steps_with_its_own_settings() -> None:
    model, image = vgg(11, width=2, seed=0), torch.zeros(1, 3, 32, 32)
    kinds = {"SGD": SGD, "LARS": LARS, table1.TRUSTED: LARS, "LSALR": LSALR, "scale-amended": ScaleAmendedSGD}
    for method, kind in kinds.items():
        settings = table1.ARMS[f"VGG-11, CIFAR-100, {method}"] | table1.SETTINGS
        optimizer = optimizer_of(Job(settings), model, image)
        assert type(optimizer) is kind
        group = optimizer.param_groups[0]
        assert group["nesterov"]
        assert group["weight_decay"] == (5e-3 if method == "scale-amended" else 1e-3)
        assert group["lr"] == (2.0 if kind is LARS else 0.1)
        assert group.get("trust_coefficient") == {"LARS": 1.0, table1.TRUSTED: 1e-3}.get(method)


def test_the_schedule_of_the_source_is_torchs_with_a_patience_of_ten() -> None:
    schedule = schedule_of("plateau", 1000)
    assert isinstance(schedule, Plateau)
    parameter = torch.nn.Parameter(torch.zeros(1))
    optimizer = SGD([parameter], lr=1.0)
    reference = ReduceLROnPlateau(optimizer, mode="max", factor=0.5, patience=10)
    rates = []
    for epoch in range(40):
        accuracy = 0.5 + 1e-4 * min(epoch, 5)
        assert schedule(epoch) == optimizer.param_groups[0]["lr"]
        rates.append(schedule(epoch))
        schedule.see([Row(epoch, "", TEST_ACCURACY, accuracy, "")])
        reference.step(accuracy)
    assert rates.index(0.5) == 17  # eleven epochs after the best, in epoch 5
    assert schedule_of("cosine", 10)(5) == pytest.approx(0.5)


def on_all(accuracies: dict[str, float | None], data: str = "CIFAR-100") -> Table:
    """The same accuracies of all four networks."""
    return Table([run for depth in table1.DEPTHS for run in runs(accuracies, f"VGG-{depth}, {data}, ")])


def test_the_best_method_is_ahead_of_all_others() -> None:
    claim = table1.EXPERIMENT.claims[0]
    slower = {"SGD": 0.7, "LARS": None, "LSALR": 0.69}
    assert claim.check(on_all(slower | {"scale-amended": 0.75})).verdict == "holds"
    assert claim.check(on_all(slower | {"scale-amended": 0.701})).verdict == "holds in part"
    assert claim.check(on_all(slower | {"scale-amended": 0.695})).verdict == "does not hold"
    assert claim.check(on_all(slower | {"scale-amended": None})).verdict == "does not hold"
    assert "LARS diverged" in claim.check(on_all(slower | {"scale-amended": 0.75})).measured


def test_a_claim_about_four_networks_and_four_methods_needs_them_all() -> None:
    claim, methods = table1.EXPERIMENT.claims[0], {"SGD": 0.7, "LARS": 0.7, "LSALR": 0.69, "scale-amended": 0.75}
    one = claim.check(runs(methods))
    assert one.verdict == "holds in part"
    assert one.measured.endswith("not run: VGG-11, VGG-16, VGG-19")
    del methods["LARS"]
    assert claim.check(on_all(methods)).verdict == "not tested"


def test_methods_are_compared_by_the_medians_of_their_runs() -> None:
    own, other = [70.0, 75.0, 75.1], [74.0, 74.5, 74.6]
    assert is_ahead(own, other) is None  # the mean is lower, by less than its error
    assert is_ahead([74.9, 75.0, 75.1], other) is True
    assert is_ahead([74.85, 74.9, 74.95], other) is None  # √(0.745 · 0.255 / 10,000) is 0.44 points
    assert is_ahead(other, [74.9, 75.0, 75.1]) is False


def test_the_leads_that_the_source_prints_on_cifar10_are_ties_but_for_one() -> None:
    leads = []
    for of in table1.PAPER.values():
        ours = of.get(table1.PRINTED) or of["scale-amended"]
        leads.append([is_ahead([a], [b]) for a, b in zip(ours, of["SGD"], strict=True)])
    assert leads == [[None, None, None, True], [True] * 4]


def test_lars_must_not_diverge() -> None:
    claim = table1.EXPERIMENT.claims[3]
    assert claim.check(runs({"LARS": 0.7})).verdict == "holds"
    assert claim.check(runs({"LARS": None})).verdict == "does not hold"
    assert "step 3" in claim.check(runs({"LARS": None})).measured
    assert claim.check(Table([*runs({"LARS": None})] * 2)).measured == "VGG-13, CIFAR-100 diverged at steps 3, 3"


def test_figure_1_compares_test_errors_at_the_end() -> None:
    def verdict(amended: float) -> str:
        return fig1.lower_error.check(runs({"SGD": 0.7, "scale-amended": amended}, "CIFAR-100, ")).verdict

    assert [verdict(amended) for amended in (0.75, 0.65, 0.701)] == ["holds", "does not hold", "holds in part"]
    # √(0.7 · 0.3 / 10,000) is 0.46 points
    assert [verdict(amended) for amended in (0.7045, 0.7047)] == ["holds in part", "holds"]


def test_almost_always_is_nine_epochs_of_ten_on_both_data_sets() -> None:
    def table(lower: int) -> Table:
        def record(method: str, losses: list[float]) -> Record:
            rows = [Row(epoch, "", TRAINING_LOSS, loss, "") for epoch, loss in enumerate(losses)]
            return Record({"arm": f"CIFAR-10, {method}"}, rows)

        return Table([record("SGD", [2.0] * 20), record("scale-amended", [1.0] * lower + [3.0] * (20 - lower))])

    assert [fig1.lower_loss.check(table(lower)).verdict for lower in (20, 18, 17)] == [
        "holds",
        "holds",
        "does not hold",
    ]


def test_figure_2_shows_the_runs_of_figure_1_and_more_of_them() -> None:
    ours, theirs = ({cell.key for cell in each.EXPERIMENT.cells("paper")} for each in (fig2, fig1))
    assert len(ours & theirs) == 2
    assert len(ours) == 6


def test_several_runs_are_judged_from_two_of_each_method_on() -> None:
    rows = [Row(1, "", TRAINING_LOSS, 1.0, ""), Row(1, "", TEST_ACCURACY, 0.5, "")]
    better = [Row(1, "", TRAINING_LOSS, 0.5, ""), Row(1, "", TEST_ACCURACY, 0.6, "")]

    def table(seeds: int) -> Table:
        arms = ((fig2.SGD, rows), (fig2.OURS, better))
        return Table([Record({"arm": arm, "seed": seed}, own) for seed in range(seeds) for arm, own in arms])

    for claim in fig2.EXPERIMENT.claims:
        assert [claim.check(table(seeds)).verdict for seeds in (1, 2)] == ["not tested", "holds"]


def test_a_run_that_the_test_images_cannot_tell_from_sgd_is_a_tie() -> None:
    claim = fig2.EXPERIMENT.claims[2]

    def verdict(*amended: float) -> str:
        ends = [(fig2.SGD, [0.7] * len(amended)), (fig2.OURS, amended)]
        return claim.check(
            Table(
                [
                    Record({"arm": arm, "seed": seed}, [Row(1, "", TEST_ACCURACY, accuracy, "")])
                    for arm, own in ends
                    for seed, accuracy in enumerate(own)
                ]
            )
        ).verdict

    assert verdict(0.71, 0.71) == "holds"
    assert verdict(0.703, 0.703) == "holds in part"
    assert verdict(0.703, 0.69) == "does not hold"


def test_the_faster_method_is_the_first_near_the_better_end() -> None:
    def outcome(sgd: list[float], amended: list[float]) -> tuple[str, str]:
        arms = {"CIFAR-10, SGD": sgd, "CIFAR-10, scale-amended": amended}
        rows = {arm: [Row(k, "", TEST_ACCURACY, each, "") for k, each in enumerate(own)] for arm, own in arms.items()}
        result = fig1.faster.check(Table([Record({"arm": arm, "seed": 0}, own) for arm, own in rows.items()]))
        return result.verdict, result.measured

    assert outcome([0.1, 0.5, 0.9], [0.1, 0.895, 0.895]) == ("holds", "CIFAR-10: after 1 epochs, SGD after 2")
    assert outcome([0.1, 0.5, 0.9], [0.8, 0.88, 0.88])[0] == "does not hold"  # it never comes there
    assert outcome([0.1, 0.9, 0.9], [0.1, 0.9, 0.9])[0] == "holds in part"


def test_table_1_is_judged_at_the_rate_it_was_printed_with() -> None:
    claim, prefix = table1.EXPERIMENT.claims[2], "VGG-13, CIFAR-10, "
    assert claim.check(runs({"SGD": 0.7, "scale-amended": 0.8}, prefix)).verdict == "holds in part"  # of eight networks
    both = runs({"SGD": 0.7, "scale-amended": 0.8, table1.PRINTED: 0.6}, prefix)
    assert claim.check(both).verdict == "does not hold"


def test_the_two_printed_rates_are_compared() -> None:
    claim, prefix = table1.EXPERIMENT.claims[4], "VGG-11, CIFAR-10, "
    for large, verdict in ((0.7, "holds"), (0.801, "holds in part"), (0.9, "does not hold"), (None, "holds")):
        assert claim.check(runs({"scale-amended": 0.8, table1.PRINTED: large}, prefix)).verdict == verdict
    assert claim.check(runs({"scale-amended": 0.8}, prefix)).verdict == "not tested"


def test_the_pools_are_judged_when_all_their_rates_have_run() -> None:
    claim, rates = (
        table1.EXPERIMENT.claims[5],
        {"SGD, lr 0.01": 0.5, "SGD, lr 0.05": 0.6, "SGD": 0.7, "SGD, lr 0.2": 0.6},
    )
    assert claim.check(runs(rates, "VGG-11, CIFAR-10, ")).verdict == "not tested"
    for last, verdict in ((None, "holds in part"), (0.8, "does not hold")):  # of three baselines
        assert claim.check(runs(rates | {"SGD, lr 0.5": last}, "VGG-11, CIFAR-10, ")).verdict == verdict
