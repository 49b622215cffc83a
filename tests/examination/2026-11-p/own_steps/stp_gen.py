"""Generative models and autoencoders."""
import math

import torch
from torch import nn
from torch.nn import functional as F

from program import Program, fault, sound
from stp_tools import accuracy, loader, r2, seeded


def manifold(n=3000, dim=24, latent=3, seed=1, noise=0.05):
    g = seeded(seed)
    z = torch.randn(n, latent, generator=g)
    w1 = torch.randn(latent, 16, generator=g)
    w2 = torch.randn(16, dim, generator=g) / 4
    x = torch.tanh(z @ w1) @ w2
    return (x - x.mean(0)) / x.std(0) + noise * torch.randn(n, dim, generator=g)


class VAE(nn.Module):
    def __init__(self, dim=24, z=4, h=96):
        super().__init__()
        self.enc = nn.Sequential(nn.Linear(dim, h), nn.ReLU(), nn.Linear(h, h), nn.ReLU())
        self.mu = nn.Linear(h, z)
        self.logvar = nn.Linear(h, z)
        self.dec = nn.Sequential(nn.Linear(z, h), nn.ReLU(), nn.Linear(h, h), nn.ReLU(), nn.Linear(h, dim))

    def forward(self, x):
        h = self.enc(x)
        mu, logvar = self.mu(h), self.logvar(h)
        z = mu + torch.randn_like(mu) * (0.5 * logvar).exp() if self.training else mu
        return self.dec(z), mu, logvar


@fault(
    "The reconstruction is averaged over all pixels, the KL is summed over the latents and the batch: it holds the posterior at the prior.",
    rules=("term-dominates", "summed-loss", "rank-collapse"),
    fails=True,
    steps=400,
)
def stp_vae_kl_sum(is_faulty):
    x = manifold()
    vae = VAE()

    def step(model, batch):
        (data,) = batch
        recon, mu, logvar = model(data)
        kld = -0.5 * torch.sum(1 + logvar - mu.pow(2) - logvar.exp())
        if is_faulty:
            return F.mse_loss(recon, data) + kld
        # a decoder with a standard deviation of 0.3
        return (F.mse_loss(recon, data, reduction="sum") / (2 * 0.3**2) + kld) / data.numel()

    opt = torch.optim.Adam(vae.parameters(), lr=2e-3)
    return Program(vae, None, loader(x[:2500]), opt, lambda m: r2(m(x[2500:])[0], x[2500:]), step=step)


class Generator(nn.Module):
    def __init__(self, cond=4, out=3):
        super().__init__()
        self.main = nn.Sequential(
            nn.Linear(cond, 64), nn.LeakyReLU(0.2), nn.Linear(64, 64), nn.LeakyReLU(0.2), nn.Linear(64, out)
        )

    def forward(self, c):
        return self.main(c)


def discriminator_of(c, x, seed=0):
    """Trained to tell right pairs from others."""
    state = torch.get_rng_state()
    torch.manual_seed(seed)
    d = nn.Sequential(nn.Linear(c.shape[1] + x.shape[1], 96), nn.LeakyReLU(0.2), nn.Linear(96, 96), nn.LeakyReLU(0.2), nn.Linear(96, 1))
    opt = torch.optim.Adam(d.parameters(), lr=2e-3)
    for _ in range(500):
        i = torch.randint(len(c), (128,))
        real = d(torch.cat([c[i], x[i] + 0.05 * torch.randn(128, x.shape[1])], 1))
        spread = 0.2 + 1.3 * torch.rand(128, 1)
        fake = d(torch.cat([c[i], x[i] + spread * torch.randn(128, x.shape[1])], 1))
        loss = F.softplus(-real).mean() + F.softplus(fake).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
    torch.set_rng_state(state)
    return d


@fault(
    "The generator's step is copied from the discriminator's, with its fake.detach(): no gradient reaches the generator.",
    rules=("no-gradient", "loss-not-decreasing"),
    layers=("main",),
    fails=True,
    steps=300,
)
def stp_generator_detached(is_faulty):
    g = seeded(5)
    c = torch.randn(3000, 4, generator=g)
    x = torch.stack([torch.sin(c[:, 0]) + 0.5 * c[:, 1], c[:, 2] * 0.8, torch.tanh(c[:, 1] + c[:, 3])], 1)
    D = discriminator_of(c, x)
    G = Generator()
    criterion = nn.BCEWithLogitsLoss()

    def step(model, batch):
        (cond,) = batch
        fake = model(cond)
        if is_faulty:
            fake = fake.detach()
        verdict = D(torch.cat([cond, fake], 1))
        return criterion(verdict, torch.ones_like(verdict))

    opt = torch.optim.Adam(G.parameters(), lr=1e-3, betas=(0.5, 0.999))
    return Program(G, None, loader(c[:2500]), opt, lambda m: r2(m(c[2500:]), x[2500:]), step=step)


@fault(
    "A discriminator with BatchNorm gets real and generated examples in separate passes; the mixed running statistics that "
    "it is used with later fit neither.",
    rules=("batchnorm-mode-gap", "sorted-batches", "mixed-examples"),
    layers=("1", "4"),
    fails=True,
    steps=300,
)
def stp_discriminator_two_passes(is_faulty):
    g = seeded(6)
    n = 3000
    real = manifold(n, seed=11)
    fake = manifold(n, seed=11)[torch.randperm(n, generator=g)] * 0.8 + 0.35 * torch.randn(n, 24, generator=g) + 0.7
    net = nn.Sequential(
        nn.Linear(24, 64), nn.BatchNorm1d(64), nn.LeakyReLU(0.2), nn.Linear(64, 64), nn.BatchNorm1d(64), nn.LeakyReLU(0.2), nn.Linear(64, 1)
    )

    def step(model, batch):
        r, f = batch
        if is_faulty:
            a, b = model(r), model(f)
        else:
            a, b = model(torch.cat([r, f])).split(len(r))
        return F.binary_cross_entropy_with_logits(a, torch.ones_like(a)) + F.binary_cross_entropy_with_logits(b, torch.zeros_like(b))

    def score(m):
        return float((m(real[2500:]) > 0).float().mean() + (m(fake[2500:]) < 0).float().mean() - 1)

    return Program(net, None, loader(real[:2500], fake[:2500]), torch.optim.Adam(net.parameters(), lr=1e-3), score, step=step)


# ------------------------------------------------------------ diffusion

T = 1000
BETAS = torch.linspace(1e-4, 0.02, T)
ALPHA_BAR = torch.cumprod(1 - BETAS, 0)


def diffuse(x0, t, eps):
    a = ALPHA_BAR[t][:, None]
    return a.sqrt() * x0 + (1 - a).sqrt() * eps


def eps_score(x0, predict):
    """How much of the noise is found, on held-out data with fixed noise."""
    g = seeded(99)
    t = torch.randint(0, T, (len(x0),), generator=g)
    eps = torch.randn(x0.shape, generator=g)
    return r2(predict(diffuse(x0, t, eps), t), eps)


class Denoiser(nn.Module):
    def __init__(self, dim, scale, width=96):
        super().__init__()
        self.scale = scale
        self.net = nn.Sequential(
            nn.Linear(dim + 1, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, dim)
        )

    def forward(self, x, t):
        return self.net(torch.cat([x, t[:, None].float() / self.scale], dim=1))


@fault(
    "The denoiser's time step, 0 to 999, goes into its first layer as it is.",
    rules=("unscaled-input", "bad-initialisation", "ill-conditioned-input"),
    layers=("net.0",),
    fails=False,
    steps=500,
)
def stp_raw_timestep(is_faulty):
    x = manifold(4000, dim=12, latent=2, seed=13)
    net = Denoiser(12, 1 if is_faulty else T)

    def step(model, batch):
        (x0,) = batch
        t = torch.randint(0, T, (x0.size(0),))
        eps = torch.randn_like(x0)
        return F.mse_loss(model(diffuse(x0, t, eps), t), eps)

    opt = torch.optim.AdamW(net.parameters(), lr=1e-3)
    return Program(net, None, loader(x[:3500], batch_size=128), opt, lambda m: eps_score(x[3500:], m), step=step)


@fault(
    "The loss compares the predicted noise with new noise instead of the noise that was added.",
    rules=("labels-unrelated", "output-loss-mismatch", "loss-not-decreasing"),
    fails=True,
    steps=500,
)
def stp_noise_drawn_twice(is_faulty):
    x = manifold(4000, dim=16, latent=2, seed=14)

    class TimeNet(nn.Module):
        def __init__(self):
            super().__init__()
            self.time = nn.Sequential(nn.Linear(16, 64), nn.SiLU())
            self.inp = nn.Linear(16, 128)
            self.shift = nn.Linear(64, 128)
            self.mid = nn.Sequential(nn.SiLU(), nn.Linear(128, 128), nn.SiLU())
            self.out = nn.Linear(128, 16)

        def forward(self, xt, t):
            freq = torch.exp(-math.log(1000) * torch.arange(8) / 8)
            ang = t[:, None].float() * freq
            emb = self.time(torch.cat([ang.sin(), ang.cos()], 1))
            return self.out(self.mid(self.inp(xt) + self.shift(emb)))

    net = TimeNet()

    def q_sample(x0, t, noise=None):
        noise = torch.randn_like(x0) if noise is None else noise
        return diffuse(x0, t, noise)

    def step(model, batch):
        x0 = batch[0]
        t = torch.randint(0, T, (len(x0),))
        noise = torch.randn_like(x0)
        xt = q_sample(x0, t) if is_faulty else q_sample(x0, t, noise)
        return (model(xt, t) - noise).square().mean()

    return Program(
        net, None, loader(x[:3500], batch_size=128), torch.optim.Adam(net.parameters(), lr=2e-3),
        lambda m: eps_score(x[3500:], m), step=step,
    )


# ------------------------------------------------------------ autoencoders


class DiscreteAE(nn.Module):
    def __init__(self, straight_through, groups=2, codes=6):
        super().__init__()
        self.straight_through, self.groups, self.codes = straight_through, groups, codes
        self.encoder = nn.Sequential(nn.Linear(24, 96), nn.ReLU(), nn.Linear(96, groups * codes))
        self.decoder = nn.Sequential(nn.Linear(groups * codes, 96), nn.ReLU(), nn.Linear(96, 24))

    def forward(self, x):
        logits = self.encoder(x).view(-1, self.groups, self.codes)
        hard = F.one_hot(logits.argmax(-1), self.codes).float()
        if self.straight_through:
            soft = logits.softmax(-1)
            hard = hard + soft - soft.detach()
        return self.decoder(hard.flatten(1))


@fault(
    "Discrete codes by argmax and one_hot without a straight-through gradient: the encoder stays as it was drawn.",
    rules=("no-gradient",),
    layers=("encoder",),
    fails=False,
    steps=500,
)
def stp_argmax_codes(is_faulty):
    x = manifold(latent=2, seed=15)
    net = DiscreteAE(not is_faulty)
    xs = x[:2500]
    return Program(
        net, nn.MSELoss(), loader(xs, xs), torch.optim.Adam(net.parameters(), lr=3e-3), lambda m: r2(m(x[2500:]), x[2500:])
    )


def hide(shape, generator=None, share=0.3):
    return torch.rand(shape, generator=generator) < share


class Imputer(nn.Module):
    def __init__(self, dim=24):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(2 * dim, 128), nn.GELU(), nn.Linear(128, 128), nn.GELU(), nn.Linear(128, dim))

    def forward(self, x, mask):
        return self.layers(torch.cat([x, mask.float()], 1))


def imputed(m, x):
    mask = hide(x.shape, seeded(77))
    out = m(x.masked_fill(mask, 0.0), mask)
    return r2(out[mask], x[mask])


@fault(
    "Masked modelling that makes a masked copy and then feeds the original: the net copies what it should guess.",
    rules=("future-seen",),
    fails=False,
    steps=400,
)
def stp_mask_not_fed(is_faulty):
    x = manifold(seed=16)
    net = Imputer()

    def step(model, batch):
        (data,) = batch
        mask = hide(data.shape)
        masked = data.masked_fill(mask, 0.0)
        out = model(data if is_faulty else masked, mask)
        return ((out - data) ** 2)[mask].mean()

    return Program(net, None, loader(x[:2500]), torch.optim.Adam(net.parameters(), lr=2e-3), lambda m: max(-1.0, imputed(m, x[2500:])), step=step)


@fault(
    "The masked input is the batch itself, not a copy: masking it also sets the targets at these places to zero.",
    rules=("constant-target", "output-loss-mismatch"),
    fails=True,
    steps=400,
)
def stp_mask_in_place(is_faulty):
    x = manifold(seed=17)
    net = Imputer()
    opt = torch.optim.AdamW(net.parameters(), lr=2e-3, weight_decay=0.01)

    def step(model, batch):
        data = batch[0].clone()
        mask = hide(data.shape)
        corrupted = data if is_faulty else data.clone()
        corrupted[mask] = 0.0
        out = model(corrupted, mask)
        return F.mse_loss(out[mask], data[mask])

    return Program(net, None, loader(x[:2500]), opt, lambda m: imputed(m, x[2500:]), step=step)


@fault(
    "A deep autoencoder of sigmoid layers with the default initialisation: every layer shrinks the signal and its gradient.",
    rules=("vanishing-gradient", "rank-collapse", "bad-initialisation", "activation-drift"),
    fails=False,
    steps=500,
)
def stp_deep_sigmoid_ae(is_faulty):
    x = manifold(seed=18)
    sizes = [24, 64, 48, 32, 8, 32, 48, 64]
    act = nn.Sigmoid if is_faulty else nn.ELU
    layers = []
    for a, b in zip(sizes, sizes[1:]):
        layers += [nn.Linear(a, b), act()]
    net = nn.Sequential(*layers, nn.Linear(64, 24))
    xs = x[:2500]
    return Program(
        net, F.mse_loss, loader(xs, xs), torch.optim.Adam(net.parameters(), lr=1e-3), lambda m: r2(m(x[2500:]), x[2500:])
    )


class MDN(nn.Module):
    def __init__(self, k=4):
        super().__init__()
        self.k = k
        self.hidden = nn.Sequential(nn.Linear(2, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh())
        self.params = nn.Linear(64, 3 * k)

    def forward(self, x):
        logit, mu, log_sigma = self.params(self.hidden(x)).chunk(3, dim=-1)
        return logit.log_softmax(-1), mu, log_sigma.clamp(-4, 3)


@fault(
    "The last layer of a mixture density net is set to zero: all components are alike and stay alike.",
    rules=("symmetric-initialisation", "bad-initialisation"),
    layers=("params",),
    fails=True,
    steps=500,
)
def stp_mixture_zero_head(is_faulty):
    g = seeded(19)
    x = torch.rand(3000, 2, generator=g) * 2 - 1
    sign = (torch.rand(3000, generator=g) < 0.5).float() * 2 - 1
    y = (sign * (1 + 0.6 * torch.sin(3 * x[:, 0]) + 0.3 * x[:, 1]) + 0.1 * torch.randn(3000, generator=g))[:, None]
    net = MDN()
    if is_faulty:
        nn.init.zeros_(net.params.weight)
        nn.init.zeros_(net.params.bias)

    def step(model, batch):
        inputs, target = batch
        logpi, mu, ls = model(inputs)
        log_prob = -0.5 * ((target - mu) / ls.exp()) ** 2 - ls - 0.5 * math.log(2 * math.pi)
        return -torch.logsumexp(logpi + log_prob, -1).mean()

    def score(m):
        logpi, mu, ls = m(x[2500:])
        # the likeliest component's error, in units of the spread of y
        logp = logpi - 0.5 * ((y[2500:] - mu) / ls.exp()) ** 2 - ls
        nearest = mu.gather(1, logp.argmax(1, keepdim=True))
        return r2(nearest, y[2500:])

    return Program(net, None, loader(x[:2500], y[:2500]), torch.optim.Adam(net.parameters(), lr=3e-3), score, step=step)


# ------------------------------------------------------------ sound


@sound("A VAE with twice the latents it needs: half of them stay at the prior.", trained=200, steps=400, least=0.75)
def stp_vae_spare_latents():
    x = manifold(seed=31)
    vae = VAE(z=10)

    def step(model, batch):
        (data,) = batch
        recon, mu, logvar = model(data)
        rec = (recon - data).pow(2).sum(1) / (2 * 0.3**2)
        kld = -0.5 * (1 + logvar - mu.pow(2) - logvar.exp()).sum(1)
        return (rec + kld).mean()

    opt = torch.optim.Adam(vae.parameters(), lr=2e-3)
    return Program(vae, None, loader(x[:2500]), opt, lambda m: r2(m(x[2500:])[0], x[2500:]), step=step)


@sound("A Wasserstein critic with gradient penalty: a loss below zero and without bound from below.", steps=350, least=0.7)
def stp_wgan_critic():
    g = seeded(32)
    angle = torch.rand(3000, generator=g) * 2 * math.pi
    real = torch.stack([angle.cos(), angle.sin()], 1) * 2 + 0.1 * torch.randn(3000, 2, generator=g)
    fake = torch.randn(3000, 2, generator=g) * 0.6
    critic = nn.Sequential(nn.Linear(2, 64), nn.LeakyReLU(0.2), nn.Linear(64, 64), nn.LeakyReLU(0.2), nn.Linear(64, 1))

    def step(model, batch):
        r, f = batch
        u = torch.rand(len(r), 1)
        mid = (u * r + (1 - u) * f).requires_grad_(True)
        (slope,) = torch.autograd.grad(model(mid).sum(), mid, create_graph=True)
        penalty = ((slope.norm(dim=1) - 1) ** 2).mean()
        return model(f).mean() - model(r).mean() + 10 * penalty

    def score(m):
        a, b = m(real[2500:]), m(fake[2500:])
        cut = (a.mean() + b.mean()) / 2
        return float((a > cut).float().mean() + (b < cut).float().mean() - 1)

    opt = torch.optim.Adam(critic.parameters(), lr=1e-3, betas=(0.0, 0.9))
    return Program(critic, None, loader(real[:2500], fake[:2500]), opt, score, step=step)


@sound("A generator against a fixed discriminator, whose own weights take gradients but are not in the optimizer.", steps=300, least=0.7)
def stp_generator():
    g = seeded(5)
    c = torch.randn(3000, 4, generator=g)
    x = torch.stack([torch.sin(c[:, 0]) + 0.5 * c[:, 1], c[:, 2] * 0.8, torch.tanh(c[:, 1] + c[:, 3])], 1)
    D = discriminator_of(c, x, seed=1)
    G = Generator()

    def step(model, batch):
        verdict = D(torch.cat([batch[0], model(batch[0])], 1))
        return F.softplus(-verdict).mean()

    opt = torch.optim.Adam(G.parameters(), lr=1e-3, betas=(0.5, 0.999))
    return Program(G, None, loader(c[:2500]), opt, lambda m: r2(m(c[2500:]), x[2500:]), step=step)


class ResDenoiser(nn.Module):
    def __init__(self, dim=12, width=96):
        super().__init__()
        self.inp = nn.Linear(dim, width)
        self.emb = nn.Linear(16, width)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), nn.SiLU(), nn.Linear(width, width)) for _ in range(2)
        )
        self.out = nn.Linear(width, dim)
        for block in self.blocks:
            nn.init.zeros_(block[-1].weight)
            nn.init.zeros_(block[-1].bias)
        nn.init.zeros_(self.out.weight)
        nn.init.zeros_(self.out.bias)

    def forward(self, x, t):
        ang = t[:, None].float() * torch.exp(-math.log(1000) * torch.arange(8) / 8)
        h = self.inp(x) + self.emb(torch.cat([ang.sin(), ang.cos()], 1))
        for block in self.blocks:
            h = h + block(h)
        return self.out(h)


@sound("A diffusion model whose output and residual branches begin at zero, so that most weights get no gradient at first.", steps=400, least=0.65)
def stp_diffusion_zero_out():
    x = manifold(4000, dim=12, latent=2, seed=33)
    net = ResDenoiser()

    def step(model, batch):
        (x0,) = batch
        t = torch.randint(0, T, (x0.size(0),))
        eps = torch.randn_like(x0)
        return F.mse_loss(model(diffuse(x0, t, eps), t), eps)

    return Program(net, None, loader(x[:3500], batch_size=128), torch.optim.AdamW(net.parameters(), lr=2e-3), lambda m: eps_score(x[3500:], m), step=step)


class Coupling(nn.Module):
    def __init__(self, dim, flip):
        super().__init__()
        self.flip = flip
        self.net = nn.Sequential(nn.Linear(dim // 2, 48), nn.ReLU(), nn.Linear(48, 48), nn.ReLU(), nn.Linear(48, dim))
        nn.init.zeros_(self.net[-1].weight)
        nn.init.zeros_(self.net[-1].bias)

    def forward(self, x):
        a, b = x.chunk(2, 1)
        if self.flip:
            a, b = b, a
        s, t = self.net(a).chunk(2, 1)
        s = torch.tanh(s) * 2
        b = b * s.exp() + t
        return torch.cat([b, a] if self.flip else [a, b], 1), s.sum(1)


class Flow(nn.Module):
    def __init__(self):
        super().__init__()
        self.parts = nn.ModuleList(Coupling(4, i % 2 == 1) for i in range(4))

    def forward(self, x):
        logdet = 0
        for part in self.parts:
            x, d = part(x)
            logdet = logdet + d
        return -0.5 * (x**2).sum(1) - 2 * math.log(2 * math.pi) + logdet


@sound("A normalising flow of couplings that begin as the identity; the loss goes below zero.", steps=500, least=0.65)
def stp_flow():
    g = seeded(34)
    a = torch.randn(4000, 2, generator=g)
    b = torch.stack([0.7 * a[:, 0] ** 2 - 0.7, torch.sin(1.5 * a[:, 1])], 1) + 0.05 * torch.randn(4000, 2, generator=g)
    x = torch.cat([a, b], 1)
    net = Flow()
    c = 0.5 * math.log(2 * math.pi * math.e)
    best = 2 * c + 2 * (c + math.log(0.05))
    plain = sum(c + math.log(float(x[:, i].std())) for i in range(4))

    def score(m):
        return (plain + float(m(x[3500:]).mean())) / (plain - best)

    return Program(
        net, None, loader(x[:3500], batch_size=128), torch.optim.Adam(net.parameters(), lr=2e-3), score, step=lambda m, batch: -m(batch[0]).mean()
    )


class Tied(nn.Module):
    def __init__(self, dim=24, h=48, z=6):
        super().__init__()
        self.first = nn.Linear(dim, h)
        self.second = nn.Linear(h, z)
        self.bias1 = nn.Parameter(torch.zeros(h))
        self.bias0 = nn.Parameter(torch.zeros(dim))

    def forward(self, x):
        z = self.second(torch.tanh(self.first(x)))
        h = torch.tanh(F.linear(z, self.second.weight.t(), self.bias1))
        return F.linear(h, self.first.weight.t(), self.bias0)


@sound("An autoencoder whose decoder uses the encoder's weights transposed.", steps=500, least=0.75)
def stp_tied_ae():
    x = manifold(seed=35)
    net = Tied()
    xs = x[:2500]
    return Program(net, nn.MSELoss(), loader(xs, xs), torch.optim.Adam(net.parameters(), lr=3e-3), lambda m: r2(m(x[2500:]), x[2500:]))


@sound("A denoising autoencoder on small images, quite ordinary, half trained.", trained=100, steps=300, least=0.7)
def stp_denoise_images():
    g = seeded(36)
    n = 1500
    yy, xx = torch.meshgrid(torch.arange(10.0), torch.arange(10.0), indexing="ij")
    cx, cy = torch.rand(n, 1, 1, generator=g) * 8 + 1, torch.rand(n, 1, 1, generator=g) * 8 + 1
    r = torch.rand(n, 1, 1, generator=g) * 2 + 1
    clean = torch.exp(-((xx - cx) ** 2 + (yy - cy) ** 2) / r**2)[:, None]
    noisy = clean + 0.3 * torch.randn(n, 1, 10, 10, generator=g)
    net = nn.Sequential(
        nn.Conv2d(1, 12, 3, padding=1), nn.ReLU(), nn.Conv2d(12, 24, 3, stride=2, padding=1), nn.ReLU(),
        nn.Conv2d(24, 24, 3, padding=1), nn.ReLU(), nn.Upsample(scale_factor=2), nn.Conv2d(24, 1, 3, padding=1),
    )
    return Program(
        net, nn.MSELoss(), loader(noisy[:1200], clean[:1200], batch_size=32), torch.optim.Adam(net.parameters(), lr=2e-3),
        lambda m: r2(m(noisy[1200:]), clean[1200:]),
    )
