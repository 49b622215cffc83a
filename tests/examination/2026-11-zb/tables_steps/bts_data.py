"""Small tables, loaders and scores that the cases share."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, TensorDataset


def loader(*columns: Tensor, size: int = 64, shuffle: bool = True) -> DataLoader:
    """Batches of the rows of some tensors."""
    return DataLoader(TensorDataset(*columns), batch_size=size, shuffle=shuffle, drop_last=True)


class Records(Dataset):
    """Rows of named inputs and a target."""

    def __init__(self, inputs: dict[str, Tensor], target: Tensor) -> None:
        self.inputs, self.target = inputs, target

    def __len__(self) -> int:
        return len(self.target)

    def __getitem__(self, row: int):
        return {name: column[row] for name, column in self.inputs.items()}, self.target[row]


def record_loader(inputs: dict[str, Tensor], target: Tensor, size: int = 64) -> DataLoader:
    """Shuffled batches of named inputs."""
    return DataLoader(Records(inputs, target), batch_size=size, shuffle=True, drop_last=True)


def r2(predicted: Tensor, target: Tensor) -> float:
    """Explained share of the variance, at least 0."""
    rest = (predicted.reshape(target.shape) - target).square().mean() / target.var()
    return max(0.0, 1 - rest.item())


def hits(scores: Tensor, target: Tensor) -> float:
    """Share of rows whose highest score is at the target."""
    return (scores.argmax(-1) == target).float().mean().item()


def mlp(*sizes: int, act: type[nn.Module] = nn.ReLU) -> nn.Sequential:
    """A plain multilayer perceptron."""
    parts: list[nn.Module] = []
    for a, b in zip(sizes, sizes[1:]):
        parts += [nn.Linear(a, b), act()]
    return nn.Sequential(*parts[:-1])


def surface(x: Tensor) -> Tensor:
    """A smooth nonlinear response to the first columns, with mean near 0 and variance near 1."""
    y = x[:, 0] * x[:, 1] + torch.sin(2 * x[:, 2]) + 0.5 * x[:, 3]
    return (y - y.mean()) / y.std()


def cut(*columns: Tensor, at: float = 0.75):
    """Training and held-out parts of each column, one after the other."""
    parts = []
    for column in columns:
        k = int(at * len(column))
        parts += [column[:k], column[k:]]
    return parts


def from_sklearn(name: str, scaled: bool = True):
    """An embedded data set of scikit-learn: training and held-out inputs, then targets."""
    from sklearn import datasets

    x, y = getattr(datasets, f"load_{name}")(return_X_y=True)
    x, y = torch.tensor(x, dtype=torch.float32), torch.tensor(y)
    order = torch.randperm(len(x))
    x, y = x[order], y[order]
    if scaled:
        x = (x - x.mean(0)) / (x.std(0) + 1e-6)
    return cut(x, y)


def logged_decisions(n: int, actions: int = 4):
    """States, random actions, their rewards, next states, and the best actions."""
    s, s2 = torch.randn(n, 6), torch.randn(n, 6)
    w = torch.randn(6, actions)
    table = torch.tanh(s @ w)
    a = torch.randint(actions, (n,))
    return s, a, table.gather(1, a[:, None])[:, 0], s2, table.argmax(1)
