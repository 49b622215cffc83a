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
    SHIFT_COSINE,
    TEST_ACCURACY,
    TRAINING_LOSS,
)
from wellcond_papers.experiments.catalog import experiment
from wellcond_papers.experiments.claims import Claim
from wellcond_papers.experiments.table import Record, Table
from wellcond_papers.papers.santurkar2018 import fig6, fig8, fig14
from wellcond_papers.papers.santurkar2018.drawing import draw_distributions, draw_landscape, draw_training
from wellcond_papers.papers.santurkar2018.judging import accuracies, as_low_as, compared, lower_loss, smoother
from wellcond_papers.papers.santurkar2018.probes import QUANTILES, WALKED
from wellcond_papers.papers.santurkar2018.settings import arms_of, at_scale


def run(network: str, norm: str, rows: list[Row], seed: int = 0) -> Record:
    [(arm, settings)] = arms_of([network], [norm]).items()
    own = at_scale("smoke", {arm: settings})["arms"][arm]
    return Record({**own, **settings, "arm": arm, "seed": seed}, rows)


def ended(network: str, norm: str, loss: float, seed: int = 0) -> Record:
    return run(network, norm, [Row(0, "", TRAINING_LOSS, 10.0, ""), Row(None, "", FINAL_LOSS, loss, "")], seed)


def walked(norm: str, width: float) -> Record:
    values = {**dict.fromkeys(WALKED, 1.0), "loss_greatest": 1 + width, "gradient_change_greatest": 1 + width}
    values["beta"] = width
    rows = [Row(step, "", name, value, "") for step in (0, 5) for name, value in values.items()]
    return run("DLN", norm, [*rows, Row(0, "", TRAINING_LOSS, 1.0, "")])


def verdict(claim: Claim, *records: Record) -> str:
    return claim.check(Table(list(records))).verdict


@pytest.mark.parametrize("claim", smoother(["BatchNorm"]))
def test_a_smoother_landscape_has_narrower_ribbons_and_a_smaller_beta(claim: Claim) -> None:
    assert verdict(claim, walked("standard", 2.0), walked("BatchNorm", 1.0)) == "holds"
    assert verdict(claim, walked("standard", 1.0), walked("BatchNorm", 2.0)) == "does not hold"
    assert verdict(claim, walked("standard", 1.0)) == "not tested"


def test_a_diverged_run_has_no_lower_loss() -> None:
    diverged = run("VGG", "BatchNorm", [Row(None, "", DIVERGED_AT, 3.0, "steps")])
    assert verdict(lower_loss(["BatchNorm"]), ended("VGG", "standard", 9.0), diverged) == "does not hold"
    assert verdict(lower_loss(["BatchNorm"]), ended("VGG", "standard", 9.0), ended("VGG", "BatchNorm", 8.0)) == "holds"


def test_norms_are_compared_seed_by_seed() -> None:
    runs = [ended("DLN", "standard", loss, seed) for seed, loss in enumerate((5.0, 1.0))]
    runs += [ended("DLN", "ℓ1", loss, seed) for seed, loss in enumerate((4.0, 2.0))]
    outcome = lower_loss(["ℓ1"]).check(Table(runs))
    assert outcome.verdict == "does not hold"
    assert outcome.measured == "ℓ1: at 1 of 2 seeds, median 3 against 3"


def test_runs_are_comparable_within_a_tenth_of_what_training_took_off() -> None:
    claim = as_low_as(["ℓ∞"])
    batchnorm = ended("VGG", "BatchNorm", 2.0)  # from 10, so a tenth is 0.8
    assert verdict(claim, batchnorm, ended("VGG", "ℓ∞", 2.7)) == "holds"
    assert verdict(claim, batchnorm, ended("VGG", "ℓ∞", 2.9)) == "does not hold"


def test_accuracies_are_those_of_the_vgg() -> None:
    shares = {norm: run("VGG", norm, [Row(9, "", TEST_ACCURACY, share, "")]) for norm, share in
              (("standard", 0.80), ("BatchNorm", 0.83))}  # fmt: skip
    outcome = accuracies().check(Table(list(shares.values())))
    assert (outcome.verdict, outcome.measured) == ("holds", "83.0 % against 80.0 %")
    assert verdict(accuracies(), shares["standard"]) == "not tested"


def test_a_much_better_cosine_with_batchnorm_contradicts_the_source() -> None:
    def turned(norm: str, cosine: float) -> Record:
        return run("VGG", norm, [Row(0, "conv2", SHIFT_COSINE, cosine, "")])

    assert verdict(fig6.turns, turned("standard", 0.8), turned("BatchNorm", 0.84)) == "holds"
    assert verdict(fig6.turns, turned("standard", 0.8), turned("BatchNorm", 0.9)) == "does not hold"


def seen(network: str, norm: str, moves: float, grows: float = 1.0) -> Record:
    rows = []
    for step, place in ((0, 0.0), (5, moves)):
        variance = grows if step else 1.0
        rows += [Row(step, "a", ACTIVATION_MEAN, place, ""), Row(step, "a", ACTIVATION_VARIANCE, variance, "")]
        rows += [Row(step, "a", name, place + level, "") for name, level in QUANTILES.items()]
    return run(network, norm, rows)


def test_the_drift_of_a_distribution_that_moves_is_its_way_in_deviations() -> None:
    assert fig14.drift(seen("VGG", "ℓ1", 0.5), "a") == pytest.approx(0.5)
    still, moving = seen("VGG", "standard", 0.1), seen("VGG", "ℓ1", 0.5)
    assert verdict(fig14.drifts_more, still, moving) == "holds"


def test_a_steady_variance_covers_a_small_factor() -> None:
    assert verdict(fig8.is_steady, seen("DLN", "standard", 0, 9.0), seen("DLN", "BatchNorm", 0, 2.0)) == "holds"
    assert verdict(fig8.is_centered, seen("DLN", "BatchNorm", 0.5)) == "holds"
    assert verdict(fig8.is_centered, seen("DLN", "BatchNorm", 1.5)) == "does not hold"


def test_numbers_are_counted_by_arm() -> None:
    cases = [("a", 1.0, 2.0), ("a", 3.0, 2.0), ("b", 0.0, 1.0)]
    outcome = compared(cases, operator.lt, "looks")
    assert outcome.verdict == "holds in part"
    assert outcome.measured == "a: at 1 of 2 looks, median 2 against 2; b: at 1 of 1, 0 against 1"


@pytest.mark.parametrize("records", [[walked("standard", 1.0)], [ended("VGG", "BatchNorm", 2.0)]])
def test_pictures_are_drawn_of_whatever_there_is(records: list[Record]) -> None:
    for draw in (draw_landscape, draw_training, draw_distributions):
        assert draw(Table(records)).axes is not None


@pytest.mark.parametrize("figure", range(6, 15))
def test_the_settings_of_the_paper_are_those_of_the_source(figure: int) -> None:
    source: dict[str, dict[str, Any]] = {
        "DLN": {"layers": 25, "width": 10, "examples": 1000, "lr": 1e-6, "steps": 10_000},
        "VGG": {"data": "cifar10", "batch": 128, "lr": 0.1, "steps": 15_000, "augment": []},
    }
    for cell in experiment(f"santurkar2018-fig{figure}").cells("paper"):
        expected = source[cell.settings["network"]]
        assert {name: cell.settings[name] for name in expected} == expected
