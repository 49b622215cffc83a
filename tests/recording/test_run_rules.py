"""Each rule of a run on made-up numbers: the fault with its layer and step, and what looks like it and is none."""

from __future__ import annotations

import numpy as np
import pytest
from made_up_runs import STEPS, by, evidence, learning, sampled

T = np.arange(1, STEPS + 1)
ONES = np.ones(STEPS)


def layers(quantity: str, **series: np.ndarray) -> dict[tuple[str, str], dict[int, float]]:
    """Samples of a quantity of several layers."""
    return {(quantity, layer): sampled(values) for layer, values in series.items()}


def network(quantity: str, values: np.ndarray) -> dict[tuple[str, str], dict[int, float]]:
    """Samples of a quantity of the whole network."""
    return {(quantity, ""): sampled(values)}


def since(step: int, before: float, after: float) -> np.ndarray:
    """A number that changes at a step."""
    return np.where(step <= T, after, before)


# gradients-not-cleared


def test_gradients_that_are_not_cleared() -> None:
    (finding,) = by("gradients-not-cleared", evidence(learning(), network("uncleared_gradient", since(700, 0, 5.0))))
    assert finding.severity == "severe"
    assert finding.step == pytest.approx(700, rel=0.02)
    assert finding.basis == "proven"


def test_gradients_that_are_left_over_once() -> None:
    assert by("gradients-not-cleared", evidence(learning(), network("uncleared_gradient", 0 * ONES))) == []
    assert by("gradients-not-cleared", evidence(learning(), network("uncleared_gradient", since(2000, 0, 1)))) == []


# overfitting


def validation(values: np.ndarray) -> dict[tuple[str, str], dict[int, float]]:
    return {("validation_loss", ""): {step: float(values[step - 1]) for step in range(50, STEPS + 1, 50)}}


def test_a_validation_loss_that_rises() -> None:
    noisy = 0.02 * np.random.default_rng(1).standard_normal(STEPS)
    rising = np.where(T < 800, 0.5 + 1.8 * np.exp(-T / 150), 0.5 + (T - 800) / 2000) + noisy
    falling = learning() * np.exp(-T / 1500)
    (finding,) = by("overfitting", evidence(falling, validation(rising)))
    assert finding.step == pytest.approx(800, rel=0.1)
    assert by("overfitting", evidence(falling, validation(0.5 + 1.8 * np.exp(-T / 150) + noisy))) == []


def test_a_validation_loss_that_rises_with_the_training_loss_is_no_overfitting() -> None:
    both = np.where(T < 800, 0.5 + 1.8 * np.exp(-T / 150), 0.5 + (T - 800) / 1000)
    assert by("overfitting", evidence(both, validation(both))) == []


# diverging, learning-rate-too-high, data-changed, weight-decay-dominates: rises and their causes


def rising(step: int = 1000, per_step: float = 0.01) -> np.ndarray:
    return learning() + np.maximum(0, T - step) * per_step


def test_a_loss_that_rises_beyond_its_start() -> None:
    grown = since(1000, 1.0, 8.0)
    (finding,) = by("diverging", evidence(rising(), network("gradient_norm", grown)))
    assert finding.severity == "severe"
    assert finding.step == pytest.approx(1000, rel=0.05)


def test_a_loss_that_rises_while_gradients_do_not_grow_is_a_note() -> None:
    (finding,) = by("diverging", evidence(rising(), network("gradient_norm", ONES)))
    assert finding.severity == "note"


def test_an_explosion_is_severe_at_once() -> None:
    losses = learning()[:320]
    losses[305:] *= 10.0 ** np.arange(15)
    (finding,) = by("diverging", evidence(losses))
    assert finding.severity == "severe"
    assert finding.step == pytest.approx(306, abs=4)


def test_a_loss_that_jumps_at_a_restart_and_falls_again_is_healthy() -> None:
    rate = {("lr", ""): {step: float(0.5 + 0.5 * np.cos(np.pi * (step % 500) / 500)) for step in range(1, 2001)}}
    losses = 0.3 + 2 * np.exp(-T / 150) + 0.6 * np.exp(-(T % 500) / 60) * (T > 500)
    for end in (520, 560, 700, 1010, 1060, 1300, 2000):
        run = evidence(losses[:end], rate)
        assert by("diverging", run) == by("learning-rate-too-high", run) == by("data-changed", run) == []


def test_a_rate_that_is_raised_and_ruins_everything() -> None:
    losses = np.where(T < 900, learning(), 2.3 + 0.05 * np.random.default_rng(2).standard_normal(STEPS))
    rate = {("lr", ""): {1: 0.1, 895: 10.0}}
    (finding,) = by("learning-rate-too-high", evidence(losses, rate))
    assert finding.severity == "severe"
    assert finding.step == pytest.approx(900, rel=0.01)
    assert by("data-changed", evidence(losses, rate)) == []


def test_a_rate_above_its_limit_is_no_fault_while_the_loss_falls() -> None:
    rates = {("lr", ""): {1: 0.1}, ("max_lr", ""): dict.fromkeys(range(100, 2001, 100), 0.02)}
    assert by("learning-rate-too-high", evidence(learning(), rates)) == []


def test_a_rate_above_its_limit_at_which_the_loss_rises() -> None:
    limit = {step: 0.2 if step < 800 else 0.05 for step in range(50, 2001, 50)}
    numbers = {("lr", ""): {1: 0.1}, ("max_lr", ""): limit} | network("gradient_norm", since(1000, 1, 8))
    (finding,) = by("learning-rate-too-high", evidence(rising(per_step=0.002), numbers))
    assert finding.evidence["above it since step"] == pytest.approx(800, abs=50)
    assert finding.step == pytest.approx(1000, rel=0.1)


def test_steps_that_change_everything_and_learn_nothing() -> None:
    stuck = 2.3 + 0.05 * np.random.default_rng(0).standard_normal(STEPS)
    (finding,) = by("learning-rate-too-high", evidence(stuck, layers("update_ratio", fc1=0.5 * ONES, fc2=0.4 * ONES)))
    assert (finding.severity, finding.step) == ("severe", 1)


def test_noise_that_enters_the_labels() -> None:
    losses = learning() + since(1000, 0, 0.9)
    grown = since(1000, 1.0, 3.0)
    numbers = layers("gradient_norm", fc1=grown, fc2=grown) | layers("weight_norm", fc1=ONES, fc2=ONES)
    (finding,) = by("data-changed", evidence(losses, numbers))
    assert finding.step == pytest.approx(1000, abs=2)
    only_one = layers("gradient_norm", fc1=grown, fc2=ONES)
    assert by("data-changed", evidence(losses, only_one)) == []


def test_harder_data_that_are_learned_are_no_fault() -> None:
    losses = learning() + np.where(T >= 1000, 1.5 * np.exp(-(T - 1000) / 30), 0)
    for end in (1020, 1100, 1200, 2000):
        assert by("data-changed", evidence(losses[:end])) == []
    assert by("loss-spike", evidence(losses)) == []


def test_weights_that_shrink_while_the_loss_rises() -> None:
    shrinking = np.where(T < 1000, 5.0, 5.0 * np.exp(-(T - 1000) / 400))
    numbers = layers("weight_norm", fc1=shrinking, fc2=shrinking, norm=ONES)
    (finding,) = by("weight-decay-dominates", evidence(rising(per_step=0.002), numbers))
    assert finding.step == pytest.approx(1000, rel=0.05)
    assert by("weight-decay-dominates", evidence(learning(), numbers)) == []
    assert by("weight-decay-dominates", evidence(rising(), layers("weight_norm", fc1=ONES, fc2=ONES))) == []


# loss-spike


def test_a_bad_batch() -> None:
    losses = learning()
    losses[699] = 9.0
    jump = {step: 50.0 if step == 700 else 1.0 for step in range(20, 2001, 20)}
    (finding,) = by("loss-spike", evidence(losses, {("gradient_norm", "fc2"): jump}))
    assert finding.step == 700
    assert finding.until is not None
    assert finding.until <= 702
    assert "fc2" in str(finding.evidence["gradients that grew most"])


def test_a_second_spike_that_is_no_higher_is_a_note() -> None:
    losses = learning()
    losses[699] = losses[1499] = 9.0
    assert [each.severity for each in by("loss-spike", evidence(losses))] == ["warning", "note"]


@pytest.mark.slow
def test_spikes_of_heavy_tailed_noise_are_rare() -> None:
    """Less than one warning in ten runs of 2,000 steps of exponential, lognormal and squared normal noise."""
    warnings = 0
    for seed in range(20):
        rng = np.random.default_rng(seed)
        for noise in (rng.exponential(1.0, STEPS), np.exp(rng.standard_normal(STEPS)), rng.standard_normal(STEPS) ** 2):
            warnings += any(each.severity == "warning" for each in by("loss-spike", evidence(noise)))
    assert warnings <= 6


# non-finite


def test_the_layer_that_is_nan_first() -> None:
    losses = np.where(T < 900, learning(), np.nan)
    numbers = layers("signal_rms", fc1=ONES, fc2=since(880, 1, np.inf), fc3=since(900, 1, np.nan))
    (finding,) = by("non-finite", evidence(losses, numbers))
    assert (finding.severity, finding.layer, finding.until) == ("severe", "fc2", None)
    assert finding.step == 900


def test_one_loss_that_is_not_finite_is_a_warning_that_is_over() -> None:
    losses = learning()
    losses[499] = np.nan
    (finding,) = by("non-finite", evidence(losses))
    assert (finding.severity, finding.step, finding.until) == ("warning", 500, 500)


def test_an_infinite_gradient_is_normal_with_a_loss_scale() -> None:
    gradient = layers("gradient_norm", fc1=since(2000, 1, np.inf))
    assert by("non-finite", evidence(learning(), gradient | {("loss_scale", ""): {1: 65536.0}})) == []
    assert len(by("non-finite", evidence(learning(), gradient))) == 1


# units, statistics, layers


@pytest.mark.parametrize(
    ("rule", "quantity"), [("dying-neurons", "dead_share"), ("saturated-activation", "saturated_share")]
)
def test_a_share_that_rises(rule: str, quantity: str) -> None:
    numbers = layers(quantity, fc1=0.1 * ONES, fc2=since(600, 0.1, 0.97))
    (finding,) = by(rule, evidence(np.where(T < 600, learning(), 2.2), numbers))
    assert (finding.layer, finding.severity) == ("fc2", "severe")
    assert finding.step == pytest.approx(600, rel=0.02)
    (finding,) = by(rule, evidence(learning(), layers(quantity, fc2=since(600, 0.1, 0.9))))
    assert finding.severity == "note"
    assert by(rule, evidence(learning(), layers(quantity, fc1=0.9 * ONES, fc2=since(600, 0.1, 0.6)))) == []


def test_statistics_that_go_stale() -> None:
    numbers = layers("statistics_gap", bn1=0.1 * ONES, bn2=np.where(T < 500, 0.1, np.minimum(3, (T - 500) / 50)))
    (finding,) = by("stale-statistics", evidence(learning(), numbers))
    assert finding.layer == "bn2"
    assert finding.step == pytest.approx(500, rel=0.1)


def test_statistics_of_small_batches_are_not_stale() -> None:
    rng = np.random.default_rng(0)
    assert (
        by("stale-statistics", evidence(learning(), layers("statistics_gap", bn=2.7 + 0.3 * rng.random(STEPS)))) == []
    )


def test_a_layer_whose_gradient_becomes_zero() -> None:
    numbers = layers("gradient_norm", fc1=ONES, fc2=since(700, 1, 0), fc3=ONES)
    (finding,) = by("no-gradient", evidence(learning(), numbers))
    assert (finding.layer, finding.severity) == ("fc2", "warning")
    assert finding.step == pytest.approx(700, rel=0.02)
    assert (
        by("no-gradient", evidence(learning(), layers("gradient_norm", fc1=since(700, 1, 0), fc2=since(700, 1, 0))))
        == []
    )


def test_a_layer_that_is_frozen_later_and_one_that_is_thawed() -> None:
    always = sampled(ONES)
    frozen = {step: value for step, value in always.items() if step < 900}
    thawed = {step: value for step, value in always.items() if step >= 800}
    run = evidence(
        learning(), {("gradient_norm", "a"): frozen, ("gradient_norm", "b"): thawed, ("gradient_norm", "c"): always}
    )
    (finding,) = by("no-gradient", run)
    assert (finding.layer, finding.severity) == ("a", "note")
    assert finding.step == pytest.approx(900, rel=0.02)
    (finding,) = by("layer-thawed", run)
    assert (finding.layer, finding.severity) == ("b", "note")
    assert finding.step == pytest.approx(800, rel=0.02)


def test_a_thawed_layer_at_which_the_loss_jumps_is_a_warning() -> None:
    thawed = dict.fromkeys(range(800, 2001, 20), 1.0)
    losses = learning()
    losses[805:815] = 6.0
    run = evidence(losses, {("gradient_norm", "a"): thawed, ("gradient_norm", "b"): sampled(ONES)})
    assert [each.severity for each in by("layer-thawed", run)] == ["warning"]


def test_gradients_that_fade_and_that_explode() -> None:
    fading = np.where(T < 1000, 1.0, 1e-5)
    numbers = layers("gradient_norm", a=fading, b=ONES, c=ONES, d=since(1200, 1, 1e6))
    run = evidence(learning(), numbers)
    assert [each.layer for each in by("vanishing-gradient", run)] == ["a"]
    (finding,) = by("exploding-gradient", run)
    assert finding.layer == "d"
    assert finding.step == pytest.approx(1200, rel=0.02)
    together = layers("gradient_norm", a=np.exp(-T / 100), b=np.exp(-T / 100), c=np.exp(-T / 100))
    assert by("vanishing-gradient", evidence(learning(), together)) == []


# rates that are too low, scales, plateaus, loaders


def test_a_schedule_that_has_ended_too_early() -> None:
    rates = {("lr", ""): {step: 0.1 * 0.97**step for step in range(1, 2001)}}
    (finding,) = by("learning-rate-too-low", evidence(1 + np.exp(-T / 3000), rates))
    assert finding.step == pytest.approx(np.log(1e-3) / np.log(0.97), abs=2)
    cosine = {("lr", ""): {step: 0.05 * (1 + np.cos(np.pi * step / 2000)) for step in range(1, 2001)}}
    assert by("learning-rate-too-low", evidence(learning(), cosine)) == []


def test_weights_that_do_not_move() -> None:
    stuck = 2.3 + 0.05 * np.random.default_rng(0).standard_normal(STEPS)
    (finding,) = by("learning-rate-too-low", evidence(stuck, layers("update_ratio", a=1e-7 * ONES, b=1e-8 * ONES)))
    assert (finding.severity, finding.step) == ("warning", 1)
    assert by("learning-rate-too-low", evidence(stuck, layers("update_ratio", a=1e-4 * ONES))) == []


def test_a_loss_scale_that_collapses() -> None:
    scale = {1: 65536.0} | {899 + k: 65536 * 0.5**k for k in range(1, 60)}
    (finding,) = by("lost-updates", evidence(learning()[:960], {("loss_scale", ""): scale}))
    assert (finding.step, finding.severity) == (900, "severe")
    sparse = {1: 65536.0, 950: 65536 * 0.5**51}
    assert by("lost-updates", evidence(learning()[:960], {("loss_scale", ""): sparse}))[0].step == 900


def test_a_loss_scale_that_is_halved_now_and_then_is_healthy() -> None:
    scale = {1: 65536.0, 2: 32768.0, 3: 1024.0, 500: 2048.0, 700: 1024.0, 1200: 2048.0, 1900: 1024.0}
    assert by("lost-updates", evidence(learning(), {("loss_scale", ""): scale})) == []


def test_a_loss_that_stands_still() -> None:
    rng = np.random.default_rng(0)
    (finding,) = by("loss-not-decreasing", evidence(2.3 + 0.1 * rng.standard_normal(STEPS)))
    assert (finding.severity, finding.step) == ("warning", 1)
    for healthy in (learning(), rng.standard_normal(STEPS), 2.3 - 2e-4 * T + 0.1 * rng.standard_normal(STEPS)):
        assert by("loss-not-decreasing", evidence(healthy)) == []


def test_a_loader_that_repeats() -> None:
    (finding,) = by("repeated-batches", evidence(learning(), network("repeated_batches", np.maximum(0, T - 999))))
    assert (finding.step, finding.severity) == (1000, "warning")
    (finding,) = by("repeated-batches", evidence(learning(), network("repeated_batches", T - 1)))
    assert (finding.step, finding.severity) == (2, "note")
    assert by("repeated-batches", evidence(learning(), network("repeated_batches", T % 10))) == []
