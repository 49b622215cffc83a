"""Steps that ask for outputs which the model never gives, and sound ones with a bound."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import wellcond as wc
from wellcond.diagnosis.evidence import Evidence
from wellcond.diagnosis.probes.behavior import behavior
from wellcond.diagnosis.rules.output_loss_mismatch.beyond_bound import beyond_bound

G = torch.Generator().manual_seed(0)
X = torch.randn(64, 6, generator=G)
Y = X[:, :1] * X[:, 1:2]
ACTION = torch.randint(3, (64, 1), generator=G)


def found(last: nn.Module, step: Callable[[nn.Module, Any], Tensor], outputs: int = 1) -> list[str]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 32), nn.Tanh(), nn.Linear(32, outputs), last)
    problem = wc.Problem.from_step(model, step, [(X, Y)])
    return [each.severity for each in beyond_bound(Evidence(problem, None, behavior=behavior(problem)))]


def chosen(m: nn.Module, b: Any, reward: float) -> Tensor:
    values = m(b[0]).gather(1, ACTION)[:, 0]
    with torch.no_grad():
        best = m(b[0].roll(1, 0)).max(1).values
    return F.smooth_l1_loss(values, reward + b[1][:, 0].tanh() + 0.5 * best)


@pytest.mark.parametrize(
    ("last", "step", "outputs"),
    [
        (nn.ReLU(), lambda m, b: chosen(m, b, -5.0), 3),
        (nn.Sigmoid(), lambda m, b: F.mse_loss(m(b[0]), 5 + b[1].tanh()), 1),
        (nn.Softplus(), lambda m, b: (m(b[0]) - (b[1].tanh() - 3)).abs().mean(), 1),
        (nn.Tanh(), lambda m, b: F.mse_loss(m(b[0]), -9 + b[1].tanh()), 1),
    ],
    ids=["costs", "prices after a sigmoid", "temperatures after a softplus", "far below a tanh"],
)
def test_outputs_that_are_never_reached(last: nn.Module, step: Any, outputs: int) -> None:
    assert found(last, step, outputs) == ["severe"]


@pytest.mark.parametrize(
    ("last", "step", "outputs"),
    [
        (nn.Identity(), lambda m, b: chosen(m, b, -5.0), 3),
        (nn.ReLU(), lambda m, b: chosen(m, b, 5.0), 3),
        (nn.ReLU(), lambda m, b: m(b[0]).mean(), 1),
        (nn.Sigmoid(), lambda m, b: F.binary_cross_entropy(m(b[0]), (b[1] > 0).float()), 1),
        (nn.Sigmoid(), lambda m, b: F.mse_loss(m(b[0]), torch.ones_like(b[1])), 1),
        (nn.Softplus(), lambda m, b: (m(b[0]).log() + b[1].abs() / m(b[0])).mean(), 1),
        (nn.ReLU(), lambda m, b: F.mse_loss(m(b[0]), b[1].relu()) + 0.1 * m(b[0]).abs().mean(), 1),
    ],
    ids=["no bound", "rewards", "its own hinge", "probabilities", "a real image", "a scale", "sparse"],
)
def test_sound(last: nn.Module, step: Any, outputs: int) -> None:
    assert found(last, step, outputs) == []


class Several(nn.Module):
    """A network that returns codes, their products, and what a decoder makes of them."""

    def __init__(self, code: nn.Module, last: nn.Module, width: int = 4) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(6, 32), nn.Tanh(), nn.Linear(32, width), code)
        self.decoder = nn.Sequential(nn.Linear(width, 6), last)
        self.level = nn.Parameter(torch.zeros(()))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.decoder(self.encoder(x)), self.encoder(x)


class Products(Several):
    """Inner products of codes, each with each."""

    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        z: Tensor = self.encoder(x)
        return z @ z.T


def found_in(model: nn.Module, step: Callable[[Any, Any], Tensor]) -> list[str]:
    problem = wc.Problem.from_step(model, step, [(X, Y)])
    return [each.severity for each in beyond_bound(Evidence(problem, None, behavior=behavior(problem)))]


ANCHORS = torch.randn(16, 24, generator=G)
NOISE = torch.randn(64, 6, generator=G)
EDGES = (torch.rand(64, 64, generator=G) < 0.3).float()


def edges_of(products: Tensor) -> Tensor:
    loss: Tensor = F.binary_cross_entropy_with_logits(products, EDGES[: len(products), : len(products)])
    return loss


def rebuilt(m: Any, b: Any, loss: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    image, code = m(b[0])
    reconstruction: Tensor = loss(image, (b[0] > 0).float())
    total: Tensor = reconstruction + 0.01 * code.square().mean()
    return total


@pytest.mark.parametrize(
    ("model", "step"),
    [
        (lambda: Several(nn.Identity(), nn.ReLU()), lambda m, b: F.mse_loss(m(b[0])[0], NOISE[: len(b[0])])),
        (lambda: Products(nn.ReLU(), nn.Identity()), lambda m, b: edges_of(m(b[0]))),
        (lambda: Several(nn.Identity(), nn.ReLU()), lambda m, b: F.mse_loss(m.decoder(m.encoder(b[0])), b[0])),
        (
            lambda: Several(nn.Identity(), nn.Sigmoid()),
            lambda m, b: rebuilt(m, b, F.binary_cross_entropy_with_logits),
        ),
    ],
    ids=["noise", "logits of edges", "of a part", "a sigmoid twice"],
)
def test_many_that_are_never_reached(model: Callable[[], nn.Module], step: Any) -> None:
    torch.manual_seed(0)
    assert found_in(model(), step) == ["severe"]


@pytest.mark.parametrize(
    ("model", "step"),
    [
        (
            lambda: Several(nn.Identity(), nn.ReLU()),
            lambda m, b: F.mse_loss(m(b[0])[0], 0.8 * b[0].abs() + 0.5 * NOISE[: len(b[0])]),
        ),
        (lambda: Products(nn.ReLU(), nn.Identity()), lambda m, b: edges_of(m(b[0]) - m.level)),
        (lambda: Products(nn.Identity(), nn.Identity()), lambda m, b: edges_of(m(b[0]))),
        (
            lambda: Several(nn.ReLU(), nn.Identity(), width=1),
            lambda m, b: F.mse_loss(m.decoder(m.encoder(b[0])), b[0]),
        ),
        (
            lambda: Several(nn.ReLU(), nn.Identity()),
            lambda m, b: F.mse_loss(m(b[0])[0], b[0]) + 1e-3 * m(b[0])[1].mean(),
        ),
        (lambda: Several(nn.Identity(), nn.Sigmoid()), lambda m, b: rebuilt(m, b, F.binary_cross_entropy)),
        (
            lambda: Several(nn.Identity(), nn.Softplus()),
            lambda m, b: (m(b[0])[0] + m(b[0])[0].detach() + 0.4 * NOISE[: len(b[0])] - 2 * m(b[0])[0]).square().mean(),
        ),
        (
            lambda: Several(nn.ReLU(), nn.Identity(), width=16),
            lambda m, b: F.cross_entropy(5 * F.normalize(m.encoder(b[0])) @ ANCHORS, ACTION[: len(b[0]), 0]),
        ),
    ],
    ids=["counts with noise", "products with a bias", "codes of both signs", "a decoder after it", "a penalty",
         "probabilities", "goals that follow", "compared with each other"],
)  # fmt: skip
def test_bounds_that_are_meant(model: Callable[[], nn.Module], step: Any) -> None:
    torch.manual_seed(0)
    assert found_in(model(), step) == []
