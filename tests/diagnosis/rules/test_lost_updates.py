"""Steps below the precision of the weights."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from rule_cases import perceptron, table
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import SGD, Adam, AdamW

import wellcond as wc
from wellcond.diagnosis.evidence import Evidence
from wellcond.diagnosis.finding import Finding
from wellcond.diagnosis.rules.lost_updates import lost_updates
from wellcond.diagnosis.trial import trial


def loss(outputs: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(outputs.float(), targets)


def lost(dtype: torch.dtype, kind: Any, *, warm_up: bool = False, **options: Any) -> tuple[float, list[Finding]]:
    x, y = table()
    model: nn.Module = perceptron().to(dtype)
    optimizer = kind(model.parameters(), **options)
    if warm_up:
        torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1e-4 * (step + 1))
    problem = wc.Problem(model, loss, list(zip(x.to(dtype).split(32), y.split(32), strict=True)))
    tried = trial(problem, optimizer)
    assert tried.own is not None
    return tried.own.lost, list(lost_updates(Evidence(problem, optimizer, trial=tried)))


@pytest.mark.parametrize(
    ("dtype", "kind", "options"),
    [
        (torch.bfloat16, AdamW, {"lr": 1e-5}),
        (torch.bfloat16, SGD, {"lr": 1e-3}),
        (torch.float16, SGD, {"lr": 1e-5}),
        (torch.float16, SGD, {"lr": 1e-4, "momentum": 0.9}),
        (torch.float32, SGD, {"lr": 1e-11}),
    ],
)
def test_steps_that_are_rounded_away(dtype: torch.dtype, kind: Any, options: dict[str, float]) -> None:
    share, (finding,) = lost(dtype, kind, **options)
    assert share > 0.8
    assert finding.severity == "severe"
    compile(finding.remedy, "remedy", "exec")


@pytest.mark.parametrize(
    ("dtype", "kind", "options"),
    [
        (torch.bfloat16, AdamW, {"lr": 1e-3}),
        (torch.bfloat16, SGD, {"lr": 0.1, "momentum": 0.9}),
        (torch.float16, Adam, {"lr": 1e-3, "eps": 1e-4}),
        (torch.float32, Adam, {"lr": 1e-4}),
        (torch.bfloat16, AdamW, {"lr": 1e-2, "warm_up": True}),
    ],
)
def test_steps_that_are_not(dtype: torch.dtype, kind: Any, options: dict[str, Any]) -> None:
    assert lost(dtype, kind, **options)[1] == []


def test_the_share_is_exact() -> None:
    """Of two weights with a gradient, 1 + 1e-3·n is rounded to 1 in bfloat16 at every step, and 0 + 1e-3·n is not."""
    model = nn.Linear(2, 1, bias=False).bfloat16()
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[1.0, 0.0]]))
    batch = torch.ones(8, 2).bfloat16(), torch.zeros(8, 1).bfloat16()
    problem = wc.Problem(model, lambda f, y: -(f - y).mean(), [batch])
    tried = trial(problem, SGD(model.parameters(), lr=1e-3))
    assert tried.own is not None
    assert tried.own.lost == 0.5
