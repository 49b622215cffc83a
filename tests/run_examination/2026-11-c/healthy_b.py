"""Healthy runs that are easily mistaken: rates, noise, stages, two networks."""

from __future__ import annotations

import copy

import torch
from program import healthy
from torch import nn
from torch.nn import functional as F


@healthy("OneCycle: the rate climbs far above where it began, and the loss is uneasy at the peak", steps=1200)
def one_cycle_cnn(record):
    torch.manual_seed(201)
    prototypes = F.interpolate(torch.randn(10, 1, 6, 6), size=(12, 12), mode="bilinear")
    model = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 24, 3, padding=1), nn.BatchNorm2d(24), nn.ReLU(), nn.AdaptiveAvgPool2d(3),
        nn.Flatten(), nn.Linear(216, 10),
    )  # fmt: skip
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-4)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.2, total_steps=1200)
    criterion = nn.CrossEntropyLoss()
    recorder = record(model, optimizer, criterion)
    for _ in range(1200):
        y = torch.randint(0, 10, (40,))
        x = (prototypes[y] + 1.5 * torch.randn(40, 1, 12, 12)) / 1.6
        optimizer.zero_grad()
        loss = criterion(model(x), y)
        loss.backward()
        optimizer.step()
        scheduler.step()
        recorder.step(loss.item(), (x, y))


@healthy("Cosine with warm restarts: the loss rises a little after each restart, as it should", steps=1500)
def warm_restarts_mlp(record):
    torch.manual_seed(202)
    w = torch.randn(10, 40)

    def draw(n):
        x = torch.randn(n, 10)
        return x, torch.tanh(x @ w).mul(torch.arange(40) % 3 - 1.0).sum(1, keepdim=True) / 4 + 0.1 * torch.randn(n, 1)

    model = nn.Sequential(nn.Linear(10, 192), nn.GELU(), nn.Linear(192, 192), nn.GELU(), nn.Linear(192, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.08, momentum=0.9, nesterov=True)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(optimizer, T_0=300, eta_min=1e-4)
    recorder = record(model, optimizer, F.mse_loss)
    x_val, y_val = draw(1000)
    for step in range(1, 1501):
        x, y = draw(256)
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        scheduler.step()
        recorder.step(loss.item(), (x, y))
        if step % 75 == 0:
            with torch.no_grad():
                recorder.validation(F.mse_loss(model(x_val), y_val).item())


@healthy("Batches of four and heavy-tailed noise: single losses vary by orders of magnitude", steps=2000)
def tiny_batches_heavy_tails(record):
    torch.manual_seed(203)
    noise = torch.distributions.StudentT(3.0)
    model = nn.Sequential(nn.Linear(8, 640), nn.Tanh(), nn.Linear(640, 640), nn.Tanh(), nn.Linear(640, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-4)
    huber = nn.HuberLoss()
    recorder = record(model, optimizer, huber)

    def draw(n):
        x = torch.randn(n, 8)
        return x, 2 * torch.sin(x[:, :1]) + x[:, 1:2] - x[:, 2:3] + 0.5 * noise.sample((n, 1))

    held_out = draw(1500)
    for step in range(2000):
        x, y = draw(4)
        optimizer.zero_grad()
        loss = huber(model(x), y)
        loss.backward()
        optimizer.step()
        recorder.step(loss.item(), (x, y))
        if step % 200 == 0:
            with torch.no_grad():
                recorder.validation(huber(model(held_out[0]), held_out[1]).item())


class _Reverser(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(10, 32)
        self.rnn = nn.GRU(32, 64, batch_first=True)
        self.out = nn.Linear(64, 10)

    def forward(self, x):
        return self.out(self.rnn(self.embed(x))[0])


def _sequence_loss(logits, y):
    return F.cross_entropy(logits.flatten(0, 1), y.flatten())


@healthy("A curriculum on purpose: the share of long delays grows slowly, so that the task gets harder all the time", steps=1500)
def curriculum_of_delays(record):
    torch.manual_seed(204)
    model = _Reverser()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    recorder = record(model, optimizer, _sequence_loss)
    for step in range(1500):
        hard = min(1.0, step / 1000)
        x = torch.randint(0, 8, (32, 10))
        delay = 1 + (torch.rand(32) < hard).long()
        x[:, 0] = 7 + delay  # tells which delay is asked for
        index = (torch.arange(10)[None] - delay[:, None]).clamp(min=0)
        y = x.gather(1, index)
        optimizer.zero_grad()
        loss = _sequence_loss(model(x), y)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        recorder.step(loss.item(), (x, y))


@healthy("Gradients of four small batches are added on purpose, and cleared after the step", steps=1000)
def gradient_accumulation(record):
    torch.manual_seed(205)
    centres = 0.8 * torch.randn(8, 20)

    def loader():
        while True:
            y = torch.randint(0, 8, (24,))
            yield 0.7 * (centres[y] + torch.randn(24, 20)), y

    model = nn.Sequential(nn.Linear(20, 160), nn.LayerNorm(160), nn.SiLU(), nn.Linear(160, 64), nn.SiLU(), nn.Linear(64, 8))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    criterion = nn.CrossEntropyLoss()
    recorder = record(model, optimizer, criterion)
    accumulate, total = 4, 0.0
    optimizer.zero_grad()
    for i, (x, y) in enumerate(loader(), 1):
        loss = criterion(model(x), y) / accumulate
        loss.backward()
        total += loss.item()
        if i % accumulate == 0:
            optimizer.step()
            recorder.step(total, (x, y))
            optimizer.zero_grad()
            total = 0.0
        if i == 1000 * accumulate:
            break


class _Pointer(nn.Module):
    def __init__(self):
        super().__init__()
        self.inp = nn.Linear(3, 32)
        self.pos = nn.Parameter(0.1 * torch.randn(10, 32))
        self.layer = nn.TransformerEncoderLayer(32, 2, 64, dropout=0.0, batch_first=True)
        self.score = nn.Linear(32, 1)

    def forward(self, x):
        return self.score(self.layer(self.inp(x) + self.pos))[..., 0]


@healthy("Clipping to a small norm that acts at nearly every step, with a rate that fits it", steps=1200)
def always_clipped_transformer(record):
    torch.manual_seed(206)
    model = _Pointer()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, total_iters=1200)
    criterion = nn.CrossEntropyLoss()
    recorder = record(model, optimizer, criterion)
    for _ in range(1200):
        x = torch.randn(48, 10, 3)
        y = (x[..., 0] + x[..., 1] - x[..., 2] + 0.2 * torch.randn(48, 10)).argmax(1)
        optimizer.zero_grad()
        loss = criterion(model(x), y)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
        scheduler.step()
        recorder.step(loss.item(), (x, y))


@healthy("A GAN in the plane: neither loss falls, they balance", steps=1500)
def gan_ring(record):
    torch.manual_seed(207)
    generator = nn.Sequential(nn.Linear(4, 128), nn.LeakyReLU(0.2), nn.Linear(128, 128), nn.LeakyReLU(0.2), nn.Linear(128, 2))
    critic = nn.Sequential(nn.Linear(2, 128), nn.LeakyReLU(0.2), nn.Linear(128, 128), nn.LeakyReLU(0.2), nn.Linear(128, 1))
    opt_g = torch.optim.Adam(generator.parameters(), lr=5e-4, betas=(0.5, 0.99))
    opt_d = torch.optim.Adam(critic.parameters(), lr=5e-4, betas=(0.5, 0.99))
    bce = nn.BCEWithLogitsLoss()

    def fool(fake, wanted):
        return bce(critic(fake), wanted)

    recorder_d = record(critic, opt_d, bce)
    recorder_g = record(generator, opt_g, fool)
    for _ in range(1500):
        angle = 6.2832 * torch.rand(64)
        real = torch.stack([angle.cos(), angle.sin()], 1) * 1.4 + 0.15 * torch.randn(64, 2)
        with torch.no_grad():
            fake = generator(torch.randn(64, 4))
        points, labels = torch.cat([real, fake]), torch.cat([0.9 * torch.ones(64, 1), torch.zeros(64, 1)])
        opt_d.zero_grad()
        loss_d = bce(critic(points), labels)
        loss_d.backward()
        opt_d.step()
        recorder_d.step(loss_d.item(), (points, labels))

        z, ones = torch.randn(64, 4), torch.ones(64, 1)
        opt_g.zero_grad()
        loss_g = fool(generator(z), ones)
        loss_g.backward()
        opt_g.step()
        recorder_g.step(loss_g.item(), (z, ones))


@healthy("A moving average of the weights is what is evaluated; it lags behind at first", steps=1300)
def ema_evaluated(record):
    torch.manual_seed(208)
    planes = torch.randn(16, 3)

    def draw(n):
        x = torch.randn(n, 16)
        y = ((x @ planes > 0).long() * torch.tensor([1, 2, 4])).sum(1)
        return x, torch.where(torch.rand(n) < 0.05, torch.randint(0, 8, (n,)), y)

    model = nn.Sequential(nn.Linear(16, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 8))
    average = copy.deepcopy(model).requires_grad_(False)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    criterion = nn.CrossEntropyLoss()
    recorder = record(model, optimizer, criterion)
    x_val, y_val = draw(1000)
    for step in range(1, 1301):
        x, y = draw(128)
        optimizer.zero_grad()
        loss = criterion(model(x), y)
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            for slow, fast in zip(average.parameters(), model.parameters(), strict=True):
                slow.lerp_(fast, 0.005)
        recorder.step(loss.item(), (x, y))
        if step % 50 == 0:
            recorder.validation(criterion(average(x_val), y_val).item())
