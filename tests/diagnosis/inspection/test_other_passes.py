"""Examples that depend on each other, inputs that are standardized, and losses that are sums, by closed forms."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from zoo import integers, normal

from wellcond import Problem
from wellcond.diagnosis.inspection.inspect import Inspection, inspect
from wellcond.diagnosis.inspection.mixing import FEW


class Mixed(nn.Module):
    """Adds something of the batch to every example, after a layer that does not."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.fc, self.kind, self.mix = nn.Linear(3, 2), kind, nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        h = self.fc(x)
        other = h.mean(0, keepdim=True) if self.kind == "mean" else h[:1] if self.kind == "first" else 0.0
        return self.mix(h + other)


def inspected(model: nn.Module, x: Tensor, y: Tensor, loss: nn.Module | None = None) -> Inspection:
    inspection = inspect(Problem(model.double(), loss or nn.MSELoss(), (x, y)))
    assert inspection.failures == ()
    return inspection


@pytest.mark.parametrize(("kind", "is_symmetric"), [("mean", True), ("first", False)])
def test_the_difference_is_that_of_the_others_share(kind: str, is_symmetric: bool) -> None:
    model, x = Mixed(kind).double(), normal(20, 3)
    mixing = inspected(model, x, normal(20, 2)).mixing
    with torch.no_grad():
        together, alone = model(x)[-FEW:], model(x[-FEW:])
    assert mixing is not None
    assert mixing.difference == pytest.approx(float((alone - together).norm() / together.norm()), rel=1e-12)
    assert (mixing.layer, mixing.is_symmetric) == ("mix", is_symmetric)


def test_examples_that_are_independent_differ_by_rounding() -> None:
    mixing = inspected(Mixed("none"), normal(20, 3), normal(20, 2)).mixing
    assert mixing is not None
    assert mixing.difference < 1e-12
    assert mixing.layer == ""


def test_what_mixes_by_design_or_draws_at_random_is_not_compared() -> None:
    x, y = normal(20, 3), normal(20, 2)
    assert inspected(nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2)), x, y).mixing is None
    dropping = nn.Sequential(nn.Linear(3, 2), nn.Dropout(0.5)).double()
    assert inspect(Problem(dropping, nn.MSELoss(), (x, y), dropout=0)).mixing is None
    assert inspected(nn.Linear(3, 2), x[:1], y[:1]).mixing is None


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
