"""Examples that depend on each other, by closed forms."""

from __future__ import annotations

from collections.abc import Callable

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


class ReadAtTheFirst(nn.Module):
    """Attention over five tokens, of which the first is the same for all examples, and is read."""

    def __init__(self, batch_first: bool, turned: bool = False, last: float = 1.0) -> None:
        super().__init__()
        self.turned = turned
        self.first = nn.Parameter(torch.randn(16))
        self.attend = nn.MultiheadAttention(16, 2, batch_first=batch_first)
        self.out = nn.Linear(16, 1)
        self.out.weight.data *= last

    def forward(self, x: Tensor) -> Tensor:
        h = torch.cat([self.first.expand(len(x), 1, 16), x], 1)
        h = h.transpose(0, 1) if self.turned else h
        h = h + self.attend(h, h, h, need_weights=False)[0]
        read: Tensor = self.out(h[0] if self.turned else h[:, 0])
        return read


@pytest.mark.parametrize(
    ("model", "layer"),
    [
        (lambda: ReadAtTheFirst(batch_first=False), "attend"),
        (lambda: ReadAtTheFirst(batch_first=True), ""),
        (lambda: ReadAtTheFirst(batch_first=False, turned=True), ""),
        (lambda: ReadAtTheFirst(batch_first=True, last=0.0), ""),
        (lambda: ReadAtTheFirst(batch_first=False, turned=True, last=0.0), ""),
    ],
    ids=["over the batch", "over the steps", "steps in front", "zero at the end", "steps in front, zero at the end"],
)
def test_attention_that_is_read_at_a_token_of_all(model: Callable[[], nn.Module], layer: str) -> None:
    torch.manual_seed(0)
    problem = Problem(model(), nn.MSELoss(), [(torch.randn(32, 4, 16), torch.randn(32, 1))])
    mixing = behavior(problem).mixing
    assert mixing is not None
    assert mixing.layer == layer
    assert mixing.is_inside == bool(layer)
