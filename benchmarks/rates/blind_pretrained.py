"""Networks trained on another task before: one to fine-tune, one frozen with low-rank adapters.

The training before is the same in every process: its generator is seeded here and the global one is left as it was.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from copy import deepcopy
from functools import cache
from itertools import islice

import torch
from torch import Tensor, nn, optim
from torch.nn import functional as F

from benchmarks.rates.blind_data import five
from benchmarks.rates.data import Shuffled, images
from benchmarks.rates.networks import ViT, cnn


def _trained(network: Callable[[], nn.Module], loader: Shuffled, steps: int, lr: float) -> nn.Module:
    """A network after some steps of Adam on the loader's batches."""
    with torch.random.fork_rng(devices=[]), torch.enable_grad():
        torch.manual_seed(31)
        model = network()
        optimizer = optim.Adam(model.parameters(), lr=lr)
        epochs = -(-steps // len(loader))
        for x, y in islice((batch for _ in range(epochs) for batch in loader), steps):
            optimizer.zero_grad()
            torch.autograd.backward(F.cross_entropy(model(x), y))
            optimizer.step()
        optimizer.zero_grad()
    return model


@cache
def _first_five() -> nn.Module:
    """Convolutions that know the digits 0 to 4."""
    return _trained(lambda: cnn([8, 16, 16], "batch", 5), five(32, later=False), 300, 3e-3)


def fine_tuned() -> nn.Module:
    """Convolutions that know the digits 0 to 4, with a new last layer."""
    model = deepcopy(_first_five())
    assert isinstance(model, nn.Sequential)
    last = model[-1]
    assert isinstance(last, nn.Linear)
    model[-1] = nn.Linear(last.in_features, last.out_features)
    return model


@cache
def _upright() -> nn.Module:
    """A vision transformer that knows the digits."""
    return _trained(lambda: ViT(width=18, layers=1), images(16, noise=0.3), 500, 3e-3)


class LowRank(nn.Module):
    """A frozen linear layer plus a product of two thin matrices, of which the second begins at zero."""

    def __init__(self, frozen: nn.Linear, rank: int, alpha: float) -> None:
        super().__init__()
        self.frozen, self.scale = frozen, alpha / rank
        self.down = nn.Parameter(torch.empty(rank, frozen.in_features))
        self.up = nn.Parameter(torch.zeros(frozen.out_features, rank))
        nn.init.kaiming_uniform_(self.down, a=math.sqrt(5))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.frozen(x) + self.scale * F.linear(F.linear(x, self.down), self.up)
        return out


def adapted(rank: int = 4, alpha: float = 8.0) -> nn.Module:
    """A frozen vision transformer with adapters at the linear layers inside its layers, and a head that trains."""
    model = deepcopy(_upright()).requires_grad_(False)
    assert isinstance(model, ViT)
    for layer in model.layers:
        for name, module in list(layer.named_children()):
            if isinstance(module, nn.Linear):
                setattr(layer, name, LowRank(module, rank, alpha))
    model.head.requires_grad_(True)
    return model
