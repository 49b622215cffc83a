"""The price of a step by what it computes: closed forms of its parts, and the same number on any machine."""

from __future__ import annotations

import time

import pytest
import torch
from torch import Tensor, nn
from unchanged import assert_unchanged, snapshot
from zoo import ARCHITECTURES

import wellcond as wc
from wellcond.diagnosis import nominal_step
from wellcond.diagnosis.budget import FAST_U, Budget
from wellcond.diagnosis.nominal_step import nominal_step_seconds
from wellcond.results import Cost

PARTS = ("CALL_SECONDS", "CONVOLUTION_SECONDS", "FLOP_SECONDS", "ELEMENT_SECONDS")


def only(part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let nothing but one part count, one second each."""
    for name in PARTS:
        monkeypatch.setattr(nominal_step, name, float(name == part))


def linear(examples: int, inputs: int, outputs: int) -> wc.Problem:
    model = nn.Linear(inputs, outputs, bias=False)
    return wc.Problem(model, nn.MSELoss(), (torch.ones(examples, inputs), torch.ones(examples, outputs)))


@pytest.mark.parametrize(("examples", "inputs", "outputs"), [(8, 4, 3), (64, 10, 1)])
def test_products_of_a_linear_layer_are_counted(
    examples: int, inputs: int, outputs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """2 n i o for the outputs, and the same for the gradient of the weight; inputs have none."""
    only("FLOP_SECONDS", monkeypatch)
    assert nominal_step_seconds(linear(examples, inputs, outputs)) == 4 * examples * inputs * outputs


def test_convolutions_are_counted_forward_and_backward(monkeypatch: pytest.MonkeyPatch) -> None:
    only("CONVOLUTION_SECONDS", monkeypatch)
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Conv2d(2, 2, 3), nn.Flatten(), nn.Linear(8, 3))
    of = wc.Problem(model, nn.CrossEntropyLoss(), (torch.randn(4, 1, 6, 6), torch.tensor([0, 1, 2, 0])))
    assert nominal_step_seconds(of) == 4


def test_numbers_written_grow_with_the_batch_and_calls_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    def counted(part: str) -> tuple[float, float]:
        only(part, monkeypatch)
        return nominal_step_seconds(linear(1000, 4, 3)), nominal_step_seconds(linear(2000, 4, 3))

    small, large = counted("ELEMENT_SECONDS")
    # the outputs, their gradient, and what losses write: at least 6000 more of 1000 examples with 3 outputs
    assert 6000 <= large - small <= small
    assert counted("CALL_SECONDS")[0] == counted("CALL_SECONDS")[1] > 2


@pytest.mark.parametrize("name", ["mlp_relu", "cnn_batch", "transformer", "lstm"])
def test_a_step_is_counted_once_and_changes_nothing(name: str) -> None:
    of = ARCHITECTURES[name]().problem()
    nominal_step_seconds(of)  # the first pass of all also looks for random numbers
    before, cost = snapshot(of.model), of.cost
    second = nominal_step_seconds(of)
    assert (of.cost - cost) == Cost(forwards=1, backwards=1)
    assert_unchanged(before, snapshot(of.model))
    assert nominal_step_seconds(of) == second > 0


def test_a_machine_that_is_busy_counts_the_same() -> None:
    class Slow(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            time.sleep(pause)
            return super().forward(x)

    model = Slow(3, 2)
    of = wc.Problem(model, nn.MSELoss(), (torch.ones(4, 3), torch.ones(4, 2)))
    pause = 0.0
    nominal_step_seconds(of)
    quick = nominal_step_seconds(of)
    pause = 0.02
    assert nominal_step_seconds(of) == quick < 0.02


@pytest.mark.parametrize(
    ("seconds", "steps"), [(1e-4, 400), (2.5e-3, 400), (2.6e-3, 200), (5e-3, 200), (5.1e-3, 100), (10.0, 100)]
)
def test_half_of_two_seconds_is_for_steps_and_a_hundred_are_allowed_anyway(seconds: float, steps: int) -> None:
    budget = Budget("fast", linear(8, 4, 3), None, 8, Cost())
    assert budget.most == FAST_U
    budget.extend(seconds)
    assert budget.most == steps
    assert sum(budget.prices.values()) <= steps


def test_budgets_in_seconds_are_not_extended() -> None:
    budget = Budget(60.0, linear(8, 4, 3), None, 8, Cost())
    budget.extend(1e-4)
    assert budget.most == float("inf")
