"""Whether a model is affine in a training step, which may call it several times."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import wellcond as wc
from wellcond.diagnosis.probes.behavior import behavior


def preferred(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return -F.logsigmoid(model(batch[0]) - model(batch[1])).mean()


def squared(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return (model(batch[0]) - batch[1][:, :1]).square().mean()


@pytest.mark.parametrize("step", [preferred, squared])
@pytest.mark.parametrize(("activation", "is_affine"), [(nn.Identity(), True), (nn.SiLU(), False), (nn.ReLU(), False)])
def test_calls_of_a_step(step: object, activation: nn.Module, is_affine: bool) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 16), activation, nn.Linear(16, 16), activation, nn.Linear(16, 1))
    pairs = torch.randn(2, 32, 4, generator=torch.Generator().manual_seed(0))
    linearity = behavior(wc.Problem.from_step(model, step, [(pairs[0], pairs[1])])).linearity  # type: ignore[arg-type]
    assert linearity is not None
    assert linearity.is_affine is is_affine


def test_an_end_that_bends_is_seen() -> None:
    class Squares(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.one, self.two = nn.Linear(4, 8), nn.Linear(8, 1)

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.two(self.one(x)).square()
            return out

    pairs = torch.randn(2, 32, 4, generator=torch.Generator().manual_seed(0))
    linearity = behavior(wc.Problem.from_step(Squares(), preferred, [(pairs[0], pairs[1])])).linearity
    assert linearity is not None
    assert not linearity.is_affine
    assert linearity.is_straight("two")
