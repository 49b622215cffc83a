"""More sound programs for tables and pictures that look wrong."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from program import Program, sound
from torch import nn

from data import accuracy, digits, loader, r2, rng, table
from images import convnet
from tables import mlp


@sound("Dropout of 0.5 on a wide layer and 0.2 on the pixels, as in the paper.", steps=400, least=0.85)
def strong_dropout_wide():
    x, y, tx, ty = digits()
    net = nn.Sequential(
        nn.Flatten(), nn.Dropout(0.2), nn.Linear(64, 256), nn.ReLU(), nn.Dropout(0.5), nn.Linear(256, 10)
    )
    return Program(net, F.cross_entropy, loader(x, y), torch.optim.Adam(net.parameters(), 3e-3), accuracy(tx, ty))


@sound("A rate of 1.0: plain SGD on a network with BatchNorm, which does not mind.", steps=300, least=0.85)
def rate_of_one():
    x, y, tx, ty = digits()
    net = nn.Sequential(
        nn.Flatten(),
        nn.Linear(64, 64),
        nn.BatchNorm1d(64),
        nn.ReLU(),
        nn.Linear(64, 64),
        nn.BatchNorm1d(64),
        nn.ReLU(),
        nn.Linear(64, 10),
    )
    opt = torch.optim.SGD(net.parameters(), lr=1.0)
    return Program(net, F.cross_entropy, loader(x, y, batch=64), opt, accuracy(tx, ty))


@sound(
    "Three in ten of the labels of the training set are wrong on purpose, the loss stays far from zero.",
    steps=250,
    least=0.85,
)
def noisy_labels():
    x, y, tx, ty = digits()
    g = rng(9)
    wrong = torch.rand(len(y), generator=g) < 0.3
    y = torch.where(wrong, torch.randint(0, 10, y.shape, generator=g), y)
    net = convnet()
    return Program(
        net,
        nn.CrossEntropyLoss(label_smoothing=0.1),
        loader(x, y),
        torch.optim.Adam(net.parameters(), 2e-3),
        accuracy(tx, ty),
    )


@sound("Nineteen of twenty examples are of one class, and the loss weighs the classes for it.", steps=400, least=0.8)
def rare_class():
    g = rng(10)
    x = torch.randn(4000, 6, generator=g)
    s = x[:, 0] + x[:, 1] * x[:, 2]
    y = (s > 2.2).long()
    train, test = slice(0, 3000), slice(3000, 4000)
    net = mlp(6, 48, 48, 2)
    crit = nn.CrossEntropyLoss(weight=torch.tensor([1.0, 10.0]))

    def balanced(model):
        hit = model(x[test]).argmax(1) == y[test]
        return 0.5 * (hit[y[test] == 0].float().mean() + hit[y[test] == 1].float().mean()).item()

    return Program(net, crit, loader(x[train], y[train], batch=64), torch.optim.Adam(net.parameters(), 3e-3), balanced)


@sound(
    "Random features: the first layer is large, random and frozen, the last one is all that learns.",
    steps=400,
    least=0.8,
)
def random_features():
    class Kernel(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Linear(64, 400)
            nn.init.normal_(self.w.weight, std=0.35)
            nn.init.uniform_(self.w.bias, 0, 2 * math.pi)
            self.w.requires_grad_(False)
            self.out = nn.Linear(400, 10)

        def forward(self, x):
            return self.out(math.sqrt(2) * torch.cos(self.w(x.flatten(1))))

    x, y, tx, ty = digits()
    net = Kernel()
    opt = torch.optim.Adam(net.out.parameters(), 3e-3)
    return Program(net, F.cross_entropy, loader(x, y), opt, accuracy(tx, ty))


@sound(
    "SimCLR: the loss of a view depends on the rest of the batch, the two views go through one network.",
    steps=400,
    least=0.75,
)
def simclr():
    x, _, tx, _ = digits()
    flat, tflat = x.flatten(1), tx.flatten(1)
    net = nn.Sequential(nn.Linear(64, 96), nn.ReLU(), nn.Linear(96, 32))

    def view(v):
        return (v + 0.1 * torch.randn_like(v)) * (torch.rand_like(v) > 0.1)

    def step(net, batch):
        a, b = (F.normalize(net(view(batch[0])), dim=1) for _ in range(2))
        logits = a @ b.T / 0.2
        labels = torch.arange(len(a))
        return 0.5 * (F.cross_entropy(logits, labels) + F.cross_entropy(logits.T, labels))

    g = rng(13)
    views = [
        (tflat[:40] + 0.1 * torch.randn(40, 64, generator=g)) * (torch.rand(40, 64, generator=g) > 0.1)
        for _ in range(2)
    ]

    def score(net):
        a, b = (F.normalize(net(v), dim=1) for v in views)
        return ((a @ b.T).argmax(1) == torch.arange(40)).float().mean().item()

    return Program(net, None, loader(flat, batch=64), torch.optim.Adam(net.parameters(), 2e-3), score, step=step)


@sound("Multi-task learning with heads of very different losses, weighted to be alike.", steps=400, least=0.8)
def weighted_tasks():
    from tables import price_and_class

    return price_and_class(False)


@sound("An actor and a critic in one loss, with detached advantages.", steps=500, least=0.8)
def actor_critic():
    from graphs import critic_drowns_actor

    return critic_drowns_actor(False)


@sound("Quantile regression: three outputs for one target, with an asymmetric loss.", steps=400, least=0.75)
def quantiles():
    x, y, tx, ty = table()
    q = torch.tensor([0.1, 0.5, 0.9])
    net = mlp(10, 64, 64, 3)

    def pinball(out, y):
        e = y - out
        return torch.maximum(q * e, (q - 1) * e).mean()

    def score(model):
        return max(0.0, 1 - ((model(tx)[:, 1:2] - ty).square().mean() / ty.var()).item())

    return Program(net, pinball, loader(x, y), torch.optim.Adam(net.parameters(), 5e-3), score)


@sound(
    "Weight normalization, orthogonal weights and an activation that is off half the time by design (maxout).",
    steps=300,
    least=0.85,
)
def maxout_weight_norm():
    class Maxout(nn.Module):
        def __init__(self, a, b, k=3):
            super().__init__()
            self.fc, self.k = nn.utils.parametrizations.weight_norm(nn.Linear(a, b * k)), k

        def forward(self, x):
            return self.fc(x).unflatten(1, (-1, self.k)).amax(-1)

    x, y, tx, ty = digits()
    net = nn.Sequential(nn.Flatten(), Maxout(64, 32), Maxout(32, 32), nn.Linear(32, 10))
    return Program(net, F.cross_entropy, loader(x, y), torch.optim.Adam(net.parameters(), 3e-3), accuracy(tx, ty))


@sound(
    "Sparse on purpose: only the sixteen largest of 96 hidden units stay on, the others are zero.",
    steps=500,
    least=0.65,
)
def k_sparse():
    from generative import rebuilt

    class KSparse(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(64, 96), nn.Linear(96, 64)

        def forward(self, x):
            h = self.a(x.flatten(1))
            cut = h.topk(16, dim=1).values[:, -1:]
            return self.b(torch.where(h >= cut, h, 0.0))

    x, _, tx, _ = digits()
    net = KSparse()
    return Program(
        net,
        lambda o, t: F.mse_loss(o, t.flatten(1)),
        loader(x, x),
        torch.optim.Adam(net.parameters(), 3e-3),
        rebuilt(tx),
    )


@sound("Decoupled weight decay of 0.5 at a rate of 3e-3, which is little.", steps=300, least=0.8)
def adamw_half():
    x, y, tx, ty = table()
    net = mlp(10, 64, 64, 1)
    opt = torch.optim.AdamW(net.parameters(), lr=3e-3, weight_decay=0.5)
    return Program(net, nn.MSELoss(), loader(x, y), opt, r2(tx, ty))
