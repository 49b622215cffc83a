"""Graphs, survival, adapters and half precision."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from program import Program, fault


def gen(seed):
    return torch.Generator().manual_seed(seed)


def r2(pred, y):
    pred = pred.float()
    return max(0.0, 1 - ((pred - y) ** 2).mean().item() / ((y - y.mean(0)) ** 2).mean().item())


def communities(n, g, inside=0.25, outside=0.04, noise=1.2):
    y = torch.arange(n) % 4
    p = torch.where(y[:, None] == y[None], inside, outside)
    a = (torch.rand(n, n, generator=g) < p).float().triu(1)
    a = a + a.T
    x = F.one_hot(y, 4).float() @ torch.randn(4, 12, generator=g) + noise * torch.randn(n, 12, generator=g)
    return a, x, y, torch.rand(n, generator=g) < 0.5


@fault(
    "a graph network adds up its neighbours without dividing by the degree: every layer multiplies by about twenty",
    rules=("activation-drift", "exploding-gradient", "learning-rate-too-high", "non-finite"),
    fails=True,
    steps=200,
)
def gcn_unnormalised_adjacency(is_faulty):
    a, x, y, train = communities(200, gen(1))
    a = a + torch.eye(200)
    if not is_faulty:
        d = a.sum(1).rsqrt()
        a = d[:, None] * a * d[None]

    class GCN(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList([nn.Linear(12, 32), nn.Linear(32, 32), nn.Linear(32, 32), nn.Linear(32, 4)])
            for layer in self.layers:
                nn.init.kaiming_normal_(layer.weight)
                nn.init.zeros_(layer.bias)

        def forward(self, x, a):
            for layer in self.layers[:-1]:
                x = torch.relu(a @ layer(x))
            return a @ self.layers[-1](x)

    def step(model, batch):
        nodes, adj, labels, mask = batch
        return F.cross_entropy(model(nodes, adj)[mask], labels[mask])

    model = GCN()
    return Program(
        model, None, [(x, a, y, train)], torch.optim.SGD(model.parameters(), 0.1, momentum=0.9),
        lambda m: (m(x, a).argmax(1) == y)[~train].float().mean().item(), step=step,
    )


@fault(
    "sixteen rounds of averaging over the neighbours without a skip: all nodes end up alike",
    rules=("rank-collapse", "activation-drift", "vanishing-gradient"),
    fails=True,
    steps=150,
)
def deep_graph_oversmoothing(is_faulty):
    a, x, y, train = communities(160, gen(2), inside=0.1, outside=0.08, noise=0.6)
    a = (a + torch.eye(160)) / (a.sum(1, keepdim=True) + 1)

    class Deep(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.out = nn.Linear(12, 24), nn.Linear(24, 4)
            self.rounds = nn.ModuleList([nn.Linear(24, 24) for _ in range(16)])

        def forward(self, x):
            x = torch.tanh(self.embed(x))
            for layer in self.rounds:
                new = torch.tanh(layer(a @ x))
                x = new if is_faulty else x + 0.25 * new
            return self.out(x)

    model = Deep()
    return Program(
        model, None, [(x, y, train)], torch.optim.Adam(model.parameters(), 3e-3),
        lambda m: (m(x).argmax(1) == y)[~train].float().mean().item(),
        step=lambda m, b: F.cross_entropy(m(b[0])[b[2]], b[1][b[2]]),
    )


@fault(
    "Cox regression on age in days and income in dollars, not standardised; exp of the risks overflows",
    rules=("unscaled-input", "non-finite"),
    fails=True,
    steps=250,
)
def cox_raw_covariates(is_faulty):
    g = gen(3)
    z = torch.randn(1400, 6, generator=g)
    risk = z @ torch.tensor([1.0, -0.8, 0.7, 0.5, -0.6, 0.0])
    time = -torch.log(torch.rand(1400, generator=g)) * torch.exp(-1.5 * risk)
    censor = -torch.log(torch.rand(1400, generator=g)) * 3
    event, time = (time <= censor).float(), torch.minimum(time, censor)
    x = z * torch.tensor([3000.0, 20000.0, 1, 1, 1, 1]) + torch.tensor([20000.0, 50000.0, 0, 0, 0, 0])
    if not is_faulty:
        x = (x - x[:1000].mean(0)) / x[:1000].std(0)
    model = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 1))

    def step(model, batch):
        x, t, e = batch
        order = t.argsort(descending=True)
        r = model(x[order]).squeeze(1)
        return -((r - torch.log(torch.cumsum(torch.exp(r), 0))) * e[order]).sum() / e.sum()

    def score(model):
        r, t, e = model(x[1000:]).squeeze(1), time[1000:], event[1000:]
        pairs = (t[:, None] < t[None]) & (e[:, None] > 0)
        right = (r[:, None] > r[None])[pairs].float().mean().item()
        return 2 * right - 1

    return Program(
        model, None, DataLoader(TensorDataset(x[:1000], time[:1000], event[:1000]), 100, shuffle=True),
        torch.optim.Adam(model.parameters(), 3e-3), score, step=step,
    )


class LoRA(nn.Module):
    def __init__(self, base, rank, zero_both):
        super().__init__()
        self.base = base.requires_grad_(False)
        self.down = nn.Linear(base.in_features, rank, bias=False)
        self.up = nn.Linear(rank, base.out_features, bias=False)
        nn.init.zeros_(self.up.weight)
        if zero_both:
            nn.init.zeros_(self.down.weight)

    def forward(self, x):
        return self.base(x) + self.up(self.down(x))


@fault(
    "both factors of the low-rank adapters start at zero, so that neither gets a gradient",
    rules=("bad-initialisation", "no-gradient", "symmetric-initialisation", "loss-not-decreasing"),
    layers=("0.down", "0.up", "2.down", "2.up"),
    fails=True,
    steps=300,
)
def lora_both_factors_zero(is_faulty):
    g = gen(4)
    x = torch.randn(1500, 16, generator=g)
    w1, w2 = torch.randn(32, 16, generator=g) / 4, torch.randn(4, 32, generator=g) / 3
    shift = torch.randn(32, 2, generator=g) @ torch.randn(2, 16, generator=g) / 3
    y = torch.relu(x @ (w1 + shift).T) @ w2.T
    first, last = nn.Linear(16, 32), nn.Linear(32, 4)
    with torch.no_grad():
        first.weight.copy_(w1), first.bias.zero_(), last.weight.copy_(w2), last.bias.zero_()
    model = nn.Sequential(LoRA(first, 4, is_faulty), nn.ReLU(), LoRA(last, 4, is_faulty))

    return Program(
        model, None, DataLoader(TensorDataset(x[:1200], y[:1200]), 64, shuffle=True),
        torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], 5e-3, weight_decay=0.0),
        lambda m: r2(m(x[1200:]), y[1200:]), step=lambda m, b: F.mse_loss(m(b[0]), b[1]),
    )


@fault(
    "the optimizer is made before the head is replaced, and holds the old head",
    rules=("no-gradient", "loss-not-decreasing"),
    layers=("head",),
    fails=True,
    steps=200,
)
def head_replaced_after_optimizer(is_faulty):
    g = gen(5)
    x = torch.randn(1300, 10, generator=g)
    y = (x @ torch.randn(10, 6, generator=g)).argmax(1)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.backbone = nn.Sequential(nn.Linear(10, 128), nn.ReLU())
            self.head = nn.Linear(128, 100)

        def forward(self, x):
            return self.head(self.backbone(x))

    model = Net()
    for p in model.backbone.parameters():
        p.requires_grad = False
    if is_faulty:
        optimizer = torch.optim.Adam(model.head.parameters(), 1e-2)
        model.head = nn.Linear(128, 6)
    else:
        model.head = nn.Linear(128, 6)
        optimizer = torch.optim.Adam(model.head.parameters(), 1e-2)

    return Program(
        model, nn.CrossEntropyLoss(), DataLoader(TensorDataset(x[:1000], y[:1000]), 50, shuffle=True), optimizer,
        lambda m: (m(x[1000:]).argmax(1) == y[1000:]).float().mean().item(),
    )


@fault(
    "gains that start at one are kept in bfloat16; the steps are smaller than its spacing there",
    rules=("lost-updates",),
    layers=("gain",),
    fails=True,
    steps=400,
)
def ia3_gains_in_bfloat16(is_faulty):
    g = gen(6)
    w1, w2 = torch.randn(64, 16, generator=g) / 4, torch.randn(8, 64, generator=g) / 8
    x = torch.randn(1600, 16, generator=g)
    truth = torch.where(torch.rand(64, generator=g) < 0.5, 0.4, 1.6)
    center = torch.relu(x @ w1.T) @ w2.T
    y = (torch.relu(x @ w1.T) * truth) @ w2.T - center

    class Tuned(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.last = nn.Linear(16, 64, bias=False), nn.Linear(64, 8, bias=False)
            self.first.weight.data, self.last.weight.data = w1.clone(), w2.clone()
            self.requires_grad_(False)
            self.gain = nn.Parameter(torch.ones(64, dtype=torch.bfloat16 if is_faulty else torch.float32))

        def forward(self, x):
            return self.last(torch.relu(self.first(x)) * self.gain.float())

    def step(model, batch):
        inputs, delta = batch
        with torch.no_grad():
            before = torch.relu(inputs @ w1.T) @ w2.T
        return F.mse_loss(model(inputs), before + delta)

    model = Tuned()
    return Program(
        model, None, DataLoader(TensorDataset(x[:1200], y[:1200]), 64, shuffle=True),
        torch.optim.Adam([model.gain], 1.7e-3), lambda m: r2(m(x[1200:]) - center[1200:], y[1200:]), step=step,
    )


@fault(
    "float16 autocast with a loss of small weight and no loss scaling: the gradients round to zero",
    rules=("gradient-underflow",),
    fails=True,
    steps=200,
)
def fp16_small_loss_not_scaled(is_faulty):
    g = gen(7)
    x = torch.randn(1500, 16, generator=g)
    y = torch.tanh(x @ torch.randn(16, 32, generator=g) / 4) @ torch.randn(32, 64, generator=g) / 5
    model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64))
    scale = 1.0 if is_faulty else 2.0**17

    def step(model, batch):
        with torch.autocast("cpu", dtype=torch.float16):
            out = model(batch[0])
        return 1e-5 * F.mse_loss(out.float(), batch[1]) * scale

    return Program(
        model, None, DataLoader(TensorDataset(x[:1200], y[:1200]), 128, shuffle=True, drop_last=True),
        torch.optim.Adam(model.parameters(), 3e-3, eps=1e-15), lambda m: r2(m(x[1200:]), y[1200:]), step=step,
    )


@fault(
    "squared distances of embeddings are computed in float16, where they overflow",
    rules=("half-overflow", "non-finite"),
    fails=True,
    steps=150,
)
def prototypes_overflow_in_float16(is_faulty):
    g = gen(8)
    means = torch.randn(5, 64, generator=g)
    y = torch.randint(5, (1500,), generator=g)
    x = 10 * (0.35 * means[y] + torch.randn(1500, 64, generator=g))

    class Embed(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = nn.Linear(64, 512)
            nn.init.normal_(self.net.weight, std=0.18)
            self.prototypes = nn.Parameter(torch.randn(5, 512))

        def forward(self, x):
            with torch.autocast("cpu", dtype=torch.float16):
                z = self.net(x)
                p = self.prototypes.to(z.dtype)
                if is_faulty:
                    d = (z * z).sum(1, keepdim=True) - 2 * z @ p.T + (p * p).sum(1)
                else:
                    with torch.autocast("cpu", enabled=False):
                        z, p = z.float(), p.float()
                        d = (z * z).sum(1, keepdim=True) - 2 * z @ p.T + (p * p).sum(1)
            return -d.float() / 512

    model = Embed()
    return Program(
        model, None, DataLoader(TensorDataset(x[:1200], y[:1200]), 64, shuffle=True),
        torch.optim.Adam(model.parameters(), 1e-2),
        lambda m: (m(x[1200:]).nan_to_num(-1e9, -1e9, -1e9).argmax(1) == y[1200:]).float().mean().item(),
        step=lambda m, b: F.cross_entropy(m(b[0]), b[1]),
    )
