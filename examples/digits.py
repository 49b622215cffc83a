"""A 20-layer ReLU network that does not train: `wellcond treat examples/digits.py:build --steps 600`."""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import wellcond as wc
from wellcond_papers.data import digits
from wellcond_papers.models import mlp


def build() -> wc.Problem:
    model = mlp([64] + [64] * 19 + [10], norm="none", init="lecun", seed=0)
    data = TensorDataset(*digits(train=True).tensors(flatten=True))
    return wc.Problem(model, nn.CrossEntropyLoss(), DataLoader(data, batch_size=64))


def convolutional() -> tuple[wc.Problem, torch.optim.Optimizer]:
    """A small network that does: `wellcond predict-lr examples/digits.py:convolutional`."""
    torch.manual_seed(0)
    layers = nn.Conv2d(1, 8, 3, stride=2), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(72, 10)
    model = nn.Sequential(*layers)
    problem = wc.Problem(model, nn.CrossEntropyLoss(), digits().tensors(count=256))
    return problem, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
