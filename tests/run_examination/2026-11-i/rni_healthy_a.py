"""Healthy training loops, first half."""

from __future__ import annotations

import copy

import torch
from program import Record, healthy
from rni_data import rni_adding, rni_batches, rni_clusters, rni_gen, rni_images, rni_teacher
from rni_faults_a import RniResNet, RniTransfer, rni_evaluate
from torch import Tensor, nn
from torch.nn import functional as F


@healthy("batches of four examples: the loss jumps from step to step", steps=1800)
def rni_tiny_batches(record: Record) -> None:
    torch.manual_seed(1)
    x, y = rni_clusters(4000, 12, 3, 1.1, 1)
    vx, vy = rni_clusters(1000, 12, 3, 1.1, 2)
    model = nn.Sequential(nn.Linear(12, 48), nn.ReLU(), nn.Linear(48, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.5)
    loss = nn.CrossEntropyLoss()
    rec = record(model, optimizer, loss)
    batches = rni_batches(len(x), 4, 2)
    for step in range(1800):
        i = next(batches)
        optimizer.zero_grad()
        value = loss(model(x[i]), y[i])
        value.backward()
        optimizer.step()
        rec.step(value, (x[i], y[i]))
        if step % 150 == 0:
            rec.validation(rni_evaluate(model, loss, vx, vy))


@healthy("a one-cycle schedule with a high peak, and dropout", steps=1000)
def rni_one_cycle(record: Record) -> None:
    torch.manual_seed(2)
    x, y = rni_images(4000, 8, 12, 1.4, 1)
    vx, vy = rni_images(800, 8, 12, 1.4, 2)
    model = nn.Sequential(
        nn.Conv2d(1, 12, 3, padding=1), nn.BatchNorm2d(12), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(12, 16, 3, padding=1),
        nn.BatchNorm2d(16), nn.ReLU(), nn.Flatten(), nn.Dropout(0.4), nn.Linear(16 * 36, 8),
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=1000)
    loss = nn.CrossEntropyLoss()
    rec = record(model, optimizer, loss)
    batches = rni_batches(len(x), 32, 2)
    for step in range(1000):
        i = next(batches)
        optimizer.zero_grad()
        value = loss(model(x[i]), y[i])
        value.backward()
        optimizer.step()
        schedule.step()
        rec.step(value, (x[i], y[i]))
        if step % 125 == 124:
            rec.validation(rni_evaluate(model, loss, vx, vy))


@healthy("cosine warm restarts: the rate jumps up three times", steps=1400)
def rni_warm_restarts(record: Record) -> None:
    torch.manual_seed(3)
    x, y = rni_images(4000, 6, 12, 1.2, 1)
    vx, vy = rni_images(500, 6, 12, 1.2, 2)
    model = RniResNet(6, c=8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.04, momentum=0.9, weight_decay=1e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(optimizer, 350)
    loss = nn.CrossEntropyLoss()
    rec = record(model, optimizer, loss)
    batches = rni_batches(len(x), 32, 2)
    for step in range(1400):
        i = next(batches)
        optimizer.zero_grad()
        value = loss(model(x[i]), y[i])
        value.backward()
        optimizer.step()
        schedule.step()
        rec.step(value, (x[i], y[i]))
        if step % 175 == 174:
            rec.validation(rni_evaluate(model, loss, vx, vy))


@healthy("the rate falls to nearly zero at the end, and the loss stays at the noise of the targets", steps=2000)
def rni_noise_floor(record: Record) -> None:
    torch.manual_seed(4)
    x, y = rni_teacher(20000, 8, 0.5, 1)
    vx, vy = rni_teacher(2000, 8, 0.5, 2)
    model = nn.Sequential(nn.Linear(8, 64), nn.SiLU(), nn.Linear(64, 64), nn.SiLU(), nn.Linear(64, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=1e-2)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 2000, eta_min=1e-8)
    loss = nn.MSELoss()
    rec = record(model, optimizer, loss)
    batches = rni_batches(len(x), 128, 2)
    for step in range(2000):
        i = next(batches)
        optimizer.zero_grad()
        value = loss(model(x[i]), y[i])
        value.backward()
        optimizer.step()
        schedule.step()
        rec.step(value, (x[i], y[i]))
        if step % 100 == 99:
            rec.validation(rni_evaluate(model, loss, vx, vy))


class RniVAE(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(144, 64), nn.ReLU(), nn.Linear(64, 12))
        self.decoder = nn.Sequential(nn.Linear(6, 64), nn.ReLU(), nn.Linear(64, 144))
        self.log_sigma = nn.Parameter(torch.zeros(()))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        mu, logvar = self.encoder(x).chunk(2, 1)
        z = mu + torch.randn_like(mu) * (0.5 * logvar).exp()
        return self.decoder(z), self.log_sigma, mu, logvar


def rni_elbo(outputs: tuple[Tensor, Tensor, Tensor, Tensor], x: Tensor) -> Tensor:
    mean, log_sigma, mu, logvar = outputs
    nll = 0.5 * ((x - mean) / log_sigma.exp()) ** 2 + log_sigma
    kl = 0.5 * (mu**2 + logvar.exp() - logvar - 1).sum(1).mean()
    return nll.mean() + kl / x.shape[1]


@healthy("a VAE whose loss, a negative log-likelihood, goes below zero", steps=1200)
def rni_vae(record: Record) -> None:
    torch.manual_seed(5)
    x, vx = (0.5 * rni_images(n, 5, 12, 0.2, s)[0].flatten(1) for n, s in ((4000, 1), (500, 2)))
    model = RniVAE()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    rec = record(model, optimizer, rni_elbo)
    batches = rni_batches(len(x), 64, 2)
    for step in range(1200):
        i = next(batches)
        optimizer.zero_grad()
        value = rni_elbo(model(x[i]), x[i])
        value.backward()
        optimizer.step()
        rec.step(value, (x[i], x[i]))
        if step % 200 == 199:
            rec.validation(rni_evaluate(model, rni_elbo, vx, vx))


@healthy("three percent of positives, with a weight: most batches hold one positive or none", steps=1500)
def rni_rare_positives(record: Record) -> None:
    torch.manual_seed(6)
    w = torch.randn(10, generator=rni_gen(1))

    def sample(n: int, seed: int) -> tuple[Tensor, Tensor]:
        g = rni_gen(seed)
        y = (torch.rand(n, 1, generator=g) < 0.03).float()
        x = torch.randn(n, 10, generator=g)
        return x + y * w * 0.9, y

    x, y = sample(30000, 2)
    vx, vy = sample(6000, 3)
    model = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, weight_decay=1e-5)
    loss = nn.BCEWithLogitsLoss(pos_weight=torch.tensor(10.0))
    rec = record(model, optimizer, loss)
    batches = rni_batches(len(x), 32, 4)
    for step in range(1500):
        i = next(batches)
        optimizer.zero_grad()
        value = loss(model(x[i]), y[i])
        value.backward()
        optimizer.step()
        rec.step(value, (x[i], y[i]))
        if step % 150 == 0:
            rec.validation(rni_evaluate(model, loss, vx, vy))


@healthy("gradual unfreezing as meant: the backbone joins in at step 400, in a group with a small rate", steps=1200)
def rni_unfreezing(record: Record) -> None:
    torch.manual_seed(7)
    loss = nn.CrossEntropyLoss()
    x, y = rni_clusters(8000, 20, 6, 1.2, 1)
    model = RniTransfer(6)
    pre = torch.optim.Adam(model.parameters(), lr=2e-3)
    batches = rni_batches(len(x), 128, 7)
    for _ in range(300):
        i = next(batches)
        pre.zero_grad()
        loss(model(x[i]), y[i]).backward()
        pre.step()
    turn = torch.linalg.qr(torch.eye(20) + 0.15 * torch.randn(20, 20, generator=rni_gen(3)))[0]  # another domain
    tx, ty = rni_clusters(6000, 20, 6, 1.2, 31)
    vx, vy = rni_clusters(2000, 20, 6, 1.2, 32)
    tx, vx = tx @ turn, vx @ turn
    model.head = nn.Linear(96, 6)
    model.backbone.requires_grad_(False)
    optimizer = torch.optim.AdamW(model.head.parameters(), lr=1e-3)
    rec = record(model, optimizer, loss)
    batches = rni_batches(len(tx), 64, 8)
    for step in range(1200):
        if step == 400:
            model.backbone.requires_grad_(True)
            optimizer.add_param_group({"params": list(model.backbone.parameters()), "lr": 5e-5})
        i = next(batches)
        optimizer.zero_grad()
        value = loss(model(tx[i]), ty[i])
        value.backward()
        optimizer.step()
        rec.step(value, (tx[i], ty[i]))
        if step % 100 == 99:
            rec.validation(rni_evaluate(model, loss, vx, vy))


@healthy("fine-tuning at a rate of 2e-5 with warm-up and linear decay: weights hardly move", steps=1500)
def rni_tiny_rate(record: Record) -> None:
    torch.manual_seed(8)
    loss = nn.CrossEntropyLoss()
    model = nn.Sequential(
        nn.Conv2d(1, 12, 3, padding=1), nn.GELU(), nn.MaxPool2d(2), nn.Conv2d(12, 24, 3, padding=1), nn.GELU(),
        nn.Flatten(), nn.Linear(24 * 36, 6),
    )
    x, y = rni_images(3000, 6, 12, 0.5, 1)
    pre = torch.optim.Adam(model.parameters(), lr=1e-3)
    batches = rni_batches(len(x), 64, 7)
    for _ in range(200):
        i = next(batches)
        pre.zero_grad()
        loss(model(x[i]), y[i]).backward()
        pre.step()
    tx, ty = rni_images(6000, 6, 12, 0.7, 3)
    vx, vy = rni_images(1000, 6, 12, 0.7, 4)
    tx, vx = tx.flip(3) * 0.3 + tx * 0.7, vx.flip(3) * 0.3 + vx * 0.7  # double exposures
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-5, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda s: min(s / 100, (1500 - s) / 1400))
    rec = record(model, optimizer, loss)
    batches = rni_batches(len(tx), 32, 9)
    for step in range(1500):
        i = next(batches)
        optimizer.zero_grad()
        value = loss(model(tx[i]), ty[i])
        value.backward()
        optimizer.step()
        schedule.step()
        rec.step(value, (tx[i], ty[i]))
        if step % 150 == 0 or step == 1499:
            rec.validation(rni_evaluate(model, loss, vx, vy))


@healthy("temporal-difference learning of values: targets move with a target network, copied every 200 steps", steps=2000)
def rni_values(record: Record) -> None:
    torch.manual_seed(9)
    g = rni_gen(1)
    model = nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1))
    with torch.no_grad():
        model[-1].bias.fill_(-4.0)  # pessimistic start
    target = copy.deepcopy(model).requires_grad_(False)
    move = torch.eye(4) * 0.9 + 0.1 * torch.randn(4, 4, generator=rni_gen(2))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    loss = nn.SmoothL1Loss()
    rec = record(model, optimizer, loss)
    states = torch.randn(5000, 4, generator=g)
    following = torch.tanh(states @ move) + 0.1 * torch.randn(5000, 4, generator=g)
    reward = torch.cos(states[:, :1]) + 0.3 * states[:, 1:2] + 0.2 * torch.randn(5000, 1, generator=g)
    batches = rni_batches(5000, 64, 3)
    for step in range(2000):
        if step % 200 == 0:
            target.load_state_dict(model.state_dict())
        i = next(batches)
        y = reward[i] + 0.7 * target(following[i])
        optimizer.zero_grad()
        value = loss(model(states[i]), y)
        value.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 10.0)
        optimizer.step()
        rec.step(value, (states[i], y))


class RniGRU(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gru = nn.GRU(2, 48, batch_first=True)
        self.out = nn.Linear(48, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.gru(x)[0][:, -1])


@healthy("a curriculum: every 150 steps the sequences become longer, from 6 to 42, and the loss may jump up a little", steps=1300)
def rni_growing_sequences(record: Record) -> None:
    torch.manual_seed(10)
    g = rni_gen(1)
    vx, vy = rni_adding(500, 42, rni_gen(2))
    vy = vy + 0.1 * torch.randn(vy.shape, generator=rni_gen(3))
    model = RniGRU()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    loss = nn.MSELoss()
    rec = record(model, optimizer, loss)
    for step in range(1300):
        x, y = rni_adding(48, min(42, 6 + 6 * (step // 150)), g)
        y = y + 0.1 * torch.randn(y.shape, generator=g)
        optimizer.zero_grad()
        value = loss(model(x), y)
        value.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        rec.step(value, (x, y))
        if step % 130 == 129:
            rec.validation(F.mse_loss(model(vx), vy).item())
