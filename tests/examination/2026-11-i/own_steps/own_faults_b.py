"""Reinforcement, diffusion, implicit functions, attention."""

import math

import torch
import torch.nn.functional as F
from own_common import fit, gen, loader, r2, wavy
from program import Program, fault
from torch import nn


class ActorCritic(nn.Module):
    def __init__(self, d=6, actions=4):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(d, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh())
        self.actor = nn.Linear(32, actions)
        self.critic = nn.Linear(32, 1)

    def forward(self, s):
        h = self.trunk(s)
        return self.actor(h), self.critic(h).squeeze(-1)


def states(n, seed, d=6, actions=4):
    g = gen(seed)
    s = torch.randn(n, d, generator=g)
    w = torch.randn(d, actions, generator=g)
    return s, (s @ w + torch.sin(s[:, :actions] * 2)).argmax(1)


@fault("actor-critic on one trunk: the critic's loss on returns of hundreds, in the same sum and step as the policy's", rules=["term-dominates", "unscaled-target"], fails=True, steps=300)
def critic_of_raw_returns(bad):
    s, best = states(2000, 41)
    m = ActorCritic()
    scale = 300.0 if bad else 1.0

    def step(model, batch):
        sb, bb = batch
        logits, value = model(sb)
        dist = torch.distributions.Categorical(logits=logits)
        action = dist.sample()
        ret = scale * ((action == bb).float() + 0.5 * sb[:, 0])
        adv = (ret - value).detach()
        adv = (adv - adv.mean()) / (adv.std() + 1e-6)
        policy = -(dist.log_prob(action) * adv).mean()
        return policy + 0.5 * F.mse_loss(value, ret) - 0.01 * dist.entropy().mean()

    opt = torch.optim.SGD(m.parameters(), 0.2, momentum=0.9)

    def clip(*_):
        nn.utils.clip_grad_norm_(m.parameters(), 0.5)

    opt.register_step_pre_hook(clip)
    return Program(m, None, loader(s[:1600], best[:1600], size=128), opt, lambda m: float((m(s[1600:])[0].argmax(1) == best[1600:]).float().mean()), step=step)


def transitions(n, seed):
    g = gen(seed)
    s = torch.randn(n, 5, generator=g)
    w = torch.randn(5, 3, generator=g)
    q = torch.sin(s @ w) + 0.5 * s[:, :3]
    a = torch.randint(0, 3, (n,), generator=g)
    return s, a, q.gather(1, a[:, None]).squeeze(1) + 0.05 * torch.randn(n, generator=g), q


@fault("Q(s, a) keeps its last dimension from gather, the target has none: the difference is a matrix", rules=["output-loss-mismatch"], fails=True, steps=300)
def dqn_gather_not_squeezed(bad):
    s, a, target, q = transitions(2000, 42)
    m = nn.Sequential(nn.Linear(5, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 3))

    def step(net, batch):
        sb, ab, tb = batch
        value = net(sb).gather(1, ab.unsqueeze(1))
        if not bad:
            value = value.squeeze(1)
        delta = value - tb
        return torch.where(delta.abs() < 1, 0.5 * delta**2, delta.abs() - 0.5).mean()

    return Program(m, None, loader(s[:1600], a[:1600], target[:1600]), torch.optim.Adam(m.parameters(), 2e-3), lambda m: r2(m(s[1600:]), q[1600:]), step=step)


class Denoiser(nn.Module):
    def __init__(self, scale):
        super().__init__()
        self.scale = scale
        self.net = nn.Sequential(nn.Linear(3, 96), nn.SiLU(), nn.Linear(96, 96), nn.SiLU(), nn.Linear(96, 2))

    def forward(self, x, t):
        return self.net(torch.cat([x, t[:, None].float() * self.scale], 1))


BETA = torch.linspace(1e-3, 2e-2, 1000)
ABAR = torch.cumprod(1 - BETA, 0)


def ring(n, seed):
    g = gen(seed)
    a = torch.rand(n, generator=g) * 2 * math.pi
    return torch.stack([a.cos(), a.sin()], 1) * 1.4 + 0.02 * torch.randn(n, 2, generator=g)


def diffusion(model, x, redraw=False):
    def noised(xb, t, eps):
        ab = ABAR[t][:, None]
        return ab.sqrt() * xb + (1 - ab).sqrt() * eps

    def step(m, batch):
        (xb,) = batch
        t = torch.randint(0, 1000, (len(xb),))
        x_t = noised(xb, t, torch.randn_like(xb)) if redraw else None
        noise = torch.randn_like(xb)
        if x_t is None:
            x_t = noised(xb, t, noise)
        return F.mse_loss(m(x_t, t), noise)

    g = gen(99)
    hx = ring(600, 77)
    ht = torch.randint(100, 1000, (600,), generator=g)
    he = torch.randn(600, 2, generator=g)
    return Program(model, None, loader(x, size=128), torch.optim.Adam(model.parameters(), 2e-3), lambda m: r2(m(noised(hx, ht, he), ht), he), step=step)


@fault("the noise that is added and the noise that is asked for are drawn separately", rules=["labels-unrelated"], fails=True, steps=300)
def diffusion_noise_drawn_twice(bad):
    return diffusion(Denoiser(1 / 1000), ring(2560, 51), redraw=bad)


@fault("the time step goes into the denoiser as an integer up to 999", rules=["unscaled-input", "ill-conditioned-input"], fails=False, steps=150)
def diffusion_raw_time(bad):
    return diffusion(Denoiser(1.0 if bad else 1 / 1000), ring(2560, 52))


class Siren(nn.Module):
    def __init__(self, bad, h=64, omega=20.0):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(2, h), nn.Linear(h, h), nn.Linear(h, h)])
        self.out = nn.Linear(h, 1)
        self.omega = omega
        nn.init.uniform_(self.layers[0].weight, -1 / 4, 1 / 4)
        for layer in [*self.layers[1:], self.out]:
            if not bad:
                bound = math.sqrt(6 / h) / omega
                nn.init.uniform_(layer.weight, -bound, bound)
            else:
                nn.init.xavier_normal_(layer.weight)

    def forward(self, x):
        for layer in self.layers:
            x = torch.sin(self.omega * layer(x))
        return self.out(x)


def picture(n, seed):
    g = gen(seed)
    x = torch.rand(n, 2, generator=g) * 2 - 1
    y = torch.sin(4 * x[:, 0]) * torch.cos(5 * x[:, 1]) + 0.5 * torch.sin(6 * (x[:, 0] + x[:, 1]))
    return x, y[:, None] / y.std()


@fault("a sine network with ω = 20 whose hidden layers keep a Xavier initialisation", rules=["bad-initialisation", "exploding-gradient"], layers=["layers", "out"], fails=False, steps=300)
def siren_xavier(bad):
    x, y = picture(1600, 53)
    m = Siren(bad)
    return Program(m, nn.MSELoss(), loader(x[:1280], y[:1280]), torch.optim.Adam(m.parameters(), 1e-3), fit(x[1280:], y[1280:]))


class Fourier(nn.Module):
    def __init__(self, bad):
        super().__init__()
        self.register_buffer("freq", 2.0 ** torch.arange(8) * math.pi)
        self.bad = bad

    def forward(self, x):
        if self.bad:
            x = x.bfloat16()
        a = x * self.freq.to(x.dtype)
        return torch.cat([a.sin(), a.cos()], -1).float()


@fault("positional encoding up to 2^7 π computed in bfloat16", rules=["rounding-error"], layers=["0"], fails=False, steps=400)
def fourier_in_bfloat16(bad):
    g = gen(54)
    x = torch.rand(2400, 1, generator=g) + 1
    y = (torch.sin(64 * math.pi * x) * torch.sin(9 * x) + torch.cos(128 * math.pi * x)) * 1.2
    m = nn.Sequential(Fourier(bad), nn.Linear(16, 96), nn.ReLU(), nn.Linear(96, 1))
    return Program(m, nn.MSELoss(), loader(x[:2000], y[:2000], size=100), torch.optim.Adam(m.parameters(), 4e-3), fit(x[2000:], y[2000:]))


class Bags(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.embed = nn.Sequential(nn.Linear(8, 32), nn.ReLU())
        self.attend = nn.Sequential(nn.Linear(32, 16), nn.Tanh(), nn.Linear(16, 1))
        self.head = nn.Linear(32, 3)
        self.dim = dim

    def forward(self, x):
        h = self.embed(x)
        w = torch.softmax(self.attend(h) * 2, self.dim)
        return self.head((w * h).sum(1))


@fault("attention over the instances of a bag: its softmax runs over the bags of the batch", rules=["wrong-softmax-dimension", "mixed-examples"], fails=False, steps=250)
def bags_softmax_over_batch(bad):
    g = gen(55)
    x = torch.randn(1800, 10, 8, generator=g)
    y = torch.randint(0, 3, (1800,), generator=g)
    c = 1.6 * torch.randn(3, 7, generator=g)
    where = torch.randint(0, 10, (1800,), generator=g)
    x[..., 0] = -1 + 0.2 * x[..., 0]
    x[torch.arange(1800), where, 0] = 2.0
    x[torch.arange(1800), where, 1:] = c[y] + 0.5 * torch.randn(1800, 7, generator=g)
    m = Bags(0 if bad else 1)

    def score(m):
        ok = [float((m(x[i : i + 4]).argmax(1) == y[i : i + 4]).float().mean()) for i in range(1400, 1800, 4)]
        return sum(ok) / len(ok)

    return Program(m, nn.CrossEntropyLoss(), loader(x[:1400], y[:1400], size=50), torch.optim.Adam(m.parameters(), 3e-3), score)


@fault("the squared error of a field is summed over points, the rate is the one for a mean", rules=["summed-loss", "learning-rate-too-high", "diverging", "non-finite"], fails=True, steps=300)
def field_loss_summed(bad):
    x, y = wavy(1800, 6, 57)
    m = nn.Sequential(nn.Linear(6, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1))

    def step(net, batch):
        xb, yb = batch
        err = (net(xb) - yb).square()
        return (err.sum() if bad else err.mean()) + 1e-5 * sum(p.square().sum() for p in net.parameters())

    return Program(m, None, loader(x[:1400], y[:1400], size=100), torch.optim.SGD(m.parameters(), 0.1, momentum=0.9), lambda m: max(-1.0, r2(m(x[1400:]), y[1400:])), step=step)
