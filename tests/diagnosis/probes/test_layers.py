"""Probes of layers and blocks: closed forms, what they cost, and that nothing of the user's changes."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from zoo import normal

from wellcond import Problem
from wellcond.diagnosis.probes.behavior import PROBES, Behavior, behavior
from wellcond.diagnosis.probes.subject import Subject


class Square(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return 3 * x.square()


class Drops(nn.Module):
    """Drops a quarter, in evaluation mode too."""

    def forward(self, x: Tensor) -> Tensor:
        return F.dropout(x, 0.25)


def shown(*layers: nn.Module) -> Behavior:
    torch.manual_seed(0)
    result = behavior(Problem(nn.Sequential(*layers).double(), nn.MSELoss(), (normal(20, 3), normal(20, 2))))
    assert result.failures == ()
    return result


@pytest.mark.parametrize(("function", "is_straight"), [(nn.ReLU(), False), (nn.LeakyReLU(1.0), True)])
def test_a_relu_that_is_on_or_off_for_all_examples_is_not_straight(function: nn.Module, is_straight: bool) -> None:
    """The signal of one learned query hardly differs between examples: each unit is on for all of them or for none."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 8), function, nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 2)).double()
    with torch.no_grad():
        model[0].weight *= 1e-3  # type: ignore[operator]
        model[0].bias.copy_(torch.tensor([1.0, -1.0]).repeat(4))  # type: ignore[operator, union-attr]
        x = normal(20, 3)
        on = model[0](x) > 0
    assert bool((on.all(0) | ~on.any(0)).all())
    linearity = behavior(Problem(model, nn.MSELoss(), (x, normal(20, 2)))).linearity
    assert linearity is not None
    assert linearity.is_straight("2") == is_straight
    assert not linearity.is_straight("4")


def test_the_curvature_of_a_square() -> None:
    """(a² + b²)/2 − ((a + b)/2)² = (a − b)²/4."""
    model = nn.Sequential(nn.Linear(3, 4), Square(), nn.Linear(4, 2)).double()
    with torch.no_grad():
        model[0].weight *= 5  # outputs above one are not scaled
        x = normal(20, 3)
        one = model[0](x[-16:])
    other = one.roll(1, 0)
    expected = ((one - other) ** 2 / 4).norm() / (one**2 - other**2).norm()
    linearity = behavior(Problem(model, nn.MSELoss(), (x, normal(20, 2)))).linearity
    assert linearity is not None
    assert linearity.before["2"] == pytest.approx(float(expected), rel=1e-9)
    assert linearity.before["0"] < 1e-12
    assert not linearity.is_affine


def test_what_is_affine_is_so_to_rounding() -> None:
    linearity = shown(nn.Linear(3, 4), nn.LeakyReLU(1.0), nn.Linear(4, 2), nn.Softmax(1)).linearity
    assert linearity is not None
    assert max(*linearity.before.values(), linearity.outputs) < 1e-12
    assert linearity.is_affine


def test_the_share_that_is_dropped() -> None:
    noise = shown(nn.Linear(3, 100), Drops(), nn.Linear(100, 2)).noise
    assert noise is not None
    (call,) = noise.training
    assert (call.module, call.after, call.draws) == ("1", "0", 2000)
    assert call.p == pytest.approx(0.25, abs=4 * (0.25 * 0.75 / 2000) ** 0.5)
    assert call.scale == pytest.approx(4 / 3)
    assert [each.module for each in noise.evaluation] == ["1"]
    assert noise.change > 0.1


def test_zeros_in_both_factors() -> None:
    layers = [nn.Linear(3, 4, bias=False), nn.Linear(4, 2, bias=False)]
    for zeros in ((0,), (1,), (0, 1)):
        for k, layer in enumerate(layers):
            nn.init.normal_(layer.weight, std=0.0 if k in zeros else 1.0)
        blocked = shown(*layers).zero_factors
        assert (None if blocked is None else blocked.names) == (("0.weight", "1.weight") if len(zeros) == 2 else None)
        assert blocked is None or blocked.without_gradient == 1


@pytest.mark.parametrize("field", PROBES)
def test_a_probe_costs_no_more_than_it_says(field: str) -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), Drops(), nn.Linear(4, 2))
    problem = Problem(model, nn.MSELoss(), (normal(20, 3).float(), normal(20, 2).float()))
    with problem.measuring():
        subject = Subject.of(problem)
        before = problem.cost
        PROBES[field].measure(subject)
    passes = problem.cost.forwards - before.forwards
    assert problem.cost.backwards == before.backwards
    assert passes / 3 <= PROBES[field].cost + 1e-9


def test_probes_change_nothing() -> None:
    model = nn.Sequential(
        nn.Linear(3, 4), nn.BatchNorm1d(4), Drops(), nn.Dropout(0.5), nn.Linear(4, 4), nn.Linear(4, 2)
    )
    model[3].eval()
    for k in (4, 5):
        nn.init.zeros_(model[k].weight)
        nn.init.zeros_(model[k].bias)
    state, modes = copy.deepcopy(model.state_dict()), [m.training for m in model.modules()]
    memory, generator = [p.data_ptr() for p in model.parameters()], torch.get_rng_state()
    result = behavior(Problem(model, nn.MSELoss(), (normal(20, 3).float(), normal(20, 2).float())))
    assert result.failures == ()
    assert result.zero_factors is not None
    assert all(torch.equal(state[name], value) for name, value in model.state_dict().items())
    assert modes == [m.training for m in model.modules()]
    assert memory == [p.data_ptr() for p in model.parameters()]
    assert torch.equal(generator, torch.get_rng_state())
    assert all(p.grad is None for p in model.parameters())
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())
