"""A graph network: two graph convolutions classify the nodes of one graph, of which a tenth have a known label."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import wellcond as wc

NODES, CLASSES, EPOCHS = 600, 4, 60


def communities() -> tuple[Tensor, Tensor, Tensor]:
    """Normalized sparse adjacency with self-loops, features that tell little of the class, and the classes."""
    labels = torch.randint(CLASSES, (NODES,))
    same = labels[:, None] == labels[None]
    edges = torch.rand(NODES, NODES) < torch.where(same, 0.04, 0.004)
    adjacency = (edges | edges.T | torch.eye(NODES, dtype=torch.bool)).float()
    scale = adjacency.sum(1).rsqrt()
    features = 0.3 * torch.randn(CLASSES, 32)[labels] + torch.randn(NODES, 32)
    return (scale[:, None] * adjacency * scale).to_sparse(), features, labels


class GCN(nn.Module):
    def __init__(self, adjacency: Tensor, in_a_list: bool) -> None:
        super().__init__()
        self.adjacency = adjacency
        layers = [nn.Linear(32, 64), nn.Linear(64, 64)]
        self.layers = layers if in_a_list else nn.ModuleList(layers)
        self.head = nn.Linear(64, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = torch.relu(self.adjacency @ layer(x))
        return self.head(x)


def main(planted: bool = False) -> tuple[wc.Diagnosis, float]:
    """Train it; `planted`: layers in a plain list, which no optimizer sees."""
    torch.manual_seed(0)
    adjacency, features, labels = communities()
    known = torch.arange(NODES) < NODES // 10
    model = GCN(adjacency, in_a_list=planted)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)

    def training_step(model: nn.Module, graph: tuple[Tensor, Tensor]) -> Tensor:
        features, labels = graph
        return F.cross_entropy(model(features)[known], labels[known])

    graph = (features, labels)
    diagnosis = wc.diagnose(wc.Problem.from_step(model, training_step, [graph]), optimizer)
    print(diagnosis.verdict())

    for _ in range(EPOCHS):
        loss = training_step(model, graph)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    error = float((model(features).argmax(1) != labels)[~known].float().mean())
    print(f"loss {loss.item():.3f}, {error:.0%} of the other nodes are wrong")
    return diagnosis, error


if __name__ == "__main__":
    main()
