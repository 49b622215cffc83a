"""Sound training steps of one's own, and scientific problems."""

from __future__ import annotations

import copy
import math

import torch
import torch.nn.functional as F
from program import Program, sound
from torch import nn
from vts_data import vts_acc, vts_loader, vts_r2, vts_relation


def vts_share(choice, rewards):
    got = rewards.gather(1, choice[:, None]).mean()
    return max(0.0, ((got - rewards.mean()) / (rewards.max(1).values.mean() - rewards.mean())).item())


class DoubleDQN(nn.Module):
    def __init__(self, d, actions):
        super().__init__()
        self.q = nn.Sequential(nn.Linear(d, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, actions))
        self.q_target = copy.deepcopy(self.q)
        for p in self.q_target.parameters():
            p.requires_grad = False

    def training_step(self, batch):
        s, a, r, s2, done = batch
        with torch.no_grad():
            for p, t in zip(self.q.parameters(), self.q_target.parameters()):
                t.lerp_(p, 0.02)
            best = self.q(s2).argmax(1, keepdim=True)
            aim = r + 0.8 * (1 - done) * self.q_target(s2).gather(1, best).squeeze(1)
        q = self.q(s).gather(1, a.unsqueeze(1)).squeeze(1)
        loss = F.smooth_l1_loss(q, aim)
        self.logged = {"loss": loss.detach(), "q": q.detach().mean()}
        return loss


@sound("a slow copy as the aim of values, whose loss rises before it falls; half trained", trained=200, steps=500,
       least=0.75)
def vts_double_dqn():
    d, actions, n = 6, 4, 6000
    f = vts_relation(d, outs=actions, pair=0.0)
    s, st = torch.randn(n, d), torch.randn(600, d)
    a = torch.randint(0, actions, (n,))
    r = f(s).gather(1, a[:, None]).squeeze(1) + 0.2 * torch.randn(n)
    s2, done = 0.5 * s + 0.85 * torch.randn(n, d), (torch.rand(n) < 0.1).float()
    net = DoubleDQN(d, actions)
    return Program(
        net, None, vts_loader(s, a, r, s2, done, batch=128), torch.optim.Adam(net.q.parameters(), lr=2e-3),
        lambda m: vts_share(m.q(st).argmax(1), f(st)), step=lambda m, b: m.training_step(b),
    )


@sound("distillation with a temperature and hard labels", steps=450, least=0.75)
def vts_two_teachings():
    d, classes, heat, alpha = 8, 4, 3.0, 0.7
    teacher = nn.Sequential(nn.Linear(d, 64), nn.Tanh(), nn.Linear(64, classes))
    with torch.no_grad():
        teacher[2].weight.mul_(10)
        teacher[2].bias.zero_()
    teacher.eval()
    x, xt = torch.randn(4000, d), torch.randn(800, d)
    with torch.no_grad():
        y, yt = teacher(x).argmax(1), teacher(xt).argmax(1)
    student = nn.Sequential(nn.Linear(d, 48), nn.ReLU(), nn.Linear(48, classes))

    def step(model, batch):
        x, y = batch
        out = model(x)
        with torch.no_grad():
            aim = teacher(x)
        soft = F.kl_div(
            F.log_softmax(out / heat, 1), F.log_softmax(aim / heat, 1), reduction="batchmean", log_target=True
        )
        return alpha * heat**2 * soft + (1 - alpha) * F.cross_entropy(out, y)

    return Program(
        student, None, vts_loader(x, y, batch=100), torch.optim.Adam(student.parameters(), lr=3e-3),
        lambda m: max(0.0, (vts_acc(m(xt), yt) - 0.25) / 0.75), step=step,
    )


class TwoTasks(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(d, 64), nn.ReLU(), nn.Linear(64, 48), nn.ReLU())
        self.spend = nn.Sequential(nn.Linear(48, 24), nn.ReLU(), nn.Linear(24, 1))
        self.click = nn.Sequential(nn.Linear(48, 24), nn.ReLU(), nn.Linear(24, 1))
        self.log_var = nn.Parameter(torch.zeros(2))


@sound("two tasks with learned weights, in groups of different rates", steps=450, least=0.7)
def vts_uncertain_weights():
    f = vts_relation(8, outs=2, pair=0.2)
    x, xt = torch.randn(4000, 8), torch.randn(800, 8)
    spend, click = f(x)[:, 0], (f(x)[:, 1] > 0).float()
    net = TwoTasks(8)

    def step(model, batch):
        x, spend, click = batch
        h = model.trunk(x)
        losses = torch.stack([
            F.mse_loss(model.spend(h).squeeze(1), spend),
            F.binary_cross_entropy_with_logits(model.click(h).squeeze(1), click),
        ])
        return (losses * torch.exp(-model.log_var) + 0.5 * model.log_var).sum()

    def score(m):
        h, true = m.trunk(xt), f(xt)
        right = ((m.click(h)[:, 0] > 0) == (true[:, 1] > 0)).float().mean().item()
        return 0.5 * vts_r2(m.spend(h), true[:, :1]) + 0.5 * max(0.0, 2 * right - 1)

    opt = torch.optim.AdamW([
        {"params": [*net.trunk.parameters(), *net.spend.parameters(), *net.click.parameters()]},
        {"params": [net.log_var], "lr": 1e-2, "weight_decay": 0.0},
    ], lr=3e-3, weight_decay=1e-2)
    return Program(net, None, vts_loader(x, spend, click, batch=100), opt, score, step=step)


class HeatNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 1))

    def forward(self, x, t):
        return self.layers(torch.cat([2 * x - 1, 2 * t - 1], 1))


@sound("the heat equation, whose residual must be weighted down for the start to be learned", steps=600, least=0.75)
def vts_heat_equation():
    k = 0.1

    def truth(x, t):
        return torch.exp(-k * math.pi**2 * t) * torch.sin(math.pi * x)

    points = torch.rand(1500, 2)
    x0 = torch.linspace(0, 1, 32)[:, None]
    t0 = torch.rand(32, 1)
    net = HeatNet()

    def step(model, batch):
        (p,) = batch
        x, t = p[:, :1].clone().requires_grad_(), p[:, 1:].clone().requires_grad_()
        u = model(x, t)
        one = torch.ones_like(u)
        ux, ut = torch.autograd.grad(u, (x, t), one, create_graph=True)
        uxx = torch.autograd.grad(ux, x, one, create_graph=True)[0]
        inside = (ut - k * uxx).square().mean()
        start = F.mse_loss(model(x0, torch.zeros_like(x0)), truth(x0, 0 * x0))
        walls = model(torch.zeros_like(t0), t0).square().mean() + model(torch.ones_like(t0), t0).square().mean()
        return 0.1 * inside + start + walls

    xt, tt = torch.rand(500, 1), torch.rand(500, 1)
    return Program(
        net, None, vts_loader(points, batch=100), torch.optim.Adam(net.parameters(), lr=5e-3),
        lambda m: vts_r2(m(xt, tt), truth(xt, tt)), step=step,
    )


class SparseExperts(nn.Module):
    def __init__(self, d, many):
        super().__init__()
        self.router = nn.Linear(d, many, bias=False)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(d, 24), nn.GELU(), nn.Linear(24, 1)) for _ in range(many)
        )

    def forward(self, x):
        p = self.router(x).softmax(-1)
        top, where = p.topk(2, dim=-1)
        gate = torch.zeros_like(p).scatter(1, where, top / top.sum(-1, keepdim=True))
        out = torch.cat([e(x) for e in self.experts], 1)
        share = (gate > 0).float().mean(0)
        return (gate * out).sum(1), len(self.experts) * (share * p.mean(0)).sum()


@sound("two of six experts at a time, and a term for balance that stays above its share", steps=500, least=0.7)
def vts_sparse_experts():
    f = vts_relation(6)
    x, xt = torch.randn(4000, 6), torch.randn(600, 6)
    net = SparseExperts(6, 6)

    def step(model, batch):
        x, y = batch
        out, balance = model(x)
        return F.mse_loss(out, y.squeeze(1)) + 0.01 * balance

    return Program(
        net, None, vts_loader(x, f(x), batch=100), torch.optim.Adam(net.parameters(), lr=5e-3),
        lambda m: vts_r2(m(xt)[0], f(xt)), step=step,
    )


class Towers(nn.Module):
    def __init__(self, du, di, dim=16):
        super().__init__()
        self.user = nn.Sequential(nn.Linear(du, 48), nn.ReLU(), nn.Linear(48, dim))
        self.item = nn.Sequential(nn.Linear(di, 48), nn.ReLU(), nn.Linear(48, dim))
        self.log_scale = nn.Parameter(torch.tensor(2.0))

    def forward(self, u, i):
        return self.log_scale.exp() * F.normalize(self.user(u), dim=1) @ F.normalize(self.item(i), dim=1).t()


@sound("two towers with the others of the batch as negatives", steps=400, least=0.7)
def vts_batch_negatives():
    a, b = torch.randn(5, 10), torch.randn(5, 14)

    def sample(n):
        z = torch.randn(n, 5)
        return torch.tanh(z @ a / 2) + 0.05 * torch.randn(n, 10), torch.tanh(z @ b / 2) + 0.05 * torch.randn(n, 14)

    u, i = sample(4096)
    ut, it = sample(64)
    net = Towers(10, 14)

    def step(model, batch):
        logits = model(*batch)
        target = torch.arange(len(logits))
        return (F.cross_entropy(logits, target) + F.cross_entropy(logits.t(), target)) / 2

    return Program(
        net, None, vts_loader(u, i, batch=64), torch.optim.AdamW(net.parameters(), lr=4e-3),
        lambda m: vts_acc(m(ut, it), torch.arange(64)), step=step,
    )


class NeuralProcess(nn.Module):
    def __init__(self, r=48):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(2, 64), nn.ReLU(), nn.Linear(64, r))
        self.decoder = nn.Sequential(nn.Linear(r + 1, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))

    def forward(self, xc, yc, xq):
        r = self.encoder(torch.cat([xc, yc], -1)).mean(1, keepdim=True)
        return self.decoder(torch.cat([r.expand(-1, xq.shape[1], -1), xq], -1))


@sound("meta learning: an answer depends on the other points of its task", steps=600, least=0.7)
def vts_context_set():
    def tasks(n, points):
        a, p = 0.5 + torch.rand(n, 1, 1), 2 * torch.randn(n, 1, 1)
        x = 4 * torch.rand(n, points, 1) - 2
        return x, a * torch.sin(1.2 * x) + 0.5 * p * 0.5

    class Tasks(torch.utils.data.IterableDataset):
        def __iter__(self):
            for _ in range(100):
                yield tasks(32, 20)

    net = NeuralProcess()
    xt, yt = tasks(200, 20)

    def step(model, batch):
        x, y = batch
        return F.mse_loss(model(x[:, :10], y[:, :10], x[:, 10:]), y[:, 10:])

    return Program(
        net, None, torch.utils.data.DataLoader(Tasks(), batch_size=None), torch.optim.Adam(net.parameters(), lr=3e-3),
        lambda m: vts_r2(m(xt[:, :10], yt[:, :10], xt[:, 10:]).flatten(), yt[:, 10:].flatten()), step=step,
    )


@sound("a policy gradient, whose loss is noise about zero; half trained", trained=200, steps=500, least=0.7)
def vts_reinforce_bandit():
    d, actions = 5, 4
    f = vts_relation(d, outs=actions, pair=0.0)
    s, st = torch.randn(6000, d), torch.randn(800, d)
    policy = nn.Sequential(nn.Linear(d, 64), nn.Tanh(), nn.Linear(64, actions))

    def step(model, batch):
        s, rewards = batch
        dist = torch.distributions.Categorical(logits=model(s))
        action = dist.sample()
        reward = rewards.gather(1, action[:, None]).squeeze(1) + 0.3 * torch.randn(len(s))
        advantage = (reward - reward.mean()) / (reward.std() + 1e-6)
        return -(dist.log_prob(action) * advantage).mean() - 0.01 * dist.entropy().mean()

    return Program(
        policy, None, vts_loader(s, f(s), batch=200), torch.optim.Adam(policy.parameters(), lr=4e-3),
        lambda m: vts_share(m(st).argmax(1), f(st)), step=step,
    )


class VectorField(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 2))

    def forward(self, y):
        return self.net(y)


@sound("a field that is called forty times in a step by Runge and Kutta's scheme; partly trained", trained=100,
       steps=400, least=0.8)
def vts_runge_kutta():
    dt, many = 0.2, 10

    def rk4(f, y):
        k1 = f(y)
        k2 = f(y + dt / 2 * k1)
        k3 = f(y + dt / 2 * k2)
        return y + dt / 6 * (k1 + 2 * k2 + 2 * k3 + f(y + dt * k3))

    def roll(f, y):
        path = []
        for _ in range(many):
            y = rk4(f, y)
            path.append(y)
        return torch.stack(path, 1)

    def pendulum(y):
        return torch.stack([y[:, 1], -torch.sin(y[:, 0]) - 0.1 * y[:, 1]], 1)

    y0, yt = 3 * torch.rand(1000, 2) - 1.5, 3 * torch.rand(200, 2) - 1.5
    paths, held = roll(pendulum, y0), roll(pendulum, yt)
    net = VectorField()

    def step(model, batch):
        start, path = batch
        return (roll(model, start) - path).abs().mean()

    return Program(
        net, None, vts_loader(y0, paths, batch=50), torch.optim.Adam(net.parameters(), lr=1e-2),
        lambda m: vts_r2(roll(m, yt).flatten(0, 1), held.flatten(0, 1)), step=step,
    )


class MeanTeacher(nn.Module):
    def __init__(self, d, classes):
        super().__init__()
        self.student = nn.Sequential(
            nn.Linear(d, 64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, classes)
        )
        self.teacher = copy.deepcopy(self.student).requires_grad_(False)

    @torch.no_grad()
    def follow(self, rate):
        for s, t in zip(self.student.parameters(), self.teacher.parameters()):
            t.mul_(1 - rate).add_(s, alpha=rate)


@sound("a teacher that follows its student, which no optimizer moves, with few labels; late in training", trained=400,
       steps=500, least=0.7)
def vts_mean_teacher():
    d, classes = 6, 4
    centres = 2.0 * torch.randn(classes * 2, d)

    def sample(n):
        c = torch.randint(0, classes * 2, (n,))
        return centres[c] + 0.6 * torch.randn(n, d), c % classes

    x, y = sample(3000)
    xt, yt = sample(600)
    few = 200
    net = MeanTeacher(d, classes)

    def step(model, batch):
        (unlabelled,) = batch
        pick = torch.randint(0, few, (32,))
        model.follow(0.02)
        with torch.no_grad():
            aim = model.teacher(unlabelled + 0.1 * torch.randn_like(unlabelled)).softmax(1)
        mine = model.student(unlabelled + 0.1 * torch.randn_like(unlabelled)).softmax(1)
        return F.cross_entropy(model.student(x[pick]), y[pick]) + 2.0 * F.mse_loss(mine, aim)

    return Program(
        net, None, vts_loader(x, batch=64), torch.optim.Adam(net.student.parameters(), lr=2e-3),
        lambda m: max(0.0, (vts_acc(m.student(xt), yt) - 0.25) / 0.75), step=step,
    )
