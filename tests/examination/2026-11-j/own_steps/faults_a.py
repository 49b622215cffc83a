"""Generative models, contrast, reinforcement."""
import math

import torch
import torch.nn.functional as F
from own_common import acc, clusters, gen, loader, r2, smooth
from program import Program, fault
from torch import nn


class VAE(nn.Module):
    def __init__(self, d=24, z=4):
        super().__init__()
        self.enc = nn.Sequential(nn.Linear(d, 64), nn.ReLU())
        self.mu, self.logvar = nn.Linear(64, z), nn.Linear(64, z)
        self.dec = nn.Sequential(nn.Linear(z, 64), nn.ReLU(), nn.Linear(64, d))

    def forward(self, x):
        h = self.enc(x)
        mu, logvar = self.mu(h), self.logvar(h)
        z = mu + torch.randn_like(mu) * (0.5 * logvar).exp() if self.training else mu
        return self.dec(z), mu, logvar


@fault(
    "The reconstruction is a mean over pixels, the KL a sum over the batch: the posterior collapses",
    rules=("term-dominates", "summed-loss", "rank-collapse"), fails=True, steps=400,
)
def vae_kl_summed(faulty):
    g = gen(1)
    lat = torch.randn(1200, 3, generator=g)
    x = torch.tanh(lat @ torch.randn(3, 24, generator=g)) + 0.1 * torch.randn(1200, 24, generator=g)
    train, test = x[:1000], x[1000:]

    def step(model, batch):
        (xb,) = batch
        rec, mu, logvar = model(xb)
        kl = -0.5 * (1 + logvar - mu.pow(2) - logvar.exp())
        kl = kl.sum() if faulty else 0.02 * kl.sum(1).mean()
        return F.mse_loss(rec, xb) + kl

    model = VAE()
    return Program(model, None, loader(train), torch.optim.Adam(model.parameters(), 2e-3),
                   lambda m: r2(m(test)[0], test), step=step)


@fault(
    "The discriminator has BatchNorm and sees real and generated examples in separate batches",
    rules=("batchnorm-mode-gap", "mixed-examples"), layers=("1", "4"), fails=True, steps=300,
)
def discriminator_two_batches(faulty):
    g = gen(3)
    real = torch.randn(1500, 20, generator=g) + 0.45
    fake = torch.randn(1500, 20, generator=g) - 0.45 * torch.sign(torch.randn(20, generator=g))

    def step(model, batch):
        r, f = batch
        if faulty:
            lr, lf = model(r), model(f)
        else:
            lr, lf = model(torch.cat([r, f])).chunk(2)
        return F.binary_cross_entropy_with_logits(lr, torch.ones_like(lr)) + F.binary_cross_entropy_with_logits(
            lf, torch.zeros_like(lf)
        )

    model = nn.Sequential(nn.Linear(20, 64), nn.BatchNorm1d(64), nn.LeakyReLU(0.2),
                          nn.Linear(64, 32), nn.BatchNorm1d(32), nn.LeakyReLU(0.2), nn.Linear(32, 1))

    def score(m):
        return float(((m(real[1200:]) > 0).float().mean() + (m(fake[1200:]) < 0).float().mean()) / 2)

    return Program(model, None, loader(real[:1200], fake[:1200]),
                   torch.optim.Adam(model.parameters(), 2e-4, betas=(0.5, 0.999)), score, step=step)


class Zip:
    def __init__(self, a, b):
        self.a, self.b = a, b

    def __iter__(self):
        return ((x, y) for (x,), (y,) in zip(self.a, self.b))

    def __len__(self):
        return len(self.a)


@fault(
    "Two loaders, one per view, each with its own shuffle: the pairs are no pairs",
    rules=("labels-unrelated", "output-loss-mismatch"), fails=True, steps=300,
)
def clip_two_shuffles(faulty):
    g = gen(4)
    z = torch.randn(1600, 5, generator=g)
    a = torch.tanh(z @ torch.randn(5, 20, generator=g)) + 0.1 * torch.randn(1600, 20, generator=g)
    b = z @ torch.randn(5, 12, generator=g) / 2 + 0.1 * torch.randn(1600, 12, generator=g)
    batches = Zip(loader(a[:1280]), loader(b[:1280])) if faulty else loader(a[:1280], b[:1280])

    class Clip(nn.Module):
        def __init__(self):
            super().__init__()
            self.image = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 16))
            self.text = nn.Sequential(nn.Linear(12, 64), nn.ReLU(), nn.Linear(64, 16))
            self.scale = nn.Parameter(torch.tensor(2.0))

        def forward(self, x, y):
            return self.scale.exp() * F.normalize(self.image(x), dim=1) @ F.normalize(self.text(y), dim=1).T

    def step(model, batch):
        logits = model(*batch)
        y = torch.arange(len(logits))
        return (F.cross_entropy(logits, y) + F.cross_entropy(logits.T, y)) / 2

    def score(m):
        return sum(acc(m(a[i:i + 32], b[i:i + 32]), torch.arange(32)) for i in range(1280, 1600, 32)) / 10

    model = Clip()
    return Program(model, None, batches, torch.optim.Adam(model.parameters(), 2e-3), score, step=step)


@fault(
    "Anchor-positive and anchor-negative distance are swapped in a triplet loss written by hand",
    rules=("output-loss-mismatch",), fails=True, steps=300,
)
def triplet_swapped(faulty):
    g = gen(5)
    y = torch.randint(0, 5, (1500,), generator=g)
    sig = 1.2 * torch.randn(5, 4, generator=g)[y] + 0.4 * torch.randn(1500, 4, generator=g)
    x = torch.cat([sig, 1.5 * torch.randn(1500, 28, generator=g)], 1) @ torch.linalg.qr(torch.randn(32, 32, generator=g))[0]
    by = [torch.nonzero(y[:1200] == k)[:, 0] for k in range(5)]
    ya = y[:1200]
    pos = torch.stack([by[k][torch.randint(0, len(by[k]), (1,), generator=g)[0]] for k in ya.tolist()])
    neg = torch.stack([by[(k + s) % 5][torch.randint(0, len(by[(k + s) % 5]), (1,), generator=g)[0]]
                       for k, s in zip(ya.tolist(), torch.randint(1, 5, (1200,), generator=g).tolist())])
    model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 8))

    def step(m, batch):
        a, p, n = (F.normalize(m(t), dim=1) for t in batch)
        dp, dn = (a - p).pow(2).sum(1), (a - n).pow(2).sum(1)
        return F.relu((dn - dp if faulty else dp - dn) + 0.3).mean()

    def score(m):
        e, t = F.normalize(m(x[:1200]), dim=1), F.normalize(m(x[1200:]), dim=1)
        cents = torch.stack([e[ya == k].mean(0) for k in range(5)])
        near = torch.cdist(t, e).topk(5, largest=False).indices
        del cents
        return float((ya[near].mode(1).values == y[1200:]).float().mean())

    return Program(model, None, loader(x[:1200], x[pos], x[neg]), torch.optim.Adam(model.parameters(), 1e-3), score, step=step)


@fault(
    "The policy's softmax is over the states of the batch; in the environment it acts on one state at a time",
    rules=("wrong-softmax-dimension", "mixed-examples"), layers=("pi", "pi.3"), fails=True, steps=400,
)
def policy_softmax_over_batch(faulty):
    g = gen(6)
    s = torch.randn(1400, 8, generator=g)
    best = (s @ torch.randn(8, 4, generator=g)).argmax(1)

    class Policy(nn.Module):
        def __init__(self):
            super().__init__()
            self.pi = nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 4), nn.Softmax(dim=0 if faulty else 1))

        def forward(self, x):
            return self.pi(x)

    def step(model, batch):
        x, b = batch
        dist = torch.distributions.Categorical(probs=model(x))
        a = dist.sample()
        return -(dist.log_prob(a) * ((a == b).float() - 0.25)).mean()

    def score(m):
        return sum(int(m(s[i:i + 1]).argmax()) == int(best[i]) for i in range(1200, 1400)) / 200

    model = Policy()
    return Program(model, None, loader(s[:1200], best[:1200]), torch.optim.Adam(model.parameters(), 5e-3), score, step=step)


@fault(
    "The critic's values are [B, 1], the returns [B]: their difference is [B, B]",
    rules=("output-loss-mismatch",), layers=("critic", "critic.2"), fails=True, steps=300,
)
def critic_broadcast(faulty):
    x, y = smooth(7, 1600, 6)
    ret = y[:, 0]

    class ActorCritic(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = nn.Sequential(nn.Linear(6, 64), nn.Tanh())
            self.actor = nn.Sequential(nn.Linear(64, 32), nn.Tanh(), nn.Linear(32, 3))
            self.critic = nn.Sequential(nn.Linear(64, 32), nn.Tanh(), nn.Linear(32, 1))

        def forward(self, s):
            h = self.body(s)
            return F.log_softmax(self.actor(h), -1), self.critic(h)

    def step(m, batch):
        s, r = batch
        logp, v = m(s)
        if not faulty:
            v = v.squeeze(-1)
        entropy = -(logp.exp() * logp).sum(1).mean()
        return 0.5 * (r - v).pow(2).mean() - 0.01 * entropy

    m = ActorCritic()
    return Program(m, None, loader(x[:1300], ret[:1300]), torch.optim.Adam(m.parameters(), 5e-3),
                   lambda m: r2(m(x[1300:])[1], ret[1300:]), step=step)


@fault(
    "Offline Q-learning with rewards in cents: values of thousands",
    rules=("unscaled-target",), fails=True, steps=300,
)
def q_values_in_cents(faulty):
    x, q = smooth(8, 1600, 6, 3)
    scale = 20000.0 if faulty else 1.0
    a = torch.randint(0, 3, (1600,), generator=gen(80))
    r = scale * q.gather(1, a[:, None])[:, 0]
    m = nn.Sequential(nn.Linear(6, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 3))

    def step(m, batch):
        s, act, rew = batch
        return F.smooth_l1_loss(m(s).gather(1, act[:, None]).squeeze(1), rew)

    return Program(m, None, loader(x[:1300], a[:1300], r[:1300]), torch.optim.Adam(m.parameters(), 2e-3),
                   lambda m: r2(m(x[1300:]) / scale, q[1300:]), step=step)


@fault(
    "The diffusion step 0..999 is concatenated to the sample as it is",
    rules=("unscaled-input",), fails=True, steps=400,
)
def diffusion_raw_step(faulty):
    g = gen(9)
    ang = math.pi / 2 * torch.randint(0, 4, (2000,), generator=g)
    x0 = 1.3 * torch.stack([ang.cos(), ang.sin()], 1)
    abar = torch.cos(torch.linspace(0.02, 1.5, 1000)) ** 2
    te, tt = torch.randn(400, 2, generator=g), torch.randint(0, 1000, (400,), generator=g)

    class Eps(nn.Module):
        def __init__(self):
            super().__init__()
            self.f = nn.Sequential(nn.Linear(3, 96), nn.GELU(), nn.Linear(96, 96), nn.GELU(), nn.Linear(96, 2))

        def forward(self, x, t):
            t = t.float()[:, None]
            return self.f(torch.cat([x, t if faulty else t / 500 - 1], 1))

    def noisy(x, t, e):
        return abar[t].sqrt()[:, None] * x + (1 - abar[t]).sqrt()[:, None] * e

    def step(m, batch):
        (x,) = batch
        t, e = torch.randint(0, 1000, (len(x),)), torch.randn_like(x)
        return F.mse_loss(m(noisy(x, t, e), t), e)

    m = Eps()
    return Program(m, None, loader(x0[:1600], bs=128), torch.optim.Adam(m.parameters(), 5e-3),
                   lambda m: r2(m(noisy(x0[1600:], tt, te), tt), te), step=step)
