"""The claims of santurkar2018 on made-up runs, and pictures where runs are missing."""

from __future__ import annotations

import operator
from typing import Any

import pytest

from wellcond.results import Row
from wellcond.results.quantities import (
    ACTIVATION_MEAN,
    ACTIVATION_VARIANCE,
    DIVERGED_AT,
    FINAL_LOSS,
    GRADIENT_NORM,
    SHIFT_COSINE,
    TEST_ACCURACY,
    TRAINING_LOSS,
)
from wellcond_papers.experiments.catalog import experiment
from wellcond_papers.experiments.claims import Claim
from wellcond_papers.experiments.table import Record, Table
from wellcond_papers.papers.santurkar2018 import fig6, fig8, fig9, fig10, fig13, fig14
from wellcond_papers.papers.santurkar2018.comparing import compared, training_looks
from wellcond_papers.papers.santurkar2018.drawing import draw_distributions, draw_training
from wellcond_papers.papers.santurkar2018.judging import (
    as_low_as,
    lower_loss,
    more_accurate,
    smoother,
    smoother_everywhere,
)
from wellcond_papers.papers.santurkar2018.probes import (
    FARTHER,
    GAIN,
    GRADIENT_CHANGE,
    QUANTILES,
    SHIFT,
    WALKED,
)
from wellcond_papers.papers.santurkar2018.settings import arms_of, at_scale


def run(network: str, norm: str, rows: list[Row], seed: int = 0) -> Record:
    [(arm, settings)] = arms_of([network], [norm]).items()
    own = at_scale("smoke", {arm: settings})["arms"][arm]
    return Record({**own, **settings, "arm": arm, "seed": seed}, rows)


def ended(network: str, norm: str, loss: float, seed: int = 0) -> Record:
    return run(network, norm, [Row(0, "", TRAINING_LOSS, 10.0, ""), Row(None, "", FINAL_LOSS, loss, "")], seed)


LOOKS, STOPPED = range(7), 6
TRAINS = [Row(step, "", TRAINING_LOSS, 10.0 - 9 * step / STOPPED, "") for step in LOOKS]
"""The loss of a run that trains at steps 0 to 5, and has stopped at step 6."""


def walked(norm: str, width: float, place: str = "") -> Record:
    """A run with this width of its ribbons while it trains, and a tenth of it afterwards."""
    rows = []
    for step in LOOKS:
        own = width if step < STOPPED else width / 10
        values = {**dict.fromkeys(WALKED, 1.0), "loss_greatest": 1 + own, "gradient_change_greatest": 1 + own}
        rows += [Row(step, place, name, value, "") for name, value in {**values, "beta": own}.items()]
    return run("DLN", norm, [*rows, *TRAINS])


def verdict(claim: Claim, *records: Record) -> str:
    return claim.check(Table(list(records))).verdict


@pytest.mark.parametrize("claim", smoother(["BatchNorm"], "clear", by=1.5))
def test_a_smoother_landscape_has_narrower_ribbons_and_a_smaller_beta(claim: Claim) -> None:
    assert verdict(claim, walked("standard", 2.0), walked("BatchNorm", 1.0)) == "holds"
    assert verdict(claim, walked("standard", 1.0), walked("BatchNorm", 2.0)) == "does not hold"
    assert verdict(claim, walked("standard", 1.0), walked("BatchNorm", 0.7)) == "holds in part"
    assert verdict(claim, walked("standard", 1.0)) == "not tested"


def test_a_range_that_is_rounded_to_zero_is_a_small_one() -> None:
    plain, flat = walked("standard", 1.0), walked("BatchNorm", 0.0)
    for claim in smoother(["BatchNorm"], "clear", by=1.5):
        assert claim.check(Table([plain, flat])).measured.startswith("BatchNorm: 1e-06 times, smaller at 6 of 6 looks.")


def test_a_network_trains_while_a_hundredth_of_its_decrease_is_ahead() -> None:
    losses = {0: 100.0, 5: 1.5, 10: 2.5, 15: 1.9, 20: 1.0}  # a hundredth of the decrease is 0.99
    rows = [Row(step, "", TRAINING_LOSS, loss, "") for step, loss in losses.items()]
    assert training_looks(run("DLN", "standard", rows)) == [0, 5, 10]


def test_looks_after_one_of_both_has_stopped_count_only_for_our_own_claim() -> None:
    rough = walked("BatchNorm", 1.0)
    late = [row._replace(value=50.0) if row.step == STOPPED and row.quantity in WALKED else row for row in rough.rows]
    runs = walked("standard", 2.0), run("DLN", "BatchNorm", late)
    outcome = smoother(["BatchNorm"], "clear", by=1.5)[2].check(Table(runs))
    assert outcome.verdict == "holds"
    assert outcome.measured == (
        "BatchNorm: 0.5 times, smaller at 6 of 6 looks. "
        "Over the whole training it holds: BatchNorm: 0.5 times, smaller at 6 of 7 looks. "
        "With 0.1 %, 3 %, 10 % ahead: holds, holds, holds"
    )
    everywhere = smoother_everywhere(["BatchNorm"])
    assert everywhere.is_ours
    assert verdict(everywhere, walked("standard", 2.0), rough) == "holds"
    assert verdict(everywhere, *runs) == "holds in part"


def test_larger_distances_are_judged_by_the_second_walk() -> None:
    plain = walked("standard", 2.0, FARTHER)
    assert verdict(fig9.is_smoother_farther, plain, walked("BatchNorm", 1.0, FARTHER)) == "holds"
    assert verdict(fig9.is_smoother_farther, plain, walked("BatchNorm", 3.0, FARTHER)) == "does not hold"
    assert verdict(fig9.is_smoother_farther, walked("standard", 2.0), walked("BatchNorm", 1.0)) == "not tested"


def test_a_predictive_gradient_changes_less_while_both_networks_train() -> None:
    def probed(norm: str, error: float, at_the_end: float) -> Record:
        changes = {step: error if step < STOPPED else at_the_end for step in LOOKS}
        rows = [Row(step, "0.5", GRADIENT_CHANGE, change, "") for step, change in changes.items()]
        return run("VGG", norm, [*rows, *(Row(step, "", GRADIENT_NORM, 1.0, "") for step in LOOKS), *TRAINS])

    plain = probed("standard", 1.0, 0.1)
    assert verdict(fig10.is_predictive, plain, probed("BatchNorm", 0.5, 0.5)) == "holds"
    assert verdict(fig10.is_predictive, plain, probed("BatchNorm", 2.0, 0.01)) == "does not hold"


def test_a_diverged_run_has_no_lower_loss() -> None:
    diverged = run("VGG", "BatchNorm", [Row(None, "", DIVERGED_AT, 3.0, "steps")])
    claim, plain = lower_loss(["BatchNorm"], "lower"), ended("VGG", "standard", 9.0)
    assert verdict(claim, plain, diverged) == "does not hold"
    assert verdict(claim, plain, ended("VGG", "BatchNorm", 8.0)) == "holds"


def test_losses_within_a_hundredth_are_a_tie() -> None:
    outcome = lower_loss(["ℓ1"], "lower").check(Table([ended("DLN", "standard", 10.03), ended("DLN", "ℓ1", 10.02)]))
    assert outcome.verdict == "holds in part"
    assert outcome.measured == "ℓ1: at 0 of 1 seeds (1 a tie), median 10.02 against 10.03"


def test_norms_are_compared_seed_by_seed() -> None:
    runs = [ended("DLN", "standard", loss, seed) for seed, loss in enumerate((5.0, 1.0))]
    runs += [ended("DLN", "ℓ1", loss, seed) for seed, loss in enumerate((4.0, 2.0))]
    outcome = lower_loss(["ℓ1"], "lower").check(Table(runs))
    assert outcome.verdict == "does not hold"
    assert outcome.measured == "ℓ1: at 1 of 2 seeds, median 3 against 3"


def test_runs_are_comparable_if_nine_tenths_of_the_gain_of_batchnorm_are_left() -> None:
    others = ended("VGG", "BatchNorm", 2.0), ended("VGG", "standard", 4.0)
    for loss, expected, share in ((1.0, "holds", 150), (2.1, "holds", 95), (2.3, "does not hold", 85)):
        outcome = as_low_as(["ℓ∞"]).check(Table([*others, ended("VGG", "ℓ∞", loss)]))
        assert outcome.verdict == expected
        assert outcome.measured == f"share of the gain, seed by seed: VGG, ℓ∞: {share} %"


def classified(norm: str, share: float, ending: str = "") -> Record:
    record = run("VGG", norm, [Row(9, "", TEST_ACCURACY, share, "")])
    return Record({**record.settings, "arm": record.arm + ending}, record.rows)


def test_a_point_of_test_accuracy_is_a_tie() -> None:
    plain = classified("standard", 0.80)
    for share, expected in ((0.83, "holds"), (0.805, "holds in part"), (0.78, "does not hold")):
        assert verdict(more_accurate(), plain, classified("BatchNorm", share)) == expected
    assert verdict(more_accurate(), plain) == "not tested"


def test_the_accuracies_of_the_source_are_met_to_within_a_point() -> None:
    claim = fig13.accuracies(", augmented", 0.92, 0.88)
    plain, batchnorm = (classified(norm, share, ", augmented") for norm, share in
                        (("standard", 0.875), ("BatchNorm", 0.925)))  # fmt: skip
    assert claim.paper == "92 % with BatchNorm and 88 % without"
    assert verdict(claim, plain, batchnorm) == "holds"
    assert verdict(claim, classified("standard", 0.85, ", augmented"), batchnorm) == "holds in part"
    assert verdict(claim, classified("standard", 0.88), classified("BatchNorm", 0.92)) == "not tested"


def test_a_much_better_cosine_with_batchnorm_contradicts_the_source() -> None:
    def turned(norm: str, cosine: float) -> Record:
        return run("VGG", norm, [Row(0, "conv2", SHIFT_COSINE, cosine, ""), *TRAINS])

    assert verdict(fig6.turns, turned("standard", 0.8), turned("BatchNorm", 0.84)) == "holds"
    assert verdict(fig6.turns, turned("standard", 0.8), turned("BatchNorm", 0.9)) == "does not hold"


def seen(network: str, norm: str, moves: float, grows: float = 1.0) -> Record:
    rows = []
    for step, place in ((0, 0.0), (5, moves)):
        variance = grows if step else 1.0
        rows += [Row(step, "a", ACTIVATION_MEAN, place, ""), Row(step, "a", ACTIVATION_VARIANCE, variance, "")]
        rows += [Row(step, "a", name, place + level, "") for name, level in QUANTILES.items()]
    return run(network, norm, rows)


def test_the_drift_of_a_distribution_is_its_way() -> None:
    assert fig14.drift(seen("VGG", "ℓ1", 0.5, grows=9.0), "a") == pytest.approx(0.5)
    still, moving = (seen("VGG", norm, moves) for norm, moves in (("standard", 0.1), ("ℓ1", 0.5)))
    assert verdict(fig14.drifts_more, still, moving) == "holds"
    assert verdict(fig14.drifts_more, seen("VGG", "standard", 0.6), moving) == "does not hold"


def test_a_steady_variance_covers_a_small_factor() -> None:
    plain, steady = seen("DLN", "standard", 0, 9.0), seen("DLN", "BatchNorm", 0, 1.5)
    assert verdict(fig8.is_steadier, plain, steady) == "holds"
    assert verdict(fig8.is_steady, steady) == "holds"
    assert verdict(fig8.is_steady, seen("DLN", "BatchNorm", 0, 2.5)) == "does not hold"


def test_a_fixed_distribution_has_the_shift_and_the_gain_of_its_norm() -> None:
    def verdict_of(gain: float, shift: float) -> str:
        own = seen("DLN", "BatchNorm", 0.5, 4.0)
        learned = [
            Row(step, "a", name, value, "")
            for step, values in ((0, (1.0, 0.0)), (5, (gain, shift)))
            for name, value in zip((GAIN, SHIFT), values, strict=True)
        ]
        return verdict(fig8.is_fixed, Record(own.settings, [*own.rows, *learned]))

    assert verdict_of(2.0, 0.5) == "holds"
    assert [verdict_of(2.1, 0.5), verdict_of(2.0, 0.6)] == ["holds in part", "holds in part"]
    assert verdict(fig8.is_fixed, seen("DLN", "BatchNorm", 0.0)) == "not tested"


def test_numbers_are_counted_by_arm() -> None:
    cases = [("a", 1.0, 2.0), ("a", 3.0, 2.0), ("b", 0.0, 1.0)]
    outcome = compared(cases, operator.lt, "looks")
    assert outcome.verdict == "holds in part"
    assert outcome.measured == "a: at 1 of 2 looks, median 2 against 2; b: at 1 of 1, 0 against 1"


@pytest.mark.parametrize("records", [[walked("standard", 1.0)], [ended("VGG", "BatchNorm", 2.0)]])
def test_pictures_are_drawn_of_whatever_there_is(records: list[Record]) -> None:
    for draw in (fig9.EXPERIMENT.draw, draw_training, draw_distributions):
        assert draw(Table(records)).axes is not None


@pytest.mark.parametrize("figure", range(6, 15))
def test_the_settings_of_the_paper_are_those_of_the_source(figure: int) -> None:
    source: dict[str, dict[str, Any]] = {
        "DLN": {"layers": 25, "width": 10, "examples": 1000, "lr": 1e-6, "steps": 10_000},
        "VGG": {"data": "cifar10", "batch": 128, "lr": 0.1, "steps": 15_000, "augment": []},
    }
    for cell in experiment(f"santurkar2018-fig{figure}").cells("paper"):
        expected = source[cell.settings["network"]]
        if "augmented" in cell.settings["arm"]:
            expected = {**expected, "augment": ["crop", "flip"]}
        assert {name: cell.settings[name] for name in expected} == expected
