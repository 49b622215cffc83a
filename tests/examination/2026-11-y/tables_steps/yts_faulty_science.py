"""Faults in programs for scientific problems."""
import math

import torch
import torch.nn.functional as F
from program import Program, fault
from torch import nn
from yts_data import Stream, loader, mlp, r2


class DeepONet(nn.Module):
    def __init__(self, sensors, width=48, rank=24):
        super().__init__()
        self.branch = mlp(sensors, width, rank, act=nn.Tanh)
        self.trunk = nn.Sequential(nn.Linear(1, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(),
                                   nn.Linear(width, rank))
        self.offset = nn.Parameter(torch.zeros(()))

    def forward(self, sensed, when):
        return (self.branch(sensed) * self.trunk(when)).sum(-1) + self.offset


@fault("The trunk takes the time in seconds, thousands of them, and its tanhs are flat.",
       rules=["unscaled-input", "saturated-activation"], layers=["trunk"], fails=False, steps=600)
def yts_operator_in_seconds(is_faulty):
    span = 7200.0
    grid = torch.linspace(0, 1, 12)
    waves = torch.arange(1, 4)

    def draw(n):
        a = torch.randn(n, 3) / torch.tensor([1.0, 1.2, 1.5])
        sensed = (a[:, None] * torch.sin(math.pi * grid[:, None] * waves)).sum(-1)
        t = torch.rand(n, 1)
        answer = (a * (1 - torch.cos(math.pi * t * waves)) / waves).sum(-1)
        return {"sensed": sensed, "when": t * (span if is_faulty else 1.0)}, answer

    test = draw(1000)
    model = DeepONet(12)
    return Program(model, nn.MSELoss(), Stream(lambda: draw(128)), torch.optim.Adam(model.parameters(), 4e-3),
                   lambda m: r2(m(**test[0]), test[1]))


class Flow(nn.Module):
    def __init__(self, steps, dt):
        super().__init__()
        self.steps, self.dt = steps, dt
        self.lift = nn.Linear(2, 16)
        self.field = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 16))
        self.read = nn.Linear(16, 2)
        for layer in (self.field[0], self.field[2]):
            nn.init.kaiming_normal_(layer.weight)

    def forward(self, x):
        h = self.lift(x)
        for _ in range(self.steps):
            h = h + self.dt * self.field(h)
        return self.read(h)


@fault("The hand-written Euler solver takes 24 steps of length 1 instead of 24 steps that together make 1.",
       rules=["activation-drift", "exploding-gradient", "bad-initialisation", "diverging"], layers=["field"], fails=True,
       steps=300)
def yts_euler_unit_steps(is_faulty):
    def pendulum(n):
        s = 2 * torch.rand(n, 2) - 1
        angle, speed = s[:, 0] * 2.5, s[:, 1] * 2
        for _ in range(100):
            speed = speed - 0.015 * torch.sin(angle) * 2
            angle = angle + 0.015 * speed
        return s, torch.stack([angle, speed], 1) / 2

    (x, y), (xt, yt) = pendulum(3000), pendulum(500)
    model = Flow(24, 1.0 if is_faulty else 1 / 24)
    return Program(model, F.mse_loss, loader(x, y), torch.optim.Adam(model.parameters(), 2e-3), lambda m: r2(m(xt), yt))


class Spectral(nn.Module):
    def __init__(self, width, modes):
        super().__init__()
        self.modes = modes
        self.kernel = nn.Parameter(torch.randn(width, width, modes, 2) / width)
        self.local = nn.Conv1d(width, width, 1)

    def forward(self, x):
        f = torch.fft.rfft(x)[..., : self.modes]
        y = torch.fft.irfft(torch.einsum("bim,iom->bom", f, torch.view_as_complex(self.kernel)), n=x.shape[-1])
        return F.gelu(y + self.local(x))


class FNO(nn.Module):
    def __init__(self, width=12, modes=6):
        super().__init__()
        self.up = nn.Conv1d(1, width, 1)
        self.first, self.second = Spectral(width, modes), Spectral(width, modes)
        self.down = nn.Conv1d(width, 1, 1)

    def forward(self, u):
        return self.down(self.second(self.first(self.up(u[:, None])))).squeeze(1)


@fault("ExponentialLR with a factor for epochs is stepped at every batch, so that the rate is gone after some dozens.",
       rules=["learning-rate-too-low"], fails=False, steps=300)
def yts_operator_rate_gone(is_faulty):
    grid = torch.arange(32) / 32 * 2 * math.pi

    def fields(n):
        a = torch.randn(n, 3, 1)
        p = 2 * math.pi * torch.rand(n, 3, 1)
        k = torch.arange(1, 4)[:, None]
        u = (a * torch.sin(k * grid + p)).sum(1) / 1.5
        moved = (a * torch.exp(-0.1 * k**2) * torch.sin(k * (grid - 0.8) + p)).sum(1) / 1.5
        return u, torch.tanh(1.5 * moved)

    (x, y), (xt, yt) = fields(1500), fields(300)
    model = FNO()
    optimizer = torch.optim.AdamW(model.parameters(), 5e-3)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.85 if is_faulty else 0.85 ** (1 / 46))
    return Program(model, nn.MSELoss(), loader(x, y, size=32), optimizer, lambda m: r2(m(xt), yt), scheduler=schedule)


@fault("Weights are drawn with a deviation of 1, whatever the width, so that the tanhs of the PINN are flat.",
       rules=["saturated-activation", "bad-initialisation", "vanishing-gradient"], layers=["net"], fails=True, steps=500)
def yts_pinn_wide_weights(is_faulty):
    class Poisson(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = mlp(1, 64, 64, 64, 1, act=nn.Tanh)
            for layer in self.net:
                if isinstance(layer, nn.Linear):
                    if is_faulty:
                        nn.init.normal_(layer.weight, 0.0, 1.0)
                    else:
                        nn.init.xavier_normal_(layer.weight)
                    nn.init.normal_(layer.bias, 0.0, 0.5)

        def forward(self, x):
            return self.net(x)

    def exact(x):
        return torch.sin(math.pi * x) + 0.4 * torch.sin(2 * math.pi * x) + 0.3 * x

    def step(model, x):
        x = x.clone().requires_grad_(True)
        u = model(x)
        du = torch.autograd.grad(u.sum(), x, create_graph=True)[0]
        ddu = torch.autograd.grad(du.sum(), x, create_graph=True)[0]
        source = -(math.pi**2) * (torch.sin(math.pi * x) + 1.6 * torch.sin(2 * math.pi * x))
        edge = torch.tensor([[-1.0], [1.0]])
        return ((ddu - source) ** 2).mean() + 50 * ((model(edge) - exact(edge)) ** 2).mean()

    model = Poisson()
    grid = torch.linspace(-1, 1, 200)[:, None]
    return Program(model, None, Stream(lambda: 2 * torch.rand(64, 1) - 1), torch.optim.Adam(model.parameters(), 4e-3),
                   lambda m: r2(m(grid), exact(grid)), step=step)
