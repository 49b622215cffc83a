"""Sets, sequences, experts, settings."""

import math

import torch
import torch.nn.functional as F
from torch import nn
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader, TensorDataset

from program import Program, fault


def gen(seed):
    return torch.Generator().manual_seed(seed)


def r2(pred, y):
    return max(0.0, 1 - ((pred - y) ** 2).mean().item() / ((y - y.mean(0)) ** 2).mean().item())


@fault(
    "the attention that pools the instances of a bag takes its softmax over the batch",
    rules=("wrong-softmax-dimension", "mixed-examples"),
    fails=False,
    steps=300,
)
def bags_softmax_over_batch(is_faulty):
    g = gen(1)
    key = torch.randn(8, generator=g)
    x = torch.randn(2000, 12, 8, generator=g)
    where = torch.randint(12, (2000,), generator=g)
    y = torch.randint(3, (2000,), generator=g)
    marks = torch.randn(3, 8, generator=g) * 1.5
    x[torch.arange(2000), where] = 2 * key + marks[y] + 0.5 * torch.randn(2000, 8, generator=g)

    class Pool(nn.Module):
        def __init__(self):
            super().__init__()
            self.gate, self.value, self.out = nn.Linear(8, 1), nn.Linear(8, 32), nn.Linear(32, 3)

        def forward(self, x):
            w = F.softmax(self.gate(x), dim=0 if is_faulty else 1)
            return self.out(torch.relu((w * self.value(x)).sum(1)))

    def score(m):
        singles = torch.cat([m(x[i : i + 1]) for i in range(1700, 2000)])
        return (singles.argmax(1) == y[1700:]).float().mean().item()

    model = Pool()
    return Program(
        model, None, DataLoader(TensorDataset(x[:1700], y[:1700]), 50, shuffle=True),
        torch.optim.Adam(model.parameters(), 1e-2), score, step=lambda m, b: F.cross_entropy(m(b[0]), b[1]),
    )


@fault(
    "Q of shape (batch, 1) against targets of shape (batch,): the difference is a square",
    rules=("output-loss-mismatch",),
    fails=False,
    steps=300,
)
def dqn_broadcast_target(is_faulty):
    g = gen(2)
    s, s2 = torch.randn(3000, 6, generator=g), torch.randn(3000, 6, generator=g)
    a = torch.randint(3, (3000, 1), generator=g)
    w = torch.randn(6, 3, generator=g)
    reward = (s @ w).gather(1, a).squeeze(1)
    done = (torch.rand(3000, generator=g) < 0.7).float()
    st = torch.randn(500, 6, generator=g)
    q = nn.Sequential(nn.Linear(6, 64), nn.ReLU(), nn.Linear(64, 3))

    def step(q, batch):
        s, a, r, s2, done = batch
        with torch.no_grad():
            target = r + 0.5 * (1 - done) * q(s2).max(1).values
        value = q(s).gather(1, a)
        if not is_faulty:
            value = value.squeeze(1)
        return ((value - target) ** 2).mean()

    def score(q):
        best = (st @ w).argmax(1)
        return ((q(st).argmax(1) == best).float().mean().item() - 1 / 3) * 1.5

    return Program(
        q, None, DataLoader(TensorDataset(s, a, reward, s2, done), 64, shuffle=True),
        torch.optim.Adam(q.parameters(), 2e-3), score, step=step,
    )


@fault(
    "trajectories of different lengths are padded with zeros, and the loss counts the padding",
    rules=("padding-in-loss",),
    fails=False,
    steps=300,
)
def waypoints_padding_counted(is_faulty):
    g = gen(5)
    n, longest = 2000, 16
    state = torch.randn(n, 4, generator=g)
    k = torch.arange(1.0, longest + 1)[None, :, None] / 8
    path = state[:, None, :2] + k * state[:, None, 2:] + 0.3 * k**2 * torch.sin(2 * state[:, None, :2])
    length = torch.randint(2, longest + 1, (n,), generator=g)
    mask = (torch.arange(longest)[None] < length[:, None]).float()
    path = path * mask[..., None]
    model = nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, longest * 2), nn.Unflatten(1, (longest, 2)))

    def step(model, batch):
        x, y, m = batch
        error = (model(x) - y).abs().sum(2)
        return error.mean() if is_faulty else (error * m).sum() / m.sum()

    def score(model):
        real = mask[1600:].bool()
        return r2(model(state[1600:])[real], path[1600:][real])

    return Program(
        model, None, DataLoader(TensorDataset(state[:1600], path[:1600], mask[:1600]), 64, shuffle=True),
        torch.optim.Adam(model.parameters(), 5e-3), score, step=step,
    )


@fault(
    "sine layers with a frequency of 30 and standard normal weights instead of the small ones they need",
    rules=("bad-initialisation",),
    layers=("net.0", "net.1", "net.2", "net"),
    fails=True,
    steps=300,
)
def siren_normal_weights(is_faulty):
    g = gen(6)
    p, pt = torch.rand(1200, 2, generator=g) * 2 - 1, torch.rand(400, 2, generator=g) * 2 - 1
    field = lambda p: torch.sin(5 * p[:, :1]) * torch.cos(4 * p[:, 1:]) + 0.5 * p[:, :1]

    class Sine(nn.Module):
        def __init__(self, i, o, first):
            super().__init__()
            self.lin = nn.Linear(i, o)
            if is_faulty:
                nn.init.normal_(self.lin.weight)
            else:
                bound = 1 / (5 * i) if first else math.sqrt(6 / i) / 30
                nn.init.uniform_(self.lin.weight, -bound, bound)

        def forward(self, x):
            return torch.sin(30 * self.lin(x))

    class Siren(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = nn.Sequential(Sine(2, 48, True), Sine(48, 48, False), nn.Linear(48, 1))

        def forward(self, x):
            return self.net(x)

    def step(model, batch):
        x = batch[0]
        x = x.detach().requires_grad_(True)
        u = model(x)
        (slope,) = torch.autograd.grad(u.sum(), x, create_graph=True)
        true = torch.stack([
            5 * torch.cos(5 * x[:, 0]) * torch.cos(4 * x[:, 1]) + 0.5, -4 * torch.sin(5 * x[:, 0]) * torch.sin(4 * x[:, 1])
        ], 1).detach()
        return F.mse_loss(u, batch[1]) + 0.01 * F.mse_loss(slope, true)

    model = Siren()
    return Program(
        model, None, DataLoader(TensorDataset(p, field(p)), 100, shuffle=True),
        torch.optim.Adam(model.parameters(), 1e-3), lambda m: r2(m(pt), field(pt)), step=step,
    )


@fault(
    "Adam with weight_decay=0.1, which is added to the small gradients of embeddings",
    rules=("weight-decay-dominates",),
    fails=True,
    steps=300,
)
def recommender_bpr_weight_decay(is_faulty):
    g = gen(7)
    u, v = torch.randn(120, 3, generator=g), torch.randn(90, 3, generator=g)
    like = u @ v.T
    who = torch.randint(120, (6000,), generator=g)
    i, j = torch.randint(90, (6000,), generator=g), torch.randint(90, (6000,), generator=g)
    better = torch.where(like[who, i] > like[who, j], i, j)
    worse = torch.where(like[who, i] > like[who, j], j, i)

    class BPR(nn.Module):
        def __init__(self):
            super().__init__()
            self.user, self.item = nn.Embedding(120, 8), nn.Embedding(90, 8)
            nn.init.normal_(self.user.weight, std=0.1)
            nn.init.normal_(self.item.weight, std=0.1)

        def forward(self, a, b):
            return (self.user(a) * self.item(b)).sum(-1)

    def step(m, batch):
        a, pos, neg = batch
        return -F.logsigmoid(m(a, pos) - m(a, neg)).mean()

    def score(m):
        a = who[5000:]
        right = (m(a, better[5000:]) > m(a, worse[5000:])).float().mean().item()
        return 2 * right - 1

    model = BPR()
    return Program(
        model, None, DataLoader(TensorDataset(who[:5000], better[:5000], worse[:5000]), 200, shuffle=True),
        torch.optim.Adam(model.parameters(), 0.02, weight_decay=0.1 if is_faulty else 0.0), score, step=step,
    )


@fault(
    "an autoencoder's squared errors are summed over batch and features, at the rate for a mean",
    rules=("summed-loss", "learning-rate-too-high", "exploding-gradient", "non-finite"),
    fails=True,
    steps=300,
)
def autoencoder_summed(is_faulty):
    g = gen(8)
    x = torch.randn(1500, 3, generator=g) @ torch.randn(3, 32, generator=g) / 1.7
    model = nn.Sequential(nn.Linear(32, 24), nn.Tanh(), nn.Linear(24, 3), nn.Linear(3, 24), nn.Tanh(), nn.Linear(24, 32))

    def step(model, batch):
        clean = batch[0]
        out = model(clean + 0.1 * torch.randn_like(clean))
        error = (out - clean) ** 2
        return error.sum() if is_faulty else error.mean()

    return Program(
        model, None, DataLoader(TensorDataset(x[:1200]), 64, shuffle=True),
        torch.optim.SGD(model.parameters(), 0.2, momentum=0.9), lambda m: r2(m(x[1200:]), x[1200:]), step=step,
    )


@fault(
    "the function of LambdaLR returns the rate itself, which multiplies the rate once more",
    rules=("learning-rate-too-low",),
    fails=True,
    steps=300,
)
def lambda_returns_rate(is_faulty):
    g = gen(9)
    a = torch.randn(2000, 10, generator=g)
    turn = torch.linalg.qr(torch.randn(10, 10, generator=g))[0]
    b = torch.tanh(a @ turn) + 0.1 * torch.randn(2000, 10, generator=g)
    total, peak = 300, 2e-3

    class Towers(nn.Module):
        def __init__(self):
            super().__init__()
            self.left = nn.Sequential(nn.Linear(10, 64), nn.ReLU(), nn.Linear(64, 16))
            self.right = nn.Sequential(nn.Linear(10, 64), nn.ReLU(), nn.Linear(64, 16))

        def forward(self, a, b):
            return F.normalize(self.left(a), dim=1) @ F.normalize(self.right(b), dim=1).T / 0.1

    def rate(step):
        cosine = 0.5 * (1 + math.cos(math.pi * min(1, step / total)))
        return peak * cosine if is_faulty else cosine

    def step(m, batch):
        sim = m(*batch)
        t = torch.arange(len(sim))
        return (F.cross_entropy(sim, t) + F.cross_entropy(sim.T, t)) / 2

    def score(m):
        return sum(
            (m(a[i : i + 20], b[i : i + 20]).argmax(1) == torch.arange(20)).float().mean().item()
            for i in range(1600, 2000, 20)
        ) / 20

    model = Towers()
    optimizer = torch.optim.Adam(model.parameters(), peak)
    return Program(
        model, None, DataLoader(TensorDataset(a[:1600], b[:1600]), 64, shuffle=True, drop_last=True), optimizer, score,
        scheduler=LambdaLR(optimizer, rate), step=step,
    )


@fault(
    "[expert] * 4 makes one expert four times",
    rules=("shared-weight",),
    layers=("experts",),
    fails=True,
    steps=400,
)
def experts_are_one(is_faulty):
    g = gen(10)
    group = torch.randint(4, (2500,), generator=g)
    x = torch.randn(2500, 8, generator=g)
    w = torch.randn(4, 8, generator=g)
    w = w - w.mean(0)
    y = (x * w[group]).sum(1)
    x = torch.cat([x, F.one_hot(group, 4).float()], 1)

    class Mixture(nn.Module):
        def __init__(self):
            super().__init__()
            self.experts = nn.ModuleList([nn.Linear(12, 1)] * 4 if is_faulty else [nn.Linear(12, 1) for _ in range(4)])
            self.gate = nn.Linear(12, 4)

        def forward(self, x):
            p = self.gate(x).softmax(1)
            return (p * torch.cat([e(x) for e in self.experts], 1)).sum(1), p

    def step(m, batch):
        out, p = m(batch[0])
        balance = 4 * (p.mean(0) ** 2).sum()
        return F.mse_loss(out, batch[1]) + 0.01 * balance

    model = Mixture()
    return Program(
        model, None, DataLoader(TensorDataset(x[:2000], y[:2000]), 64, shuffle=True),
        torch.optim.Adam(model.parameters(), 0.02), lambda m: r2(m(x[2000:])[0], y[2000:]), step=step,
    )


@fault(
    "a sequential recommender with self-attention has no positions, and the next item depends on which came last",
    rules=("order-lost",),
    fails=True,
    steps=350,
)
def sequence_recommender_without_positions(is_faulty):
    g = gen(11)
    s = torch.randint(12, (3000, 6), generator=g)
    follow = torch.randperm(12, generator=g)
    y = follow[s[:, -1]]

    class SASRec(nn.Module):
        def __init__(self):
            super().__init__()
            self.item, self.pos = nn.Embedding(12, 32), nn.Embedding(6, 32) if not is_faulty else None
            self.attn = nn.MultiheadAttention(32, 2, batch_first=True)
            self.ff = nn.Sequential(nn.LayerNorm(32), nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 12))

        def forward(self, s):
            x = self.item(s)
            if self.pos is not None:
                x = x + self.pos(torch.arange(6))
            return self.ff(self.attn(x, x, x, need_weights=False)[0].mean(1))

    model = SASRec()
    return Program(
        model, None, DataLoader(TensorDataset(s[:2500], y[:2500]), 64, shuffle=True),
        torch.optim.Adam(model.parameters(), 5e-3),
        lambda m: (m(s[2500:]).argmax(1) == y[2500:]).float().mean().item(),
        step=lambda m, b: F.cross_entropy(m(b[0]), b[1]),
    )


@fault(
    "BatchNorm with momentum 0.001, as if it were the other convention: running statistics stay at their start",
    rules=("batchnorm-mode-gap",),
    layers=("1", "4"),
    fails=False,
    steps=150,
)
def triplets_batchnorm_momentum(is_faulty):
    g = gen(12)
    means = torch.randn(6, 16, generator=g)
    m = 0.001 if is_faulty else 0.1

    def draw(y):
        return 8 + 3 * (0.6 * means[y] + 0.5 * torch.randn(len(y), 16, generator=g))

    y = torch.randint(6, (2000,), generator=g)
    other = (y + torch.randint(1, 6, (2000,), generator=g)) % 6
    x, pos, neg = draw(y), draw(y), draw(other)
    yt = torch.randint(6, (400,), generator=g)
    xt = draw(yt)
    model = nn.Sequential(
        nn.Linear(16, 64), nn.BatchNorm1d(64, momentum=m), nn.ReLU(),
        nn.Linear(64, 32), nn.BatchNorm1d(32, momentum=m), nn.Tanh(), nn.Linear(32, 6),
    )

    def step(model, batch):
        a, p, n, label = batch
        za, zp, zn = model(torch.cat([a, p, n])).chunk(3)
        return F.triplet_margin_loss(za, zp, zn) + F.cross_entropy(za, label)

    return Program(
        model, None, DataLoader(TensorDataset(x, pos, neg, y), 64, shuffle=True),
        torch.optim.Adam(model.parameters(), 3e-3), lambda m: (m(xt).argmax(1) == yt).float().mean().item(), step=step,
    )


