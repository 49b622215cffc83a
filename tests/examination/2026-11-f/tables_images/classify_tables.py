"""Tables: classification."""

from __future__ import annotations

import torch
from program import Program, fault
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset


def table(n: int, d: int, classes: int, seed: int):
    """Standardised features, and the class that a random two-layer network prefers."""
    g = torch.Generator().manual_seed(1000 + seed)
    x = torch.randn(n, d, generator=g)
    g = torch.Generator().manual_seed(d * 31 + classes)
    hidden = torch.tanh(1.5 * x @ torch.randn(d, 12, generator=g) / d**0.5)
    logits = hidden @ torch.randn(12, classes, generator=g)
    return x, logits.argmax(1)


def skill(x, y, classes):
    """Accuracy, 0 at chance."""

    def score(model):
        accuracy = (model(x).argmax(1) == y).float().mean().item()
        return max(0.0, (accuracy - 1 / classes) / (1 - 1 / classes))

    return score


def binary_skill(x, y):
    """Balanced accuracy of the sign of a logit, 0 at chance."""

    def score(model):
        said = model(x).flatten() > 0
        y_ = y.flatten() > 0.5
        return (said[y_].float().mean() + (~said[~y_]).float().mean()).item() - 1

    return score


class Deep(nn.Module):
    def __init__(self, d: int, width: int, depth: int, classes: int, registered: bool):
        super().__init__()
        sizes = [d] + [width] * depth
        layers = [nn.Linear(a, b) for a, b in zip(sizes, sizes[1:])]
        self.layers = nn.ModuleList(layers) if registered else layers
        self.head = nn.Linear(width, classes)

    def forward(self, x):
        for layer in self.layers:
            x = F.relu(layer(x))
        return self.head(x)


@fault(
    "the threshold for a positive is in the units before standardisation, so nobody is positive",
    rules=["constant-target"],
    fails=True,
    steps=250,
)
def threshold_in_old_units(is_faulty):
    g = torch.Generator().manual_seed(7)
    x = torch.randn(2600, 6, generator=g)
    pressure = 130 + 15 * torch.tanh(x[:, 0] * x[:, 1] + x[:, 2]) + 2 * torch.randn(2600, generator=g)
    scaled = (pressure - pressure.mean()) / pressure.std()
    high = (pressure > 130).float()
    train = (scaled[:2000] > 130).float() if is_faulty else high[:2000]
    model = nn.Sequential(nn.Linear(6, 32), nn.GELU(), nn.Linear(32, 32), nn.GELU(), nn.Linear(32, 1), nn.Flatten(0))
    loader = DataLoader(TensorDataset(x[:2000], train), batch_size=50, shuffle=True)
    optimizer = torch.optim.AdamW(model.parameters(), 3e-3)
    return Program(model, nn.BCEWithLogitsLoss(), loader, optimizer, binary_skill(x[2000:], high[2000:]))


@fault(
    "a last batch of one example, at which BatchNorm raises in the first epoch",
    rules=["model-fails", "small-batch-batchnorm"],
    layers=["1", "4"],
    fails=True,
    steps=250,
)
def last_batch_of_one(is_faulty):
    x, y = table(1025, 10, 4, 4)
    held = table(1000, 10, 4, 5)
    model = nn.Sequential(
        nn.Linear(10, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 4)
    )
    loader = DataLoader(TensorDataset(x, y), batch_size=256, shuffle=True, drop_last=not is_faulty)
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    return Program(model, nn.CrossEntropyLoss(), loader, optimizer, skill(*held, 4))


@fault("hidden layers in a Python list, unknown to the optimizer", rules=["no-gradient"], fails=False, steps=400)
def layers_in_a_list(is_faulty):
    x, y = table(2000, 8, 4, 6)
    held = table(1000, 8, 4, 7)
    model = Deep(8, 24, 3, 4, not is_faulty)
    loader = DataLoader(TensorDataset(x, y), batch_size=64, shuffle=True)
    optimizer = torch.optim.Adam(model.parameters(), 5e-3)
    return Program(model, nn.CrossEntropyLoss(), loader, optimizer, skill(*held, 4))


@fault(
    "a softmax on one output unit, which always says 1",
    rules=["output-loss-mismatch", "no-gradient", "loss-not-decreasing", "wrong-softmax-dimension", "rank-collapse", "saturated-output"],
    layers=["6", "4"],
    fails=True,
    steps=250,
)
def softmax_of_one(is_faulty):
    g = torch.Generator().manual_seed(70)
    x = torch.randn(2800, 5, generator=g)
    y = ((x[:, 0] ** 2 + x[:, 1] * x[:, 2]) > 0.7).float()[:, None]
    last = nn.Softmax(dim=1) if is_faulty else nn.Sigmoid()
    model = nn.Sequential(nn.Linear(5, 48), nn.ReLU(), nn.Linear(48, 48), nn.ReLU(), nn.Linear(48, 1), nn.Flatten(), last)
    loader = DataLoader(TensorDataset(x[:2000], y[:2000]), batch_size=64, shuffle=True)
    inner = binary_skill(x[2000:], y[2000:])
    return Program(
        model, nn.BCELoss(), loader, torch.optim.Adam(model.parameters(), 3e-3), lambda m: inner(lambda v: m(v) - 0.5)
    )
