"""Tables: sound regressions."""

from __future__ import annotations

import math
import torch
from regress_tables import r2, surface
from program import Program, sound
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset


@sound("an ordinary regression", steps=300, least=0.7)
def plain_regression():
    x, y = surface(3000, 5, 20)
    model = nn.Sequential(nn.Linear(5, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1), nn.Flatten(0))
    loader = DataLoader(TensorDataset(x[:2200], y[:2200]), batch_size=64, shuffle=True)
    optimizer = torch.optim.AdamW(model.parameters(), 3e-3)
    return Program(model, nn.MSELoss(), loader, optimizer, r2(lambda m: m(x[2200:]), y[2200:]))


@sound("prices of 250000, which the model scales back itself, with a loss in those units relative to their spread", steps=300, least=0.7)
def prices_scaled_inside():
    x, y = surface(3000, 5, 21)
    price = 250_000 + 60_000 * y

    class Priced(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = nn.Sequential(nn.Linear(5, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))
            self.register_buffer("mean", price[:2200].mean())
            self.register_buffer("std", price[:2200].std())

        def forward(self, x):
            return self.net(x)[:, 0] * self.std + self.mean

    model = Priced()
    spread = model.std.item()
    loader = DataLoader(TensorDataset(x[:2200], price[:2200]), batch_size=64, shuffle=True)
    return Program(
        model,
        lambda out, t: F.smooth_l1_loss(out / spread, t / spread),
        loader,
        torch.optim.Adam(model.parameters(), 3e-3),
        r2(lambda m: m(x[2200:]), price[2200:]),
    )


@sound("a variance is predicted too; the loss goes below 0", trained=200, steps=400, least=0.7)
def mean_and_variance():
    x, y = surface(3000, 5, 22)
    model = nn.Sequential(nn.Linear(5, 64), nn.SiLU(), nn.Linear(64, 64), nn.SiLU(), nn.Linear(64, 2))

    def nll(out, t):
        return F.gaussian_nll_loss(out[:, 0], t, out[:, 1].clamp(-8, 8).exp())

    loader = DataLoader(TensorDataset(x[:2200], y[:2200]), batch_size=64, shuffle=True)
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    return Program(model, nll, loader, optimizer, r2(lambda m: m(x[2200:])[:, 0], y[2200:]))


@sound("counts with a Poisson loss of the logarithm of the rate, zero-initialised last layer", steps=300, least=0.7)
def poisson_counts():
    g = torch.Generator().manual_seed(90)
    x = torch.randn(3500, 5, generator=g)
    rate = torch.exp(0.7 * torch.tanh(x[:, 0] + x[:, 1]) + 0.5 * torch.sin(2 * x[:, 2]) + 1.3)
    counts = torch.poisson(rate, generator=g)
    model = nn.Sequential(nn.Linear(5, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1), nn.Flatten(0))
    nn.init.zeros_(model[4].weight)
    nn.init.constant_(model[4].bias, counts.mean().log().item())
    loader = DataLoader(TensorDataset(x[:2700], counts[:2700]), batch_size=64, shuffle=True)
    return Program(
        model, nn.PoissonNLLLoss(), loader, torch.optim.Adam(model.parameters(), 2e-3), r2(lambda m: m(x[2700:]).exp(), rate[2700:])
    )


@sound("the whole table at once in float64, with Rprop", steps=200, least=0.7)
def full_batch_rprop():
    x, y = surface(1600, 5, 23)
    x, y = x.double(), y.double()
    model = nn.Sequential(nn.Linear(5, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 1), nn.Flatten(0)).double()
    batches = [(x[:1000], y[:1000])]
    return Program(
        model, nn.MSELoss(), batches, torch.optim.Rprop(model.parameters(), 1e-3), r2(lambda m: m(x[1000:]), y[1000:])
    )


@sound("twelve layers of SELU with LeCun's initialisation and no norms", steps=400, least=0.7)
def deep_selu():
    x, y = surface(3000, 5, 24)
    layers = []
    for k in range(12):
        layers += [nn.Linear(5 if k == 0 else 40, 40), nn.SELU()]
    model = nn.Sequential(*layers, nn.Linear(40, 1), nn.Flatten(0))
    for m in model:
        if isinstance(m, nn.Linear):
            nn.init.kaiming_normal_(m.weight, nonlinearity="linear")
            nn.init.zeros_(m.bias)
    loader = DataLoader(TensorDataset(x[:2200], y[:2200]), batch_size=64, shuffle=True)
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    return Program(model, nn.MSELoss(), loader, optimizer, r2(lambda m: m(x[2200:]), y[2200:]))


@sound("two tasks weighted by learned uncertainties, which begin at zero", steps=400, least=0.65)
def learned_task_weights():
    g = torch.Generator().manual_seed(91)
    x = torch.randn(3000, 6, generator=g)
    a = torch.sin(x[:, 0]) + x[:, 1] * x[:, 2]
    b = 8 * (x[:, 3].abs() + torch.cos(x[:, 4]))

    class Tasks(nn.Module):
        def __init__(self):
            super().__init__()
            self.trunk = nn.Sequential(nn.Linear(6, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU())
            self.heads = nn.ModuleDict({"a": nn.Linear(64, 1), "b": nn.Linear(64, 1)})
            self.log_var = nn.Parameter(torch.zeros(2))

        def forward(self, x):
            h = self.trunk(x)
            return torch.cat([self.heads["a"](h), self.heads["b"](h)], 1)

    model = Tasks()

    def step(model, batch):
        x, t = batch
        errors = (model(x) - t).square().mean(0)
        return (0.5 * errors * (-model.log_var).exp() + 0.5 * model.log_var).sum()

    t = torch.stack([a, b], 1)
    loader = DataLoader(TensorDataset(x[:2200], t[:2200]), batch_size=64, shuffle=True)
    sa, sb = r2(lambda m: m(x[2200:])[:, 0], a[2200:]), r2(lambda m: m(x[2200:])[:, 1], b[2200:])
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    return Program(model, None, loader, optimizer, lambda m: (sa(m) + sb(m)) / 2, step=step)


@sound("a physics-informed network: no targets inside, second derivatives, a boundary term with weight 50", steps=500, least=0.8)
def boundary_value_problem():
    g = torch.Generator().manual_seed(92)
    model = nn.Sequential(nn.Linear(1, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 1))
    batches = [torch.rand(64, 1, generator=g) * math.pi for _ in range(40)]
    ends = torch.tensor([[0.0], [math.pi]])

    def step(model, x):
        x = x.clone().requires_grad_(True)
        u = model(x)
        (du,) = torch.autograd.grad(u.sum(), x, create_graph=True)
        (ddu,) = torch.autograd.grad(du.sum(), x, create_graph=True)
        return (ddu + 4 * torch.sin(2 * x)).square().mean() + 50 * model(ends).square().mean()

    grid = torch.linspace(0, math.pi, 200)[:, None]
    optimizer = torch.optim.Adam(model.parameters(), 4e-3)
    return Program(model, None, batches, optimizer, r2(lambda m: m(grid), torch.sin(2 * grid)), step=step)
