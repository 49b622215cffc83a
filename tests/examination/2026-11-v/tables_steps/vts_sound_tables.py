"""Sound programs on tables."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from program import Program, sound
from torch import nn
from torch.utils.data import DataLoader
from vts_data import VtsDicts, vts_acc, vts_gini, vts_loader, vts_r2, vts_rank_corr, vts_relation


@sound("an ordinary regression", steps=400, least=0.8)
def vts_plain_regression():
    f = vts_relation(9)
    x, xt = torch.randn(3000, 9), torch.randn(600, 9)
    net = nn.Sequential(nn.Linear(9, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))
    return Program(
        net, nn.MSELoss(), vts_loader(x, f(x) + 0.1 * torch.randn(3000, 1)), torch.optim.Adam(net.parameters(), 2e-3),
        lambda m: vts_r2(m(xt), f(xt)),
    )


class MixedColumns(nn.Module):
    def __init__(self, sizes, d):
        super().__init__()
        self.embeddings = nn.ModuleList(nn.Embedding(s, min(10, (s + 1) // 2)) for s in sizes)
        self.bn_in = nn.BatchNorm1d(d)
        wide = sum(e.embedding_dim for e in self.embeddings) + d
        self.block1 = nn.Sequential(nn.Linear(wide, 96), nn.ReLU(), nn.BatchNorm1d(96), nn.Dropout(0.1))
        self.block2 = nn.Sequential(nn.Linear(96, 48), nn.ReLU(), nn.BatchNorm1d(48), nn.Dropout(0.1))
        self.out = nn.Linear(48, 4)

    def forward(self, x_cat, x_num):
        e = [emb(x_cat[:, i]) for i, emb in enumerate(self.embeddings)]
        return self.out(self.block2(self.block1(torch.cat([*e, self.bn_in(x_num)], 1))))


@sound("embeddings, BatchNorm and dropout, in the middle of training", trained=150, steps=450, least=0.65)
def vts_mixed_columns():
    sizes = [15, 4, 24]
    effects, w = [torch.randn(s, 4) for s in sizes], torch.randn(5, 4) * 0.6

    def sample(n):
        cat = torch.stack([torch.randint(0, s, (n,)) for s in sizes], 1)
        num = torch.randn(n, 5)
        y = (sum(e[cat[:, i]] for i, e in enumerate(effects)) + torch.tanh(num) @ w).argmax(1)
        return {"x_cat": cat, "x_num": 2 * num + 1}, y

    x, y = sample(4096)
    xt, yt = sample(800)
    net = MixedColumns(sizes, 5)
    return Program(
        net, nn.CrossEntropyLoss(), DataLoader(VtsDicts(x, y), 128, shuffle=True),
        torch.optim.AdamW(net.parameters(), lr=4e-3, weight_decay=1e-3),
        lambda m: max(0.0, (vts_acc(m(**xt), yt) - 0.25) / 0.75),
    )


@sound("momentum and a cosine, of which two thirds are over", trained=300, steps=450, least=0.7)
def vts_cosine_momentum():
    f = vts_relation(8, outs=5, pair=0.0)
    x, xt = torch.randn(4000, 8), torch.randn(800, 8)
    y, yt = f(x).argmax(1), f(xt).argmax(1)
    net = nn.Sequential(nn.Linear(8, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 5))
    opt = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
    return Program(
        net, F.cross_entropy, vts_loader(x, y, batch=80), opt, lambda m: max(0.0, (vts_acc(m(xt), yt) - 0.2) / 0.8),
        scheduler=torch.optim.lr_scheduler.CosineAnnealingLR(opt, T_max=450),
    )


@sound("three quantiles with a pinball loss by hand", steps=450, least=0.75)
def vts_quantile_bands():
    f, g = vts_relation(6, pair=0.3), vts_relation(6, pair=0.0)
    levels = torch.tensor([0.1, 0.5, 0.9])

    def spread(x):
        return 0.3 + 0.5 * torch.sigmoid(2 * g(x))

    x, xt = torch.randn(5000, 6), torch.randn(800, 6)
    y = f(x) + spread(x) * torch.randn(5000, 1)
    true = f(xt) + spread(xt) * torch.tensor([-1.2816, 0.0, 1.2816])
    net = nn.Sequential(nn.Linear(6, 64), nn.SiLU(), nn.Linear(64, 64), nn.SiLU(), nn.Linear(64, 3))

    def pinball(q, y):
        e = y - q
        return torch.maximum(levels * e, (levels - 1) * e).mean()

    return Program(
        net, pinball, vts_loader(x, y, batch=100), torch.optim.AdamW(net.parameters(), lr=4e-3),
        lambda m: vts_r2(m(xt), true),
    )


@sound("a logistic regression", steps=300, least=0.8)
def vts_logit_baseline():
    w = torch.randn(12) / 12**0.5 * 3
    x, xt = torch.randn(3000, 12), torch.randn(1000, 12)
    y = (torch.rand(3000) < torch.sigmoid(x @ w)).float()
    net = nn.Linear(12, 1)
    return Program(
        net, lambda out, y: F.binary_cross_entropy_with_logits(out.squeeze(1), y), vts_loader(x, y, batch=100),
        torch.optim.SGD(net.parameters(), lr=0.5), lambda m: vts_gini(m(xt), (xt @ w > 0).float()),
    )


class Dollars(nn.Module):
    def __init__(self, d, mean, std):
        super().__init__()
        self.register_buffer("mean", mean)
        self.register_buffer("std", std)
        self.net = nn.Sequential(nn.Linear(d, 64), nn.GELU(), nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 1))

    def forward(self, x):
        return self.net(x) * self.std + self.mean


@sound("prices of hundreds of thousands, which the network and its loss scale themselves", steps=400, least=0.8)
def vts_scaled_inside():
    f = vts_relation(8, pair=0.3)
    x, xt = torch.randn(3000, 8), torch.randn(600, 8)
    y, yt = 3e5 + 8e4 * f(x), 3e5 + 8e4 * f(xt)
    net = Dollars(8, y.mean(0), y.std(0))
    return Program(
        net, lambda out, y: F.mse_loss((out - y) / net.std, torch.zeros_like(y)), vts_loader(x, y, batch=100),
        torch.optim.Adam(net.parameters(), lr=3e-3), lambda m: vts_r2(m(xt), yt),
    )


@sound("two in a hundred are positive, and weighted for it", steps=500, least=0.7)
def vts_rare_fraud():
    f = vts_relation(8, pair=0.4)

    def sample(n):
        x = torch.randn(n, 8)
        return x, (f(x)[:, 0] + 0.2 * torch.randn(n) > 2.0).float()

    x, y = sample(12000)
    xt, yt = sample(4000)
    weight = (y == 0).sum() / (y == 1).sum()
    net = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 1), nn.Flatten(0))
    return Program(
        net, nn.BCEWithLogitsLoss(pos_weight=weight.sqrt()), vts_loader(x, y, batch=256),
        torch.optim.Adam(net.parameters(), lr=3e-3), lambda m: vts_gini(m(xt), yt),
    )


class Probe(nn.Module):
    def __init__(self, d, width, outs):
        super().__init__()
        self.backbone = nn.Sequential(nn.Linear(d, width), nn.Tanh())
        self.head = nn.Linear(width, outs)
        self.backbone.requires_grad_(False)

    def forward(self, x):
        with torch.no_grad():
            h = self.backbone(x)
        return self.head(h)


@sound("random features that are frozen on purpose, below a linear head", steps=500, least=0.7)
def vts_random_features():
    f = vts_relation(5, pair=0.2)
    x, xt = torch.randn(4000, 5), torch.randn(600, 5)
    net = Probe(5, 256, 1)
    nn.init.normal_(net.backbone[0].weight, std=0.6)
    return Program(
        net, nn.MSELoss(), vts_loader(x, f(x), batch=100),
        torch.optim.Adam([p for p in net.parameters() if p.requires_grad], lr=1e-2), lambda m: vts_r2(m(xt), f(xt)),
    )


class TiedAutoencoder(nn.Module):
    def __init__(self, d, code):
        super().__init__()
        self.encode = nn.Linear(d, code)
        self.back = nn.Parameter(torch.zeros(d))

    def forward(self, x):
        return F.linear(self.encode(x), self.encode.weight.t(), self.back)


@sound("a linear autoencoder whose decoder is its encoder's transpose, on columns that hang together", steps=400,
       least=0.8)
def vts_tied_pca():
    mix = torch.randn(4, 16) / 2

    def sample(n):
        x = torch.randn(n, 4) @ mix + 0.15 * torch.randn(n, 16)
        return x

    x, xt = sample(3000), sample(600)
    net = TiedAutoencoder(16, 4)
    return Program(
        net, nn.MSELoss(), vts_loader(x, x), torch.optim.Adam(net.parameters(), lr=1e-2), lambda m: vts_r2(m(xt), xt)
    )


@sound("counts of which most are zero, and a loss that ends far from zero", trained=400, steps=500, least=0.7)
def vts_sparse_counts():
    f = vts_relation(6, pair=0.2)
    x, xt = torch.randn(8000, 6), torch.randn(800, 6)
    y = torch.poisson((1.2 * f(x) - 2.2).exp())
    net = nn.Sequential(nn.Linear(6, 48), nn.ELU(), nn.Linear(48, 48), nn.ELU(), nn.Linear(48, 1))
    return Program(
        net, nn.PoissonNLLLoss(log_input=True), vts_loader(x, y, batch=256),
        torch.optim.Adam(net.parameters(), lr=3e-3), lambda m: vts_rank_corr(m(xt), f(xt)),
    )


class MeanAndSpread(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(d, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh())
        self.mean, self.log_var = nn.Linear(64, 1), nn.Linear(64, 1)

    def forward(self, x):
        h = self.body(x)
        return self.mean(h), self.log_var(h)


@sound("a Gaussian likelihood whose negative logarithm is below zero, half trained", trained=250, steps=500,
       least=0.75)
def vts_negative_likelihood():
    f = vts_relation(5, pair=0.2)
    x, xt = torch.randn(4000, 5), torch.randn(600, 5)
    y = f(x) + (0.03 + 0.1 * (x[:, 2:3] > 0)) * torch.randn(4000, 1)
    net = MeanAndSpread(5)

    def loss(out, y):
        mean, log_var = out
        return 0.5 * (log_var + (y - mean) ** 2 / log_var.exp()).mean()

    return Program(
        net, loss, vts_loader(x, y, batch=100), torch.optim.Adam(net.parameters(), lr=3e-3),
        lambda m: vts_r2(m(xt)[0], f(xt)),
    )


class ZeroResidual(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        nn.init.zeros_(self.down.weight)
        nn.init.zeros_(self.down.bias)

    def forward(self, x):
        return x + self.down(F.gelu(self.up(self.norm(x))))


@sound("residual branches and a head that start at zero", steps=400, least=0.75)
def vts_zero_branches():
    f = vts_relation(8)
    x, xt = torch.randn(3000, 8), torch.randn(600, 8)
    net = nn.Sequential(nn.Linear(8, 40), *[ZeroResidual(40) for _ in range(3)], nn.LayerNorm(40), nn.Linear(40, 1))
    nn.init.zeros_(net[-1].weight)
    nn.init.zeros_(net[-1].bias)
    return Program(
        net, nn.MSELoss(), vts_loader(x, f(x)), torch.optim.AdamW(net.parameters(), lr=3e-3),
        lambda m: vts_r2(m(xt), f(xt)),
    )


class FactorizationMachine(nn.Module):
    def __init__(self, many, dim):
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(()))
        self.linear = nn.Embedding(many, 1)
        self.factors = nn.Embedding(many, dim)
        nn.init.zeros_(self.linear.weight)
        nn.init.normal_(self.factors.weight, std=0.1)

    def forward(self, ids):
        v = self.factors(ids)
        pairs = 0.5 * (v.sum(1).pow(2) - v.pow(2).sum(1)).sum(-1)
        return self.bias + self.linear(ids).sum((1, 2)) + pairs


@sound("a factorization machine: small factors, no activation", steps=500, least=0.7)
def vts_factors():
    users, items = 40, 30
    u, v, b = torch.randn(users, 2), torch.randn(items, 2), 0.5 * torch.randn(items)

    def sample(n):
        i, j = torch.randint(0, users, (n,)), torch.randint(0, items, (n,))
        return torch.stack([i, users + j], 1), ((u[i] * v[j]).sum(1) + b[j]) / 1.5

    x, y = sample(8000)
    xt, yt = sample(800)
    net = FactorizationMachine(users + items, 8)
    return Program(
        net, nn.MSELoss(), vts_loader(x, y + 0.05 * torch.randn(8000), batch=200),
        torch.optim.Adam(net.parameters(), lr=1e-2), lambda m: vts_r2(m(xt), yt),
    )


@sound("a fifth of the labels is wrong, so that the loss stays high; trained", trained=350, steps=450, least=0.75)
def vts_noisy_labels():
    f = vts_relation(8, outs=4, pair=0.0)
    x, xt = torch.randn(6000, 8), torch.randn(800, 8)
    y, yt = f(x).argmax(1), f(xt).argmax(1)
    y = torch.where(torch.rand(6000) < 0.25, torch.randint(0, 4, (6000,)), y)
    net = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 4))
    opt = torch.optim.AdamW(net.parameters(), lr=3e-3)
    return Program(
        net, nn.CrossEntropyLoss(), vts_loader(x, y, batch=128), opt,
        lambda m: max(0.0, (vts_acc(m(xt), yt) - 0.25) / 0.75),
        scheduler=torch.optim.lr_scheduler.OneCycleLR(opt, max_lr=6e-3, total_steps=1200),
    )
