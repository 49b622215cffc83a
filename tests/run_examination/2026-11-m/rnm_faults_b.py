"""Faults of schedules, resumes, loaders and precision."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from program import fault
from rnm_data import (
    rnm_digits,
    rnm_ratings,
    rnm_score,
    rnm_seed,
    rnm_signals,
    rnm_tabular,
    rnm_waves,
)
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


# ---------------------------------------------------------------- thawing
class RnmBlock(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.fc1 = nn.Linear(width, width)
        self.fc2 = nn.Linear(width, width)

    def forward(self, x):
        return x + self.fc2(F.gelu(self.fc1(self.norm(x))))


class RnmTransfer(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = nn.Sequential(nn.Linear(64, 64), RnmBlock(64), RnmBlock(64), nn.LayerNorm(64))
        self.head = nn.Sequential(nn.Linear(64, 32), nn.GELU(), nn.Linear(32, 5))

    def forward(self, x):
        return self.head(self.backbone(x))


def rnm_thaw_loop(record, broken):
    rnm_seed(23)
    (x, y), (held_x, held_y) = rnm_digits(23)
    x, held_x = x.flatten(1), held_x.flatten(1)
    model = RnmTransfer()
    # what came with the checkpoint: a backbone that has seen all ten classes
    source = nn.Linear(64, 10)
    pretrain = torch.optim.Adam([*model.backbone.parameters(), *source.parameters()], lr=1e-3)
    for _ in range(200):
        rows = torch.randint(len(x), (64,))
        pretrain.zero_grad()
        F.cross_entropy(source(model.backbone(x[rows] + 0.3 * torch.randn(64, 64))), y[rows]).backward()
        pretrain.step()
    # the task itself: which pair of digits, from few examples
    x, y, held_y = x[:400], y[:400] // 2, held_y // 2
    model.backbone.requires_grad_(False)
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.Adam(
        [
            {"params": model.head.parameters(), "lr": 1e-3},
            {"params": model.backbone.parameters(), "lr": 3e-2 if broken else 3e-5},
        ]
    )
    rec = record(model, optimizer, criterion)
    for step in range(1, 1001):
        if step == 401:
            model.backbone.requires_grad_(True)
        rows = torch.randint(len(x), (48,))
        batch, target = x[rows] + 0.5 * torch.randn(48, 64), y[rows]
        optimizer.zero_grad()
        loss = criterion(model(batch), target)
        loss.backward()
        optimizer.step()
        rec.step(loss.item(), (batch, target))
        if step % 50 == 0:
            rec.validation(rnm_score(model, criterion, held_x, held_y))
    return rnm_score(model, criterion, held_x, held_y)


@fault(
    "A pretrained backbone is thawed with a rate a thousand times the one that was meant.",
    rules=("layer-thawed", "learning-rate-too-high"),
    layers=("backbone",),
    step=401,
    steps=1000,
)
def rnm_thaw(record):
    rnm_thaw_loop(record, True)


# ---------------------------------------------------------------- weights kept in bfloat16
def rnm_bfloat_weights_loop(record, broken):
    rnm_seed(31)
    x, y = rnm_tabular(6000, 12, 31, noise=0.02, width=16)
    held_x, held_y = x[5000:], y[5000:]
    model = nn.Sequential(nn.Linear(12, 96), nn.SiLU(), nn.Linear(96, 96), nn.SiLU(), nn.Linear(96, 1))
    if broken:
        model = model.to(torch.bfloat16)
    criterion = lambda out, target: F.mse_loss(out.float(), target.float())  # noqa: E731
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, betas=(0.9, 0.98), weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, [400], gamma=0.01)
    rec = record(model, optimizer, criterion)

    def cast(batch):
        return batch.to(torch.bfloat16) if broken else batch

    def evaluate():
        with torch.no_grad():
            return criterion(model(cast(held_x)), held_y).item()

    for step in range(1, 1501):
        rows = torch.randint(5000, (64,))
        batch = cast(x[rows])
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=not broken):
            out = model(batch)
        loss = criterion(out, y[rows])
        loss.backward()
        optimizer.step()
        schedule.step()
        rec.step(loss.item(), (batch, y[rows]))
        if step % 75 == 0:
            rec.validation(evaluate())
    return evaluate()


@fault(
    "Weights are kept in bfloat16; after the rate has dropped, most steps round to nothing.",
    rules=("lost-updates", "rounding-error"),
    step=401,
    steps=1500,
)
def rnm_bfloat_weights(record):
    rnm_bfloat_weights_loop(record, True)


# ---------------------------------------------------------------- rate after a resume
class RnmForecaster(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(1, 32, batch_first=True)
        self.out = nn.Linear(32, 1)

    def forward(self, x):
        return self.out(self.lstm(x)[0])


def rnm_resumed_rate_loop(record, broken):
    rnm_seed(41)
    x, y = rnm_waves(2000, 24, 41)
    held_x, held_y = rnm_waves(300, 24, 42)
    model = RnmForecaster()
    criterion = nn.MSELoss()
    base = 5e-3
    optimizer = torch.optim.Adam(model.parameters(), lr=base)
    rec = record(model, optimizer, criterion)
    total = 1100
    for step in range(1, total + 1):
        if step == 501:  # resumed on 32 machines: the rate, already scaled, is scaled again
            base = base * 32 if broken else base
        for group in optimizer.param_groups:
            group["lr"] = base * 0.5 * (1 + math.cos(math.pi * step / (total * 1.25)))
        rows = torch.randint(len(x), (32,))
        optimizer.zero_grad()
        loss = criterion(model(x[rows]), y[rows])
        loss.backward()
        optimizer.step()
        rec.step(loss.item(), (x[rows], y[rows]))
        if step % 50 == 0:
            rec.validation(rnm_score(model, criterion, held_x, held_y))
    return rnm_score(model, criterion, held_x, held_y)


@fault(
    "After a resume the learning rate is scaled twice with the number of machines.",
    rules=("learning-rate-too-high",),
    step=501,
    steps=1100,
)
def rnm_resumed_rate(record):
    rnm_resumed_rate_loop(record, True)


# ---------------------------------------------------------------- plateau schedule with the wrong mode
class RnmRecommender(nn.Module):
    def __init__(self, users=200, items=150, width=8):
        super().__init__()
        self.user = nn.Embedding(users, width)
        self.item = nn.Embedding(items, width)
        self.mlp = nn.Sequential(nn.Linear(3 * width, 48), nn.ReLU(), nn.Linear(48, 1))

    def forward(self, pair):
        u, i = self.user(pair[:, 0]), self.item(pair[:, 1])
        return self.mlp(torch.cat([u, i, u * i], 1)).squeeze(1)


def rnm_plateau_mode_loop(record, broken):
    rnm_seed(53)
    x, y = rnm_ratings(20000, 200, 150, 53)
    held_x, held_y = rnm_ratings(2000, 200, 150, 54)
    model = RnmRecommender()
    criterion = nn.MSELoss()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3, weight_decay=1e-5)
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(
        optimizer, mode="max" if broken else "min", factor=0.1, patience=2
    )
    rec = record(model, optimizer, criterion)
    loader = DataLoader(TensorDataset(x, y), batch_size=128, shuffle=True, drop_last=True)  # 156 batches
    step = 0
    for _ in range(8):
        model.train()
        for batch, target in loader:
            step += 1
            optimizer.zero_grad()
            loss = criterion(model(batch), target)
            loss.backward()
            optimizer.step()
            rec.step(loss.item(), (batch, target))
            if step % 50 == 0 and step >= 150:
                value = rnm_score(model, criterion, held_x, held_y)
                rec.validation(value)
                plateau.step(value)
    return rnm_score(model, criterion, held_x, held_y)


@fault(
    "A schedule that waits for a plateau looks for a maximum of the loss, and cuts the rate again and again.",
    rules=("learning-rate-too-low", "lost-updates"),
    step=301,
    steps=1248,
)
def rnm_plateau_mode(record):
    rnm_plateau_mode_loop(record, True)


# ---------------------------------------------------------------- labels of another row
class RnmTabularNet(nn.Module):
    def __init__(self, levels=30):
        super().__init__()
        self.shop = nn.Embedding(levels, 6)
        self.inner = nn.Sequential(nn.Linear(16, 64), nn.BatchNorm1d(64), nn.SiLU(), nn.Dropout(0.05))
        self.skip = nn.Sequential(nn.Linear(64, 64), nn.SiLU())
        self.out = nn.Linear(64, 1)

    def forward(self, x):
        h = self.inner(torch.cat([x[:, :10], self.shop(x[:, 10].long())], 1))
        return self.out(h + self.skip(h))


def rnm_other_row_loop(record, broken):
    rnm_seed(61)
    x, y = rnm_tabular(9000, 10, 61, noise=0.1)
    shop = torch.randint(30, (9000, 1))
    y = y + torch.linspace(-1, 1, 30)[shop]
    x = torch.cat([x, shop.float()], 1)
    held_x, held_y = x[8000:], y[8000:]
    files = [(x[:4000], y[:4000]), (x[4000:8000], y[4000:8000])]
    if broken:  # the second table of labels was read with its header as a row
        files[1] = (files[1][0], files[1][1].roll(1, 0))
    model = RnmTabularNet()
    criterion = nn.MSELoss()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=1e-2)
    rec = record(model, optimizer, criterion)
    for number, (inputs, targets) in enumerate(files):
        loader = DataLoader(TensorDataset(inputs, targets), batch_size=80, shuffle=True)  # 50 batches
        for _ in range(12 if number == 0 else 14):
            for batch, target in loader:
                model.train()
                optimizer.zero_grad()
                loss = criterion(model(batch), target)
                loss.backward()
                nn.utils.clip_grad_norm_(model.parameters(), 2.0)
                optimizer.step()
                rec.step(loss.item(), (batch, target))
            rec.validation(rnm_score(model, criterion, held_x, held_y))
    return rnm_score(model, criterion, held_x, held_y)


@fault(
    "The labels of a second file are those of the row before.",
    rules=("data-changed", "labels-unrelated", "output-loss-mismatch"),
    step=601,
    steps=1300,
)
def rnm_other_row(record):
    rnm_other_row_loop(record, True)


# ---------------------------------------------------------------- accumulation
class RnmSignalRegressor(nn.Module):
    def __init__(self):
        super().__init__()
        self.gru = nn.GRU(1, 24, batch_first=True)
        self.norm = nn.LayerNorm(24)
        self.out = nn.Linear(24, 5)

    def forward(self, x):
        return self.out(self.norm(self.gru(x.transpose(1, 2))[0].amax(1)))


def rnm_accumulate_loop(record, broken):
    rnm_seed(71)
    x, y = rnm_signals(6000, 32, 71, noise=0.5)
    held_x, held_y = rnm_signals(600, 32, 72, noise=0.5)
    model = RnmSignalRegressor()
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.Adam(model.parameters(), lr=4e-3)
    rec = record(model, optimizer, criterion)
    for step in range(1, 901):
        parts = 1 if step <= 450 else 3  # larger batches in the second half
        rows = torch.randint(len(x), (32 * parts,))
        if parts == 1 or not broken:
            optimizer.zero_grad()
        value = 0.0
        for part in rows.split(32):
            loss = criterion(model(x[part]), y[part]) / parts
            loss.backward()
            value += loss.item()
        optimizer.step()
        rec.step(value, (x[rows], y[rows]))
        if step % 45 == 0:
            rec.validation(rnm_score(model, criterion, held_x, held_y))
    return rnm_score(model, criterion, held_x, held_y)


@fault(
    "With the second phase, which accumulates gradients, they are no longer cleared.",
    rules=("gradients-not-cleared",),
    step=451,
    steps=900,
)
def rnm_accumulate(record):
    rnm_accumulate_loop(record, True)


# ---------------------------------------------------------------- schedule of weight decay
class RnmPatchTransformer(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.embed = nn.Linear(4, width)
        self.place = nn.Parameter(0.02 * torch.randn(1, 16, width))
        layer = nn.TransformerEncoderLayer(width, 4, 64, dropout=0.0, batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(width, 10)

    def forward(self, x):
        patches = F.unfold(x, 2, stride=2).transpose(1, 2)
        return self.head(self.blocks(self.embed(patches) + self.place).mean(1))


def rnm_decay_percent_loop(record, broken):
    rnm_seed(83)
    (x, y), (held_x, held_y) = rnm_digits(83)
    model = RnmPatchTransformer()
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.04)
    rec = record(model, optimizer, criterion)
    total, begin = 1000, 350
    for step in range(1, total + 1):
        if step > begin:  # weight decay goes from 0.04 to 0.4 along half a cosine
            share = 0.5 * (1 - math.cos(math.pi * (step - begin) / (total - begin)))
            decay = 0.04 + share * (0.4 - 0.04)
            optimizer.param_groups[0]["weight_decay"] = decay * 100 if broken else decay  # a percentage?
        rows = torch.randint(len(x), (32,))
        batch = x[rows] + 0.3 * torch.randn(32, 1, 8, 8)
        optimizer.zero_grad()
        loss = criterion(model(batch), y[rows])
        loss.backward()
        optimizer.step()
        rec.step(loss.item(), (batch, y[rows]))
        if step % 50 == 0:
            rec.validation(rnm_score(model, criterion, held_x, held_y))
    return rnm_score(model, criterion, held_x, held_y)


@fault(
    "A schedule of weight decay is a hundred times too large from its first step on.",
    rules=("weight-decay-dominates", "rank-collapse"),
    step=351,
    steps=1000,
)
def rnm_decay_percent(record):
    rnm_decay_percent_loop(record, True)
