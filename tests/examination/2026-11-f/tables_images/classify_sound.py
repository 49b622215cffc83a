"""Tables: sound classifiers."""

from __future__ import annotations

import torch
from classify_tables import binary_skill, skill, table
from program import Program, sound
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset, WeightedRandomSampler


@sound("an ordinary classifier of a table", steps=300, least=0.65)
def plain_classifier():
    x, y = table(2000, 8, 3, 10)
    model = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 3))
    loader = DataLoader(TensorDataset(x, y), batch_size=64, shuffle=True)
    optimizer = torch.optim.Adam(model.parameters(), 2e-3)
    return Program(model, nn.CrossEntropyLoss(), loader, optimizer, skill(*table(1000, 8, 3, 11), 3))


@sound("an ordinary one with BatchNorm and dropout, half trained", trained=150, steps=400, least=0.65)
def regularised_classifier():
    x, y = table(3000, 12, 4, 12)

    def block(a, b):
        return nn.Sequential(nn.Linear(a, b), nn.BatchNorm1d(b), nn.ReLU(), nn.Dropout(0.2))

    model = nn.Sequential(block(12, 64), block(64, 64), nn.Linear(64, 4))
    loader = DataLoader(TensorDataset(x, y), batch_size=128, shuffle=True, drop_last=True)
    optimizer = torch.optim.AdamW(model.parameters(), 3e-3, weight_decay=1e-2)
    return Program(model, nn.CrossEntropyLoss(), loader, optimizer, skill(*table(1000, 12, 4, 13), 4))


@sound("four percent positives, drawn more often by a sampler", steps=300, least=0.65)
def rare_fraud():
    g = torch.Generator().manual_seed(72)
    x = torch.randn(8000, 6, generator=g)
    signal = x[:, 0] * x[:, 1] + x[:, 2] ** 2
    y = (signal > 3.2).float()
    weights = torch.where(y[:6000] > 0, 10.0, 1.0)
    loader = DataLoader(TensorDataset(x[:6000], y[:6000]), batch_size=64, sampler=WeightedRandomSampler(weights, 6000))
    model = nn.Sequential(nn.Linear(6, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1), nn.Flatten(0))
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    return Program(model, nn.BCEWithLogitsLoss(), loader, optimizer, binary_skill(x[6000:], y[6000:]))


@sound("a squared hinge loss on targets of -1 and 1, at a large rate", steps=300, least=0.65)
def hinge_classifier():
    g = torch.Generator().manual_seed(73)
    x = torch.randn(3000, 6, generator=g)
    y = torch.sign(x[:, 0] * x[:, 1] + 0.7 * x[:, 2] + 0.1)
    model = nn.Sequential(nn.Linear(6, 64), nn.Tanh(), nn.Linear(64, 1, bias=False), nn.Flatten(0))
    loader = DataLoader(TensorDataset(x[:2200], y[:2200]), batch_size=50, shuffle=True)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, nesterov=True)
    return Program(
        model, lambda out, t: F.relu(1 - t * out).square().mean(), loader, optimizer, binary_skill(x[2200:], (y[2200:] + 1) / 2)
    )


@sound("a hundred and twenty one-hot columns, of which four are on", steps=300, least=0.65)
def one_hot_categories():
    g = torch.Generator().manual_seed(74)
    codes = torch.randint(0, 30, (5000, 4), generator=g)
    effects = torch.randn(4, 30, 3, generator=g)
    logits = sum(effects[k][codes[:, k]] for k in range(4))
    y = logits.argmax(1)
    x = F.one_hot(codes, 30).flatten(1).float()
    model = nn.Sequential(nn.Linear(120, 32), nn.ReLU(), nn.Linear(32, 3))
    loader = DataLoader(TensorDataset(x[:4000], y[:4000]), batch_size=64, shuffle=True)
    optimizer = torch.optim.Adam(model.parameters(), 5e-3)
    return Program(model, nn.CrossEntropyLoss(), loader, optimizer, skill(x[4000:], y[4000:], 3))


@sound("multi-label with rare tags, a mean over rows of sums over tags", steps=300, least=0.6)
def summed_over_tags():
    g = torch.Generator().manual_seed(75)
    x = torch.randn(4000, 8, generator=g)
    y = ((x @ torch.randn(8, 12, generator=g) / 2.8) > 1.0).float()
    model = nn.Sequential(nn.Linear(8, 64), nn.SiLU(), nn.Linear(64, 12))
    nn.init.constant_(model[2].bias, -1.7)
    loader = DataLoader(TensorDataset(x[:3200], y[:3200]), batch_size=64, shuffle=True)

    def loss(out, t):
        return F.binary_cross_entropy_with_logits(out, t, reduction="none").sum(1).mean()

    columns = [binary_skill(x[3200:], y[3200:, k]) for k in range(12)]
    return Program(
        model,
        loss,
        loader,
        torch.optim.Adam(model.parameters(), 3e-3),
        lambda m: sum(c(lambda v, k=k: m(v)[:, k]) for k, c in enumerate(columns)) / 12,
    )
