"""A 20-layer ReLU network that does not train: `wellcond treat examples/digits.py:build --steps 600`."""

from __future__ import annotations

from collections import OrderedDict

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import wellcond as wc


def build() -> wc.Problem:
    """LeCun's weights, N(0, 1/fan_in), halve the mean square of the activations at every ReLU."""
    torch.manual_seed(0)
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    for k in range(1, 20):
        layers |= {f"fc{k}": nn.Linear(64, 64), f"act{k}": nn.ReLU()}
    model = nn.Sequential(layers | {"fc20": nn.Linear(64, 10)})
    for layer in model[::2]:
        nn.init.normal_(layer.weight, std=64**-0.5)
        nn.init.zeros_(layer.bias)
    data = TensorDataset(*wc.digits())
    return wc.Problem(model, nn.CrossEntropyLoss(), DataLoader(data, batch_size=64))


def convolutional() -> tuple[wc.Problem, torch.optim.Optimizer]:
    """A small network that does: `wellcond predict-lr examples/digits.py:convolutional`."""
    torch.manual_seed(0)
    layers = nn.Conv2d(1, 8, 3, stride=2), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(72, 10)
    model = nn.Sequential(*layers)
    inputs, labels = wc.digits()
    problem = wc.Problem(model, nn.CrossEntropyLoss(), (inputs[:256].view(-1, 1, 8, 8), labels[:256]))
    return problem, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
