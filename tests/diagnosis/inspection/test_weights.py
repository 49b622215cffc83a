"""Scales, gradients and distinct units of parameters, and what the optimizer does with them."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn
from zoo import normal

from wellcond import Problem
from wellcond.diagnosis.inspection.inspect import inspect
from wellcond.diagnosis.inspection.weights import Weight


def weights(model: nn.Module, optimizer: torch.optim.Optimizer | None = None) -> dict[str, Weight]:
    inspection = inspect(Problem(model, nn.MSELoss(), (normal(8, 4), normal(8, 2, seed=1))), optimizer)
    assert inspection.failures == ()
    return {weight.name: weight for weight in inspection.weights}


def test_the_gain_is_the_rms_times_the_root_of_the_fan_in() -> None:
    model = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 2)).double()
    of = weights(model)["2.weight"]
    w = model[2].weight.detach()
    assert (of.fan_in, of.units, of.role, of.order) == (5, 2, "weight", 2)
    assert of.rms == pytest.approx(float(w.square().mean().sqrt()))
    assert of.gain == pytest.approx(float(w.square().mean().sqrt()) * math.sqrt(5))
    assert weights(model)["2.bias"].gain is None


def test_units_count_as_distinct_by_their_weights_and_their_gradients() -> None:
    model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2)).double()
    assert weights(model)["0.weight"].distinct_rows == 6
    with torch.no_grad():
        model[0].weight[3:] = model[0].weight[0]
        model[0].bias[3:] = model[0].bias[0]
    same_rows = weights(model)["0.weight"]
    assert (same_rows.distinct_rows, same_rows.distinct) == (3, 6)  # the next layer tells them apart
    with torch.no_grad():
        model[2].weight[:, 3:] = model[2].weight[:, :1]
    assert weights(model)["0.weight"].distinct == 3


def test_rate_and_decay_are_those_of_the_group_and_others_are_not_held() -> None:
    model = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2)).double()
    groups = [{"params": [model[0].weight], "lr": 0.5, "weight_decay": 0.25}, {"params": [model[1].weight]}]
    of = weights(model, torch.optim.SGD(groups, lr=0.1))
    assert [(w.is_held, w.lr, w.weight_decay) for w in of.values()] == [
        (True, 0.5, 0.25),
        (False, None, None),
        (True, 0.1, 0.0),
        (False, None, None),
    ]
    assert [w.is_held for w in weights(model).values()] == [None] * 4


def test_values_that_are_not_finite_are_counted_and_left_out_of_the_scale() -> None:
    model = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2)).double()
    with torch.no_grad():
        model[0].weight.fill_(2.0)
        model[0].weight[0, 0] = math.nan
    of = weights(model)["0.weight"]
    assert (of.not_finite, of.rms) == (1, 2.0)


def test_a_parameter_with_two_names_is_one() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 2)).double()
    model[1].weight = model[0].weight
    assert weights(model)["0.weight"].also == ("1.weight",)
