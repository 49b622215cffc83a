"""Casts to half precision in a module's own code, which returns float32: rounding that counts, and that does not."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import wellcond as wc
from wellcond.diagnosis.evidence import Evidence
from wellcond.diagnosis.inspection.inspect import inspect
from wellcond.diagnosis.rules.half_overflow import half_overflow
from wellcond.diagnosis.rules.rounding_error import rounding_error


class Prepared(nn.Module):
    """What is done to the inputs by a function."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


def normed(h: Tensor, squares: Tensor) -> Tensor:
    return h.float() * (squares.sum(-1, keepdim=True).float() / h.shape[-1] + 1e-5).rsqrt()


CASTS: dict[str, tuple[Callable[[Tensor], Tensor], bool]] = {
    "centered after the cast": (lambda x: (x.bfloat16() - 1000).float(), True),
    "centered before it": (lambda x: (x - 1000).bfloat16().float(), False),
    "centered before it, by to": (lambda x: (x - 1000).to(torch.float16).float(), False),
    "squares that overflow": (lambda x: normed(x.half(), x.half() * x.half()), True),
    "squares in float32": (lambda x: normed((x - 1000).half(), (x - 1000).half().float() ** 2), False),
    "no cast": (lambda x: x - 1000, False),
}


@pytest.mark.parametrize("kind", CASTS)
def test_casts_in_own_code(kind: str) -> None:
    function, is_wrong = CASTS[kind]
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(64, 8, generator=draw)
    y = x.sum(1, keepdim=True)
    torch.manual_seed(0)
    model = nn.Sequential(Prepared(function), nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
    problem = wc.Problem(model, nn.MSELoss(), [(1000 + x, y)])
    evidence = Evidence(problem, inspection=inspect(problem))
    findings = [*rounding_error(evidence), *half_overflow(evidence)]
    assert [(each.layer, each.severity) for each in findings] == [("0", "severe")] * is_wrong
