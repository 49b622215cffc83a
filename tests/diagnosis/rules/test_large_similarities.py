"""Scales of similarities that are exponentials of what is a scale already, and sound ones."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import wellcond as wc

G = torch.Generator().manual_seed(0)
CODES = torch.randn(256, 5, generator=G)
A, B = CODES @ torch.randn(5, 10, generator=G), CODES @ torch.randn(5, 14, generator=G)


class Towers(nn.Module):
    def __init__(self, scale: float) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(10, 16), nn.Linear(14, 16)
        self.log_scale = nn.Parameter(torch.tensor(scale))

    def forward(self, a: Tensor, b: Tensor) -> Any:
        return self.log_scale.exp() * F.normalize(self.a(a), dim=1) @ F.normalize(self.b(b), dim=1).T


@pytest.mark.slow
@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize(("scale", "is_large"), [(20.0, True), (math.log(100), False), (math.log(14), False)])
def test_scale(scale: float, is_large: bool, reduction: str) -> None:
    def step(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        logits = model(*batch)
        return F.cross_entropy(logits, torch.arange(len(logits)), reduction=reduction)

    torch.manual_seed(0)
    model = Towers(scale)
    batches = [(A[i : i + 32], B[i : i + 32]) for i in range(0, 256, 32)]
    problem = wc.Problem.from_step(model, step, batches)
    findings = wc.diagnose(problem, torch.optim.Adam(model.parameters(), 1e-3)).findings
    reported = [(each.layer, each.severity) for each in findings if each.rule == "bad-initialisation"]
    assert reported == ([("log_scale", "severe")] if is_large else [])
