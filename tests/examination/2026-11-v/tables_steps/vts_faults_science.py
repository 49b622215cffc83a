"""Faults in scientific problems."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from program import Program, fault
from torch import nn
from torch.utils.data import DataLoader
from vts_data import VtsDicts, vts_acc, vts_loader, vts_r2


class Displacement(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.inp = nn.Linear(1, width)
        self.mid = nn.Linear(width, width)
        self.out = nn.Linear(width, 1)

    def forward(self, x):
        return self.out(torch.tanh(self.mid(torch.tanh(self.inp(x)))))


@fault(
    "a bar's equilibrium in units of its stiffness, so that the ends count for nothing",
    rules=["term-dominates"],
    fails=True,
    steps=500,
)
def vts_stiff_bar(is_faulty):
    stiff = 210.0

    def truth(x):
        return 0.3 * torch.sin(math.pi * x) + 1.0 - 2.0 * x

    x = torch.rand(2048, 1)
    ends = torch.tensor([[0.0], [1.0]])
    net = Displacement()

    def step(model, batch):
        (x,) = batch
        x = x.clone().requires_grad_(True)
        u = model(x)
        du = torch.autograd.grad(u.sum(), x, create_graph=True)[0]
        ddu = torch.autograd.grad(du.sum(), x, create_graph=True)[0]
        load = stiff * 0.3 * math.pi**2 * torch.sin(math.pi * x)
        residual = stiff * ddu + load
        if not is_faulty:
            residual = residual / stiff
        return residual.pow(2).mean() + 10 * F.mse_loss(model(ends), truth(ends))

    grid = torch.linspace(0, 1, 200)[:, None]
    return Program(
        net, None, vts_loader(x), torch.optim.Adam(net.parameters(), lr=5e-3), lambda m: vts_r2(m(grid), truth(grid)),
        step=step,
    )


class DeepONet(nn.Module):
    def __init__(self, sensors, p=24):
        super().__init__()
        self.branch = nn.Sequential(nn.Linear(sensors, 48), nn.Tanh(), nn.Linear(48, p))
        self.trunk = nn.Sequential(nn.Linear(1, 48), nn.Tanh(), nn.Linear(48, 48), nn.Tanh(), nn.Linear(48, p))
        self.bias = nn.Parameter(torch.zeros(1))

    def forward(self, u, y):
        return (self.branch(u) * self.trunk(y)).sum(-1, keepdim=True) + self.bias


@fault(
    "the trunk of an operator network takes its coordinate in metres along a river",
    rules=["unscaled-input", "saturated-activation"],
    layers=["trunk"],
    fails=False,
    steps=600,
)
def vts_river_operator(is_faulty):
    length, sensors = 4000.0, 16
    grid = torch.linspace(0, 1, sensors)

    def sample(n):
        a = torch.randn(n, 3)
        k = torch.arange(1, 4)
        u = (a[:, None] * torch.sin(math.pi * k * grid[:, None])).sum(-1)
        y = torch.rand(n, 1)
        g = (a * (1 - torch.cos(math.pi * k * y)) / (math.pi * k)).sum(1, keepdim=True) * 2
        return {"u": u, "y": y * length if is_faulty else 2 * y - 1}, g

    x, g = sample(4096)
    xt, gt = sample(800)
    net = DeepONet(sensors)
    return Program(
        net, nn.MSELoss(), DataLoader(VtsDicts(x, g), 128, shuffle=True), torch.optim.Adam(net.parameters(), lr=4e-3),
        lambda m: vts_r2(m(**xt), gt),
    )


class Flow(nn.Module):
    def __init__(self, dim, dt, steps):
        super().__init__()
        self.lift = nn.Linear(2, dim)
        self.field = nn.Sequential(nn.Linear(dim, 32), nn.ReLU(), nn.Linear(32, dim))
        self.read = nn.Linear(dim, 3)
        self.dt, self.steps = dt, steps

    def forward(self, x):
        h = self.lift(x)
        for _ in range(self.steps):
            h = h + self.dt * self.field(h)
        return self.read(h)


@fault(
    "an Euler scheme without its step width",
    rules=["activation-drift", "exploding-gradient", "learning-rate-too-high", "diverging"],
    layers=["field", "read"],
    fails=True,
    steps=300,
)
def vts_euler_without_dt(is_faulty):
    steps = 30

    def sample(n):
        y = torch.randint(0, 3, (n,))
        r, a = y + 0.6 + 0.15 * torch.randn(n), 2 * math.pi * torch.rand(n)
        return torch.stack([r * a.cos(), r * a.sin()], 1) / 1.5, y

    x, y = sample(2048)
    xt, yt = sample(500)
    net = Flow(16, 1.0 if is_faulty else 1.0 / steps, steps)
    return Program(
        net, F.cross_entropy, vts_loader(x, y), torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9),
        lambda m: max(0.0, 1.5 * (vts_acc(m(xt), yt) - 1 / 3)),
    )


@fault(
    "a whole surrogate in bfloat16, whose steps are lost in its weights",
    rules=["lost-updates", "rounding-error", "learning-rate-too-low"],
    fails=False,
    steps=600,
)
def vts_half_surrogate(is_faulty):
    kind = torch.bfloat16 if is_faulty else torch.float32
    w = torch.randn(8, 3) / 8**0.5

    def truth(x):
        return torch.sin(1.5 * x @ w).sum(1, keepdim=True)

    x, xt = torch.randn(3200, 8), torch.randn(600, 8)
    y, yt = truth(x), truth(xt)
    net = nn.Sequential(nn.Linear(8, 128), nn.Tanh(), nn.Linear(128, 128), nn.Tanh(), nn.Linear(128, 1))
    for layer in net:
        if isinstance(layer, nn.Linear):
            nn.init.xavier_uniform_(layer.weight, gain=1.5)
    net = net.to(kind)
    return Program(
        net, nn.MSELoss(), vts_loader(x.to(kind), y.to(kind), batch=64),
        torch.optim.Adam(net.parameters(), lr=1.5e-4),
        lambda m: vts_r2(m(xt.to(kind)), yt),
    )
