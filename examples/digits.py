"""A 20-layer ReLU network that does not train: `wellcond try examples/digits.py:build --steps 600`."""

from __future__ import annotations

from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import wellcond as wc
from wellcond.data import digits
from wellcond.models import mlp


def build() -> wc.Problem:
    model = mlp([64] + [64] * 19 + [10], norm="none", init="lecun", seed=0)
    data = TensorDataset(*digits(train=True).tensors(flatten=True))
    return wc.Problem(model, nn.CrossEntropyLoss(), DataLoader(data, batch_size=64))
