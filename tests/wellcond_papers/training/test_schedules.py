"""Schedules by their closed forms."""

from __future__ import annotations

import math

import pytest
import torch

from wellcond.results import Row
from wellcond.results.quantities import TEST_ACCURACY, TEST_LOSS, TRAINING_LOSS
from wellcond_papers.training import schedules
from wellcond_papers.training.loop import Loop
from wellcond_papers.training.step import EagerStep


def shown(schedule: schedules.Plateau, values: list[float], quantity: str = TEST_LOSS) -> list[float]:
    """The factor after each evaluation."""
    factors = []
    for step, value in enumerate(values):
        schedules.show(schedule, [Row(step, "", quantity, value, "")])
        factors.append(schedule(step))
    return factors


def test_steps_multiply_from_each_step_on() -> None:
    schedule = schedules.steps([3, 5], 0.5)
    assert [schedule(step) for step in range(7)] == [1, 1, 1, 0.5, 0.5, 0.25, 0.25]


def test_cosine_is_half_a_period_and_stays_at_its_end() -> None:
    schedule = schedules.cosine(8, end=0.2)
    assert schedule(0) == 1
    assert schedule(4) == pytest.approx(0.6)
    assert schedule(2) == pytest.approx(0.6 + 0.4 / math.sqrt(2))
    assert schedule(8) == schedule(100) == pytest.approx(0.2)


def test_warm_up_is_linear_and_multiplies_the_next_schedule() -> None:
    schedule = schedules.warm_up(4, schedules.steps([2], 0.5))
    assert [schedule(step) for step in range(6)] == [0.25, 0.5, 0.375, 0.5, 0.5, 0.5]


def test_warm_up_begins_at_the_stated_factor() -> None:
    # from 0.01 to 0.1, as lange2022 does it
    schedule = schedules.warm_up(9, begin=0.1)
    assert [schedule(step) for step in (0, 4, 8, 9)] == pytest.approx([0.2, 0.6, 1.0, 1.0])


def test_a_plateau_halves_after_patience_evaluations_without_a_new_best() -> None:
    values = [3.0, 2.0, 2.0, 2.1, 1.5, 1.6, 1.7, 1.8, 1.9]
    assert shown(schedules.plateau(patience=2), values) == [1, 1, 1, 0.5, 0.5, 0.5, 0.25, 0.25, 0.125]


def test_a_plateau_of_accuracy_is_where_it_no_longer_grows() -> None:
    factors = shown(schedules.plateau(TEST_ACCURACY), [0.1, 0.2, 0.2, 0.3, 0.25], TEST_ACCURACY)
    assert factors == [1, 1, 0.5, 0.5, 0.25]


def test_a_plateau_ignores_other_quantities_and_small_improvements() -> None:
    assert shown(schedules.plateau(), [3.0, 4.0], TRAINING_LOSS) == [1, 1]
    assert shown(schedules.plateau(threshold=0.1), [3.0, 2.95]) == [1, 0.5]


def test_a_plateau_after_a_warm_up_sees_the_evaluations() -> None:
    schedule = schedules.warm_up(2, schedules.plateau())
    schedules.show(schedule, [Row(0, "", TEST_LOSS, 1.0, ""), Row(1, "", TEST_LOSS, 1.0, "")])
    assert [schedule(step) for step in (0, 5)] == [0.25, 0.5]


def test_what_a_plateau_knows_follows_from_the_evaluations_alone() -> None:
    values = [3.0, 2.0, 2.5, 2.6, 2.0, 1.0, 1.2]
    one_by_one, at_once = schedules.plateau(patience=2), schedules.plateau(patience=2)
    last = shown(one_by_one, values)[-1]
    schedules.show(at_once, [Row(0, "", TEST_LOSS, value, "") for value in values])
    assert at_once(0) == last == 0.5


def test_a_plateau_forgets_the_run_before() -> None:
    schedule = schedules.warm_up(1, schedules.plateau())
    for _ in range(2):
        weight = torch.zeros(1, requires_grad=True)
        optimizer = torch.optim.SGD([weight], lr=1.0)
        step = EagerStep[float](optimizer, lambda step, batch, weight=weight: weight.square().sum())  # type: ignore[misc]
        watched = {"at": range(5), "evaluate": lambda step: [Row(step, "", TEST_LOSS, 1.0, "")]}
        Loop(optimizer, step, 4, schedule=schedule, **watched).run([0.0])
        assert optimizer.param_groups[0]["lr"] == 0.5**3
