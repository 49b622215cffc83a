"""Networks that begin with the same outputs for all examples: some stay there, others tell them apart in training."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import wellcond as wc
from wellcond.diagnosis.evidence import Evidence
from wellcond.diagnosis.finding import Finding
from wellcond.diagnosis.inspection.inspect import inspect
from wellcond.diagnosis.rules.rank_collapse import rank_collapse
from wellcond.diagnosis.trial import trial


class Quantized(nn.Module):
    """An autoencoder whose code is an entry of a table, with the gradient passed straight through, or only the entry.

    Codes are drawn around zero, and small ones far away from them choose one and the same entry.
    """

    def __init__(self, *, is_straight_through: bool, size: float = 1.0) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.enc = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 4))
        self.codes = nn.Embedding(12, 4)
        self.dec = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 8))
        self.is_straight_through = is_straight_through
        with torch.no_grad():
            self.codes.weight.mul_(size)
            self.codes.weight[1:] += torch.randn(11, 4).sign()
            self.codes.weight[0] *= 0.1

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        z = self.enc(x)
        code = self.codes(torch.cdist(z.detach(), self.codes.weight.detach()).argmin(1))
        return self.dec(z + (code - z).detach() if self.is_straight_through else code.detach()), z, code


def collapse(model: nn.Module, *, steps: int = 32) -> Finding | None:
    kinds = torch.arange(64 * steps) % 6
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(6, 8, generator=draw)[kinds] + 0.1 * torch.randn(len(kinds), 8, generator=draw)

    def step(model: nn.Module, x: Tensor) -> Tensor:
        out, z, code = model(x)
        return F.mse_loss(out, x) + F.mse_loss(code, z.detach()) + 0.25 * F.mse_loss(z, code.detach())

    problem = wc.Problem.from_step(model, step, [x[i : i + 64] for i in range(0, len(x), 64)])
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    evidence = Evidence(problem, optimizer, inspect(problem, optimizer), trial=trial(problem, optimizer))
    return next(iter(rank_collapse(evidence)), None)


@pytest.mark.slow
@pytest.mark.parametrize("size", [1.0, 3.0])
def test_codes_that_begin_as_one_and_spread(size: float) -> None:
    finding = collapse(Quantized(is_straight_through=True, size=size))
    assert finding is not None
    assert (finding.severity, finding.layer) == ("note", "dec.0")
    assert "Training tells them apart" in finding.summary


@pytest.mark.slow
def test_codes_that_stay_one() -> None:
    """Without the gradient of the reconstruction all codes go where they go on their own."""
    finding = collapse(Quantized(is_straight_through=False))
    assert finding is not None
    assert (finding.severity, finding.layer) == ("severe", "dec.0")
