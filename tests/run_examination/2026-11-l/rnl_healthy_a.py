"""Healthy runs, first half."""

from __future__ import annotations

import torch
from program import healthy
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from rnl_data import (
    RnlCharTransformer,
    rnl_digits,
    rnl_epochs,
    rnl_evaluate,
    rnl_load_series,
    rnl_ratings,
    rnl_seed,
    rnl_shapes,
    rnl_tabular,
    rnl_text,
    rnl_token_loss,
    rnl_windows,
)

STEPS = 2000


def rnl_shift(x: torch.Tensor, g: torch.Generator, most: int = 1) -> torch.Tensor:
    """Moves a batch of pictures by up to so many pixels."""
    a, b = (int(torch.randint(-most, most + 1, (1,), generator=g)) for _ in range(2))
    return torch.roll(x, (a, b), (2, 3))


# ---- step decay -----------------------------------------------------------------------------------------------------
@healthy("Steps of the rate (x 0.1 at 1000 and 1500) that make the loss fall at once; dropout; shifts.", steps=STEPS)
def rnl_step_decay(record):
    rnl_seed(101)
    (x, y), (vx, vy) = rnl_digits()
    model = nn.Sequential(
        nn.Flatten(), nn.Linear(64, 96), nn.ReLU(), nn.Dropout(0.2), nn.Linear(96, 64), nn.ReLU(), nn.Linear(64, 10)
    )
    loss = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4)
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, [1000, 1500], gamma=0.1)
    rec = record(model, optimizer, loss)
    g = torch.Generator().manual_seed(1)
    batches = rnl_epochs(x, y, 32, seed=2)
    for step in range(1, STEPS + 1):
        bx, by = next(batches)
        bx = rnl_shift(bx, g)
        model.train()
        optimizer.zero_grad()
        value = loss(model(bx), by)
        value.backward()
        optimizer.step()
        schedule.step()
        rec.step(value.item(), (bx, by))
        if step % 50 == 0:
            rec.validation(rnl_evaluate(model, loss, vx, vy))


# ---- cosine restarts ------------------------------------------------------------------------------------------------
@healthy("Cosine restarts of the rate, after which the loss rises for a while; BatchNorm; flips.", steps=STEPS)
def rnl_warm_restarts(record):
    rnl_seed(102)
    x, y, _ = rnl_shapes(20000, size=12, noise=0.4, seed=1)
    vx, vy, _ = rnl_shapes(1000, size=12, noise=0.4, seed=2)
    model = nn.Sequential(
        nn.Conv2d(1, 12, 3, padding=1, bias=False),
        nn.BatchNorm2d(12),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(12, 24, 3, padding=1, bias=False),
        nn.BatchNorm2d(24),
        nn.ReLU(),
        nn.AdaptiveMaxPool2d(1),
        nn.Flatten(),
        nn.Linear(24, 4),
    )
    loss = nn.CrossEntropyLoss()
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3, weight_decay=0.02)
    schedule = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(optimizer, 500, eta_min=1e-4)
    rec = record(model, optimizer, loss)
    g = torch.Generator().manual_seed(3)
    batches = rnl_epochs(x, y, 32, seed=4)
    for step in range(1, STEPS + 1):
        bx, by = next(batches)
        if torch.rand(1, generator=g) < 0.5:
            bx = bx.flip(3)
        model.train()
        optimizer.zero_grad()
        value = loss(model(bx), by)
        value.backward()
        optimizer.step()
        schedule.step()
        rec.step(value.item(), (bx, by))
        if step % 50 == 0:
            rec.validation(rnl_evaluate(model, loss, vx, vy))


# ---- a language model with tied weights -----------------------------------------------------------------------------
@healthy("A small transformer: tied weights, warm-up, cosine decay, clipping at every early step.", steps=STEPS)
def rnl_tied_transformer(record):
    rnl_seed(103)
    stream, alphabet = rnl_text(200_000, seed=1)
    held, _ = rnl_text(12_000, seed=2)
    model = RnlCharTransformer(alphabet, width=48, depth=2, length=32, tied=True)
    loss = rnl_token_loss
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3, betas=(0.9, 0.98), weight_decay=0.05)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 4e-3, total_steps=STEPS, pct_start=0.1)
    rec = record(model, optimizer, loss)
    g = torch.Generator().manual_seed(3)
    vx, vy = rnl_windows(held, 150, 32, torch.Generator().manual_seed(4))
    for step in range(1, STEPS + 1):
        bx, by = rnl_windows(stream, 12, 32, g)
        optimizer.zero_grad()
        value = loss(model(bx), by)
        value.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        rec.step(value.item(), (bx, by))
        if step % 100 == 0:
            rec.validation(rnl_evaluate(model, loss, vx, vy))


# ---- forecasting ----------------------------------------------------------------------------------------------------
class RnlSeriesLSTM(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(1, 24, batch_first=True)
        self.head = nn.Linear(24, 4)

    def forward(self, x):
        h, _ = self.lstm(x)
        return self.head(h[:, -1])


def rnl_days(series: torch.Tensor, count: int, g: torch.Generator):
    start = torch.randint(0, len(series) - 28, (count,), generator=g)
    chunk = series[start.unsqueeze(1) + torch.arange(28)]
    return chunk[:, :24].unsqueeze(-1), chunk[:, 24:]


@healthy("An LSTM whose rate is lowered when validation stalls.", steps=STEPS)
def rnl_plateau_forecast(record):
    rnl_seed(104)
    series = rnl_load_series(12000, seed=5)
    train, held = series[:10000], series[10000:]
    g = torch.Generator().manual_seed(1)
    vx, vy = rnl_days(held, 400, torch.Generator().manual_seed(2))
    model = RnlSeriesLSTM()
    loss = nn.MSELoss()
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=3)
    rec = record(model, optimizer, loss)
    for step in range(1, STEPS + 1):
        bx, by = rnl_days(train, 32, g)
        optimizer.zero_grad()
        value = loss(model(bx), by)
        value.backward()
        optimizer.step()
        rec.step(value.item(), (bx, by))
        if step % 50 == 0:
            held_out = rnl_evaluate(model, loss, vx, vy)
            rec.validation(held_out)
            schedule.step(held_out)


# ---- the adding problem ---------------------------------------------------------------------------------------------
class RnlAdder(nn.Module):
    def __init__(self):
        super().__init__()
        self.gru = nn.GRU(2, 32, batch_first=True)
        self.head = nn.Linear(32, 1)

    def forward(self, x):
        h, _ = self.gru(x)
        return self.head(h[:, -1])


def rnl_adding(count: int, length: int, g: torch.Generator):
    values = torch.rand(count, length, generator=g)
    marks = torch.zeros(count, length)
    half = length // 2
    rows = torch.arange(count)
    marks[rows, torch.randint(0, half, (count,), generator=g)] = 1
    marks[rows, torch.randint(half, length, (count,), generator=g)] = 1
    return torch.stack([values, marks], 2), (values * marks).sum(1, keepdim=True)


@healthy("The adding problem: a plateau, then a sudden fall; always new examples; clipping.", steps=STEPS)
def rnl_adding_problem(record):
    rnl_seed(105)
    g = torch.Generator().manual_seed(1)
    vx, vy = rnl_adding(400, 20, torch.Generator().manual_seed(2))
    model = RnlAdder()
    loss = nn.MSELoss()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS, eta_min=1e-4)
    rec = record(model, optimizer, loss)
    for step in range(1, STEPS + 1):
        bx, by = rnl_adding(32, 20, g)
        optimizer.zero_grad()
        value = loss(model(bx), by)
        value.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        rec.step(value.item(), (bx, by))
        if step % 50 == 0:
            rec.validation(rnl_evaluate(model, loss, vx, vy))


# ---- a diffusion model ----------------------------------------------------------------------------------------------
class RnlDenoiser(nn.Module):
    """The noise in a point; the time comes as a third number."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, 64), nn.SiLU(), nn.Linear(64, 64), nn.SiLU(), nn.Linear(64, 64), nn.SiLU())
        self.out = nn.Linear(64, 2)

    def forward(self, z):
        t = z[:, 2:]
        waves = torch.cat([torch.sin(3 * t), torch.cos(3 * t), torch.sin(9 * t), torch.cos(9 * t), t], 1)
        return self.out(self.body(torch.cat([z, waves], 1)))


def rnl_noised(points: torch.Tensor, g: torch.Generator):
    t = torch.rand(len(points), 1, generator=g)
    noise = torch.randn(points.shape, generator=g)
    keep = torch.cos(0.5 * torch.pi * (0.02 + 0.96 * t))
    return torch.cat([keep * points + (1 - keep**2).sqrt() * noise, t], 1), noise


@healthy("A diffusion model of points in the plane: the loss cannot fall below a high floor, and is noisy.", steps=STEPS)
def rnl_point_diffusion(record):
    rnl_seed(106)
    g = torch.Generator().manual_seed(1)
    angle = torch.rand(6000, generator=g) * 4 * torch.pi
    radius = 0.1 * angle + 0.2
    points = torch.stack([radius * torch.cos(angle), radius * torch.sin(angle)], 1)
    points = points + 0.03 * torch.randn(6000, 2, generator=g)
    points = points / points.std(0)
    vx, vy = rnl_noised(points[5000:], torch.Generator().manual_seed(2))
    model = RnlDenoiser()
    loss = nn.MSELoss()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=1e-3)
    rec = record(model, optimizer, loss)
    for step in range(1, STEPS + 1):
        bx, by = rnl_noised(points[torch.randint(0, 5000, (128,), generator=g)], g)
        optimizer.zero_grad()
        value = loss(model(bx), by)
        value.backward()
        optimizer.step()
        rec.step(value.item(), (bx, by))
        if step % 50 == 0:
            rec.validation(rnl_evaluate(model, loss, vx, vy, batch=1000))


# ---- a variational autoencoder --------------------------------------------------------------------------------------
class RnlVAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Flatten(), nn.Linear(64, 96), nn.SiLU(), nn.Linear(96, 16))
        self.decoder = nn.Sequential(nn.Linear(8, 96), nn.SiLU(), nn.Linear(96, 64))

    def forward(self, x):
        mean, spread = self.encoder(x).chunk(2, 1)
        z = mean + torch.exp(0.5 * spread) * torch.randn_like(mean) if self.training else mean
        return self.decoder(z), mean, spread


@healthy("A variational autoencoder whose weight of the divergence rises over the first 400 steps.", steps=STEPS)
def rnl_digit_vae(record):
    rnl_seed(107)
    (x, _), (vx, _) = rnl_digits()
    model = RnlVAE()
    weight = {"kl": 0.0}

    def rnl_bound(out, target):
        logits, mean, spread = out
        match = F.binary_cross_entropy_with_logits(logits, target.flatten(1), reduction="none").sum(1).mean()
        divergence = -0.5 * (1 + spread - mean**2 - spread.exp()).sum(1).mean()
        return (match + weight["kl"] * divergence) / 64

    def rnl_match(out, target):
        return F.binary_cross_entropy_with_logits(out[0], target.flatten(1))

    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
    rec = record(model, optimizer, rnl_bound)
    batches = rnl_epochs(x, x, 48, seed=1)
    for step in range(1, STEPS + 1):
        weight["kl"] = min(1.0, step / 400)
        bx, by = next(batches)
        model.train()
        optimizer.zero_grad()
        value = rnl_bound(model(bx), by)
        value.backward()
        optimizer.step()
        schedule.step()
        rec.step(value.item(), (bx, by))
        if step % 50 == 0:
            rec.validation(rnl_evaluate(model, rnl_match, vx, vx))


# ---- sparse embeddings ----------------------------------------------------------------------------------------------
class RnlSparseFactors(nn.Module):
    def __init__(self, users: int, items: int, rank: int):
        super().__init__()
        self.user = nn.Embedding(users, rank, sparse=True)
        self.item = nn.Embedding(items, rank, sparse=True)
        nn.init.normal_(self.user.weight, std=0.15)
        nn.init.normal_(self.item.weight, std=0.15)

    def forward(self, pair):
        u, i = self.user(pair[:, 0]), self.item(pair[:, 1])
        return (u[:, 1:] * i[:, 1:]).sum(1) + u[:, 0] + i[:, 0]


@healthy("A recommender with sparse gradients: most rows of the embeddings get none in a step.", steps=STEPS)
def rnl_sparse_factors(record):
    rnl_seed(108)
    pairs, rating = rnl_ratings(200, 120, 3, 24000, 0.4, seed=1)
    train, held = slice(0, 21500), slice(21500, 24000)
    model = RnlSparseFactors(200, 120, 5)
    loss = nn.MSELoss()
    optimizer = torch.optim.SparseAdam(model.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda s: 1.0 - 0.98 * s / STEPS)
    rec = record(model, optimizer, loss)
    loader = DataLoader(
        TensorDataset(pairs[train], rating[train]),
        batch_size=64,
        shuffle=True,
        drop_last=True,
        generator=torch.Generator().manual_seed(2),
    )
    step = 0
    while step < STEPS:
        for bx, by in loader:
            optimizer.zero_grad()
            value = loss(model(bx), by)
            value.backward()
            optimizer.step()
            schedule.step()
            step += 1
            rec.step(value.item(), (bx, by))
            if step % 50 == 0:
                rec.validation(rnl_evaluate(model, loss, pairs[held], rating[held], batch=2500))
            if step == STEPS:
                break


# ---- very small batches ---------------------------------------------------------------------------------------------
@healthy("Batches of four: a very noisy loss, which ends on the floor that the noise of the targets sets.", steps=STEPS)
def rnl_noisy_batches(record):
    rnl_seed(109)
    x, y = rnl_tabular(8000, features=7, noise=0.8, seed=1)
    vx, vy = rnl_tabular(1000, features=7, noise=0.8, seed=2)
    model = nn.Sequential(nn.Linear(7, 64), nn.GELU(), nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 1))
    loss = nn.MSELoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.06)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda s: 1.0 / (1.0 + s / 200))
    rec = record(model, optimizer, loss)
    batches = rnl_epochs(x, y, 4, seed=3)
    for step in range(1, STEPS + 1):
        bx, by = next(batches)
        optimizer.zero_grad()
        value = loss(model(bx), by)
        value.backward()
        optimizer.step()
        schedule.step()
        rec.step(value.item(), (bx, by))
        if step % 50 == 0:
            rec.validation(rnl_evaluate(model, loss, vx, vy))


# ---- planned fine-tuning --------------------------------------------------------------------------------------------
class RnlBackbone(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 12, 3, padding=1)
        self.conv2 = nn.Conv2d(12, 24, 3, padding=1)

    def forward(self, x):
        x = F.max_pool2d(F.gelu(self.conv1(x)), 2)
        return F.gelu(self.conv2(x)).flatten(1)


class RnlTuned(nn.Module):
    def __init__(self, backbone: nn.Module):
        super().__init__()
        self.backbone = backbone
        self.head = nn.Linear(24 * 16, 4)

    def forward(self, x):
        return self.head(self.backbone(x))


def rnl_quadrant_of(n: int, seed: int):
    x, _, mask = rnl_shapes(n, size=8, noise=0.3, seed=seed)
    area = mask.sum((1, 2, 3))
    return x, torch.bucketize(area, torch.tensor([9.5, 14.5, 21.5]))


@healthy("Planned fine-tuning: a frozen backbone is thawed at step 900, at a hundredth of the head's rate.", steps=STEPS)
def rnl_gentle_thaw(record):
    rnl_seed(110)
    backbone = RnlBackbone()
    whole = nn.Sequential(backbone, nn.Linear(24 * 16, 4))
    px, py, _ = rnl_shapes(4000, size=8, noise=0.3, seed=1)
    first = torch.optim.Adam(whole.parameters(), lr=2e-3)
    batches = rnl_epochs(px, py, 64, seed=2)
    for _ in range(500):
        bx, by = next(batches)
        first.zero_grad()
        F.cross_entropy(whole(bx), by).backward()
        first.step()

    x, y = rnl_quadrant_of(8000, seed=3)
    vx, vy = rnl_quadrant_of(800, seed=4)
    model = RnlTuned(backbone)
    for p in model.backbone.parameters():
        p.requires_grad_(False)
    loss = nn.CrossEntropyLoss()
    optimizer = torch.optim.AdamW(
        [{"params": model.head.parameters(), "lr": 1e-3}, {"params": model.backbone.parameters(), "lr": 1e-5}],
        weight_decay=0.01,
    )
    rec = record(model, optimizer, loss)
    batches = rnl_epochs(x, y, 32, seed=5)
    for step in range(1, STEPS + 1):
        if step == 901:
            for p in model.backbone.parameters():
                p.requires_grad_(True)
        bx, by = next(batches)
        optimizer.zero_grad()
        value = loss(model(bx), by)
        value.backward()
        optimizer.step()
        rec.step(value.item(), (bx, by))
        if step % 50 == 0:
            rec.validation(rnl_evaluate(model, loss, vx, vy))
