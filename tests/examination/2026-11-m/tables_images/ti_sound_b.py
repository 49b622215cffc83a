"""Sound set-ups with unusual models, losses and optimizers."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from program import Program, sound
from ti_common import accuracy, blobs, loader, mlp, r2, rng, shapes
from torch import nn


@sound("only the last layer is trained, on frozen random features", steps=300, least=0.85)
def random_features() -> Program:
    x, y = blobs(2400, 4, 10, 701, spread=0.9)

    class RandomFeatures(nn.Module):
        def __init__(self):
            super().__init__()
            self.project = nn.Linear(10, 256).requires_grad_(False)
            nn.init.normal_(self.project.weight, std=0.5)
            nn.init.uniform_(self.project.bias, 0, 2 * math.pi)
            self.out = nn.Linear(256, 4)

        def forward(self, x):
            return self.out(torch.cos(self.project(x)))

    model = RandomFeatures()
    return Program(
        model,
        nn.CrossEntropyLoss(),
        loader(x[:2000], y[:2000]),
        torch.optim.Adam(model.out.parameters(), lr=1e-2),
        lambda m: accuracy(m(x[2000:]), y[2000:]),
    )


class Gated(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.branch = nn.Sequential(nn.Linear(dim, dim), nn.ReLU(), nn.Linear(dim, dim))
        self.gate = nn.Parameter(torch.zeros(1))

    def forward(self, x):
        return x + self.gate * self.branch(x)


@sound("twelve residual blocks behind gates of zero, and a last layer of zeros", steps=400, least=0.85)
def gates_of_zero() -> Program:
    x, y = blobs(2400, 4, 12, 711)
    model = nn.Sequential(nn.Linear(12, 48), *[Gated(48) for _ in range(12)], nn.Linear(48, 4))
    nn.init.zeros_(model[-1].weight)
    nn.init.zeros_(model[-1].bias)
    return Program(
        model,
        nn.CrossEntropyLoss(),
        loader(x[:2000], y[:2000]),
        torch.optim.Adam(model.parameters(), lr=2e-3),
        lambda m: accuracy(m(x[2000:]), y[2000:]),
    )


@sound("a siamese network: one encoder for both items, distances in a contrastive loss", steps=400, least=0.75)
def siamese_pairs() -> Program:
    x, k = blobs(3000, 4, 12, 721, spread=0.8)
    g = rng(722)
    left = torch.randint(2500, (6000,), generator=g)
    right = torch.randint(2500, (6000,), generator=g)
    same = k[left] == k[right]
    keep = same | (torch.rand(6000, generator=g) < 0.34)
    left, right, same = left[keep], right[keep], same[keep].float()

    class Siamese(nn.Module):
        def __init__(self):
            super().__init__()
            self.encoder = mlp(12, 64, 8)

        def forward(self, a, b):
            return (self.encoder(a) - self.encoder(b)).pow(2).sum(1).add(1e-6).sqrt()

    def contrastive(distance, same):
        return (same * distance**2 + (1 - same) * F.relu(2 - distance) ** 2).mean()

    model = Siamese()
    batches = [
        ({"a": x[left[i : i + 60]], "b": x[right[i : i + 60]]}, same[i : i + 60]) for i in range(0, len(left) - 60, 60)
    ]
    a, b = x[2500:2750], x[2750:]

    def score(m):
        d = m(a, b) < 1
        t = k[2500:2750] == k[2750:]
        return 0.5 * (d[t].float().mean() + (~d[~t]).float().mean()).item()

    return Program(model, contrastive, batches, torch.optim.Adam(model.parameters(), lr=2e-3), score)


@sound("an autoencoder whose decoder is the transpose of its encoder", trained=100, steps=400, least=0.85)
def tied_autoencoder() -> Program:
    g = rng(731)
    z = torch.randn(2400, 5, generator=g)
    x = z @ torch.randn(5, 24, generator=g) / 5**0.5 + 0.1 * torch.randn(2400, 24, generator=g)

    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.randn(8, 24) / 24**0.5)
            self.hidden_bias = nn.Parameter(torch.zeros(8))
            self.bias = nn.Parameter(torch.zeros(24))

        def forward(self, x):
            h = F.leaky_relu(F.linear(x, self.weight, self.hidden_bias), 0.3)
            return F.linear(h, self.weight.T, self.bias)

    model = Tied()
    return Program(
        model,
        nn.MSELoss(),
        loader(x[:2000], x[:2000]),
        torch.optim.RMSprop(model.parameters(), lr=2e-3),
        lambda m: r2(m(x[2000:]), x[2000:]),
    )


@sound("a mixture of experts: each example goes to one of four, so most weights are idle on it", steps=500, least=0.8)
def one_of_four_experts() -> Program:
    g = rng(751)
    x = torch.randn(3000, 8, generator=g)
    w = torch.randn(4, 8, generator=g)
    where = 2 * (x[:, 0] > 0).long() + (x[:, 1] > 0).long()
    y = (x * w[where]).sum(1) / 2

    class Experts(nn.Module):
        def __init__(self):
            super().__init__()
            self.router = nn.Linear(8, 4)
            self.experts = nn.ModuleList(mlp(8, 32, 1) for _ in range(4))

        def forward(self, x):
            p = self.router(x).softmax(-1)
            weight, chosen = p.max(-1)
            out = torch.zeros(len(x))
            for k, expert in enumerate(self.experts):
                at = (chosen == k).nonzero().squeeze(1)
                if len(at):
                    out = out.index_add(0, at, expert(x[at]).squeeze(1))
            return out * weight

    model = Experts()
    return Program(
        model,
        nn.SmoothL1Loss(),
        loader(x[:2600], y[:2600], batch=100),
        torch.optim.Adam(model.parameters(), lr=1e-2),
        lambda m: r2(m(x[2600:]), y[2600:]),
    )


@sound("Cox's partial likelihood: examples are compared within a batch, and a constant in the output is free", trained=120, steps=300, least=0.75)
def cox_survival() -> Program:
    g = rng(761)
    x = torch.randn(2400, 8, generator=g)
    risk = 1.2 * x[:, 0] - x[:, 1] + 0.8 * x[:, 2] * x[:, 3]
    time = -torch.rand(2400, generator=g).log() / risk.exp()
    censor = -torch.rand(2400, generator=g).log() * 2
    event = (time < censor).float()
    seen = torch.minimum(time, censor)

    def partial(out, target):
        t, e = target[:, 0], target[:, 1]
        order = t.argsort(descending=True)
        h = out.squeeze(1)[order]
        return -((h - h.logcumsumexp(0)) * e[order]).sum() / e.sum()

    model = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 1, bias=False))

    def concordance(m):
        h, r = m(x[2000:]).squeeze(1), risk[2000:]
        s = (h[:, None] > h[None]) == (r[:, None] > r[None])
        return s[r[:, None] != r[None]].float().mean().item()

    return Program(
        model,
        partial,
        loader(x[:2000], torch.stack([seen, event], 1)[:2000], batch=100),
        torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.01),
        concordance,
    )


@sound("a loss that is summed over the batch, with a rate that was divided by its size", steps=300, least=0.9)
def summed_with_small_rate() -> Program:
    x, y = blobs(2400, 3, 12, 771)
    model = mlp(12, 64, 3)
    return Program(
        model,
        nn.CrossEntropyLoss(reduction="sum"),
        loader(x[:2000], y[:2000], batch=100),
        torch.optim.SGD(model.parameters(), lr=5e-4, momentum=0.9),
        lambda m: accuracy(m(x[2000:]), y[2000:]),
    )


@sound("a network that has fitted its data: a loss of nearly nothing, large logits, tiny gradients", trained=500, steps=520, least=0.9)
def fitted_to_the_end() -> Program:
    x, y = blobs(1000, 3, 16, 781, spread=0.6)
    model = mlp(16, 96, 96, 3)
    return Program(
        model,
        nn.CrossEntropyLoss(),
        loader(x[:600], y[:600], batch=60),
        torch.optim.Adam(model.parameters(), lr=3e-3),
        lambda m: accuracy(m(x[600:]), y[600:]),
    )


@sound("depthwise and pointwise convolutions with nothing between them; Adadelta with a rate of 1", steps=300, least=0.85)
def linear_bottlenecks() -> Program:
    x, y = shapes(1400, 791)
    x = (x - 0.2) / 0.25

    def block(a, b, stride):
        return [
            nn.Conv2d(a, a, 3, stride, 1, groups=a, bias=False),
            nn.Conv2d(a, b, 1, bias=False),
            nn.BatchNorm2d(b),
            nn.ReLU6(),
        ]

    model = nn.Sequential(
        nn.Conv2d(1, 12, 3, padding=1), nn.ReLU6(), *block(12, 24, 2), *block(24, 32, 2), nn.Flatten(), nn.Linear(288, 4)
    )
    return Program(
        model,
        nn.CrossEntropyLoss(),
        loader(x[:1000], y[:1000], batch=40),
        torch.optim.Adadelta(model.parameters(), lr=1.0),
        lambda m: accuracy(m(x[1000:]), y[1000:]),
    )


@sound("a masked autoencoder: three quarters of the columns are hidden, and the loss counts those alone", steps=500, least=0.6)
def hidden_columns() -> Program:
    g = rng(801)
    z = torch.randn(4000, 2, generator=g)
    x = z @ torch.randn(2, 24, generator=g) / 2**0.5 + 0.1 * torch.randn(4000, 24, generator=g)
    gm = rng(802)

    class Masked(nn.Module):
        def __init__(self):
            super().__init__()
            self.token = nn.Parameter(torch.zeros(24))
            self.net = mlp(48, 128, 128, 24, act=nn.GELU)

        def forward(self, x, hidden):
            seen = torch.where(hidden, self.token.expand_as(x), x)
            return self.net(torch.cat([seen, hidden.float()], 1))

    def step(m, batch):
        (rows,) = batch
        hidden = torch.rand(rows.shape, generator=gm) < 0.75
        return F.mse_loss(m(rows, hidden)[hidden], rows[hidden])

    def score(m):
        hidden = torch.rand(500, 24, generator=rng(9)) < 0.75
        return r2(m(x[3500:], hidden)[hidden], x[3500:][hidden])

    model = Masked()
    return Program(
        model, None, loader(x[:3500], batch=100), torch.optim.AdamW(model.parameters(), lr=3e-3), score, step=step
    )
