"""One outcome per run, and what a trial as a whole says, on losses written by hand."""

from __future__ import annotations

import math

import pytest

from wellcond.diagnosis.after_runs import HeldOut
from wellcond.diagnosis.learned import LEARNED, has_learned
from wellcond.diagnosis.probes.paired import Paired
from wellcond.diagnosis.trial_result import Attempt, Outcome, Trial
from wellcond.results.run import Run

BEFORE = (2.0, 2.2, 1.8, 2.0)
CONSTANT = 1.9


def attempt(*after: float, factor: float = 1.0, early: tuple[float, ...] | None = None) -> Attempt:
    return Attempt(factor, 0.1 * factor, Run([*BEFORE, *after]), after if early is None else early, after)


def shifted(by: float) -> tuple[float, ...]:
    """Every batch's loss, moved by the same amount: the standard error of the change is zero."""
    return tuple(loss + by for loss in BEFORE)


@pytest.mark.parametrize(
    ("after", "outcome"),
    [
        (shifted(-0.5), "learns"),
        (shifted(-0.2), "falls"),  # to 1.8, which is above 0.9 of the constant's 1.9
        (shifted(-1e-4), "falls"),
        (shifted(0.0), "flat"),
        ((1.9, 2.3, 1.7, 2.1), "flat"),  # ±0.1 by chance
        ((1.9, 2.3, 1.6, 2.0), "flat"),  # −0.05 ± 0.08
        (shifted(0.2), "rises"),
        ((2.0, 2.2, math.nan, 2.0), "diverges"),
        ((2.0, 2.2, math.inf, 2.0), "diverges"),
    ],
)
def test_every_run_has_one_outcome(after: tuple[float, ...], outcome: Outcome) -> None:
    assert Trial(BEFORE, CONSTANT).outcome(attempt(*after)) == outcome


def test_without_a_constant_a_run_learns_if_its_loss_falls_by_a_tenth() -> None:
    assert Trial(BEFORE).outcome(attempt(*shifted(-0.21))) == "learns"
    assert Trial(BEFORE).outcome(attempt(*shifted(-0.19))) == "falls"


def test_an_early_outcome_is_that_of_the_first_steps() -> None:
    run = attempt(*shifted(-1.0), early=shifted(0.1))
    trial = Trial(BEFORE, CONSTANT, run)
    assert (trial.outcome(run, early=True), trial.outcome(run)) == ("rises", "learns")
    half_way = attempt(*shifted(-1.0), early=shifted(-0.1))
    assert Trial(BEFORE, CONSTANT).outcome(half_way, early=True) == "falls"


def test_learned_means_clearly_below_a_constant() -> None:
    assert has_learned(0.99 * LEARNED, 1.0)
    assert not has_learned(1.01 * LEARNED, 1.0)
    assert not has_learned(-1.0, 1.0)  # it is not a loss whose least value is 0
    assert not has_learned(None, 1.0)
    assert Trial((0.1, 0.2), 1.0).has_learned
    assert not Trial(BEFORE, CONSTANT).has_learned


@pytest.mark.parametrize(
    ("own", "trains"),
    [
        (shifted(-0.5), True),
        (shifted(-0.1), None),
        (shifted(0.0), False),
        (shifted(0.3), False),
        ((math.nan,) * 4, False),
    ],
)
def test_a_network_trains_if_its_own_run_learns(own: tuple[float, ...], trains: bool | None) -> None:
    trial = Trial(BEFORE, CONSTANT, attempt(*own))
    assert trial.trains is trains
    assert trial.fails == (trains is False)


def test_a_network_that_learns_at_another_rate_does_not_fail() -> None:
    slow = attempt(*shifted(-0.5), factor=0.1)
    trial = Trial(BEFORE, CONSTANT, attempt(*shifted(0.3)), (slow,))
    assert trial.trains is False
    assert not trial.fails


def test_steps_around_a_minimum_are_training() -> None:
    before = (0.1, 0.1)
    assert Trial(before, 2.0, attempt(0.15, 0.15)).trains
    assert Trial(before, 2.0, attempt(0.4, 0.4)).trains is False


def test_a_fall_from_a_useless_start_is_not_training_well() -> None:
    high = tuple(10 * loss for loss in BEFORE)
    unlearns = Trial(high, CONSTANT, attempt(1.7, 1.7, 1.7, 1.6))
    assert unlearns.trains
    assert not unlearns.trains_well
    assert Trial(high, CONSTANT, attempt(*(0.5,) * 4)).trains_well  # it halves the constant's loss too
    barely = Trial(high, 15.0, attempt(*(13.0,) * 4))
    assert barely.trains_well  # 20 is no poor start next to a constant's 15
    assert not Trial(high, 9.0, attempt(*(8.0,) * 4)).trains_well


def test_a_rise_in_proportion_to_the_rate_is_uphill() -> None:
    fast, slow = attempt(*shifted(0.1)), attempt(*shifted(0.01), factor=0.1)
    assert Trial(BEFORE, CONSTANT, fast, (slow,)).uphill == (fast, slow)
    overshoots = attempt(*shifted(0.001), factor=0.1)  # with the square of the rate
    assert Trial(BEFORE, CONSTANT, fast, (overshoots,)).uphill is None


@pytest.mark.parametrize(
    ("after", "of_others", "held_out", "learns_nothing"),
    [
        ((1.78, 1.98, 1.59, 1.78), 2.1, None, False),  # 6 % below a constant, on all batches alike
        ((1.78, 1.98, 1.59, 1.78), 1.81, None, True),  # but as good with the outputs of others
        ((1.6, 2.2, 1.35, 1.98), 2.1, None, True),  # by chance: it is 0.9 standard errors
        ((1.78, 1.98, 1.59, 1.78), 2.1, HeldOut(1.69, 2.3, 2.0), True),  # learned by heart
    ],
)
def test_a_little_that_is_many_standard_errors_is_learned(
    after: tuple[float, ...], of_others: float, held_out: HeldOut | None, learns_nothing: bool
) -> None:
    """Of rankings and survival times there is little to learn."""
    run = Run([2.0] * 56)
    own = Attempt(1.0, 0.1, run, after, after, paired=Paired(sum(after) / 4, of_others))
    others = tuple(Attempt(factor, 0.1 * factor, run, BEFORE, BEFORE) for factor in (10.0, 100.0))
    assert Trial(BEFORE, CONSTANT, own, others, held_out=held_out).learns_nothing is learns_nothing
