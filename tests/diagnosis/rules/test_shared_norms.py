"""One BatchNorm at several places, and places that may share one."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import wellcond as wc

G = torch.Generator().manual_seed(0)
X = torch.randn(256, 8, generator=G)
Y = (X @ torch.randn(8, 4, generator=G)).argmax(1)


class Stack(nn.Module):
    """Layers with one BatchNorm after all of them, or with one for each; signals have different sizes."""

    def __init__(self, norms: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(8, 24), nn.Linear(24, 24), nn.Linear(24, 24)])
        self.norms = nn.ModuleList([nn.BatchNorm1d(24) for _ in range(norms)])
        self.last = nn.Linear(24, 4)
        for place, layer in enumerate(self.layers):
            nn.init.constant_(layer.bias, 3.0 * place)  # type: ignore[arg-type]

    def forward(self, x: Tensor) -> Tensor:
        for place, layer in enumerate(self.layers):
            x = F.relu(self.norms[place % len(self.norms)](layer(x)))
        out: Tensor = self.last(x)
        return out


class Steps(nn.Module):
    """A recurrence that normalizes its state at every step, which grows."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.into, self.last = nn.BatchNorm1d(24), nn.Linear(8, 24), nn.Linear(24, 4)

    def forward(self, x: Tensor) -> Tensor:
        state = torch.zeros(len(x), 24)
        total = torch.zeros(len(x), 24)
        for step in range(3):
            state = state + (step + 1) ** 2 * self.into(x) + 9 * step
            total = total + torch.tanh(self.norm(state))
        out: Tensor = self.last(total)
        return out


class Siamese(nn.Module):
    """Both halves of the features go through one network."""

    def __init__(self) -> None:
        super().__init__()
        self.side = nn.Sequential(nn.Linear(4, 24), nn.BatchNorm1d(24), nn.ReLU())
        self.last = nn.Linear(48, 4)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.last(torch.cat([self.side(half) for half in x.chunk(2, 1)], 1))
        return out


def verdict(build: Callable[[], nn.Module]) -> list[wc.Finding]:
    torch.manual_seed(0)
    model = build()
    batches = [(X[i : i + 32], Y[i : i + 32]) for i in range(0, 256, 32)]
    optimizer = torch.optim.Adam(model.parameters(), 2e-2)
    return list(wc.diagnose(wc.Problem(model, nn.CrossEntropyLoss(), batches), optimizer).findings)


@pytest.mark.parametrize("build", [lambda: Stack(1), Steps])
def test_a_norm_at_places_that_differ(build: Callable[[], nn.Module]) -> None:
    first = verdict(build)[0]
    assert first.rule == "shared-weight"
    assert first.severity != "note"
    assert first.layer.startswith("norm")


@pytest.mark.parametrize("build", [lambda: Stack(3), Siamese])
def test_a_norm_for_each_place_or_for_places_alike(build: Callable[[], nn.Module]) -> None:
    assert not [each for each in verdict(build) if each.severity != "note"]
