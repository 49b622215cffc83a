import math

import torch
import torch.nn.functional as F
from program import Program, fault
from torch import nn
from torch.distributions import Categorical, Normal
from tos_kit import acc, dl, r2, rn, ru, table


class TosVAE(nn.Module):
    def __init__(self, d, z):
        super().__init__()
        self.enc = nn.Sequential(nn.Linear(d, 64), nn.ReLU())
        self.mu, self.logvar = nn.Linear(64, z), nn.Linear(64, z)
        self.dec = nn.Sequential(nn.Linear(z, 64), nn.ReLU(), nn.Linear(64, d))

    def forward(self, x):
        h = self.enc(x)
        mu, lv = self.mu(h), self.logvar(h)
        z = mu + torch.randn_like(mu) * (0.5 * lv).exp() if self.training else mu
        return self.dec(z), mu, lv


@fault("KL summed over batch and units, next to a mean reconstruction error", rules=["term-dominates", "summed-loss"], fails=True, steps=400)
def tos_vae_collapses(bad):
    x = rn(1200, 4) @ rn(4, 20, s=1)
    x = x / x.std()
    model = TosVAE(20, 6)

    def step(m, batch):
        (b,) = batch
        out, mu, lv = m(b)
        kl = -0.5 * (1 + lv - mu**2 - lv.exp())
        kl = kl.sum() if bad else kl.sum(1).mean()
        return F.mse_loss(out, b) + 0.01 * kl

    return Program(model, None, dl(x[200:]), torch.optim.Adam(model.parameters(), 3e-3),
                   lambda m: r2(m(x[:200])[0], x[:200]), step=step)


class TosField(nn.Module):
    def __init__(self, width=32, act=nn.Tanh):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(1, width), act(), nn.Linear(width, width), act(), nn.Linear(width, 1))

    def forward(self, x):
        return self.body(x)


class TosPoints:
    def __init__(self, n, size, high=1.0):
        self.n, self.size, self.high = n, size, high

    def __iter__(self):
        for _ in range(self.n):
            yield torch.rand(self.size, 1) * self.high

    def __len__(self):
        return self.n


@fault("PINN whose residual is weighted so that the initial condition is not learned", rules=["term-dominates"], fails=True, steps=500)
def tos_pinn_weight(bad):
    model = TosField()

    def step(m, x):
        x = x.clone().requires_grad_(True)
        u = m(x)
        du = torch.autograd.grad(u.sum(), x, create_graph=True)[0]
        residual = ((du + 3 * u) ** 2).mean() * (1e5 if bad else 1.0)
        start = ((m(torch.zeros(1, 1)) - 1) ** 2).mean()
        return residual + 100 * start

    t = torch.linspace(0, 1, 50)[:, None]
    return Program(model, None, TosPoints(50, 32), torch.optim.Adam(model.parameters(), 2e-3),
                   lambda m: r2(m(t), torch.exp(-3 * t)), step=step)


@fault("PINN fed with seconds in the hundreds", rules=["unscaled-input", "saturated-activation"], fails=True, steps=400)
def tos_pinn_seconds(bad):
    model = TosField()
    span = 500.0 if bad else 1.0
    def step(m, x):
        x = x.clone().requires_grad_(True)
        u = m(x)
        du = torch.autograd.grad(u.sum(), x, create_graph=True)[0] * span
        return ((du - 4 * torch.cos(4 * x / span)) ** 2).mean() + 20 * (m(torch.zeros(1, 1)) ** 2).mean()

    t = torch.linspace(0, 1, 50)[:, None]
    return Program(model, None, TosPoints(50, 48, span), torch.optim.Adam(model.parameters(), 3e-3),
                   lambda m: r2(m(t * span), torch.sin(4 * t)), step=step)


class TosPolicy(nn.Module):
    def __init__(self, d=8, k=4):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(d, 32), nn.Tanh(), nn.Linear(32, k))

    def forward(self, s):
        return self.net(s)


@fault("REINFORCE without its minus sign", rules=["output-loss-mismatch", "diverging"], fails=True, steps=300)
def tos_reinforce_sign(bad):
    s = rn(2200, 8)
    best = (s @ rn(8, 4, s=1)).argmax(1)
    model = TosPolicy()

    def step(m, batch):
        state, good = batch
        pi = Categorical(logits=m(state))
        a = pi.sample()
        adv = (a == good).float() - 0.25
        value = (pi.log_prob(a) * adv).mean()
        return value if bad else -value

    return Program(model, None, dl(s[200:], best[200:], bs=128), torch.optim.Adam(model.parameters(), 5e-3),
                   lambda m: acc(m(s[:200]), best[:200]), step=step)


class TosActorCritic(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU())
        self.actor, self.critic = nn.Linear(32, 4), nn.Linear(32, 1)

    def forward(self, s):
        h = self.trunk(s)
        return self.actor(h), self.critic(h).squeeze(-1)


@fault("critic's error on returns in the hundreds swamps the policy's gradient in the shared trunk",
       rules=["term-dominates", "unscaled-target"], fails=True, steps=350)
def tos_critic_swamps(bad):
    s = rn(2200, 8)
    best = (s @ rn(8, 4, s=1)).argmax(1)
    scale = 400.0 if bad else 1.0
    model = TosActorCritic()
    opt = torch.optim.Adam(model.parameters(), 4e-3)

    def step(m, batch):
        state, good = batch
        logits, v = m(state)
        pi = Categorical(logits=logits)
        a = pi.sample()
        ret = ((a == good).float() + state[:, 0]) * scale
        adv = ret - v.detach()
        adv = (adv - adv.mean()) / (adv.std() + 1e-6)
        policy = -(pi.log_prob(a) * adv).mean()
        return policy + 0.5 * F.mse_loss(v, ret) - 0.01 * pi.entropy().mean()

    return Program(model, None, dl(s[200:], best[200:], bs=128), opt, lambda m: acc(m(s[:200])[0], best[:200]), step=step)


class TosRidgeMeta(nn.Module):
    def __init__(self, cut):
        super().__init__()
        self.features = nn.Sequential(nn.Linear(1, 40), nn.Tanh(), nn.Linear(40, 8), nn.Tanh())
        self.log_ridge = nn.Parameter(torch.tensor(0.0))
        self.cut = cut

    def embed(self, x):
        with torch.set_grad_enabled(torch.is_grad_enabled() and not self.cut):
            return self.features(x)

    def forward(self, sx, sy, qx):
        a = self.embed(sx)
        gram = a.transpose(1, 2) @ a + self.log_ridge.exp() * torch.eye(8)
        return self.embed(qx) @ torch.linalg.solve(gram, a.transpose(1, 2) @ sy)


def tos_sines(n, seed):
    x = ru(n, 30, 1, s=seed) * 10 - 5
    y = (0.5 + ru(n, 1, 1, s=seed + 1)) * torch.sin(x + 6.28 * ru(n, 1, 1, s=seed + 2))
    return x, y


@fault("meta-learner's features are computed without a graph", rules=["no-gradient"], layers=["features"], fails=True, steps=400)
def tos_meta_cut(bad):
    model = TosRidgeMeta(bad)
    tx, ty = tos_sines(600, 1)
    vx, vy = tos_sines(100, 50)

    def step(m, batch):
        x, y = batch
        return F.mse_loss(m(x[:, :10], y[:, :10], x[:, 10:]), y[:, 10:])

    return Program(model, None, dl(tx, ty, bs=16), torch.optim.Adam(model.parameters(), 5e-3),
                   lambda m: r2(m(vx[:, :10], vy[:, :10], vx[:, 10:]), vy[:, 10:]), step=step)


class TosDenoiser(nn.Module):
    def __init__(self, raw):
        super().__init__()
        self.raw = raw
        self.net = nn.Sequential(nn.Linear(3, 64), nn.SiLU(), nn.Linear(64, 64), nn.SiLU(), nn.Linear(64, 2))

    def forward(self, x, t):
        t = t.float() if self.raw else t.float() / 1000
        return self.net(torch.cat([x, t[:, None]], 1))


@fault("timestep of a diffusion model enters as 0 to 999", rules=["unscaled-input", "non-finite"], fails=True, steps=400)
def tos_raw_timestep(bad):
    a = ru(1500, s=3) * 6.28
    x0 = torch.stack([a.cos(), a.sin()], 1) * 1.5
    abar = torch.cumprod(1 - torch.linspace(1e-4, 0.02, 1000), 0)
    model = TosDenoiser(bad)

    def noised(x, t, e):
        return abar[t].sqrt()[:, None] * x + (1 - abar[t]).sqrt()[:, None] * e

    def step(m, batch):
        (x,) = batch
        t = torch.randint(0, 1000, (len(x),))
        e = torch.randn_like(x)
        return F.mse_loss(m(noised(x, t, e), t), e)

    hx, ht, he = x0[:300], (ru(300, s=9) * 700 + 300).long(), rn(300, 2, s=8)
    return Program(model, None, dl(x0[300:], bs=128), torch.optim.SGD(model.parameters(), 0.1, momentum=0.9),
                   lambda m: r2(m(noised(hx, ht, he), ht), he), step=step)


@fault("generator ends in a sigmoid, the data lie around zero", rules=["output-loss-mismatch"], layers=["4", "5"], fails=False, steps=300)
def tos_generator_range(bad):
    data = rn(1000, 2) @ torch.tensor([[1.0, 0.6], [0.0, 0.8]]) * 1.5
    model = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 2),
                          nn.Sigmoid() if bad else nn.Identity())

    def swd(fake, real):
        w = F.normalize(torch.randn(2, 16), dim=0)
        return ((fake @ w).sort(0)[0] - (real @ w).sort(0)[0]).pow(2).mean()

    def step(m, batch):
        (real,) = batch
        return swd(m(torch.randn(len(real), 4)), real)

    def score(m):
        fake = m(rn(500, 4, s=4))
        d = sum(((fake[:, i].sort()[0] - data[:500, i].sort()[0]) ** 2).mean() for i in (0, 1))
        return max(0.0, float(1 - d / data.var(0).sum()))

    return Program(model, None, dl(data), torch.optim.Adam(model.parameters(), 3e-3), score, step=step)


class TosHeads(nn.Module):
    def __init__(self, shared):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(10, 48), nn.GELU())
        self.heads = nn.ModuleList([nn.Linear(48, 1)] * 3 if shared else [nn.Linear(48, 1) for _ in range(3)])

    def forward(self, x):
        h = self.body(x)
        return torch.cat([head(h) for head in self.heads], 1)


@fault("[head] * 3: the heads of three tasks are one", rules=["shared-weight"], layers=["heads"], fails=False, steps=300)
def tos_heads_times_three(bad):
    x = rn(1200, 10)
    y = torch.tanh(x @ rn(10, 3, s=2) / 2)
    model = TosHeads(bad)

    def step(m, batch):
        b, t = batch
        out = m(b)
        return sum(F.smooth_l1_loss(out[:, i], t[:, i]) for i in range(3))

    return Program(model, None, dl(x[200:], y[200:]), torch.optim.AdamW(model.parameters(), 4e-3),
                   lambda m: r2(m(x[:200]), y[:200]), step=step)


class TosMoE(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.gate = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 4), nn.Softmax(dim=dim))
        self.experts = nn.ModuleList(nn.Linear(6, 1) for _ in range(4))

    def forward(self, x):
        outs = torch.stack([e(x) for e in self.experts], 1).squeeze(-1)
        return (self.gate(x) * outs).sum(1)


@fault("gate of a mixture of experts is normalised over the batch", rules=["wrong-softmax-dimension", "mixed-examples"],
       layers=["gate"], fails=True, steps=400)
def tos_gate_over_batch(bad):
    x = rn(1500, 6)
    w = rn(6, 2, s=5)
    y = torch.where(x[:, 0] > 0, x @ w[:, 0], x @ w[:, 1] + 1) / 2
    model = TosMoE(0 if bad else 1)
    return Program(model, F.mse_loss, dl(x[300:], y[300:], bs=100), torch.optim.Adam(model.parameters(), 1e-2),
                   lambda m: r2(m(x[:300]), y[:300]))


class TosGauss(nn.Module):
    def __init__(self, start):
        super().__init__()
        self.mean = nn.Sequential(nn.Linear(5, 32), nn.Tanh(), nn.Linear(32, 2))
        self.log_std = nn.Parameter(torch.full((2,), start))

    def forward(self, s):
        return Normal(self.mean(s), self.log_std.exp())


@fault("log_std of a Gaussian policy starts at -5", rules=["bad-initialisation", "learning-rate-too-high", "exploding-gradient", "diverging", "non-finite"],
       layers=["log_std"], fails=True, steps=300)
def tos_log_std_start(bad):
    s = rn(1200, 5)
    a = torch.sin(s @ rn(5, 2, s=4) / 2) + 0.1 * rn(1200, 2, s=6)
    model = TosGauss(-5.0 if bad else 0.0)

    def step(m, batch):
        state, action = batch
        return -m(state).log_prob(action).mean()

    return Program(model, None, dl(s[200:], a[200:]), torch.optim.SGD(model.parameters(), 0.02, momentum=0.9),
                   lambda m: r2(m.mean(s[:200]), a[:200]), step=step)


@fault("the variance of a Gaussian likelihood is a raw output", rules=["output-loss-mismatch", "exploding-gradient", "learning-rate-too-high", "diverging"], layers=["2"], fails=True, steps=500)
def tos_raw_variance(bad):
    x = rn(1200, 6)
    y = torch.tanh(x @ rn(6, 1, s=4) / 2)[:, 0] + 0.1 * rn(1200, s=6)
    model = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 2))

    def step(m, batch):
        b, t = batch
        mean, v = m(b).unbind(1)
        v = v.clamp(min=1e-5) if bad else F.softplus(v) + 1e-3
        return 0.5 * (v.log() + (t - mean) ** 2 / v).mean()

    return Program(model, None, dl(x[200:], y[200:]), torch.optim.SGD(model.parameters(), 0.04),
                   lambda m: r2(m(x[:200])[:, 0], y[:200]), step=step)


class TosStudent(nn.Module):
    def __init__(self, p):
        super().__init__()
        self.fc1, self.drop, self.fc2 = nn.Linear(64, 48), nn.Dropout(p), nn.Linear(48, 10)

    def forward(self, x):
        return self.fc2(self.drop(F.relu(self.fc1(x))))


def tos_teacher(x):
    """Soft labels of digits."""
    xt, yt, *_ = table("digits")
    centre = torch.stack([xt[yt == k].mean(0) for k in range(10)])
    return (-torch.cdist(x, centre) ** 2 * 2).softmax(1)


@fault("keep probability given as dropout probability in a student", rules=["dropout-too-strong"], layers=["drop"], fails=False, steps=200)
def tos_student_dropout(bad):
    x, y, vx, vy = table("digits")
    model = TosStudent(0.97 if bad else 0.03)

    def step(m, batch):
        b, soft = batch
        return F.kl_div(m(b).log_softmax(1), soft, reduction="batchmean")

    return Program(model, None, dl(x, tos_teacher(x)), torch.optim.Adam(model.parameters(), 2e-3), lambda m: acc(m(vx), vy), step=step)


@fault("student is trained with KL on probabilities where log-probabilities belong", rules=["output-loss-mismatch"], fails=True, steps=300)
def tos_kl_of_probabilities(bad):
    x, y, vx, vy = table("digits")
    soft, vsoft = [(tos_teacher(b) + 1e-4).log().div(6).softmax(1) for b in (x, vx)]
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))

    def step(m, batch):
        b, t = batch
        out = m(b)
        return F.kl_div(out.softmax(1) if bad else out.log_softmax(1), t, reduction="batchmean")

    return Program(model, None, dl(x, soft), torch.optim.Adam(model.parameters(), 3e-3), lambda m: r2(m(vx).softmax(1), vsoft), step=step)
