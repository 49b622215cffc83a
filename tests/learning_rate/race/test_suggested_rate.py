"""What a suggested rate says of the race that it comes from."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.optim import SGD

import wellcond as wc


@pytest.mark.parametrize(("max_steps", "is_short"), [(60, True), (500, False)])
def test_runs_of_a_few_steps_tell_little(max_steps: int, is_short: bool) -> None:
    torch.manual_seed(0)
    x = torch.randn(256, 4)
    model = nn.Linear(4, 1)
    batches = list(zip(x.split(32), x.sum(1, keepdim=True).split(32), strict=True))
    suggested = wc.suggest_lr(
        wc.Problem(model, nn.MSELoss(), batches), SGD(model.parameters(), 0.01), steps=400, max_steps=max_steps
    )
    assert ("tell little: leave max_steps" in str(suggested).replace("\n", " ")) is is_short
