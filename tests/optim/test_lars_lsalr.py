"""LARS and LSALR against their formulas written out, and what happens at zero."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from zoo import normal

from wellcond.optim.scaled_sgd import LARS, LSALR

PLAIN = {"momentum": 0.0, "nesterov": False, "weight_decay": 0.0}


def length(tensor: Tensor) -> float:
    return math.sqrt(sum(value * value for value in tensor.flatten().tolist()))


def lars_scale(weight: Tensor, gradient: Tensor) -> float:
    return length(weight) / length(gradient)


def lsalr_scale(weight: Tensor, gradient: Tensor) -> float:
    return 1 + math.log(1 + 1 / length(gradient))


def parameters() -> list[nn.Parameter]:
    return [
        nn.Parameter(normal(3, 4, seed=1)),
        nn.Parameter(normal(2, 3, 2, 2, seed=2)),
        nn.Parameter(normal(5, seed=3)),
    ]


def give_gradients(params: list[nn.Parameter], step: int) -> None:
    for i, p in enumerate(params):
        p.grad = 10.0 ** (i - 1) * normal(*p.shape, seed=10 * step + i)


OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "weight_decay": {"weight_decay": 0.05},
    "momentum": {"momentum": 0.9},
    "nesterov": {"momentum": 0.9, "nesterov": True},
    "all": {"momentum": 0.9, "nesterov": True, "weight_decay": 0.05},
}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize(("optimizer_type", "scale"), [(LARS, lars_scale), (LSALR, lsalr_scale)])
def test_steps_are_those_of_sgd_with_gradients_scaled_by_the_formula(
    optimizer_type: Callable[..., torch.optim.Optimizer],
    scale: Callable[[Tensor, Tensor], float],
    options: dict[str, Any],
) -> None:
    """Weight decay enters before the scale is taken, momentum after."""
    params, reference = parameters(), parameters()
    optimizer = optimizer_type(params, lr=0.3, **(PLAIN | options))
    momentum = {key: value for key, value in options.items() if key != "weight_decay"}
    sgd = torch.optim.SGD(reference, lr=0.3, **momentum)
    for step in range(4):
        give_gradients(params, step)
        give_gradients(reference, step)
        for p in reference:
            decayed = p.grad + options.get("weight_decay", 0.0) * p.detach()
            p.grad = decayed * scale(p.detach(), decayed)
        optimizer.step()
        sgd.step()
        for p, expected in zip(params, reference, strict=True):
            torch.testing.assert_close(p, expected, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize(("optimizer", "lr"), [(LARS(parameters()), 2.0), (LSALR(parameters()), 0.1)])
def test_the_learning_rates_are_those_of_zhang2018(optimizer: torch.optim.Optimizer, lr: float) -> None:
    assert optimizer.defaults["lr"] == lr


def test_a_lars_step_moves_a_weight_by_a_share_of_its_norm_whatever_the_gradient() -> None:
    for size in (1e-12, 1.0, 1e12):
        weight = nn.Parameter(normal(4, 5))
        before = weight.detach().clone()
        weight.grad = size * normal(4, 5, seed=1)
        LARS([weight], lr=20.0, trust_coefficient=1e-3).step()
        assert length(weight.detach() - before) == pytest.approx(20 * 1e-3 * length(before), rel=1e-12)


def test_without_a_trust_coefficient_a_lars_group_takes_plain_sgd_steps() -> None:
    weight, bias = nn.Parameter(torch.tensor([3.0, 4.0])), nn.Parameter(torch.zeros(2))
    groups = [{"params": [weight]}, {"params": [bias], "trust_coefficient": None, "lr": 0.5}]
    optimizer = LARS(groups, lr=0.1, **PLAIN)
    weight.grad, bias.grad = torch.tensor([0.0, 7.0]), torch.tensor([1.0, 2.0])
    optimizer.step()
    torch.testing.assert_close(weight.detach(), torch.tensor([3.0, 3.5]))
    torch.testing.assert_close(bias.detach(), torch.tensor([-0.5, -1.0]))


def test_a_zero_weight_takes_a_plain_sgd_step_in_lars() -> None:
    weight = nn.Parameter(torch.zeros(2))
    weight.grad = torch.tensor([1.0, -2.0])
    LARS([weight], lr=0.1, **PLAIN).step()
    torch.testing.assert_close(weight.detach(), torch.tensor([-0.1, 0.2]))


@pytest.mark.parametrize("optimizer_type", [LARS, LSALR])
@pytest.mark.parametrize("size", [0.0, 1e-44, 1e-30, 1e-20, 1e30])
def test_vanishing_and_huge_gradients_give_finite_steps(optimizer_type: Any, size: float) -> None:
    weight = nn.Parameter(torch.full((3, 3), 100.0))
    weight.grad = torch.full((3, 3), size)
    optimizer_type([weight], lr=0.1, **PLAIN).step()
    assert bool(torch.isfinite(weight).all())
    if size == 0:
        assert torch.equal(weight.detach(), torch.full((3, 3), 100.0))


def test_lsalr_lets_small_gradients_take_larger_steps_and_large_ones_those_of_sgd() -> None:
    def step_over_sgds(size: float) -> float:
        weight = nn.Parameter(torch.zeros(1, dtype=torch.float64))
        weight.grad = torch.tensor([size], dtype=torch.float64)
        LSALR([weight], lr=1.0, **PLAIN).step()
        return -float(weight.detach()) / size

    assert step_over_sgds(1e9) == pytest.approx(1 + 1e-9, rel=1e-12)
    assert step_over_sgds(1.0) == pytest.approx(1 + math.log(2), rel=1e-12)
    assert step_over_sgds(1e-6) == pytest.approx(1 + math.log(1_000_001), rel=1e-12)


@pytest.mark.parametrize("wrong", [0.0, -1e-3, math.nan])
def test_a_trust_coefficient_must_be_positive(wrong: float) -> None:
    with pytest.raises(ValueError, match="trust_coefficient must be > 0, or None for plain SGD"):
        LARS(parameters(), trust_coefficient=wrong)
