"""Distillation, adapters, optimizers, precision, layers made by hand."""

import torch
import torch.nn.functional as F
from own_common import accuracy, blobs, fit, gen, loader, r2, rings, wavy
from program import Program, fault
from torch import nn


class Lora(nn.Module):
    def __init__(self, base, rank, bad):
        super().__init__()
        self.base = base.requires_grad_(False)
        self.A = nn.Parameter(torch.zeros(rank, base.in_features))
        self.B = nn.Parameter(torch.zeros(base.out_features, rank))
        if not bad:
            nn.init.kaiming_uniform_(self.A, a=5**0.5)

    def forward(self, x):
        return self.base(x) + 2.0 * (x @ self.A.T @ self.B.T)


@fault("low-rank adapters with A and B both zero, on frozen layers", rules=["no-gradient", "bad-initialisation", "symmetric-initialisation", "loss-not-decreasing"], layers=["0", "2", "4"], fails=True, steps=250)
def lora_both_zero(bad):
    x, y = blobs(1600, 5, 12, 62, 1.2)
    dims = [(12, 48), (48, 48), (48, 5)]
    parts = [Lora(nn.Linear(*d), 4, bad) for d in dims]
    m = nn.Sequential(parts[0], nn.ReLU(), parts[1], nn.ReLU(), parts[2])
    opt = torch.optim.AdamW([p for p in m.parameters() if p.requires_grad], 5e-3)
    return Program(m, nn.CrossEntropyLoss(), loader(x[:1280], y[:1280]), opt, accuracy(x[1280:], y[1280:]))


@fault("weight_decay=0.3 of an AdamW recipe given to Adam, where it is part of the gradient", rules=["weight-decay-dominates"], fails=True, steps=250)
def adam_decay_in_gradient(bad):
    x, y = wavy(1600, 6, 63)
    m = nn.Sequential(nn.Linear(6, 64), nn.GELU(), nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 1))
    decay = [p for p in m.parameters() if p.ndim > 1]
    rest = [p for p in m.parameters() if p.ndim == 1]
    kind = torch.optim.Adam if bad else torch.optim.AdamW
    opt = kind([{"params": decay, "weight_decay": 0.3}, {"params": rest, "weight_decay": 0.0}], lr=3e-3)
    return Program(m, nn.MSELoss(), loader(x[:1280], y[:1280]), opt, fit(x[1280:], y[1280:]))


@fault("a LambdaLR that returns the rate itself, not a factor of it", rules=["learning-rate-too-low"], fails=True, steps=250)
def lambda_returns_rate(bad):
    x, y = rings(1600, 64)
    m = nn.Sequential(nn.Linear(2, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 3))
    opt = torch.optim.Adam(m.parameters(), lr=3e-3)

    def rate(k):
        factor = min(1.0, (k + 1) / 20) * (1 - k / 400)
        return 3e-3 * factor if bad else factor

    def score(m):
        base = float((y[1280:] == 0).float().mean())
        return (accuracy(x[1280:], y[1280:])(m) - base) / (1 - base)

    return Program(m, nn.CrossEntropyLoss(), loader(x[:1280], y[:1280]), opt, score, scheduler=torch.optim.lr_scheduler.LambdaLR(opt, rate))


@fault("all weights in bfloat16 and Adam at a rate of 1e-4: steps are rounded away", rules=["lost-updates"], fails=False, steps=400)
def weights_in_bfloat16(bad):
    x = torch.randn(1600, 6, generator=gen(65))
    y = torch.sin(1.5 * x[:, :1]) + 0.7 * x[:, 1:2].abs() + 0.5 * x[:, 2:3]
    y = (y - y.mean()) / y.std()
    m = nn.Sequential(nn.Linear(6, 128), nn.GELU(), nn.Linear(128, 128), nn.GELU(), nn.Linear(128, 1))
    m = m.bfloat16() if bad else m
    dt = torch.bfloat16 if bad else torch.float32

    def step(net, batch):
        xb, yb = batch
        return F.mse_loss(net(xb.to(dt)).float(), yb)

    return Program(m, None, loader(x[:1280], y[:1280]), torch.optim.Adam(m.parameters(), 1e-4), lambda m: r2(m(x[1280:].to(dt)), y[1280:]), step=step)


@fault("a model in float16 with Adam's ε of 1e-8, which is zero there", rules=["non-finite", "half-overflow", "optimizer-setting"], fails=True, steps=150)
def adam_epsilon_in_float16(bad):
    x, y = blobs(1600, 4, 10, 66, 1.5)
    x = x.half()
    m = nn.Sequential(nn.Linear(10, 48), nn.ReLU(), nn.Linear(48, 48), nn.ReLU(), nn.Linear(48, 4)).half()

    def step(net, batch):
        xb, yb = batch
        return F.cross_entropy(net(xb).float(), yb)

    def score(m):
        out = m(x[1280:]).float()
        return float((out.argmax(1) == y[1280:]).float().mean()) if out.isfinite().all() else 0.25

    return Program(m, None, loader(x[:1280], y[:1280]), torch.optim.Adam(m.parameters(), 1e-3, eps=1e-8 if bad else 1e-4), score, step=step)


class Standardise(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.gain = nn.Parameter(torch.ones(48))
        self.dim = dim

    def forward(self, x):
        x = x - x.mean(self.dim, keepdim=True)
        return self.gain * x / (x.pow(2).mean(self.dim, keepdim=True) + 1e-5).sqrt()


@fault("a normalisation written by hand for the features, over dimension 0", rules=["mixed-examples"], layers=["1", "4"], fails=True, steps=200)
def hand_norm_over_batch(bad):
    x, y = blobs(1600, 5, 12, 67, 1.5)
    d = 0 if bad else -1
    m = nn.Sequential(nn.Linear(12, 48), Standardise(d), nn.ReLU(), nn.Linear(48, 48), Standardise(d), nn.ReLU(), nn.Linear(48, 5))

    def score(m):
        return sum(float(m(x[i : i + 1]).argmax() == y[i]) for i in range(1280, 1580)) / 300

    return Program(m, nn.CrossEntropyLoss(), loader(x[:1280], y[:1280]), torch.optim.Adam(m.parameters(), 2e-3), score)


class Experts(nn.Module):
    def __init__(self, bad):
        super().__init__()
        self.gate = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 4))
        self.experts = nn.ModuleList([nn.Linear(6, 1)] * 4 if bad else [nn.Linear(6, 1) for _ in range(4)])

    def forward(self, x):
        w = self.gate(x).softmax(-1)
        return (w * torch.cat([e(x) for e in self.experts], -1)).sum(-1, keepdim=True)


@fault("[expert] * 4: a mixture of one expert", rules=["shared-weight", "no-gradient", "no-nonlinearity", "symmetric-initialisation"], layers=["experts", "gate"], fails=False, steps=300)
def experts_are_one(bad):
    g = gen(68)
    x = torch.randn(2000, 6, generator=g)
    region = (x[:, 0] > 0).long() * 2 + (x[:, 1] > 0).long()
    y = (x * torch.randn(4, 6, generator=g)[region]).sum(1, keepdim=True)
    y = y / y.std()
    m = Experts(bad)
    return Program(m, nn.MSELoss(), loader(x[:1600], y[:1600]), torch.optim.Adam(m.parameters(), 1e-2), fit(x[1600:], y[1600:]))


@fault("gradient accumulation over micro-batches of two, through BatchNorm", rules=["small-batch-batchnorm", "batchnorm-mode-gap", "mixed-examples"], layers=["1", "4", "7"], fails=True, steps=200)
def accumulation_of_pairs(bad):
    x, y = wavy(1600, 6, 70)
    m = nn.Sequential(nn.Linear(6, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 1))
    micro = 2 if bad else 32

    def step(net, batch):
        xb, yb = batch
        parts = list(zip(xb.split(micro), yb.split(micro), strict=True))
        for a, b in parts[:-1]:
            (F.mse_loss(net(a), b) / len(parts)).backward()
        a, b = parts[-1]
        return F.mse_loss(net(a), b) / len(parts)

    return Program(m, None, loader(x[:1280], y[:1280], size=32), torch.optim.Adam(m.parameters(), 3e-3), lambda m: max(-1.0, r2(m(x[1280:]), y[1280:])), step=step)


@fault("Adam with ε = 1, taken from another framework's image recipe", rules=["optimizer-setting", "learning-rate-too-low"], fails=True, steps=250)
def adam_epsilon_one(bad):
    x, y = wavy(1600, 6, 71)
    m = nn.Sequential(nn.Linear(6, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))
    opt = torch.optim.Adam(m.parameters(), lr=2e-3, eps=1.0 if bad else 1e-8)
    return Program(m, nn.SmoothL1Loss(), loader(x[:1280], y[:1280]), opt, fit(x[1280:], y[1280:]))
