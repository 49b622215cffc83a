import copy
import torch
import torch.nn.functional as F
from torch import nn
from program import Program, fault
from kit import G, acc, groups, loader, manifold, mlp, r2, smooth


@fault("An implicit picture is asked at pixel numbers instead of at -1..1", rules=["unscaled-input", "saturated-activation"], fails=False, steps=400)
def implicit_pixels(bad):
    def data(n, seed):
        p = torch.rand(n, 2, generator=G(seed)) * 255
        u = p / 127.5 - 1
        y = torch.sin(2.5 * u[:, :1] + 1) * torch.cos(2 * u[:, 1:]) + 0.5 * u[:, :1] * u[:, 1:]
        return (p if bad else u), y

    x, y = data(2048, 1)
    tx, ty = data(400, 2)
    m = mlp(2, 48, 48, 1, act=nn.Tanh)
    return Program(m, F.mse_loss, loader(x, y, bs=64), torch.optim.Adam(m.parameters(), 5e-3), lambda m: r2(m(tx), ty))


@fault("Features are distilled with a sum at a rate meant for a mean", rules=["summed-loss", "learning-rate-too-high", "non-finite"], fails=True, steps=300)
def distil_sum(bad):
    x, _ = smooth(1024, 1)
    tx, _ = smooth(400, 2)
    g = G(8)
    w1, w2 = torch.randn(8, 32, generator=g) / 8**0.5, torch.randn(32, 24, generator=g) / 32**0.5

    def teacher(x):
        return torch.tanh(1.5 * x @ w1) @ w2

    def step(m, b):
        with torch.no_grad():
            t = teacher(b[0])
        return F.mse_loss(m(b[0]), t, reduction="sum" if bad else "mean")

    m = mlp(8, 96, 24)
    return Program(m, None, loader(x, bs=32), torch.optim.SGD(m.parameters(), 0.5, momentum=0.9), lambda m: r2(m(tx), teacher(tx)), step=step)


class STE(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return torch.sign(x)

    @staticmethod
    def backward(ctx, g):
        return g


class Coder(nn.Module):
    def __init__(self, bad):
        super().__init__()
        self.bad = bad
        self.encoder = mlp(16, 48, 12)
        self.decoder = mlp(12, 48, 16)

    def forward(self, x):
        h = torch.tanh(self.encoder(x))
        return self.decoder(torch.sign(h) if self.bad else STE.apply(h))


@fault("A binary code by sign, which has no slope", rules=["no-gradient"], layers=["encoder"], fails=False, steps=400)
def sign_code(bad):
    x, t = manifold(1024, 1, k=3), manifold(300, 2, k=3)
    m = Coder(bad)
    return Program(m, None, loader(x, bs=64), torch.optim.Adam(m.parameters(), 5e-3), lambda m: r2(m(t), t), step=lambda m, b: F.mse_loss(m(b[0]), b[0]))


class Factors(nn.Module):
    def __init__(self):
        super().__init__()
        self.u, self.i = nn.Embedding(60, 8), nn.Embedding(60, 8)

    def forward(self, p):
        return (self.u(p[:, 0]) * self.i(p[:, 1])).sum(1)


@fault("float16 weights and Adam with its ordinary epsilon, which float16 rounds to 0", rules=["non-finite", "half-overflow"], fails=True, steps=300)
def half_adam(bad):
    x, y = groups(1024, 1)
    tx, ty = groups(400, 2)
    m = mlp(10, 64, 64, 5)
    dt = torch.float16 if bad else torch.float32
    m = m.to(dt)
    return Program(m, None, loader(x, y), torch.optim.Adam(m.parameters(), 2e-3), lambda m: acc(m(tx.to(dt)).float().nan_to_num(), ty), step=lambda m, b: F.cross_entropy(m(b[0].to(dt)).float(), b[1]))


class Proto(nn.Module):
    def __init__(self, dt):
        super().__init__()
        self.net = mlp(10, 64, 16)
        self.centres = nn.Parameter(torch.randn(5, 16))
        self.dt = dt

    def forward(self, x):
        z = (40 * self.net(x)).to(self.dt)
        c = (40 * self.centres).to(self.dt)
        n = (z * z).sum(1, keepdim=True) - 2 * z @ c.T + (c * c).sum(1)
        return -(n / 400).float()


@fault("Squared distances to prototypes in float16 are above its largest number", rules=["half-overflow", "non-finite"], fails=True, steps=300)
def proto_half(bad):
    x, y = groups(1024, 1)
    tx, ty = groups(400, 2)
    m = Proto(torch.float16 if bad else torch.float32)
    with torch.no_grad():
        m.centres.mul_(3)
    return Program(m, F.cross_entropy, loader(x, y), torch.optim.Adam(m.parameters(), 3e-3), lambda m: acc(m(tx).nan_to_num(), ty))


@fault("StepLR made for epochs is stepped after every batch", rules=["learning-rate-too-low"], fails=True, steps=300)
def scheduler_per_batch(bad):
    x, y = smooth(1024, 1)
    tx, ty = smooth(400, 2)
    m = mlp(8, 64, 64, 1)
    o = torch.optim.Adam(m.parameters(), 3e-3)
    s = torch.optim.lr_scheduler.StepLR(o, step_size=2 if bad else 2 * 32 * 2, gamma=0.3)
    return Program(m, F.mse_loss, loader(x, y), o, lambda m: r2(m(tx), ty), scheduler=s)


@fault("Weight decay of 1 in the group of matrices, through Adam's gradient", rules=["weight-decay-dominates"], fails=True, steps=300)
def decay_group(bad):
    x, y = smooth(1024, 1)
    tx, ty = smooth(400, 2)
    m = mlp(8, 64, 64, 1)
    o = torch.optim.Adam([
        {"params": [p for p in m.parameters() if p.ndim > 1], "weight_decay": 1.0 if bad else 1e-4},
        {"params": [p for p in m.parameters() if p.ndim == 1], "weight_decay": 0.0},
    ], lr=3e-3)
    return Program(m, F.mse_loss, loader(x, y), o, lambda m: r2(m(tx), ty))
