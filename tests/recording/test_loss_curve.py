"""Rises of a loss: when they began, and how often noise alone is taken for one."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from made_up_runs import learning

from wellcond.recording.history import Series
from wellcond.recording.judging.loss_curve import LossCurve

Noise = Callable[[np.random.Generator, int], np.ndarray]
RUNS, STEPS, JUDGMENTS = 40, 1500, 15
NOISES: dict[str, Noise] = {
    "normal": lambda rng, n: 1 + 0.1 * rng.standard_normal(n),
    "exponential": lambda rng, n: rng.exponential(1.0, n),
    "lognormal": lambda rng, n: np.exp(rng.standard_normal(n)),
    "Student with 1.5 degrees of freedom": lambda rng, n: 1 + np.abs(rng.standard_t(1.5, n)),
    "correlated over 20 steps": lambda rng, n: 1 + 0.1 * np.convolve(rng.standard_normal(n + 19), np.ones(20), "valid"),
    "falling": lambda rng, n: 2.0 / (1 + np.arange(n) / 50) + 0.1 * rng.standard_normal(n),
    "around zero": lambda rng, n: rng.standard_normal(n),
    "epochs of 40 steps in a fixed order": lambda rng, n: (
        1 + 0.3 * np.sin(2 * np.pi * np.arange(n) / 40) + 0.1 * rng.standard_normal(n)
    ),
}


def curve(values: np.ndarray) -> LossCurve:
    return LossCurve.of(Series(np.arange(1, len(values) + 1), values))


@pytest.mark.slow
@pytest.mark.parametrize("name", NOISES)
def test_noise_is_not_taken_for_a_rise(name: str) -> None:
    """Of 40 runs that are judged 15 times each, 2 at most, and none for so long that a rule would speak.

    Of 200 runs each there were 0 or 1, also with heavy tails; of noise that is correlated over 20 steps there were 24,
    all but one of which were over after some tens of steps.
    """
    rises, lasting = 0, 0
    for seed in range(RUNS):
        values = NOISES[name](np.random.default_rng(seed), STEPS)
        ends = range(STEPS // JUDGMENTS, STEPS + 1, STEPS // JUDGMENTS)
        every = [rise for end in ends if (rise := curve(values[:end]).rise) is not None]
        rises += bool(every)
        lasting += any(rise.is_lasting and rise.lost > (0.1 if rise.had_learned else 3) for rise in every)
    assert lasting == 0
    assert rises <= (8 if "correlated" in name else 2)


@pytest.mark.parametrize("step", [120, 300, 700, 1500])
@pytest.mark.parametrize("noise", [0.0, 0.05, 0.2])
def test_a_jump_is_dated_to_the_step(step: int, noise: float) -> None:
    values = learning(noise=noise)
    values[step - 1 :] += 1.5
    rise = curve(values[: step + 150]).rise
    assert rise is not None
    assert abs(rise.step - step) <= 2 + 20 * noise
    assert rise.is_abrupt
    assert rise.level == pytest.approx(values[step + 20 : step + 150].mean(), rel=0.2)


@pytest.mark.parametrize("step", [300, 1000])
def test_a_rise_that_grows_is_dated_to_its_beginning(step: int) -> None:
    """It doubles every 20 steps from a hundredth of the loss: a tenth of its fall is reached after 90 steps or less."""
    values = learning(2000)
    values[step - 1 :] += 0.02 * 2 ** (np.arange(2001 - step) / 20)
    rise = curve(values[: step + 250]).rise
    assert rise is not None
    assert 0 <= rise.step - step <= 100
    assert not rise.is_abrupt


@pytest.mark.parametrize("seed", range(5))
def test_a_rise_after_a_loss_without_a_trend_is_not_dated_to_its_start(seed: int) -> None:
    """The lowest level is one of many by chance, and the others lie above it from the first step on."""
    values = 0.3 * np.random.default_rng(seed).standard_normal(2000)
    values[1000:] += np.clip(np.arange(1000) / 60, 0, 1.5)
    rise = curve(values).rise
    assert rise is not None
    assert rise.step == pytest.approx(1000, rel=0.05)


def test_a_swing_that_comes_again_is_no_rise() -> None:
    t = np.arange(1200)
    swings = 1 + 0.5 * np.sin(2 * np.pi * t / 300) + 0.05 * np.random.default_rng(0).standard_normal(1200)
    assert curve(np.concatenate((learning(300), swings))).rise is None


def test_the_start_of_a_loss_that_blows_up_is_its_first_value() -> None:
    values = np.concatenate(([2.3], np.full(20, 1e6), np.full(200, 2.4)))
    assert curve(values).start == pytest.approx(2.4)


def test_what_has_learned_and_what_trains() -> None:
    values = learning()
    assert curve(values).has_learned
    assert curve(values).trains
    lost = np.concatenate((values, np.full(400, 2.0)))
    assert curve(lost).has_learned
    assert not curve(lost).trains
    assert not curve(np.full(500, 2.3)).has_learned


def test_a_jump_between_two_samples_is_dated_by_the_loss() -> None:
    values = learning()
    values[699:] += 1
    assert curve(values).jump_between(600, 800) == 700
    assert curve(learning()).jump_between(600, 800) is None


def test_losses_that_are_not_finite_are_left_out() -> None:
    values = learning()
    values[500:] = np.nan
    assert len(curve(values).series) == 500
    assert curve(np.array([])).rise is None
