"""Faults in autoencoders, diffusion and the like."""

import math

import torch
from torch import nn
from torch.nn import functional as F

from program import Program, fault
from wis_data import wis_blobs, wis_fit, wis_loader, wis_smooth


@fault("q_sample draws noise of its own, and the network is asked for another noise", rules=("labels-unrelated",
       "loss-not-decreasing", "output-loss-mismatch"), fails=True, steps=300)
def wis_diffusion(is_faulty):
    class Denoiser(nn.Module):
        def __init__(self):
            super().__init__()
            self.time = nn.Sequential(nn.Linear(8, 32), nn.SiLU(), nn.Linear(32, 128))
            self.first, self.second, self.last = nn.Linear(64, 128), nn.Linear(128, 128), nn.Linear(128, 64)
            self.register_buffer("waves", 2.0 ** torch.arange(4))

        def forward(self, x, t):
            angle = t[:, None] * self.waves
            h = self.first(x.flatten(1)) + self.time(torch.cat([angle.sin(), angle.cos()], 1))
            return x + self.last(F.silu(self.second(F.silu(h)))).view_as(x)

    def q_sample(x, t, noise=None):
        noise = torch.randn_like(x) if noise is None else noise
        keep = torch.cos(t * math.pi / 2)[:, None, None, None]
        return keep * x + (1 - keep**2).sqrt() * noise

    x, held = wis_smooth(768), wis_smooth(256)
    when, noise = 0.3 + 0.5 * torch.rand(256), torch.randn(256, 1, 8, 8)

    def step(model, batch):
        (x,) = batch
        t = torch.rand(len(x)) * 0.9 + 0.05
        noise = torch.randn_like(x)
        seen = q_sample(x, t) if is_faulty else q_sample(x, t, noise)
        return F.mse_loss(model(seen, t), noise)

    model = Denoiser()
    nn.init.zeros_(model.last.weight)
    return Program(model, None, wis_loader(x), torch.optim.Adam(model.parameters(), 2e-3),
                   lambda m: wis_fit(m(q_sample(held, when, noise), when), noise), step=step)


class wis_VAE(nn.Module):
    def __init__(self, pixels=64, latent=6):
        super().__init__()
        self.encoder = nn.Sequential(nn.Flatten(), nn.Linear(pixels, 64), nn.ReLU(), nn.Linear(64, 2 * latent))
        self.decoder = nn.Sequential(nn.Linear(latent, 64), nn.ReLU(), nn.Linear(64, pixels))

    def forward(self, x):
        mu, logvar = self.encoder(x).chunk(2, 1)
        z = mu + torch.randn_like(mu) * torch.exp(0.5 * logvar) if self.training else mu
        return {"image": self.decoder(z).view_as(x), "mu": mu, "logvar": logvar}


@fault("the error is a mean over pixels and the divergence a sum over latents, which outweighs it",
       rules=("term-dominates",), fails=True, steps=400)
def wis_collapsed_vae(is_faulty):
    def elbo(out, x):
        error = (out["image"] - x) ** 2
        rec = error.mean() if is_faulty else error.flatten(1).sum(1).mean()
        kl = -0.5 * (1 + out["logvar"] - out["mu"] ** 2 - out["logvar"].exp()).sum(1).mean()
        return rec + kl

    x, held = wis_smooth(768), wis_smooth(256)
    model = wis_VAE()
    return Program(model, elbo, wis_loader(x, x), torch.optim.Adam(model.parameters(), 2e-3),
                   lambda m: wis_fit(m(held)["image"], held))


@fault("images are standardised but the decoder ends in a sigmoid, which has no negative values",
       rules=("output-loss-mismatch",), fails=False, steps=400)
def wis_sigmoid_decoder(is_faulty):
    encoder = nn.Sequential(nn.Conv2d(1, 8, 3, 2, 1), nn.ReLU(), nn.Flatten(), nn.Linear(128, 8))
    decoder = nn.Sequential(nn.Linear(8, 128), nn.ReLU(), nn.Unflatten(1, (8, 4, 4)), nn.ConvTranspose2d(8, 1, 4, 2, 1))
    if is_faulty:
        decoder.append(nn.Sigmoid())
    model = nn.Sequential(encoder, decoder)
    x, held = wis_smooth(768), wis_smooth(256)
    return Program(model, nn.MSELoss(), wis_loader(x, x), torch.optim.Adam(model.parameters(), 3e-3),
                   lambda m: wis_fit(m(held), held))


@fault("a VQ autoencoder without the straight-through estimate: argmin passes nothing back to the encoder",
       rules=("no-gradient",), layers=("encoder",), fails=True, steps=400)
def wis_quantised(is_faulty):
    class VQ(nn.Module):
        def __init__(self):
            super().__init__()
            self.encoder = nn.Sequential(nn.Flatten(), nn.Linear(144, 64), nn.ReLU(), nn.Linear(64, 8))
            self.codes = nn.Parameter(torch.randn(24, 2) * 0.3)
            self.decoder = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 144))

        def forward(self, x):
            z = self.encoder(x).view(len(x), -1, 2)
            nearest = torch.cdist(z, self.codes[None].expand(len(z), -1, -1)).argmin(-1)
            q = self.codes[nearest]
            book = F.mse_loss(q, z.detach())
            if not is_faulty:
                book = book + 0.25 * F.mse_loss(z, q.detach())
                q = z + (q - z).detach()
            return self.decoder(q.flatten(1)).view_as(x), book

    def step(model, batch):
        (x,) = batch
        image, book = model(x)
        return F.mse_loss(image, x) * 10 + book

    held, _ = wis_blobs(256, noise=0.0)
    model = VQ()
    return Program(model, None, wis_loader(wis_blobs(1024, noise=0.0)[0]), torch.optim.Adam(model.parameters(), 3e-3),
                   lambda m: wis_fit(m(held)[0], held), step=step)
