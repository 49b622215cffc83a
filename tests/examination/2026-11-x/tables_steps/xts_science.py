"""Scientific problems: faults."""

import math

import torch
from program import Program, fault
from torch import nn
from torch.utils.data import DataLoader, Dataset
from xts_data import loader, mlp, r2


def slope(u, x):
    return torch.autograd.grad(u, x, torch.ones_like(u), create_graph=True)[0]


@fault("the residual of an equation, in seconds, outweighs the state at the start, and rest solves it too",
       rules=["term-dominates"], fails=True, steps=500)
def xts_pinn_units(is_faulty):
    unit = 300.0 if is_faulty else 1.0
    model = mlp(1, 32, 32, 2, act=nn.Tanh)

    def step(net, batch):
        (t,) = batch
        t = t.detach().clone().requires_grad_(True)
        out = net(t)
        place, speed = out[:, :1], out[:, 1:]
        moves = slope(place, t) - 4 * speed
        swings = slope(speed, t) + 4 * place + 1.2 * speed
        start = net(torch.zeros(1, 1)) - torch.tensor([[1.0, 0.0]])
        return ((unit * moves) ** 2 + (unit * swings) ** 2).mean() + start.square().mean()

    grid = torch.linspace(0, 1, 2001)
    exact, place, speed = [], torch.tensor(1.0), torch.tensor(0.0)
    for _ in grid:
        exact.append(torch.stack([place, speed]))
        speed = speed - (4 * place + 1.2 * speed) / 2000
        place = place + 4 * speed / 2000
    exact = torch.stack(exact)
    return Program(model, None, loader(torch.rand(2048, 1)), torch.optim.Adam(model.parameters(), lr=5e-3),
                   lambda m: r2(m(grid[:, None]), exact), step=step)


@fault("the unknown coefficient of an inverse problem is not given to the optimizer",
       rules=["no-gradient"], layers=["log_rate"], fails=True, steps=400)
def xts_inverse_rate(is_faulty):
    class Inverse(nn.Module):
        def __init__(self):
            super().__init__()
            self.log_rate = nn.Parameter(torch.zeros(()))
            self.field = nn.Sequential(nn.Linear(1, 24), nn.Tanh(), nn.Linear(24, 24), nn.Tanh(), nn.Linear(24, 1))

        def forward(self, t):
            return self.field(t)

    rate = 3.0
    t = torch.rand(400, 1)
    seen = torch.exp(-rate * t) + 0.01 * torch.randn(400, 1)
    model = Inverse()

    def step(m, batch):
        t, seen = batch
        measured = (m(t) - seen).pow(2).mean()
        at = torch.rand(64, 1, requires_grad=True)
        u = m(at)
        physics = (slope(u, at) + m.log_rate.exp() * u).pow(2).mean()
        return measured + 0.1 * physics

    weights = model.field.parameters() if is_faulty else model.parameters()
    return Program(model, None, loader(t, seen, size=50), torch.optim.Adam(weights, lr=1e-2),
                   lambda m: max(0.0, 1 - abs(float(m.log_rate.exp()) - rate) / 2), step=step)


@fault("the steps of Euler's method lack their length, so that each of forty is a whole unit of time",
       rules=["exploding-gradient", "activation-drift"], layers=["field"], fails=True, steps=300)
def xts_euler_length(is_faulty):
    class Flow(nn.Module):
        def __init__(self, steps=40, horizon=2.0):
            super().__init__()
            self.field = nn.Sequential(nn.Linear(3, 48), nn.ReLU(), nn.Linear(48, 3))
            self.steps, self.horizon = steps, horizon

        def forward(self, x):
            for _ in range(self.steps):
                change = self.field(x)
                x = x + change if is_faulty else x + self.horizon / self.steps * change
            return x

    def truth(x):
        for _ in range(400):
            a, b, c = x.unbind(1)
            x = x + 0.005 * torch.stack([-0.5 * a - 1.5 * b, 1.5 * a - 0.5 * b + 0.3 * c, torch.sin(a) - c], 1)
        return x

    start = 1.5 * torch.randn(1200, 3)
    end = truth(start)
    model = Flow()
    return Program(model, nn.MSELoss(), loader(start[:1000], end[:1000], size=50),
                   torch.optim.Adam(model.parameters(), lr=5e-3), lambda m: r2(m(start[1000:]), end[1000:]))


@fault("an operator network gets its places in metres",
       rules=["unscaled-input", "saturated-activation"], layers=["trunk"], fails=False, steps=500)
def xts_operator_metres(is_faulty):
    class Operator(nn.Module):
        def __init__(self):
            super().__init__()
            self.branch = mlp(20, 48, 24, act=nn.Tanh)
            self.trunk = mlp(1, 48, 48, 24, act=nn.Tanh)
            self.offset = nn.Parameter(torch.zeros(1))

        def forward(self, readings, place):
            return (self.branch(readings) * torch.tanh(self.trunk(place))).sum(1) + self.offset

    sensors = torch.linspace(0, 1, 20)
    a = torch.randn(3000, 3)
    where = torch.rand(3000, 1)
    waves = torch.stack([torch.sin(k * math.pi * sensors) for k in (1, 2, 3)])
    readings = a @ waves
    value = sum(a[:, k - 1] * (1 - torch.cos(k * math.pi * where[:, 0])) / k for k in (1, 2, 3))
    value = value / value.std()
    place = 4000 * where if is_faulty else 2 * where - 1

    class Pairs(Dataset):
        def __init__(self, start, stop):
            self.rows = range(start, stop)

        def __len__(self):
            return len(self.rows)

        def __getitem__(self, i):
            i = self.rows[i]
            return {"readings": readings[i], "place": place[i]}, value[i]

    model = Operator()
    return Program(model, nn.functional.mse_loss, DataLoader(Pairs(0, 2500), 64, shuffle=True),
                   torch.optim.AdamW(model.parameters(), lr=4e-3, weight_decay=1e-5),
                   lambda m: r2(m(readings[2500:], place[2500:]), value[2500:]))


@fault("distances of every point to itself are under a root, whose slope at zero is infinite",
       rules=["non-finite"], fails=True, steps=300)
def xts_root_of_zero(is_faulty):
    hidden = torch.randn(1500, 2)
    lift = torch.randn(2, 12)
    x = torch.cat([hidden @ lift, (hidden @ lift[:, :4]).sin()], 1) + 0.02 * torch.randn(1500, 16)

    class Map(nn.Module):
        def __init__(self):
            super().__init__()
            self.enter = nn.Linear(16, 48)
            self.leave = nn.Linear(48, 2)

        def forward(self, x):
            return self.leave(torch.tanh(self.enter(x)))

    def apart(z):
        square = (z[:, None] - z[None]).pow(2).sum(-1)
        return torch.sqrt(square if is_faulty else square + 1e-8)

    def stress(z, hidden):
        return (apart(z) - torch.cdist(hidden, hidden)).pow(2).mean()

    model = Map()
    return Program(model, stress, loader(x[:1200], hidden[:1200], size=40),
                   torch.optim.Adam(model.parameters(), lr=3e-3),
                   lambda m: r2(torch.cdist(m(x[1200:]), m(x[1200:])), torch.cdist(hidden[1200:], hidden[1200:])))


@fault("the squared error is summed over a large batch, at a rate chosen for its mean",
       rules=["summed-loss", "learning-rate-too-high"], fails=True, steps=300)
def xts_energy_sum(is_faulty):
    class Energy(nn.Module):
        """Energy of three particles on a line, from their distances."""

        def __init__(self):
            super().__init__()
            self.pair = mlp(1, 32, 32, 1, act=nn.SiLU)

        def forward(self, positions):
            gaps = torch.stack([positions[:, 0] - positions[:, 1], positions[:, 1] - positions[:, 2],
                                positions[:, 0] - positions[:, 2]], 1)
            return self.pair(gaps.abs().unsqueeze(-1)).sum(dim=(1, 2))

    positions = 1.5 * torch.randn(3000, 3)
    gaps = torch.stack([positions[:, 0] - positions[:, 1], positions[:, 1] - positions[:, 2],
                        positions[:, 0] - positions[:, 2]], 1).abs()
    energy = (1.5 * torch.exp(-gaps) - torch.exp(-((gaps - 2) ** 2))).sum(1)
    energy = (energy - energy.mean()) / energy.std()

    def step(model, batch):
        positions, energy = batch
        gap = model(positions) - energy
        return gap.square().sum() if is_faulty else gap.square().mean()

    model = Energy()
    return Program(model, None, loader(positions[:2560], energy[:2560], size=256),
                   torch.optim.SGD(model.parameters(), lr=0.03, momentum=0.9),
                   lambda m: r2(m(positions[2560:]), energy[2560:]), step=step)
