"""Generative models with nothing wrong."""
import math

import torch
import torch.nn.functional as F
from torch import nn

from osr_base import accuracy, digits, gen, loader, mlp, r2
from osr_gen import VAE, Codes, Coupling, Denoiser, Flow, Made, Translator, frozen, noise_score, noise_step, pairs, rings
from program import Program, sound


@sound("VAE with summed pixels and latents, averaged over the batch", steps=400, least=0.6)
def osr_ok_vae():
    x, _, xt, _ = digits()
    model = VAE()

    def step(m, b):
        out, mu, logvar = m(b[0])
        kl = -0.5 * (1 + logvar - mu.pow(2) - logvar.exp()).sum(1).mean()
        return 10 * (out - b[0]).pow(2).sum(1).mean() + kl

    return Program(model, None, loader(x), torch.optim.Adam(model.parameters(), 3e-3), lambda m: r2(m(xt)[0], xt), step=step)


@sound("VAE whose KL is annealed from zero over the steps, with Bernoulli pixels", steps=500, least=0.6)
def osr_ok_vae_annealed():
    x, _, xt, _ = digits()
    model = VAE(z=12)
    model.register_buffer("taken", torch.tensor(0.0))

    def step(m, b):
        out, mu, logvar = m(b[0])
        weight = (m.taken / 300).clamp(max=1).item() * 0.3
        m.taken += 1
        kl = -0.5 * (1 + logvar - mu.pow(2) - logvar.exp()).sum(1).mean()
        return F.binary_cross_entropy_with_logits(out, b[0], reduction="none").sum(1).mean() + weight * kl

    return Program(model, None, loader(x), torch.optim.Adam(model.parameters(), 3e-3),
                   lambda m: r2(torch.sigmoid(m(xt)[0]), xt), step=step)


@sound("discrete codes with straight-through gradients", steps=600, least=0.6)
def osr_ok_codes():
    x, _, xt, _ = digits()
    x, xt = x - x.mean(0), xt - x.mean(0)
    model = Codes(True)
    return Program(model, None, loader(x), torch.optim.Adam(model.parameters(), 4e-3), lambda m: r2(m(xt), xt),
                   step=lambda m, b: (m(b[0]) - b[0]).pow(2).sum(1).mean())


class Quantized(nn.Module):
    """VQ-VAE whose codebook is an average of codes, not a parameter."""

    def __init__(self, k=32, groups=4, d=4):
        super().__init__()
        self.groups, self.d = groups, d
        self.encoder, self.decoder = mlp(64, 96, groups * d), mlp(groups * d, 96, 64)
        self.register_buffer("book", torch.randn(k, d) * 0.5)
        self.register_buffer("count", torch.ones(k))
        self.register_buffer("total", self.book.clone())

    def forward(self, x):
        z = self.encoder(x).view(-1, self.d)
        near = torch.cdist(z.detach(), self.book).argmin(1)
        q = self.book[near]
        if self.training:
            with torch.no_grad():
                hot = F.one_hot(near, len(self.book)).float()
                self.count.lerp_(hot.sum(0), 0.05)
                self.total.lerp_(hot.T @ z, 0.05)
                self.book.copy_(self.total / (self.count + 1e-3)[:, None])
        commitment = F.mse_loss(z, q)
        return self.decoder((z + (q - z).detach()).view(len(x), -1)), commitment


@sound("VQ-VAE with a codebook of moving averages", steps=600, least=0.6)
def osr_ok_vq():
    x, _, xt, _ = digits()
    model = Quantized()

    def step(m, b):
        out, commitment = m(b[0])
        return F.mse_loss(out, b[0]) * 10 + 0.25 * commitment

    return Program(model, None, loader(x), torch.optim.Adam(model.parameters(), 3e-3), lambda m: r2(m(xt)[0], xt), step=step)


@sound("MADE, masks on weights", steps=500, least=0.7)
def osr_ok_made():
    g = gen(141)
    d = 10
    x = (torch.rand(2500, d, generator=g) < 0.5).float()
    for i in range(2, d, 2):
        x[:, i] = torch.maximum(x[:, i - 1], x[:, i - 2])
    for i in range(5, d, 2):
        x[:, i] = 1 - x[:, i - 4]
    model = Made(d, 180, True)

    def score(m):
        t = x[2000:]
        p = (m(t) > 0) == (t > 0.5)
        return 2 * p[:, [2, 4, 5, 6, 7, 8, 9]].float().mean().item() - 1

    return Program(model, None, loader(x[:2000]), torch.optim.Adam(model.parameters(), 1e-2), score,
                   step=lambda m, b: F.binary_cross_entropy_with_logits(m(b[0]), b[0], reduction="none").sum(1).mean())


@sound("RealNVP whose couplings start as the identity", steps=400, least=0.7)
def osr_ok_flow():
    g = gen(142)
    u = torch.randn(2500, 4, generator=g)
    x = torch.stack([u[:, 0], u[:, 1] + u[:, 0] ** 2 - 1, u[:, 2], torch.sin(2 * u[:, 2]) + 0.3 * u[:, 3]], 1)
    reference = torch.distributions.MultivariateNormal(x[:2000].mean(0), x[:2000].T.cov()).log_prob(x[2000:]).mean()
    model = Flow(4, n=6)
    for part in model.parts:
        nn.init.zeros_(part.net[-1].weight)
        nn.init.zeros_(part.net[-1].bias)

    def score(m):
        return max(0.0, min(1.0, 0.4 + (m(x[2000:]).mean() - reference).item()))

    return Program(model, None, loader(x[:2000]), torch.optim.Adam(model.parameters(), 3e-3), score, step=lambda m, b: -m(b[0]).mean())


@sound("diffusion with a zero last layer and sinusoidal times", steps=500, least=0.65)
def osr_ok_diffusion():
    x = rings(143)

    class Net(Denoiser):
        def __init__(self):
            super().__init__()
            self.net = mlp(18, 96, 96, 2, act=nn.SiLU)
            nn.init.zeros_(self.net[-1].weight)
            nn.init.zeros_(self.net[-1].bias)

        def forward(self, z, t):
            f = t[:, None].float() * torch.exp(-math.log(1000.0) * torch.arange(8) / 8)
            return self.net(torch.cat([z, f.sin(), f.cos()], 1))

    model = Net()
    return Program(model, None, loader(x[:2000], n=128), torch.optim.AdamW(model.parameters(), 3e-3), noise_score(x[2000:]), step=noise_step)


@sound("diffusion, half trained, whose loss stays well above zero", trained=300, steps=500, least=0.65)
def osr_ok_diffusion_half():
    x = rings(144)
    model = Denoiser()
    optimizer = torch.optim.Adam(model.parameters(), 4e-3)
    return Program(model, None, loader(x[:2000], n=128), optimizer, noise_score(x[2000:]),
                   scheduler=torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 500), step=noise_step)


class Velocity(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = mlp(3, 96, 96, 2, act=nn.SiLU)

    def forward(self, z, t):
        return self.net(torch.cat([z, t], 1))


@sound("flow matching: targets are noisy, and the loss levels out high", steps=500, least=0.6)
def osr_ok_matching():
    x = rings(145) * 2
    model = Velocity()

    def step(m, b):
        x1 = b[0]
        x0, t = torch.randn_like(x1), torch.rand(len(x1), 1)
        return F.mse_loss(m((1 - t) * x0 + t * x1, t), x1 - x0)

    def score(m):
        z = torch.randn(500, 2, generator=gen(8))
        for i in range(20):
            z = z + m(z, torch.full((500, 1), i / 20)) / 20
        return max(0.0, 1 - (z.norm(dim=1) - 2.8).abs().mean().item() / 1.2)

    return Program(model, None, loader(x[:2000], n=128), torch.optim.Adam(model.parameters(), 4e-3), score, step=step)


@sound("conditional GAN: discriminator on detached samples, generator through a frozen discriminator", steps=500, least=0.8)
def osr_ok_gan():
    x, y = pairs(146)
    model = Translator()
    bce = nn.BCEWithLogitsLoss()

    def step(m, b):
        s, real = b
        fake = m.generator(s)
        one, zero = torch.ones(len(s), 1), torch.zeros(len(s), 1)
        d = bce(m.discriminator(torch.cat([s, real], 1)), one) + bce(m.discriminator(torch.cat([s, fake.detach()], 1)), zero)
        return d + 0.05 * bce(frozen(m.discriminator, torch.cat([s, fake], 1)), one) + 5 * F.l1_loss(fake, real)

    return Program(model, None, loader(x[:2000], y[:2000]), torch.optim.Adam(model.parameters(), 2e-3, betas=(0.5, 0.999)),
                   lambda m: r2(m(x[2000:]), y[2000:]), step=step)


@sound("Wasserstein critic of a fixed generator, with a gradient penalty: its loss is negative, betas (0, 0.9)", steps=400, least=0.7)
def osr_ok_wgan_critic():
    g = gen(147)
    real = rings(148)

    class Critic(nn.Module):
        def __init__(self):
            super().__init__()
            self.generator = mlp(4, 16, 2).requires_grad_(False)
            self.critic = mlp(2, 64, 64, 1, act=lambda: nn.LeakyReLU(0.2))

        def forward(self, z):
            return self.critic(z)

    model = Critic()

    def step(m, b):
        x = b[0]
        fake = m.generator(torch.randn(len(x), 4))
        w = torch.rand(len(x), 1)
        mid = (w * x + (1 - w) * fake).requires_grad_()
        slope = torch.autograd.grad(m(mid).sum(), mid, create_graph=True)[0]
        return m(fake).mean() - m(x).mean() + 10 * (slope.norm(dim=1) - 1).pow(2).mean()

    noise = torch.randn(500, 4, generator=g)

    def score(m):
        a, b = m(real[2000:])[:, 0], m(m.generator(noise))[:, 0]
        return (a[:, None] > b[None]).float().mean().item()

    return Program(model, None, loader(real[:2000]), torch.optim.Adam(model.critic.parameters(), 1e-3, betas=(0.0, 0.9)), score, step=step)


@sound("denoising score matching of an energy, through second derivatives", steps=500, least=0.75)
def osr_ok_energy():
    x = rings(149)
    model = mlp(2, 96, 96, 1, act=nn.SiLU)

    def slope(m, z):
        with torch.enable_grad():
            z = z.detach().requires_grad_()
            return -torch.autograd.grad(m(z).sum(), z, create_graph=True)[0]

    def step(m, b):
        e = torch.randn_like(b[0])
        return (slope(m, b[0] + 0.5 * e) * 0.5 + e).pow(2).sum(1).mean()

    def score(m):
        z = x[2000:] + 0.5 * torch.randn(500, 2, generator=gen(4))
        k = torch.arange(8) * math.pi / 4
        c = torch.stack([k.cos(), k.sin()], 1) * 1.4
        w = (-((z[:, None] - c) ** 2).sum(2) / 0.52).softmax(1)
        return max(0.0, r2(slope(m, z), (w @ c - z) / 0.26))

    return Program(model, None, loader(x[:2000], n=128), torch.optim.Adam(model.parameters(), 3e-3), score, step=step)


@sound("noise-contrastive energy with a learned constant", steps=400, least=0.7)
def osr_ok_nce():
    x = rings(150)

    class Energy(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = mlp(2, 64, 64, 1, act=nn.Softplus)
            self.constant = nn.Parameter(torch.zeros(()))

        def forward(self, z):
            return self.net(z)[:, 0] + self.constant

    model = Energy()
    normal = torch.distributions.Normal(0.0, 3.0)

    def step(m, b):
        y = torch.randn_like(b[0]) * 3
        pos = -m(b[0]) - normal.log_prob(b[0]).sum(1)
        neg = -m(y) - normal.log_prob(y).sum(1)
        return F.softplus(-pos).mean() + F.softplus(neg).mean()

    def score(m):
        y = torch.randn(500, 2, generator=gen(6)) * 3
        return (m(x[2000:])[:, None] < m(y)[None]).float().mean().item()

    return Program(model, None, loader(x[:2000]), torch.optim.Adam(model.parameters(), 5e-3), score, step=step)


@sound("mixture density network with ordinary initialisation", steps=500, least=0.7)
def osr_ok_mdn():
    g = gen(151)
    x = torch.rand(2500, 1, generator=g) * 4 - 2
    sign = (torch.rand(2500, 1, generator=g) < 0.5).float() * 2 - 1
    y = sign * (1.5 + torch.sin(2 * x)) + 0.1 * torch.randn(2500, 1, generator=g)
    model = mlp(1, 64, 64, 12, act=nn.Tanh)

    def likelihood(m, u, v):
        w, mu, s = m(u).chunk(3, 1)
        return torch.logsumexp(w.log_softmax(1) + torch.distributions.Normal(mu, F.softplus(s) + 0.02).log_prob(v), 1).mean()

    flat = torch.distributions.Normal(0.0, y.std()).log_prob(y[2000:]).mean()
    return Program(model, None, loader(x[:2000], y[:2000], n=128), torch.optim.Adam(model.parameters(), 4e-3),
                   lambda m: 1 - math.exp(min(0.0, float(flat - likelihood(m, x[2000:], y[2000:])))),
                   step=lambda m, b: -likelihood(m, *b))
