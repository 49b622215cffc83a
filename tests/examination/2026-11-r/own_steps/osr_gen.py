"""Generative models, with mistakes."""
import math

import torch
import torch.nn.functional as F
from torch import nn

from osr_base import digits, gen, loader, mlp, r2
from program import Program, fault


class VAE(nn.Module):
    def __init__(self, d=64, z=8):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(d, 96), nn.ReLU())
        self.mu = nn.Linear(96, z)
        self.logvar = nn.Linear(96, z)
        self.decoder = mlp(z, 96, d)

    def forward(self, x):
        h = self.encoder(x)
        mu, logvar = self.mu(h), self.logvar(h)
        z = mu + torch.randn_like(mu) * (0.5 * logvar).exp() if self.training else mu
        return self.decoder(z), mu, logvar


@fault("mean reconstruction error against a KL summed over batch and latents", rules=["term-dominates"], layers=[], fails=False, steps=400)
def osr_vae_kl_sum(is_faulty):
    x, _, xt, _ = digits()
    model = VAE()

    def step(m, batch):
        (v,) = batch
        out, mu, logvar = m(v)
        kl = -0.5 * (1 + logvar - mu.pow(2) - logvar.exp())
        kl = kl.sum() if is_faulty else 0.02 * kl.sum(1).mean() / v.shape[1]
        return F.mse_loss(out, v) + kl

    return Program(model, None, loader(x), torch.optim.Adam(model.parameters(), 3e-3),
                   lambda m: r2(m(xt)[0], xt), step=step)


class Codes(nn.Module):
    """An autoencoder with discrete codes."""

    def __init__(self, straight, groups=6, k=8):
        super().__init__()
        self.groups, self.k, self.straight = groups, k, straight
        self.encoder = mlp(64, 96, groups * k)
        self.decoder = mlp(groups * k, 96, 64)

    def forward(self, x):
        logits = self.encoder(x).view(len(x), self.groups, self.k)
        if self.training and self.straight:
            code = F.gumbel_softmax(logits, 1.0, hard=True)
        else:
            code = F.one_hot(logits.argmax(-1), self.k).float()
        return self.decoder(code.flatten(1))


@fault("codes are the one-hot of an argmax, with no straight-through", rules=["no-gradient"], layers=["encoder"], fails=False, steps=500)
def osr_codes_argmax(is_faulty):
    x, _, xt, _ = digits()
    x, xt = x - x.mean(0), xt - x.mean(0)
    model = Codes(not is_faulty)
    return Program(model, None, loader(x), torch.optim.Adam(model.parameters(), 4e-3),
                   lambda m: r2(m(xt), xt), step=lambda m, b: (m(b[0]) - b[0]).pow(2).sum(1).mean())


class Made(nn.Module):
    def __init__(self, d, width, strict):
        super().__init__()
        self.first, self.second = nn.Linear(d, width), nn.Linear(width, d)
        order = torch.arange(d)
        hidden = torch.arange(width) % (d - 1)
        self.register_buffer("mask1", (hidden[:, None] >= order[None]).float())
        last = order[:, None] > hidden[None] if strict else order[:, None] >= hidden[None]
        self.register_buffer("mask2", last.float())

    def forward(self, x):
        h = F.relu(F.linear(x, self.first.weight * self.mask1, self.first.bias))
        return F.linear(h, self.second.weight * self.mask2, self.second.bias)


@fault("a MADE whose second mask lets every output see its own input", rules=["future-seen"], layers=[], fails=True, steps=500)
def osr_made_mask(is_faulty):
    g = gen(41)
    d = 10
    x = torch.zeros(2500, d)
    x[:, :3] = (torch.rand(2500, 3, generator=g) < 0.5).float()
    for i in range(3, d):
        x[:, i] = ((x[:, i - 1] + x[:, i - 3]) % 2 if i % 2 else 1 - x[:, i - 2])
        flip = torch.rand(2500, generator=g) < 0.05
        x[flip, i] = 1 - x[flip, i]
    model = Made(d, 180, not is_faulty)

    def score(m):
        t, right = x[2000:], []
        for i in range(3, d):
            seen = t.clone()
            seen[:, i:] = 0
            right.append(((m(seen)[:, i] > 0) == (t[:, i] > 0.5)).float().mean())
        return 2 * torch.stack(right).mean().item() - 1

    def step(m, b):
        return F.binary_cross_entropy_with_logits(m(b[0]), b[0])

    return Program(model, None, loader(x[:2000]), torch.optim.Adam(model.parameters(), 5e-3), score, step=step)


class Coupling(nn.Module):
    def __init__(self, d, flip, bounded):
        super().__init__()
        self.flip, self.bounded, self.half = flip, bounded, d // 2
        self.net = mlp(d // 2, 48, d - d % 2)

    def forward(self, x):
        a, b = x.chunk(2, 1)
        if self.flip:
            a, b = b, a
        s, t = self.net(a).chunk(2, 1)
        if self.bounded:
            s = torch.tanh(s)
        b = b * s.exp() + t
        return torch.cat((b, a) if self.flip else (a, b), 1), s.sum(1)


class Flow(nn.Module):
    def __init__(self, d, n=4, bounded=True, mean=None, std=None):
        super().__init__()
        self.parts = nn.ModuleList(Coupling(d, i % 2 == 1, bounded) for i in range(n))
        self.register_buffer("mean", torch.zeros(d) if mean is None else mean)
        self.register_buffer("std", torch.ones(d) if std is None else std)

    def forward(self, x):
        x = (x - self.mean) / self.std
        total = -self.std.log().sum()
        for part in self.parts:
            x, s = part(x)
            total = total + s
        return total - 0.5 * x.pow(2).sum(1) - x.shape[1] * math.log(2 * math.pi) / 2


@fault("a RealNVP with unbounded log-scales gets data in the hundreds", rules=["unscaled-input", "non-finite", "exploding-gradient", "activation-drift"], layers=[],
       fails=True, steps=400)
def osr_flow_raw(is_faulty):
    g = gen(42)
    u = torch.randn(2500, 4, generator=g)
    x = torch.stack([u[:, 0], u[:, 1] + u[:, 0] ** 2, u[:, 2], torch.sin(2 * u[:, 2]) + 0.3 * u[:, 3]], 1)
    x = x * torch.tensor([300.0, 150.0, 80.0, 500.0]) + torch.tensor([900.0, 200.0, -400.0, 1500.0])
    train, test = x[:2000], x[2000:]
    normal = torch.distributions.MultivariateNormal(train.mean(0), train.T.cov())
    reference = normal.log_prob(test).mean()
    model = Flow(4, bounded=False) if is_faulty else Flow(4, bounded=False, mean=train.mean(0), std=train.std(0))

    def score(m):
        gap = (m(test).mean() - reference).item()
        return max(0.0, min(1.0, 0.4 + gap)) if math.isfinite(gap) else 0.0

    return Program(model, None, loader(train), torch.optim.Adam(model.parameters(), 2e-3), score,
                   step=lambda m, b: -m(b[0]).mean())


def rings(seed, n=2500):
    g = gen(seed)
    k = torch.randint(8, (n,), generator=g).float() * math.pi / 4
    return torch.stack([k.cos(), k.sin()], 1) * 1.4 + 0.1 * torch.randn(n, 2, generator=g)


class Denoiser(nn.Module):
    def __init__(self, steps=1000, scaled=True, last=None, width=96):
        super().__init__()
        self.net = mlp(3, width, width, 2, act=nn.SiLU)
        if last is not None:
            self.net.append(last)
        self.scale = steps if scaled else 1
        beta = torch.linspace(1e-4, 0.02, steps)
        self.register_buffer("alpha", torch.cumprod(1 - beta, 0))

    def forward(self, x, t):
        return self.net(torch.cat([x, t[:, None].float() / self.scale], 1))


def noise_step(m, batch):
    (x,) = batch
    t = torch.randint(1000, (len(x),))
    a = m.alpha[t][:, None]
    e = torch.randn_like(x)
    return F.mse_loss(m(a.sqrt() * x + (1 - a).sqrt() * e, t), e)


def noise_score(x):
    g = gen(9)
    t = torch.randint(1000, (len(x),), generator=g)
    e = torch.randn(x.shape, generator=g)

    def score(m):
        a = m.alpha[t][:, None]
        return max(0.0, r2(m(a.sqrt() * x + (1 - a).sqrt() * e, t), e))

    return score


@fault("time of a diffusion enters as an integer up to 999", rules=["unscaled-input"], layers=[], fails=True, steps=600)
def osr_diffusion_time(is_faulty):
    x = rings(43)
    model = Denoiser(scaled=not is_faulty)
    return Program(model, None, loader(x[:2000], n=128), torch.optim.SGD(model.parameters(), 0.05, momentum=0.9), noise_score(x[2000:]),
                   step=noise_step)


@fault("noise is predicted through a ReLU", rules=["output-loss-mismatch"], layers=[], fails=False, steps=500)
def osr_diffusion_relu(is_faulty):
    x = rings(44)
    model = Denoiser(last=nn.ReLU() if is_faulty else nn.Identity())
    return Program(model, None, loader(x[:2000], n=128), torch.optim.AdamW(model.parameters(), 3e-3), noise_score(x[2000:]),
                   step=noise_step)


@fault("flow matching at a rate of 1e-6", rules=["learning-rate-too-low"], layers=[], fails=True, steps=400)
def osr_matching_rate(is_faulty):
    x = rings(45) * 2
    model = nn.ModuleDict({"time": mlp(1, 32, 32, act=nn.SiLU), "space": nn.Linear(2, 32), "out": mlp(32, 64, 64, 2, act=nn.SiLU)})

    def velocity(m, z, t):
        return m["out"](F.silu(m["space"](z) + m["time"](t)))

    def step(m, b):
        (x1,) = b
        x0, t = torch.randn_like(x1), torch.rand(len(x1), 1)
        return F.mse_loss(velocity(m, (1 - t) * x0 + t * x1, t), x1 - x0)

    def score(m):
        g = gen(8)
        x1 = x[2000:]
        z = torch.randn(x1.shape, generator=g)
        for i in range(20):
            z = z + velocity(m, z, torch.full((len(z), 1), i / 20)) / 20
        near = (z.norm(dim=1) - 2.8).abs()
        return max(0.0, 1 - near.mean().item() / 1.2)

    return Program(model, None, loader(x[:2000]), torch.optim.Adam(model.parameters(), 1e-6 if is_faulty else 4e-3), score, step=step)


class Translator(nn.Module):
    """A generator of outputs for inputs, and a discriminator of pairs."""

    def __init__(self):
        super().__init__()
        self.generator = mlp(6, 64, 64, 4)
        self.discriminator = mlp(10, 64, 1, act=lambda: nn.LeakyReLU(0.2))

    def forward(self, x):
        return self.generator(x)


def pairs(seed):
    g = gen(seed)
    x = torch.randn(2500, 6, generator=g)
    w = torch.randn(6, 4, generator=g) / 2
    return x, torch.tanh(2 * x @ w) + 0.5 * torch.sin(2 * x[:, :4])


def frozen(net, x):
    return torch.func.functional_call(net, {k: p.detach() for k, p in net.named_parameters()}, (x,))


@fault("the generator's loss is taken on the detached sample", rules=["no-gradient"], layers=["generator"], fails=True, steps=500)
def osr_gan_detached(is_faulty):
    x, y = pairs(46)
    model = Translator()
    bce = nn.BCEWithLogitsLoss()

    def step(m, b):
        s, real = b
        fake = m.generator(s)
        one, zero = torch.ones(len(s), 1), torch.zeros(len(s), 1)
        d = bce(m.discriminator(torch.cat([s, real], 1)), one) + bce(m.discriminator(torch.cat([s, fake.detach()], 1)), zero)
        if is_faulty:
            fake = fake.detach()
        adv = bce(frozen(m.discriminator, torch.cat([s, fake], 1)), one)
        return d + 0.05 * adv + 5 * F.l1_loss(fake, real)

    return Program(model, None, loader(x[:2000], y[:2000]), torch.optim.Adam(model.parameters(), 2e-3, betas=(0.5, 0.999)),
                   lambda m: r2(m(x[2000:]), y[2000:]), step=step)


@fault("score of an energy is taken without create_graph", rules=["model-fails", "no-gradient"], layers=[], fails=True, steps=500)
def osr_energy_graph(is_faulty):
    x = rings(48)

    model = mlp(2, 96, 96, 1, act=nn.SiLU)

    def slope(m, z, train):
        with torch.enable_grad():
            z = z.detach().requires_grad_()
            return -torch.autograd.grad(m(z).sum(), z, create_graph=train)[0]

    def step(m, b):
        e = torch.randn_like(b[0])
        return (slope(m, b[0] + 0.5 * e, not is_faulty) * 0.5 + e).pow(2).mean()

    def score(m):
        e = torch.randn(500, 2, generator=gen(4))
        z = x[2000:] + 0.5 * e
        centres = torch.stack([torch.tensor([math.cos(k * math.pi / 4), math.sin(k * math.pi / 4)]) for k in range(8)]) * 1.4
        w = (-((z[:, None] - centres) ** 2).sum(2) / (2 * 0.26)).softmax(1)
        true = (w @ centres - z) / 0.26
        return max(0.0, r2(slope(m, z, False), true))

    return Program(model, None, loader(x[:2000], n=128), torch.optim.Adam(model.parameters(), 3e-3), score, step=step)


@fault("mixture density network whose head starts at zero", rules=["symmetric-initialisation", "bad-initialisation"],
       layers=["head"], fails=True, steps=500)
def osr_mdn_zero(is_faulty):
    g = gen(49)
    x = torch.rand(2500, 1, generator=g) * 4 - 2
    sign = (torch.rand(2500, 1, generator=g) < 0.5).float() * 2 - 1
    y = sign * (1.5 + torch.sin(2 * x)) + 0.1 * torch.randn(2500, 1, generator=g)

    class Mixture(nn.Module):
        def __init__(self, k=4):
            super().__init__()
            self.body = nn.Sequential(nn.Linear(1, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh())
            self.head = nn.Linear(64, 3 * k)
            if is_faulty:
                nn.init.zeros_(self.head.weight)
                nn.init.zeros_(self.head.bias)

        def forward(self, s):
            w, mu, s = self.head(self.body(s)).chunk(3, 1)
            return torch.distributions.MixtureSameFamily(torch.distributions.Categorical(logits=w),
                                                         torch.distributions.Normal(mu, F.softplus(s) + 0.02))

    model = Mixture()
    flat = torch.distributions.Normal(0.0, y.std()).log_prob(y[2000:]).mean()
    return Program(model, None, loader(x[:2000], y[:2000], n=128), torch.optim.Adam(model.parameters(), 4e-3),
                   lambda m: 1 - math.exp(min(0.0, float(flat - m(x[2000:]).log_prob(y[2000:, 0]).mean()))),
                   step=lambda m, b: -m(b[0]).log_prob(b[1][:, 0]).mean())
