"""Races on laws of the learning rate: no answer lies outside of what the race has seen."""

from __future__ import annotations

import math
from typing import cast

import numpy as np
import pytest
from simulated import Law, Simulated, optimizer

from wellcond.learning_rate.race.outcome import ALL_UP, NO_FALL, Race, went_up
from wellcond.learning_rate.race.race import RATIO, race
from wellcond.results.run import Run
from wellcond.training.copy_trainer import CopyTrainer


def law(edge: float, best: float, floor: float = 0.1) -> Law:
    """A loss that falls with ηt to a floor that grows with η, and that goes up from an edge on."""

    def loss(lr: float, t: int) -> float:
        if lr > edge:
            return min(2.0 * (1.0 + lr / edge) ** min(t, 400), 1e30) if lr < 30 * edge else math.inf
        return 2.0 / (1.0 + lr * t / (10 * best)) + floor * (1 + (lr / best) ** 0.7)

    return loss


def raced(of: Law, own: float | None, steps: int = 2000, max_steps: int = 385, **settings: object) -> Race:
    noise, seed = cast(float, settings.pop("noise", 0.1)), cast(int, settings.pop("seed", 0))
    trainer = Simulated(of, None if own is None else optimizer(own), noise, seed)
    return race(cast(CopyTrainer, trainer), steps=steps, max_steps=max_steps, **settings)  # type: ignore[arg-type]


def assert_supported(outcome: Race) -> None:
    """The rate lies between rates whose runs finished, below every one above the best whose loss went up."""
    if outcome.choice is None:
        assert math.isnan(outcome.lr)
        return
    tolerance = 1 + 1e-9
    assert min(outcome.finished) / tolerance <= outcome.low <= outcome.lr * tolerance
    assert outcome.lr / tolerance <= outcome.high <= max(outcome.finished) * tolerance
    assert outcome.lr < outcome.smallest_diverged
    assert not any(went_up(run) for run in outcome.finished.values())


@pytest.mark.slow
def test_no_answer_lies_outside_of_what_its_race_supports() -> None:
    generator = np.random.default_rng(0)
    for seed in range(300):
        edge = 10 ** generator.uniform(-4, 2)
        of = law(edge, edge / 10 ** generator.uniform(0.1, 3), 10 ** generator.uniform(-3, 0))
        own = edge * 10 ** generator.uniform(-3, 1.5)
        steps = int(10 ** generator.uniform(1, 5))
        outcome = raced(of, own, steps, center=edge / 10 ** generator.uniform(-1, 2), noise=0.3, seed=seed)
        assert_supported(outcome)
        assert own in outcome.runs
        assert outcome.steps_taken <= 385
        if own <= edge and outcome.choice is not None:
            assert own in outcome.finished


@pytest.mark.parametrize("own", [1e-5, 0.003, 0.03, 3.0])
def test_the_best_is_found_wherever_the_script_is(own: float) -> None:
    outcome = raced(law(edge=1.0, best=0.03), own, steps=400, center=None if own > 1e-4 else 0.1)
    assert 0.01 < outcome.lr < 0.4


def test_an_own_rate_that_is_as_good_is_kept() -> None:
    own = raced(law(1.0, 0.03), None, center=0.05).lr
    assert raced(law(1.0, 0.03), own).lr == own


def test_a_longer_plan_gets_a_smaller_rate_within_the_race() -> None:
    rates = [raced(law(1.0, 0.03), 0.1, steps=steps).lr for steps in (100, 1000, 10_000, 1_000_000)]
    assert rates == sorted(rates, reverse=True)
    assert rates[0] / rates[-1] <= RATIO**2 * 1.1


def test_where_every_loss_goes_up_or_none_falls_no_rate_trains() -> None:
    up = raced(lambda _lr, t: 2.0 * 1.2 ** min(t, 500), 0.1)
    flat = raced(lambda _lr, _t: 2.0, 0.1, noise=0.2)
    assert (up.why_none, flat.why_none) == (ALL_UP, NO_FALL)
    assert math.isnan(up.lr)
    assert math.isnan(flat.lr)
    assert up.smallest_diverged == min(up.runs)


def test_a_loss_that_went_up_is_told_from_harder_batches() -> None:
    grown = [4.0 * 1.5**t for t in range(12)]
    easy_first = [0.5, 4.0, 1.0, 3.0, 0.4, 2.0, 3.5, 0.8, 2.5, 0.3, 3.0, 1.5]
    assert not went_up(Run(easy_first))
    assert went_up(Run([4.0, *[9.0 + 0.1 * (-1) ** t for t in range(11)]]))
    assert went_up(Run([0.5, 1e3, 1e10, 1e9, 1e10, 3e8, 1e7, 1e10, 1e8]))  # it shot up, and varies since
    runs = {0.1: Run([4.0, 3.0, 5.0] * 4), 1.0: Run(grown), 2.0: Run([4.0], diverged_at=2)}
    outcome = Race(runs, None, 9, 0.1, 7)
    assert outcome.largest_trained == 0.1
    assert outcome.smallest_diverged == 1.0
    assert list(outcome.finished) == [0.1]
