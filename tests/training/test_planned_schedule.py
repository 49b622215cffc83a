"""A schedule of the planned run in runs of other lengths."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.optim import SGD, Adam, Optimizer
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR, OneCycleLR, ReduceLROnPlateau, StepLR

from wellcond.errors import InvalidProblem, Unsupported
from wellcond.training.planned_schedule import planned_schedule


def sgd(*rates: float) -> Optimizer:
    return SGD([{"params": [torch.nn.Parameter(torch.zeros(1))], "lr": lr} for lr in rates], lr=0.1, momentum=0.9)


def followed(make: Any, optimizer: Optimizer, planned: int, steps: int, lr: float) -> list[list[float]]:
    """The rates of every group at each step of a shorter run."""
    planned_schedule(make, optimizer, planned).attach(optimizer, lr, steps)
    rates = []
    for _ in range(steps):
        optimizer.step()
        rates.append([group["lr"] for group in optimizer.param_groups])
    return rates


def test_a_warm_up_takes_the_same_share_of_a_shorter_run() -> None:
    rates = followed(lambda o: LambdaLR(o, lambda t: min(1.0, t / 100)), sgd(0.1), 1000, 50, lr=2.0)
    assert [rate for [rate] in rates[:6]] == pytest.approx([0.0, 0.4, 0.8, 1.2, 1.6, 2.0])
    assert [rate for [rate] in rates[6:]] == pytest.approx([2.0] * 44)


def test_a_cosine_ends_at_its_end() -> None:
    rates = [rate for [rate] in followed(lambda o: CosineAnnealingLR(o, 400), sgd(0.1), 400, 40, lr=1.0)]
    assert rates == sorted(rates, reverse=True)
    assert rates[0] == pytest.approx(1.0)
    assert rates[-1] < 0.01


def test_groups_keep_their_proportions() -> None:
    rates = followed(lambda o: StepLR(o, 50, gamma=0.1), sgd(0.1, 0.4), 100, 10, lr=4.0)
    assert rates[0] == pytest.approx([1.0, 4.0])
    assert rates[-1] == pytest.approx([0.1, 0.4])


def test_a_one_cycle_is_raced_by_its_highest_rate_and_cycles_betas() -> None:
    adam = Adam([torch.nn.Parameter(torch.zeros(1))], lr=1e-3)
    schedule = planned_schedule(lambda o: OneCycleLR(o, 0.01, total_steps=100), adam, 100)
    assert schedule.peak == pytest.approx(0.01)
    assert schedule.settings[0][0]["betas"][0] == pytest.approx(0.95)
    assert schedule.settings[30][0]["betas"][0] == pytest.approx(0.85, abs=0.01)


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda o: OneCycleLR(o, 0.1, total_steps=60), InvalidProblem, "ends after 60 steps"),
        (lambda o: ReduceLROnPlateau(o), Unsupported, "follows a measured loss"),
        (lambda o: LambdaLR(o, lambda _t: 0.0), InvalidProblem, "nothing to scale"),
        (lambda _o: 0.1, InvalidProblem, "pass a function that makes the schedule"),
        (StepLR(sgd(0.1), 5), InvalidProblem, "pass a function that makes the schedule"),
    ],
    ids=["too_short", "metric", "zero", "number", "schedule"],
)
def test_what_is_no_schedule_of_the_run_is_refused(make: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        planned_schedule(make, sgd(0.1), 100)
