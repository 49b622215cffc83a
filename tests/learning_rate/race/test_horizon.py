"""The choice of a rate from short runs, against runs made by the law itself."""

from __future__ import annotations

import math

import numpy as np
import pytest

from wellcond.learning_rate.race.horizon import choose, last_loss, raised

RATES = [0.01 * 2.4**k for k in range(3)]


def runs(of: object, steps: int = 120) -> list[list[float]]:
    assert callable(of)
    return [[float(of(lr, t)) for t in range(1, steps + 1)] for lr in RATES]


def test_a_parabola_in_the_logarithm_of_the_rate_is_lowest_at_its_vertex() -> None:
    choice = choose(RATES, runs(lambda lr, _t: math.exp((math.log(lr) - math.log(0.03)) ** 2 / 4)), steps=120)
    assert choice.lr == pytest.approx(0.03, rel=1e-6)
    assert choice.low < choice.lr < choice.high


def test_the_vertex_is_searched_only_near_the_rates() -> None:
    choice = choose(RATES, runs(lambda lr, _t: math.exp((math.log(lr) - math.log(10.0)) ** 2 / 9)), steps=120)
    assert RATES[-1] * 0.999 <= choice.lr <= RATES[-1] * 2.4**0.25 * 1.001


@pytest.mark.parametrize("floor", [0.0, 0.5])
def test_with_a_noise_floor_the_rate_falls_with_the_length(floor: float) -> None:
    """L = (ηt)^−½ + 8η + L∞ is lowest at η = (2·8·√t)^−⅔."""
    law = runs(lambda lr, t: (lr * t) ** -0.5 + 8 * lr + floor)
    now, later = (choose(RATES, law, steps).lr for steps in (120, 1920))
    expected = 16 ** (-1 / 3)
    assert later < now
    # a third of the choice is the mean drift t^−0.3, and the mean over a run's last third is not its end
    assert math.log(later / now) == pytest.approx(math.log(expected), abs=0.35)


def test_on_a_plateau_the_rate_lies_between_lowest_loss_and_largest_rate() -> None:
    choice = choose(RATES, [[1.0] * 120, [1.02] * 120, [1.03] * 120], steps=120)
    assert choice.lr == pytest.approx(math.sqrt(RATES[0] * RATES[2]), rel=1e-6)


def test_a_run_that_diverged_counts_as_bad_and_not_by_how_much() -> None:
    good = runs(lambda lr, _t: 1 + lr)
    assert choose(RATES, [*good[:2], [9.0] * 5], 120).lr == choose(RATES, [*good[:2], [1e30] * 7], 120).lr


def test_losses_below_zero_are_raised_together() -> None:
    assert raised([[1.0], [2.0]]) == [[1.0], [2.0]]
    lifted = raised([[-3.0, 1.0], [7.0, math.inf]])
    assert min(lifted[0]) > 0
    assert np.diff(lifted[0]) == pytest.approx(4.0)
    assert lifted[1][1] == math.inf


def test_the_last_loss_is_a_mean_and_infinite_where_a_run_ended_before() -> None:
    assert last_loss([9.0, 9.0, 9.0, 9.0, 9.0, 9.0, 1.0, 2.0, 3.0], 9) == pytest.approx(2.0)
    assert last_loss([1.0], 2) == math.inf
