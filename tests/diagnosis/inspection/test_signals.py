"""RMS, variation, saturation, dead units, gradients and sensitivity against autograd and closed forms."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn
from zoo import normal

from wellcond import Problem
from wellcond.diagnosis.inspection.inspect import Inspection, inspect
from wellcond.diagnosis.inspection.signal import Signal


def signal(inspection: Inspection, name: str, kind: str = "Linear") -> Signal:
    (one,) = (s for s in inspection.signals if (s.name, s.kind) == (name, kind))
    return one


def inspected(model: nn.Module, x: Tensor, y: Tensor) -> Inspection:
    inspection = inspect(Problem(model, nn.MSELoss(), (x, y)))
    assert inspection.failures == ()
    return inspection


def test_rms_variation_gradient_and_sensitivity_are_those_of_autograd() -> None:
    model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3)).double()
    x, y = normal(10, 4), normal(10, 3, seed=1)
    inspection = inspected(model, x, y)
    h = model[0](x).detach().requires_grad_()
    losses = (model[2](model[1](h)) - y).square().mean(1)  # of every example
    (g,) = torch.autograd.grad(losses.sum(), h)
    h = h.detach()
    of = signal(inspection, "0")
    assert of.rms == pytest.approx(float(h.square().mean().sqrt()), rel=1e-6)
    assert of.variation == pytest.approx(float((h - h.mean(0)).square().sum() / h.square().sum()), rel=1e-5)
    assert of.gradient == pytest.approx(float(g.square().sum(1).mean().sqrt()), rel=1e-6)
    assert of.sensitivity == pytest.approx(float((g.norm(dim=1) * h.norm(dim=1)).square().mean().sqrt()), rel=1e-6)
    assert (of.units, of.rows, of.calls, of.is_weighted) == (6, 10, 1, True)


def test_sensitivity_does_not_change_with_the_scale_before_a_norm() -> None:
    values = []
    for scale in (1.0, 100.0):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 6, bias=False), nn.LayerNorm(6, eps=0.0), nn.Linear(6, 3)).double()
        with torch.no_grad():
            model[0].weight *= scale
        values.append(signal(inspected(model, normal(10, 4), normal(10, 3, seed=1)), "0").sensitivity)
    assert values[0] == pytest.approx(values[1], rel=1e-9)


@pytest.mark.parametrize(("function", "kind"), [(nn.Tanh(), "tanh"), (nn.Sigmoid(), "sigmoid")])
def test_saturated_values_have_less_than_a_tenth_of_the_largest_slope(function: nn.Module, kind: str) -> None:
    model = nn.Sequential(nn.Linear(1, 1), function, nn.Linear(1, 1)).double()
    with torch.no_grad():
        model[0].weight.fill_(1.0)
        model[0].bias.fill_(0.0)
    # tanh' = 1 − tanh² is 0.1 at atanh(√0.9); 4σ(1 − σ) at twice that
    limit = math.atanh(math.sqrt(0.9)) * (1 if kind == "tanh" else 2)
    x = torch.tensor([0.0, 0.5, 0.99, -0.99, 1.01, -1.01, 3.0, 9.0]).double()[:, None] * limit
    assert signal(inspected(model, x, x), "0", kind).saturated == 4 / 8


def test_dead_units_are_zero_and_full_ones_positive_in_all_batches() -> None:
    model = nn.Sequential(nn.Linear(1, 3, bias=False), nn.ReLU(), nn.Linear(3, 1)).double()
    with torch.no_grad():
        model[0].weight.copy_(torch.tensor([[1.0], [-1.0], [0.0]]))
    one, other = torch.tensor([[1.0], [2.0]]).double(), torch.tensor([[-1.0], [3.0]]).double()
    same_sign = signal(inspect(Problem(model, nn.MSELoss(), (one, one))), "0", "relu")
    assert (same_sign.dead.tolist(), same_sign.full.tolist()) == ([False, True, True], [True, False, False])
    both = signal(inspect(Problem(model, nn.MSELoss(), [(one, one), (other, other)])), "0", "relu")
    assert (both.dead.tolist(), both.full.tolist()) == ([False, False, True], [False, False, False])


def test_the_first_module_with_non_finite_values_has_a_finite_input() -> None:
    class Log(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.log()

    model = nn.Sequential(Log(), nn.Linear(2, 2)).double()
    x = torch.tensor([[1.0, -1.0], [1.0, 2.0]]).double()
    inspection = inspect(Problem(model, nn.MSELoss(), (x, x)))
    first, second = signal(inspection, "0", "Log"), signal(inspection, "1")
    assert (first.not_finite, first.has_finite_input) == (0.25, True)
    assert (second.not_finite, second.has_finite_input) == (0.5, False)


def test_a_layer_called_in_a_loop_has_a_gradient_for_every_step() -> None:
    class Loop(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cell = nn.Linear(2, 2, bias=False)

        def forward(self, h: Tensor) -> Tensor:
            for _ in range(12):
                h = self.cell(h)
            return h

    model = Loop().double()
    with torch.no_grad():
        model.cell.weight.copy_(0.5 * torch.eye(2))
    inspection = inspected(model, normal(6, 2), normal(6, 2, seed=1))
    over_time = signal(inspection, "cell").gradient_over_time
    assert over_time is not None
    assert len(over_time) == 12
    torch.testing.assert_close(over_time[:-1] / over_time[1:], torch.full((11,), 0.5).double())
