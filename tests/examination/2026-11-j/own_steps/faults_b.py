"""Graphs, physics, implicit networks, adapters, distillation, codes."""
import torch
import torch.nn.functional as F
from own_common import acc, clusters, gen, loader, r2, smooth
from program import Program, fault
from torch import nn


@fault(
    "Neighbours are summed without dividing by the degree, in three layers of a graph with degree 20",
    rules=("activation-drift", "exploding-gradient", "saturated-output"), fails=True, steps=200,
)
def gcn_sum_of_neighbours(faulty):
    g = gen(11)
    y = torch.randint(0, 4, (160,), generator=g)
    p = torch.where(y[:, None] == y[None], 0.3, 0.05)
    a = torch.triu((torch.rand(160, 160, generator=g) < p).float(), 1)
    a = a + a.T + torch.eye(160)
    if not faulty:
        d = a.sum(1).rsqrt()
        a = d[:, None] * a * d[None]
    x = torch.randn(4, 16, generator=g)[y] * 0.5 + torch.randn(160, 16, generator=g)
    test = torch.arange(160) % 2 == 1

    class GCN(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("adj", a)
            self.lins = nn.ModuleList([nn.Linear(16, 32), nn.Linear(32, 32), nn.Linear(32, 4)])
            for lin in self.lins:
                nn.init.kaiming_normal_(lin.weight)

        def forward(self, h):
            for i, lin in enumerate(self.lins):
                h = self.adj @ lin(h)
                h = F.relu(h) if i < 2 else h
            return h

    def step(m, batch):
        h, t, mask = batch
        return F.cross_entropy(m(h)[mask], t[mask])

    m = GCN()
    return Program(m, None, [(x, y, ~test)], torch.optim.SGD(m.parameters(), 0.2, momentum=0.9),
                   lambda m: acc(m(x)[test], y[test]), step=step)


class Sine(nn.Module):
    def __init__(self, i, o, w0=30.0, init="siren", first=False):
        super().__init__()
        self.linear, self.w0 = nn.Linear(i, o), w0
        if init == "siren":
            b = 1 / i if first else (6 / i) ** 0.5 / w0
            nn.init.uniform_(self.linear.weight, -b, b)

    def forward(self, x):
        return torch.sin(self.w0 * self.linear(x))


@fault(
    "Sine layers with frequency 30 and the ordinary initialisation of nn.Linear",
    rules=("bad-initialisation", "exploding-gradient"), layers=("0", "1", "2"), fails=True, steps=400,
)
def siren_default_init(faulty):
    g = gen(13)
    xy = 2 * torch.rand(3000, 2, generator=g) - 1
    v = torch.sin(4 * xy[:, :1]) * torch.cos(5 * xy[:, 1:]) + 0.5 * torch.sin(7 * (xy[:, :1] + xy[:, 1:]))
    kind = "default" if faulty else "siren"
    m = nn.Sequential(Sine(2, 64, init=kind, first=True), Sine(64, 64, init=kind), Sine(64, 64, init=kind), nn.Linear(64, 1))
    return Program(m, F.mse_loss, loader(xy[:2400], v[:2400], bs=128), torch.optim.Adam(m.parameters(), 5e-4),
                   lambda m: r2(m(xy[2400:]), v[2400:]))


class LoRA(nn.Module):
    def __init__(self, base, rank, both_zero):
        super().__init__()
        self.base = base.requires_grad_(False)
        self.A = nn.Parameter(torch.zeros(rank, base.in_features) if both_zero else torch.randn(rank, base.in_features) / base.in_features**0.5)
        self.B = nn.Parameter(torch.zeros(base.out_features, rank))

    def forward(self, x):
        return self.base(x) + x @ self.A.T @ self.B.T


@fault(
    "Both factors of the adapters start at zero, so that neither gets a gradient",
    rules=("no-gradient", "bad-initialisation", "symmetric-initialisation", "loss-not-decreasing"),
    layers=("0", "2"), fails=True, steps=300,
)
def lora_both_zero(faulty):
    g = gen(14)
    w1, w2 = torch.randn(48, 16, generator=g) / 4, torch.randn(4, 48, generator=g) / 7
    d1 = torch.randn(48, 2, generator=g) @ torch.randn(2, 16, generator=g) / 2.5
    d2 = torch.randn(4, 2, generator=g) @ torch.randn(2, 48, generator=g) / 5
    x = torch.randn(1500, 16, generator=g)
    y = torch.tanh(x @ (w1 + d1).T) @ (w2 + d2).T
    l1, l2 = nn.Linear(16, 48), nn.Linear(48, 4)
    with torch.no_grad():
        l1.weight.copy_(w1), l1.bias.zero_(), l2.weight.copy_(w2), l2.bias.zero_()
    m = nn.Sequential(LoRA(l1, 4, faulty), nn.Tanh(), LoRA(l2, 4, faulty))
    return Program(m, nn.MSELoss(), loader(x[:1200], y[:1200]),
                   torch.optim.AdamW([p for p in m.parameters() if p.requires_grad], 1e-2),
                   lambda m: r2(m(x[1200:]), y[1200:]))


@fault(
    "The item embedding is replaced (to add items) after the optimizer was made",
    rules=("no-gradient",), layers=("item",), fails=True, steps=400,
)
def embedding_replaced_late(faulty):
    g = gen(17)
    U, V = torch.randn(60, 3, generator=g), torch.randn(40, 3, generator=g)
    pairs = torch.cartesian_prod(torch.arange(60), torch.arange(40))[torch.randperm(2400, generator=g)]
    r = (U[pairs[:, 0]] * V[pairs[:, 1]]).sum(1) / 1.7

    class MF(nn.Module):
        def __init__(self, items):
            super().__init__()
            self.user, self.item = nn.Embedding(60, 4), nn.Embedding(items, 4)

        def forward(self, p):
            return (self.user(p[:, 0]) * self.item(p[:, 1])).sum(1)

    m = MF(30)
    if not faulty:
        m.item = nn.Embedding(40, 4)
    opt = torch.optim.Adam(m.parameters(), 2e-2)
    if faulty:
        m.item = nn.Embedding(40, 4)
    return Program(m, F.mse_loss, loader(pairs[:1900], r[:1900], bs=128), opt,
                   lambda m: r2(m(pairs[1900:]), r[1900:]))


@fault(
    "The experts are one and the same module four times",
    rules=("shared-weight",), layers=("experts",), fails=True, steps=400,
)
def experts_times_four(faulty):
    g = gen(18)
    x = torch.randn(2000, 6, generator=g)
    W = torch.randn(4, 6, generator=g)
    W = W - W.mean(0)
    k = (x[:, 0] > 0).long() * 2 + (x[:, 1] > 0).long()
    y = (x * W[k]).sum(1, keepdim=True) / 2.4

    class MoE(nn.Module):
        def __init__(self):
            super().__init__()
            self.gate = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 4))
            self.experts = nn.ModuleList([nn.Linear(6, 1)] * 4 if faulty else [nn.Linear(6, 1) for _ in range(4)])

        def forward(self, x):
            w = F.softmax(self.gate(x), dim=-1)
            return (w[:, None] * torch.stack([e(x) for e in self.experts], -1)).sum(-1)

    m = MoE()
    return Program(m, nn.MSELoss(), loader(x[:1600], y[:1600]), torch.optim.Adam(m.parameters(), 2e-2),
                   lambda m: r2(m(x[1600:]), y[1600:]))
