"""What is read from optimizers, and copies of them: under schedulers, in wrappers, with state, under BNP."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
from small_problems import losses_by_torch, problem
from torch import nn, optim
from torch.optim import SGD, Adam, AdamW, Optimizer
from zoo import seeded

import wellcond as wc
from wellcond.errors import Unsupported
from wellcond.training.copy_trainer import CopyTrainer
from wellcond.training.optimizers import (
    adds_penalty,
    configured_lr,
    copy_for,
    current_lr,
    is_adaptive,
    is_decoupled,
    largest_lr,
    nonzero_lr,
    shrinking_steps,
    take_step,
    unwrapped,
)


def dense() -> wc.Problem:
    return problem(seeded(lambda: nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))))


def parameters() -> list[nn.Parameter]:
    return [nn.Parameter(torch.ones(2))]


# learning rates


def test_a_scheduler_changes_the_current_rate_and_not_the_configured_one() -> None:
    optimizer = SGD(parameters(), lr=0.1)
    (group,) = optimizer.param_groups
    assert (configured_lr(group), current_lr(group), nonzero_lr(group)) == (0.1, 0.1, 0.1)
    optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.25 + step)
    assert (configured_lr(group), current_lr(group), nonzero_lr(group)) == (0.1, 0.025, 0.025)


def test_a_warm_up_from_zero_is_tried_at_the_configured_rate() -> None:
    optimizer = SGD(parameters(), lr=torch.tensor(0.5))
    optim.lr_scheduler.LambdaLR(optimizer, lambda step: step / 100)
    (group,) = optimizer.param_groups
    assert (configured_lr(group), current_lr(group), nonzero_lr(group)) == (0.5, 0.0, 0.5)
    assert largest_lr(optimizer) == 0.5


# kinds


class Lion(Optimizer):
    """An optimizer of another library, with Adam's settings."""

    def __init__(self, params: Any) -> None:
        super().__init__(params, {"lr": 1e-4, "betas": (0.9, 0.99), "weight_decay": 0.1})


@pytest.mark.parametrize(
    ("make", "adaptive", "decoupled", "penalty"),
    [
        (lambda p: SGD(p, 0.1, weight_decay=0.1), False, False, False),
        (lambda p: optim.ASGD(p, 0.1, weight_decay=0.1), False, False, False),
        (lambda p: Adam(p, weight_decay=0.1), True, False, True),
        (lambda p: Adam(p), True, False, False),
        (lambda p: AdamW(p, weight_decay=0.1), True, True, False),
        (lambda p: optim.NAdam(p, weight_decay=0.1, decoupled_weight_decay=True), True, True, False),
        (lambda p: optim.RMSprop(p, weight_decay=0.1), True, False, True),
        (lambda p: optim.Adafactor(p, weight_decay=0.1), True, True, False),
        (lambda p: optim.Rprop(p), True, False, False),
        (lambda p: optim.LBFGS(p), False, False, False),
        (Lion, True, False, False),
        (lambda p: wc.LARS(p, 0.1, weight_decay=0.1), False, False, False),
    ],
)
def test_optimizers_are_told_apart_by_what_they_do(make: Any, adaptive: bool, decoupled: bool, penalty: bool) -> None:
    optimizer = make(parameters())
    (group,) = optimizer.param_groups
    assert is_adaptive(optimizer) == adaptive
    assert is_decoupled(optimizer, group) == decoupled
    assert adds_penalty(optimizer, group) == penalty


@pytest.mark.parametrize(
    ("kind", "options", "steps"),
    [
        (SGD, {"lr": 0.1, "momentum": 0.9, "weight_decay": 5e-4}, 2000.0),
        (AdamW, {"lr": 1e-3, "weight_decay": 0.01}, 1e5),
        (Adam, {"lr": 1e-3, "weight_decay": 0.1}, math.inf),
        (SGD, {"lr": 0.1}, math.inf),
    ],
)
def test_in_how_many_steps_decay_shrinks_a_weight(kind: Any, options: dict[str, float], steps: float) -> None:
    optimizer = kind(parameters(), **options)
    assert shrinking_steps(optimizer, optimizer.param_groups[0]) == pytest.approx(steps)


# wrappers


class Accelerated(Optimizer):
    """As Accelerate's: it forwards to an optimizer inside, and was never initialized as one."""

    def __init__(self, inside: Optimizer) -> None:
        self.optimizer = inside

    @property
    def param_groups(self) -> Any:
        return self.optimizer.param_groups


class LightningOptimizer:
    """As Lightning's: it takes over the attributes and the class of the optimizer inside."""

    def __init__(self, inside: Optimizer) -> None:
        self.__dict__ = {name: value for name, value in vars(inside).items() if name != "step"}
        self.__class__ = type("Lightning", (LightningOptimizer, type(inside)), {})  # type: ignore[assignment]
        self._inside = inside

    @property
    def optimizer(self) -> Optimizer:
        return self._inside


class Lookahead(Optimizer):
    """It has a step of its own, around that of the optimizer it holds."""

    def __init__(self, inside: Optimizer) -> None:
        self.optimizer = inside
        super().__init__(inside.param_groups, {})


def test_wrappers_are_taken_off_and_optimizers_that_hold_others_are_not() -> None:
    inside = Adam(parameters())
    wrapper: Any = LightningOptimizer(inside)
    assert isinstance(wrapper, Adam)
    assert unwrapped(inside) is inside
    assert unwrapped(Accelerated(inside)) is inside
    assert unwrapped(wrapper) is inside
    assert unwrapped(Accelerated(wrapper)) is inside
    outside = Lookahead(inside)
    assert unwrapped(outside) is outside


# copies


def test_groups_stay_in_proportion_and_a_rate_of_zero_stays_zero() -> None:
    of = dense()
    first, second, third, _ = of.model.parameters()
    groups = [{"params": [first], "lr": 0.2}, {"params": [second], "lr": 0.05}, {"params": [third], "lr": 0.0}]
    run = CopyTrainer(of, SGD(groups, lr=1.0, momentum=0.3)).start(2.0)
    assert [group["lr"] for group in run.optimizer.param_groups] == pytest.approx([2.0, 0.5, 0.0])
    assert {group["momentum"] for group in run.optimizer.param_groups} == {0.3}
    assert run.optimizer.param_groups[0]["params"][0] is next(run.model.parameters())


@pytest.mark.parametrize("kind", ["scheduler", "tensor", "wrapper", "stepped"])
def test_a_copy_has_the_rate_whatever_is_around_the_optimizer(kind: str) -> None:
    of = dense()
    lr = torch.tensor(0.1) if kind == "tensor" else 0.1
    optimizer = Adam(of.model.parameters(), lr=lr, betas=(0.8, 0.9))
    if kind == "scheduler":
        optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.0)  # warm-up: the rate now is 0
    if kind == "stepped":
        of.model(of.batches[0][0]).sum().backward()
        optimizer.step()
    run = CopyTrainer(of, Accelerated(optimizer) if kind == "wrapper" else optimizer).start(0.25)
    stepping = run.optimizer
    assert float(stepping.param_groups[0]["lr"]) == pytest.approx(0.25)
    assert isinstance(stepping.param_groups[0]["lr"], torch.Tensor) == (kind == "tensor")
    assert stepping.param_groups[0]["betas"] == (0.8, 0.9)
    own, other = next(of.model.parameters()), next(run.model.parameters())
    if kind == "stepped":
        assert torch.equal(stepping.state[other]["exp_avg"], optimizer.state[own]["exp_avg"])
        assert stepping.state[other]["exp_avg"] is not optimizer.state[own]["exp_avg"]
    other.sum().backward()
    before = other.detach().clone()
    stepping.step()
    assert not torch.equal(other, before)


@pytest.mark.slow
def test_a_copy_of_an_optimizer_under_bnp_is_under_bnp() -> None:
    of = dense()
    optimizer = SGD(of.model.parameters(), lr=0.1)
    other = copy.deepcopy(of.model)
    bnp = wc.BNP(of.model, optimizer, rho=0.5)
    run = CopyTrainer(of, optimizer).start(0.05).run(6)
    by_hand = SGD(other.parameters(), lr=0.05)
    wc.BNP(other, by_hand, rho=0.5)
    assert run.losses == pytest.approx(losses_by_torch(other, by_hand, 6, of.batches), rel=1e-10)
    assert not any(layer.mean.any() for layer in bnp.layers.values())


def test_an_optimizer_that_cannot_be_copied_is_refused() -> None:
    model = dense().model
    optimizer: Any = SGD(model.parameters(), lr=0.1)
    optimizer.lines = (line for line in ())
    with pytest.raises(Unsupported, match="SGD cannot be copied"):
        copy_for(optimizer, model, copy.deepcopy(model))


def test_a_step_without_a_finite_loss_is_not_taken() -> None:
    w = torch.ones(1, requires_grad=True)
    optimizer = torch.optim.SGD([w], 0.1)
    assert math.isnan(take_step(optimizer, lambda: w.sum() * math.nan))
    assert w.tolist() == [1.0]
