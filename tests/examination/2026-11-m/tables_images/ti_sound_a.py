"""Sound set-ups: ordinary ones, and some with unusual data."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from program import Program, sound
from ti_common import accuracy, blobs, loader, mlp, r2, rng, shapes
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, WeightedRandomSampler


@sound("ordinary: a table, an MLP, Adam", steps=300, least=0.9)
def plain_table() -> Program:
    x, y = blobs(2400, 4, 14, 501)
    model = nn.Sequential(nn.Linear(14, 64), nn.ReLU(), nn.Dropout(0.2), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 4))
    return Program(
        model,
        nn.CrossEntropyLoss(),
        loader(x[:2000], y[:2000]),
        torch.optim.Adam(model.parameters(), lr=1e-3),
        lambda m: accuracy(m(x[2000:]), y[2000:]),
    )


@sound("ordinary: a small CNN with BatchNorm, SGD with momentum, cosine schedule; half trained", trained=60, steps=250, least=0.9)
def plain_cnn() -> Program:
    x, y = shapes(1400, 511)
    x = (x - x[:1000].mean()) / x[:1000].std()
    model = nn.Sequential(
        nn.Conv2d(1, 12, 3, padding=1, bias=False),
        nn.BatchNorm2d(12),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(12, 24, 3, padding=1, bias=False),
        nn.BatchNorm2d(24),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Linear(96, 4),
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4)
    return Program(
        model,
        nn.CrossEntropyLoss(),
        loader(x[:1000], y[:1000], batch=40),
        optimizer,
        lambda m: accuracy(m(x[1000:]), y[1000:]),
        scheduler=torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 250),
    )


@sound("ordinary: linear regression with SGD", steps=300, least=0.9)
def plain_linear() -> Program:
    g = rng(521)
    x = torch.randn(1500, 10, generator=g)
    y = x @ torch.randn(10, 1, generator=g) + 0.5 + 0.3 * torch.randn(1500, 1, generator=g)
    model = nn.Linear(10, 1)
    return Program(
        model,
        nn.MSELoss(),
        loader(x[:1200], y[:1200], batch=32),
        torch.optim.SGD(model.parameters(), lr=0.02),
        lambda m: r2(m(x[1200:]), y[1200:]),
    )


class Mixer(nn.Module):
    def __init__(self, tokens, dim):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.tokens = mlp(tokens, 24, tokens, act=nn.GELU)
        self.channels = mlp(dim, 48, dim, act=nn.GELU)

    def forward(self, x):
        x = x + self.tokens(self.n1(x).transpose(1, 2)).transpose(1, 2)
        return x + self.channels(self.n2(x))


@sound("ordinary: an MLP-mixer on patches, AdamW, warm-up and cosine", trained=10, steps=400, least=0.85)
def plain_mixer() -> Program:
    x, y = shapes(1800, 531)
    x = (x - 0.2) / 0.25

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.stem = nn.Conv2d(1, 24, 3, stride=3)
            self.blocks = nn.Sequential(Mixer(16, 24), Mixer(16, 24))
            self.norm = nn.LayerNorm(24)
            self.head = nn.Linear(24, 4)

        def forward(self, x):
            x = self.stem(x).flatten(2).transpose(1, 2)
            return self.head(self.norm(self.blocks(x)).mean(1))

    model = Net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.05)

    def factor(step):
        return (step + 1) / 20 if step < 20 else 0.5 * (1 + math.cos(math.pi * min(1, (step - 20) / 380)))

    return Program(
        model,
        nn.CrossEntropyLoss(label_smoothing=0.1),
        loader(x[:1500], y[:1500]),
        optimizer,
        lambda m: accuracy(m(x[1500:]), y[1500:]),
        scheduler=torch.optim.lr_scheduler.LambdaLR(optimizer, factor),
    )


@sound("ordinary: embeddings of categories next to numbers, binary target", steps=400, least=0.75)
def plain_wide_and_deep() -> Program:
    g = rng(541)
    cats = torch.randint(12, (3600, 3), generator=g)
    nums = torch.randn(3600, 5, generator=g)
    effect = torch.randn(3, 12, generator=g) * 1.5
    score = sum(effect[j][cats[:, j]] for j in range(3)) + nums[:, 0] - nums[:, 1] * nums[:, 2]
    y = (score > 0).float()

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.tables = nn.ModuleList(nn.Embedding(12, 6) for _ in range(3))
            self.deep = mlp(23, 64, 32, 1)
            self.wide = nn.Linear(5, 1)

        def forward(self, cats, nums):
            e = [t(c) for t, c in zip(self.tables, cats.unbind(1), strict=True)]
            return (self.deep(torch.cat([*e, nums], 1)) + self.wide(nums)).squeeze(1)

    model = Net()

    def collate(rows):
        c, n, t = (torch.stack(v) for v in zip(*rows, strict=True))
        return {"cats": c, "nums": n}, t

    return Program(
        model,
        nn.BCEWithLogitsLoss(),
        DataLoader(TensorDataset(cats[:3000], nums[:3000], y[:3000]), 64, True, collate_fn=collate, generator=rng(1)),
        torch.optim.Adam(model.parameters(), lr=3e-3),
        lambda m: ((m(cats[3000:], nums[3000:]) > 0).float() == y[3000:]).float().mean().item(),
    )


class TinyUNet(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.down = nn.Sequential(nn.Conv2d(1, 12, 3, padding=1), nn.GroupNorm(3, 12), nn.ReLU())
        self.mid = nn.Sequential(nn.MaxPool2d(2), nn.Conv2d(12, 16, 3, padding=1), nn.GroupNorm(4, 16), nn.ReLU())
        self.up = nn.ConvTranspose2d(16, 12, 2, stride=2)
        self.out = nn.Conv2d(24, classes, 1)

    def forward(self, x):
        a = self.down(x)
        return self.out(torch.cat([a, self.up(self.mid(a))], 1))


@sound("ordinary: a small U-Net, unlabelled pixels with ignore_index 255, batches of 4", steps=250, least=0.8)
def plain_unet() -> Program:
    g = rng(551)
    n = 500
    grid = torch.stack(torch.meshgrid(torch.arange(16.0), torch.arange(16.0), indexing="ij"))
    mask = torch.zeros(n, 16, 16, dtype=torch.long)
    for k in (1, 2):
        centre = 3 + 10 * torch.rand(n, 2, 1, 1, generator=g)
        mask[((grid[None] - centre).abs().amax(1) < 3)] = k
    x = (torch.tensor([0.0, 1.0, -1.0])[mask] + 0.4 * torch.randn(n, 16, 16, generator=g))[:, None]
    y = mask.clone()
    y[torch.rand(n, 16, 16, generator=g) < 0.3] = 255
    y[:, :2] = 255
    model = TinyUNet(3)

    def iou(m):
        p, t = m(x[400:]).argmax(1), mask[400:]
        return sum((((p == k) & (t == k)).sum() / ((p == k) | (t == k)).sum()).item() for k in range(3)) / 3

    return Program(
        model,
        nn.CrossEntropyLoss(ignore_index=255),
        loader(x[:400], y[:400], batch=4),
        torch.optim.Adam(model.parameters(), lr=3e-3),
        iou,
    )


@sound("ordinary: an autoencoder, whose targets are its inputs; trained", trained=350, steps=400, least=0.85)
def plain_autoencoder() -> Program:
    g = rng(561)
    z = torch.randn(2400, 4, generator=g)
    x = torch.tanh(z @ torch.randn(4, 20, generator=g)) + 0.05 * torch.randn(2400, 20, generator=g)
    model = nn.Sequential(mlp(20, 48, 5), mlp(5, 48, 20))
    return Program(
        model,
        nn.MSELoss(),
        loader(x[:2000], x[:2000]),
        torch.optim.Adam(model.parameters(), lr=3e-3),
        lambda m: r2(m(x[2000:]), x[2000:]),
    )


@sound("images with a wide black border, so that most pixels never vary", steps=300, least=0.9)
def black_borders() -> Program:
    x, y = shapes(1600, 571, noise=0.1)
    x = F.pad(x, (4, 4, 4, 4))
    x = (x - 0.1) / 0.2
    model = nn.Sequential(nn.Flatten(), nn.Linear(400, 128), nn.ReLU(), nn.Linear(128, 4))
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    return Program(
        model,
        nn.CrossEntropyLoss(),
        loader(x[:1300], y[:1300], batch=50),
        optimizer,
        lambda m: accuracy(m(x[1300:]), y[1300:]),
        scheduler=torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=3e-3, total_steps=600),
    )


@sound("one positive in twenty-five, a positive weight and the bias set to the prior", trained=5, steps=400, least=0.85)
def rare_positives() -> Program:
    g = rng(581)
    x = torch.randn(5000, 10, generator=g)
    z = x[:, 0] + x[:, 1] + 0.8 * x[:, 2] * x[:, 3]
    y = (z > z.quantile(0.96)).float()
    model = mlp(10, 64, 64, 1)
    nn.init.constant_(model[-1].bias, -3.2)
    weight = torch.tensor(24.0)

    def balanced(m):
        p = m(x[4000:]).squeeze(1) > 0
        t = y[4000:] > 0
        return 0.5 * (p[t].float().mean() + (~p[~t]).float().mean()).item()

    return Program(
        model,
        lambda out, t: F.binary_cross_entropy_with_logits(out.squeeze(1), t, pos_weight=weight),
        loader(x[:4000], y[:4000], batch=128),
        torch.optim.AdamW(model.parameters(), lr=2e-3),
        balanced,
    )


@sound("raw pixels from 0 to 255, which the model standardises itself", steps=250, least=0.9)
def raw_pixels_scaled_inside() -> Program:
    x, y = shapes(1400, 591)
    x = (x * 255).to(torch.uint8)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("mean", torch.tensor(40.0))
            self.register_buffer("std", torch.tensor(60.0))
            self.net = nn.Sequential(
                nn.Conv2d(1, 16, 5, stride=2), nn.ReLU(), nn.Conv2d(16, 24, 3), nn.ReLU(), nn.Flatten(), nn.Linear(96, 4)
            )

        def forward(self, x):
            return self.net((x.float() - self.mean) / self.std)

    model = Net()
    return Program(
        model,
        nn.CrossEntropyLoss(),
        loader(x[:1000], y[:1000], batch=32),
        torch.optim.Adam(model.parameters(), lr=3e-3),
        lambda m: accuracy(m(x[1000:]), y[1000:]),
    )


@sound("prices of hundreds of thousands as targets; the model ends in a fixed scale and shift", steps=300, least=0.85)
def prices_scaled_inside() -> Program:
    g = rng(601)
    x = torch.randn(2400, 9, generator=g)
    y = 250_000 + 90_000 * (x[:, 0] + 0.5 * x[:, 1] * x[:, 2] + 0.5 * x[:, 3].abs())

    class Price(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = mlp(9, 64, 64, 1)
            self.register_buffer("shift", y[:2000].mean())
            self.register_buffer("scale", y[:2000].std())

        def forward(self, x):
            return self.shift + self.scale * self.body(x).squeeze(-1)

    model = Price()
    return Program(
        model,
        lambda out, t: ((out - t) / model.scale).abs().mean(),
        loader(x[:2000], y[:2000]),
        torch.optim.Adam(model.parameters(), lr=3e-3),
        lambda m: r2(m(x[2000:]), y[2000:]),
    )


@sound("a third of the labels are random, so that the loss stays high", steps=300, least=0.85)
def noisy_labels() -> Program:
    x, y = blobs(5000, 4, 12, 611, spread=0.9)
    g = rng(612)
    noisy = torch.where(torch.rand(5000, generator=g) < 0.35, torch.randint(4, (5000,), generator=g), y)
    model = mlp(12, 48, 4)
    return Program(
        model,
        nn.CrossEntropyLoss(),
        loader(x[:4000], noisy[:4000], batch=100),
        torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True),
        lambda m: accuracy(m(x[4000:]), y[4000:]),
    )
