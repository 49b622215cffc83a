"""Graphs, with a sparse adjacency or a dense one, whose nodes look like examples but cannot be taken apart."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from zoo import normal, seeded

import wellcond as wc

NODES = 100


class GraphNetwork(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.out = nn.Linear(8, 16), nn.Linear(16, 3)

    def forward(self, x: Tensor, adjacency: Tensor) -> Tensor:
        h = torch.relu(adjacency @ self.hidden(x))
        return adjacency @ self.out(h)


def graph() -> tuple[Tensor, Tensor, Tensor]:
    """Features of nodes, the adjacency with rows that sum to one, and labels that depend on neighbors."""
    edges = (normal(NODES, NODES) > 1.3).double() + torch.eye(NODES).double()
    adjacency, x = edges / edges.sum(1, keepdim=True), normal(NODES, 8)
    return x, adjacency, (adjacency @ x)[:, :3].argmax(1)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support")
@pytest.mark.parametrize("layout", [Tensor.clone, Tensor.to_sparse, Tensor.to_sparse_csr], ids=["dense", "coo", "csr"])
def test_a_graph_is_measured_and_trained(layout: Callable[[Tensor], Tensor]) -> None:
    x, adjacency, y = graph()
    model = seeded(GraphNetwork)
    problem = wc.Problem(model, nn.CrossEntropyLoss(), [((x, layout(adjacency)), y)])
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    diagnosis = wc.diagnose(problem, optimizer)
    assert {*diagnosis.failed} <= {"whether examples of a batch influence each other"}
    assert diagnosis.trial is not None
    assert diagnosis.trial.few is not None
    assert diagnosis.max_lr is not None
    assert wc.suggest_lr(problem, optimizer, max_steps=30).lr > 0
    treatment = wc.treat(problem, optimizer, steps=3, seeds=[0], remedies=["clip", "layernorm", "scale-inputs"])
    assert not any("backend" in why or "layout" in why for why in treatment.refused.values())


class WithDropout(GraphNetwork):
    def forward(self, x: Tensor, adjacency: Tensor) -> Tensor:
        h = nn.functional.dropout(torch.relu(adjacency @ self.hidden(x)), 0.5, self.training)
        return adjacency @ self.out(h)


@pytest.mark.slow
def test_a_step_with_a_sparse_adjacency_in_its_batch_is_measured_in_full_and_without_a_warning() -> None:
    x, adjacency, y = graph()
    model = seeded(WithDropout)

    def training_step(model: nn.Module, batch: tuple[Tensor, Tensor, Tensor]) -> Tensor:
        return nn.functional.cross_entropy(model(batch[0], batch[1]), batch[2])

    problem = wc.Problem.from_step(model, training_step, [(x, adjacency.to_sparse(), y)])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        diagnosis = wc.diagnose(problem, torch.optim.Adam(model.parameters(), lr=0.01))
    assert diagnosis.failed == {}


def test_the_curvature_of_a_sparse_graph_is_that_of_the_dense_one() -> None:
    x, adjacency, y = graph()
    model = seeded(GraphNetwork)
    loss = nn.CrossEntropyLoss()
    dense, sparse = (wc.Problem(model, loss, [((x, a), y)]) for a in (adjacency, adjacency.to_sparse()))
    top, same = (wc.eigenvalues(wc.Hessian(each)).values[-1] for each in (dense, sparse))
    assert float(same) == pytest.approx(float(top), rel=1e-3)


def test_a_loader_of_sparse_batches_is_read() -> None:
    x, adjacency, y = graph()

    class Loader:
        """It has a length, and its batches are compared to see whether it shuffles."""

        def __len__(self) -> int:
            return 2

        def __iter__(self) -> object:
            return iter([((x, adjacency.to_sparse()), y)] * 2)

    assert wc.Problem(seeded(GraphNetwork), nn.CrossEntropyLoss(), Loader()).held == ""
