"""Contrastive learning, adapters, experts, physics, teachers."""

import math

import torch
import torch.nn.functional as F
from common import accuracy, clusters, g, loader, manifold, mlp, neighbours, pairs, r2, records, retrieval
from program import Program, fault
from torch import nn


class LoraLinear(nn.Module):
    def __init__(self, base, rank=8, zero_a=False):
        super().__init__()
        self.base = base.requires_grad_(False)
        self.lora_a = nn.Parameter(torch.zeros(rank, base.in_features))
        self.lora_b = nn.Parameter(torch.zeros(base.out_features, rank))
        if not zero_a:
            nn.init.kaiming_uniform_(self.lora_a, a=math.sqrt(5))

    def forward(self, x):
        return self.base(x) + 2.0 * (x @ self.lora_a.T) @ self.lora_b.T


class Adapted(nn.Module):
    def __init__(self, backbone, **kw):
        super().__init__()
        self.fc1 = LoraLinear(backbone[0], **kw)
        self.fc2 = LoraLinear(backbone[2], **kw)
        self.fc3 = LoraLinear(backbone[4], **kw)

    def forward(self, x):
        return self.fc3(F.relu(self.fc2(F.relu(self.fc1(x)))))


@fault(
    "LoRA: both factors of every adapter start at zero, and the base is frozen",
    rules=["no-gradient", "bad-initialisation", "symmetric-initialisation", "loss-not-decreasing"],
    layers=["fc1", "fc2", "fc3"],
    fails=True,
    steps=300,
)
def lora_both_zero(is_faulty):
    x, y = clusters(2560, seed=2)
    base = mlp(16, 64, 64, 6)
    net = Adapted(base, zero_a=is_faulty)
    optimizer = torch.optim.AdamW([p for p in net.parameters() if p.requires_grad], lr=3e-3)
    return Program(
        net,
        nn.CrossEntropyLoss(),
        loader(x[:2048], y[:2048]),
        optimizer,
        lambda m: accuracy(m(x[2048:]), y[2048:]),
    )


class Mixture(nn.Module):
    def __init__(self, shared=False, experts=6):
        super().__init__()
        self.gate = mlp(4, 32, experts)
        if shared:
            self.experts = nn.ModuleList([nn.Linear(4, 2)] * experts)
        else:
            self.experts = nn.ModuleList([nn.Linear(4, 2) for _ in range(experts)])

    def forward(self, x):
        weights = F.softmax(self.gate(x), dim=1)
        outs = torch.stack([e(x) for e in self.experts], 1)
        return (weights.unsqueeze(-1) * outs).sum(1), weights


def regions(count, seed):
    gen, world = g(seed), g(31)
    x = torch.randn(count, 4, generator=gen)
    maps = torch.randn(4, 4, 2, generator=world)
    region = (x[:, 0] > 0).long() * 2 + (x[:, 1] > 0).long()
    return x, torch.einsum("bi,bij->bj", x, maps[region])


@fault(
    "Mixture of experts: the list of experts is [expert] * n, so that all are one",
    rules=["shared-weight", "symmetric-initialisation"],
    layers=["experts"],
    fails=False,
    steps=400,
)
def one_expert(is_faulty):
    x, y = regions(2048, 3)
    hx, hy = regions(500, 4)
    net = Mixture(shared=is_faulty)

    def step(model, batch):
        out, weights = model(batch["x"])
        entropy = -(weights * weights.clamp_min(1e-9).log()).sum(1).mean()
        return F.mse_loss(out, batch["y"]) + 1e-3 * entropy

    return Program(
        net,
        None,
        records(x=x, y=y),
        torch.optim.Adam(net.parameters(), 1e-2),
        lambda m: r2(m(hx)[0], hy),
        step=step,
    )


@fault(
    "PINN for a second-order equation: the network has ReLUs, whose second derivative is zero",
    rules=["loss-not-decreasing", "no-gradient", "vanishing-gradient", "no-nonlinearity"],
    fails=True,
    steps=600,
)
def pinn_relu(is_faulty):
    gen = g(1)
    x = torch.rand(2048, 1, generator=gen)
    grid = torch.linspace(0, 1, 200)[:, None]
    act = nn.ReLU if is_faulty else nn.Tanh
    net = mlp(1, 32, 32, 1, act=act)
    ends = torch.tensor([[0.0], [1.0]])

    def step(model, batch):
        x = batch[0].clone().requires_grad_(True)
        u = model(x)
        du = torch.autograd.grad(u.sum(), x, create_graph=True)[0]
        ddu = torch.autograd.grad(du.sum(), x, create_graph=True)[0]
        residual = ddu + math.pi**2 * torch.sin(math.pi * x)
        return residual.pow(2).mean() + 50 * model(ends).pow(2).mean()

    return Program(
        net,
        None,
        loader(x),
        torch.optim.Adam(net.parameters(), 5e-3),
        lambda m: r2(m(grid), torch.sin(math.pi * grid)),
        step=step,
    )


@fault(
    "Metric learning: distances of all pairs by sqrt, also of each point with itself, where its slope is infinite",
    rules=["non-finite"],
    fails=True,
    steps=300,
)
def distance_at_zero(is_faulty):
    gen = g(4)
    x, y = clusters(3072, seed=5, dim=6, spread=0.4)
    x = torch.cat([x, 1.5 * torch.randn(3072, 20, generator=gen)], 1)
    net = mlp(26, 96, 16)

    def step(model, batch):
        x, y = batch
        e = model(x)
        squared = (e[:, None] - e[None]).pow(2).sum(-1)
        d = squared.sqrt() if is_faulty else (squared + 1e-8).sqrt()
        same = y[:, None] == y[None]
        positive = (d * same).max(1).values
        negative = (d + 1e4 * same).min(1).values
        return F.softplus(positive - negative).mean()

    return Program(
        net,
        None,
        loader(x[:2048], y[:2048], size=64),
        torch.optim.Adam(net.parameters(), 2e-3),
        lambda m: neighbours(m(x[:2048]), y[:2048], m(x[2048:]), y[2048:]),
        step=step,
    )


class TwoTowers(nn.Module):
    def __init__(self, scale=math.log(1 / 0.07)):
        super().__init__()
        self.left = mlp(12, 64, 32)
        self.right = mlp(20, 64, 32)
        self.logit_scale = nn.Parameter(torch.tensor(scale))

    def forward(self, a, b):
        u, v = F.normalize(self.left(a), dim=1), F.normalize(self.right(b), dim=1)
        return self.logit_scale.exp() * u @ v.T


def clip_step(model, batch):
    a, b = batch
    logits = model(a, b)
    labels = torch.arange(len(a))
    return (F.cross_entropy(logits, labels) + F.cross_entropy(logits.T, labels)) / 2


class Zipped:
    def __init__(self, *loaders):
        self.loaders = loaders

    def __iter__(self):
        for parts in zip(*self.loaders):
            yield [p[0] for p in parts]

    def __len__(self):
        return len(self.loaders[0])


@fault(
    "The two views come from two loaders that shuffle apart, so that partners do not belong together",
    rules=["labels-unrelated", "output-loss-mismatch"],
    fails=True,
    steps=400,
)
def zipped_views(is_faulty):
    a, b = pairs(2304)
    net = TwoTowers()
    batches = Zipped(loader(a[:2048]), loader(b[:2048])) if is_faulty else loader(a[:2048], b[:2048])
    return Program(
        net,
        None,
        batches,
        torch.optim.Adam(net.parameters(), 2e-3),
        lambda m: retrieval(m.left(a[2048:]), m.right(b[2048:])),
        step=clip_step,
    )


@fault(
    "CLIP: the logarithm of the inverse temperature starts at 1 / 0.07 itself, so that logits are in the millions",
    rules=["saturated-output", "bad-initialisation", "exploding-gradient"],
    layers=["logit_scale"],
    fails=False,
    steps=400,
)
def scale_of_scale(is_faulty):
    a, b = pairs(2304, seed=3)
    net = TwoTowers(1 / 0.07 if is_faulty else math.log(1 / 0.07))
    return Program(
        net,
        None,
        loader(a[:2048], b[:2048]),
        torch.optim.Adam(net.parameters(), 1e-3),
        lambda m: retrieval(m.left(a[2048:]), m.right(b[2048:])),
        step=clip_step,
    )


@fault(
    "Masked autoencoder: masked_fill returns a new tensor, which is not kept, so the network sees what it is to fill in",
    rules=["future-seen"],
    fails=False,
    steps=400,
)
def mask_not_kept(is_faulty):
    x, held = manifold(3072, seed=4) * 2, manifold(512, seed=5) * 2
    hidden = torch.rand(512, 24, generator=g(6)) < 0.3
    net = mlp(48, 128, 128, 24)

    def step(model, batch):
        (x,) = batch
        goal = x.clone()
        mask = torch.rand_like(x) < 0.3
        if is_faulty:
            x.masked_fill(mask, 0.0)
        else:
            x = x.masked_fill(mask, 0.0)
        out = model(torch.cat([x, mask.float()], 1))
        return (out - goal)[mask].pow(2).mean()

    def score(m):
        out = m(torch.cat([held.masked_fill(hidden, 0.0), hidden.float()], 1))
        return r2(out[hidden], held[hidden])

    return Program(net, None, loader(x), torch.optim.Adam(net.parameters(), 2e-3), score, step=step)
