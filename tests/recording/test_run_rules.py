"""Each rule of a run on made-up numbers: the fault with its layer and step, and what looks like it and is none."""

from __future__ import annotations

import numpy as np
import pytest
from made_up_runs import STEPS, by, evidence, learning, sampled

from wellcond.diagnosis.finding import Finding
from wellcond.recording.judging.course import Course
from wellcond.recording.judging.run_rule import RunEvidence

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


def test_a_rate_that_is_lowered_again_is_over_and_its_loss_is_not() -> None:
    losses = np.where(T < 900, learning(), 2.3 + 0.05 * np.random.default_rng(2).standard_normal(STEPS))
    (finding,) = by("learning-rate-too-high", evidence(losses, {("lr", ""): {1: 0.1, 895: 10.0, 930: 0.1}}))
    assert finding.until == 930
    (finding,) = by("learning-rate-too-high", evidence(losses, {("lr", ""): {1: 0.1, 895: 10.0}}))
    assert finding.until is None


def test_a_rate_above_its_limit_is_no_fault_while_the_loss_falls() -> None:
    rates = {("lr", ""): {1: 0.1}, ("max_lr", ""): dict.fromkeys(range(100, 2001, 100), 0.02)}
    assert by("learning-rate-too-high", evidence(learning(), rates)) == []


def test_a_rate_above_its_limit_at_which_the_loss_rises() -> None:
    limit = {step: 0.2 if step < 800 else 0.05 for step in range(50, 2001, 50)}
    numbers = {("lr", ""): {1: 0.1}, ("max_lr", ""): limit} | network("gradient_norm", since(1000, 1, 8))
    (finding,) = by("learning-rate-too-high", evidence(rising(per_step=0.002), numbers))
    assert finding.evidence["above it since step"] == pytest.approx(800, abs=50)
    assert finding.step == pytest.approx(1000, rel=0.1)


def test_a_rate_that_grows_and_grows_and_lifts_the_loss_by_and_by() -> None:
    """By less than a tenth of what was learned, and far above its noise."""
    losses = learning() + 0.2 * np.clip((T - 700) / 600, 0, 1)
    grows, ends = (
        {("lr", ""): dict(zip(range(1, 2001), rates, strict=True))} for rates in (T / 2e4, np.minimum(T, 300))
    )
    (finding,) = by("learning-rate-too-high", evidence(losses, grows))
    assert finding.severity == "warning"
    assert finding.step == pytest.approx(800, rel=0.15)
    for numbers in (ends, {("lr", ""): {1: 0.1}}, {}):
        assert by("learning-rate-too-high", evidence(losses, numbers)) == []
    cycles = {("lr", ""): {step: abs(step % 1300 - 650) / 6500 for step in range(1, 2001)}}  # highest at 1300 too
    for end in (1200, 1280, 1300, 1900):
        assert by("learning-rate-too-high", evidence(losses[:end], cycles)) == []
    assert by("learning-rate-too-high", evidence(learning(), grows)) == []


def test_steps_that_change_everything_and_learn_nothing() -> None:
    stuck = 2.3 + 0.05 * np.random.default_rng(0).standard_normal(STEPS)
    (finding,) = by("learning-rate-too-high", evidence(stuck, layers("update_ratio", fc1=0.5 * ONES, fc2=0.4 * ONES)))
    assert (finding.severity, finding.step) == ("severe", 1)


def test_long_first_steps_are_a_warning_and_longer_ones_severe() -> None:
    stuck = 2.3 + 0.05 * np.random.default_rng(0).standard_normal(STEPS)
    for ratio, severity in ((0.05, []), (0.2, ["warning"]), (0.4, ["severe"])):
        numbers = layers("update_ratio", fc1=ratio * ONES, fc2=ratio * ONES)
        assert [each.severity for each in by("learning-rate-too-high", evidence(stuck, numbers))] == severity
    two = layers("update_ratio", fc1=0.5 * ONES, fc2=0.01 * ONES)  # the median of two is between them
    assert [each.severity for each in by("learning-rate-too-high", evidence(stuck, two))] == ["warning"]


def test_long_first_steps_of_a_loss_that_falls_slowly_are_no_fault() -> None:
    """It falls by less than the noise of a single loss in all, which the level of half a run shows."""
    slow = 2.3 - 6e-5 * T + 0.05 * np.random.default_rng(2).standard_normal(STEPS)
    assert by("learning-rate-too-high", evidence(slow, layers("update_ratio", fc1=0.4 * ONES, fc2=0.4 * ONES))) == []


def test_noise_that_enters_the_labels() -> None:
    losses = learning() + since(1000, 0, 0.9)
    grown = since(1000, 1.0, 3.0)
    numbers = layers("gradient_norm", fc1=grown, fc2=grown) | layers("weight_norm", fc1=ONES, fc2=ONES)
    (finding,) = by("data-changed", evidence(losses, numbers))
    assert finding.step == pytest.approx(1000, abs=2)
    only_one = layers("gradient_norm", fc1=grown, fc2=ONES)
    assert by("data-changed", evidence(losses, only_one)) == []


def test_without_gradients_near_a_jump_nothing_is_said_of_them() -> None:
    """Then only losses above all before tell it from a swing; the samples of gradients begin 200 steps after it."""
    late = {("gradient_norm", "fc1"): dict.fromkeys(range(1200, STEPS + 1, 20), 3.0)}
    for numbers in ({}, late):
        assert by("data-changed", evidence(learning() + since(1000, 0, 1.5), numbers)) == []
        (finding,) = by("data-changed", evidence(learning() + since(1000, 0, 3.0), numbers))
        assert "gradients" not in finding.summary
        assert "weights" not in finding.summary
        assert "layers whose gradient grows" not in finding.evidence


def test_harder_data_that_are_learned_are_no_fault() -> None:
    losses = learning() + np.where(T >= 1000, 1.5 * np.exp(-(T - 1000) / 30), 0)
    for end in (1020, 1100, 1200, 2000):
        assert by("data-changed", evidence(losses[:end])) == []
    assert by("loss-spike", evidence(losses)) == []


def test_losses_above_all_before_need_no_gradients_that_grow() -> None:
    """Such losses kill units, whose gradients are small soon."""
    faded = layers("gradient_norm", fc1=since(1000, 1.0, 0.1), fc2=since(1000, 1.0, 0.1))
    (finding,) = by("data-changed", evidence(learning() + since(1000, 0, 3.0), faded))
    assert (finding.step, finding.severity) == (1000, "severe")
    assert by("data-changed", evidence(learning() + since(1000, 0, 1.5), faded)) == []
    quick = 0.3 + 2.0 * np.exp(-T / 20) + 0.05 * np.random.default_rng(0).standard_normal(STEPS)
    faded = layers("gradient_norm", fc1=since(150, 1.0, 0.1), fc2=since(150, 1.0, 0.1))
    assert by("data-changed", evidence(quick + since(150, 0, 3.0), faded)) == []  # 150 losses do not say much


def test_a_jump_far_above_the_start_is_measured_by_what_had_been_learned() -> None:
    """From 0.3 to 50 and at once back to 0.9: of the jump a hundredth is left, of what was learned a third is lost."""
    grown = layers("gradient_norm", fc1=since(1000, 1.0, 3.0), fc2=since(1000, 1.0, 3.0))
    back = np.where(T < 1000, 0, np.where(T < 1010, 50, 0.6))
    (finding,) = by("data-changed", evidence(learning() + back, grown))
    assert finding.severity == "warning"
    assert finding.step == pytest.approx(1000, abs=2)
    nearly = np.where(T < 1000, 0, np.where(T < 1010, 50, 0.25))
    assert by("data-changed", evidence(learning() + nearly, grown)) == []


def test_a_jump_in_the_first_steps_has_no_level_that_it_could_jump_from() -> None:
    """Six losses at 1.4, then 0.3 until a step, and 2.7 from it on."""

    def jumping(at: int) -> RunEvidence:
        noise = 0.01 * np.random.default_rng(0).standard_normal(STEPS)
        losses = np.where(T < 7, 1.4, 0.3) + since(at, 0, 2.4) + noise
        grown = since(at, 1.0, 3.0)[:230]
        return evidence(losses[:230], layers("gradient_norm", fc1=grown, fc2=grown))

    early = jumping(24)
    assert early.loss.rise is not None
    assert early.loss.rise.is_lasting
    assert by("data-changed", early) == []
    (finding,) = by("data-changed", jumping(80))
    assert finding.step == 80


def test_a_jump_at_which_a_layer_begins_to_learn_is_that_layers() -> None:
    grown, thawed = sampled(since(1000, 1.0, 3.0)), dict.fromkeys(range(1020, 2001, 20), 3.0)
    losses = learning() + since(1007, 0, 0.9)
    run = evidence(losses, {("gradient_norm", "head"): grown, ("gradient_norm", "backbone"): thawed})
    assert by("data-changed", run) == []
    (finding,) = by("layer-thawed", run)
    assert (finding.layer, finding.step) == ("backbone", 1007)  # by the loss, which is known at every step
    assert len(by("data-changed", evidence(losses, {("gradient_norm", "head"): grown}))) == 1


def test_a_loss_around_zero_has_no_level_that_it_could_come_back_to() -> None:
    """As of a policy: no more than a warning, unless it explodes. Of a loss with a level, the same rise is severe."""
    noise = 0.3 * np.random.default_rng(0).standard_normal(STEPS)
    grown = network("gradient_norm", since(1000, 1.0, 8.0))
    rise = np.clip((T - 1000) / 60, 0, 1.5)
    (finding,) = by("diverging", evidence(noise + rise, grown))
    assert finding.severity == "warning"
    assert finding.step == pytest.approx(1000, rel=0.05)
    for losses in (noise + 20 * rise, learning() + 1.5 * rise):
        assert [each.severity for each in by("diverging", evidence(losses, grown))] == ["severe"]


def test_a_jump_that_comes_back_is_no_decay_of_weights() -> None:
    shrinking = np.where(T < 1000, 5.0, 5.0 * np.exp(-(T - 1000) / 400))
    numbers = layers("weight_norm", fc1=shrinking, fc2=shrinking)
    jump = np.where(T < 1000, 0, 0.5 + 2.5 * np.exp(-(T - 1000) / 20))
    assert by("weight-decay-dominates", evidence(learning() + jump, numbers)) == []
    slow = np.where(T < 1000, 0, 0.5 * (1 - np.exp(-(T - 1000) / 20)))
    assert len(by("weight-decay-dominates", evidence(learning() + slow, numbers))) == 1


def test_weights_that_shrink_while_the_loss_rises() -> None:
    shrinking = np.where(T < 1000, 5.0, 5.0 * np.exp(-(T - 1000) / 400))
    numbers = layers("weight_norm", fc1=shrinking, fc2=shrinking, norm=ONES)
    (finding,) = by("weight-decay-dominates", evidence(rising(per_step=0.002), numbers))
    assert finding.step == pytest.approx(1000, rel=0.05)
    assert by("weight-decay-dominates", evidence(learning(), numbers)) == []
    assert by("weight-decay-dominates", evidence(rising(), layers("weight_norm", fc1=ONES, fc2=ONES))) == []


@pytest.mark.parametrize(("now", "lr", "is_found"), [(0.5, 0.1, True), (5e-4, 0.1, False), (0.5, 1e-4, False)])
def test_decay_that_was_raised_before_the_loss_rises(now: float, lr: float, is_found: bool) -> None:
    settings = {("weight_decay", ""): {1: 1e-4, 950: now}, ("lr", ""): {1: lr}}
    early = {("weight_norm", layer): {20: 5.0, 400: 5.0} for layer in ("fc1", "fc2")}
    findings = by("weight-decay-dominates", evidence(rising(per_step=0.002), settings | early))
    assert [(each.step, each.severity) for each in findings] == [(950, "severe")] * is_found
    stay = layers("weight_norm", fc1=ONES, fc2=ONES)
    assert by("weight-decay-dominates", evidence(rising(per_step=0.002), settings | stay)) == []
    assert by("weight-decay-dominates", evidence(learning(), settings | early)) == []


def test_weights_that_shrink_since_decay_was_raised() -> None:
    shrinking = np.where(T < 1000, 5.0, 5.0 * np.exp(-(T - 1000) / 400))
    settings = {("weight_decay", ""): {1: 1e-4, 950: 0.5}, ("lr", ""): {1: 0.1}}
    numbers = layers("weight_norm", fc1=shrinking, fc2=shrinking)
    (finding,) = by("weight-decay-dominates", evidence(rising(per_step=0.002), settings | numbers))
    assert finding.step == 950
    assert "weights of 2 of 2 layers shrink" in finding.summary
    (finding,) = by(
        "weight-decay-dominates", evidence(rising(per_step=0.002), {("weight_decay", ""): {1: 0.0}} | numbers)
    )
    assert finding.severity == "warning"
    assert "though the optimizer has no weight decay" in finding.summary


def test_decay_that_a_schedule_raises_acts_where_it_has_shrunk_the_weights() -> None:
    """Tenfold at step 500 already, when the weights still grow."""
    decay = {("weight_decay", ""): {step: 1e-4 * 10 ** (step / 500) for step in range(1, 2001, 20)}}
    norm = 5.0 * np.exp(-np.maximum(0, T - 800) / 500)
    numbers = decay | {("lr", ""): {1: 0.1}}
    losses = rising(step=950, per_step=0.002)
    (finding,) = by("weight-decay-dominates", evidence(losses, numbers | layers("weight_norm", fc1=norm, fc2=norm)))
    assert finding.step == pytest.approx(800 - 500 * np.log(0.85), rel=0.03)
    (finding,) = by("weight-decay-dominates", evidence(losses, numbers))
    assert finding.step == pytest.approx(950, rel=0.1)
    assert finding.evidence["weight decay before"] == pytest.approx(1e-4, rel=0.01)


# dying-neurons


def test_units_that_die_where_the_loss_jumps_count_earlier() -> None:
    """Three fifths of the units, which by themselves are no more than sparse."""
    dead = layers("dead_share", fc1=since(901, 0.05, 0.62), fc2=0.05 * ONES)
    jump = learning()
    jump[899:905] += 5.0
    (finding,) = by("dying-neurons", evidence(jump, dead))
    assert finding.layer == "fc1"
    assert finding.step == pytest.approx(900, abs=2)
    assert by("dying-neurons", evidence(learning(), dead)) == []


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


@pytest.mark.parametrize(("first", "rule"), [(9.0, "loss-spike"), (1.1, "data-changed")])
def test_a_bad_batch_from_which_the_network_recovers_slowly_is_no_change_of_the_data(first: float, rule: str) -> None:
    losses = learning(noise=0.01)
    losses[699:] += 0.8 * np.exp(-(T[699:] - 700) / 300)
    losses[699] = first
    grown = layers("gradient_norm", fc1=since(700, 1.0, 2.0), fc2=since(700, 1.0, 2.0))
    run = evidence(
        losses[:820], {name: {s: x for s, x in series.items() if s <= 820} for name, series in grown.items()}
    )
    assert {name: [each.step for each in by(name, run)] for name in ("loss-spike", "data-changed")} == {
        "loss-spike": [700] * (rule == "loss-spike"),
        "data-changed": [700] * (rule == "data-changed"),
    }


def test_a_jump_right_after_the_rate_was_raised_is_the_rates() -> None:
    """A resumed run whose rate is 30 times too high; one that has it for two steps; and one that is raised early on."""
    losses = learning() + since(702, 0, 0.1)
    losses[699:701] = 9.0
    stays, for_two_steps, earlier = ({("lr", ""): {1: 0.01, **raised}} for raised in (
        {699: 0.3}, {699: 0.3, 701: 0.01}, {650: 0.3}))  # fmt: skip
    for rates, is_over in ((stays, False), (for_two_steps, True)):
        (finding,) = by("learning-rate-too-high", evidence(losses, rates))
        assert (finding.step, finding.severity, finding.until is not None) == (700, "warning", is_over)
        assert by("loss-spike", evidence(losses, rates)) == []
    assert by("learning-rate-too-high", evidence(losses, earlier)) == []
    assert len(by("loss-spike", evidence(losses, earlier))) == 1


def test_a_second_spike_that_is_no_higher_is_a_note() -> None:
    losses = learning()
    losses[699] = losses[1499] = 9.0
    for numbers in ({}, {("lr", ""): {1: 0.1}}):
        assert [each.severity for each in by("loss-spike", evidence(losses, numbers))] == ["warning", "note"]


def test_a_spike_may_grow_for_three_steps() -> None:
    losses = learning()
    losses[699:702] = 4.0, 80.0, 9.0
    losses[702:740] += 2 * np.exp(-np.arange(38) / 10)
    (finding,) = by("loss-spike", evidence(losses))
    assert (finding.step, finding.evidence["loss"]) == (700, 80.0)


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


def test_running_statistics_that_are_nan_while_the_loss_is_finite() -> None:
    numbers = layers("statistics_gap", bn1=0.1 * ONES, bn2=since(900, 0.1, np.nan))
    (finding,) = by("non-finite", evidence(learning(), numbers))
    assert (finding.layer, finding.severity) == ("bn2", "severe")
    assert finding.step == pytest.approx(900, rel=0.02)
    assert "running statistics" in finding.summary


def test_statistics_that_are_not_finite_once_or_with_everything_else_are_another_matter() -> None:
    once = layers("statistics_gap", bn=since(2000, 0.1, np.inf))
    assert by("non-finite", evidence(learning(), once)) == []
    numbers = layers("statistics_gap", bn=since(900, 0.1, np.nan))
    (finding,) = by("non-finite", evidence(np.where(T < 900, learning(), np.nan), numbers))
    assert (finding.layer, finding.step) == ("", 900)  # the loss's own
    weights = numbers | layers("weight_norm", fc=since(900, 1.0, np.nan))
    assert [each.layer for each in by("non-finite", evidence(learning(), weights))] == ["fc"]


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


def test_a_network_that_gets_no_gradient_any_more() -> None:
    stuck = network("gradient_norm", since(700, 1.0, 0.0))
    (finding,) = by("no-gradient", evidence(learning(), stuck))
    assert (finding.layer, finding.severity) == ("", "severe")
    assert finding.step == pytest.approx(700, rel=0.02)


@pytest.mark.parametrize(
    ("losses", "gradients"),
    [
        (np.where(T < 700, learning(), 0.0), since(700, 1.0, 0.0)),  # margins that all examples keep
        (learning(), since(1980, 1.0, 0.0)),  # two samples
        (learning(), 0 * ONES),  # from the start, which diagnose reports
        (learning(), np.where(T % 100 < 50, 0.0, 1.0)),  # batches without anything to learn from
    ],
    ids=["loss of zero", "two samples", "from the start", "now and then"],
)
def test_gradients_of_zero_that_are_no_fault(losses: np.ndarray, gradients: np.ndarray) -> None:
    assert by("no-gradient", evidence(losses, network("gradient_norm", gradients))) == []


# weights that no optimizer holds


def shares(**series: dict[int, float]) -> dict[tuple[str, str], dict[int, float]]:
    """Shares that are not held, which are recorded when they change; weights are read at steps 1, 20, 40, …"""
    looks = {1: 1.0} | sampled(ONES)
    norms = {("weight_norm", layer): looks for layer in ("", "fc1", "fc2")}
    return norms | {("unheld_share", layer): values for layer, values in series.items()}


def test_weights_that_no_optimizer_has_held_since_the_start() -> None:
    stuck = 2.3 + 0.05 * np.random.default_rng(0).standard_normal(STEPS)
    (finding,) = by("no-gradient", evidence(stuck, shares(fc2={1: 0.9})))
    assert (finding.layer, finding.step, finding.severity) == ("fc2", 1, "severe")
    (finding,) = by("no-gradient", evidence(learning(), shares(fc1={1: 1.0}, fc2={1: 0.9})))
    assert (finding.layer, finding.severity, finding.evidence["layers"]) == ("fc1", "warning", 2.0)
    assert by("lost-updates", evidence(stuck, shares(fc2={1: 0.9}))) == []


def test_parameters_that_are_exchanged_are_dated_by_samples_or_by_the_loss() -> None:
    exchanged = shares(fc2={820: 0.9})
    (finding,) = by("no-gradient", evidence(learning(), exchanged))
    assert (finding.layer, finding.step, finding.severity) == ("fc2", 810, "severe")
    (finding,) = by("no-gradient", evidence(learning() + since(814, 0, 1.5), exchanged))
    assert finding.step == 814


def test_exchanged_parameters_of_a_network_too_large_to_be_read_at_once() -> None:
    """Weights of some layers are read at each step, and none of the whole network."""
    first, second = dict.fromkeys(range(1, 2001, 40), 1.0), dict.fromkeys(range(21, 2001, 40), 1.0)
    numbers = {("weight_norm", "fc1"): first, ("weight_norm", "fc2"): second, ("unheld_share", "fc2"): {841: 1.0}}
    (finding,) = by("no-gradient", evidence(learning(), numbers))
    assert (finding.layer, finding.step) == ("fc2", 831)


def test_weights_that_the_optimizer_was_given_meanwhile() -> None:
    run = evidence(learning(), shares(fc1={1: 1.0, 60: 0.0}, fc2={820: 0.9, 860: 0.0}))
    assert by("no-gradient", run) == []
    (finding,) = by("no-gradient", evidence(learning(), shares(fc2={1: 1.0, 60: 0.0, 820: 0.5})))
    assert finding.step == 810


def test_what_a_thawed_layer_learns_may_lower_some_validation_losses_before_they_rise() -> None:
    asks = {("trained_share", "body"): {1: 0.0, 820: 1.0}}
    falling = learning() * np.exp(-T / 1500)
    lowest_at_900 = np.where(T < 900, 1.0 - T / 2000, 0.55 + (T - 900) / 1500)
    run = evidence(falling, asks | validation(lowest_at_900))
    (thawed,), (overfits,) = by("layer-thawed", run), by("overfitting", run)
    assert thawed.severity == overfits.severity
    assert thawed.step == overfits.step == pytest.approx(820, abs=25)


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


def asking(**series: dict[int, float]) -> dict[tuple[str, str], dict[int, float]]:
    """Shares of layers' weights that ask for a gradient, which are recorded when they change."""
    return {("trained_share", layer): values for layer, values in series.items()}


def test_a_layer_that_asks_for_a_gradient_is_known_to_have_thawed_without_one() -> None:
    (finding,) = by("layer-thawed", evidence(learning(), asking(body={1: 0.0, 820: 1.0}, norm={1: 0.0})))
    assert (finding.layer, finding.step, finding.basis) == ("body", 808, "proven")
    jumps = learning()
    jumps[813:850] += 3
    (finding,) = by("layer-thawed", evidence(jumps, asking(body={1: 0.0, 820: 1.0})))
    assert (finding.step, finding.severity) == (814, "warning")
    thawed = {
        ("gradient_norm", "body"): dict.fromkeys(range(900, 2001, 20), 1.0),
        ("gradient_norm", "b"): sampled(ONES),
    }
    (finding,) = by("layer-thawed", evidence(learning(), thawed | asking(body={1: 0.0, 820: 1.0})))
    assert finding.step == 808  # not by its first gradient that was read


@pytest.mark.parametrize(
    "shares",
    [
        {1: 0.0},
        {1: 0.5, 820: 1.0},  # a part of it learned before
        {1: 0.0, 2: 1.0, 3: 0.0, 400: 1.0},  # players that take turns
        {600: 0.0, 620: 1.0},  # frozen for a while
    ],
)
def test_layers_that_did_not_thaw(shares: dict[int, float]) -> None:
    assert by("layer-thawed", evidence(learning(), asking(body=shares))) == []


def test_a_validation_loss_that_is_lowest_just_after_a_layer_thawed_rises_because_of_it() -> None:
    rising = validation(0.5 + 1.8 * np.exp(-T / 150) + np.maximum(0, T - 840) / 2000)
    course = Course()
    course.update(evidence(learning(noise=0.01) * np.exp(-T / 1500), asking(a={1: 0.0, 820: 1.0}) | rising))
    (finding,) = course.findings
    assert (finding.rule, finding.layer, finding.step) == ("layer-thawed", "a", 808)
    assert [each.rule for each in finding.consequences] == ["overfitting"]


def test_a_thawed_layer_at_which_the_loss_jumps_is_a_warning() -> None:
    thawed = dict.fromkeys(range(800, 2001, 20), 1.0)
    losses = learning()
    losses[805:815] = 6.0
    run = evidence(losses, {("gradient_norm", "a"): thawed, ("gradient_norm", "b"): sampled(ONES)})
    assert [each.severity for each in by("layer-thawed", run)] == ["warning"]


def test_a_layer_that_begins_to_learn_and_is_zero_again_has_been_thawed_too() -> None:
    flickers = {step: 1.0 if step == 800 else 0.0 for step in range(800, 2001, 20)}
    run = evidence(learning(), {("gradient_norm", "a"): flickers, ("gradient_norm", "b"): sampled(ONES)})
    (finding,) = by("layer-thawed", run)
    assert (finding.layer, finding.step) == ("a", 790)
    late = evidence(learning(), {("gradient_norm", "a"): {1960: 1.0, 1980: 1.0}, ("gradient_norm", "b"): sampled(ONES)})
    assert by("layer-thawed", late) == []  # too few samples to know


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


@pytest.mark.parametrize(("milestones", "is_found"), [((40, 70, 90), True), ((1200, 1500, 1550), False)])
def test_three_decays_by_ten_are_too_early_where_they_leave_most_of_the_run(milestones, is_found) -> None:
    lr, rates = 2e-3, {1: 2e-3}
    for step in milestones:
        lr *= 0.1
        rates[step + 1] = lr
    stops = (
        1.7 + 0.6 * np.exp(-np.minimum(T, milestones[0]) / 500) + 0.02 * np.random.default_rng(0).standard_normal(STEPS)
    )
    findings = by("learning-rate-too-low", evidence(stops, {("lr", ""): rates}))
    assert [each.severity for each in findings] == ["warning"] * is_found


def test_a_rate_of_nothing_for_most_of_a_run_is_a_warning_unless_the_loss_falls_on() -> None:
    """A cosine that ends at step 700, 1,100 or 1,500, where the loss has come to rest."""

    def severities(end: int, losses: np.ndarray) -> list[str]:
        rates = {("lr", ""): {step: 0.05 * (1 + np.cos(np.pi * min(1, step / end))) for step in range(1, 2001)}}
        return [each.severity for each in by("learning-rate-too-low", evidence(losses, rates))]

    rests = 0.3 + 2 * np.exp(-T / 80) + 0.05 * np.random.default_rng(1).standard_normal(STEPS)
    assert [severities(end, rests) for end in (700, 1100, 1500)] == [["warning"], ["note"], ["note"]]
    assert severities(700, rests - 0.1 * np.maximum(0, T - 700) / STEPS) == ["note"]  # fine-tuned at a small rate
    assert severities(1950, rests) == []


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


def test_an_optimizer_that_takes_no_steps_any_more() -> None:
    for count, severity in ((10.0, []), (30.0, ["warning"]), (50.0, ["severe"])):
        skipped = {("skipped_steps", ""): {900 + n: float(n) for n in range(10, int(count) + 1, 10)}}
        findings = by("lost-updates", evidence(learning()[:960], skipped))
        assert [each.severity for each in findings] == severity
        assert all(each.step == 901 for each in findings)


def test_steps_that_are_rounded_away() -> None:
    stuck = 2.3 + 0.05 * np.random.default_rng(0).standard_normal(STEPS)
    (finding,) = by("lost-updates", evidence(stuck, network("lost_updates", 0.95 * ONES)))
    assert (finding.step, finding.severity) == (20, "severe")
    (finding,) = by("lost-updates", evidence(learning(), network("lost_updates", 0.95 * ONES)))
    assert finding.severity == "warning"
    assert by("lost-updates", evidence(stuck, network("lost_updates", since(200, 0.5, 0.99)))) == []  # it has learned


def test_steps_that_become_too_short_for_half_precision() -> None:
    """At step 800 the rate is cut a hundredfold; a schedule comes there little by little."""
    flat = np.where(T < 800, learning(), 0.3)
    cut, schedule = {("lr", ""): {1: 3e-3, 800: 3e-5}}, {("lr", ""): {1: 3e-3, 800: 3e-5, 1500: 1e-5}}
    shares = network("lost_updates", since(800, 0.3, 0.97))
    (finding,) = by("lost-updates", evidence(flat, shares | cut))
    assert (finding.step, finding.severity) == (800, "warning")
    slowly = network("lost_updates", np.clip(T / 1000, 0, 0.97))
    late = network("lost_updates", since(1500, 0.3, 0.97))
    for numbers in (shares | schedule, slowly | cut, late | cut):
        assert by("lost-updates", evidence(flat, numbers)) == []


def put_back(norms: np.ndarray, ratio: float = 1e-3) -> dict[tuple[str, str], dict[int, float]]:
    """Norms before every step of the network and of two layers, of which one stays, and steps of this length."""
    still = layers("weight_norm", fc1=norms, fc2=2 * ONES)
    return still | network("weight_norm", np.hypot(norms, 2)) | network("update_ratio", ratio * ONES)


def test_weights_that_are_put_back_after_every_step() -> None:
    growing = np.where(T < 800, 1 + T / 1000, 1.8)
    losses = np.where(T < 800, learning(), 0.31 + 0.05 * np.random.default_rng(1).standard_normal(STEPS))
    (finding,) = by("lost-updates", evidence(losses, put_back(growing)))
    assert finding.severity == "severe"
    assert finding.step == pytest.approx(800, rel=0.02)


@pytest.mark.parametrize(
    ("losses", "numbers"),
    [
        (learning(), put_back(1 + T / 1000)),  # they move
        (learning(), put_back(ONES, ratio=1e-6)),  # a rate at which norms show no movement
        (2.3 - T / 1500, put_back(ONES)),  # weights on a sphere, of a network that learns
        (learning(), put_back(since(1960, 1.0, 1.5))),  # three samples
    ],
    ids=["they move", "tiny steps", "on a sphere", "three samples"],
)
def test_weights_that_are_not_put_back(losses: np.ndarray, numbers: dict[tuple[str, str], dict[int, float]]) -> None:
    assert by("lost-updates", evidence(losses, numbers)) == []


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


# batches of one class


def of_labels(shares: np.ndarray, labels: np.ndarray) -> dict[tuple[str, str], dict[int, float]]:
    """The share of the commonest label in every 32nd batch, and which that is."""
    looks = range(32, STEPS + 1, 32)
    series = {"batch_purity": shares, "commonest_label": labels}
    return {(name, ""): {step: float(values[step - 1]) for step in looks} for name, values in series.items()}


SHUFFLED = 0.3 + 0.1 * np.random.default_rng(3).random(STEPS)
IN_TURN = T // 100 % 5
"""A class for a hundred steps, and then the next one."""


def test_batches_that_become_sorted() -> None:
    numbers = of_labels(np.where(T < 1000, SHUFFLED, np.where(T % 100 < 20, 0.6, 1.0)), IN_TURN)
    (finding,) = by("sorted-batches", evidence(learning(), numbers))
    assert finding.step == pytest.approx(1000, abs=64)
    assert finding.severity == "warning"
    forgets = np.where((T > 1000) & (T % 100 < 80), 3.0, learning())
    course = Course()
    course.update(evidence(forgets, numbers))
    assert [(each.rule, each.severity) for each in course.findings] == [("sorted-batches", "severe")]


@pytest.mark.parametrize(
    ("shares", "labels"),
    [
        (SHUFFLED, IN_TURN),
        (ONES, T // 16 % 2),  # real and generated ones in turn, from the start
        (0.98 * ONES, 0 * T),  # a rare class
        (since(1000, 0.5, 0.98), 0 * T),  # balanced at first, and then as they come
        (since(1000, 0.3, 0.8), IN_TURN),  # groups of similar examples
        (since(1900, 0.3, 1.0), IN_TURN),  # three looks
        (since(1000, 1.0, 0.3), IN_TURN),  # class by class at first
        (np.where(T % 100 < 30, 1.0, 0.3), IN_TURN),  # now and then
    ],
)
def test_batches_that_do_not_become_sorted(shares: np.ndarray, labels: np.ndarray) -> None:
    assert by("sorted-batches", evidence(learning(), of_labels(shares, labels))) == []


# outputs that become the same


def spread(values: np.ndarray) -> dict[tuple[str, str], dict[int, float]]:
    """The spread of the last layer's outputs, at every 100th step."""
    return {("output_spread", "head"): {step: float(values[step - 1]) for step in range(100, STEPS + 1, 100)}}


TOGETHER = np.where(T < 1000, 1.0 + 0.3 * np.sin(T), np.exp(-(T - 1000) / 100) + 0.01)
FALLS = np.where(T < 1000, 1.0, np.exp(-(T - 1000) / 50) + 0.01)


def test_outputs_that_fall_together() -> None:
    (finding,) = by("rank-collapse", evidence(learning(noise=0.01) * FALLS, spread(TOGETHER)))
    assert (finding.layer, finding.severity) == ("head", "warning")
    assert finding.step == pytest.approx(1000, rel=0.1)


@pytest.mark.parametrize(
    ("losses", "spreads"),
    [
        (learning(noise=0.01) * FALLS, ONES),  # a rate that is lowered
        (learning(noise=0.01), TOGETHER),  # a critic whose opponent has learned
        (learning(noise=0.01) * FALLS, 0.02 + np.exp(-T / 300)),  # outputs that were too large at first
        (np.where(T < 1000, 2.0, 2.0 * FALLS), TOGETHER),  # the same, after a warm-up
        (learning(noise=0.01) * FALLS, np.maximum(TOGETHER, 0.1)),  # a tenth
        (learning(noise=0.01) * FALLS, 0 * ONES),
        (learning(noise=0.01) * FALLS, 1 / np.maximum(TOGETHER, 0.01)),  # they spread
        (-1 - learning(noise=0.01), TOGETHER),
    ],
)
def test_outputs_that_do_not_fall_together(losses: np.ndarray, spreads: np.ndarray) -> None:
    assert by("rank-collapse", evidence(losses, spread(spreads))) == []


def test_outputs_that_fall_together_and_fit_no_new_examples() -> None:
    """Five times closer, which by itself is not enough, with a loss that still fell before: validation shows it."""
    losses = learning(noise=0.01) * np.where(T < 1000, 1.5 - T / 2000, FALLS)
    nearer = spread(np.maximum(TOGETHER, 0.2))
    worse, better = validation(since(1000, 0.5, 2.0) + T / 4000 * since(1000, 0, 1)), validation(0.5 - T / 8000)
    run = evidence(losses, nearer | worse)
    (finding,) = by("rank-collapse", run)
    assert finding.step == pytest.approx(1000, rel=0.1)
    course = Course()
    course.update(run)
    assert [(each.rule, [other.rule for other in each.consequences]) for each in course.findings] == [
        ("rank-collapse", ["overfitting"])
    ]
    assert by("rank-collapse", evidence(losses, nearer | better)) == []
    assert by("rank-collapse", evidence(losses, spread(ONES) | worse)) == []


# where a cause began, and which of several findings is the specific one


def test_a_rise_that_dips_for_a_few_steps_is_dated_where_it_began() -> None:
    """From step 600 on the loss rises slowly, and falls back to its level for four steps at 900."""
    rises = 0.3 + np.clip((T - 600) / 300, 0, 2) + 1.7 * np.exp(-T / 100)
    rises += 0.02 * np.random.default_rng(0).standard_normal(STEPS)
    rises[896:900] = 0.3
    rise = evidence(rises).loss.rise
    assert rise is not None
    assert rise.step == pytest.approx(600, abs=60)


def test_a_loss_that_rises_for_half_of_the_run_is_no_noise() -> None:
    losses = np.where(T < 1000, 2.3 - 1.7 * T / 1000, 0.6 + 1.7 * (T - 1000) / 1000)
    rise = evidence(losses + 0.05 * np.random.default_rng(0).standard_normal(STEPS)).loss.rise
    assert rise is not None
    assert rise.step == pytest.approx(1000, abs=100)


def test_a_layer_that_thaws_where_the_validation_loss_begins_to_rise_explains_it() -> None:
    """The rise of 0.6 is a quarter of what had been learned."""
    thawed = {("gradient_norm", "a"): dict.fromkeys(range(800, 2001, 20), 1.0), ("gradient_norm", "b"): sampled(ONES)}
    rising = validation(0.5 + 1.8 * np.exp(-T / 150) + np.maximum(0, T - 790) / 2000)
    falling = learning(noise=0.01) * np.exp(-T / 1500)
    course = Course()
    course.update(evidence(falling, thawed | rising))
    (finding,) = course.findings
    assert (finding.rule, finding.layer, finding.step, finding.severity) == ("layer-thawed", "a", 790, "warning")
    assert [(each.rule, each.step) for each in finding.consequences] == [("overfitting", 790)]
    flat = validation(0.5 + 1.8 * np.exp(-T / 150))
    (finding,) = by("layer-thawed", evidence(falling, thawed | flat))
    assert finding.severity == "note"


def test_a_rate_that_is_cut_while_the_loss_falls_was_cut_too_early_then() -> None:
    cut = {("lr", ""): {1: 0.1, 501: 1e-3, 901: 1e-5}}
    falling = np.where(T < 500, 2 - T / 500, 1.0) + 0.02 * np.random.default_rng(0).standard_normal(STEPS)
    (finding,) = by("learning-rate-too-low", evidence(falling, cut))
    assert (finding.step, finding.severity) == (501, "warning")
    settled = 1 + np.exp(-T / 50) + 0.02 * np.random.default_rng(0).standard_normal(STEPS)
    (finding,) = by("learning-rate-too-low", evidence(settled, cut))
    assert (finding.step, finding.severity) == (901, "note")


def test_gradients_that_explode_as_clipping_ends() -> None:
    """The loss doubles at every step from 1000 on, and the gradient with it; until then it was clipped to 0.1."""
    losses = learning()[:1030]
    losses[1000:] *= 3.0 ** np.arange(1, 31)
    unclipped = dict.fromkeys(range(20, 1000, 20), 0.5) | {1003: 50.0, 1010: 1e6, 1020: 1e10}
    used = {step: min(0.1, norm) if step < 1000 else norm for step, norm in unclipped.items()}
    numbers = {("gradient_norm", ""): used, ("unclipped_gradient_norm", ""): unclipped}
    course = Course()
    course.update(evidence(losses, numbers))
    (finding,) = course.findings
    assert (finding.rule, finding.severity, finding.evidence["clipped to"]) == ("exploding-gradient", "severe", 0.1)
    assert finding.step == pytest.approx(1001, abs=3)
    assert [each.rule for each in finding.consequences] == ["diverging"]
    same = {("gradient_norm", ""): dict.fromkeys(used, 0.1), ("unclipped_gradient_norm", ""): dict.fromkeys(used, 0.5)}
    assert by("exploding-gradient", evidence(losses, same)) == []


@pytest.mark.parametrize(
    ("after", "before", "rules"),
    [
        (60.0, 0.5, ["exploding-gradient"]),  # 600 times as long as the steps before
        (0.3, 0.5, ["data-changed"]),  # not clipped any more, and no longer than they were before clipping
        (60.0, 0.1, ["data-changed"]),  # never clipped
        (0.05, 0.5, ["data-changed"]),  # shorter than the limit: clipping may go on
    ],
)
def test_a_loss_that_jumps_as_clipping_ends_is_not_of_other_data(after: float, before: float, rules: list[str]) -> None:
    losses = learning() + since(1000, 0, 3.0)
    used, unclipped = network("gradient_norm", since(1000, 0.1, after)), since(1000, before, after)
    run = evidence(losses, used | network("unclipped_gradient_norm", unclipped))
    names = ("exploding-gradient", "data-changed")
    assert [each.rule for name in names for each in by(name, run) if not each.layer] == rules


def test_a_loss_that_falls_on_after_clipping_ended_is_healthy() -> None:
    numbers = network("gradient_norm", since(1000, 0.1, 60.0)) | network("unclipped_gradient_norm", 60.0 * ONES)
    assert by("exploding-gradient", evidence(learning(), numbers)) == []


def test_gradients_that_are_rounded_to_zero_on_their_way_to_the_step() -> None:
    used, computed = network("gradient_norm", since(900, 1.0, 0.0)), since(900, 1000.0, 1e-9)
    (finding,) = by("gradient-underflow", evidence(learning(), used | network("unclipped_gradient_norm", computed)))
    assert finding.severity == "severe"
    assert finding.step == pytest.approx(900, rel=0.02)
    skipped = network("unclipped_gradient_norm", 1000.0 * ONES)  # set to zero on purpose
    assert by("gradient-underflow", evidence(learning(), used | skipped)) == []
    assert by("gradient-underflow", evidence(learning(), used | network("unclipped_gradient_norm", 1e-9 * ONES))) == []


def test_units_that_die_at_a_jump_are_its_cause() -> None:
    losses = learning() + since(1000, 0, 3.0)
    (finding,) = by("data-changed", evidence(losses, layers("dead_share", fc1=0.1 * ONES)))
    assert finding.step == 1000
    assert by("data-changed", evidence(losses, layers("dead_share", fc1=since(1000, 0.1, 0.99)))) == []


def test_a_loss_that_falls_at_once() -> None:
    noise = 1 + 0.05 * np.random.default_rng(0).standard_normal(STEPS)
    (finding,) = by("data-changed", evidence(since(700, 10.0, 4.0) * noise))
    assert (finding.step, finding.severity) == (700, "warning")
    learned = validation(since(700, 10.0, 4.0))
    (finding,) = by("data-changed", evidence(since(700, 10.0, 4.0) * noise, learned))
    assert finding.severity == "note"


@pytest.mark.parametrize(
    "losses",
    [
        np.exp(-T / 30) + 0.1,
        10.0 - 6 * (T >= 700) * (1 - np.exp(-(T - 700.0).clip(0) / 30)),
        10.0 * 0.5 ** (T // 250),
        np.where((T >= 500) & (T < 700), 10.0, 4.0),
        np.where(T < 20, 4.0, since(700, 4e-15, 9e-16)),
    ],
    ids=["steep", "within some tens of steps", "at every epoch", "back from a rise", "rounding"],
)
def test_a_loss_that_does_not_fall_at_once_for_good_and_once(losses: np.ndarray) -> None:
    assert [each for each in by("data-changed", evidence(losses)) if "falls from" in each.summary] == []


def test_statistics_that_go_stale_where_validation_shows_it() -> None:
    gap = layers("statistics_gap", bn1=0.1 * ONES, bn2=since(400, 0.12, 0.5))
    falling = 0.1 + 2 * np.exp(-T / 100)
    (finding,) = by("stale-statistics", evidence(falling, gap | validation(since(420, 1.2, 6.0) * falling)))
    assert (finding.layer, finding.severity) == ("bn2", "severe")
    assert finding.step == pytest.approx(400, rel=0.1)
    assert by("stale-statistics", evidence(falling, gap | validation(1.2 * falling))) == []


def test_statistics_that_stand_still_and_validation_shows_it() -> None:
    gap = layers("statistics_gap", bn1=np.where(T < 410, 0.6, 0.6 + (T - 410) / 2000))
    falling = 0.1 + 2 * np.exp(-T / 100)
    stops, slow, moves, late, pretrained = (
        {("statistics_momentum", "bn1"): momenta}
        for momenta in ({1: 0.1, 410: 0.0}, {1: 0.1, 410: 1e-5}, {1: 0.1, 410: 0.01}, {1: 0.1, 1000: 0.0}, {1: 0.0})
    )
    later = validation(np.where(T < 700, 1.2, 6.0) * falling)
    for numbers in (stops, slow):
        (finding,) = by("stale-statistics", evidence(falling, gap | numbers | later))
        assert (finding.layer, finding.severity, finding.step) == ("bn1", "severe", 410)
    for numbers in ({}, moves, late, pretrained):
        assert by("stale-statistics", evidence(falling, gap | numbers | later)) == []
    assert by("stale-statistics", evidence(falling, gap | stops | validation(1.2 * falling))) == []
    small_batches = layers("statistics_gap", bn1=0.6 + 0.05 * np.random.default_rng(0).random(STEPS))
    assert by("stale-statistics", evidence(falling, small_batches | stops | later)) == []
    always_apart = 3 * falling + np.where(T < 500, 0.5, 0.5 + (T - 500) / 800)
    (finding,) = by("stale-statistics", evidence(falling, gap | stops | validation(always_apart)))
    assert (finding.severity, finding.step) == ("severe", 410)


def test_a_schedule_that_stops_statistics_acts_where_validation_shows_it() -> None:
    gap = layers("statistics_gap", bn1=np.where(T < 410, 0.6, 0.6 + (T - 410) / 2000))
    falling = 0.1 + 2 * np.exp(-T / 100)
    halved = {("statistics_momentum", "bn1"): {1 + 50 * place: 0.1 * 0.5**place for place in range(40)}}
    later = validation(np.where(T < 700, 1.2, 6.0) * falling)
    (finding,) = by("stale-statistics", evidence(falling, gap | halved | later))
    assert (finding.layer, finding.severity) == ("bn1", "severe")
    assert finding.step == pytest.approx(700, rel=0.05)


def test_overfitting_makes_no_statistics_staler() -> None:
    """A warning, as it is without the validation loss."""
    gap = layers("statistics_gap", bn1=since(1000, 0.2, 1.3))
    falling = 1 + 2 * np.exp(-T / 200)
    rises = validation(1.2 * falling + np.maximum(0, T - 500) / 2500)
    assert len(by("overfitting", evidence(falling, rises))) == 1
    for numbers in (gap, gap | rises):
        assert [each.severity for each in by("stale-statistics", evidence(falling, numbers))] == ["warning"]


def test_uncleared_gradients_are_dated_by_how_large_their_sum_is() -> None:
    """At step 700 a sum of three gradients is as long as two at most."""
    old = {("uncleared_gradient", ""): {10: 0.0, 20: 0.0, 700: 1.5, 720: 12.0, 740: 20.0}}
    (finding,) = by("gradients-not-cleared", evidence(learning(), old))
    assert 697 <= finding.step <= 700


def test_inputs_that_are_next_to_nothing_shrink_all_gradients() -> None:
    """All that was learned is lost from one step to the next, to below what the first losses were."""
    shrunk = layers("gradient_norm", fc1=since(1000, 1.0, 0.3), fc2=since(1000, 1.0, 0.3))
    same = layers("gradient_norm", fc1=since(1000, 1.0, 1.0), fc2=since(1000, 1.0, 1.0))
    losses = learning() + since(1000, 0, 1.9)
    (finding,) = by("data-changed", evidence(losses, shrunk))
    assert (finding.step, finding.severity) == (1000, "severe")
    assert "gradients of 2 of 2 layers are smaller" in finding.summary
    assert by("data-changed", evidence(losses, same)) == []


def test_steps_that_are_clipped_to_nothing_have_ended() -> None:
    """The loss comes down until a step and then stays; what steps change is sampled at every 200th."""
    at = 600
    losses = np.where(at > T, 2.0 - T / at, 1.0) + 0.02 * np.random.default_rng(0).standard_normal(STEPS)

    def by_ratio(after: float, losses: np.ndarray = losses) -> list[Finding]:
        ratios = since(at, 1e-2, after)
        samples = {step: float(ratios[step - 1]) for step in range(1, STEPS + 1, 200)}
        both = {("update_ratio", layer): samples for layer in ("fc1", "fc2")}
        return by("learning-rate-too-low", evidence(losses, both | network("lr", 0.1 * ONES)))

    (finding,) = by_ratio(1e-8)
    assert finding.severity == "warning"
    assert finding.step == pytest.approx(at, abs=0.1 * STEPS)
    assert by_ratio(1e-4) == []
    (solved,) = by_ratio(1e-8, np.where(at > T, 2.0 - 2 * T / at, 0.0) + 1e-4)
    assert solved.severity == "note"


def test_inputs_of_another_size_from_a_step_on() -> None:
    """The loss jumps at that step, between two of the batches whose size is known."""
    noise = 1 + 0.1 * np.random.default_rng(0).standard_normal(STEPS)
    raw = network("input_size", since(1010, 1.0, 7.0) * noise)
    (finding,) = by("data-changed", evidence(learning() + since(1005, 0, 0.3), raw))
    assert (finding.step, finding.severity) == (pytest.approx(1005, abs=2), "warning")
    assert "7" in finding.summary
    assert finding.layer == ""
    branches = layers("signal_rms", left=ONES, right=since(1005, 1.0, 7.0), after=since(1005, 1.0, 2.5))
    (finding,) = by("data-changed", evidence(learning() + since(1005, 0, 0.3), raw | branches))
    assert finding.layer == "right"
    everywhere = layers("signal_rms", left=since(1005, 1.0, 7.0), right=since(1005, 1.0, 7.0))
    (finding,) = by("data-changed", evidence(learning() + since(1005, 0, 0.3), raw | everywhere))
    assert finding.layer == ""
    little = network("input_size", since(1010, 1.0, 1.5) * noise)
    once = network("input_size", np.where(T == 1020, 50.0, 1.0) * noise)
    growing = network("input_size", np.exp(T / 500) * noise)
    for sizes in (little, once, growing):
        assert by("data-changed", evidence(learning(), sizes)) == []
