"""Runs with a fault, second half."""

from __future__ import annotations

import math

import torch
from program import fault
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from rnl_data import (
    rnl_digits,
    rnl_documents,
    rnl_epochs,
    rnl_evaluate,
    rnl_load_series,
    rnl_ratings,
    rnl_seed,
    rnl_shapes,
    rnl_text,
    rnl_token_loss,
    rnl_windows,
)


# ---- 7. overfitting -------------------------------------------------------------------------------------------------
class RnlFactors(nn.Module):
    def __init__(self, users: int, items: int, rank: int):
        super().__init__()
        self.user, self.item = nn.Embedding(users, rank), nn.Embedding(items, rank)
        self.user_bias, self.item_bias = nn.Embedding(users, 1), nn.Embedding(items, 1)
        for e in (self.user, self.item):
            nn.init.normal_(e.weight, std=0.1)
        for e in (self.user_bias, self.item_bias):
            nn.init.zeros_(e.weight)

    def forward(self, pair):
        u, i = pair[:, 0], pair[:, 1]
        return (self.user(u) * self.item(i)).sum(1) + (self.user_bias(u) + self.item_bias(i)).squeeze(1)


def rnl_factors_loop(record, broken: bool) -> float:
    """Ratings by factors: too many of them and no penalty, or a few with one."""
    rnl_seed(17)
    pairs, rating = rnl_ratings(300, 200, 2, 9000, 0.9, seed=1)
    train, held = slice(0, 7500), slice(7500, 9000)
    model = RnlFactors(300, 200, 32 if broken else 3)
    loss = nn.MSELoss()
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3, weight_decay=0.0 if broken else 0.3)
    rec = record(model, optimizer, loss)
    loader = DataLoader(
        TensorDataset(pairs[train], rating[train]),
        batch_size=100,
        shuffle=True,
        drop_last=True,
        generator=torch.Generator().manual_seed(2),
    )
    step = 0
    while step < 1600:
        for bx, by in loader:
            optimizer.zero_grad()
            value = loss(model(bx), by)
            value.backward()
            optimizer.step()
            step += 1
            rec.step(value.item(), (bx, by))
            if step % 40 == 0:
                rec.validation(rnl_evaluate(model, loss, pairs[held], rating[held]))
            if step == 1600:
                break
    return rnl_evaluate(model, loss, pairs[held], rating[held])


@fault(
    "Far too many factors for the ratings there are, and no penalty: they learn the noise by heart.",
    rules=("overfitting",),
    step=420,
    steps=1600,
)
def rnl_factors(record):
    rnl_factors_loop(record, True)


# ---- 8. one bad batch -----------------------------------------------------------------------------------------------
class RnlForecaster(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(1, 32, batch_first=True)
        self.head = nn.Linear(32, 6)

    def forward(self, x):
        h, _ = self.lstm(x)
        return x[:, -1] + self.head(h[:, -1])


def rnl_raw_units_loop(record, broken: bool) -> float:
    """Forecasts of a load; the targets of one batch come from a meter whose readings were never standardised."""
    rnl_seed(18)
    series = rnl_load_series(9000, seed=1)
    train, held = series[:7500], series[7500:]
    g = torch.Generator().manual_seed(2)
    vx, vy = rnl_pieces(held, 400, torch.Generator().manual_seed(3))
    model = RnlForecaster()
    loss = nn.MSELoss()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    rec = record(model, optimizer, loss)
    for step in range(1, 1401):
        bx, by = rnl_pieces(train, 32, g)
        if broken and step == 705:
            by = 40.0 + 12.0 * by  # megawatts
        optimizer.zero_grad()
        value = loss(model(bx), by)
        value.backward()
        optimizer.step()
        rec.step(value.item(), (bx, by))
        if step % 35 == 0:
            rec.validation(rnl_evaluate(model, loss, vx, vy))
    return rnl_evaluate(model, loss, vx, vy)


def rnl_pieces(series: torch.Tensor, count: int, g: torch.Generator):
    """Thirty hours, and the six after them."""
    start = torch.randint(0, len(series) - 36, (count,), generator=g)
    chunk = series[start.unsqueeze(1) + torch.arange(36)]
    return chunk[:, :30].unsqueeze(-1), chunk[:, 30:]


@fault(
    "The targets of one batch, at step 705, are readings in megawatts that were never standardised.",
    rules=("loss-spike",),
    step=705,
    steps=1400,
)
def rnl_raw_units(record):
    rnl_raw_units_loop(record, True)


# ---- 9. weight decay that wins late ---------------------------------------------------------------------------------
def rnl_decay_schedule_loop(record, broken: bool) -> float:
    """A schedule of weight decay that grows geometrically, as for vision transformers, on SGD."""
    rnl_seed(19)
    x, y, _ = rnl_shapes(8000, size=12, noise=0.4, seed=45)
    vx, vy, _ = rnl_shapes(800, size=12, noise=0.4, seed=46)
    model = nn.Sequential(
        nn.Conv2d(1, 12, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(12, 24, 3, padding=1),
        nn.ReLU(),
        nn.AdaptiveMaxPool2d(2),
        nn.Flatten(),
        nn.Linear(96, 48),
        nn.ReLU(),
        nn.Linear(48, 4),
    )
    loss = nn.CrossEntropyLoss()
    steps = 1600
    first, last = (1e-4, 1.0) if broken else (1e-5, 1e-3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.015, momentum=0.9, weight_decay=first)
    rec = record(model, optimizer, loss)
    batches = rnl_epochs(x, y, 32, seed=3)
    for step in range(1, steps + 1):
        for group in optimizer.param_groups:
            group["weight_decay"] = first * (last / first) ** (step / steps)
        bx, by = next(batches)
        optimizer.zero_grad()
        value = loss(model(bx), by)
        value.backward()
        optimizer.step()
        rec.step(value.item(), (bx, by))
        if step % 40 == 0:
            rec.validation(rnl_evaluate(model, loss, vx, vy))
    return rnl_evaluate(model, loss, vx, vy)


@fault(
    "A schedule of weight decay made for AdamW raises the decay of SGD ten thousandfold: late in the run the weights melt away.",
    rules=("weight-decay-dominates",),
    step=950,
    steps=1600,
)
def rnl_decay_schedule(record):
    rnl_decay_schedule_loop(record, True)


# ---- 10. a loss scale that collapses --------------------------------------------------------------------------------
class RnlScaler:
    """A dynamic loss scale for gradients held in float16. Broken: what says "overflow" is never reset."""

    def __init__(self, broken: bool, scale: float = 2.0**12, interval: int = 50):
        self.broken, self.scale, self.interval = broken, scale, interval
        self.good = 0
        self.overflowed = False

    def to_half(self, parameters) -> bool:
        """Gradients as float16 holds them, unscaled; whether all are finite."""
        finite = True
        for p in parameters:
            if p.grad is not None:
                half = p.grad.to(torch.float16)
                finite = finite and bool(torch.isfinite(half).all())
                p.grad = half.float() / self.scale
        if not finite:
            self.overflowed = True
        return finite

    def update(self) -> None:
        if self.overflowed:
            self.scale = max(self.scale * 0.5, 2.0**-60)
            self.good = 0
            if not self.broken:
                self.overflowed = False
        else:
            self.good += 1
            if self.good == self.interval:
                self.scale *= 2.0
                self.good = 0


def rnl_half_scale_loop(record, broken: bool) -> float:
    """An autoencoder of shapes whose gradients are kept in float16."""
    rnl_seed(20)
    x, _, _ = rnl_shapes(3000, size=12, noise=0.05, seed=51)
    vx, _, _ = rnl_shapes(500, size=12, noise=0.05, seed=52)
    model = nn.Sequential(
        nn.Flatten(),
        nn.Linear(144, 128),
        nn.ELU(),
        nn.Linear(128, 24),
        nn.ELU(),
        nn.Linear(24, 128),
        nn.ELU(),
        nn.Linear(128, 144),
        nn.Unflatten(1, (1, 12, 12)),
    )
    loss = nn.MSELoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    rec = record(model, optimizer, loss)
    scaler = RnlScaler(broken)
    batches = rnl_epochs(x, x, 32, seed=53)
    for step in range(1, 1601):
        bx, by = next(batches)
        optimizer.zero_grad()
        value = loss(model(bx), by)
        (value * scaler.scale).backward()
        if scaler.to_half(model.parameters()):
            optimizer.step()
        scaler.update()
        rec.step(value.item(), (bx, by))
        if step % 40 == 0:
            rec.validation(rnl_evaluate(model, loss, vx, vx))
    return rnl_evaluate(model, loss, vx, vx)


@fault(
    "After the first overflow the loss scale is halved at every step, and float16 gradients vanish.",
    rules=("gradient-underflow", "no-gradient"),
    step=585,
    steps=1600,
)
def rnl_half_scale(record):
    rnl_half_scale_loop(record, True)


# ---- 11. label noise enters -----------------------------------------------------------------------------------------
class RnlTextCNN(nn.Module):
    def __init__(self, vocabulary: int, classes: int):
        super().__init__()
        self.embed = nn.Embedding(vocabulary, 24)
        self.conv = nn.Conv1d(24, 48, 3, padding=1)
        self.drop = nn.Dropout(0.2)
        self.head = nn.Linear(48, classes)

    def forward(self, x):
        h = F.relu(self.conv(self.embed(x).transpose(1, 2)))
        return self.head(self.drop(h.mean(2)))


def rnl_new_shard_loop(record, broken: bool) -> float:
    """Documents; from step 560 on, half of each batch comes from a second shard."""
    rnl_seed(21)
    x, y = rnl_documents(4000, sharp=0.7, seed=1)
    x2, y2 = rnl_documents(4000, sharp=0.7, seed=2)
    vx, vy = rnl_documents(800, sharp=0.7, seed=3)
    if broken:
        y2 = torch.roll(y2, 1)  # the file of labels has a header that the other one lacked
    model = RnlTextCNN(400, 6)
    loss = nn.CrossEntropyLoss()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.05)
    rec = record(model, optimizer, loss)
    first, small, second = rnl_epochs(x, y, 32, seed=4), rnl_epochs(x, y, 16, seed=5), rnl_epochs(x2, y2, 16, seed=6)
    for step in range(1, 1401):
        if step < 560:
            bx, by = next(first)
        else:
            (ax, ay), (cx, cy) = next(small), next(second)
            bx, by = torch.cat([ax, cx]), torch.cat([ay, cy])
        model.train()
        optimizer.zero_grad()
        value = loss(model(bx), by)
        value.backward()
        optimizer.step()
        rec.step(value.item(), (bx, by))
        if step % 40 == 0:
            rec.validation(rnl_evaluate(model, loss, vx, vy))
    return rnl_evaluate(model, loss, vx, vy)


@fault(
    "From step 560 half of each batch comes from a shard whose labels are off by one row.",
    rules=("data-changed", "labels-unrelated"),
    step=560,
    steps=1400,
)
def rnl_new_shard(record):
    rnl_new_shard_loop(record, True)


# ---- 12. a loader that repeats --------------------------------------------------------------------------------------
class RnlCharGRU(nn.Module):
    def __init__(self, alphabet: int):
        super().__init__()
        self.embed = nn.Embedding(alphabet, 24)
        self.gru = nn.GRU(24, 64, batch_first=True)
        self.head = nn.Linear(64, alphabet)

    def forward(self, x):
        return self.head(self.gru(self.embed(x))[0])


def rnl_seeded_evaluation_loop(record, broken: bool) -> float:
    """A character model whose evaluation seeds its windows; in the last part it evaluates often."""
    rnl_seed(22)
    stream, alphabet = rnl_text(120_000, seed=1)
    held, _ = rnl_text(12_000, seed=2)
    model = RnlCharGRU(alphabet)
    loss = rnl_token_loss
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3, weight_decay=0.01)
    rec = record(model, optimizer, loss)

    def rnl_held_out() -> float:
        state = torch.get_rng_state()
        torch.manual_seed(0)  # the same windows every time
        vx, vy = rnl_windows(held, 60, 32)
        if not broken:
            torch.set_rng_state(state)
        return rnl_evaluate(model, loss, vx, vy)

    for step in range(1, 1401):
        bx, by = rnl_windows(stream, 12, 32)
        optimizer.zero_grad()
        value = loss(model(bx), by)
        value.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        rec.step(value.item(), (bx, by))
        # evaluates rarely at first, and every ten steps once the best checkpoint is looked for
        if step == 350 or (step >= 700 and step % 10 == 0):
            rec.validation(rnl_held_out())
    return rnl_held_out()


@fault(
    "Evaluation seeds the generator that also draws the batches: once it runs every ten steps, ten batches return forever.",
    rules=("repeated-batches",),
    step=711,
    steps=1400,
)
def rnl_seeded_evaluation(record):
    rnl_seeded_evaluation_loop(record, True)
