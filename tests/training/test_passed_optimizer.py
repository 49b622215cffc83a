"""Whatever people pass as an optimizer is taken as it is, or refused in one line that says what to write."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from small_problems import network, problem
from torch import nn
from torch.optim import SGD, Adam, Optimizer
from torch.optim.lr_scheduler import StepLR

import wellcond as wc
from wellcond.errors import InvalidProblem
from wellcond.training.passed_optimizer import optimizer_of

OTHER = nn.Linear(2, 2)

FORMS: dict[str, Callable[[Optimizer], Any]] = {
    "optimizer": lambda o: o,
    "dict": lambda o: {"optimizer": o, "lr_scheduler": {"scheduler": StepLR(o, 1), "interval": "step"}},
    "list": lambda o: [o],
    "lists": lambda o: ([o], [StepLR(o, 1)]),
    "dicts": lambda o: ({"optimizer": o}, {"optimizer": Adam(OTHER.parameters())}),
    "gan": lambda o: [Adam(OTHER.parameters()), o],
    "scheduler": lambda o: StepLR(o, 1),
}


class Wrapper(Optimizer):
    """Passes everything on to an optimizer, as Accelerate's does, and was never initialized as one."""

    def __init__(self, optimizer: Optimizer) -> None:
        self.optimizer = optimizer

    @property
    def param_groups(self) -> Any:
        return self.optimizer.param_groups

    @property
    def state(self) -> Any:
        return self.optimizer.state


FORMS |= {"wrapper": Wrapper, "wrapper in a dict": lambda o: {"optimizer": Wrapper(o)}}


@pytest.mark.parametrize("form", FORMS)
def test_the_optimizer_of_the_model_is_found(form: str) -> None:
    model = network()
    optimizer = SGD(model.parameters(), lr=0.1)
    assert optimizer_of(problem(model), FORMS[form](optimizer)) is optimizer


@pytest.mark.slow
@pytest.mark.parametrize("form", ["dict", "lists", "scheduler", "wrapper"])
def test_every_call_takes_these_forms(form: str) -> None:
    model = network()
    passed, measured = FORMS[form](SGD(model.parameters(), lr=0.1)), problem(model)
    assert wc.diagnose(measured, passed).lr == 0.1
    assert wc.max_lr(measured, passed).value > 0
    assert wc.suggest_lr(measured, passed, max_steps=20).lr > 0
    assert wc.treat(measured, passed, steps=3, seeds=[0], remedies=["clip"]).arms
    assert len(wc.covariate_shift(measured, passed)) > 1


@pytest.mark.slow
def test_the_limit_of_a_wrapped_adam_is_that_of_adam() -> None:
    model = network()
    measured, adam = problem(model), Adam(model.parameters(), lr=1e-3)
    assert wc.max_lr(measured, Wrapper(adam)).value == pytest.approx(wc.max_lr(measured, adam).value, rel=1e-9)
    diagnosis = wc.diagnose(measured, Wrapper(adam))
    assert not diagnosis.failed
    assert diagnosis.max_lr is not None


@pytest.mark.parametrize(
    ("passed", "says"),
    [
        ("adam", "optimizer is 'adam', a str. Write  optimizer = torch.optim.Adam"),
        (1e-3, "optimizer is the number 0.001. Write  optimizer = torch.optim.Adam"),
        ({"lr": 0.1}, "optimizer is a dict without a torch optimizer in it. Write"),
        ([], "optimizer is a list without a torch optimizer in it. Write"),
        (network().parameters(), "optimizer is <generator .*, a generator. Write"),
    ],
)
@pytest.mark.parametrize("call", [wc.diagnose, wc.suggest_lr, wc.treat, wc.max_lr])
def test_anything_else_is_refused_in_one_line(call: Any, passed: Any, says: str) -> None:
    with pytest.raises(TypeError, match=says) as refusal:
        call(problem(), passed)
    assert "\n" not in str(refusal.value)


def test_two_optimizers_of_one_model_are_refused() -> None:
    model = network()
    weights, biases = (torch.optim.SGD([p], lr=0.1) for p in list(model.parameters())[:2])
    with pytest.raises(InvalidProblem, match=r"2 optimizers hold parameters of the model \(SGD, SGD\)\. Pass one"):
        wc.diagnose(problem(model), [weights, biases])
