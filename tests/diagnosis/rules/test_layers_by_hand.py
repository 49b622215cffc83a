"""Layers by hand whose weights are drawn too large are named by their parameter."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

import wellcond as wc
from wellcond.diagnosis.evidence import Evidence
from wellcond.diagnosis.inspection.inspect import inspect
from wellcond.diagnosis.rules.bad_initialisation.first_loss import large_start


class Dense(nn.Module):
    """A linear layer by hand."""

    def __init__(self, inputs: int, outputs: int, gain: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(gain * torch.randn(inputs, outputs) / math.sqrt(inputs))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight


@pytest.mark.parametrize(("gain", "is_large"), [(8.0, True), (1.4, False), (1.0, False)])
def test_weights_of_layers_by_hand(gain: float, is_large: bool) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(Dense(64, 64, gain), nn.ReLU(), Dense(64, 64, gain), nn.ReLU(), Dense(64, 4, gain))
    x = torch.randn(128, 64)
    problem = wc.Problem(model, nn.CrossEntropyLoss(), [(x, torch.randint(4, (128,)))])
    findings = [*large_start(Evidence(problem, inspection=inspect(problem)))]
    assert [each.layer in ("0.weight", "2.weight") for each in findings] == [True] * is_large
    for each in findings:
        before = model.get_parameter(each.layer).square().mean()
        exec(each.remedy, {"model": model})
        assert model.get_parameter(each.layer).square().mean() < 0.1 * before
