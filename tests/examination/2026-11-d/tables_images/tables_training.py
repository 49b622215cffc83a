"""Tables: optimizers, weights and features with one mistake each."""

from __future__ import annotations

import warnings

import torch
from program import Program, fault
from torch import nn

from data import accuracy, classes, loader, r2, rng, table

warnings.filterwarnings("ignore", message="Using a target size")
from tables import mlp


@fault(
    "The weight decay of a linear model's grid search, 0.3, in SGD for a network.",
    rules=["weight-decay-dominates"],
    fails=True,
    steps=400,
)
def ridge_in_a_network(is_faulty):
    x, y, tx, ty = table()
    net = mlp(10, 64, 64, 1)
    opt = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9, weight_decay=0.3 if is_faulty else 1e-4)
    return Program(net, nn.MSELoss(), loader(x, y), opt, r2(tx, ty))


@fault(
    "The betas of Adam are the wrong way round, (0.999, 0.9).",
    rules=["optimizer-setting"],
    fails=False,
    steps=300,
)
def betas_swapped(is_faulty):
    x, y, tx, ty = table()
    net = mlp(10, 64, 64, 1)
    opt = torch.optim.Adam(net.parameters(), lr=5e-3, betas=(0.999, 0.9) if is_faulty else (0.9, 0.999))
    return Program(net, nn.MSELoss(), loader(x, y), opt, r2(tx, ty))


@fault(
    "Polynomial features of a temperature in kelvin up to the fourth power go in as they are.",
    rules=["unscaled-input", "ill-conditioned-input"],
    fails=True,
    steps=300,
)
def powers_of_kelvin(is_faulty):
    g = rng(6)
    c = torch.randn(1200, 1, generator=g)
    y = torch.sin(1.5 * c) + 0.5 * c
    kelvin = 290 + 8 * c
    x = torch.cat([kelvin**k for k in range(1, 5)], 1)
    if not is_faulty:
        x = torch.cat([c**k / 2**k for k in range(1, 5)], 1)
    net = mlp(4, 64, 64, 1)
    opt = torch.optim.Adam(net.parameters(), 3e-3)
    return Program(net, nn.MSELoss(), loader(x[:900], y[:900]), opt, r2(x[900:], y[900:]))


@fault(
    "Every weight of every hidden layer starts at the same constant.",
    rules=["symmetric-initialisation"],
    fails=True,
    steps=300,
)
def constant_weights(is_faulty):
    x, y, tx, ty = table()
    net = mlp(10, 64, 64, 1)
    if is_faulty:
        for p in net.parameters():
            nn.init.constant_(p, 0.05)
    return Program(net, nn.MSELoss(), loader(x, y), torch.optim.Adam(net.parameters(), 5e-3), r2(tx, ty))


@fault(
    "Lower layers get a tenth of the rate of the layer above, all the way down six layers, and the body is not pretrained.",
    rules=["learning-rate-too-low", "lost-updates"],
    fails=True,
    steps=400,
)
def rate_divided_by_depth(is_faulty):
    x, y, tx, ty = table()
    net = mlp(10, 16, 16, 16, 16, 1)
    linears = [m for m in net if isinstance(m, nn.Linear)][::-1]
    factor = 0.1 if is_faulty else 1.0
    groups = [{"params": list(m.parameters()), "lr": 5e-3 * factor**i} for i, m in enumerate(linears)]
    return Program(net, nn.MSELoss(), loader(x, y), torch.optim.Adam(groups), r2(tx, ty))


@fault(
    "A column with a logarithm of zero counts: minus infinity in one row of thirty.",
    rules=["non-finite"],
    fails=True,
    steps=300,
)
def log_of_zero(is_faulty):
    x, y, tx, ty = table()
    counts = torch.poisson(3 * torch.exp(0.3 * x[:, 5]), generator=rng(3))
    test = torch.poisson(3 * torch.exp(0.3 * tx[:, 5]), generator=rng(4))
    f = torch.log if is_faulty else torch.log1p

    def joined(x, c):
        return torch.cat([x, f(c)[:, None]], 1)

    tj = joined(tx, test)
    net = mlp(11, 64, 64, 1)
    opt = torch.optim.Adam(net.parameters(), 5e-3)
    return Program(net, nn.MSELoss(), loader(joined(x, counts), y), opt, r2(tj.clamp(min=-5), ty))


@fault(
    "X was sorted by customer after the labels had been taken from the old order.",
    rules=["labels-unrelated"],
    fails=True,
    steps=300,
)
def sorted_without_its_labels(is_faulty):
    x, y, tx, ty = classes()
    order = x[:, 7].argsort()
    net = mlp(8, 64, 64, 4)
    opt = torch.optim.Adam(net.parameters(), 3e-3)
    return Program(net, nn.CrossEntropyLoss(), loader(x[order], y if is_faulty else y[order]), opt, accuracy(tx, ty))
