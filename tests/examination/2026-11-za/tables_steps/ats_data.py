"""Small data, loaders and scores for the cases on tables, science and scripts with their own step."""

from __future__ import annotations

import torch
from sklearn import datasets
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset


def gen(seed: int) -> torch.Generator:
    """A generator for data that are the same in every run."""
    return torch.Generator().manual_seed(seed)


def loader(*tensors: Tensor, size: int = 64, shuffle: bool = True) -> DataLoader:
    """Batches of rows."""
    return DataLoader(TensorDataset(*tensors), batch_size=size, shuffle=shuffle, drop_last=True)


def mlp(*sizes: int, act: type[nn.Module] = nn.ReLU) -> nn.Sequential:
    """Linear layers with an activation between them."""
    layers: list[nn.Module] = []
    for i, (a, b) in enumerate(zip(sizes, sizes[1:])):
        layers.append(nn.Linear(a, b))
        if i < len(sizes) - 2:
            layers.append(act())
    return nn.Sequential(*layers)


def r2(pred: Tensor, y: Tensor) -> float:
    """Explained variance, not below 0."""
    pred, y = pred.float().reshape(-1), y.float().reshape(-1)
    return max(0.0, 1 - float(((pred - y) ** 2).mean() / y.var()))


def accuracy(logits: Tensor, y: Tensor) -> float:
    """Share of rows whose largest logit is right."""
    return float((logits.argmax(-1) == y).float().mean())


def auc(score: Tensor, label: Tensor) -> float:
    """Area under the curve, from 0 for chance to 1."""
    pos, neg = score[label > 0.5].reshape(-1), score[label < 0.5].reshape(-1)
    diff = pos[:, None] - neg[None]
    return max(0.0, 2 * float((diff > 0).float().mean() + 0.5 * (diff == 0).float().mean()) - 1)


def standard(x: Tensor) -> Tensor:
    """Columns with mean 0 and deviation 1."""
    return (x - x.mean(0)) / x.std(0).clamp(min=1e-6)


def split(x: Tensor, y: Tensor, held: int, seed: int = 0) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Training and held-out rows."""
    order = torch.randperm(len(x), generator=gen(seed))
    a, b = order[held:], order[:held]
    return x[a], y[a], x[b], y[b]


def embedded(name: str, held: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """A data set of scikit-learn, raw."""
    data = getattr(datasets, f"load_{name}")()
    return split(torch.tensor(data.data).float(), torch.tensor(data.target).long(), held)


def friedman(n: int, seed: int, held: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """A regression of five of eight columns, with a standardised target."""
    x = torch.rand(n, 8, generator=gen(seed))
    y = 10 * torch.sin(3.14159 * x[:, 0] * x[:, 1]) + 20 * (x[:, 2] - 0.5) ** 2 + 10 * x[:, 3] + 5 * x[:, 4]
    y = standard(y[:, None])
    return split(2 * x - 1, y, held)
