"""Tables: regression, counts, several tasks, physics."""

from __future__ import annotations

import math
import torch
from program import Program, fault
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset


def surface(n: int, d: int, seed: int, noise: float = 0.1):
    g = torch.Generator().manual_seed(2000 + seed)
    x = torch.randn(n, d, generator=g)
    y = torch.sin(1.5 * x[:, 0]) + 0.5 * x[:, 1] * x[:, 2] + 0.4 * x[:, 3].abs() - 0.3
    return x, y + noise * torch.randn(n, generator=g)


def r2(predict, y):
    """Share of variance explained, not below 0."""

    def score(model):
        out = predict(model).flatten()
        return max(0.0, 1 - ((out - y.flatten()) ** 2).mean().item() / y.var().item())

    return score


@fault(
    "outputs of shape (n, 1) minus targets of shape (n,) in a hand-written loss",
    rules=["output-loss-mismatch"],
    fails=True,
    steps=300,
)
def log_cosh_of_a_matrix(is_faulty):
    x, y = surface(2000, 5, 0)
    hx, hy = surface(800, 5, 1)
    if not is_faulty:
        y = y[:, None]
    model = nn.Sequential(nn.Linear(5, 64), nn.SiLU(), nn.Linear(64, 64), nn.SiLU(), nn.Linear(64, 1))

    def log_cosh(out, t):
        e = out - t
        return (e + F.softplus(-2 * e) - math.log(2)).mean()

    loader = DataLoader(TensorDataset(x, y), batch_size=64, shuffle=True)
    return Program(model, log_cosh, loader, torch.optim.Adam(model.parameters(), 3e-3), r2(lambda m: m(hx), hy))


@fault(
    "deflections in metres, about 1e-5, next to outputs of about 0.1",
    rules=["unscaled-target"],
    fails=True,
    steps=300,
)
def deflection_in_metres(is_faulty):
    g = torch.Generator().manual_seed(80)
    x = torch.rand(2600, 4, generator=g) * 2 - 1
    w = 1e-5 * (torch.sin(2 * x[:, 0]) * (1 + x[:, 1]) + x[:, 2] * x[:, 3])
    unit = 1.0 if is_faulty else 1e-5
    model = nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1))
    loader = DataLoader(TensorDataset(x[:2000], w[:2000, None] / unit), batch_size=50, shuffle=True)
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    return Program(model, nn.MSELoss(), loader, optimizer, r2(lambda m: m(x[2000:]), w[2000:] / unit))


@fault(
    "weights drawn from a standard normal in front of tanhs",
    rules=["bad-initialisation", "saturated-activation", "activation-drift", "exploding-gradient"],
    layers=["0", "2", "4", "6"],
    fails=True,
    steps=400,
)
def standard_normal_weights(is_faulty):
    x, y = surface(2000, 16, 3)
    hx, hy = surface(800, 16, 4)
    model = nn.Sequential(
        nn.Linear(16, 128), nn.Tanh(), nn.Linear(128, 128), nn.Tanh(), nn.Linear(128, 128), nn.Tanh(), nn.Linear(128, 1), nn.Flatten(0)
    )
    for m in model:
        if isinstance(m, nn.Linear):
            nn.init.normal_(m.weight, std=1.0 if is_faulty else m.in_features**-0.5)
    loader = DataLoader(TensorDataset(x, y), batch_size=64, shuffle=True)
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    return Program(model, nn.MSELoss(), loader, optimizer, r2(lambda m: m(hx), hy))


@fault(
    "functional dropout without the training flag",
    rules=["dropout-in-eval"],
    fails=False,
    steps=300,
)
def functional_dropout(is_faulty):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.inp = nn.Linear(5, 64)
            self.mid = nn.Linear(64, 64)
            self.out = nn.Linear(64, 1)

        def forward(self, x):
            on = True if is_faulty else self.training
            h = F.dropout(F.relu(self.inp(x)), 0.4, training=on)
            h = F.dropout(F.relu(self.mid(h)), 0.4, training=on)
            return self.out(h)[:, 0]

    x, y = surface(3000, 5, 5)
    model = Net()
    loader = DataLoader(TensorDataset(x[:2200], y[:2200]), batch_size=64, shuffle=True)
    return Program(
        model, nn.MSELoss(), loader, torch.optim.Adam(model.parameters(), 4e-3), r2(lambda m: m(x[2200:]), y[2200:])
    )


@fault(
    "an ε of 1 for Adam, copied from a page on another framework",
    rules=["optimizer-setting", "learning-rate-too-low"],
    fails=True,
    steps=300,
)
def epsilon_of_one(is_faulty):
    x, y = surface(3000, 5, 6)
    model = nn.Sequential(nn.Linear(5, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1), nn.Flatten(0))
    loader = DataLoader(TensorDataset(x[:2200], y[:2200]), batch_size=64, shuffle=True)
    optimizer = torch.optim.Adam(model.parameters(), 2e-3, eps=1.0 if is_faulty else 1e-8)
    return Program(model, nn.MSELoss(), loader, optimizer, r2(lambda m: m(x[2200:]), y[2200:]))


@fault(
    "all biases set to 4 against dead ReLUs, so that every unit is on for every row",
    rules=["full-neurons", "bad-initialisation", "no-nonlinearity", "last-layer-drift"],
    layers=["0", "1", "2", "3", "4"],
    fails=False,
    steps=300,
)
def biases_of_four(is_faulty):
    x, y = surface(3000, 5, 8)
    model = nn.Sequential(nn.Linear(5, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1), nn.Flatten(0))
    if is_faulty:
        for k in (0, 2):
            nn.init.constant_(model[k].bias, 4.0)
    loader = DataLoader(TensorDataset(x[:2200], y[:2200]), batch_size=64, shuffle=True)
    optimizer = torch.optim.Adam(model.parameters(), 2e-3)
    return Program(model, nn.MSELoss(), loader, optimizer, r2(lambda m: m(x[2200:]), y[2200:]))


@fault(
    "six thermometers that go up and down together; what matters is how they differ",
    rules=["ill-conditioned-input", "learning-rate-too-low"],
    fails=True,
    steps=400,
)
def thermometers_alike(is_faulty):
    g = torch.Generator().manual_seed(83)
    weather = 10 * torch.randn(3000, 1, generator=g)
    own = 0.3 * torch.randn(3000, 6, generator=g)
    y = torch.sin((own[:, 0] - own[:, 1]) / 0.3) + (own[:, 2] - own[:, 3]).abs() / 0.3 - 1.1
    t = 290 + weather + own
    x = t if is_faulty else t - t.mean(1, keepdim=True)
    x = (x - x.mean(0)) / x.std(0)
    model = nn.Sequential(nn.Linear(6, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1), nn.Flatten(0))
    loader = DataLoader(TensorDataset(x[:2200], y[:2200]), batch_size=64, shuffle=True)
    optimizer = torch.optim.SGD(model.parameters(), 0.03, momentum=0.9)
    return Program(model, nn.MSELoss(), loader, optimizer, r2(lambda m: m(x[2200:]), y[2200:]))


@fault(
    "all weights of a deep plain network drawn with a standard deviation of 0.02",
    rules=["bad-initialisation", "vanishing-gradient", "activation-drift", "rank-collapse"],
    layers=["body"],
    fails=True,
    steps=400,
)
def deep_and_tiny(is_faulty):
    class Plain(nn.Module):
        def __init__(self, depth=9, width=48):
            super().__init__()
            self.stem = nn.Linear(5, width)
            self.body = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))
            self.out = nn.Linear(width, 1)
            for m in self.body:
                if is_faulty:
                    nn.init.normal_(m.weight, 0, 0.02)
                else:
                    nn.init.kaiming_normal_(m.weight)
                nn.init.zeros_(m.bias)

        def forward(self, x):
            x = F.relu(self.stem(x))
            for layer in self.body:
                x = F.relu(layer(x))
            return self.out(x)[:, 0]

    x, y = surface(3000, 5, 9)
    model = Plain()
    loader = DataLoader(TensorDataset(x[:2200], y[:2200]), batch_size=64, shuffle=True)
    optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)
    return Program(model, nn.MSELoss(), loader, optimizer, r2(lambda m: m(x[2200:]), y[2200:]))
