"""Sound tables whose loss takes outputs and targets."""

from __future__ import annotations

import math

import torch
from program import Program, sound
from torch import nn
from torch.utils.data import DataLoader
from zts_data import DictRows, accuracy, blobs, friedman, gen, loader, mlp, r2, r2_of, ratings, sk


@sound("Nothing unusual: a small classifier of tumours on standardised columns", steps=200, least=0.9)
def zts_tumours():
    x, y, xt, yt = sk("breast_cancer")
    model = mlp(30, 32, 2)
    return Program(model, nn.CrossEntropyLoss(), loader(x, y, batch=32), torch.optim.Adam(model.parameters(), lr=2e-3),
                   accuracy(xt, yt))


@sound("Nothing unusual: wine with momentum", steps=200, least=0.85)
def zts_wine():
    x, y, xt, yt = sk("wine", 0.3)
    model = mlp(13, 24, 3, act=nn.Tanh)
    return Program(model, nn.CrossEntropyLoss(), loader(x, y, batch=16),
                   torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9), accuracy(xt, yt))


@sound("Nothing unusual: regression with BatchNorm, half trained", trained=150, steps=400, least=0.85)
def zts_regression_with_norm():
    model = nn.Sequential(nn.Linear(8, 48), nn.BatchNorm1d(48), nn.ReLU(), nn.Linear(48, 48), nn.BatchNorm1d(48),
                          nn.ReLU(), nn.Linear(48, 1))
    return Program(model, nn.MSELoss(), loader(*friedman(1500, 1)),
                   torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=1e-2), r2(*friedman(400, 2)))


@sound("Nothing unusual: digits with dropout and label smoothing", steps=400, least=0.9)
def zts_digits_smoothed():
    x, y, xt, yt = sk("digits", scale=False)
    model = nn.Sequential(nn.Linear(64, 96), nn.ReLU(), nn.Dropout(0.3), nn.Linear(96, 10))
    return Program(model, nn.CrossEntropyLoss(label_smoothing=0.1), loader(x / 16, y, batch=64),
                   torch.optim.Adam(model.parameters(), lr=4e-3), accuracy(xt / 16, yt))


@sound("A linear model of a linear relation, which needs no hidden layer", steps=300, least=0.9)
def zts_linear_returns():
    w = torch.randn(10, 1, generator=gen(4)) / 3

    def data(n, seed):
        x = torch.randn(n, 10, generator=gen(seed))
        return x, x @ w + 0.1 * torch.randn(n, 1, generator=gen(seed + 10))

    model = nn.Linear(10, 1)
    return Program(model, nn.MSELoss(), loader(*data(1000, 1)), torch.optim.SGD(model.parameters(), lr=0.05),
                   r2(*data(400, 2)))


class Factorised(nn.Module):
    """Ratings from products of factors, with no activation anywhere."""

    def __init__(self):
        super().__init__()
        self.left, self.right = nn.Embedding(60, 12), nn.Embedding(40, 12)
        self.left_bias, self.right_bias = nn.Embedding(60, 1), nn.Embedding(40, 1)
        for e in (self.left, self.right):
            nn.init.normal_(e.weight, std=0.1)
        for e in (self.left_bias, self.right_bias):
            nn.init.zeros_(e.weight)

    def forward(self, p):
        return ((self.left(p[:, 0]) * self.right(p[:, 1])).sum(1, keepdim=True) + self.left_bias(p[:, 0])
                + self.right_bias(p[:, 1]))


@sound("Factors start small and their biases at zero, and most rows of the tables get no gradient in a batch",
       steps=500, least=0.8)
def zts_factorised_ratings():
    model = Factorised()
    return Program(model, nn.MSELoss(), loader(*ratings(2000, 1), batch=32),
                   torch.optim.Adam(model.parameters(), lr=1e-2), r2(*ratings(400, 2)))


@sound("Random features are frozen on purpose, only the last layer learns", steps=400, least=0.8)
def zts_random_features():
    model = mlp(8, 512, 1)
    with torch.no_grad():
        model[0].weight.normal_(0, 0.6)
    model[0].requires_grad_(False)
    head = [p for p in model.parameters() if p.requires_grad]
    return Program(model, nn.MSELoss(), loader(*friedman(1500, 1)), torch.optim.Adam(head, lr=5e-3),
                   r2(*friedman(400, 2)))


@sound("A sum over the batch, with a rate that is small to match", steps=400, least=0.85)
def zts_summed_on_purpose():
    model = mlp(8, 48, 1)
    return Program(model, nn.MSELoss(reduction="sum"), loader(*friedman(1500, 1), batch=64),
                   torch.optim.SGD(model.parameters(), lr=2e-4, momentum=0.9), r2(*friedman(400, 2)))


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm, self.body = nn.LayerNorm(width), mlp(width, width, width, act=nn.SiLU)
        nn.init.zeros_(self.body[-1].weight)
        nn.init.zeros_(self.body[-1].bias)

    def forward(self, x):
        return x + self.body(self.norm(x))


@sound("Every residual branch starts at exactly zero, so inner layers get no gradient at the first step", steps=400,
       least=0.85)
def zts_zero_branches():
    model = nn.Sequential(nn.Linear(8, 32), *[Block(32) for _ in range(6)], nn.LayerNorm(32), nn.Linear(32, 1))
    return Program(model, nn.MSELoss(), loader(*friedman(1500, 1)), torch.optim.AdamW(model.parameters(), lr=3e-3),
                   r2(*friedman(400, 2)))


@sound("A wide one-hot table, whose columns are nearly all zero in a batch", steps=500, least=0.75)
def zts_one_hot_shops():
    effect = torch.randn(60, generator=gen(4))

    def data(n, seed):
        g = gen(seed)
        shop, z = torch.randint(0, 60, (n,), generator=g), torch.randn(n, 2, generator=g)
        return (torch.cat([nn.functional.one_hot(shop, 60).float(), z], 1),
                (0.8 * effect[shop] + 0.5 * z[:, 0]).unsqueeze(1))

    model = mlp(62, 64, 1)
    return Program(model, nn.MSELoss(), loader(*data(2500, 1)), torch.optim.Adam(model.parameters(), lr=5e-3),
                   r2(*data(500, 2)))


@sound("Fraud in one row of twenty, so that most batches hold a few positives only", steps=500, least=0.7)
def zts_rare_fraud():
    def data(n, seed):
        x = torch.randn(n, 6, generator=gen(seed))
        return x, ((x[:, 0] + x[:, 1] ** 2 - 0.5 * x[:, 2]) > 3.8).float().unsqueeze(1)

    xt, yt = data(2000, 2)

    def score(model):
        hit = (model(xt) > 0).float()
        return float(hit[yt > 0.5].mean() + (1 - hit)[yt < 0.5].mean() - 1)

    model = mlp(6, 48, 1)
    return Program(model, nn.BCEWithLogitsLoss(pos_weight=torch.tensor(10.0)), loader(*data(4000, 1), batch=128),
                   torch.optim.Adam(model.parameters(), lr=3e-3), score)


class Tied(nn.Module):
    """An autoencoder whose decoder is the transpose of its encoder."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(64, 24) / 8)
        self.inner, self.outer = nn.Parameter(torch.zeros(24)), nn.Parameter(torch.zeros(64))

    def forward(self, x):
        return torch.tanh(x @ self.weight + self.inner) @ self.weight.T + self.outer


@sound("Encoder and decoder share their weight on purpose, the target is the input, and border pixels never vary",
       steps=500, least=0.65)
def zts_tied_digits():
    x, _, xt, _ = sk("digits", scale=False)
    x, xt = x / 16, xt / 16
    keep = x.std(0) > 0.1
    model = Tied()
    return Program(model, nn.MSELoss(), loader(x, x), torch.optim.Adam(model.parameters(), lr=4e-3),
                   lambda m: r2_of(m(xt)[:, keep], xt[:, keep]))


class Visits(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.all = mlp(3, 32, 32), mlp(32, 32, 1)

    def forward(self, visits, is_real):
        w = is_real.float().unsqueeze(-1)
        return self.all((self.one(visits) * w).sum(1) / w.sum(1).clamp(min=1))


@sound("Most places of a set are padding, and are masked out of its mean", steps=500, least=0.8)
def zts_few_visits():
    def data(n, seed):
        g = gen(seed)
        v, count = torch.randn(n, 10, 3, generator=g), torch.randint(1, 4, (n, 1), generator=g)
        real = torch.arange(10) < count
        y = ((v[..., 0].abs() + v[..., 1]) * real).sum(1, keepdim=True) / count
        return {"visits": v * real.unsqueeze(-1), "is_real": real}, y - 0.8

    model = Visits()
    return Program(model, nn.MSELoss(), DataLoader(DictRows(*data(2000, 1)), batch_size=64, shuffle=True),
                   torch.optim.Adam(model.parameters(), lr=3e-3), r2(*data(400, 2)))


@sound("Counts in a Poisson loss whose minimum is far below zero", steps=400, least=0.7)
def zts_counts_log_rate():
    def data(n, seed):
        g = gen(seed)
        x = torch.randn(n, 4, generator=g)
        log_rate = 1.5 + 0.5 * x[:, :1] - 0.6 * (x[:, 1:2] > 0)
        return x, log_rate, torch.poisson(log_rate.exp(), generator=g)

    x, _, count = data(3000, 1)
    xt, log_rate, _ = data(400, 2)
    model = mlp(4, 32, 1)
    return Program(model, nn.PoissonNLLLoss(), loader(x, count), torch.optim.Adam(model.parameters(), lr=4e-3),
                   r2(xt, log_rate))


@sound("A rate of 2 for gradient descent, which the small inputs of this table need", steps=500, least=0.85)
def zts_large_rate():
    x, y, xt, yt = sk("digits", scale=False)
    model = nn.Linear(64, 10)
    return Program(model, nn.CrossEntropyLoss(), loader(x / 32, y), torch.optim.SGD(model.parameters(), lr=2.0),
                   accuracy(xt / 32, yt))


@sound("Fully trained: training loss near zero and many ReLUs that rarely fire", trained=450, steps=600, least=0.9)
def zts_digits_done():
    x, y, xt, yt = sk("digits", scale=False)
    model = mlp(64, 128, 64, 10)
    return Program(model, nn.CrossEntropyLoss(), loader(x / 16, y), torch.optim.Adam(model.parameters(), lr=3e-3),
                   accuracy(xt / 16, yt))


class Waves(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("rates", torch.arange(1, 13) * math.pi)
        self.net = mlp(24, 48, 1, act=nn.GELU)

    def forward(self, t):
        a = t * self.rates
        return self.net(torch.cat([a.sin(), a.cos()], 1))


@sound("One column only, which is expanded into waves inside the network", trained=100, steps=500, least=0.85)
def zts_tide_table():
    def data(n, seed):
        t = torch.rand(n, 1, generator=gen(seed))
        return t, torch.sin(14 * t) + 0.5 * torch.cos(33 * t)

    model = Waves()
    return Program(model, nn.MSELoss(), loader(*data(1500, 1)), torch.optim.Adam(model.parameters(), lr=2e-3),
                   r2(*data(400, 2)))


@sound("Warm-up over a hundred steps: the first steps hardly move", steps=500, least=0.85)
def zts_slow_warm_up():
    model = mlp(6, 64, 64, 4)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    return Program(model, nn.CrossEntropyLoss(), loader(*blobs(1600, 1)), optimizer, accuracy(*blobs(500, 2)),
                   scheduler=torch.optim.lr_scheduler.LambdaLR(optimizer, lambda k: min(1.0, (k + 1) / 100)))


@sound("A label is wrong in a fifth of the rows, which leaves a high loss but a good classifier", steps=400, least=0.8)
def zts_noisy_labels():
    x, y = blobs(4000, 1)
    g = gen(7)
    y = torch.where(torch.rand(len(y), generator=g) < 0.2, torch.randint(0, 4, y.shape, generator=g), y)
    model = mlp(6, 48, 4)
    return Program(model, nn.CrossEntropyLoss(), loader(x, y, batch=128), torch.optim.Adam(model.parameters(), lr=4e-3),
                   accuracy(*blobs(500, 2)))
