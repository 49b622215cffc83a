"""The choice of a rate from the ends of short runs."""

from __future__ import annotations

import math

import numpy as np
import pytest

from wellcond.learning_rate.race.horizon import DRIFT, MOST_MOVED, choose, falls, last_loss, last_losses

RATES = [0.01 * 2.4**k for k in range(4)]


def ends(*losses: float, count: int = 20) -> dict[float, list[float]]:
    return {lr: [loss] * count for lr, loss in zip(RATES, losses, strict=True)}


def test_without_a_longer_run_the_lowest_is_taken_where_it_is_clear() -> None:
    choice = choose(ends(9.0, 1.0, 4.0, 16.0))
    assert (choice.lr, choice.low, choice.high) == pytest.approx((RATES[1],) * 3, rel=1e-4)


def test_a_longer_run_gets_a_smaller_rate_but_none_below_those_that_finished() -> None:
    rates = [choose(ends(64.0, 16.0, 4.0, 1.0), times=times).lr for times in (1.0, 4.0, 16.0, 1e6)]
    assert rates == sorted(rates, reverse=True)
    assert rates[1] == pytest.approx(RATES[3] / 4**DRIFT, rel=1e-4)
    assert rates[-1] == pytest.approx(RATES[3] / math.exp(MOST_MOVED), rel=1e-4)
    assert choose(ends(1.0, 4.0, 16.0, 64.0), times=1e6).lr == pytest.approx(RATES[0])
    at_the_edge = choose(ends(1.0, 4.0, 16.0, 64.0), times=2.4 ** (1 / DRIFT))  # 2.4 times lower
    assert (at_the_edge.lr, at_the_edge.is_too_high) == (pytest.approx(RATES[0]), True)
    assert not choose(ends(4.0, 1.0, 4.0, 64.0), times=2.4 ** (1 / DRIFT)).is_too_high  # just there
    assert not choose(ends(1.0, 4.0, 16.0, 64.0), times=1.2).is_too_high  # hardly lower
    assert choose(ends(9.0, 1.0, 4.0, 16.0), times=16.0, drift=0.0).lr == pytest.approx(RATES[1], rel=1e-4)


def test_on_a_plateau_the_middle_to_the_largest_rate_that_is_hardly_worse_counts() -> None:
    """Log-losses count exp(−y/0.1), which is the loss to the power of −10."""
    weights = 1.0, 1.05**-10, 1.1**-10
    mean = (weights[1] + 2 * weights[2]) / sum(weights)
    assert choose(ends(1.0, 1.05, 1.1, 30.0)).lr == pytest.approx(RATES[0] * 2.4 ** ((mean + 2) / 2))


def test_the_own_rate_is_kept_unless_another_is_better_beyond_noise() -> None:
    assert choose(ends(2.0, 1.0, 1.015, 3.0), own=RATES[2]).lr == pytest.approx(RATES[2])
    assert choose(ends(9.0, 1.0, 3.0, 9.0), own=RATES[2]).lr == pytest.approx(RATES[1], rel=1e-4)
    assert choose(ends(2.0, 1.0, 1.015, 3.0), own=0.5).lr != pytest.approx(0.5)  # it was not raced to the end
    clear = ends(9.0, 1.0, 4.0, 16.0)
    assert choose(clear, own=RATES[1], times=1.5).lr == RATES[1]  # not worth a change
    assert choose(clear, own=RATES[1], times=4.0).lr == pytest.approx(RATES[1] / 4**DRIFT, rel=1e-4)
    noise = np.exp(0.8 * np.array([(-1.0) ** np.arange(k, k + 20) for k in range(4)]))  # of every other step
    noisy = {lr: list(np.array(losses) * noise[k]) for k, (lr, losses) in enumerate(ends(2.0, 1.0, 1.3, 3.0).items())}
    assert choose(noisy, own=RATES[2]).lr == pytest.approx(RATES[2])


def test_short_runs_go_below_the_own_rate_only_where_one_of_them_did_better() -> None:
    rising = ends(4.0, 3.5, 3.0, 2.5)
    assert choose(rising, own=RATES[2], times=30.0).lr < 0.7 * RATES[2]
    short = choose(rising, own=RATES[2], times=30.0, is_short=True)
    assert (short.lr, short.low, short.high) == (RATES[2], pytest.approx(RATES[2]), pytest.approx(RATES[2]))
    assert choose(ends(1.0, 3.5, 3.0, 2.5), own=RATES[2], times=30.0, is_short=True).lr == pytest.approx(RATES[0])


def test_losses_next_to_zero_are_not_noise() -> None:
    """Some batches are fitted almost perfectly: their logarithms differ widely, and say little of the mean."""
    tiny = np.exp(np.random.default_rng(0).uniform(-9.0, 0.0, 20))
    losses = ends(1.0, 1.0, 1.0, 1.0) | {RATES[3]: list(0.01 * tiny)}
    assert choose(losses, own=RATES[0]).lr == pytest.approx(RATES[3], rel=1e-4)


def test_where_the_race_shows_no_difference_at_all_the_own_rate_is_kept() -> None:
    alike = ends(1.0, 1.005, 1.01, 1.015)
    assert choose(alike, own=RATES[3], times=16.0).lr == pytest.approx(RATES[3])
    assert choose(alike, times=16.0).lr < RATES[2]


def test_noise_that_all_runs_share_hides_no_difference() -> None:
    batch = np.exp(np.random.default_rng(0).standard_normal(20))
    shared = {lr: list(np.array(losses) * batch) for lr, losses in ends(9.0, 1.0, 3.0, 9.0).items()}
    assert choose(shared, own=RATES[2]).lr == pytest.approx(RATES[1], rel=1e-4)


def test_losses_below_zero_are_raised_together() -> None:
    assert choose(ends(-1.0, -3.0, -2.0, 5.0)).lr == pytest.approx(RATES[1], rel=1e-3)
    assert choose(ends(0.0, 0.0, 0.0, 0.0)).lr > 0


def test_the_last_loss_is_a_mean_of_a_third() -> None:
    losses = [9.0, 9.0, 9.0, 9.0, 9.0, 9.0, 1.0, 2.0, 3.0]
    assert last_loss(losses) == pytest.approx(2.0)
    assert list(last_losses(losses)) == [1.0, 2.0, 3.0]
    assert last_loss([]) == math.inf


@pytest.mark.parametrize("noise", [0.0, 0.3])
def test_a_fall_is_told_from_noise(noise: float) -> None:
    drawn = 1 + noise * np.random.default_rng(1).standard_normal(90)
    assert not falls(list(drawn))
    assert falls(list(drawn * np.linspace(1.0, 0.2, 90)))
    assert falls([2.5, 2.35, *(2.3 + 0.01 * drawn)])  # at once
