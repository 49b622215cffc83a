"""Rates that a schedule comes to."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import Adam, Optimizer
from torch.optim import lr_scheduler as schedules

from wellcond.training.schedule import schedule_of, stepped

Make = Callable[[Optimizer], Any]
SOON_OVER: dict[str, Make] = {
    "a tenth less each time": lambda o: schedules.ExponentialLR(o, 0.9),
    "a tenth after 30": lambda o: schedules.StepLR(o, 30),
    "by a function": lambda o: schedules.LambdaLR(o, lambda k: 0.95**k),
}
SOUND: dict[str, Make] = {
    "cosine": lambda o: schedules.CosineAnnealingLR(o, 50),
    "one cycle": lambda o: schedules.OneCycleLR(o, 0.1, total_steps=50),
    "linear to zero": lambda o: schedules.LinearLR(o, 1.0, 0.0, 50),
    "polynomial": lambda o: schedules.PolynomialLR(o, 50),
    "restarts": lambda o: schedules.CosineAnnealingWarmRestarts(o, 10),
    "slow decay": lambda o: schedules.ExponentialLR(o, 0.999),
    "warm-up, then cosine": lambda o: schedules.SequentialLR(
        o, [schedules.LinearLR(o, 0.01, total_iters=20), schedules.CosineAnnealingLR(o, 50)], [20]
    ),
    "inverse square root": lambda o: schedules.LambdaLR(o, lambda k: min(max(k, 1) / 200, (200 / max(k, 1)) ** 0.5)),
}


def adam(lr: float = 0.1) -> Adam:
    return Adam(nn.Linear(2, 2).parameters(), lr)


@pytest.mark.parametrize("make", SOON_OVER.values(), ids=SOON_OVER)
def test_decays_that_are_soon_over(make: Make) -> None:
    schedule = schedule_of(make(adam()))
    assert schedule is not None
    assert schedule.at_full_rate < 100


@pytest.mark.parametrize("make", SOUND.values(), ids=SOUND)
def test_schedules_of_a_sensible_length(make: Make) -> None:
    optimizer = adam()
    scheduler = make(optimizer)
    before = optimizer.param_groups[0]["lr"], scheduler.last_epoch
    schedule = schedule_of(scheduler)
    assert schedule is not None
    assert schedule.at_full_rate > 100
    assert schedule.highest == pytest.approx(0.1, rel=1e-3)
    assert (optimizer.param_groups[0]["lr"], scheduler.last_epoch) == before


def test_a_warm_up_beyond_the_horizon_has_no_highest_rate_yet() -> None:
    schedule = schedule_of(schedules.LinearLR(adam(), 1e-3, total_iters=50_000))
    assert schedule is not None
    assert schedule.highest == math.inf


def test_a_schedule_that_follows_a_metric_is_not_known() -> None:
    assert schedule_of(schedules.ReduceLROnPlateau(adam())) is None


@pytest.mark.parametrize(("per_step", "expected"), [(1, True), (10, False)])
def test_how_often_it_is_stepped(per_step: int, expected: bool) -> None:
    model = nn.Linear(2, 2)
    optimizer = Adam(model.parameters(), 0.1)
    scheduler = schedules.ExponentialLR(optimizer, 0.9)
    for k in range(20):
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
        if k % per_step == 0:
            scheduler.step()
    schedule = schedule_of(scheduler)
    assert schedule is not None
    assert schedule.is_per_batch is expected


def test_a_schedule_that_is_stepped_once_per_epoch_is_passed_in_the_form_of_lightning() -> None:
    optimizer, other = adam(), adam()
    own, another = schedules.ExponentialLR(optimizer, 0.9), schedules.ExponentialLR(other, 0.9)
    configured = [optimizer, other], [another, {"scheduler": own, "interval": "step"}]
    assert stepped(own) == (own, False, False)
    assert stepped({"scheduler": own, "interval": "epoch"}) == (own, True, True)
    assert stepped(configured, optimizer) == (own, False, True)
    assert stepped(configured, other) == (another, True, True)
    assert stepped(optimizer) is None
    schedule = schedule_of(own, is_by_epoch=True)
    assert schedule is not None
    assert not schedule.is_per_batch
    with pytest.raises(ValueError, match=r"'batch'.*epoch"):
        stepped({"scheduler": own, "interval": "batch"})


def test_when_a_schedule_ends() -> None:
    never, at_zero = schedule_of(schedules.ExponentialLR(adam(), 0.9)), schedule_of(schedules.PolynomialLR(adam(), 20))
    assert never is not None
    assert at_zero is not None
    assert (never.ends, at_zero.ends) == (None, 20)
    assert never.worth == pytest.approx(10)
    assert at_zero.worth == pytest.approx(10.5)
