"""Steps that ask for outputs which the model never gives, and sound ones with a bound."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import wellcond as wc
from wellcond.diagnosis.evidence import Evidence
from wellcond.diagnosis.probes.behavior import behavior
from wellcond.diagnosis.rules.output_loss_mismatch.beyond_bound import beyond_bound

G = torch.Generator().manual_seed(0)
X = torch.randn(64, 6, generator=G)
Y = X[:, :1] * X[:, 1:2]
ACTION = torch.randint(3, (64, 1), generator=G)


def found(last: nn.Module, step: Callable[[nn.Module, Any], Tensor], outputs: int = 1) -> list[str]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 32), nn.Tanh(), nn.Linear(32, outputs), last)
    problem = wc.Problem.from_step(model, step, [(X, Y)])
    return [each.severity for each in beyond_bound(Evidence(problem, None, behavior=behavior(problem)))]


def chosen(m: nn.Module, b: Any, reward: float) -> Tensor:
    values = m(b[0]).gather(1, ACTION)[:, 0]
    with torch.no_grad():
        best = m(b[0].roll(1, 0)).max(1).values
    return F.smooth_l1_loss(values, reward + b[1][:, 0].tanh() + 0.5 * best)


@pytest.mark.parametrize(
    ("last", "step", "outputs"),
    [
        (nn.ReLU(), lambda m, b: chosen(m, b, -5.0), 3),
        (nn.Sigmoid(), lambda m, b: F.mse_loss(m(b[0]), 5 + b[1].tanh()), 1),
        (nn.Softplus(), lambda m, b: (m(b[0]) - (b[1].tanh() - 3)).abs().mean(), 1),
        (nn.Tanh(), lambda m, b: F.mse_loss(m(b[0]), -9 + b[1].tanh()), 1),
    ],
    ids=["costs", "prices after a sigmoid", "temperatures after a softplus", "far below a tanh"],
)
def test_outputs_that_are_never_reached(last: nn.Module, step: Any, outputs: int) -> None:
    assert found(last, step, outputs) == ["severe"]


@pytest.mark.parametrize(
    ("last", "step", "outputs"),
    [
        (nn.Identity(), lambda m, b: chosen(m, b, -5.0), 3),
        (nn.ReLU(), lambda m, b: chosen(m, b, 5.0), 3),
        (nn.ReLU(), lambda m, b: m(b[0]).mean(), 1),
        (nn.Sigmoid(), lambda m, b: F.binary_cross_entropy(m(b[0]), (b[1] > 0).float()), 1),
        (nn.Sigmoid(), lambda m, b: F.mse_loss(m(b[0]), torch.ones_like(b[1])), 1),
        (nn.Softplus(), lambda m, b: (m(b[0]).log() + b[1].abs() / m(b[0])).mean(), 1),
        (nn.ReLU(), lambda m, b: F.mse_loss(m(b[0]), b[1].relu()) + 0.1 * m(b[0]).abs().mean(), 1),
    ],
    ids=["no bound", "rewards", "its own hinge", "probabilities", "a real image", "a scale", "sparse"],
)
def test_sound(last: nn.Module, step: Any, outputs: int) -> None:
    assert found(last, step, outputs) == []
