"""Tables with one mistake each."""

from __future__ import annotations

import warnings

import torch
import torch.nn.functional as F
from program import Program, fault
from sklearn.preprocessing import StandardScaler
from torch import nn

from data import accuracy, classes, loader, one_by_one, r2, rng, table

warnings.filterwarnings("ignore", message="Using a target size")


def mlp(*widths, act=nn.ReLU):
    layers = []
    for a, b in zip(widths[:-1], widths[1:], strict=True):
        layers += [nn.Linear(a, b), act()]
    return nn.Sequential(*layers[:-1])


@fault(
    "Income in euros next to age in years and shares below 1, none of them standardized, and SGD.",
    rules=["unscaled-input", "ill-conditioned-input"],
    fails=True,
    steps=400,
)
def income_in_euros(is_faulty):
    x, y, tx, ty = classes()
    unit = torch.tensor([12000.0, 9.0, 0.2, 1.0, 400.0, 1.0, 0.05, 30.0])
    zero = torch.tensor([38000.0, 44.0, 0.5, 0.0, 900.0, 0.0, 0.1, 70.0])
    raw = (lambda v: zero + unit * v) if is_faulty else (lambda v: v)
    net = mlp(8, 64, 64, 4)
    opt = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    return Program(net, F.cross_entropy, loader(raw(x), y), opt, accuracy(raw(tx), ty))


@fault(
    "The scaler is fitted anew to every single row in __getitem__: each feature minus its own mean is zero.",
    rules=["constant-feature", "labels-unrelated"],
    fails=True,
    steps=200,
)
def scaler_fitted_to_each_row(is_faulty):
    x, y, tx, ty = table()
    fitted = StandardScaler().fit(x.numpy())

    def prepare(rows):
        if is_faulty:
            done = [StandardScaler().fit_transform(row.reshape(1, -1).numpy()) for row in rows]
            return torch.cat([torch.from_numpy(d) for d in done]).float()
        return torch.from_numpy(fitted.transform(rows.numpy())).float()

    net = mlp(10, 64, 64, 1)
    return Program(
        net, nn.MSELoss(), loader(prepare(x), y), torch.optim.Adam(net.parameters(), 5e-3), r2(prepare(tx), ty)
    )


@fault(
    "F.relu is called in forward, but its result is not assigned: three linear layers in a row.",
    rules=["no-nonlinearity"],
    fails=True,
    steps=300,
)
def relu_not_assigned(is_faulty):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc1, self.fc2, self.fc3 = nn.Linear(8, 64), nn.Linear(64, 64), nn.Linear(64, 4)

        def forward(self, x):
            for fc in (self.fc1, self.fc2):
                x = fc(x)
                if is_faulty:
                    F.relu(x)
                else:
                    x = F.relu(x)
            return self.fc3(x)

    x, y, tx, ty = classes()
    net = Net()
    return Program(net, nn.CrossEntropyLoss(), loader(x, y), torch.optim.Adam(net.parameters(), 5e-3), accuracy(tx, ty))


@fault(
    "nn.init.uniform_ with its defaults, from 0 to 1, for all weights: every unit is on, and the outputs are huge and alike.",
    rules=[
        "bad-initialisation",
        "activation-drift",
        "full-neurons",
        "rank-collapse",
        "exploding-gradient",
        "saturated-output",
    ],
    fails=True,
    steps=300,
)
def uniform_from_zero_to_one(is_faulty):
    x, y, tx, ty = classes()
    x, tx = (v.sigmoid() for v in (x, tx))
    net = mlp(8, 64, 64, 64, 4)
    for m in net:
        if isinstance(m, nn.Linear):
            if is_faulty:
                nn.init.uniform_(m.weight)
            else:
                nn.init.kaiming_uniform_(m.weight, nonlinearity="relu")
            nn.init.zeros_(m.bias)
    return Program(net, F.cross_entropy, loader(x, y), torch.optim.Adam(net.parameters(), 3e-3), accuracy(tx, ty))


@fault(
    "Labels run from 1 to 4 and the network has four outputs: label 4 is out of range.",
    rules=["model-fails", "output-loss-mismatch"],
    fails=True,
    steps=300,
)
def labels_from_one(is_faulty):
    x, y, tx, ty = classes()
    net = mlp(8, 64, 64, 4)
    opt = torch.optim.Adam(net.parameters(), 5e-3)
    return Program(net, nn.CrossEntropyLoss(), loader(x, y + 1 if is_faulty else y), opt, accuracy(tx, ty))


@fault(
    "A price in dollars and a class are learned together; the squared error of the price is all of the loss.",
    rules=["term-dominates", "unscaled-target"],
    fails=True,
    steps=400,
)
def price_and_class(is_faulty):
    x, y, tx, ty = classes()
    g = rng(4)
    price = 200000 + 60000 * x[:, 5] + 20000 * x[:, 6] + 1000 * torch.randn(len(x), generator=g)
    if not is_faulty:
        price = (price - 200000) / 60000

    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.trunk = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU())
            self.price, self.kind = nn.Linear(64, 1), nn.Linear(64, 4)

        def forward(self, x):
            h = self.trunk(x)
            return self.price(h)[:, 0], self.kind(h)

    def step(model, batch):
        x, kind, price = batch
        p, k = model(x)
        return F.mse_loss(p, price) + F.cross_entropy(k, kind)

    def score(model):
        return (model(tx)[1].argmax(-1) == ty).float().mean().item()

    net = Two()
    return Program(net, None, loader(x, y, price), torch.optim.Adam(net.parameters(), 5e-3), score, step=step)


@fault(
    "Inputs are standardized in forward with the batch's own mean, so that one customer alone is always zero.",
    rules=["mixed-examples"],
    fails=True,
    steps=300,
)
def standardized_by_the_batch(is_faulty):
    x, y, tx, ty = classes()
    mean, std = x.mean(0), x.std(0)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = mlp(8, 64, 64, 4)

        def forward(self, x):
            if is_faulty:
                return self.body((x - x.mean(0)) / (x.std(0, unbiased=False) + 1e-6))
            return self.body((x - mean) / std)

    net = Net()
    return Program(net, F.cross_entropy, loader(x, y), torch.optim.Adam(net.parameters(), 5e-3), one_by_one(tx, ty))


@fault(
    "A regression whose target is of shape [n] and whose output is [n, 1], in a loss written by hand.",
    rules=["output-loss-mismatch"],
    fails=True,
    steps=300,
)
def huber_by_hand(is_faulty):
    x, y, tx, ty = table()

    def huber(pred, target, delta=1.0):
        e = pred - target
        small = e.abs() <= delta
        return torch.where(small, 0.5 * e**2, delta * (e.abs() - 0.5 * delta)).mean()

    net = mlp(10, 64, 64, 1)
    target = y[:, 0] if is_faulty else y
    return Program(net, huber, loader(x, target), torch.optim.Adam(net.parameters(), 5e-3), r2(tx, ty))


@fault(
    "Eight sigmoid layers with the default initialisation.",
    rules=["vanishing-gradient", "rank-collapse"],
    fails=True,
    steps=400,
)
def eight_sigmoids(is_faulty):
    x, y, tx, ty = classes()
    net = mlp(8, *[32] * 8, 4, act=nn.Sigmoid if is_faulty else nn.ReLU)
    if not is_faulty:
        for m in net:
            if isinstance(m, nn.Linear):
                nn.init.kaiming_normal_(m.weight, nonlinearity="relu")
                nn.init.zeros_(m.bias)
    return Program(net, F.cross_entropy, loader(x, y), torch.optim.Adam(net.parameters(), 2e-3), accuracy(tx, ty))


@fault(
    "Weights from N(0, 1) in a wide tanh network: all its units are at -1 or 1.",
    rules=["saturated-activation", "bad-initialisation"],
    fails=False,
    steps=300,
)
def tanh_from_unit_normal(is_faulty):
    x, y, tx, ty = classes()
    net = mlp(8, 128, 128, 4, act=nn.Tanh)
    for m in net:
        if isinstance(m, nn.Linear):
            nn.init.normal_(m.weight, std=1.0 if is_faulty else m.in_features**-0.5)
    return Program(
        net, F.cross_entropy, loader(x, y), torch.optim.SGD(net.parameters(), 0.1, momentum=0.9), accuracy(tx, ty)
    )


@fault(
    "The regression ends in a ReLU, left from a template, with a bias below zero: it is off for nearly everything.",
    rules=["dying-neurons", "no-gradient", "loss-not-decreasing", "output-loss-mismatch"],
    fails=True,
    steps=300,
)
def relu_at_the_end(is_faulty):
    x, y, tx, ty = table()
    net = mlp(10, 64, 64, 1)
    with torch.no_grad():
        net[-1].bias.fill_(-1.0)
    if is_faulty:
        net.append(nn.ReLU())
    return Program(net, nn.MSELoss(), loader(x, y), torch.optim.Adam(net.parameters(), 3e-3), r2(tx, ty))


@fault(
    "The last batch has one row, and BatchNorm cannot train on it: the run ends with an error at the end of the epoch.",
    rules=["model-fails", "small-batch-batchnorm"],
    fails=True,
    steps=400,
)
def last_batch_of_one(is_faulty):
    x, y, tx, ty = table()
    x, y = x[:65], y[:65]
    y = x[:, :1] - x[:, 1:2] * 0.5
    ty = tx[:, :1] - tx[:, 1:2] * 0.5
    net = nn.Sequential(nn.Linear(10, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 1))
    opt = torch.optim.Adam(net.parameters(), 3e-3)
    return Program(net, nn.MSELoss(), loader(x, y, batch=16, drop_last=not is_faulty), opt, r2(tx, ty))
