import torch
import torch.nn.functional as F
from torch import nn
from program import Program, sound
from kit import G, acc, groups, loader, manifold, mlp, r2, smooth
from f2 import Coder
from f3 import Flow


@sound("u' = cos-like right side, second-order graph in the step", steps=400, least=0.8)
def physics():
    x = torch.rand(512, 1, generator=G(1)) * 2 - 1
    t = torch.linspace(-1, 1, 100)[:, None]

    def step(m, b):
        z = b[0].requires_grad_(True)
        u = m(z)
        (du,) = torch.autograd.grad(u.sum(), z, create_graph=True)
        return ((du - 3 * torch.cos(3 * z)) ** 2).mean() + 10 * (m(torch.zeros(1, 1)) ** 2).mean()

    m = mlp(1, 32, 32, 1, act=nn.Tanh)
    return Program(m, None, loader(x.clone()), torch.optim.Adam(m.parameters(), 5e-3), lambda m: r2(m(t), torch.sin(3 * t)), step=step)


class Sine(nn.Module):
    def __init__(self, a, b, w, first):
        super().__init__()
        self.lin, self.w = nn.Linear(a, b), w
        k = 1 / a if first else (6 / a) ** 0.5 / w
        nn.init.uniform_(self.lin.weight, -k, k)

    def forward(self, x):
        return torch.sin(self.w * self.lin(x))


@sound("A network of sines with a factor of 15", steps=300, least=0.8)
def siren():
    p = torch.rand(2048, 2, generator=G(1)) * 2 - 1
    t = torch.rand(400, 2, generator=G(2)) * 2 - 1

    def f(p):
        return torch.sin(5 * p[:, :1]) * torch.cos(4 * p[:, 1:])

    m = nn.Sequential(Sine(2, 48, 15.0, True), Sine(48, 48, 15.0, False), nn.Linear(48, 1))
    return Program(m, F.mse_loss, loader(p, f(p), bs=64), torch.optim.Adam(m.parameters(), 1e-3), lambda m: r2(m(t), f(t)))


@sound("Distillation at temperature 4, times 16, with a frozen teacher", steps=300, least=0.8)
def distillation():
    x, y = groups(1024, 1)
    tx, ty = groups(400, 2)
    means = torch.stack([x[y == k].mean(0) for k in range(5)])
    near = torch.cdist(x, x)
    near.fill_diagonal_(0)
    soft = torch.softmax(-near / 0.3, 1) @ F.one_hot(y, 5).float()

    def step(m, b):
        x, y, t = b
        o = m(x)
        return 16 * F.kl_div(F.log_softmax(o / 4, 1), ((t + 1e-3).log() / 4).softmax(1), reduction="batchmean") + 0.3 * F.cross_entropy(o, y)

    m = mlp(10, 48, 5)
    return Program(m, None, loader(x, y, soft), torch.optim.Adam(m.parameters(), 3e-3), lambda m: acc(m(tx), ty), step=step)


@sound("A straight-through sign", steps=400, least=0.7)
def straight_through():
    x, t = manifold(1024, 1, k=3), manifold(300, 2, k=3)
    m = Coder(False)
    return Program(m, None, loader(x, bs=64), torch.optim.Adam(m.parameters(), 5e-3), lambda m: r2(m(t), t), step=lambda m, b: F.mse_loss(m(b[0]), b[0]))


@sound("A policy gradient, whose loss is near 0 and does not fall", trained=60, steps=300, least=0.8)
def reinforce():
    x, y = groups(1024, 1, k=4)
    tx, ty = groups(400, 2, k=4)

    def step(m, b):
        d = torch.distributions.Categorical(logits=m(b[0]))
        act = d.sample()
        reward = (act == b[1]).float()
        return -(d.log_prob(act) * (reward - reward.mean())).mean() - 0.01 * d.entropy().mean()

    m = mlp(10, 64, 4, act=nn.Tanh)
    return Program(m, None, loader(x, y, bs=64), torch.optim.Adam(m.parameters(), 5e-3), lambda m: acc(m(tx), ty), step=step)


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.enc = nn.Linear(16, 8)
        self.bias = nn.Parameter(torch.zeros(16))

    def forward(self, x):
        return F.linear(torch.tanh(self.enc(x)), self.enc.weight.T) * 2 + self.bias


@sound("An autoencoder whose decoder is the transpose of its encoder", steps=300, least=0.7)
def tied_autoencoder():
    x, t = manifold(1024, 1), manifold(300, 2)
    m = Tied()
    return Program(m, None, loader(x, bs=64), torch.optim.Adam(m.parameters(), 1e-2), lambda m: r2(m(t), t), step=lambda m, b: F.mse_loss(m(b[0]), b[0]))


@sound("Euler's steps of one layer, thirty times", steps=300, least=0.8)
def neural_ode():
    x, y = smooth(1024, 1)
    tx, ty = smooth(400, 2)
    m = Flow(False)
    return Program(m, F.mse_loss, loader(x, y), torch.optim.Adam(m.parameters(), 3e-3), lambda m: r2(m(tx), ty))
