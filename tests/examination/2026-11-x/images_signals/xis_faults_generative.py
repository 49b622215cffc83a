"""Faults in autoencoders, VAEs, diffusion, flows and self-supervised learning."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from program import Program, fault
from torch import nn
from xis_data import fields, loader, r2


class VAE(nn.Module):
    def __init__(self, pixels, latent=4, width=64):
        super().__init__()
        self.enc = nn.Sequential(nn.Flatten(), nn.Linear(pixels, width), nn.ReLU())
        self.mu = nn.Linear(width, latent)
        self.logvar = nn.Linear(width, latent)
        self.dec = nn.Sequential(nn.Linear(latent, width), nn.ReLU(), nn.Linear(width, pixels))

    def forward(self, x):
        h = self.enc(x)
        mu, logvar = self.mu(h), self.logvar(h)
        z = mu + torch.randn_like(mu) * (0.5 * logvar).exp() if self.training else mu
        return {"recon": self.dec(z).view_as(x), "mu": mu, "logvar": logvar}


@fault(
    "the KL term is a sum over the batch, the reconstruction a mean over pixels",
    rules=("term-dominates",),
    fails=True,
    steps=500,
)
def xis_vae_kl(is_faulty):
    x = fields(900, 8, coarse=2)
    net = VAE(64)

    def loss(out, target):
        recon = F.mse_loss(out["recon"], target)
        kl = -0.5 * (1 + out["logvar"] - out["mu"] ** 2 - out["logvar"].exp()).sum()
        return recon + (kl if is_faulty else 0.1 * kl / target.numel())

    return Program(
        net,
        loss,
        loader(x[:700], x[:700]),
        torch.optim.Adam(net.parameters(), lr=2e-3),
        lambda m: r2(m(x[700:])["recon"], x[700:]),
    )


class Eps(nn.Module):
    def __init__(self, c=24):
        super().__init__()
        self.time = nn.Sequential(nn.Linear(8, c), nn.SiLU(), nn.Linear(c, c))
        self.inp = nn.Conv2d(1, c, 3, padding=1)
        self.mid = nn.Conv2d(c, c, 3, padding=1)
        self.out = nn.Conv2d(c, 1, 3, padding=1)

    def forward(self, x, t):
        f = 2.0 ** torch.arange(4) * t[:, None]
        h = F.silu(self.inp(x) + self.time(torch.cat([f.sin(), f.cos()], 1))[:, :, None, None])
        return self.out(F.silu(self.mid(h)))


@fault(
    "the noise that is asked for is not the noise that was added, but drawn anew",
    rules=("labels-unrelated", "loss-not-decreasing"),
    fails=True,
    steps=300,
)
def xis_ddpm(is_faulty):
    x = fields(700, 8, coarse=3)
    net = Eps()

    def diffuse(x0, t, noise):
        a = torch.cos(t * math.pi / 2).view(-1, 1, 1, 1)
        s = torch.sin(t * math.pi / 2).view(-1, 1, 1, 1)
        return a * x0 + s * noise

    def step(model, batch):
        (x0,) = batch
        t = 0.05 + 0.9 * torch.rand(len(x0))
        noise = torch.randn_like(x0)
        xt = diffuse(x0, t, torch.randn_like(x0) if is_faulty else noise)
        return F.mse_loss(model(xt, t), noise)

    t_test, e_test = 0.3 + 0.6 * torch.rand(200), torch.randn(200, 1, 8, 8)
    return Program(
        net,
        None,
        loader(x[:500], batch=32),
        torch.optim.AdamW(net.parameters(), lr=2e-3),
        lambda m: r2(m(diffuse(x[500:], t_test, e_test), t_test), e_test),
        step=step,
    )


class Coupling(nn.Module):
    def __init__(self, dim, flip):
        super().__init__()
        self.half, self.flip = dim // 2, flip
        self.net = nn.Sequential(nn.Linear(dim // 2, 48), nn.ReLU(), nn.Linear(48, dim))

    def forward(self, x):
        a, b = x.chunk(2, 1)
        if self.flip:
            a, b = b, a
        s, t = self.net(a).chunk(2, 1)
        b = b * torch.exp(s) + t
        return torch.cat([b, a] if self.flip else [a, b], 1), s.sum(1)


class RealNVP(nn.Module):
    def __init__(self, dim=8, layers=4):
        super().__init__()
        self.couplings = nn.ModuleList(Coupling(dim, i % 2 == 1) for i in range(layers))

    def forward(self, x):
        log_det = torch.zeros(len(x))
        for coupling in self.couplings:
            x, d = coupling(x)
            log_det = log_det + d
        return x, log_det


@fault(
    "a flow with unbounded scales at a learning rate of 0.1",
    rules=("learning-rate-too-high", "non-finite", "diverging"),
    fails=True,
    steps=400,
)
def xis_flow_rate(is_faulty):
    n, dim = 2000, 8
    z = torch.randn(n, dim)
    x = z.clone()
    x[:, 4:] = 0.5 * z[:, 4:] + 1.2 * torch.tanh(z[:, :4])  # windows of a signal, whose second half hangs on the first
    const = 0.5 * math.log(2 * math.pi) * dim
    best = (0.5 * z**2).sum(1).mean().item() + const + 4 * math.log(0.5)
    alone = (0.5 * (math.log(2 * math.pi) + 1) + x.std(0).log()).sum().item()
    net = RealNVP(dim)

    def nll(out, _):
        z, log_det = out
        return (0.5 * z.pow(2).sum(1) - log_det).mean() + const

    def score(m):
        return max(-1.0, 1 - (nll(m(x[1600:]), None).item() - best) / (alone - best))

    return Program(
        net,
        nll,
        loader(x[:1600], torch.zeros(1600), batch=64),
        torch.optim.Adam(net.parameters(), lr=0.1 if is_faulty else 2e-3),
        score,
    )


class MaskedConv2d(nn.Conv2d):
    def __init__(self, kind, *args, **kwargs):
        super().__init__(*args, **kwargs)
        h, w = self.kernel_size
        mask = torch.ones(h, w)
        mask[h // 2, w // 2 + (kind == "B") :] = 0
        mask[h // 2 + 1 :] = 0
        self.register_buffer("mask", mask)

    def forward(self, x):
        return F.conv2d(x, self.weight * self.mask, self.bias, padding=self.padding)


@fault(
    "the first layer of a PixelCNN has the mask of the later ones, and sees the pixel that is asked for",
    rules=("future-seen",),
    layers=("0",),
    fails=True,
    steps=300,
)
def xis_pixelcnn(is_faulty):
    n, size = 800, 8
    rows = torch.randint(2, (n, size, 1)).float()
    flips = (torch.rand(n, size, size) < 0.12).float()
    x = ((rows + flips.cumsum(2)) % 2).unsqueeze(1)  # runs of black and white in every row
    net = nn.Sequential(
        MaskedConv2d("B" if is_faulty else "A", 1, 16, 5, padding=2),
        nn.ReLU(),
        MaskedConv2d("B", 16, 16, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 1, 1),
    )

    def score(m):
        right = []
        for r, c in ((1, 3), (3, 5), (4, 2), (5, 6), (6, 4), (7, 7)):
            known = x[600:].clone()
            known[:, :, r, c:] = 0
            known[:, :, r + 1 :] = 0
            right.append(((m(known)[:, 0, r, c] > 0) == x[600:, 0, r, c].bool()).float().mean().item())
        return sum(right) / len(right)

    return Program(
        net,
        nn.BCEWithLogitsLoss(),
        loader(x[:600], x[:600]),
        torch.optim.Adam(net.parameters(), lr=3e-3),
        score,
    )
