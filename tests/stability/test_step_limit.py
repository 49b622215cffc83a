"""The limits of SGD, by letting torch's own SGD run on a quadratic just below and just above them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import wellcond as wc
from wellcond.diagnosis.diagnose import diagnose
from wellcond.diagnosis.step_limit import step_limit

X = torch.tensor([[1.0], [3.0]], dtype=torch.float64)
CURVATURE = 10.0  # of mean (w x)² is 2 · mean x²


def quadratic() -> wc.Problem:
    model = nn.Linear(1, 1, bias=False).double()
    nn.init.ones_(model.weight)
    return wc.Problem(model, nn.MSELoss(), (X, torch.zeros_like(X)))


def distance_after(steps: int, lr: float, options: dict[str, Any]) -> float:
    """|w| after SGD on ½ · CURVATURE · w², from 1."""
    w = torch.ones(1, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.SGD([w], lr=lr, **options)
    for _ in range(steps):
        w.grad = CURVATURE * w.detach()
        optimizer.step()
    return float(w.detach().abs())


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"momentum": 0.9},
        {"momentum": 0.9, "nesterov": True},
        {"momentum": 0.5, "dampening": 0.3},
        {"dampening": 0.3},
        {"momentum": 0.9, "weight_decay": 2.0},
    ],
    ids=["plain", "momentum", "nesterov", "dampening", "dampening_alone", "weight_decay"],
)
def test_sgd_shrinks_below_its_limit_and_grows_above(options: dict[str, Any]) -> None:
    problem = quadratic()
    optimizer = torch.optim.SGD(problem.model.parameters(), lr=0.1, **options)
    step = diagnose(problem, optimizer).step.optimizer
    assert step is not None
    assert step.limit is not None
    # 1 % off the limit changes |w| by 2 % a step without momentum, and by more with it: 1.02⁶⁰⁰ is 10⁵
    assert distance_after(600, 0.99 * step.limit, options) < 1e-3
    assert distance_after(600, 1.01 * step.limit, options) > 1e3


def test_the_smallest_limit_of_several_groups_counts_beside_their_largest_lr() -> None:
    model = nn.Sequential(nn.Linear(1, 2), nn.Linear(2, 1)).double()
    problem = wc.Problem(model, nn.MSELoss(), (X, torch.zeros_like(X)))
    groups = [
        {"params": model[0].parameters(), "lr": 0.3, "momentum": 0.0},
        {"params": model[1].parameters(), "lr": 0.1, "momentum": 0.9},
    ]
    hessian = wc.eigenvalues(wc.Hessian(problem))
    step = step_limit(problem, hessian, torch.optim.SGD(groups))
    assert step.optimizer is not None
    assert step.plain is not None
    assert step.optimizer.lr == 0.3
    assert step.optimizer.limit == pytest.approx(step.plain)


@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.AdamW, torch.optim.RMSprop])
def test_optimizers_that_rescale_have_no_such_limit(kind: Any) -> None:
    problem = quadratic()
    d = diagnose(problem, kind(problem.model.parameters(), lr=0.01))
    assert d.step.optimizer is not None
    assert d.step.optimizer.limit is None
    assert "the optimizer is at 0.01, which this does not bound" in " ".join(str(d).split())


def test_a_loss_that_curves_downwards_has_no_limit() -> None:
    model = nn.Linear(1, 1, bias=False).double()
    problem = wc.Problem(model, lambda f, y: -(f**2).mean(), (X, torch.zeros_like(X)))
    d = diagnose(problem)
    assert d.step.plain is None
    assert "max_lr" not in {row.quantity for row in d.rows()}
