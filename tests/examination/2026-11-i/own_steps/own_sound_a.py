"""Sound: latent variables, pairs, graphs, agents."""

import copy

import torch
import torch.nn.functional as F
from own_common import fit, gen, loader, nearest, r2
from own_faults_a import VAE, Towers, low_rank, noisy_classes, retrieval, two_views
from own_faults_b import Siren, picture, states, transitions
from program import Program, sound
from torch import nn


@sound("both terms of a VAE are sums over dimensions and means over the batch, KL weighted 0.1", steps=300, least=0.7)
def vae_of_sums():
    x = low_rank(1600, 16, 103)
    m = VAE()

    def step(model, batch):
        (xb,) = batch
        out, mu, logvar = model(xb)
        kl = -0.5 * (1 + logvar - mu.pow(2) - logvar.exp()).sum(1)
        return ((out - xb).square().sum(1) + 0.1 * kl).mean()

    return Program(m, None, loader(x[:1280]), torch.optim.Adam(m.parameters(), 2e-3), lambda m: r2(m(x[1280:])[0], x[1280:]), step=step)


@sound("a discriminator with soft labels 0.9 and 0.1, real and fake in one batch", steps=150, least=0.6)
def discriminator_soft_labels():
    g = gen(105)
    real = torch.randn(1500, 8, generator=g) + 0.8
    fake = torch.randn(1500, 8, generator=g) * 1.1 - 0.4
    m = nn.Sequential(nn.Linear(8, 48), nn.LeakyReLU(0.2), nn.utils.parametrizations.spectral_norm(nn.Linear(48, 48)), nn.LeakyReLU(0.2), nn.Linear(48, 1))

    def step(d, batch):
        r, f = batch
        logits = d(torch.cat([r, f])).squeeze(1)
        target = torch.cat([torch.full((len(r),), 0.9), torch.full((len(f),), 0.1)])
        return F.binary_cross_entropy_with_logits(logits, target)

    def score(d):
        return float((d(real[1200:]) > 0).float().mean() + (d(fake[1200:]) < 0).float().mean()) - 1

    return Program(m, None, loader(real[:1200], fake[:1200]), torch.optim.Adam(m.parameters(), 1e-3, betas=(0.5, 0.999)), score, step=step)


@sound("two towers whose targets are 0 to n - 1 whatever the examples, with a learned temperature", steps=250, least=0.65)
def towers_learned_temperature():
    a, b = two_views(1344, 112)
    m = Towers()
    m.log_scale = nn.Parameter(torch.tensor(-1.0))

    def step(model, batch):
        sim = model(*batch) * model.log_scale.exp()
        labels = torch.arange(len(sim))
        return (F.cross_entropy(sim, labels) + F.cross_entropy(sim.T, labels)) / 2

    return Program(m, None, loader(a[:1280], b[:1280]), torch.optim.Adam(m.parameters(), 2e-3), retrieval(a[1280:], b[1280:]), step=step)


@sound("triplets mined in the batch, half trained: part of the hinge is off", trained=120, steps=250, least=0.7)
def triplet_mined():
    x, y = noisy_classes(1800, 121)
    m = nn.Sequential(nn.Linear(24, 64), nn.ReLU(), nn.Linear(64, 8))

    def step(model, batch):
        xb, yb = batch
        e = F.normalize(model(xb), dim=1)
        d = (2 - 2 * e @ e.T).clamp_min(1e-6).sqrt()
        same = yb[:, None] == yb[None]
        hardest = (d * same).max(1).values
        closest = (d + 10.0 * same).min(1).values
        return F.softplus(4 * (hardest - closest)).mean()

    return Program(m, None, loader(x[:1280], y[:1280]), torch.optim.Adam(m.parameters(), 2e-3), lambda m: nearest(F.normalize(m(x[1280:]), dim=1), y[1280:], 260), step=step)


@sound("REINFORCE: a noisy loss whose value says nothing, with a bonus of entropy", steps=400, least=0.65)
def reinforce_with_baseline():
    s, best = states(2400, 141)
    m = nn.Sequential(nn.Linear(6, 64), nn.Tanh(), nn.Linear(64, 4))
    nn.init.normal_(m[2].weight, std=0.01)

    def step(policy, batch):
        sb, bb = batch
        dist = torch.distributions.Categorical(logits=policy(sb))
        action = dist.sample()
        reward = torch.where(action == bb, 1.0, -0.3)
        adv = (reward - reward.mean()) / (reward.std() + 1e-6)
        return -(dist.log_prob(action) * adv).mean() - 0.005 * dist.entropy().mean()

    return Program(m, None, loader(s[:2000], best[:2000], size=200), torch.optim.Adam(m.parameters(), 5e-3), lambda m: float((m(s[2000:]).argmax(1) == best[2000:]).float().mean()), step=step)


class Double(nn.Module):
    def __init__(self):
        super().__init__()
        self.online = nn.Sequential(nn.Linear(5, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 3))
        self.target = copy.deepcopy(self.online).requires_grad_(False)

    def forward(self, s):
        return self.online(s)


@sound("a Q-network with a frozen copy that follows it slowly, and of whose outputs one in three has a gradient", steps=400, least=0.6)
def q_with_target_network():
    s, a, r, q = transitions(2400, 142)
    g = gen(143)
    nxt = torch.randint(0, 2400, (2400,), generator=g)
    m = Double()
    value = r - 0.3 * q.max(1).values[nxt]  # rewards for which q is the solution, discount 0.3

    def step(model, batch):
        sb, ab, rb, nb = batch
        with torch.no_grad():
            for p, t in zip(model.online.parameters(), model.target.parameters(), strict=True):
                t.lerp_(p, 0.05)
            goal = rb + 0.3 * model.target(nb).max(1).values
        return F.huber_loss(model(sb).gather(1, ab[:, None]).squeeze(1), goal)

    return Program(m, None, loader(s[:2000], a[:2000], value[:2000], s[nxt][:2000]), torch.optim.Adam(m.parameters(), 2e-3), lambda m: r2(m(s[2000:]), q[2000:]), step=step)


@sound("a sine network with its own initialisation: tiny hidden weights, ω = 20", trained=100, steps=300, least=0.9)
def siren_as_published():
    x, y = picture(1600, 153)
    m = Siren(False)
    return Program(m, nn.MSELoss(), loader(x[:1280], y[:1280]), torch.optim.Adam(m.parameters(), 1e-3), fit(x[1280:], y[1280:]))


@sound("a physics-informed network: no targets but an equation, derivatives in the loss, tanh", steps=400, least=0.9)
def pinn_oscillator():
    m = nn.Sequential(nn.Linear(1, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 1))

    def step(net, batch):
        t = batch[0].clone().requires_grad_(True)
        u = net(t)
        du = torch.autograd.grad(u.sum(), t, create_graph=True)[0]
        ddu = torch.autograd.grad(du.sum(), t, create_graph=True)[0]
        zero = torch.zeros(1, 1, requires_grad=True)
        u0 = net(zero)
        du0 = torch.autograd.grad(u0.sum(), zero, create_graph=True)[0]
        return (ddu + 4 * u).square().mean() + 10 * ((u0 - 1).square() + du0.square()).mean()

    t = torch.rand(640, 1, generator=gen(154)) * 2
    at = torch.linspace(0, 2, 101)[:, None]
    return Program(m, None, loader(t, size=64), torch.optim.Adam(m.parameters(), 5e-3), lambda m: max(-1.0, r2(m(at), torch.cos(2 * at))), step=step)
