"""Networks that go through time steps by hand: modules that are called in each, and outputs with the steps in front."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from rule_cases import CLASSES, FEATURES, N, findings, table
from torch import Tensor, nn

STEPS = 6


class Cell(nn.Module):
    """Spikes where what has come in so far is above a threshold, and the sum."""

    def __init__(self, threshold: float) -> None:
        super().__init__()
        self.threshold = threshold

    def forward(self, current: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
        memory = memory + current
        return (memory > self.threshold).float() + memory.sigmoid() - memory.sigmoid().detach(), memory


class Spiking(nn.Module):
    def __init__(self, threshold: float = 1.0, *, has_memory: bool = True) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.cell, self.head = nn.Linear(FEATURES, 16), Cell(threshold), nn.Linear(16, CLASSES)
        self.has_memory = has_memory

    def forward(self, x: Tensor) -> Tensor:
        memory, outputs = torch.zeros(len(x), 16), []
        for _ in range(STEPS):
            spikes, memory = self.cell(0.3 * self.layer(x), memory)
            outputs.append(self.head(memory if self.has_memory else spikes))
        return torch.stack(outputs).mean(0)


class Spikes(Spiking):
    """The same with a cell that returns spikes only."""

    def __init__(self, threshold: float) -> None:
        super().__init__(threshold)
        self.cell = OnlySpikes(threshold)

    def forward(self, x: Tensor) -> Tensor:
        current, outputs = torch.zeros(len(x), 16), []
        for _ in range(STEPS):
            current = current + 0.3 * self.layer(x)
            outputs.append(self.head(self.cell(current)))
        return torch.stack(outputs).mean(0)


class OnlySpikes(Cell):
    def forward(self, current: Tensor) -> Tensor:  # type: ignore[override]
        return super().forward(current, torch.zeros_like(current))[0].round()


@pytest.mark.parametrize("model", [Spiking(1.0), Spiking(1e9), Spikes(1.0)], ids=["first", "all", "spikes"])
def test_a_cell_that_says_nothing_in_the_first_step_only(model: nn.Module) -> None:
    """Or never spikes, where its state tells examples apart."""
    assert "rank-collapse" not in findings(model, nn.CrossEntropyLoss(), table())


def test_a_cell_that_says_nothing_in_any_step() -> None:
    finding = findings(Spikes(1e9), nn.CrossEntropyLoss(), table())["rank-collapse"]
    assert finding.layer == "cell"
    assert "norm" not in finding.reason
    assert "normalize" not in finding.remedy


def test_a_norm_over_single_values_in_a_loop() -> None:
    class Loop(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.norm, self.head = nn.Linear(FEATURES, 8), nn.GroupNorm(8, 8), nn.Linear(8, CLASSES)

        def forward(self, x: Tensor) -> Tensor:
            state = torch.zeros(len(x), 8)
            for _ in range(STEPS):
                state = self.norm(state + self.layer(x))
            outputs: Tensor = self.head(state)
            return outputs

    finding = findings(Loop(), nn.CrossEntropyLoss(), table())["rank-collapse"]
    assert finding.layer == "norm"
    assert "a norm needs several values" in finding.reason


class StepsFirst(nn.Module):
    """Outputs (steps, examples, classes), alone or twice."""

    def __init__(self, *, is_pair: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.head, self.is_pair = nn.Linear(FEATURES, 16), nn.Linear(16, CLASSES), is_pair

    def forward(self, x: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        hidden = torch.zeros(len(x), 16)
        outputs = []
        for _ in range(STEPS):
            hidden = 0.5 * hidden + torch.tanh(self.layer(x))
            outputs.append(self.head(hidden))
        stacked = torch.stack(outputs)
        return (stacked, stacked) if self.is_pair else stacked


@pytest.mark.parametrize("is_pair", [False, True])
def test_steps_in_front_are_no_examples(is_pair: bool) -> None:
    """A loss that adds up over time steps, but is the mean over the examples, is no sum over the batch."""

    def by_step(reduction: str) -> Callable[..., Tensor]:
        def loss(outputs: Tensor | tuple[Tensor, Tensor], y: Tensor) -> Tensor:
            steps = outputs if isinstance(outputs, Tensor) else outputs[1]
            total: Tensor = sum((F.cross_entropy(each, y, reduction=reduction) for each in steps), torch.zeros(()))
            return total / STEPS

        return loss

    assert "summed-loss" not in findings(StepsFirst(is_pair=is_pair), by_step("mean"), table())


def test_a_sum_over_the_examples_is_still_seen() -> None:
    model = nn.Sequential(nn.Linear(FEATURES, 16), nn.ReLU(), nn.Linear(16, CLASSES))
    assert "summed-loss" in findings(model, nn.CrossEntropyLoss(reduction="sum"), table())
    x, y = torch.randn(N, STEPS, FEATURES, generator=torch.Generator().manual_seed(0)), torch.arange(N) % CLASSES

    def over_steps(outputs: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(outputs.flatten(0, 1), y.repeat_interleave(STEPS), reduction="sum")

    assert "summed-loss" in findings(model, over_steps, (x, y))
