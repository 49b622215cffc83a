"""Gates whose biases let a recurrent network forget, and a product of many linear layers; and sound forms."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import pytest
import torch
from torch import Tensor, nn

import wellcond as wc

G = torch.Generator().manual_seed(11)
NOTES = torch.randn(160, 15, 5, generator=G)
FIRST = NOTES[:, :3, 0].sum(1, keepdim=True)
BENT = torch.tanh(torch.randn(160, 3, generator=G) @ torch.randn(3, 30, generator=G) * 2)


class Reader(nn.Module):
    def __init__(self, bias: float | None) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.memory, self.head = nn.LSTM(5, 20, batch_first=True), nn.Linear(20, 1)
        if bias is not None:
            with torch.no_grad():
                self.memory.bias_ih_l0[20:40] = bias

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.memory(x)[0][:, -1])
        return out


def severities(model: nn.Module, data: tuple[Tensor, Tensor], rule: str) -> list[tuple[str, str]]:
    batches = [(data[0][k::5], data[1][k::5]) for k in range(5)]
    problem = wc.Problem(model, nn.MSELoss(), batches)
    findings = wc.diagnose(problem, torch.optim.Adam(model.parameters(), 3e-3), select=[rule]).findings
    return [(each.layer, each.severity) for each in findings]


@pytest.mark.slow
@pytest.mark.parametrize(("bias", "expected"), [(-5.0, "severe"), (-2.5, "warning"), (None, ""), (1.0, ""), (4.0, "")])
def test_gates_that_forget(bias: float | None, expected: str) -> None:
    listed = severities(Reader(bias), (NOTES, FIRST), "vanishing-gradient")
    assert [each for each in listed if each[0] == "memory"] == ([("memory", expected)] if expected else [])


def autoencoder(widths: tuple[int, ...], activation: Callable[[], nn.Module]) -> nn.Module:
    torch.manual_seed(0)
    layers = [part for a, b in pairwise(widths) for part in (nn.Linear(a, b), activation())]
    return nn.Sequential(*layers[:-1])


@pytest.mark.parametrize(
    ("widths", "activation", "expected"),
    [
        ((30, 24, 20, 3, 20, 24, 30), nn.Identity, ["warning"]),
        ((30, 24, 20, 3, 20, 24, 30), nn.SiLU, []),
        ((30, 3, 30), nn.Identity, ["note"]),
    ],
    ids=["activations that do nothing", "with activations", "a linear autoencoder"],
)
def test_an_autoencoder_of_many_linear_layers(
    widths: tuple[int, ...], activation: Callable[[], nn.Module], expected: list[str]
) -> None:
    listed = severities(autoencoder(widths, activation), (BENT, BENT), "no-nonlinearity")
    assert [severity for _, severity in listed] == expected
