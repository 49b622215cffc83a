"""Faulty physics, operators and flows."""

import math

import torch
import torch.nn.functional as F
from torch import nn
from torch.autograd import grad
from wts_data import loader, r2

from program import Program, fault


class Field(nn.Module):
    def __init__(self, act, width=32):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(1, width), act(), nn.Linear(width, width), act(), nn.Linear(width, 1))

    def forward(self, x):
        return self.net(x)


@fault(
    "rectified units have no second derivative, so that the residual of u'' = f teaches nothing",
    rules=["loss-not-decreasing", "no-gradient"],
    fails=True,
    steps=600,
)
def wts_poisson_rectified(is_faulty):
    model = Field(nn.ReLU if is_faulty else nn.Tanh)
    points = torch.rand(1024, 1) * 2 - 1
    edge = torch.tensor([[-1.0], [1.0]])

    def step(model, batch):
        x = batch[0].clone().requires_grad_(True)
        u = model(x)
        du = grad(u.sum(), x, create_graph=True)[0]
        ddu = grad(du.sum(), x, create_graph=True)[0]
        source = -(math.pi**2) * torch.sin(math.pi * x)
        return ((ddu - source) / math.pi**2).pow(2).mean() + 5 * model(edge).pow(2).mean()

    grid = torch.linspace(-1, 1, 200)[:, None]
    return Program(
        model,
        None,
        loader(points, size=64),
        torch.optim.Adam(model.parameters(), lr=5e-3),
        lambda m: r2(m(grid), torch.sin(math.pi * grid)),
        step=step,
    )


class Cooling(nn.Module):
    def __init__(self, unit):
        super().__init__()
        self.unit = unit
        self.fc1, self.fc2, self.fc3 = nn.Linear(1, 40), nn.Linear(40, 40), nn.Linear(40, 1)

    def forward(self, t):
        h = torch.tanh(self.fc1(t / self.unit))
        return self.fc3(torch.tanh(self.fc2(h)))


@fault(
    "time goes in in seconds, up to an hour",
    rules=["unscaled-input", "saturated-activation"],
    layers=["fc1"],
    fails=True,
    steps=500,
)
def wts_cooling_in_seconds(is_faulty):
    hour, rate = 3600.0, 2.5 / 3600
    model = Cooling(1.0 if is_faulty else hour)
    times = hour * torch.rand(2000, 1)

    def physics(model, batch):
        t = batch[0].clone().requires_grad_(True)
        u = model(t)
        slope = grad(u, t, torch.ones_like(u), create_graph=True)[0]
        residual = hour * (slope + rate * (u - 0.1))
        start = model(torch.zeros(1, 1)) - 1
        return residual.square().mean() + 10 * start.square().mean()

    grid = torch.linspace(0, hour, 150)[:, None]
    truth = 0.1 + 0.9 * torch.exp(-rate * grid)
    return Program(
        model,
        None,
        loader(times, size=100),
        torch.optim.Adam(model.parameters(), lr=3e-3),
        lambda m: r2(m(grid), truth),
        step=physics,
    )


class Flow(nn.Module):
    def __init__(self, dt, n):
        super().__init__()
        self.dt, self.n = dt, n
        self.f = nn.Sequential(nn.Linear(4, 48), nn.SiLU(), nn.Linear(48, 4))
        for layer in (self.f[0], self.f[2]):
            nn.init.xavier_normal_(layer.weight)

    def forward(self, x):
        for _ in range(self.n):
            x = x + self.dt * self.f(x)
        return x


@fault(
    "Euler steps of length 1 instead of the interval divided by their number",
    rules=["exploding-gradient", "activation-drift"],
    layers=["f"],
    fails=True,
    steps=300,
)
def wts_euler_step_of_one(is_faulty):
    n = 24
    x = torch.randn(1500, 4)
    y = x.clone()
    turn = torch.tensor([[0.0, 1.5, 0, 0], [-1.5, 0, 0, 0], [0, 0, 0, 1.0], [0, 0, -1.0, 0]])
    for _ in range(100):
        y = y + 0.01 * (y @ turn.T - 0.3 * y * y.square().sum(1, keepdim=True).clamp(max=4))
    model = Flow(1.0 if is_faulty else 1.0 / n, n)
    return Program(
        model,
        nn.MSELoss(),
        loader(x[:1000], y[:1000]),
        torch.optim.Adam(model.parameters(), lr=3e-3),
        lambda m: r2(m(x[1000:]), y[1000:]),
    )


class BranchTrunk(nn.Module):
    def __init__(self, n_sensors, p):
        super().__init__()
        self.branch = nn.Sequential(nn.Linear(n_sensors, 64), nn.GELU(), nn.Linear(64, p))
        self.trunk = nn.Sequential(nn.Linear(1, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, p))

    def forward(self, sensors, at):
        return torch.einsum("bp,qp->bq", self.branch(sensors), self.trunk(at))


@fault(
    "the last layers of branch and trunk both start at 0, so that their product has no slope",
    rules=["bad-initialisation", "no-gradient", "symmetric-initialisation", "loss-not-decreasing"],
    layers=["branch", "trunk"],
    fails=True,
    steps=400,
)
def wts_operator_zero_times_zero(is_faulty):
    n, grid = 900, torch.linspace(0, 1, 32)[:, None]
    coefficients = torch.randn(n, 4) / torch.tensor([1.0, 1.5, 2, 2.5])
    k = torch.arange(1, 5) * math.pi
    sensors = coefficients @ torch.cos(k[:, None] * grid[:, 0])
    integral = coefficients @ (torch.sin(k[:, None] * grid[:, 0]) / k[:, None]) * 3
    model = BranchTrunk(32, 24)
    for last in (model.branch[-1], model.trunk[-1])[: 2 if is_faulty else 0]:
        nn.init.zeros_(last.weight)
        nn.init.zeros_(last.bias)

    def step(model, batch):
        u, s = batch
        return (model(u, grid) - s).square().mean()

    return Program(
        model,
        None,
        loader(sensors[:700], integral[:700], size=50),
        torch.optim.Adam(model.parameters(), lr=3e-3),
        lambda m: r2(m(sensors[700:], grid), integral[700:]),
        step=step,
    )
