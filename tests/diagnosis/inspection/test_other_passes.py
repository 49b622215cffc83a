"""Inputs that are standardized, and losses that are sums, by closed forms."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from zoo import integers, normal

from wellcond import Problem
from wellcond.diagnosis.inspection.inspect import Inspection, inspect


def inspected(model: nn.Module, x: Tensor, y: Tensor, loss: nn.Module | None = None) -> Inspection:
    inspection = inspect(Problem(model.double(), loss or nn.MSELoss(), (x, y)))
    assert inspection.failures == ()
    return inspection


def test_the_loss_and_gradient_of_standardized_inputs() -> None:
    model = nn.Linear(3, 1).double()
    x, y = 100 + 50 * normal(16, 3), normal(16, 1)
    standardized = inspected(model, x, y).standardized
    scaled = (x - x.mean(0)) / x.std(0, correction=0)
    assert standardized is not None
    for inputs, norm in ((scaled, standardized.gradient), (x, standardized.gradient_as_is)):
        loss = nn.functional.mse_loss(model(inputs), y)
        gradients = torch.autograd.grad(loss, list(model.parameters()))
        assert norm == pytest.approx(float(torch.cat([g.flatten() for g in gradients]).norm()))
    assert standardized.loss == pytest.approx(float(nn.functional.mse_loss(model(scaled), y).detach()))
    assert inspected(model, scaled, y).standardized is None


@pytest.mark.parametrize(("reduction", "is_summed"), [("sum", True), ("mean", False)])
def test_a_sum_over_examples_is_told_from_a_mean(reduction: str, is_summed: bool) -> None:
    loss = nn.CrossEntropyLoss(reduction=reduction)
    assert inspected(nn.Linear(3, 4), normal(10, 3), integers(4, 10), loss).is_summed == is_summed
