"""Sound: parts that are frozen, sine, spectral, or blind to order."""
import copy

import torch
import torch.nn.functional as F
from faults_b import LoRA, Sine
from own_common import gen, loader, r2, smooth
from program import Program, sound
from sound_a import mlp
from torch import nn


@sound("TD learning with a frozen target network inside the model", steps=300, least=0.6)
def target_network():
    s, v = smooth(109, 1800, 5)
    s2, r = torch.roll(s, 1, 0), (v - 0.3 * torch.roll(v, 1, 0))[:, 0]

    class Agent(nn.Module):
        def __init__(self):
            super().__init__()
            self.online = mlp(5, 64, 64, 1)
            self.target = copy.deepcopy(self.online).requires_grad_(False)

        def forward(self, x):
            return self.online(x)

    def step(m, b):
        x, rew, nxt = b
        if m.training:
            with torch.no_grad():
                for t, o in zip(m.target.parameters(), m.online.parameters()):
                    t.lerp_(o, 0.05)
        with torch.no_grad():
            goal = rew + 0.3 * m.target(nxt).squeeze(1)
        return F.smooth_l1_loss(m(x).squeeze(1), goal)

    m = Agent()
    return Program(m, None, loader(s[1:1400], r[1:1400], s2[1:1400]), torch.optim.Adam(m.online.parameters(), 3e-3),
                   lambda m: r2(m(s[1400:]), v[1400:]), step=step)


@sound("A SIREN with frequency 30 and its own initialisation", steps=300, least=0.8)
def siren_right():
    g = gen(110)
    xy = 2 * torch.rand(3000, 2, generator=g) - 1
    v = torch.sin(4 * xy[:, :1]) * torch.cos(5 * xy[:, 1:])
    m = nn.Sequential(Sine(2, 64, first=True), Sine(64, 64), nn.Linear(64, 1))
    return Program(m, F.mse_loss, loader(xy[:2400], v[:2400], bs=128), torch.optim.Adam(m.parameters(), 5e-4),
                   lambda m: r2(m(xy[2400:]), v[2400:]))


@sound("A physics-informed step with second derivatives and a light residual", steps=400, least=0.7)
def pinn_balanced():
    xs = torch.rand(640, 1, generator=gen(111))
    m = mlp(1, 32, 32, 1, act=nn.Tanh)
    ends = torch.tensor([[0.0], [1.0]])

    def u(x):
        return torch.cos(3 * x)

    def step(m, b):
        x = b[0].clone().requires_grad_(True)
        v = m(x)
        d1 = torch.autograd.grad(v.sum(), x, create_graph=True)[0]
        d2 = torch.autograd.grad(d1.sum(), x, create_graph=True)[0]
        return 0.02 * (d2 + 9 * u(x)).pow(2).mean() + F.mse_loss(m(ends), u(ends))

    grid = torch.linspace(0, 1, 101)[:, None]
    return Program(m, None, loader(xs), torch.optim.Adam(m.parameters(), 5e-3), lambda m: r2(m(grid), u(grid)), step=step)


@sound("LoRA: one factor starts at zero and the base is frozen", steps=300, least=0.8)
def lora_one_zero():
    g = gen(108)
    x = torch.randn(1500, 16, generator=g)
    l1, l2 = nn.Linear(16, 48), nn.Linear(48, 3)
    with torch.no_grad():
        l1.weight.copy_(torch.randn(48, 16, generator=g) / 4), l2.weight.copy_(torch.randn(3, 48, generator=g) / 7)
        l1.bias.zero_(), l2.bias.zero_()
        d = torch.randn(48, 2, generator=g) @ torch.randn(2, 16, generator=g) / 2.5
        y = torch.tanh(x @ (l1.weight + d).T) @ l2.weight.T
    m = nn.Sequential(LoRA(l1, 4, False), nn.Tanh(), LoRA(l2, 2, False))
    return Program(m, F.mse_loss, loader(x[:1200], y[:1200]), torch.optim.Adam([p for p in m.parameters() if p.requires_grad], 1e-2),
                   lambda m: r2(m(x[1200:]), y[1200:]))


@sound("A set network: a mean over elements, whose order does not matter", trained=100, steps=300, least=0.7)
def deep_set():
    g = gen(131)
    x = torch.randn(1500, 10, 3, generator=g) * (0.3 + torch.rand(1500, 1, 3, generator=g))
    y = x.pow(2).mean((1, 2))[:, None]
    y = (y - y.mean()) / y.std()

    class Set(nn.Module):
        def __init__(self):
            super().__init__()
            self.phi, self.rho = mlp(3, 48, 48), mlp(48, 48, 1)

        def forward(self, x):
            return self.rho(F.relu(self.phi(x)).mean(1))

    m = Set()
    return Program(m, nn.MSELoss(), loader(x[:1200], y[:1200]), torch.optim.Adam(m.parameters(), 5e-3),
                   lambda m: r2(m(x[1200:]), y[1200:]))


@sound("A hinge loss of a critic with spectral normalisation, summed with its gradient-free penalty", steps=300, least=0.75)
def spectral_critic():
    g = gen(132)
    real, fake = torch.randn(1500, 10, generator=g) + 0.5, torch.randn(1500, 10, generator=g) - 0.4
    sn = nn.utils.parametrizations.spectral_norm
    m = nn.Sequential(sn(nn.Linear(10, 64)), nn.LeakyReLU(0.2), sn(nn.Linear(64, 1)))

    def step(m, b):
        r, f = m(b[0]), m(b[1])
        return F.relu(1 - r).mean() + F.relu(1 + f).mean() + 1e-3 * (r**2).mean()

    return Program(m, None, loader(real[:1200], fake[:1200]), torch.optim.Adam(m.parameters(), 1e-3, betas=(0.0, 0.9)),
                   lambda m: float(((m(real[1200:]) > 0).float().mean() + (m(fake[1200:]) < 0).float().mean()) / 2), step=step)


@sound("Frozen random features, only the last layer learns, on purpose", steps=300, least=0.6)
def random_features():
    x, y = smooth(130, 2400, 3)

    class RFF(nn.Module):
        def __init__(self):
            super().__init__()
            self.proj = nn.Linear(3, 200).requires_grad_(False)
            nn.init.normal_(self.proj.weight, std=0.8), nn.init.uniform_(self.proj.bias, 0, 6.28)
            self.read = nn.Linear(200, 1)

        def forward(self, x):
            return self.read(torch.cos(self.proj(x)))

    m = RFF()
    return Program(m, F.mse_loss, loader(x[:2000], y[:2000]), torch.optim.Adam(m.read.parameters(), 1e-2),
                   lambda m: r2(m(x[2000:]), y[2000:]))
