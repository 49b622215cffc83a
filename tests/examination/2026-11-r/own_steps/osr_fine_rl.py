"""Reinforcement learning with nothing wrong."""
import torch
import torch.nn.functional as F
from torch import nn
from torch.distributions import Categorical, Normal

from osr_base import accuracy, bandit, ema, gen, loader, mlp, r2, room
from osr_rl import ActorCritic, Twin
from program import Program, sound


@sound("double DQN with a frozen target that follows slowly", steps=500, least=0.85)
def osr_ok_double_dqn():
    s, a, r, t, score = room(111)
    model = Twin(mlp(2, 64, 64, 4))

    def step(m, b):
        s, a, r, t = b
        with torch.no_grad():
            best = m.online(t).argmax(1, keepdim=True)
            goal = r + 0.8 * m.target(t).gather(1, best)[:, 0]
        loss = F.smooth_l1_loss(m.online(s).gather(1, a[:, None])[:, 0], goal)
        ema(m.target, m.online, 0.02)
        return loss

    return Program(model, None, loader(s, a, r, t), torch.optim.Adam(model.online.parameters(), 3e-3), lambda m: score(m), step=step)


@sound("DQN, half trained", trained=250, steps=500, least=0.75)
def osr_ok_dqn_half():
    s, a, r, t, score = room(112)
    model = Twin(mlp(2, 64, 64, 4, act=nn.ELU))

    def step(m, b):
        s, a, r, t = b
        with torch.no_grad():
            goal = r + 0.7 * m.target(t).max(1).values
        ema(m.target, m.online, 0.05)
        return F.mse_loss(m.online(s).gather(1, a[:, None])[:, 0], goal)

    return Program(model, None, loader(s, a, r, t, n=128), torch.optim.RMSprop(model.online.parameters(), 1e-3), lambda m: score(m), step=step)


@sound("REINFORCE: a loss around zero that does not fall", steps=500, least=0.7)
def osr_ok_reinforce():
    x, v, xt, vt = bandit(113)
    model = mlp(8, 64, 64, 4)

    def step(m, b):
        dist = Categorical(logits=m(b[0]))
        a = dist.sample()
        r = (a == b[1]).float()
        return -(dist.log_prob(a) * (r - r.mean()) / (r.std() + 1e-6)).mean() - 0.001 * dist.entropy().mean()

    return Program(model, None, loader(x, v.argmax(1)), torch.optim.Adam(model.parameters(), 3e-3),
                   lambda m: accuracy(m(xt), vt.argmax(1)), step=step)


class Proximal(nn.Module):
    """A policy with orthogonal initialisation and a small last layer, and a copy that acted."""

    def __init__(self):
        super().__init__()
        self.policy = mlp(8, 64, 64, 4, act=nn.Tanh)
        self.value = mlp(8, 64, 64, 1, act=nn.Tanh)
        for net, last in ((self.policy, 0.01), (self.value, 1.0)):
            linear = [m for m in net if isinstance(m, nn.Linear)]
            for layer in linear:
                nn.init.orthogonal_(layer.weight, last if layer is linear[-1] else 2**0.5)
                nn.init.zeros_(layer.bias)

    def forward(self, x):
        return self.policy(x), self.value(x)


@sound("PPO on logged actions with clipping, a head of gain 0.01", steps=400, least=0.7)
def osr_ok_ppo():
    x, v, xt, vt = bandit(114, k=4)
    model = Proximal()

    def step(m, b):
        s, best = b
        logits, value = m(s)
        with torch.no_grad():
            old = Categorical(logits=logits)
            a = old.sample()
            r = (a == best).float()
            adv = r - value[:, 0]
            adv = (adv - adv.mean()) / (adv.std() + 1e-8)
        new = Categorical(logits=logits)
        ratio = (new.log_prob(a) - old.log_prob(a)).exp()
        clipped = torch.min(ratio * adv, ratio.clamp(0.8, 1.2) * adv).mean()
        return -clipped + 0.5 * F.mse_loss(value[:, 0], r) - 0.003 * new.entropy().mean()

    return Program(model, None, loader(x, v.argmax(1), n=128), torch.optim.Adam(model.parameters(), 2e-3, eps=1e-5),
                   lambda m: accuracy(m(xt)[0], vt.argmax(1)), step=step)


@sound("actor and critic of one body, the critic on detached features", steps=500, least=0.7)
def osr_ok_critic_detached():
    x, v, xt, vt = bandit(115)
    model = ActorCritic()

    def step(m, b):
        h = m.body(b[0])
        dist = Categorical(logits=m.actor(h))
        value = m.critic(h.detach())[:, 0]
        a = dist.sample()
        adv = (a == b[1]).float() - value
        return -(dist.log_prob(a) * adv.detach()).mean() + adv.pow(2).mean()

    return Program(model, None, loader(x, v.argmax(1)), torch.optim.Adam(model.parameters(), 4e-3),
                   lambda m: accuracy(m(xt)[0], vt.argmax(1)), step=step)


class Soft(nn.Module):
    def __init__(self):
        super().__init__()
        self.actor = mlp(4, 64, 64, 2)
        self.q1, self.q2 = mlp(5, 64, 64, 1), mlp(5, 64, 64, 1)
        self.log_alpha = nn.Parameter(torch.tensor(-2.0))

    def forward(self, s):
        mu, log_std = self.actor(s).chunk(2, 1)
        return Normal(mu, log_std.clamp(-5, 1).exp())


@sound("soft actor-critic of one step: twin critics, a learned temperature, frozen critics in the actor's term", steps=600, least=0.7)
def osr_ok_sac():
    g = gen(116)
    x = torch.randn(2500, 4, generator=g)
    best = torch.sin(x[:, 0] + x[:, 1])[:, None]
    model = Soft()

    def frozen(net, z):
        return torch.func.functional_call(net, {k: p.detach() for k, p in net.named_parameters()}, (z,))

    def step(m, b):
        s, goal = b
        logged = torch.rand(len(s), 1) * 4 - 2
        r = -(logged - goal).pow(2)
        z = torch.cat([s, logged], 1)
        critics = F.mse_loss(m.q1(z), r) + F.mse_loss(m.q2(z), r)
        dist = m(s)
        a = dist.rsample()
        lp = dist.log_prob(a)
        z = torch.cat([s, a.clamp(-2, 2)], 1)
        q = torch.min(frozen(m.q1, z), frozen(m.q2, z))
        alpha = m.log_alpha.exp()
        actor = (alpha.detach() * lp - q).mean()
        return critics + actor - (alpha * (lp + 0.0).detach()).mean() * 0.1

    return Program(model, None, loader(x[:2000], best[:2000]), torch.optim.Adam(model.parameters(), 3e-3),
                   lambda m: r2(m(x[2000:]).mean, best[2000:]), step=step)


@sound("implicit Q-learning: expectiles, and a policy cloned with exponential weights", steps=500, least=0.65)
def osr_ok_iql():
    x, v, xt, vt = bandit(117)
    a = torch.randint(4, (len(x),), generator=gen(2))
    r = v.gather(1, a[:, None])[:, 0]
    model = nn.ModuleDict({"q": mlp(8, 64, 64, 4), "v": mlp(8, 64, 1), "policy": mlp(8, 64, 4)})

    def step(m, b):
        s, act, ret = b
        q = m["q"](s).gather(1, act[:, None])[:, 0]
        value = m["v"](s)[:, 0]
        gap = q.detach() - value
        expectile = ((gap < 0).float() - 0.8).abs() * gap.pow(2)
        weight = (gap.detach() * 3).exp().clamp(max=20)
        cloned = -(weight * Categorical(logits=m["policy"](s)).log_prob(act)).mean()
        return F.mse_loss(q, ret) + expectile.mean() + cloned

    return Program(model, None, loader(x, a, r), torch.optim.Adam(model.parameters(), 3e-3),
                   lambda m: accuracy(m["policy"](xt), vt.argmax(1)), step=step)


@sound("returns of thousands behind a layer that scales its output", steps=400, least=0.8)
def osr_ok_popart():
    x, v, xt, vt = bandit(118)
    y, yt = 2000 + 500 * v[:, :1], 2000 + 500 * vt[:, :1]

    class Value(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = mlp(8, 64, 64, 1)
            self.register_buffer("mean", y.mean())
            self.register_buffer("std", y.std())

        def forward(self, s):
            return self.net(s) * self.std + self.mean

    model = Value()
    return Program(model, None, loader(x, y), torch.optim.Adam(model.parameters(), 2e-3), lambda m: r2(m(xt), yt),
                   step=lambda m, b: ((m(b[0]) - b[1]) / m.std).pow(2).mean())


@sound("quantile regression of returns (QR-DQN)", steps=400, least=0.7)
def osr_ok_quantiles():
    g = gen(119)
    x = torch.rand(2500, 2, generator=g) * 2 - 1
    y = torch.sin(3 * x[:, 0]) + (0.2 + x[:, 1].abs()) * torch.randn(2500, generator=g) * 0.4
    model = mlp(2, 64, 64, 9)
    tau = (torch.arange(9) + 0.5) / 9

    def step(m, b):
        gap = b[1][:, None] - m(b[0])
        return (F.huber_loss(gap, torch.zeros_like(gap), reduction="none", delta=0.1) * (tau - (gap < 0).float()).abs() / 0.1).sum(1).mean()

    return Program(model, None, loader(x[:2000], y[:2000]), torch.optim.Adam(model.parameters(), 3e-3),
                   lambda m: r2(m(x[2000:])[:, 4], torch.sin(3 * x[2000:, 0])), step=step)


@sound("behaviour cloning, quite ordinary", steps=300, least=0.75)
def osr_ok_cloning():
    x, v, xt, vt = bandit(120)
    model = mlp(8, 64, 64, 4)
    return Program(model, None, loader(x, v.argmax(1)), torch.optim.Adam(model.parameters(), 2e-3),
                   lambda m: accuracy(m(xt), vt.argmax(1)), step=lambda m, b: F.cross_entropy(m(b[0]), b[1]))


@sound("behaviour cloning, trained", trained=400, steps=500, least=0.75)
def osr_ok_cloning_trained():
    x, v, xt, vt = bandit(121, k=6)
    model = nn.Sequential(nn.Linear(8, 96), nn.LayerNorm(96), nn.SiLU(), nn.Linear(96, 6))
    return Program(model, None, loader(x, v.argmax(1), n=32), torch.optim.AdamW(model.parameters(), 2e-3, weight_decay=0.05),
                   lambda m: accuracy(m(xt), vt.argmax(1)), step=lambda m, b: -Categorical(logits=m(b[0])).log_prob(b[1]).mean())


@sound("masked actions get a logit of -1e9", steps=400, least=0.75)
def osr_ok_legal_moves():
    x, v, xt, vt = bandit(122, k=6)
    g = gen(123)
    legal, legalt = torch.rand(v.shape, generator=g) < 0.6, torch.rand(vt.shape, generator=g) < 0.6
    legal[:, 0] = legalt[:, 0] = True
    best = v.masked_fill(~legal, -1e9).argmax(1)
    bestt = vt.masked_fill(~legalt, -1e9).argmax(1)

    class Policy(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = mlp(8, 64, 64, 6)

        def forward(self, s, mask):
            return self.net(s).masked_fill(~mask, -1e9)

    model = Policy()
    return Program(model, None, loader(x, legal, best), torch.optim.Adam(model.parameters(), 2e-3),
                   lambda m: accuracy(m(xt, legalt), bestt), step=lambda m, b: F.cross_entropy(m(b[0], b[1]), b[2]))


@sound("Gaussian policy by maximum likelihood: the loss falls below zero", steps=400, least=0.8)
def osr_ok_gaussian_policy():
    g = gen(124)
    x = torch.randn(2500, 5, generator=g)
    y = 0.8 * torch.sin(x[:, :2] * 1.5) + 0.03 * torch.randn(2500, 2, generator=g)

    class Policy(nn.Module):
        def __init__(self):
            super().__init__()
            self.mean = mlp(5, 64, 64, 2, act=nn.Tanh)
            self.log_std = nn.Parameter(torch.full((2,), -0.5))

        def forward(self, s):
            return Normal(self.mean(s), self.log_std.clamp(-4, 2).exp())

    model = Policy()
    return Program(model, None, loader(x[:2000], y[:2000]), torch.optim.Adam(model.parameters(), 3e-3),
                   lambda m: r2(m(x[2000:]).mean, y[2000:]), step=lambda m, b: -m(b[0]).log_prob(b[1]).sum(1).mean())
