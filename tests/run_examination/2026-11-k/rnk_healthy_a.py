"""Healthy runs, first part."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from program import healthy
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, WeightedRandomSampler

from rnk_data import rnk_clusters, rnk_cycle, rnk_digits, rnk_evaluate, rnk_Flat, rnk_markov, rnk_waves

# loss at which the run is meant to end, and by how much it may differ
FLOORS = {"rnk_noisy_labels": (0.965, 0.06), "rnk_smoothed": (0.689, 0.03), "rnk_drifting": (0.01, 0.02), "rnk_reversal": (0.693, 0.08)}


def rnk_mlp(*sizes, act=nn.ReLU):
    layers = []
    for a, b in zip(sizes, sizes[1:]):
        layers += [nn.Linear(a, b), act()]
    return nn.Sequential(*layers[:-1])


@healthy("three labels of ten are random, so that the loss stays high", steps=1200)
def rnk_noisy_labels(record):
    torch.manual_seed(31)
    x, y = rnk_clusters(40000, d=16, classes=6, per=1, noise=0.7, seed=1)
    wrong = torch.rand(len(y)) < 0.3
    y = torch.where(wrong, torch.randint(0, 6, y.shape), y)
    model, crit = rnk_mlp(16, 48, 6), nn.CrossEntropyLoss()
    opt = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9, weight_decay=1e-4)
    rec = record(model, opt, crit)
    loader = DataLoader(TensorDataset(x[:38400], y[:38400]), batch_size=32, shuffle=True)
    for step, (xb, yb) in enumerate(loader, 1):
        opt.zero_grad()
        loss = crit(model(xb), yb)
        loss.backward()
        opt.step()
        rec.step(loss, (xb, yb))
        if step % 100 == 0:
            rec.validation(rnk_evaluate(model, crit, x[38400:], y[38400:]))


class rnk_ConvNet(nn.Module):
    def __init__(self, width=12):
        super().__init__()
        self.stem = nn.Conv2d(1, width, 3, padding=1)
        self.norm = nn.GroupNorm(3, width)
        self.down = nn.Conv2d(width, 2 * width, 3, stride=2, padding=1)
        self.head = nn.Linear(2 * width, 10)

    def forward(self, x):
        x = F.silu(self.norm(self.stem(x)))
        x = F.silu(self.down(x))
        return self.head(x.mean((-1, -2)))


@healthy("cosine schedule with warm restarts, at each of which the loss rises a little", steps=1200)
def rnk_warm_restarts(record):
    torch.manual_seed(32)
    xtr, ytr, xva, yva = rnk_digits(seed=11)
    model, crit = rnk_ConvNet(), nn.CrossEntropyLoss()
    opt = torch.optim.SGD(model.parameters(), lr=0.15, momentum=0.9, weight_decay=5e-4)
    sched = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(opt, T_0=200, T_mult=2, eta_min=1e-4)
    rec = record(model, opt, crit)
    loader = rnk_cycle(DataLoader(TensorDataset(xtr, ytr), batch_size=32, shuffle=True))
    for step in range(1200):
        xb, yb = next(loader)
        opt.zero_grad()
        loss = crit(model(xb + 0.3 * torch.randn_like(xb)), yb)
        loss.backward()
        opt.step()
        sched.step()
        rec.step(loss, (xb, yb))
        if (step + 1) % 60 == 0:
            rec.validation(rnk_evaluate(model, crit, xva, yva))


@healthy("one class is 4 % of the data; plain batches at first, weighted sampling from step 600 on raises the loss", steps=1400)
def rnk_rare_class(record):
    torch.manual_seed(33)
    x, y = rnk_clusters(60000, d=12, classes=2, per=4, noise=1.7, seed=4)
    keep = (y == 0) | (torch.rand(len(y)) < 0.04)
    x, y = x[keep], y[keep]
    xtr, ytr, xva, yva = x[:-3000], y[:-3000], x[-3000:], y[-3000:]
    model, crit = rnk_mlp(12, 64, 32, 2), nn.CrossEntropyLoss()
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    rec = record(model, opt, crit)
    data = TensorDataset(xtr, ytr)
    weights = torch.where(ytr == 1, 8.0, 1.0)
    plain = rnk_cycle(DataLoader(data, batch_size=64, shuffle=True))
    weighted = rnk_cycle(DataLoader(data, batch_size=64, sampler=WeightedRandomSampler(weights, 64 * 200)))
    for step in range(1400):
        xb, yb = next(plain if step < 600 else weighted)
        opt.zero_grad()
        loss = crit(model(xb), yb)
        loss.backward()
        opt.step()
        rec.step(loss, (xb, yb))
        if (step + 1) % 100 == 0:
            rec.validation(sum(rnk_evaluate(model, crit, xva[yva == c], yva[yva == c]) for c in (0, 1)) / 2)


class rnk_Density(nn.Module):
    """Mean and log-variance."""

    def __init__(self):
        super().__init__()
        self.body = rnk_mlp(8, 64, 64, act=nn.Tanh)
        self.mean = nn.Linear(64, 1)
        self.logvar = nn.Linear(64, 1)

    def forward(self, x):
        h = torch.tanh(self.body(x))
        return torch.cat([self.mean(h), self.logvar(h).clamp(-8, 6)], 1)


def rnk_nll(out, y):
    m, s = out[:, :1], out[:, 1:]
    return 0.5 * (s + (y - m) ** 2 * torch.exp(-s)).mean()


@healthy("a log-likelihood of a density, which falls below zero and is noisy", steps=1500)
def rnk_negative_loss(record):
    torch.manual_seed(34)
    x = torch.randn(20000, 8)
    y = 0.5 * x[:, :1] - 0.3 * torch.sin(2 * x[:, 1:2]) + torch.exp(-2 + 0.7 * x[:, 2:3]) * torch.randn(20000, 1)
    model = rnk_Density()
    opt = torch.optim.Adam(model.parameters(), lr=2e-3)
    sched = torch.optim.lr_scheduler.OneCycleLR(opt, max_lr=3e-3, total_steps=1500)
    rec = record(model, opt, rnk_nll)
    for step in range(1500):
        i = torch.randint(0, 18000, (64,))
        xb, yb = x[i], y[i]
        opt.zero_grad()
        loss = rnk_nll(model(xb), yb)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 2.0)
        opt.step()
        sched.step()
        rec.step(loss, (xb, yb))
        if (step + 1) % 100 == 0:
            rec.validation(rnk_evaluate(model, rnk_nll, x[18000:], y[18000:]))


class rnk_Pretrained(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.block1 = nn.Sequential(nn.Linear(20, 64), nn.ReLU())
        self.block2 = nn.Sequential(nn.Linear(64, 64), nn.ReLU())
        self.head = nn.Linear(64, classes)

    def forward(self, x):
        return self.head(self.block2(self.block1(x)))


@healthy("blocks of a pretrained network are unfrozen one after another, at low rates", steps=1200)
def rnk_gradual_unfreeze(record):
    torch.manual_seed(35)
    x, y = rnk_clusters(14000, d=20, classes=10, per=2, noise=1.1, seed=6)
    model, crit = rnk_Pretrained(10), nn.CrossEntropyLoss()
    pre = torch.optim.Adam(model.parameters(), lr=1e-3)
    for _ in range(500):
        i = torch.randint(0, 6000, (64,))
        pre.zero_grad()
        crit(model(x[i]), y[i]).backward()
        pre.step()
    x, y = x + 0.5 * x.roll(1, 1), y // 2  # another sensor, other classes
    model.head = nn.Linear(64, 5)
    for p in [*model.block1.parameters(), *model.block2.parameters()]:
        p.requires_grad_(False)
    opt = torch.optim.AdamW([{"params": model.head.parameters(), "lr": 1e-3}, {"params": model.block2.parameters(), "lr": 3e-4},
                             {"params": model.block1.parameters(), "lr": 1e-4}])
    rec = record(model, opt, crit)
    loader = rnk_cycle(DataLoader(TensorDataset(x[6000:13000], y[6000:13000]), batch_size=64, shuffle=True))
    for step in range(1200):
        if step == 400:
            model.block2.requires_grad_(True)
        if step == 800:
            model.block1.requires_grad_(True)
        xb, yb = next(loader)
        opt.zero_grad()
        loss = crit(model(xb), yb)
        loss.backward()
        opt.step()
        rec.step(loss, (xb, yb))
        if (step + 1) % 50 == 0:
            rec.validation(rnk_evaluate(model, crit, x[13000:], y[13000:]))


@healthy("what is to be learned turns slowly all the time, and the network follows it", steps=1600)
def rnk_drifting(record):
    torch.manual_seed(36)
    w = torch.randn(10, 12) / 2
    v = torch.randn(12, 1) / 3
    v2 = torch.randn(12, 1) / 3
    model, crit = rnk_mlp(10, 48, 1, act=nn.Tanh), nn.MSELoss()
    opt = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.8)
    rec = record(model, opt, crit)
    for step in range(1600):
        a = 2 * math.pi * step / 1600
        x = torch.randn(48, 10)
        y = torch.tanh(x @ w) @ (math.cos(a) * v + math.sin(a) * v2) + 0.1 * torch.randn(48, 1)
        loss = crit(model(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        rec.step(loss, (x, y))


class rnk_LM(nn.Module):
    def __init__(self, vocab, dim=32):
        super().__init__()
        self.embed = nn.Embedding(vocab, dim)
        self.gru = nn.GRU(dim, 64, batch_first=True)
        self.drop = nn.Dropout(0.1)
        self.out = nn.Linear(64, vocab)

    def forward(self, t):
        h, _ = self.gru(self.embed(t))
        return self.out(self.drop(h))


@healthy("a curriculum of longer and longer sequences and harder texts, with a step up of the loss at each change", steps=1200)
def rnk_growing_length(record):
    torch.manual_seed(37)
    easy = rnk_markov(3000, length=32, vocab=30, seed=12, peak=3.5, skew=0.2)
    hard = rnk_markov(3000, length=32, vocab=30, seed=12, peak=2.2, skew=0.2)
    model, crit = rnk_LM(30), rnk_Flat()
    opt = torch.optim.Adam(model.parameters(), lr=3e-3)
    rec = record(model, opt, crit)
    va = hard[2700:]
    for step in range(1200):
        length = (8, 16, 32)[step // 400]
        share = (0, 16, 32)[step // 400]
        b = torch.cat([hard[torch.randint(0, 2700, (share,))], easy[torch.randint(0, 2700, (32 - share,))]])[:, : length + 1]
        opt.zero_grad()
        loss = crit(model(b[:, :-1]), b[:, 1:])
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        rec.step(loss, (b[:, :-1], b[:, 1:]))
        if (step + 1) % 100 == 0:
            rec.validation(rnk_evaluate(model, crit, va[:, :-1], va[:, 1:]))


class rnk_Reverse(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, k):
        ctx.k = k
        return x.view_as(x)

    @staticmethod
    def backward(ctx, g):
        return -ctx.k * g, None


class rnk_DomainNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU())
        self.task = nn.Linear(32, 4)
        self.domain = nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 2))
        self.strength = 0.0

    def forward(self, x):
        h = self.features(x)
        return torch.cat([self.task(h), self.domain(rnk_Reverse.apply(h, self.strength))], 1)


def rnk_domain_loss(out, y):
    return F.cross_entropy(out[:, :4], y[:, 0]) + F.cross_entropy(out[:, 4:], y[:, 1])


@healthy("gradient reversal: the domain part of the loss rises to ln 2 on purpose, while the task is learned", steps=1200)
def rnk_reversal(record):
    torch.manual_seed(38)
    x, y = rnk_clusters(12000, d=16, classes=4, per=2, noise=0.8, seed=14)
    dom = torch.randint(0, 2, (len(x),))
    x = x + dom[:, None] * 0.5 * torch.randn(16, generator=torch.Generator().manual_seed(2))
    t = torch.stack([y, dom], 1)
    model = rnk_DomainNet()
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    rec = record(model, opt, rnk_domain_loss)
    loader = rnk_cycle(DataLoader(TensorDataset(x[:11000], t[:11000]), batch_size=64, shuffle=True))
    for step in range(1200):
        model.strength = 2 / (1 + math.exp(-10 * step / 1200)) - 1
        xb, tb = next(loader)
        opt.zero_grad()
        loss = rnk_domain_loss(model(xb), tb)
        loss.backward()
        opt.step()
        rec.step(loss, (xb, tb))
        if (step + 1) % 100 == 0:
            rec.validation(rnk_evaluate(model, rnk_domain_loss, x[11000:], t[11000:]))


@healthy("label smoothing, so that the loss stays far above zero although all is learned", steps=1000)
def rnk_smoothed(record):
    torch.manual_seed(39)
    x, y = rnk_waves(6000, length=24, classes=4, noise=0.2, seed=9)
    x = x.transpose(1, 2)
    model = nn.Sequential(nn.Conv1d(1, 16, 5, padding=2), nn.ReLU(), nn.MaxPool1d(2), nn.Conv1d(16, 32, 5, padding=2), nn.ReLU(),
                          nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(32, 4))
    crit = nn.CrossEntropyLoss(label_smoothing=0.25)
    opt = torch.optim.NAdam(model.parameters(), lr=3e-3)
    sched = torch.optim.lr_scheduler.MultiStepLR(opt, [500, 800], gamma=0.1)
    rec = record(model, opt, crit)
    loader = rnk_cycle(DataLoader(TensorDataset(x[:5000], y[:5000]), batch_size=50, shuffle=True))
    for step in range(1000):
        xb, yb = next(loader)
        opt.zero_grad()
        loss = crit(model(xb), yb)
        loss.backward()
        opt.step()
        sched.step()
        rec.step(loss, (xb, yb))
        if (step + 1) % 100 == 0:
            rec.validation(rnk_evaluate(model, crit, x[5000:], y[5000:]))
