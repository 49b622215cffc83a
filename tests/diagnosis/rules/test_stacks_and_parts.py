"""What stands in a stack, in parts of a batch, or in columns by themselves."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import SGD, Adam

import wellcond as wc
from tests.diagnosis.rules.rule_cases import findings
from wellcond.diagnosis.evidence import Evidence
from wellcond.diagnosis.inspection.inspect import inspect
from wellcond.diagnosis.probes.behavior import behavior
from wellcond.diagnosis.probes.paired import paired
from wellcond.diagnosis.rules.small_batch_batchnorm import small_batch
from wellcond.diagnosis.rules.vanishing_gradient import _first_of_stack

DRAW = torch.Generator().manual_seed(0)
X = torch.randn(96, 6, generator=DRAW)


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["inp", "convs.0", "convs.1", "convs.2"], "convs.0"),
        (["stem", "blocks.0.a", "blocks.0.b", "blocks.1.a", "head.0"], "blocks.0.a"),
        (["0", "2", "4"], "0"),
        (["a.0", "b.0", "c.0"], "a.0"),
    ],
)
def test_the_layer_of_a_gradient_that_vanishes_is_in_the_stack(names: list[str], expected: str) -> None:
    assert _first_of_stack(names) == expected


@pytest.mark.parametrize(("rows", "expected"), [(2, ["severe"]), (16, [])])
def test_a_batchnorm_sees_the_parts_that_a_step_passes(rows: int, expected: list[str]) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 1))

    def step(m: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        outputs = torch.cat([m(part) for part in batch[0].split(rows)])
        return F.mse_loss(outputs, batch[1])

    problem = wc.Problem.from_step(model, step, [(x, x[:, :1]) for x in X.split(32)])
    evidence = Evidence(problem, inspection=inspect(problem))
    assert [each.severity for each in small_batch(evidence)] == expected


class Mixture(nn.Module):
    def __init__(self, spread: float) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.means, self.scales = nn.Parameter(spread * torch.randn(5, 6)), nn.Parameter(torch.zeros(5, 6))

    def forward(self, x: Tensor) -> Tensor:
        z = (x[:, None] - self.means) * (-self.scales).exp()
        return torch.logsumexp(-0.5 * z.square().sum(-1) - self.scales.sum(-1), 1)


@pytest.mark.parametrize(("spread", "is_alike"), [(0.0, True), (1.0, False)])
def test_parts_of_a_mixture_that_start_at_one_place(spread: float, is_alike: bool) -> None:
    model = Mixture(spread)
    problem = wc.Problem.from_step(model, lambda m, batch: -m(batch).mean(), [*X.split(32)])
    every = wc.diagnose(problem, Adam(model.parameters(), 1e-2), select=["symmetric-initialisation"]).findings
    assert [each.layer for each in every] == (["means"] if is_alike else [])


class Towers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.one, self.two = (nn.Sequential(nn.Linear(6, 64), nn.ReLU(), nn.Linear(64, 4)) for _ in range(2))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return F.normalize(self.one(x), dim=-1), F.normalize(self.two(x), dim=-1)


def drawn_together(model: nn.Module, x: Tensor) -> Tensor:
    a, b = model(x)
    return (1 - (a * b).sum(1)).mean()


def kept_apart(model: nn.Module, x: Tensor) -> Tensor:
    a, b = model(x)
    return F.cross_entropy(a @ b.T / 0.1, torch.arange(len(a)))


@pytest.mark.slow
@pytest.mark.parametrize(("step", "expected"), [(drawn_together, ["severe"]), (kept_apart, [])])
def test_views_that_are_only_drawn_together(step: Callable[..., Tensor], expected: list[str]) -> None:
    model = Towers()
    problem = wc.Problem.from_step(model, step, [*X.split(32)])
    optimizer = Adam(model.parameters(), 0.1)
    every = wc.diagnose(problem, optimizer, select=["rank-collapse"]).findings
    assert [each.severity for each in every] == expected


def test_views_go_to_different_examples() -> None:
    """The loss of both in another order is the same; each in its own is that of pairs that do not belong together."""
    model = Towers()
    problem = wc.Problem.from_step(model, drawn_together, [X])
    with contextlib.closing(problem.data()) as data:
        _, batch = next(data)
    known = paired(problem, batch)
    assert known is not None
    assert known.compares_views
    a, b = model(X)
    assert known.loss == pytest.approx(float((1 - (a * b).sum(1)).mean().detach()), rel=1e-5)
    assert known.of_others == pytest.approx(float(1 - (a @ b.T).mean().detach()), abs=0.1)


@pytest.mark.parametrize(("scale", "expected"), [(1e4, ["severe"]), (1.0, [])])
def test_columns_by_themselves_next_to_categories(scale: float, expected: list[str]) -> None:
    class Scorer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.region, self.first, self.last = nn.Embedding(5, 3), nn.Linear(5, 16), nn.Linear(16, 1)

        def forward(self, income: Tensor, age: Tensor, region: Tensor) -> Tensor:
            x = torch.cat([self.region(region), income[:, None], age[:, None]], 1)
            out: Tensor = self.last(torch.relu(self.first(x)))[:, 0]
            return out

    columns = {"income": scale * X[:, 0].exp(), "age": X[:, 1], "region": torch.arange(96) % 5}
    label = (X[:, 0] + X[:, 1] > 0).float()
    model = Scorer()
    problem = wc.Problem(model, nn.BCEWithLogitsLoss(), [(columns, label)])
    every = wc.diagnose(problem, SGD(model.parameters(), 0.1), select=["unscaled-input"]).findings
    assert [each.severity for each in every] == expected


class Summing(nn.Module):
    """A layer by hand that adds up its neighbors, or takes their mean."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(8, 8) / 8**0.5)

    def forward(self, x: Tensor, neighbors: Tensor) -> Tensor:
        return torch.relu(neighbors @ (x @ self.weight))


class Graph(nn.Module):
    def __init__(self, neighbors: Tensor) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.neighbors, self.start, self.out = neighbors, nn.Linear(6, 8), nn.Linear(8, 1)
        self.layers = nn.ModuleList(Summing() for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        x = self.start(x)
        for layer in self.layers:
            x = layer(x, self.neighbors)
        out: Tensor = self.out(x)[:, 0]
        return out


@pytest.mark.slow
@pytest.mark.parametrize(("is_mean", "expected"), [(False, ["layers.1"]), (True, [])])
def test_modules_by_hand_that_grow_one_after_the_other(is_mean: bool, expected: list[str]) -> None:
    """One graph whose nodes are the examples, some of which are trained on: the loss takes no other batch."""
    near = (torch.cdist(X[:, :2], X[:, :2]) < 1.5).float()
    model = Graph(near / near.sum(1, keepdim=True) if is_mean else near)
    known = torch.arange(96) % 3 > 0

    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        return F.mse_loss(outputs[known], targets[known])

    problem = wc.Problem(model, loss, [(X, X[:, 2])])
    d = wc.diagnose(problem, Adam(model.parameters(), 3e-3), select=["activation-drift"])
    assert "gradients" not in d.failed
    assert [each.layer for each in d.findings] == expected


class Patches(nn.Module):
    def __init__(self, *, has_positions: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.mix, self.head = (
            nn.Conv2d(1, 16, 4, 4),
            nn.TransformerEncoderLayer(16, 2, 32),
            nn.Linear(16, 3),
        )
        self.positions = nn.Parameter(torch.randn(1, 9, 16)) if has_positions else None

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.embed(x).flatten(2).mT
        tokens = tokens if self.positions is None else tokens + self.positions
        out: Tensor = self.head(self.mix(tokens).mean(1))
        return out


@pytest.mark.parametrize("has_positions", [False, True])
def test_nine_patches_of_an_image(has_positions: bool) -> None:
    images, where = 0.1 * torch.randn(96, 1, 12, 12, generator=DRAW), torch.arange(96) % 3
    for image, third in zip(images, where.tolist(), strict=True):
        image[:, :, 4 * third : 4 * third + 4] += 1
    order = behavior(
        wc.Problem(Patches(has_positions=has_positions).eval(), nn.CrossEntropyLoss(), [(images, where)])
    ).order
    assert order is not None
    assert (order.change < 1e-4) is not has_positions


@pytest.mark.parametrize(("momentum", "expected"), [(0.999, "severe"), (0.996, "warning"), (0.9, None)])
def test_a_momentum_that_lasts_for_a_thousand_steps(momentum: float, expected: str | None) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 2))
    every = findings(
        model, nn.CrossEntropyLoss(), (X, (X[:, 0] > 0).long()), SGD(model.parameters(), 0.01, momentum=momentum)
    )
    assert (every["optimizer-setting"].severity if expected else None) == expected
    assert ("optimizer-setting" in every) is (expected is not None)


def test_comparisons_inside_of_vmap_are_left_alone() -> None:
    torch.manual_seed(0)
    model = nn.Linear(6, 1)

    def step(m: nn.Module, batch: tuple[Tensor, Tensor]) -> Any:
        return torch.vmap(lambda x, y: F.mse_loss(m(x), y))(*batch).mean()

    problem = wc.Problem.from_step(model, step, [(X.view(12, 8, 6), X[:, :1].reshape(12, 8, 1))])
    facts = inspect(problem)
    assert facts.loss == pytest.approx(float(F.mse_loss(model(X), X[:, :1]).detach()), rel=1e-5)
    assert not facts.forward_error
