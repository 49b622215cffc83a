"""Recurrent weights so small that a state is gone after a few steps, and those that keep it or are not asked to."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import wellcond as wc

CE = nn.CrossEntropyLoss()
STEPS = 24


class Looped(nn.Module):
    """h ← tanh(x W + h U) in a module of its own, which has no layers."""

    def __init__(self, size: float) -> None:
        super().__init__()
        self.w, self.u = nn.Parameter(torch.randn(6, 32) / 6**0.5), nn.Parameter(size * torch.randn(32, 32) / 32**0.5)

    def forward(self, x: Tensor) -> Tensor:
        h = x.new_zeros(len(x), 32)
        for step in x.unbind(1):
            h = torch.tanh(step @ self.w + h @ self.u)
        return h


class Layer(nn.Module):
    """The same as a layer."""

    def __init__(self, size: float) -> None:
        super().__init__()
        self.rnn = nn.RNN(6, 32, batch_first=True)
        nn.init.normal_(self.rnn.get_parameter("weight_hh_l0"), std=size / 32**0.5)

    def forward(self, x: Tensor) -> Tensor:
        states: Tensor = self.rnn(x)[0]
        return states[:, -1]


class Recalling(nn.Module):
    def __init__(self, kind: type[Looped | Layer], size: float) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table, self.state, self.out = nn.Embedding(8, 6), kind(size), nn.Linear(32, 4)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.out(self.state(self.table(x)))
        return out


def first_finding(model: nn.Module, asked: int, steps: int = STEPS) -> tuple[str, str]:
    x = torch.randint(8, (640, steps), generator=torch.Generator().manual_seed(0))
    batches = [(x[k : k + 64], x[k : k + 64, asked] % 4) for k in range(0, 640, 64)]
    findings = wc.diagnose(wc.Problem(model, CE, batches), torch.optim.Adam(model.parameters(), 3e-3)).findings
    return next(((each.rule, each.layer) for each in findings if each.severity != "note"), ("", ""))


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "layer"), [(Looped, "state"), (Layer, "state.rnn")])
@pytest.mark.parametrize("size", [0.1, 0.3])
def test_a_state_that_is_gone_after_a_few_steps(kind: type[Looped | Layer], layer: str, size: float) -> None:
    """0.1 per step leaves 1e-24 of a gradient, whose square float32 has no place for."""
    assert first_finding(Recalling(kind, size), 0) == ("vanishing-gradient", layer)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [Looped, Layer])
@pytest.mark.parametrize(("size", "asked"), [(1.0, 0), (0.58, 0), (0.3, -1), (0.1, -1)])
def test_a_state_that_lasts_as_usual_or_is_not_needed(kind: type[Looped | Layer], size: float, asked: int) -> None:
    assert first_finding(Recalling(kind, size), asked)[0] != "vanishing-gradient"


@pytest.mark.slow
@pytest.mark.parametrize(("size", "asked", "expected"), [(0.58, 0, True), (0.58, -1, False), (1.0, -1, False)])
def test_fifty_steps_are_too_many_for_a_fresh_state(size: float, asked: int, expected: bool) -> None:
    """A third of them is reached, more than a quarter: what nothing is learned of may be in the others."""
    first = first_finding(Recalling(Layer, size), asked, 50)
    assert (first == ("vanishing-gradient", "state.rnn")) == expected


@pytest.mark.slow
@pytest.mark.parametrize(("size", "is_lost"), [(0.07, True), (1.0, False)])
def test_batches_that_ten_times_the_rate_learns_by_heart_are_no_excuse(size: float, is_lost: bool) -> None:
    model = Recalling(Layer, size)
    x = torch.randint(8, (128, 14), generator=torch.Generator().manual_seed(0))
    batches = [(x[k : k + 32], x[k : k + 32, 0] % 4) for k in range(0, 128, 32)]
    diagnosis = wc.diagnose(wc.Problem(model, CE, batches), torch.optim.Adam(model.parameters(), 2e-3))
    layers = [each.layer for each in diagnosis.findings if each.rule == "vanishing-gradient"]
    assert layers == (["state.rnn"] if is_lost else [])
    outcomes = {each.factor: diagnosis.evidence.trial.outcome(each) for each in diagnosis.evidence.trial.attempts}
    assert not is_lost or (outcomes[1.0] != "learns" and outcomes[10.0] == "learns")
