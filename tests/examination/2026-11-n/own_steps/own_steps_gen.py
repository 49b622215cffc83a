"""Generative models and their discriminators."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from program import Program, fault, sound
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def r2(prediction, goal):
    return (1 - (prediction - goal).pow(2).mean() / (goal - goal.mean(0)).pow(2).mean()).item()


def ring(n, g):
    angle = 2 * math.pi * torch.rand(n, generator=g)
    return torch.stack([angle.cos(), angle.sin()], 1) * 1.5 + 0.1 * torch.randn(n, 2, generator=g)


@fault(
    "The target of the fakes is made by filling the target of the reals with 0 in place, so that all are 0.",
    rules=["constant-target"],
    fails=True,
    steps=300,
)
def gan_labels_filled_in_place(is_faulty: bool) -> Program:
    g = torch.Generator().manual_seed(0)
    real, noise = ring(1024, g), torch.randn(1024, 2, generator=g) * 0.6
    d = nn.Sequential(nn.Linear(2, 64), nn.LeakyReLU(0.2), nn.Linear(64, 64), nn.LeakyReLU(0.2), nn.Linear(64, 1))
    loader = DataLoader(TensorDataset(real[:768], noise[:768]), 64, shuffle=True, generator=torch.Generator().manual_seed(4))
    criterion = nn.BCEWithLogitsLoss()

    def step(netd, batch):
        genuine, fake = batch
        label = torch.ones(len(genuine), 1)
        real_label = label
        if is_faulty:
            fake_label = label.fill_(0.0)
        else:
            fake_label = torch.zeros_like(label)
        return criterion(netd(genuine), real_label) + criterion(netd(fake), fake_label)

    def score(m):
        return 0.5 * ((m(real[768:]) > 0).float().mean() + (m(noise[768:]) <= 0).float().mean()).item()

    return Program(d, None, loader, torch.optim.Adam(d.parameters(), lr=1e-3, betas=(0.5, 0.999)), score, step=step)


@fault(
    "Reals and fakes go through a discriminator with BatchNorm one after the other: their difference is normalised away.",
    rules=["sorted-batches", "batchnorm-mode-gap", "mixed-examples"],
    fails=True,
    steps=300,
)
def discriminator_batchnorm_apart(is_faulty: bool) -> Program:
    g = torch.Generator().manual_seed(10)
    shift = 0.8 * torch.randn(10, generator=g)
    real, fake = torch.randn(1024, 10, generator=g) + shift, torch.randn(1024, 10, generator=g) - shift
    d = nn.Sequential(
        nn.Linear(10, 48), nn.BatchNorm1d(48), nn.LeakyReLU(0.2), nn.Linear(48, 48), nn.BatchNorm1d(48), nn.LeakyReLU(0.2), nn.Linear(48, 1)
    )
    batches = [(real[i : i + 64], fake[i : i + 64]) for i in range(0, 768, 64)]

    def step(model, batch):
        r, f = batch
        if is_faulty:
            on_real, on_fake = model(r), model(f)
        else:
            on_real, on_fake = model(torch.cat([r, f])).chunk(2)
        return F.softplus(-on_real).mean() + F.softplus(on_fake).mean()

    def score(m):
        return 0.5 * ((m(real[768:]) > 0).float().mean() + (m(fake[768:]) <= 0).float().mean()).item()

    return Program(d, None, batches, torch.optim.Adam(d.parameters(), lr=1e-3), score, step=step)


class VAE(nn.Module):
    def __init__(self, dim=16, latent=4, hidden=64):
        super().__init__()
        self.enc = nn.Sequential(nn.Linear(dim, hidden), nn.ReLU(), nn.Linear(hidden, 2 * latent))
        self.dec = nn.Sequential(nn.Linear(latent, hidden), nn.ReLU(), nn.Linear(hidden, dim))

    def forward(self, x):
        mu, logvar = self.enc(x).chunk(2, -1)
        z = mu + torch.randn_like(mu) * (0.5 * logvar).exp() if self.training else mu
        return self.dec(z), mu, logvar


def manifold(n, seed, latent=3, dim=16):
    g = torch.Generator().manual_seed(seed)
    mix = torch.randn(latent, dim, generator=g) / latent**0.5
    return torch.tanh(torch.randn(n, latent, generator=g) @ mix) * 1.5 + 0.05 * torch.randn(n, dim, generator=g)


@fault(
    "The reconstruction error is a mean over everything, the KL divergence a sum over the batch.",
    rules=["term-dominates", "summed-loss"],
    fails=True,
    steps=400,
)
def vae_kl_summed(is_faulty: bool) -> Program:
    x = manifold(2048, 1)
    model = VAE()
    batches = list(x[:1536].split(64))

    def step(vae, batch):
        out, mu, logvar = vae(batch)
        reconstruction = F.mse_loss(out, batch)
        kl = -0.5 * (1 + logvar - mu.pow(2) - logvar.exp())
        kl = kl.sum() if is_faulty else kl.sum(1).mean()
        return reconstruction + 0.01 * kl

    return Program(
        model, None, batches, torch.optim.Adam(model.parameters(), lr=2e-3), lambda m: r2(m(x[1536:])[0], x[1536:]), step=step
    )


@sound("An ELBO summed over features, so that it is in the tens.", steps=500, least=0.7)
def vae_elbo() -> Program:
    x = manifold(2048, 2)
    model = VAE()
    loader = DataLoader(TensorDataset(x[:1536]), 64, shuffle=True, generator=torch.Generator().manual_seed(4))

    def step(vae, batch):
        (v,) = batch
        out, mu, logvar = vae(v)
        nll = 0.5 * ((out - v) / 0.2).pow(2).sum(1)
        kl = -0.5 * (1 + logvar - mu.pow(2) - logvar.exp()).sum(1)
        return (nll + kl).mean()

    return Program(
        model, None, loader, torch.optim.Adam(model.parameters(), lr=2e-3), lambda m: r2(m(x[1536:])[0], x[1536:]), step=step
    )


@sound("A critic without bound whose loss is negative, with Adam's first beta at 0 and a gradient penalty.", steps=300, least=0.8)
def wgan_gp_critic() -> Program:
    g = torch.Generator().manual_seed(3)
    real, fake = ring(1024, g), torch.randn(1024, 2, generator=g) * 0.5
    critic = nn.Sequential(nn.Linear(2, 64), nn.LeakyReLU(0.2), nn.Linear(64, 64), nn.LeakyReLU(0.2), nn.Linear(64, 1))
    loader = DataLoader(TensorDataset(real[:768], fake[:768]), 64, shuffle=True, generator=torch.Generator().manual_seed(0))

    def step(model, batch):
        r, f = batch
        eps = torch.rand(len(r), 1)
        mid = (eps * r + (1 - eps) * f).requires_grad_()
        (slope,) = torch.autograd.grad(model(mid).sum(), mid, create_graph=True)
        return model(f).mean() - model(r).mean() + 10 * (slope.norm(2, dim=1) - 1).pow(2).mean()

    def score(m):
        a, b = m(real[768:]), m(fake[768:])
        return (a > b.T).float().mean().item()

    return Program(critic, None, loader, torch.optim.Adam(critic.parameters(), lr=1e-3, betas=(0.0, 0.9)), score, step=step)


class Denoiser(nn.Module):
    def __init__(self, scale=1000.0):
        super().__init__()
        self.scale = scale
        self.net = nn.Sequential(nn.Linear(3, 96), nn.SiLU(), nn.Linear(96, 96), nn.SiLU(), nn.Linear(96, 2))

    def forward(self, x, t):
        return self.net(torch.cat([x, t.float()[:, None] / self.scale], 1))


def noised(x, t, eps):
    keep = torch.cos(t.float() / 1000 * math.pi / 2)[:, None]
    return keep * x + (1 - keep**2).sqrt() * eps


def denoising_step(model, batch):
    (x,) = batch
    t = torch.randint(1, 1000, (len(x),))
    eps = torch.randn_like(x)
    return F.mse_loss(model(noised(x, t, eps), t), eps)


def denoising_score(x):
    g = torch.Generator().manual_seed(77)
    t, eps = torch.randint(300, 1000, (len(x),), generator=g), torch.randn(len(x), 2, generator=g)
    return lambda m: max(0.0, r2(m(noised(x, t, eps), t), eps))


@fault(
    "The time step of a diffusion model, 1 to 999, goes into the network next to coordinates of size 1.",
    rules=["unscaled-input", "ill-conditioned-input"],
    fails=False,
    steps=500,
)
def diffusion_raw_timestep(is_faulty: bool) -> Program:
    x = ring(2048, torch.Generator().manual_seed(6))
    model = Denoiser(1.0 if is_faulty else 1000.0)
    loader = DataLoader(TensorDataset(x[:1536]), 128, shuffle=True, generator=torch.Generator().manual_seed(0))
    return Program(
        model, None, loader, torch.optim.Adam(model.parameters(), lr=2e-3), denoising_score(x[1536:]), step=denoising_step
    )


@sound("The loss of a diffusion model is noisy and levels off far above 0.", steps=600, least=0.6, trained=300)
def diffusion_half_trained() -> Program:
    x = ring(2048, torch.Generator().manual_seed(7))
    model = Denoiser()
    loader = DataLoader(TensorDataset(x[:1536]), 128, shuffle=True, generator=torch.Generator().manual_seed(0))
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    return Program(
        model,
        None,
        loader,
        optimizer,
        denoising_score(x[1536:]),
        scheduler=torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 600),
        step=denoising_step,
    )


class Coupling(nn.Module):
    def __init__(self, flip):
        super().__init__()
        self.flip = flip
        self.net = nn.Sequential(nn.Linear(1, 32), nn.Tanh(), nn.Linear(32, 2))
        nn.init.zeros_(self.net[-1].weight)
        nn.init.zeros_(self.net[-1].bias)

    def forward(self, x):
        a, b = x.flip(1).split(1, 1) if self.flip else x.split(1, 1)
        s, t = self.net(a).split(1, 1)
        s = torch.tanh(s) * 2
        b = b * s.exp() + t
        return torch.cat([b, a] if self.flip else [a, b], 1), s.squeeze(1)


class Flow(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(Coupling(bool(i % 2)) for i in range(6))

    def forward(self, x):
        total = 0.0
        for layer in self.layers:
            x, s = layer(x)
            total = total + s
        return -0.5 * (x.pow(2) + math.log(2 * math.pi)).sum(1) + total


@sound("A flow whose nets start at 0 (the identity), and whose loss goes below 0.", steps=500, least=0.7)
def flow_from_identity() -> Program:
    g = torch.Generator().manual_seed(4)
    a = 0.5 * torch.randn(2048, 1, generator=g)
    x = torch.cat([a, 2 * a**2 - 0.5 + 0.08 * torch.randn(2048, 1, generator=g)], 1)
    model = Flow()
    batches = list(x[:1536].split(128))

    def score(m):  # the mean log-likelihood, between that of a Gaussian (about -1.5) and the truth's (about 0.4)
        return (m(x[1536:]).mean().item() + 1.5) / 1.9

    return Program(
        model,
        None,
        batches,
        torch.optim.Adam(model.parameters(), lr=3e-3),
        score,
        step=lambda model, batch: -model(batch).mean(),
    )


class Energy(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(2, 64), nn.SiLU(), nn.Linear(64, 64), nn.SiLU(), nn.Linear(64, 1))

    def forward(self, x):
        return self.net(x).squeeze(-1)


@sound("Only the gradient of the energy counts: the last bias gets no gradient at all.", steps=500, least=0.6)
def energy_score_matching() -> Program:
    x = ring(2048, torch.Generator().manual_seed(12))
    model = Energy()
    batches = list(x[:1536].split(128))
    sigma = 0.4

    def step(model, batch):
        eps = torch.randn_like(batch)
        y = (batch + sigma * eps).requires_grad_()
        (slope,) = torch.autograd.grad(model(y).sum(), y, create_graph=True)
        return (slope * sigma - eps).pow(2).sum(1).mean()

    def score(m):  # denoised points lie on the ring
        y = x[1536:] + sigma * torch.randn(512, 2, generator=torch.Generator().manual_seed(1))
        with torch.enable_grad():
            y.requires_grad_()
            (slope,) = torch.autograd.grad(m(y).sum(), y)
        clean = y.detach() - sigma**2 * slope
        return 1 - ((clean.norm(dim=1) - 1.5).abs().mean() / (y.detach().norm(dim=1) - 1.5).abs().mean()).item()

    return Program(model, None, batches, torch.optim.Adam(model.parameters(), lr=2e-3), score, step=step)


class VQ(nn.Module):
    def __init__(self, dim=12, codes=16):
        super().__init__()
        self.enc = nn.Sequential(nn.Linear(dim, 48), nn.ReLU(), nn.Linear(48, 6))
        self.codebook = nn.Embedding(codes, 6)
        self.dec = nn.Sequential(nn.Linear(6, 48), nn.ReLU(), nn.Linear(48, dim))

    def forward(self, x):
        z = self.enc(x)
        index = torch.cdist(z.detach(), self.codebook.weight.detach()).argmin(1)
        q = self.codebook(index)
        return self.dec(z + (q - z).detach()), z, q


@sound("A codebook of which few entries are used, and a straight-through gradient.", steps=500, least=0.7)
def vq_autoencoder() -> Program:
    g = torch.Generator().manual_seed(9)
    centres = torch.randn(8, 12, generator=g)
    kind = torch.randint(8, (2048,), generator=g)
    x = centres[kind] + 0.1 * torch.randn(2048, 12, generator=g)
    model = VQ()
    batches = list(x[:1536].split(64))

    def step(model, batch):
        out, z, q = model(batch)
        return F.mse_loss(out, batch) + F.mse_loss(q, z.detach()) + 0.25 * F.mse_loss(z, q.detach())

    return Program(
        model, None, batches, torch.optim.Adam(model.parameters(), lr=3e-3), lambda m: r2(m(x[1536:])[0], x[1536:]), step=step
    )
