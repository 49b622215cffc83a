"""Sums that make activations grow from layer to layer, next to networks whose signals are large for another reason."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from rule_cases import findings
from torch import Tensor, nn

import wellcond as wc

LOSS = nn.CrossEntropyLoss()
NODES, FEATURES, CLASSES = 96, 8, 3
Norm = Callable[[int], nn.Module]


def graph() -> tuple[Tensor, Tensor, Tensor]:
    """Sums over about twenty neighbors, features and labels."""
    draw = torch.Generator().manual_seed(0)
    labels = torch.arange(NODES) % CLASSES
    adjacency = (torch.rand(NODES, NODES, generator=draw) < 0.1 + 0.3 * (labels[:, None] == labels)).float()
    x = torch.randn(CLASSES, FEATURES, generator=draw)[labels] + torch.randn(NODES, FEATURES, generator=draw)
    return ((adjacency + adjacency.T).clamp(max=1) + torch.eye(NODES)), x, labels


class Graph(nn.Module):
    """Layers that pass messages, before or after their weights."""

    def __init__(self, adjacency: Tensor, *, is_first: bool = True, norm: Norm = lambda _: nn.Identity()) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.adjacency, self.is_first = adjacency, is_first
        self.layers = nn.ModuleList(nn.Linear(FEATURES if k == 0 else 24, 24) for k in range(3))
        self.norms = nn.ModuleList(norm(24) for _ in range(3))
        self.out = nn.Linear(24, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        for layer, norm in zip(self.layers, self.norms, strict=True):
            h = layer(self.adjacency @ x) if self.is_first else self.adjacency @ layer(x)
            x = norm(h).relu()
        out: Tensor = self.out(x)
        return out


class OneSum(nn.Module):
    """Sets whose elements are added up once."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.each, self.hidden, self.out = nn.Linear(4, 24), nn.Linear(24, 24), nn.Linear(24, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.out(self.hidden(self.each(x).relu().sum(1)).relu())
        return out


@pytest.mark.parametrize("is_first", [True, False])
def test_sums_over_neighbors(is_first: bool) -> None:
    adjacency, x, y = graph()
    of_sums = findings(Graph(adjacency, is_first=is_first), LOSS, (x, y))
    assert f"in each of {2 if is_first else 3} layers" in of_sums["activation-drift"].summary
    assert of_sums["activation-drift"].layer == "layers.1"
    assert "bad-initialisation" not in of_sums


@pytest.mark.slow
def test_it_stands_first_where_the_loss_shoots_up() -> None:
    adjacency, x, y = graph()
    for model, first in (
        (Graph(adjacency), [("activation-drift", "severe")]),
        (Graph(adjacency / adjacency.sum(1, keepdim=True)), []),
    ):
        first_of = wc.diagnose(wc.Problem(model, LOSS, [(x, y)]), torch.optim.SGD(model.parameters(), 0.1)).findings[:1]
        assert [(each.rule, each.severity) for each in first_of if each.severity != "note"] == first


@pytest.mark.parametrize(
    "model",
    [
        Graph(graph()[0] / graph()[0].sum(1, keepdim=True)),
        Graph(graph()[0], norm=nn.LayerNorm),
        Graph(graph()[0], norm=nn.BatchNorm1d, is_first=False),
    ],
    ids=["means", "layer norms", "batch norms"],
)
def test_graphs_whose_signals_keep_their_size(model: nn.Module) -> None:
    assert "activation-drift" not in findings(model, LOSS, graph()[1:])


def test_one_sum_is_no_growth_from_layer_to_layer() -> None:
    x = torch.randn(96, 30, 4, generator=torch.Generator().manual_seed(0))
    assert "activation-drift" not in findings(OneSum(), LOSS, (x, torch.arange(96) % CLASSES))


def test_growth_that_weights_make_is_theirs() -> None:
    torch.manual_seed(0)
    layers = [*(nn.Linear(FEATURES, FEATURES) for _ in range(3)), nn.Linear(FEATURES, CLASSES)]
    model = nn.Sequential(*layers)
    with torch.no_grad():
        for layer in layers:
            layer.weight.mul_(25)
    of_weights = findings(model, LOSS, graph()[1:])
    assert of_weights["bad-initialisation"].severity == "severe"
    assert all("what comes between" not in each.summary for each in of_weights.values())
