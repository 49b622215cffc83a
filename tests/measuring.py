"""One measurement of a problem as a user would write it, for tests of what goes wrong."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset
from zoo import integers, normal

import wellcond as wc

BATCH = (normal(6, 4), integers(3, 6))


def measure(model: nn.Module, loss: Any, batches: Any, **options: Any) -> Tensor:
    problem = wc.Problem(model, loss, batches, **options)
    return wc.Hessian(problem) @ torch.ones(problem.size)


def loader(inputs: Tensor = BATCH[0], targets: Tensor = BATCH[1], **options: Any) -> DataLoader[Any]:
    return DataLoader(TensorDataset(inputs, targets), **({"batch_size": 2} | options))
