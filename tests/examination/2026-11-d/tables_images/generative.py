"""Autoencoders, GANs, diffusion and energies with one mistake each."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from program import Program, fault
from torch import nn

from data import digits, loader, moons, rng


class VAE(nn.Module):
    def __init__(self, latent=8):
        super().__init__()
        self.enc = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU())
        self.mu, self.logvar = nn.Linear(64, latent), nn.Linear(64, latent)
        self.dec = nn.Sequential(nn.Linear(latent, 64), nn.ReLU(), nn.Linear(64, 64))

    def forward(self, x):
        h = self.enc(x)
        mu, logvar = self.mu(h), self.logvar(h)
        z = mu + torch.randn_like(mu) * (0.5 * logvar).exp() if self.training else mu
        return self.dec(z), mu, logvar


def rebuilt(x):
    flat = x.flatten(1)

    def score(model):
        out = model(x)
        out = out[0] if isinstance(out, tuple) else out
        return max(0.0, 1 - ((out - flat).square().mean() / (flat - flat.mean(0)).square().mean()).item())

    return score


@fault(
    "The reconstruction is a mean over pixels and pictures, the divergence a sum over both: the code carries nothing.",
    rules=["term-dominates", "summed-loss"],
    fails=True,
    steps=500,
)
def divergence_summed(is_faulty):
    x, _, tx, _ = digits()

    def step(model, batch):
        out, mu, logvar = model(batch[0])
        kl = -0.5 * (1 + logvar - mu.square() - logvar.exp())
        fit = F.mse_loss(out, batch[0].flatten(1))
        return fit + 0.01 * (kl.sum() if is_faulty else kl.mean())

    net = VAE()
    return Program(net, None, loader(x), torch.optim.Adam(net.parameters(), 3e-3), rebuilt(tx), step=step)


@fault(
    "The generator's loss is taken of fake.detach(), copied from the line of the discriminator.",
    rules=["no-gradient", "lost-updates"],
    fails=True,
    steps=600,
)
def generator_detached(is_faulty):
    real = 0.5 * torch.randn(2048, 2, generator=rng(1)) + torch.tensor([1.5, -1.0])

    class G(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 2))

        def forward(self, z):
            return self.net(z)

    gen = G()
    disc = nn.Sequential(nn.Linear(2, 32), nn.LeakyReLU(0.2), nn.Linear(32, 1))
    opt_d = torch.optim.Adam(disc.parameters(), 2e-3, betas=(0.5, 0.99))

    def step(gen, batch):
        x = batch[0]
        fake = gen(torch.randn(len(x), 4))
        with torch.enable_grad():
            d_loss = F.softplus(-disc(x)).mean() + F.softplus(disc(fake.detach())).mean()
            grads = torch.autograd.grad(d_loss, list(disc.parameters()))
        for p, g in zip(disc.parameters(), grads, strict=True):
            p.grad = g
        opt_d.step()
        for p in disc.parameters():
            p.grad = None
        return F.softplus(-disc(fake.detach() if is_faulty else fake)).mean()

    def score(gen):
        fake = gen(torch.randn(1000, 4, generator=rng(7)))
        off = (fake.mean(0) - real.mean(0)).norm() + (fake.std(0) - real.std(0)).norm()
        return max(0.0, 1 - off.item() / 3)

    return Program(
        gen, None, loader(real, batch=64), torch.optim.Adam(gen.parameters(), 2e-3, betas=(0.5, 0.99)), score, step=step
    )


class Denoiser(nn.Module):
    def __init__(self, scale_time=True):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(3, 96), nn.SiLU(), nn.Linear(96, 96), nn.SiLU(), nn.Linear(96, 2))
        self.scale = 1000.0 if scale_time else 1.0

    def forward(self, x, t):
        return self.net(torch.cat([x, t[:, None].float() / self.scale], 1))


ALPHA = torch.cumprod(1 - torch.linspace(1e-4, 0.02, 1000), 0)


def noised(x, t, noise):
    a = ALPHA[t][:, None]
    return a.sqrt() * x + (1 - a).sqrt() * noise


def noise_found(n=600):
    x, g = moons(n, seed=4), rng(9)
    t = torch.randint(150, 1000, (n,), generator=g)
    noise = torch.randn(n, 2, generator=g)

    def score(model):
        out = model(noised(x, t, noise), t)
        return max(0.0, 1 - (out - noise).square().mean().item())

    return score


@fault(
    "The noise of the target is drawn anew: it is not the noise that was added.",
    rules=["labels-unrelated", "loss-not-decreasing"],
    fails=True,
    steps=500,
)
def noise_drawn_twice(is_faulty):
    def step(model, batch):
        x = batch[0]
        t = torch.randint(0, 1000, (len(x),))
        noise = torch.randn_like(x)
        out = model(noised(x, t, noise), t)
        return F.mse_loss(out, torch.randn_like(x) if is_faulty else noise)

    net = Denoiser()
    return Program(
        net, None, loader(moons(), batch=64), torch.optim.Adam(net.parameters(), 3e-3), noise_found(), step=step
    )


@fault(
    "The time step of the diffusion goes into the network as a number up to 999, next to coordinates around 1.",
    rules=["unscaled-input", "ill-conditioned-input"],
    fails=True,
    steps=300,
)
def raw_time_step(is_faulty):
    x = moons()
    g = rng(3)
    x = x.repeat(2, 1)
    t = torch.randint(0, 1000, (len(x),), generator=g)
    noise = torch.randn(len(x), 2, generator=g)
    seen = noised(x, t, noise)
    scale = 1.0 if is_faulty else 1000.0
    inputs = torch.cat([seen, t[:, None] / scale], 1)
    net = nn.Sequential(nn.Linear(3, 64), nn.SiLU(), nn.Linear(64, 64), nn.SiLU(), nn.Linear(64, 2))
    tt = torch.randint(150, 1000, (600,), generator=g)
    tn = torch.randn(600, 2, generator=g)
    test = torch.cat([noised(moons(600, seed=4), tt, tn), tt[:, None] / scale], 1)

    def score(model):
        return max(0.0, 1 - (model(test) - tn).square().mean().item())

    opt = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    return Program(net, nn.MSELoss(), loader(inputs, noise, batch=64), opt, score)


@fault(
    "The decoder of an autoencoder ends in a sigmoid while the pictures were standardized to mean 0.",
    rules=["output-loss-mismatch", "unscaled-target", "saturated-output"],
    fails=True,
    steps=500,
)
def sigmoid_for_standardized(is_faulty):
    x, _, tx, _ = digits()
    mean, std = x.mean(), x.std()
    x, tx = ((v - mean) / std * 2 for v in (x, tx))
    net = nn.Sequential(
        nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 16), nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 64)
    )
    if is_faulty:
        net.append(nn.Sigmoid())
    return Program(
        net,
        lambda o, t: F.mse_loss(o, t.flatten(1)),
        loader(x, x),
        torch.optim.Adam(net.parameters(), 3e-3),
        rebuilt(tx),
    )


@fault(
    "An autoencoder's encoder output passes a LayerNorm over one number per example: a bottleneck of width 1 per group is zero.",
    rules=["rank-collapse", "constant-feature", "no-gradient", "vanishing-gradient"],
    layers=["squeeze"],
    fails=True,
    steps=400,
)
def normalized_bottleneck(is_faulty):
    class Auto(nn.Module):
        def __init__(self):
            super().__init__()
            self.encode = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
            self.squeeze = nn.GroupNorm(10, 10) if is_faulty else nn.GroupNorm(1, 10)
            self.decode = nn.Sequential(nn.Linear(10, 64), nn.ReLU(), nn.Linear(64, 64))

        def forward(self, x):
            z = self.encode(x)
            return self.decode(self.squeeze(z[..., None])[..., 0])

    x, _, tx, _ = digits()
    net = Auto()
    return Program(
        net,
        lambda o, t: F.mse_loss(o, t.flatten(1)),
        loader(x, x),
        torch.optim.Adam(net.parameters(), 5e-3),
        rebuilt(tx),
    )


@fault(
    "A binary code is made with torch.sign, whose gradient is zero, and no straight-through estimate.",
    rules=["no-gradient", "vanishing-gradient", "lost-updates"],
    layers=["hash"],
    fails=False,
    steps=600,
)
def sign_stops_the_gradient(is_faulty):
    class Hash(nn.Module):
        def __init__(self):
            super().__init__()
            self.hash = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 24))
            self.read = nn.Sequential(nn.Linear(24, 64), nn.ReLU(), nn.Linear(64, 64))

        def forward(self, x):
            z = self.hash(x)
            code = torch.sign(z)
            if not is_faulty:
                code = torch.tanh(z) + (code - torch.tanh(z)).detach()
            return self.read(code)

    x, _, tx, _ = digits()
    net = Hash()
    return Program(
        net,
        lambda o, t: F.mse_loss(o, t.flatten(1)),
        loader(x, x),
        torch.optim.Adam(net.parameters(), 3e-3),
        rebuilt(tx),
    )
