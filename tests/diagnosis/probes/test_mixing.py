"""Examples that depend on each other, by closed forms."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from zoo import normal

from wellcond import Problem
from wellcond.diagnosis.probes.behavior import behavior
from wellcond.diagnosis.probes.examples import FEW, Mixing


class Mixed(nn.Module):
    """Adds something of the batch to every example, after a layer that does not."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.fc, self.kind, self.mix = nn.Linear(3, 2), kind, nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        h = self.fc(x)
        other = h.mean(0, keepdim=True) if self.kind == "mean" else h[:1] if self.kind == "first" else 0.0
        return self.mix(h + other)


def probed(model: nn.Module, x: Tensor, y: Tensor) -> Mixing | None:
    shown = behavior(Problem(model.double(), nn.MSELoss(), (x, y)))
    assert shown.failures == ()
    return shown.mixing


@pytest.mark.parametrize(("kind", "is_symmetric"), [("mean", True), ("first", False)])
def test_the_difference_is_that_of_the_others_share(kind: str, is_symmetric: bool) -> None:
    model, x = Mixed(kind).double(), normal(20, 3)
    mixing = probed(model, x, normal(20, 2))
    with torch.no_grad():
        together, alone = model(x)[-FEW:], model(x[-FEW:])
    assert mixing is not None
    assert mixing.difference == pytest.approx(float((alone - together).norm() / together.norm()), rel=1e-12)
    assert (mixing.layer, mixing.is_symmetric) == ("mix", is_symmetric)


def test_examples_that_are_independent_differ_by_rounding() -> None:
    mixing = probed(Mixed("none"), normal(20, 3), normal(20, 2))
    assert mixing is not None
    assert mixing.difference < 1e-12
    assert mixing.layer == ""


def test_what_mixes_by_design_or_draws_at_random_is_not_compared() -> None:
    x, y = normal(20, 3), normal(20, 2)
    assert probed(nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2)), x, y) is None
    dropping = nn.Sequential(nn.Linear(3, 2), nn.Dropout(0.5)).double()
    assert behavior(Problem(dropping, nn.MSELoss(), (x, y), dropout=0)).mixing is None
    assert probed(nn.Linear(3, 2), x[:1], y[:1]) is None


class Padded(nn.Module):
    """Pads to the longest sequence of those that it gets; the first number of an example is its length."""

    def __init__(self, mixes: bool) -> None:
        super().__init__()
        self.scale, self.mixes = nn.Parameter(torch.ones(1)), mixes

    def forward(self, x: Tensor) -> Tensor:
        steps = torch.arange(int(x[:, 0].max()))
        h = self.scale * x[:, 1:2] * (steps < x[:, :1])
        return h - h.mean(0, keepdim=True) if self.mixes else h


def test_outputs_that_are_padded_to_the_longest_sequence_are_compared_where_both_have_steps() -> None:
    """The last examples have six steps at most, the whole batch nine."""
    lengths = torch.tensor([9.0] * (20 - FEW) + [6.0] * FEW).double()
    x = torch.stack([lengths, normal(20)], 1)
    mixing = probed(Padded(mixes=False), x, normal(20, 9))
    assert mixing is not None
    assert mixing.difference == 0
    assert probed(Padded(mixes=True), x, normal(20, 9)) is None  # other padding is a reason to differ
