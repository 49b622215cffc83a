"""A look changes nothing, never raises, and costs what it says."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn
from unchanged import assert_unchanged, snapshot

from wellcond import Problem
from wellcond.diagnosis.inspection.inspect import inspect


class Everything(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.bn, self.drop = nn.Conv1d(2, 4, 3, padding=1), nn.BatchNorm1d(4), nn.Dropout(0.5)
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True)
        self.rnn, self.out = nn.GRU(4, 3, batch_first=True), nn.Linear(3, 3)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.calls.add_(1)
        h = self.drop(torch.relu(self.bn(self.conv(x)))).transpose(1, 2)
        return self.out(self.rnn(h + self.attention(h, h, h)[0])[0][:, -1])


def batch(n: int = 16) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(0)
    return torch.randn(n, 2, 5, generator=draw), torch.randint(0, 3, (n,), generator=draw)


def test_nothing_changes() -> None:
    model = Everything()
    optimizer = torch.optim.Adam(model.parameters())
    before = snapshot(model)
    inspection = inspect(Problem(model, nn.CrossEntropyLoss(), batch()), optimizer)
    assert_unchanged(before, snapshot(model))
    assert not optimizer.state
    assert {s.name for s in inspection.signals} >= {"conv", "bn", "attention", "rnn", "out"}
    assert {a.name for a in inspection.attention} == {"attention"}


def test_a_model_that_raises_leaves_what_is_known_of_the_data() -> None:
    class Broken(Everything):
        def forward(self, x: Tensor) -> Tensor:
            raise KeyError("no")

    model = Broken()
    before = snapshot(model)
    inspection = inspect(Problem(model, nn.CrossEntropyLoss(), batch()))
    assert_unchanged(before, snapshot(model))
    assert "no" in inspection.forward_error
    assert inspection.inputs[0].shape == (16, 2, 5)


def test_a_loss_that_raises_leaves_the_signals() -> None:
    def loss(_f: Tensor, _y: Tensor) -> Tensor:
        raise RuntimeError("shapes")

    inspection = inspect(Problem(Everything(), loss, batch()))
    assert "shapes" in inspection.loss_error
    assert inspection.output is not None
    assert inspection.signals


def test_it_takes_less_than_three_passes() -> None:
    x, y = batch(64)
    problem = Problem(Everything(), nn.CrossEntropyLoss(), (100 * x, y))
    inspect(problem)
    assert problem.cost.u <= 3


def test_gradients_are_those_of_the_problem() -> None:
    model = Everything()
    problem = Problem(model, nn.CrossEntropyLoss(), batch())
    inspection = {w.name: w.gradient for w in inspect(problem).weights}
    with problem.measuring():
        _, gradients = problem.loss_and_gradients()
    for name, g in gradients.items():
        assert g is not None
        torch.testing.assert_close(
            torch.tensor(inspection[name]), g.square().mean().sqrt(), rtol=1e-4, atol=1e-9, check_dtype=False
        )


def test_a_model_that_computes_its_own_loss_is_compared_with_log_c() -> None:
    class Outputs:
        def __init__(self, loss: Tensor, logits: Tensor) -> None:
            self.loss, self.logits = loss, logits

    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.out = nn.Linear(4, 5)

        def forward(self, x: Tensor, labels: Tensor) -> Outputs:
            logits = self.out(x)
            return Outputs(nn.functional.cross_entropy(logits, labels), logits)

    x, labels = torch.randn(15, 4), torch.arange(15) % 5
    inspection = inspect(Problem(Own(), None, [{"x": x, "labels": labels}])).output
    assert inspection is not None
    assert (inspection.loss_kind, inspection.classes) == ("cross-entropy", 5)
    assert inspection.best_constant == pytest.approx(math.log(5))
