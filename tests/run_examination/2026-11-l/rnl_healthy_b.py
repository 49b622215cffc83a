"""Healthy runs, second half."""

from __future__ import annotations

import copy
import math

import torch
from program import healthy
from torch import nn
from torch.nn import functional as F

from rnl_data import (
    RnlBlock,
    rnl_digits,
    rnl_documents,
    rnl_epochs,
    rnl_evaluate,
    rnl_load_series,
    rnl_seed,
    rnl_shapes,
    rnl_tabular,
)

STEPS = 2000


# ---- gradient accumulation ------------------------------------------------------------------------------------------
class RnlSentence(nn.Module):
    def __init__(self, vocabulary: int, classes: int):
        super().__init__()
        self.embed = nn.Embedding(vocabulary, 32)
        nn.init.normal_(self.embed.weight, std=0.1)
        self.block = RnlBlock(32, 4, causal=False, dropout=0.1)
        self.norm = nn.LayerNorm(32)
        self.head = nn.Linear(32, classes)

    def forward(self, x):
        return self.head(self.norm(self.block(self.embed(x))).mean(1))


@healthy("Gradients of three small batches are added up for each step, on purpose.", steps=STEPS)
def rnl_accumulated_encoder(record):
    rnl_seed(201)
    x, y = rnl_documents(12000, vocabulary=300, length=20, sharp=0.7, seed=1)
    vx, vy = rnl_documents(1000, vocabulary=300, length=20, sharp=0.7, seed=2)
    model = RnlSentence(300, 6)
    loss = nn.CrossEntropyLoss()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.05)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda s: min(1.0, (s + 1) / 100) * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * s / STEPS)))
    )
    rec = record(model, optimizer, loss)
    batches = rnl_epochs(x, y, 8, seed=3)
    for step in range(1, STEPS + 1):
        model.train()
        optimizer.zero_grad()
        total = 0.0
        for _ in range(3):
            bx, by = next(batches)
            value = loss(model(bx), by) / 3
            value.backward()
            total += value.item()
        optimizer.step()
        schedule.step()
        rec.step(total, (bx, by))
        if step % 100 == 0:
            rec.validation(rnl_evaluate(model, loss, vx, vy))


# ---- rare positives -------------------------------------------------------------------------------------------------
@healthy("Few positives (7 %), weighted: batches without any positive make the loss jump about.", steps=STEPS)
def rnl_rare_positives(record):
    rnl_seed(202)

    def rnl_rare(n: int, seed: int):
        x, score = rnl_tabular(n, features=10, noise=0.2, seed=seed)
        return x, (score > 1.35).float()

    x, y = rnl_rare(12000, 1)
    vx, vy = rnl_rare(2000, 2)
    model = nn.Sequential(
        nn.Linear(10, 48), nn.LeakyReLU(0.1), nn.Dropout(0.1), nn.Linear(48, 24), nn.LeakyReLU(0.1), nn.Linear(24, 1)
    )
    loss = nn.BCEWithLogitsLoss(pos_weight=torch.tensor([4.0]))
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS, eta_min=2e-5)
    rec = record(model, optimizer, loss)
    batches = rnl_epochs(x, y, 48, seed=3)
    for step in range(1, STEPS + 1):
        bx, by = next(batches)
        model.train()
        optimizer.zero_grad()
        value = loss(model(bx), by)
        value.backward()
        optimizer.step()
        schedule.step()
        rec.step(value.item(), (bx, by))
        if step % 50 == 0:
            rec.validation(rnl_evaluate(model, loss, vx, vy, batch=2000))


# ---- label smoothing, residual BatchNorm net ------------------------------------------------------------------------
class RnlResidual(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.conv1 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)

    def forward(self, x):
        return F.relu(x + self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x))))))


class RnlResNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(1, 16, 3, padding=1, bias=False)
        self.bn = nn.BatchNorm2d(16)
        self.blocks = nn.Sequential(RnlResidual(16), nn.AvgPool2d(2), RnlResidual(16))
        self.head = nn.Linear(16, 10)

    def forward(self, x):
        return self.head(self.blocks(F.relu(self.bn(self.stem(x)))).mean((2, 3)))


@healthy("Label smoothing, so that the loss ends far above zero; a one-cycle rate; BatchNorm with evaluations.", steps=STEPS)
def rnl_smoothed_resnet(record):
    rnl_seed(203)
    (x, y), (vx, vy) = rnl_digits()
    model = RnlResNet()
    loss = nn.CrossEntropyLoss(label_smoothing=0.1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True, weight_decay=5e-4)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=STEPS, pct_start=0.25)
    rec = record(model, optimizer, loss)
    g = torch.Generator().manual_seed(1)
    batches = rnl_epochs(x, y, 32, seed=2)
    for step in range(1, STEPS + 1):
        bx, by = next(batches)
        bx = torch.roll(bx, int(torch.randint(-1, 2, (1,), generator=g)), 3)
        model.train()
        optimizer.zero_grad()
        value = loss(model(bx), by)
        value.backward()
        optimizer.step()
        schedule.step()
        rec.step(value.item(), (bx, by))
        if step % 100 == 0:
            rec.validation(rnl_evaluate(model, loss, vx, vy))


# ---- a curriculum ---------------------------------------------------------------------------------------------------
class RnlCounter(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(6, 12)
        self.lstm = nn.LSTM(12, 40, batch_first=True)
        self.head = nn.Linear(40, 5)

    def forward(self, x):
        return self.head(self.lstm(self.embed(x))[0])


def rnl_modular(count: int, length: int, g: torch.Generator):
    """Sum modulo five since the last reset (token 5), at every place."""
    p = torch.tensor([0.3, 0.2, 0.2, 0.15, 0.1, 0.05])
    x = torch.multinomial(p, count * length, replacement=True, generator=g).view(count, length)
    y = torch.zeros_like(x)
    state = torch.zeros(count, dtype=torch.long)
    for t in range(length):
        state = (state + torch.where(x[:, t] < 5, x[:, t], 0)) % 5
        state = torch.where(x[:, t] == 5, torch.zeros_like(state), state)
        y[:, t] = state
    return x, y


def rnl_place_loss(out, target):
    return F.cross_entropy(out.flatten(0, 1), target.flatten())


@healthy("A curriculum: sequences grow from 5 to 10 to 20, and the loss rises for a while.", steps=STEPS)
def rnl_length_curriculum(record):
    rnl_seed(204)
    g = torch.Generator().manual_seed(1)
    vx, vy = rnl_modular(200, 20, torch.Generator().manual_seed(2))
    model = RnlCounter()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS, eta_min=1e-4)
    rec = record(model, optimizer, rnl_place_loss)
    for step in range(1, STEPS + 1):
        length = 5 if step <= 250 else 10 if step <= 500 else 20
        bx, by = rnl_modular(24, length, g)
        optimizer.zero_grad()
        value = rnl_place_loss(model(bx), by)
        value.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        rec.step(value.item(), (bx, by))
        if step % 100 == 0:
            rec.validation(rnl_evaluate(model, rnl_place_loss, vx, vy))


# ---- an average of the weights --------------------------------------------------------------------------------------
class RnlResidualMLP(nn.Module):
    def __init__(self, inputs: int, width: int, depth: int):
        super().__init__()
        self.inp = nn.Linear(inputs, width)
        self.layers = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), nn.GELU(), nn.Linear(width, width))
            for _ in range(depth)
        )
        self.norm = nn.LayerNorm(width)
        self.out = nn.Linear(width, 1)

    def forward(self, x):
        h = self.inp(x)
        for layer in self.layers:
            h = h + layer(h)
        return self.out(self.norm(h))


@healthy("Validation is done with a moving average of the weights, which lags behind at first; a constant rate.", steps=STEPS)
def rnl_averaged_weights(record):
    rnl_seed(205)
    x, y = rnl_tabular(20000, features=12, noise=0.2, seed=1)
    vx, vy = rnl_tabular(1500, features=12, noise=0.2, seed=2)
    model = RnlResidualMLP(12, 48, 2)
    average = copy.deepcopy(model).requires_grad_(False)
    loss = nn.SmoothL1Loss()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.01)
    rec = record(model, optimizer, loss)
    batches = rnl_epochs(x, y, 48, seed=3)
    for step in range(1, STEPS + 1):
        bx, by = next(batches)
        optimizer.zero_grad()
        value = loss(model(bx), by)
        value.backward()
        optimizer.step()
        with torch.no_grad():
            for a, p in zip(average.parameters(), model.parameters()):
                a.lerp_(p, 0.01)
        rec.step(value.item(), (bx, by))
        if step % 50 == 0:
            rec.validation(rnl_evaluate(average, loss, vx, vy))


# ---- a fit without noise --------------------------------------------------------------------------------------------
@healthy("A fit of a smooth curve on all its points at once: every batch is the same, and the loss gets tiny.", steps=STEPS)
def rnl_full_batch_fit(record):
    rnl_seed(206)
    t = torch.linspace(-1, 1, 128).unsqueeze(1)
    held = (t[1:] + t[:-1]) / 2
    curve = lambda s: torch.sin(4 * s) + 0.5 * torch.cos(7 * s + 1)  # noqa: E731
    model = nn.Sequential(nn.Linear(1, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 1))
    loss = nn.MSELoss()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.998)
    rec = record(model, optimizer, loss)
    x, y = t, curve(t)
    for step in range(1, STEPS + 1):
        optimizer.zero_grad()
        value = loss(model(x), y)
        value.backward()
        optimizer.step()
        schedule.step()
        rec.step(value.item(), (x, y))
        if step % 50 == 0:
            rec.validation(rnl_evaluate(model, loss, held, curve(held)))


# ---- segmentation ---------------------------------------------------------------------------------------------------
def rnl_double(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(inputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU())


class RnlUNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.down1, self.down2 = rnl_double(1, 8), rnl_double(8, 16)
        self.middle = rnl_double(16, 16)
        self.up = rnl_double(32, 8)
        self.last = nn.Conv2d(16, 1, 1)

    def forward(self, x):
        a = self.down1(x)
        b = self.down2(F.max_pool2d(a, 2))
        c = F.interpolate(self.middle(F.max_pool2d(b, 2)), scale_factor=2.0)
        d = F.interpolate(self.up(torch.cat([b, c], 1)), scale_factor=2.0)
        return self.last(torch.cat([a, d], 1))


def rnl_mask_loss(out, target):
    p = out.sigmoid()
    dice = 1 - (2 * (p * target).sum() + 1) / (p.sum() + target.sum() + 1)
    return F.binary_cross_entropy_with_logits(out, target) + dice


@healthy("Segmentation with a sum of two losses; few positive pixels; polynomial decay of the rate.", steps=STEPS)
def rnl_small_unet(record):
    rnl_seed(207)
    x, _, y = rnl_shapes(4000, size=16, noise=0.4, seed=1)
    vx, _, vy = rnl_shapes(300, size=16, noise=0.4, seed=2)
    model = RnlUNet()
    optimizer = torch.optim.RMSprop(model.parameters(), lr=2e-3)
    schedule = torch.optim.lr_scheduler.PolynomialLR(optimizer, STEPS, power=0.9)
    rec = record(model, optimizer, rnl_mask_loss)
    batches = rnl_epochs(x, y, 16, seed=3)
    for step in range(1, STEPS + 1):
        bx, by = next(batches)
        model.train()
        optimizer.zero_grad()
        value = rnl_mask_loss(model(bx), by)
        value.backward()
        optimizer.step()
        schedule.step()
        rec.step(value.item(), (bx, by))
        if step % 100 == 0:
            rec.validation(rnl_evaluate(model, rnl_mask_loss, vx, vy, batch=300))


# ---- half precision, as it should be --------------------------------------------------------------------------------
@healthy("Gradients in float16 with a dynamic scale: it doubles every 200 steps, and a step is skipped when it overflows.", steps=STEPS)
def rnl_scaled_half(record):
    rnl_seed(208)
    x, _, _ = rnl_shapes(6000, size=10, noise=0.1, seed=1)
    vx, _, _ = rnl_shapes(500, size=10, noise=0.1, seed=2)
    model = nn.Sequential(
        nn.Conv2d(1, 12, 3, stride=2, padding=1),
        nn.SiLU(),
        nn.Flatten(),
        nn.Linear(300, 48),
        nn.SiLU(),
        nn.Linear(48, 100),
        nn.Unflatten(1, (1, 10, 10)),
    )
    loss = nn.MSELoss()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS, eta_min=5e-5)
    rec = record(model, optimizer, loss)
    scale, good = 2.0**14, 0
    g = torch.Generator().manual_seed(3)
    batches = rnl_epochs(x, x, 32, seed=4)
    for step in range(1, STEPS + 1):
        by = next(batches)[0]
        bx = by + 0.2 * torch.randn(by.shape, generator=g)
        optimizer.zero_grad()
        value = loss(model(bx), by)
        (value * scale).backward()
        finite = True
        for p in model.parameters():
            half = p.grad.half()
            finite = finite and bool(torch.isfinite(half).all())
            p.grad = half.float() / scale
        if finite:
            optimizer.step()
            good += 1
            if good == 200:
                scale, good = scale * 2.0, 0
        else:
            scale, good = scale * 0.5, 0
        schedule.step()
        rec.step(value.item(), (bx, by))
        if step % 50 == 0:
            rec.validation(rnl_evaluate(model, loss, vx, vx))


# ---- bags of words --------------------------------------------------------------------------------------------------
class RnlBag(nn.Module):
    def __init__(self, vocabulary: int, classes: int):
        super().__init__()
        self.bag = nn.EmbeddingBag(vocabulary, 24, mode="mean")
        nn.init.normal_(self.bag.weight, std=0.2)
        self.head = nn.Linear(24, classes)

    def forward(self, x):
        return self.head(self.bag(x))


@healthy("A bag of words with Adagrad, whose steps get ever smaller.", steps=STEPS)
def rnl_word_bag(record):
    rnl_seed(209)
    x, y = rnl_documents(10000, vocabulary=500, classes=8, length=16, sharp=0.9, seed=1)
    vx, vy = rnl_documents(1000, vocabulary=500, classes=8, length=16, sharp=0.9, seed=2)
    model = RnlBag(500, 8)
    loss = nn.CrossEntropyLoss()
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.08)
    rec = record(model, optimizer, loss)
    batches = rnl_epochs(x, y, 64, seed=3)
    for step in range(1, STEPS + 1):
        bx, by = next(batches)
        optimizer.zero_grad()
        value = loss(model(bx), by)
        value.backward()
        optimizer.step()
        rec.step(value.item(), (bx, by))
        if step % 50 == 0:
            rec.validation(rnl_evaluate(model, loss, vx, vy))


# ---- a likelihood that goes below zero ------------------------------------------------------------------------------
class RnlCausalConv(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv1d(1, 20, 3)
        self.conv2 = nn.Conv1d(20, 20, 3, dilation=2)
        self.conv3 = nn.Conv1d(20, 20, 3, dilation=4)
        self.head = nn.Conv1d(20, 2, 1)

    def forward(self, x):
        h = x.transpose(1, 2)
        for conv in (self.conv1, self.conv2, self.conv3):
            h = F.silu(conv(F.pad(h, (conv.dilation[0] * 2, 0))))
        mean, spread = self.head(h).chunk(2, 1)
        return torch.cat([mean, spread], 1).transpose(1, 2)


def rnl_likelihood(out, target):
    mean, spread = out[..., :1], out[..., 1:].clamp(-8, 4)
    return 0.5 * (spread + (target - mean) ** 2 * torch.exp(-spread)).mean()


@healthy("A negative log-likelihood with a learned spread: the loss falls through zero and below.", steps=STEPS)
def rnl_gaussian_forecast(record):
    rnl_seed(210)
    series = rnl_load_series(14000, seed=9)
    train, held = series[:12000], series[12000:]

    def rnl_cut(source: torch.Tensor, count: int, g: torch.Generator):
        start = torch.randint(0, len(source) - 49, (count,), generator=g)
        chunk = source[start.unsqueeze(1) + torch.arange(49)].unsqueeze(-1)
        return chunk[:, :-1], chunk[:, 1:]

    g = torch.Generator().manual_seed(1)
    vx, vy = rnl_cut(held, 200, torch.Generator().manual_seed(2))
    model = RnlCausalConv()
    optimizer = torch.optim.NAdam(model.parameters(), lr=2e-3)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.05, total_iters=STEPS)
    rec = record(model, optimizer, rnl_likelihood)
    for step in range(1, STEPS + 1):
        bx, by = rnl_cut(train, 16, g)
        optimizer.zero_grad()
        value = rnl_likelihood(model(bx), by)
        value.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimizer.step()
        schedule.step()
        rec.step(value.item(), (bx, by))
        if step % 50 == 0:
            rec.validation(rnl_evaluate(model, rnl_likelihood, vx, vy))
