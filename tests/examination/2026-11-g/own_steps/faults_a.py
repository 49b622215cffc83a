"""Losses that are put together by hand: contrastive, distillation, bandits, VAE, diffusion, several tasks."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from program import Program, fault


def gen(seed):
    return torch.Generator().manual_seed(seed)


def r2(pred, y):
    return max(0.0, 1 - ((pred - y) ** 2).mean().item() / ((y - y.mean(0)) ** 2).mean().item())


def two_views(n, g, hidden=6, size=24):
    mix = torch.randn(hidden, size, generator=gen(5))
    s = torch.randn(n, hidden, generator=g)
    noise = lambda: 0.2 * torch.randn(n, size, generator=g)
    mask = lambda: (torch.rand(n, size, generator=g) > 0.3).float()
    x = torch.tanh(s @ mix)
    return (x + noise()) * mask(), (x + noise()) * mask()


@fault(
    "the labels of InfoNCE are all zero, as in MoCo, though the positives lie on the diagonal",
    rules=("output-loss-mismatch", "constant-target", "labels-unrelated", "loss-not-decreasing"),
    fails=True,
    steps=300,
)
def infonce_zero_labels(is_faulty):
    a, b = two_views(2048, gen(1))
    ta, tb = two_views(200, gen(2))
    model = nn.Sequential(nn.Linear(24, 96), nn.ReLU(), nn.Linear(96, 32))

    def step(model, batch):
        one, two = batch
        z1, z2 = F.normalize(model(one), dim=1), F.normalize(model(two), dim=1)
        logits = z1 @ z2.T / 0.1
        if is_faulty:
            labels = torch.zeros(len(logits), dtype=torch.long)
        else:
            labels = torch.arange(len(logits))
        return F.cross_entropy(logits, labels)

    def score(model):
        sim = F.normalize(model(ta), dim=1) @ F.normalize(model(tb), dim=1).T
        sim = sim.view(10, 20, 10, 20)
        sim = torch.stack([sim[i, :, i] for i in range(10)])
        return (sim.argmax(2) == torch.arange(20)).float().mean().item()

    return Program(
        model, None, DataLoader(TensorDataset(a, b), 64, shuffle=True, drop_last=True),
        torch.optim.Adam(model.parameters(), 2e-3), score, step=step,
    )


@fault(
    "F.kl_div gets the student's probabilities instead of their logarithms",
    rules=("output-loss-mismatch",),
    fails=True,
    steps=300,
)
def distill_probabilities_to_kl(is_faulty):
    g = gen(11)
    teacher = torch.randn(16, 6, generator=g) * 0.35
    x, xt = torch.randn(1500, 16, generator=g), torch.randn(400, 16, generator=g)
    model = nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 6))

    def step(model, batch):
        (inputs,) = batch
        with torch.no_grad():
            goal = (inputs @ teacher).softmax(1)
        out = model(inputs)
        given = F.softmax(out, dim=1) if is_faulty else F.log_softmax(out, dim=1)
        return F.kl_div(given, goal, reduction="batchmean")

    def score(model):
        p = (xt @ teacher).softmax(1)
        kl = F.kl_div(model(xt).log_softmax(1), p, reduction="batchmean").item()
        uniform = F.kl_div(torch.full_like(p, 1 / 6).log(), p, reduction="batchmean").item()
        return max(0.0, 1 - kl / uniform)

    return Program(
        model, None, DataLoader(TensorDataset(x), 50, shuffle=True),
        torch.optim.Adam(model.parameters(), 3e-3), score, step=step,
    )


@fault(
    "REINFORCE without its minus: the log-probability of good actions is minimised",
    rules=("output-loss-mismatch",),
    fails=True,
    steps=300,
)
def bandit_policy_gradient_sign(is_faulty):
    g = gen(21)
    x, xt = torch.randn(2000, 10, generator=g), torch.randn(500, 10, generator=g)
    truth = torch.randn(10, 4, generator=g)
    policy = nn.Sequential(nn.Linear(10, 64), nn.Tanh(), nn.Linear(64, 4))

    def step(policy, batch):
        state, best = batch
        dist = torch.distributions.Categorical(logits=policy(state))
        action = dist.sample()
        reward = (action == best).float()
        advantage = reward - reward.mean()
        objective = (dist.log_prob(action) * advantage).mean()
        return objective if is_faulty else -objective

    def score(policy):
        return (policy(xt).argmax(1) == (xt @ truth).argmax(1)).float().mean().item()

    return Program(
        policy, None, DataLoader(TensorDataset(x, (x @ truth).argmax(1)), 100, shuffle=True),
        torch.optim.Adam(policy.parameters(), 5e-3), score, step=step,
    )


class VAE(nn.Module):
    def __init__(self, size, latent):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(size, 64), nn.ReLU())
        self.mu = nn.Linear(64, latent)
        self.logvar = nn.Linear(64, latent)
        self.decoder = nn.Sequential(nn.Linear(latent, 64), nn.ReLU(), nn.Linear(64, size))

    def forward(self, x):
        h = self.body(x)
        mu, logvar = self.mu(h), self.logvar(h)
        z = mu + torch.randn_like(mu) * (0.5 * logvar).exp() if self.training else mu
        return self.decoder(z), mu, logvar


def factors(n, size, k, g):
    x = torch.randn(n, k, generator=g) @ torch.randn(k, size, generator=gen(77)) / k**0.5
    return x + 0.1 * torch.randn(n, size, generator=g)


@fault(
    "the KL term of a VAE is summed over batch and dimensions while the reconstruction is a mean: the latents collapse",
    rules=("term-dominates", "summed-loss"),
    fails=True,
    steps=350,
)
def vae_kl_summed(is_faulty):
    x, xt = factors(2000, 30, 4, gen(31)), factors(300, 30, 4, gen(32))
    model = VAE(30, 6)

    def step(model, batch):
        out, mu, logvar = model(batch[0])
        rec = F.mse_loss(out, batch[0])
        kl = -0.5 * (1 + logvar - mu**2 - logvar.exp())
        if is_faulty:
            kl = kl.sum()
        else:
            kl = kl.sum(1).mean() * 0.01
        return rec + kl

    return Program(
        model, None, DataLoader(TensorDataset(x), 64, shuffle=True),
        torch.optim.Adam(model.parameters(), 3e-3), lambda m: r2(m(xt)[0], xt), step=step,
    )


@fault(
    "the time step of a diffusion model enters its MLP as a raw number up to 1000",
    rules=("unscaled-input",),
    fails=False,
    steps=400,
)
def diffusion_raw_timestep(is_faulty):
    basis = torch.linalg.qr(torch.randn(8, 8, generator=gen(40)))[0][:2]

    def data(n, g):
        angle = torch.rand(n, 1, generator=g) * 6.2832
        return torch.cat([angle.cos(), angle.sin()], 1) @ basis * 1.4

    T = 1000
    abar = torch.cos(torch.arange(T) / T * 1.5) ** 2
    x, xt = data(3000, gen(41)), data(800, gen(42))
    gt = gen(43)
    tt, et = torch.randint(100, T, (800,), generator=gt), torch.randn(800, 8, generator=gt)

    class Denoiser(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = nn.Sequential(nn.Linear(9, 128), nn.SiLU(), nn.Linear(128, 128), nn.SiLU(), nn.Linear(128, 8))

        def forward(self, x, t):
            t = t.float() if is_faulty else t.float() / T
            return self.net(torch.cat([x, t[:, None]], 1))

    def noised(x, t, e):
        a = abar[t][:, None]
        return a.sqrt() * x + (1 - a).sqrt() * e

    def step(model, batch):
        (x0,) = batch
        t, e = torch.randint(100, T, (len(x0),)), torch.randn_like(x0)
        return F.mse_loss(model(noised(x0, t, e), t), e)

    model = Denoiser()
    return Program(
        model, None, DataLoader(TensorDataset(x), 100, shuffle=True),
        torch.optim.Adam(model.parameters(), 1e-3), lambda m: r2(m(noised(xt, tt, et), tt), et), step=step,
    )


@fault(
    "a no_grad left over from the evaluation surrounds the item tower, which never learns",
    rules=("no-gradient",),
    layers=("items",),
    fails=True,
    steps=400,
)
def recommender_items_no_grad(is_faulty):
    g = gen(51)
    u, v = torch.randn(150, 4, generator=g), torch.randn(80, 4, generator=g)
    ui, vi = torch.randint(150, (6000,), generator=g), torch.randint(80, (6000,), generator=g)
    rating = (u[ui] * v[vi]).sum(1) / 2
    train, test = slice(0, 5000), slice(5000, None)

    class MF(nn.Module):
        def __init__(self):
            super().__init__()
            self.users, self.items = nn.Embedding(150, 4), nn.Embedding(80, 4)
            for e in (self.users, self.items):
                nn.init.normal_(e.weight, std=0.3)

        def forward(self, a, b):
            left = self.users(a)
            if is_faulty:
                with torch.no_grad():
                    right = self.items(b)
            else:
                right = self.items(b)
            return (left * right).sum(1)

    model = MF()
    return Program(
        model, None, DataLoader(TensorDataset(ui[train], vi[train], rating[train]), 250, shuffle=True),
        torch.optim.Adam(model.parameters(), 0.02), lambda m: r2(m(ui[test], vi[test]), rating[test]),
        step=lambda m, b: F.mse_loss(m(b[0], b[1]), b[2]),
    )


@fault(
    "one head regresses a price in dollars, whose squared error drowns the other head's cross-entropy",
    rules=("unscaled-target", "term-dominates"),
    fails=True,
    steps=350,
)
def house_price_and_kind(is_faulty):
    g = gen(61)
    x = torch.randn(2400, 12, generator=g)
    price = 300_000 + 90_000 * torch.tanh(x @ torch.randn(12, generator=g) / 2)
    kind = (x @ torch.randn(12, 3, generator=g)).argmax(1)
    mean, std = price.mean(), price.std()

    class House(nn.Module):
        def __init__(self):
            super().__init__()
            self.trunk = nn.Sequential(nn.Linear(12, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU())
            self.price, self.kind = nn.Linear(64, 1), nn.Linear(64, 3)

        def forward(self, x):
            h = self.trunk(x)
            return self.price(h).squeeze(1), self.kind(h)

    goal = price if is_faulty else (price - mean) / std

    def step(model, batch):
        a, b = model(batch[0])
        return F.mse_loss(a, batch[1]) + F.cross_entropy(b, batch[2])

    def score(model):
        a, b = model(x[2000:])
        kinds = (b.argmax(1) == kind[2000:]).float().mean().item()
        return 0.5 * r2(a, goal[2000:]) + 0.5 * max(0.0, (kinds - 1 / 3) * 1.5)

    model = House()
    return Program(
        model, None, DataLoader(TensorDataset(x[:2000], goal[:2000], kind[:2000]), 64, shuffle=True),
        torch.optim.Adam(model.parameters(), 2e-3), score, step=step,
    )


@fault(
    "the teacher's logits were stored in the order of the file, the inputs come shuffled",
    rules=("labels-unrelated", "output-loss-mismatch"),
    fails=True,
    steps=300,
)
def distill_stored_logits_out_of_order(is_faulty):
    g = gen(71)
    x = torch.randn(1800, 20, generator=g)
    w1, w2 = torch.randn(20, 16, generator=g) / 3, torch.randn(16, 5, generator=g)
    stored = torch.tanh(x @ w1) @ w2
    order = torch.randperm(1500, generator=g)
    inputs = x[:1500][order]
    logits = stored[:1500] if is_faulty else stored[:1500][order]
    student = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 5))

    def step(student, batch):
        a, t = batch
        return 4 * F.kl_div((student(a) / 2).log_softmax(1), (t / 2).softmax(1), reduction="batchmean")

    return Program(
        student, None, DataLoader(TensorDataset(inputs, logits), 50, shuffle=True),
        torch.optim.AdamW(student.parameters(), 3e-3),
        lambda m: (m(x[1500:]).argmax(1) == stored[1500:].argmax(1)).float().mean().item(), step=step,
    )
