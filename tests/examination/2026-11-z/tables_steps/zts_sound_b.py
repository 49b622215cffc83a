"""Sound scripts with a step of their own."""

from __future__ import annotations

import copy
import math

import torch
import torch.nn.functional as F
from program import Program, sound
from torch import nn
from zts_data import (Flow, accuracy, blobs, concordance, friedman, gen, likelihood_score, loader, mlp, moons, r2,
                      r2_of, ring, ring_score, survival)


@sound("A flow whose couplings start as the identity and whose last layers start at zero", steps=400, least=0.6)
def zts_flow_from_identity():
    flow = Flow(6)
    return Program(flow, None, loader(moons(2000, 1)[0], batch=128), torch.optim.Adam(flow.parameters(), lr=2e-3),
                   likelihood_score(moons(500, 2)[0], -2.8, -1.2), step=lambda net, batch: -net(batch[0]).mean())


class QNet(nn.Module):
    """Values of actions, and a slow copy that is no part of training."""

    def __init__(self):
        super().__init__()
        self.online = mlp(12, 32, 2)
        self.slow = copy.deepcopy(self.online).requires_grad_(False)

    def forward(self, s):
        return self.online(s)


@sound("Q-learning with a frozen copy of the network that follows by averaging", steps=500, least=0.7)
def zts_q_with_slow_copy():
    model = QNet()
    eye = torch.eye(12)

    def step(net, batch):
        s, a, r, t = batch
        with torch.no_grad():
            for slow, fast in zip(net.slow.parameters(), net.online.parameters(), strict=True):
                slow.lerp_(fast, 0.1)
            target = r + 0.8 * net.slow(eye[t]).max(1).values
        return F.smooth_l1_loss(net(eye[s]).gather(1, a[:, None])[:, 0], target)

    return Program(model, None, loader(*ring(2000, 1)), torch.optim.Adam(model.online.parameters(), lr=5e-3),
                   ring_score(), step=step)


@sound("A policy gradient, whose loss is negative, noisy and no measure of progress", trained=200, steps=600, least=0.8)
def zts_logged_bandit():
    x, best = blobs(6000, 1)
    a = torch.randint(0, 4, (len(x),), generator=gen(51))
    policy = mlp(6, 64, 4)

    def step(net, batch):
        context, action, reward = batch
        log_p = net(context).log_softmax(1)[torch.arange(len(action)), action]
        entropy = torch.distributions.Categorical(logits=net(context)).entropy().mean()
        return -(4 * log_p.exp() * reward).mean() - 0.1 * entropy

    return Program(policy, None, loader(x, a, (a == best).float(), batch=128),
                   torch.optim.Adam(policy.parameters(), lr=1e-2), accuracy(*blobs(500, 2)), step=step)


@sound("An oscillator: a residual of second derivatives, with a large weight on its initial values", steps=600,
       least=0.8)
def zts_oscillator():
    net = mlp(1, 32, 32, 1, act=nn.Tanh)
    zero = torch.zeros(1, 1)

    def grad(u, t):
        return torch.autograd.grad(u.sum(), t, create_graph=True)[0]

    def step(model, batch):
        t = batch[0].clone().requires_grad_(True)
        u = model(t)
        residual = (grad(grad(u, t), t) + 4 * u).pow(2).mean()
        t0 = zero.clone().requires_grad_(True)
        u0 = model(t0)
        return residual + 20 * ((u0 - 1).pow(2) + grad(u0, t0).pow(2)).sum()

    grid = torch.linspace(0, 2, 100).unsqueeze(1)
    points = torch.rand(640, 1, generator=gen(1)) * 2
    return Program(net, None, loader(points), torch.optim.Adam(net.parameters(), 4e-3),
                   r2(grid, torch.cos(2 * grid)), step=step)


@sound("The partial likelihood of a batch compares its rows with one another", steps=300, least=0.6)
def zts_cox():
    net = mlp(6, 32, 1)

    def step(model, batch):
        x, t, e = batch
        order = t.argsort(descending=True)
        risk = model(x).squeeze(1)[order]
        return -((risk - risk.logcumsumexp(0)) * e[order]).sum() / e.sum().clamp(min=1)

    return Program(net, None, loader(*survival(1500, 1)), torch.optim.Adam(net.parameters(), lr=3e-3),
                   concordance(*survival(400, 2)), step=step)


@sound("Triplets of which nearly all have no loss any more", trained=400, steps=600, least=0.8)
def zts_easy_triplets():
    x, y = blobs(1600, 1)
    model = mlp(6, 64, 64, 4)

    def step(net, batch):
        rows, label = batch
        d = torch.cdist(net(rows), net(rows))
        same = label[:, None] == label[None]
        far = d.masked_fill(~same, 0).max(1).values
        near = d.masked_fill(same, 1e6).min(1).values
        return (F.relu(far - near + 0.5)).mean() + 0.1 * F.relu(d[same].mean() - d[~same].mean() + 1)

    xt, yt = blobs(400, 2)

    def score(net):
        near = torch.cdist(net(xt), net(x)).topk(5, largest=False).indices
        return float((F.one_hot(y[near], 4).sum(1).argmax(1) == yt).float().mean())

    return Program(model, None, loader(x, y, batch=48), torch.optim.Adam(model.parameters(), lr=1e-3), score, step=step)


@sound("Quantiles of 0.1, 0.5 and 0.9, each with its slanted loss", steps=400, least=0.8)
def zts_three_quantiles():
    model = mlp(8, 48, 3)
    levels = torch.tensor([0.1, 0.5, 0.9])

    def pinball(net, batch):
        x, y = batch
        e = y - net(x)
        return torch.maximum(levels * e, (levels - 1) * e).mean()

    xt, yt = friedman(400, 2)
    return Program(model, None, loader(*friedman(1500, 1)), torch.optim.Adam(model.parameters(), lr=5e-3),
                   lambda m: r2_of(m(xt)[:, 1:2], yt), step=pinball)


@sound("First-order meta-learning: an inner step on a copy of the weights before the loss", steps=400, least=0.6)
def zts_inner_step():
    net = mlp(1, 32, 32, 1, act=nn.Tanh)

    def tasks(n, seed):
        g = gen(seed)
        shift, x = torch.rand(n, 1, 1, generator=g) * 4 - 2, torch.rand(n, 20, 1, generator=g) * 4 - 2
        return x, torch.sin(1.5 * x) + shift

    def adapt(model, x, y):
        names = dict(model.named_parameters())
        with torch.enable_grad():
            inner = F.mse_loss(torch.func.functional_call(model, names, (x,)), y)
            grads = torch.autograd.grad(inner, list(names.values()))
        return {k: p - 0.1 * g.detach() for (k, p), g in zip(names.items(), grads, strict=True)}

    def step(model, batch):
        total = 0.0
        for x, y in zip(*batch, strict=True):
            adapted = adapt(model, x[:10], y[:10])
            total = total + F.mse_loss(torch.func.functional_call(model, adapted, (x[10:],)), y[10:])
        return total / len(batch[0])

    xt, yt = tasks(40, 2)

    def score(model):
        out = [torch.func.functional_call(model, adapt(model, x[:10], y[:10]), (x[10:],)) for x, y in zip(xt, yt)]
        return r2_of(torch.cat(out), torch.cat([y[10:] for y in yt]))

    return Program(net, None, loader(*tasks(800, 1), batch=4), torch.optim.Adam(net.parameters(), lr=3e-3), score,
                   step=step)


@sound("An energy is told from noise, so that half of its targets are made in the step", steps=400, least=0.6)
def zts_energy_against_noise():
    net = mlp(2, 64, 64, 1, act=nn.SiLU)
    data = moons(2000, 1)[0]

    def step(model, batch):
        real = batch[0]
        noise = torch.rand_like(real) * 6 - 3
        return F.softplus(-model(real)).mean() + F.softplus(model(noise)).mean()

    xt, far = moons(500, 2)[0], torch.rand(500, 2, generator=gen(3)) * 6 - 3

    def score(model):
        return float((model(xt) > 0).float().mean() + (model(far) < 0).float().mean() - 1)

    return Program(net, None, loader(data), torch.optim.Adam(net.parameters(), lr=3e-3), score, step=step)


@sound("Ordered grades as a row of thresholds, with one weight for all and biases of their own", steps=500, least=0.7)
def zts_ordered_grades():
    class Grades(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = nn.Sequential(*mlp(8, 48, 1))
            self.cuts = nn.Parameter(torch.tensor([1.0, 0.3, -0.3, -1.0]))

        def forward(self, x):
            return self.body(x) + self.cuts

    def data(n, seed):
        x, y = friedman(n, seed)
        return x, torch.bucketize(y.squeeze(1), torch.tensor([-0.9, -0.25, 0.25, 0.9]))

    model = Grades()

    def step(net, batch):
        x, grade = batch
        above = (grade[:, None] > torch.arange(4)).float()
        return F.binary_cross_entropy_with_logits(net(x), above)

    xt, gt = data(500, 2)
    return Program(model, None, loader(*data(2000, 1)), torch.optim.Adam(model.parameters(), lr=5e-3),
                   lambda m: float(((m(xt) > 0).sum(1) == gt).float().mean()), step=step)


@sound("A mean and a variance, whose likelihood drives the loss below zero", trained=100, steps=500, least=0.8)
def zts_mean_and_variance():
    model = mlp(8, 48, 2, act=nn.SiLU)

    def step(net, batch):
        x, y = batch
        mean, raw = net(x).chunk(2, 1)
        return F.gaussian_nll_loss(mean, y, F.softplus(raw) + 1e-3)

    xt, yt = friedman(400, 2)
    return Program(model, None, loader(*friedman(1500, 1)), torch.optim.Adam(model.parameters(), lr=4e-3),
                   lambda m: r2_of(m(xt)[:, :1], yt), step=step)


@sound("Bang-bang control is imitated: actions are -1 and 1, and the tanh at the end saturates as it should",
       trained=300, steps=500, least=0.6)
def zts_bang_bang():
    def data(n, seed):
        x = torch.randn(n, 4, generator=gen(seed))
        return x, torch.sign(x[:, :1] + 0.8 * x[:, 1:2] * x[:, 2:3])

    model = nn.Sequential(*mlp(4, 48, 48, 1), nn.Tanh())

    def step(net, batch):
        state, action = batch
        return (net(state) - action).square().mean()

    return Program(model, None, loader(*data(2500, 1)), torch.optim.Adam(model.parameters(), lr=3e-3),
                   r2(*data(500, 2)), step=step)


@sound("Two networks meet in a contrastive loss whose labels are the row numbers", steps=400, least=0.7)
def zts_two_views():
    g = gen(40)
    one, two = torch.randn(6, 8, generator=g) / 2, torch.randn(6, 12, generator=g) / 2

    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = mlp(8, 64, 16), mlp(12, 64, 16)
            self.log_scale = nn.Parameter(torch.tensor(math.log(10.0)))

        def forward(self, x, y):
            return F.normalize(self.a(x), dim=1) @ F.normalize(self.b(y), dim=1).T * self.log_scale.exp()

    def data(n, seed):
        z = torch.randn(n, 6, generator=gen(seed))
        return torch.tanh(z @ one), torch.tanh(z @ two)

    def step(net, batch):
        logits = net(*batch)
        rows = torch.arange(len(logits))
        return 0.5 * F.cross_entropy(logits, rows) + 0.5 * F.cross_entropy(logits.T, rows)

    xt, yt = data(100, 2)
    model = Two()
    return Program(model, None, loader(*data(2000, 1), batch=48), torch.optim.Adam(model.parameters(), lr=2e-3),
                   lambda m: float((m(xt, yt).argmax(1) == torch.arange(100)).float().mean()), step=step)


@sound("The forward pass runs in bfloat16 under autocast, the weights stay in float32", steps=400, least=0.8)
def zts_autocast():
    model = mlp(8, 64, 64, 1)

    def step(net, batch):
        x, y = batch
        with torch.autocast("cpu", dtype=torch.bfloat16):
            out = net(x)
        return F.mse_loss(out.float(), y)

    return Program(model, None, loader(*friedman(1500, 1)), torch.optim.Adam(model.parameters(), lr=3e-3),
                   r2(*friedman(400, 2)), step=step)


@sound("Three tasks with weights that are learned, one of them a hundred times easier than the others", steps=600,
       least=0.7)
def zts_learned_task_weights():
    class Three(nn.Module):
        def __init__(self):
            super().__init__()
            self.trunk = nn.Sequential(*mlp(6, 64, 48), nn.ReLU())
            self.heads = nn.ModuleList([nn.Linear(48, 4), nn.Linear(48, 1), nn.Linear(48, 1)])
            self.log_var = nn.Parameter(torch.zeros(3))

        def forward(self, x):
            h = self.trunk(x)
            return [head(h) for head in self.heads]

    def data(n, seed):
        x, y = blobs(n, seed)
        return x, y, 0.5 * x[:, :1], 0.5 * torch.sin(x[:, 1:2]) + 0.3 * x[:, 2:3].abs()

    model = Three()

    def step(net, batch):
        x, *wanted = batch
        out = net(x)
        losses = torch.stack([F.cross_entropy(out[0], wanted[0]), F.mse_loss(out[1], wanted[1]),
                              F.mse_loss(out[2], wanted[2])])
        return (torch.exp(-net.log_var) * losses + net.log_var).sum()

    xt, *wt = data(500, 2)

    def score(net):
        out = net(xt)
        return (float((out[0].argmax(1) == wt[0]).float().mean()) + r2_of(out[1], wt[1]) + r2_of(out[2], wt[2])) / 3

    return Program(model, None, loader(*data(2000, 1)), torch.optim.Adam(model.parameters(), lr=3e-3), score, step=step)


@sound("A hypernetwork whose layer of weights starts small", steps=500, least=0.8)
def zts_small_hypernetwork():
    class Maker(nn.Module):
        def __init__(self):
            super().__init__()
            self.make = mlp(2, 48, 12 * 3 + 13)
            nn.init.normal_(self.make[-1].weight, std=0.02)
            nn.init.normal_(self.make[-1].bias, std=0.5)

        def forward(self, task, x):
            w = self.make(task)
            h = torch.tanh((w[:, :24].view(-1, 12, 2) @ x.unsqueeze(-1)).squeeze(-1) + w[:, 24:36])
            return (h * w[:, 36:48]).sum(1, keepdim=True) + w[:, 48:]

    def data(n, seed):
        g = gen(seed)
        task, x = torch.rand(n, 2, generator=g) * 2 - 1, torch.rand(n, 2, generator=g) * 2 - 1
        return task, x, torch.sin(2 * x[:, :1] + 2 * task[:, :1]) + task[:, 1:] * x[:, 1:]

    model = Maker()

    def step(net, batch):
        task, x, y = batch
        return F.mse_loss(net(task, x), y)

    task, x, y = data(400, 2)
    return Program(model, None, loader(*data(3000, 1)), torch.optim.Adam(model.parameters(), lr=5e-3),
                   lambda m: r2_of(m(task, x), y), step=step)


class Spectral(nn.Module):
    """Mixes the lowest modes of a curve."""

    def __init__(self, width, modes):
        super().__init__()
        self.modes = modes
        self.weight = nn.Parameter(torch.randn(width, width, modes, 2) / width)
        self.skip = nn.Conv1d(width, width, 1)

    def forward(self, h):
        f = torch.fft.rfft(h)
        low = torch.einsum("bim,iom->bom", f[..., : self.modes], torch.view_as_complex(self.weight))
        return F.gelu(torch.fft.irfft(low, n=h.shape[-1]) + self.skip(h))


@sound("A neural operator with complex weights that sees low frequencies only", steps=300, least=0.8)
def zts_heat_operator():
    class Operator(nn.Module):
        def __init__(self):
            super().__init__()
            self.lift, self.drop = nn.Conv1d(1, 12, 1), nn.Conv1d(12, 1, 1)
            self.layers = nn.Sequential(Spectral(12, 6), Spectral(12, 6))

        def forward(self, u):
            return self.drop(self.layers(self.lift(u)))

    def data(n, seed):
        x = torch.linspace(0, 2 * math.pi, 33)[:-1]
        g = gen(seed)
        a, b = torch.randn(n, 4, 1, generator=g), torch.randn(n, 4, 1, generator=g)
        k = torch.arange(1, 5)[:, None]
        s, c = torch.sin(k * x), torch.cos(k * x)
        fade = torch.exp(-0.1 * k**2)
        return (a * s + b * c).sum(1, keepdim=True) / 2, ((a * s + b * c) * fade).sum(1, keepdim=True) / 2

    model = Operator()

    def step(net, batch):
        u, v = batch
        return ((net(u) - v).flatten(1).norm(dim=1) / v.flatten(1).norm(dim=1)).mean()

    return Program(model, None, loader(*data(1000, 1), batch=32), torch.optim.Adam(model.parameters(), lr=4e-3),
                   r2(*data(200, 2)), step=step)
