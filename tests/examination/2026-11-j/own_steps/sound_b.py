"""Sound, though they do not look it."""
import torch
import torch.nn.functional as F
from own_common import acc, clusters, gen, loader, r2, smooth
from program import Program, sound
from sound_a import mlp
from torch import nn


@sound("Weights in bfloat16, with a rate that they can hold", steps=300, least=0.7)
def bfloat_weights():
    x, y = clusters(121, 1800, 20, 4, sep=0.9)
    m = mlp(20, 64, 4).to(torch.bfloat16)

    def step(m, b):
        return F.cross_entropy(m(b[0].bfloat16()).float(), b[1])

    return Program(m, None, loader(x[:1400], y[:1400]), torch.optim.Adam(m.parameters(), 5e-3),
                   lambda m: acc(m(x[1400:].bfloat16()).float(), y[1400:]), step=step)


@sound("Weights in float16 with eps=1e-4", steps=200, least=0.7)
def half_weights_eps():
    x, y = clusters(122, 1600, 16, 3, sep=0.9)
    m = mlp(16, 64, 3).half()

    def step(m, b):
        return F.cross_entropy(m(b[0].half()).float(), b[1])

    return Program(m, None, loader(x[:1200], y[:1200]), torch.optim.Adam(m.parameters(), 3e-3, eps=1e-4),
                   lambda m: acc(m(x[1200:].half()).float(), y[1200:]), step=step)


@sound("Residual branches begin with a gate of zero", steps=300, least=0.7)
def rezero_gates():
    x, y = smooth(123, 1800, 5)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.inp, self.out = nn.Linear(5, 48), nn.Linear(48, 1)
            self.branches = nn.ModuleList(mlp(48, 48, 48) for _ in range(3))
            self.gates = nn.Parameter(torch.zeros(3))

        def forward(self, x):
            h = torch.tanh(self.inp(x))
            for g, b in zip(self.gates, self.branches):
                h = h + g * b(h)
            return self.out(h)

    m = Net()
    return Program(m, nn.MSELoss(), loader(x[:1400], y[:1400]), torch.optim.Adam(m.parameters(), 4e-3),
                   lambda m: r2(m(x[1400:]), y[1400:]))


@sound("REINFORCE with a baseline: the loss is about 0 and need not fall", trained=150, steps=400, least=0.7)
def reinforce_baseline():
    g = gen(124)
    s = torch.randn(1800, 6, generator=g)
    best = (s @ torch.randn(6, 3, generator=g)).argmax(1)
    m = mlp(6, 64, 3, act=nn.Tanh)

    def step(m, b):
        x, a_best = b
        d = torch.distributions.Categorical(logits=m(x))
        a = d.sample()
        r = (a == a_best).float()
        return -(d.log_prob(a) * (r - r.mean())).mean() - 0.01 * d.entropy().mean()

    return Program(m, None, loader(s[:1400], best[:1400], bs=128), torch.optim.Adam(m.parameters(), 1e-2),
                   lambda m: acc(m(s[1400:]), best[1400:]), step=step)


class Reverse(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, g):
        return -0.3 * g


@sound("A reversed gradient keeps the domain out of the features; that head is meant to fail", steps=300, least=0.7)
def domain_adversarial():
    x, y = clusters(125, 2000, 16, 3, sep=0.9)
    dom = torch.randint(0, 2, (2000,), generator=gen(1250))
    x = x + 0.5 * dom[:, None]

    class DANN(nn.Module):
        def __init__(self):
            super().__init__()
            self.feat = nn.Sequential(nn.Linear(16, 64), nn.ReLU())
            self.label, self.domain = nn.Linear(64, 3), mlp(64, 16, 2)

        def forward(self, x):
            h = self.feat(x)
            return self.label(h), self.domain(Reverse.apply(h))

    def step(m, b):
        lab, d = m(b[0])
        return F.cross_entropy(lab, b[1]) + F.cross_entropy(d, b[2])

    m = DANN()
    return Program(m, None, loader(x[:1500], y[:1500], dom[:1500]), torch.optim.Adam(m.parameters(), 3e-3),
                   lambda m: acc(m(x[1500:])[0], y[1500:]), step=step)


class Sign(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.where(x >= 0, 1.0, -1.0)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * (x.abs() <= 1)


@sound("Binary codes with a straight-through gradient", steps=300, least=0.7)
def straight_through():
    x, y = clusters(127, 1800, 24, 3, sep=1.0)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.enc, self.dec = nn.Linear(24, 16), mlp(16, 32, 3)

        def forward(self, x):
            return self.dec(Sign.apply(self.enc(x)))

    m = Net()
    return Program(m, F.cross_entropy, loader(x[:1400], y[:1400]), torch.optim.Adam(m.parameters(), 5e-3),
                   lambda m: acc(m(x[1400:]), y[1400:]))


@sound("An equilibrium network: twelve times the same layer", steps=300, least=0.7)
def equilibrium():
    x, y = smooth(129, 1800, 5)

    class DEQ(nn.Module):
        def __init__(self):
            super().__init__()
            self.inject, self.w, self.out = nn.Linear(5, 48), nn.Linear(48, 48, bias=False), nn.Linear(48, 1)

        def forward(self, x):
            u, z = self.inject(x), 0
            with torch.no_grad():
                z = torch.zeros_like(u)
                for _ in range(10):
                    z = torch.tanh(0.5 * self.w(z) + u)
            for _ in range(2):
                z = torch.tanh(0.5 * self.w(z) + u)
            return self.out(z)

    m = DEQ()
    return Program(m, nn.MSELoss(), loader(x[:1400], y[:1400]), torch.optim.Adam(m.parameters(), 5e-3),
                   lambda m: r2(m(x[1400:]), y[1400:]))
