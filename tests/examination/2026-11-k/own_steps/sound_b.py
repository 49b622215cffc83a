import torch
import torch.nn.functional as F
from faults_b import GCN
from parts import acc, blobs, curved, gen, loader, mlp, r2
from program import Program, sound
from torch import nn


@sound("an ordinary graph network of two layers", steps=250, least=0.6)
def gcn_two_layers():
    g = gen(31)
    adj = ((torch.rand(20, 20, generator=g) < 0.15).float() + 3 * torch.eye(20))
    adj = adj / adj.sum(1, keepdim=True)
    x = torch.randn(600, 20, 5, generator=g)
    y = (adj @ x)[..., :3].argmax(-1)
    model = GCN(adj, 2)
    return Program(model, lambda o, t: F.cross_entropy(o.flatten(0, 1), t.flatten()), loader(x[:500], y[:500], size=16),
                   torch.optim.Adam(model.parameters(), 3e-3), lambda m: acc(m(x[500:]), y[500:]))


@sound("a physics-informed network: no targets at all, the loss is a residual", steps=400, least=0.6)
def pinn_decay():
    t = torch.rand(1200, 1, generator=gen(32)) * 2
    model = nn.Sequential(nn.Linear(1, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 1))

    def step(model, batch):
        v = batch[0].clone().requires_grad_(True)
        u = model(v)
        (du,) = torch.autograd.grad(u.sum(), v, create_graph=True)
        return (du + 1.5 * u).pow(2).mean() + 10 * (model(torch.zeros(1, 1)) - 1).pow(2).mean()

    q = torch.linspace(0, 2, 100)[:, None]
    return Program(model, None, loader(t, size=64), torch.optim.Adam(model.parameters(), 5e-3),
                   lambda m: max(-1.0, r2(m(q), torch.exp(-1.5 * q))), step=step)


class Sine(nn.Module):
    def __init__(self, i, o, first):
        super().__init__()
        self.lin = nn.Linear(i, o)
        b = 1 / i if first else (6 / i) ** 0.5 / 20
        nn.init.uniform_(self.lin.weight, -b, b)

    def forward(self, x):
        return torch.sin(20 * self.lin(x))


@sound("SIREN with a frequency of 20 and its own initialisation", steps=400, least=0.6)
def siren_field():
    u = torch.rand(2500, 2, generator=gen(33)) * 2 - 1
    y = torch.sin(6 * u[:, :1]) * torch.cos(5 * u[:, 1:]) + 0.3 * torch.sin(12 * u[:, :1])
    model = nn.Sequential(Sine(2, 64, True), Sine(64, 64, False), nn.Linear(64, 1))
    return Program(model, nn.MSELoss(), loader(u[:2200], y[:2200], size=128), torch.optim.Adam(model.parameters(), 1e-3),
                   lambda m: r2(m(u[2200:]), y[2200:]))


@sound("bfloat16 autocast over float32 weights", steps=300, least=0.6)
def autocast_bfloat16():
    x, y = curved(seed=36, d=6)
    model = mlp(6, 64, 1)

    def step(model, batch):
        v, t = batch
        with torch.autocast("cpu", dtype=torch.bfloat16):
            o = model(v)
        return F.mse_loss(o.float(), t)

    return Program(model, None, loader(x[:1200], y[:1200]), torch.optim.AdamW(model.parameters(), 3e-3),
                   lambda m: r2(m(x[1200:]), y[1200:]), step=step)


@sound("one-cycle schedule that starts at a very small rate, gradients clipped by hooks", steps=300, least=0.6)
def one_cycle_clipped():
    x, y = blobs(k=5, seed=38, noise=0.6)
    model = mlp(12, 64, 5)
    for p in model.parameters():
        p.register_hook(lambda g: g * (0.5 / (g.norm() + 1e-6)).clamp(max=1.0))
    opt = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9, nesterov=True)
    sched = torch.optim.lr_scheduler.OneCycleLR(opt, 0.2, total_steps=5000, pct_start=0.02, div_factor=25)
    return Program(model, nn.CrossEntropyLoss(), loader(x[:1200], y[:1200]), opt, lambda m: acc(m(x[1200:]), y[1200:]), sched)
