"""Healthy runs whose data or losses look odd."""

from __future__ import annotations

import data
import torch
import torch.nn.functional as F
from program import Record, healthy
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


@healthy("Batches of two: the loss of a step says next to nothing", steps=2000)
def batches_of_two(record: Record) -> None:
    torch.manual_seed(111)
    x, y = data.tabular(6000, 61, classes=3, noise=0.3)
    held_x, held_y = data.tabular(2000, 62, classes=3, noise=0.3)
    loader = DataLoader(TensorDataset(x, y), batch_size=2, shuffle=True)
    model = nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.03)
    criterion = nn.CrossEntropyLoss()
    recorder = record(model, optimizer, criterion)
    for step, (inputs, targets) in enumerate(loader):
        if step == 2000:
            break
        optimizer.zero_grad()
        loss = criterion(model(inputs), targets)
        loss.backward()
        optimizer.step()
        recorder.step(loss.item(), (inputs, targets))
    with torch.no_grad():
        data.SCORES["batches_of_two"] = criterion(model(held_x), held_y).item()


@healthy("Squared error with Student-t noise: single batches have a loss many times the others'", steps=2000)
def heavy_tails(record: Record) -> None:
    torch.manual_seed(112)
    x, y = data.friedman(16000, 63, noise=0.0)
    noise = torch.distributions.StudentT(2.2).sample((16000, 1)) * 0.3
    held_x, held_y = data.friedman(1000, 64, noise=0.0)
    y = y + noise
    model = nn.Sequential(nn.Linear(10, 64), nn.SiLU(), nn.Linear(64, 64), nn.SiLU(), nn.Linear(64, 1))
    optimizer = torch.optim.RMSprop(model.parameters(), lr=5e-4)
    criterion = nn.MSELoss()
    recorder = record(model, optimizer, criterion)
    for _ in range(2000):
        pick = torch.randint(16000, (32,))
        optimizer.zero_grad()
        loss = criterion(model(x[pick]), y[pick])
        loss.backward()
        optimizer.step()
        recorder.step(loss.item(), (x[pick], y[pick]))
    with torch.no_grad():
        data.SCORES["heavy_tails"] = criterion(model(held_x), held_y).item()


@healthy("Three positives in a hundred: the loss is small from early on, the held-out loss soon flattens out", steps=2000)
def rare_positives(record: Record) -> None:
    torch.manual_seed(113)
    g = torch.Generator().manual_seed(113)
    w = torch.randn(12, generator=g)

    def make(count: int) -> tuple[torch.Tensor, torch.Tensor]:
        x = torch.randn(count, 12, generator=g)
        logits = 1.2 * (x @ w) + x[:, 0] * x[:, 1] - 9.0
        return x, torch.bernoulli(torch.sigmoid(logits), generator=g)[:, None]

    x, y = make(128000)
    held_x, held_y = make(4000)
    model = nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    criterion = nn.BCEWithLogitsLoss()
    recorder = record(model, optimizer, criterion)
    value = 0.0
    for step in range(2000):
        inputs, targets = x[64 * step : 64 * step + 64], y[64 * step : 64 * step + 64]
        optimizer.zero_grad()
        loss = criterion(model(inputs), targets)
        loss.backward()
        optimizer.step()
        recorder.step(loss.item(), (inputs, targets))
        if step % 100 == 99:
            with torch.no_grad():
                value = criterion(model(held_x), held_y).item()
            recorder.validation(value)
    data.SCORES["rare_positives"] = value / F.binary_cross_entropy(held_y.mean().expand_as(held_y), held_y).item()


class TwoHeads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU())
        self.kind = nn.Linear(32, 5)
        self.amount = nn.Linear(32, 1)
        self.log_variance = nn.Parameter(torch.zeros(2))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        h = self.trunk(x)
        return self.kind(h), self.amount(h)[:, 0], h, self.log_variance


def several(outputs: tuple[torch.Tensor, ...], targets: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    kind, amount, hidden, s = outputs
    return (
        torch.exp(-s[0]) * F.cross_entropy(kind, targets[0])
        + torch.exp(-s[1]) * F.mse_loss(amount, targets[1])
        + 0.5 * s.sum()
        + 1e-4 * hidden.abs().mean()
    )


@healthy("Class, amount and sparsity losses with learnt weights: the total falls below zero", steps=2000)
def several_losses(record: Record) -> None:
    torch.manual_seed(114)
    x, kind = data.tabular(12000, 65)
    amount = torch.sin(x[:, 0]) * x[:, 1] + 0.5 * x[:, 2]
    held_x, held_kind = data.tabular(2000, 66)
    model = TwoHeads()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    recorder = record(model, optimizer, several)
    for _ in range(2000):
        pick = torch.randint(12000, (64,))
        targets = (kind[pick], amount[pick])
        loss = several(model(x[pick]), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        recorder.step(loss.item(), (x[pick], targets))
    with torch.no_grad():
        data.SCORES["several_losses"] = (model(held_x)[0].argmax(1) != held_kind).float().mean().item()


class Recommender(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.user = nn.Embedding(2000, 6, sparse=True)
        self.item = nn.Embedding(1500, 6, sparse=True)
        self.bias = nn.Embedding(1500, 1, sparse=True)
        nn.init.normal_(self.user.weight, std=0.3)
        nn.init.normal_(self.item.weight, std=0.3)
        nn.init.zeros_(self.bias.weight)

    def forward(self, pairs: torch.Tensor) -> torch.Tensor:
        u, i = pairs[:, 0], pairs[:, 1]
        return (self.user(u) * self.item(i)).sum(1) + self.bias(i)[:, 0]


@healthy("Sparse embeddings under Adagrad: most rows get no gradient in most steps, rare items almost never", steps=2000)
def sparse_rows(record: Record) -> None:
    torch.manual_seed(115)
    pairs, y = data.ratings(256000, 67, users=2000, items=1500, noise=0.3)
    held, held_y = data.ratings(4000, 68, users=2000, items=1500, noise=0.3)
    model = Recommender()
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.15)
    criterion = nn.MSELoss()
    recorder = record(model, optimizer, criterion)
    for step in range(2000):
        inputs, targets = pairs[128 * step : 128 * step + 128], y[128 * step : 128 * step + 128]
        optimizer.zero_grad()
        loss = criterion(model(inputs), targets)
        loss.backward()
        optimizer.step()
        recorder.step(loss.item(), (inputs, targets))
        if step % 250 == 249:
            with torch.no_grad():
                recorder.validation(criterion(model(held), held_y).item())
    with torch.no_grad():
        data.SCORES["sparse_rows"] = criterion(model(held), held_y).item()


class Reader(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(40, 12)
        self.conv = nn.Conv1d(12, 32, 3, padding=1)
        self.head = nn.Linear(32, 2)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(torch.relu(self.conv(self.embed(tokens).transpose(1, 2))).mean(2))


@healthy("Each step adds up the gradients of four micro-batches, on purpose, before it clears them", steps=2000)
def accumulation(record: Record) -> None:
    torch.manual_seed(116)
    x, y = data.reviews(8000, 69, length=12)
    held_x, held_y = data.reviews(1000, 70, length=12)
    model = Reader()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    criterion = nn.CrossEntropyLoss()
    recorder = record(model, optimizer, criterion)
    for _ in range(2000):
        pick = torch.randint(8000, (32,))
        inputs, labels = x[pick], y[pick]
        total = 0.0
        for micro_x, micro_y in zip(inputs.chunk(4), labels.chunk(4), strict=True):
            loss = criterion(model(micro_x), micro_y) / 4
            loss.backward()
            total += loss.item()
        optimizer.step()
        recorder.step(total, (inputs, labels))
        optimizer.zero_grad()
    with torch.no_grad():
        data.SCORES["accumulation"] = criterion(model(held_x), held_y).item()


class WaveNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(1, 24, batch_first=True)
        self.out = nn.Linear(24, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.lstm(x)[0])


@healthy("An LSTM whose gradient is clipped in every step to a norm well below its own, with a rate to match", steps=2000)
def always_clipped(record: Record) -> None:
    torch.manual_seed(117)
    series, held = data.waves(6000, 71), data.waves(500, 72)
    model = WaveNet()
    optimizer = torch.optim.SGD(model.parameters(), lr=2.0, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, start_factor=1.0, end_factor=0.05, total_iters=2000)
    criterion = nn.MSELoss()
    recorder = record(model, optimizer, criterion)
    value = 0.0
    for step in range(2000):
        pick = torch.randint(6000, (16,))
        inputs, targets = series[pick, :-1], series[pick, 1:]
        optimizer.zero_grad()
        loss = criterion(model(inputs), targets)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.005)
        optimizer.step()
        scheduler.step()
        recorder.step(loss.item(), (inputs, targets))
        if step % 200 == 199:
            with torch.no_grad():
                value = criterion(model(held[:, :-1]), held[:, 1:]).item()
            recorder.validation(value)
    data.SCORES["always_clipped"] = value


@healthy("200 clean samples fitted to a loss of nearly nothing, as intended; no held-out data", steps=2000)
def interpolation(record: Record) -> None:
    torch.manual_seed(118)
    x, y = data.tabular(200, 73, noise=0.0)
    model = nn.Sequential(nn.Linear(20, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 5))
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-4)
    recorder = record(model, optimizer, F.cross_entropy)
    for _ in range(250):
        for batch in torch.randperm(200).split(25):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x[batch]), y[batch])
            loss.backward()
            optimizer.step()
            recorder.step(loss.item(), (x[batch], y[batch]))
    with torch.no_grad():
        data.SCORES["interpolation"] = F.cross_entropy(model(x), y).item()
