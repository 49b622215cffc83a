"""Healthy generative and contrastive runs."""

from __future__ import annotations

import math

import data
import torch
import torch.nn.functional as F
from program import Record, healthy
from torch import nn


@healthy("A GAN that works: neither loss falls, they hover around each other (two recorders)", steps=2000)
def gan_ring(record: Record) -> None:
    torch.manual_seed(131)
    g = torch.Generator().manual_seed(131)
    generator = nn.Sequential(nn.Linear(4, 48), nn.ReLU(), nn.Linear(48, 48), nn.ReLU(), nn.Linear(48, 2))
    critic = nn.Sequential(nn.Linear(2, 48), nn.LeakyReLU(0.2), nn.Linear(48, 48), nn.LeakyReLU(0.2), nn.Linear(48, 1))
    opt_g = torch.optim.Adam(generator.parameters(), lr=1e-3, betas=(0.5, 0.99))
    opt_d = torch.optim.Adam(critic.parameters(), lr=4e-3, betas=(0.5, 0.99))
    bce = nn.BCEWithLogitsLoss()

    def fooling(fake: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
        return bce(critic(fake), wanted)

    g_recorder = record(generator, opt_g, fooling)
    d_recorder = record(critic, opt_d, bce)
    ones, zeros = torch.ones(64, 1), torch.zeros(64, 1)
    for _ in range(2000):
        with torch.no_grad():
            fake = generator(torch.randn(64, 4))
        inputs, targets = torch.cat([data.ring(64, g), fake]), torch.cat([ones, zeros])
        opt_d.zero_grad()
        d_loss = bce(critic(inputs), targets)
        d_loss.backward()
        opt_d.step()
        d_recorder.step(d_loss.item(), (inputs, targets))

        z = torch.randn(64, 4)
        opt_g.zero_grad()
        g_loss = fooling(generator(z), ones)
        g_loss.backward()
        opt_g.step()
        g_recorder.step(g_loss.item(), (z, ones))
    with torch.no_grad():
        made = generator(torch.randn(1000, 4))
    angle = torch.arange(8) * (math.pi / 4)
    centres = torch.stack([angle.cos(), angle.sin()], 1)
    distance, nearest = torch.cdist(made, centres).min(1)
    data.SCORES["gan_ring"] = distance.mean().item()
    data.SCORES["gan_ring clouds"] = float((nearest.bincount(minlength=8) > 20).sum())


class VAE(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encode = nn.Sequential(nn.Linear(144, 64), nn.ReLU())
        self.mean = nn.Linear(64, 6)
        self.log_var = nn.Linear(64, 6)
        self.decode = nn.Sequential(nn.Linear(6, 64), nn.ReLU(), nn.Linear(64, 144))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        h = self.encode(x)
        mean, log_var = self.mean(h), self.log_var(h)
        z = mean + torch.randn_like(mean) * (0.5 * log_var).exp()
        return self.decode(z), mean, log_var


@healthy("A VAE whose KL weight is raised over the first 800 steps: the loss stalls meanwhile, then falls on", steps=2000)
def vae_annealed(record: Record) -> None:
    torch.manual_seed(132)
    images, _ = data.digits(6000, 91, noise=0.05)
    x = images.flatten(1)
    held = data.digits(500, 92, noise=0.05)[0].flatten(1)
    model = VAE()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    beta = 0.0

    def elbo(outputs: tuple[torch.Tensor, torch.Tensor, torch.Tensor], targets: torch.Tensor) -> torch.Tensor:
        made, mean, log_var = outputs
        kl = -0.5 * (1 + log_var - mean**2 - log_var.exp()).sum(1).mean()
        return 10 * F.mse_loss(made, targets, reduction="none").sum(1).mean() / 2 + beta * kl

    recorder = record(model, optimizer, elbo)
    for step in range(2000):
        beta = min(1.0, step / 800)
        batch = x[torch.randint(6000, (64,))]
        optimizer.zero_grad()
        loss = elbo(model(batch), batch)
        loss.backward()
        optimizer.step()
        recorder.step(loss.item(), (batch, batch))
    with torch.no_grad():
        made, mean, _ = model(held)
        data.SCORES["vae_annealed"] = (F.mse_loss(made, held) / held.var(0).mean()).item()
        data.SCORES["vae_annealed used"] = float((mean.var(0) > 0.1).sum())


class Projector(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(144, 96), nn.BatchNorm1d(96), nn.ReLU(), nn.Linear(96, 48))
        self.head = nn.Sequential(nn.ReLU(), nn.Linear(48, 24))

    def forward(self, views: torch.Tensor) -> torch.Tensor:
        return F.normalize(self.head(self.body(views)), dim=1)


def info_nce(z: torch.Tensor, partner: torch.Tensor) -> torch.Tensor:
    similarity = (z @ z.T / 0.2).masked_fill(torch.eye(len(z), dtype=torch.bool), -1e9)
    return F.cross_entropy(similarity, partner)


@healthy("Contrastive learning from two noisy views: the loss starts at the log of the batch and has a high floor", steps=2000)
def contrastive(record: Record) -> None:
    torch.manual_seed(133)
    images, _ = data.digits(4000, 93, noise=0.05)
    x = images.flatten(1)
    model = Projector()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 2000)
    recorder = record(model, optimizer, info_nce)
    partner = torch.cat([torch.arange(32, 64), torch.arange(32)])

    def views(batch: torch.Tensor) -> torch.Tensor:
        both = torch.cat([batch, batch])
        return both * (torch.rand_like(both) > 0.3) + 0.2 * torch.randn_like(both)

    for _ in range(2000):
        inputs = views(x[torch.randint(4000, (32,))])
        loss = info_nce(model(inputs), partner)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        recorder.step(loss.item(), (inputs, partner))
    model.eval()
    held = data.digits(32, 94, noise=0.05)[0].flatten(1)
    with torch.no_grad():
        data.SCORES["contrastive"] = info_nce(model(views(held)), partner).item() / math.log(63)
