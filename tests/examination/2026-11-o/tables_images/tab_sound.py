"""Sound set-ups of tables, images and signals."""

from __future__ import annotations

import copy
import math

import torch
import torch.nn.functional as F
from program import Program, sound
from tab_data import accuracy, blobs, friedman, r2, shapes, spirals, waves
from torch import nn, optim
from torch.utils.data import DataLoader, Dataset, Sampler, TensorDataset


def loader(x, y, size=50, **more):
    return DataLoader(TensorDataset(x, y), batch_size=size, shuffle=True, **more)


def scaled_friedman(n):
    x, y = friedman(n)
    return (x - 0.5) / 0.29, ((y - 14) / 5)[:, None]


@sound("an ordinary perceptron", steps=400, least=0.9)
def tab_plain() -> Program:
    x, y = blobs(1400)
    model = nn.Sequential(nn.Linear(12, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 4))
    return Program(
        model,
        nn.CrossEntropyLoss(),
        loader(x[:1000], y[:1000]),
        optim.Adam(model.parameters(), lr=1e-3),
        accuracy(x[1000:], y[1000:]),
    )


class SmallNet(nn.Module):
    def __init__(self, classes=4):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 12, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(12)
        self.conv2 = nn.Conv2d(12, 24, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(24)
        self.fc = nn.Linear(24 * 16, classes)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.bn1(self.conv1(x))), 2)
        x = F.max_pool2d(F.relu(self.bn2(self.conv2(x))), 2)
        return self.fc(x.flatten(1))


@sound("an ordinary convolutional network, trained to the end", trained=400, steps=400, least=0.9)
def tab_convnet_trained() -> Program:
    x, y, _ = shapes(1200)
    x = (x - 0.13) / 0.24
    model = SmallNet()
    opt = optim.SGD(model.parameters(), lr=0.03, momentum=0.9, weight_decay=5e-4, nesterov=True)
    return Program(
        model,
        nn.CrossEntropyLoss(),
        loader(x[:1000], y[:1000], 32),
        opt,
        accuracy(x[1000:], y[1000:]),
        scheduler=optim.lr_scheduler.CosineAnnealingLR(opt, 500),
    )


@sound("an ordinary regression, half trained", trained=150, steps=400, least=0.85)
def tab_regression_half() -> Program:
    x, y = scaled_friedman(1400)
    model = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))
    return Program(
        model,
        nn.MSELoss(),
        loader(x[:1000], y[:1000], 40),
        optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.01),
        r2(x[1000:], y[1000:]),
    )


@sound("an ordinary network for signals, half trained", trained=100, steps=300, least=0.9)
def tab_signals_half() -> Program:
    x, y = waves(1300)
    model = nn.Sequential(
        nn.Conv1d(1, 16, 7, stride=2, padding=3),
        nn.BatchNorm1d(16),
        nn.ReLU(),
        nn.Conv1d(16, 32, 5, stride=2, padding=2),
        nn.BatchNorm1d(32),
        nn.ReLU(),
        nn.AdaptiveAvgPool1d(1),
        nn.Flatten(),
        nn.Dropout(0.2),
        nn.Linear(32, 4),
    )
    return Program(
        model,
        nn.CrossEntropyLoss(),
        loader(x[:1000], y[:1000], 32),
        optim.Adam(model.parameters(), lr=2e-3),
        accuracy(x[1000:], y[1000:]),
    )


@sound("an ordinary segmentation, with places to ignore", steps=250, least=0.8)
def tab_segmentation() -> Program:
    x, y, m = shapes(800)
    target = torch.where(m, y[:, None, None] % 2 + 1, 0)
    target[torch.rand(target.shape) < 0.1] = 255
    target[:, 0], target[:, -1] = 255, 255

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.down = nn.Sequential(nn.Conv2d(1, 12, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(12, 24, 5, padding=2), nn.ReLU())
            self.up = nn.Sequential(nn.Conv2d(25, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 3, 1))

        def forward(self, x):
            up = F.interpolate(self.down(x), scale_factor=2)
            return self.up(torch.cat([up, x], 1))

    def iou(model):
        p, t = model(x[600:]).argmax(1), target[600:]
        ok = t < 255
        return sum(((p == c) & (t == c)).sum().item() / (ok & ((p == c) | (t == c))).sum().item() for c in range(3)) / 3

    model = Net()
    weight = torch.tensor([0.2, 1.0, 1.0])
    return Program(
        model,
        nn.CrossEntropyLoss(weight=weight, ignore_index=255),
        loader(x[:600], target[:600], 15),
        optim.Adam(model.parameters(), lr=3e-3),
        iou,
    )


class ZeroBlock(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(c, c, 3, padding=1, bias=False), nn.BatchNorm2d(c)
        self.conv2, self.bn2 = nn.Conv2d(c, c, 3, padding=1, bias=False), nn.BatchNorm2d(c)
        nn.init.zeros_(self.bn2.weight)

    def forward(self, x):
        return F.relu(x + self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x))))))


@sound("residual blocks whose last BatchNorm starts at zero", steps=250, least=0.9)
def tab_zero_gamma() -> Program:
    x, y, _ = shapes(1200)
    model = nn.Sequential(
        nn.Conv2d(1, 12, 3, stride=2, padding=1), ZeroBlock(12), ZeroBlock(12), ZeroBlock(12), nn.Flatten(), nn.Linear(768, 4)
    )
    return Program(
        model,
        nn.CrossEntropyLoss(label_smoothing=0.1),
        loader(x[:1000], y[:1000], 25),
        optim.SGD(model.parameters(), lr=0.02, momentum=0.9),
        accuracy(x[1000:], y[1000:]),
    )


@sound("ReZero: the blocks have no gradient at the first step", steps=500, least=0.9)
def tab_rezero() -> Program:
    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            self.lin = nn.Linear(32, 32)
            self.alpha = nn.Parameter(torch.zeros(()))

        def forward(self, x):
            return x + self.alpha * torch.relu(self.lin(x))

    x, y = spirals(1500)
    model = nn.Sequential(nn.Linear(2, 32), *[Layer() for _ in range(8)], nn.Linear(32, 3))
    return Program(
        model,
        nn.CrossEntropyLoss(),
        loader(x[:1100], y[:1100]),
        optim.Adam(model.parameters(), lr=5e-3),
        accuracy(x[1100:], y[1100:]),
    )


@sound("a frozen, pretrained body under a new head", steps=300, least=0.8)
def tab_frozen() -> Program:
    x, y, _ = shapes(1300)
    body = SmallNet(2)
    opt = optim.Adam(body.parameters(), lr=3e-3)
    for _ in range(150):
        at = torch.randint(0, 1000, (40,))
        opt.zero_grad()
        F.cross_entropy(body(x[at]), y[at] % 2).backward()
        opt.step()
    body.zero_grad(set_to_none=True)

    class Transfer(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = body
            self.body.fc = nn.Identity()
            for p in self.body.parameters():
                p.requires_grad_(False)
            self.head = nn.Linear(384, 4)
            self.train()

        def train(self, mode=True):
            super().train(mode)
            self.body.eval()
            return self

        def forward(self, x):
            with torch.no_grad():
                h = self.body(x)
            return self.head(h)

    model = Transfer()
    return Program(
        model,
        nn.CrossEntropyLoss(),
        loader(x[:1000], y[:1000]),
        optim.Adam(model.head.parameters(), lr=2e-3),
        accuracy(x[1000:], y[1000:]),
    )


@sound("targets far from zero, which the last layer scales back", steps=400, least=0.85)
def tab_denormalized() -> Program:
    x, y = scaled_friedman(1400)
    y = 182_000 + 9_000 * y

    class Scaled(nn.Module):
        def __init__(self, mean, std):
            super().__init__()
            self.net = nn.Sequential(nn.Linear(8, 64), nn.GELU(), nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 1))
            self.register_buffer("mean", mean)
            self.register_buffer("std", std)

        def forward(self, x):
            return self.net(x) * self.std + self.mean

    model = Scaled(y[:1000].mean(), y[:1000].std())
    return Program(
        model,
        nn.L1Loss(),
        loader(x[:1000], y[:1000]),
        optim.Adam(model.parameters(), lr=3e-3),
        r2(x[1000:], y[1000:]),
    )


@sound("a normalization of raw columns inside of the model", steps=400, least=0.9)
def tab_inside() -> Program:
    x, y = blobs(1500)
    x = x * torch.logspace(-2, 5, 12) + torch.linspace(0, 1e4, 12)
    model = nn.Sequential(nn.BatchNorm1d(12), nn.Linear(12, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 4))
    return Program(
        model,
        nn.CrossEntropyLoss(),
        loader(x[:1100], y[:1100]),
        optim.Adam(model.parameters(), lr=2e-3),
        accuracy(x[1100:], y[1100:]),
    )


@sound("a probability by a sigmoid in the model and BCELoss, rare labels", steps=500, least=0.7)
def tab_bce() -> Program:
    g = torch.Generator().manual_seed(8)
    w = torch.randn(12, 8, generator=g) / 12**0.5
    x = torch.randn(1800, 12)
    y = (x @ w > 1.1).float()
    model = nn.Sequential(nn.Linear(12, 64), nn.ReLU(), nn.Linear(64, 8), nn.Sigmoid())
    nn.init.constant_(model[2].bias, -2.0)

    def f1(model):
        p, t = model(x[1300:]) > 0.5, y[1300:] > 0.5
        return 2 * (p & t).sum().item() / max(1, (p.sum() + t.sum()).item())

    return Program(model, nn.BCELoss(), loader(x[:1300], y[:1300]), optim.Adam(model.parameters(), lr=3e-3), f1)


@sound("log_softmax and NLLLoss, mixup of inputs in the step", steps=400, least=0.85)
def tab_mixup() -> Program:
    x, y = blobs(1500)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.c = nn.Linear(12, 80), nn.Linear(80, 80), nn.Linear(80, 4)

        def forward(self, x):
            return F.log_softmax(self.c(F.elu(self.b(F.elu(self.a(x))))), dim=1)

    def step(model, batch):
        xb, yb = batch
        lam = torch.distributions.Beta(0.4, 0.4).sample().item()
        perm = torch.randperm(len(xb))
        out = model(lam * xb + (1 - lam) * xb[perm])
        return lam * F.nll_loss(out, yb) + (1 - lam) * F.nll_loss(out, yb[perm])

    model = Net()
    return Program(
        model, None, loader(x[:1100], y[:1100]), optim.Adam(model.parameters(), lr=2e-3), accuracy(x[1100:], y[1100:]), step=step
    )


@sound("strong dropout in a wide network", trained=200, steps=500, least=0.85)
def tab_wide_dropout() -> Program:
    x, y = blobs(1500)
    model = nn.Sequential(
        nn.Linear(12, 256), nn.ReLU(), nn.Dropout(0.5), nn.Linear(256, 256), nn.ReLU(), nn.Dropout(0.5), nn.Linear(256, 4)
    )
    return Program(
        model,
        nn.CrossEntropyLoss(),
        loader(x[:1100], y[:1100]),
        optim.Adam(model.parameters(), lr=1e-3),
        accuracy(x[1100:], y[1100:]),
    )


@sound("an autoencoder with tied weights and a sum over pixels", steps=400, least=0.6)
def tab_tied() -> Program:
    x, _, _ = shapes(1200, noise=0.05)
    x = x.flatten(1)

    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.randn(64, 256) / 16)
            self.b = nn.Parameter(torch.zeros(64))
            self.c = nn.Parameter(torch.zeros(256))

        def forward(self, x):
            z = torch.relu(F.linear(x, self.weight, self.b))
            return F.linear(z, self.weight.t(), self.c)

    model = Tied()
    return Program(
        model,
        lambda out, t: ((out - t) ** 2).sum(1).mean(),
        loader(x[:1000], x[:1000], 40),
        optim.Adam(model.parameters(), lr=2e-3),
        r2(x[1000:], x[1000:]),
    )


@sound("a siamese network, the same weights for both of a pair, contrastive", steps=400, least=0.75)
def tab_siamese() -> Program:
    x, y = blobs(2400, classes=4)
    pairs = torch.stack([x[:1200], x[1200:]], 1)
    same = (y[:1200] == y[1200:]).float()
    take = (same > 0) | (torch.rand(1200) < 0.4)
    pairs, same = pairs[take], same[take]
    cut = int(0.75 * len(same))

    class Siamese(nn.Module):
        def __init__(self):
            super().__init__()
            self.encoder = nn.Sequential(nn.Linear(12, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 16))

        def forward(self, pair):
            a, b = self.encoder(pair[:, 0]), self.encoder(pair[:, 1])
            return (a - b).pow(2).sum(1).add(1e-8).sqrt()

    def contrastive(d, same):
        return (same * d**2 + (1 - same) * F.relu(2 - d) ** 2).mean()

    model = Siamese()
    return Program(
        model,
        contrastive,
        loader(pairs[:cut], same[:cut], 40),
        optim.Adam(model.parameters(), lr=2e-3),
        lambda m: ((m(pairs[cut:]) < 1) == (same[cut:] > 0.5)).float().mean().item(),
    )


@sound("rows of mostly zeros: a bag of one-hot columns, some very rare", steps=400, least=0.85)
def tab_sparse() -> Program:
    g = torch.Generator().manual_seed(4)
    effect = 1.5 * torch.randn(60, generator=g)
    chance = torch.cat([0.3 * torch.ones(20), 0.06 * torch.ones(30), 0.004 * torch.ones(10)])
    x = (torch.rand(2000, 60) < chance).float()
    y = ((x @ effect - (chance * effect).sum()) > 0).long()
    model = nn.Sequential(nn.Linear(60, 32), nn.ReLU(), nn.Linear(32, 2))
    return Program(
        model,
        nn.CrossEntropyLoss(),
        loader(x[:1500], y[:1500]),
        optim.Adagrad(model.parameters(), lr=0.05),
        accuracy(x[1500:], y[1500:]),
    )


@sound("counts with a Poisson loss on log rates", steps=500, least=0.6)
def tab_poisson() -> Program:
    x = torch.randn(1600, 6)
    rate = torch.exp(2.0 + 0.5 * x[:, 0] + 0.3 * x[:, 1] * x[:, 2])
    y = torch.poisson(rate)
    model = nn.Sequential(nn.Linear(6, 48), nn.SiLU(), nn.Linear(48, 48), nn.SiLU(), nn.Linear(48, 1), nn.Flatten(0))

    def score(m):
        a, b = m(x[1200:]), rate[1200:].log()
        return max(0.0, 1 - ((a - b) ** 2).mean().item() / b.var().item())

    return Program(
        model, nn.PoissonNLLLoss(log_input=True), loader(x[:1200], y[:1200]), optim.Adam(model.parameters(), lr=2e-3), score
    )


@sound("depthwise and pointwise convolutions with nothing between them", steps=300, least=0.8)
def tab_separable() -> Program:
    def separable(a, b, stride=1):
        return nn.Sequential(
            nn.Conv2d(a, a, 3, stride, 1, groups=a, bias=False), nn.Conv2d(a, b, 1, bias=False), nn.BatchNorm2d(b), nn.ReLU6()
        )

    x, y, _ = shapes(1300)
    model = nn.Sequential(
        nn.Conv2d(1, 16, 3, 1, 1),
        nn.ReLU6(),
        separable(16, 32, 2),
        separable(32, 32),
        separable(32, 48, 2),
        nn.AdaptiveMaxPool2d(1),
        nn.Flatten(),
        nn.Linear(48, 4),
    )
    return Program(
        model,
        nn.CrossEntropyLoss(),
        loader(x[:1100], y[:1100], 25),
        optim.RMSprop(model.parameters(), lr=1e-3),
        accuracy(x[1100:], y[1100:]),
    )


@sound("logistic regression: one linear layer, at a high rate", steps=300, least=0.9)
def tab_logistic() -> Program:
    x = torch.randn(1200, 15)
    y = (x @ torch.linspace(-1, 1, 15) + 0.1 * torch.randn(1200) > 0).long()
    model = nn.Linear(15, 2)
    return Program(
        model,
        nn.CrossEntropyLoss(),
        loader(x[:900], y[:900], 60),
        optim.SGD(model.parameters(), lr=0.5),
        accuracy(x[900:], y[900:]),
    )


@sound("SIREN: sines of frequency 30 fitted to a signal", steps=500, least=0.9)
def tab_siren() -> Program:
    class Sine(nn.Module):
        def __init__(self, a, b, first=False):
            super().__init__()
            self.linear = nn.Linear(a, b)
            bound = 1 / a if first else math.sqrt(6 / a) / 30
            nn.init.uniform_(self.linear.weight, -bound, bound)

        def forward(self, x):
            return torch.sin(30 * self.linear(x))

    t = torch.linspace(-1, 1, 600)[torch.randperm(600)][:, None]
    s = torch.sin(25 * t) * torch.exp(-(t**2)) + 0.5 * torch.sin(60 * t**2)
    net = nn.Sequential(Sine(1, 64, True), Sine(64, 64), Sine(64, 64), nn.Linear(64, 1))
    nn.init.uniform_(net[3].weight, -math.sqrt(6 / 64) / 30, math.sqrt(6 / 64) / 30)
    return Program(
        net, nn.MSELoss(), loader(t[:480], s[:480], 96), optim.Adam(net.parameters(), lr=5e-4), r2(t[480:], s[480:])
    )


@sound("random Fourier features that are not trained", steps=400, least=0.8)
def tab_fourier() -> Program:
    class RFF(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("B", 1.5 * torch.randn(2, 64))
            self.head = nn.Sequential(nn.Linear(128, 32), nn.ReLU(), nn.Linear(32, 3))

        def forward(self, x):
            p = 2 * x @ self.B
            return self.head(torch.cat([p.sin(), p.cos()], -1))

    x, y = spirals(1800)
    model = RFF()
    return Program(
        model,
        nn.CrossEntropyLoss(),
        loader(x[:1300], y[:1300]),
        optim.Adam(model.parameters(), lr=2e-3),
        accuracy(x[1300:], y[1300:]),
    )


@sound("noisy targets: the loss stays high", steps=300, least=0.6)
def tab_noisy() -> Program:
    x, y = blobs(1800, classes=3, spread=0.7)
    noisy = torch.where(torch.rand(1300) < 0.4, torch.randint(0, 3, (1300,)), y[:1300])
    model = nn.Sequential(nn.Linear(12, 48), nn.LayerNorm(48), nn.ReLU(), nn.Linear(48, 3))
    return Program(
        model,
        nn.CrossEntropyLoss(),
        loader(x[:1300], noisy, 64),
        optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-3),
        accuracy(x[1300:], y[1300:]),
    )


@sound("batches of four with GroupNorm", steps=500, least=0.8)
def tab_four() -> Program:
    x, y, _ = shapes(1200)
    model = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.GroupNorm(4, 16),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.GroupNorm(4, 32),
        nn.ReLU(),
        nn.AdaptiveMaxPool2d(2),
        nn.Flatten(),
        nn.Linear(128, 4),
    )
    return Program(
        model,
        nn.CrossEntropyLoss(),
        loader(x[:1000], y[:1000], 4),
        optim.Adam(model.parameters(), lr=1e-3),
        accuracy(x[1000:], y[1000:]),
    )


@sound("a Cox regression: a loss over the risk sets of a batch, blind to a shift of the outputs", steps=300, least=0.7)
def tab_cox_sound() -> Program:
    n = 1000
    x = torch.randn(n, 5)
    risk = 1.2 * x[:, 0] + x[:, 1] ** 2 - x[:, 2]
    t_event, t_cens = -torch.log(torch.rand(n)) * torch.exp(-risk), 3 * torch.rand(n)
    time, event = torch.minimum(t_event, t_cens), (t_event <= t_cens).float()

    def partial(model, batch):
        xb, tb, eb = batch
        order = tb.argsort(descending=True)
        h = model(xb)[:, 0][order]
        return -((h - torch.logcumsumexp(h, 0)) * eb[order]).sum() / eb.sum().clamp(min=1)

    def concordance(model):
        h = model(x[700:]).flatten()
        pair = (time[700:, None] < time[None, 700:]) & (event[700:, None] > 0)
        return ((h[:, None] > h[None]) & pair).sum().item() / pair.sum().item()

    model = nn.Sequential(nn.Linear(5, 32), nn.SELU(), nn.Linear(32, 16), nn.SELU(), nn.Linear(16, 1, bias=False))
    data = TensorDataset(x[:700], time[:700], event[:700])
    return Program(
        model,
        None,
        DataLoader(data, batch_size=100, shuffle=True),
        optim.Adam(model.parameters(), lr=3e-3),
        concordance,
        step=partial,
    )


@sound("a head of a detector with its prior: all outputs near 0 at first", steps=400, least=0.8)
def tab_prior() -> Program:
    x, _, mask = shapes(1100)
    grid = torch.arange(16.0)
    area = mask.sum((1, 2))
    cx, cy = (mask.sum(1) * grid).sum(1) / area, (mask.sum(2) * grid).sum(1) / area
    heat = torch.exp(-((grid[None, :, None] - cy[:, None, None]) ** 2 + (grid - cx[:, None, None]) ** 2) / 1.5)[:, None]

    class Head(nn.Module):
        def __init__(self):
            super().__init__()
            self.tower = nn.Sequential(
                nn.Conv2d(1, 12, 3, padding=1), nn.ReLU(), nn.Conv2d(12, 12, 3, padding=2, dilation=2), nn.ReLU()
            )
            self.cls = nn.Conv2d(12, 1, 3, padding=1)
            nn.init.normal_(self.cls.weight, std=0.01)
            nn.init.constant_(self.cls.bias, -4.6)

        def forward(self, x):
            return self.cls(self.tower(x))

    def centre_focal(logits, t):
        p = logits.sigmoid().clamp(1e-4, 1 - 1e-4)
        hot = t > 0.8
        pos = -((1 - p) ** 2 * p.log())[hot].sum()
        neg = -((1 - t) ** 4 * p**2 * (1 - p).log())[~hot].sum()
        return (pos + neg) / hot.sum().clamp(min=1)

    def hits(model):
        at = model(x[900:]).flatten(1).argmax(1)
        return (((at // 16) - cy[900:]).abs().maximum(((at % 16) - cx[900:]).abs()) <= 1.5).float().mean().item()

    model = Head()
    return Program(model, centre_focal, loader(x[:900], heat[:900], 16), optim.Adam(model.parameters(), lr=3e-3), hits)


@sound("trained with L1 on the activations: many ReLUs are silent", trained=500, steps=500, least=0.8)
def tab_silent() -> Program:
    class Sparse(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc1, self.fc2 = nn.Linear(8, 128), nn.Linear(128, 1)

        def forward(self, x):
            self.h = torch.relu(self.fc1(x))
            return self.fc2(self.h)

    def step(model, batch):
        x, y = batch
        return F.mse_loss(model(x), y) + 3e-4 * model.h.abs().sum(1).mean()

    x, y = scaled_friedman(1500)
    model = Sparse()
    return Program(
        model, None, loader(x[:1100], y[:1100]), optim.Adam(model.parameters(), lr=5e-3), r2(x[1100:], y[1100:]), step=step
    )


@sound("weight norm, and rates from group to group", steps=400, least=0.8)
def tab_weight_norm() -> Program:
    wn = nn.utils.parametrizations.weight_norm
    x, y = waves(1300)
    body = nn.Sequential(
        wn(nn.Conv1d(1, 24, 7, stride=2, padding=3)), nn.ELU(), wn(nn.Conv1d(24, 32, 5, stride=2, padding=2)), nn.ELU()
    )
    model = nn.ModuleDict({"body": body, "head": nn.Linear(32, 4)})

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.parts = model

        def forward(self, x):
            return self.parts["head"](self.parts["body"](x).pow(2).mean(2))

    net = Net()
    groups = [
        {"params": body[0].parameters(), "lr": 5e-4},
        {"params": body[2].parameters(), "lr": 2e-3},
        {"params": net.parts["head"].parameters(), "lr": 1e-2, "weight_decay": 0.0},
    ]
    opt = optim.AdamW(groups, lr=1e-3, weight_decay=0.05)
    warm = optim.lr_scheduler.LambdaLR(opt, lambda i: min(1.0, (i + 1) / 50))
    return Program(
        net, nn.CrossEntropyLoss(), loader(x[:1000], y[:1000], 32), opt, accuracy(x[1000:], y[1000:]), scheduler=warm
    )


@sound("distillation from a frozen teacher inside the model", trained=100, steps=400, least=0.85)
def tab_teacher() -> Program:
    x, y = blobs(1500)
    teacher = nn.Sequential(nn.Linear(12, 96), nn.ReLU(), nn.Linear(96, 4))
    opt = optim.Adam(teacher.parameters(), lr=5e-3)
    for i in range(300):
        at = torch.randint(0, 1100, (64,))
        opt.zero_grad()
        F.cross_entropy(teacher(x[at]), y[at]).backward()
        opt.step()
    opt.zero_grad()

    class Distilled(nn.Module):
        def __init__(self):
            super().__init__()
            self.teacher = copy.deepcopy(teacher).requires_grad_(False)
            self.student = nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 4))

        def forward(self, x):
            return self.student(x)

    def step(model, batch):
        xb, yb = batch
        out = model(xb)
        with torch.no_grad():
            soft = F.softmax(model.teacher(xb) / 2, 1)
        return 0.3 * F.cross_entropy(out, yb) + 0.7 * 4 * F.kl_div(F.log_softmax(out / 2, 1), soft, reduction="batchmean")

    model = Distilled()
    return Program(
        model,
        None,
        loader(x[:1100], y[:1100]),
        optim.Adam(model.student.parameters(), lr=4e-3),
        accuracy(x[1100:], y[1100:]),
        step=step,
    )


@sound("categories by embeddings, most of them absent from a batch, and numbers", steps=500, least=0.75)
def tab_embeddings() -> Program:
    g = torch.Generator().manual_seed(6)
    effect = torch.randn(60, generator=g)
    cat = (60 * torch.rand(3000) ** 1.5).long()
    num = torch.randn(3000, 4)
    y = effect[cat] + num[:, 0] * num[:, 1] + 0.2 * torch.randn(3000)

    class Table(Dataset):
        def __init__(self, rows):
            self.rows = rows

        def __len__(self):
            return len(self.rows)

        def __getitem__(self, i):
            i = self.rows[i]
            return {"cat": cat[i], "num": num[i]}, y[i]

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.emb = nn.Embedding(60, 8)
            self.mlp = nn.Sequential(nn.Linear(12, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 1))

        def forward(self, cat, num):
            return self.mlp(torch.cat([self.emb(cat), num], 1)).squeeze(1)

    def score(m):
        out = m(cat[2500:], num[2500:])
        return max(0.0, 1 - ((out - y[2500:]) ** 2).mean().item() / y[2500:].var().item())

    model = Net()
    return Program(
        model,
        nn.MSELoss(),
        DataLoader(Table(range(2500)), batch_size=32, shuffle=True),
        optim.Adam(model.parameters(), lr=5e-3),
        score,
    )


class Balanced(Sampler):
    """As many of each class in each batch, one class after the other."""

    def __init__(self, labels, each, batches):
        self.by_class = [(labels == c).nonzero()[:, 0] for c in labels.unique()]
        self.each, self.batches = each, batches

    def __len__(self):
        return self.batches

    def __iter__(self):
        for _ in range(self.batches):
            yield torch.cat([rows[torch.randint(len(rows), (self.each,))] for rows in self.by_class]).tolist()


@sound("batches that a sampler balances, classes in order within a batch, triplet loss", steps=300, least=0.8)
def tab_triplets() -> Program:
    x, y = blobs(1500)
    data = TensorDataset(x[:1100], y[:1100])

    class Embed(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = nn.Sequential(nn.Linear(12, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 8))

        def forward(self, x):
            return F.normalize(self.net(x), dim=1)

    def batch_triplet(z, y):
        d = 2 - 2 * z @ z.T
        same = y[:, None] == y[None]
        pos = (d * same).amax(1)
        neg = (d + 10 * same).amin(1)
        return F.softplus(4 * (pos - neg)).mean()

    def nearest(model):
        z, base = model(x[1100:]), model(x[:1100])
        vote = F.one_hot(y[(z @ base.T).topk(9).indices], 4).sum(1)
        return (vote.argmax(1) == y[1100:]).float().mean().item()

    model = Embed()
    return Program(
        model,
        batch_triplet,
        DataLoader(data, batch_sampler=Balanced(y[:1100], 8, 30)),
        optim.Adam(model.parameters(), lr=1e-3),
        nearest,
    )


@sound("two tasks whose weights are learned", trained=200, steps=500, least=0.8)
def tab_uncertainty() -> Program:
    x, y = friedman(1500)
    x = (x - 0.5) / 0.29
    y2 = (x[:, 5] * x[:, 6] > 0).long()
    y1 = (y - 14) / 5

    class Multi(nn.Module):
        def __init__(self):
            super().__init__()
            self.trunk = nn.Sequential(nn.Linear(8, 96), nn.SiLU(), nn.Linear(96, 64), nn.SiLU())
            self.reg, self.cls = nn.Linear(64, 1), nn.Linear(64, 2)
            self.log_var = nn.Parameter(torch.zeros(2))

        def forward(self, x):
            h = self.trunk(x)
            return self.reg(h)[:, 0], self.cls(h)

    def step(model, batch):
        xb, a, b = batch
        r, c = model(xb)
        losses = torch.stack([F.mse_loss(r, a) / 2, F.cross_entropy(c, b)])
        return (losses * torch.exp(-model.log_var) + model.log_var / 2).sum()

    def score(m):
        r, c = m(x[1100:])
        fit = 1 - ((r - y1[1100:]) ** 2).mean().item() / y1[1100:].var().item()
        return (max(0.0, fit) + (c.argmax(1) == y2[1100:]).float().mean().item()) / 2

    model = Multi()
    return Program(
        model,
        None,
        DataLoader(TensorDataset(x[:1100], y1[:1100], y2[:1100]), batch_size=50, shuffle=True),
        optim.Adam(model.parameters(), lr=3e-3),
        score,
        step=step,
    )


@sound("squeeze and excitation, with gates of sigmoids", steps=300, least=0.85)
def tab_squeeze() -> Program:
    class SE(nn.Module):
        def __init__(self, c):
            super().__init__()
            self.fc = nn.Sequential(nn.Linear(c, c // 4), nn.ReLU(), nn.Linear(c // 4, c), nn.Sigmoid())

        def forward(self, x):
            return x * self.fc(x.mean((2, 3)))[:, :, None, None]

    x, y, _ = shapes(1200)
    model = nn.Sequential(
        nn.Conv2d(1, 16, 5, padding=2, bias=False),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        SE(16),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 24, 3, padding=1, bias=False),
        nn.BatchNorm2d(24),
        nn.ReLU(),
        SE(24),
        nn.AdaptiveMaxPool2d(2),
        nn.Flatten(),
        nn.Linear(96, 4),
    )
    opt = optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4)
    cycle = optim.lr_scheduler.OneCycleLR(opt, 0.1, total_steps=600)
    return Program(
        model,
        nn.CrossEntropyLoss(),
        loader(x[:1000], y[:1000], 25, drop_last=True),
        opt,
        accuracy(x[1000:], y[1000:]),
        scheduler=cycle,
    )


@sound("fine-tuning at a low rate of what was trained on another noise", trained=50, steps=300, least=0.85)
def tab_finetune() -> Program:
    x, y = waves(2200, noise=0.1)
    model = nn.Sequential(
        nn.Conv1d(1, 16, 7, stride=2, padding=3), nn.GELU(), nn.Conv1d(16, 32, 5, stride=2, padding=2), nn.GELU(),
        nn.AdaptiveMaxPool1d(2), nn.Flatten(), nn.Linear(64, 4),
    )  # fmt: skip
    first = optim.Adam(model.parameters(), lr=5e-3)
    for _ in range(200):
        at = torch.randint(0, 1000, (40,))
        first.zero_grad()
        F.cross_entropy(model(x[at]), y[at]).backward()
        first.step()
    first.zero_grad()
    x = x + 0.5 * torch.randn_like(x)
    return Program(
        model,
        nn.CrossEntropyLoss(),
        loader(x[1000:1800], y[1000:1800], 32),
        optim.AdamW(model.parameters(), lr=2e-4),
        accuracy(x[1800:], y[1800:]),
    )
