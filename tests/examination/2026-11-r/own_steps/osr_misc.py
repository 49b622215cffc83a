"""Graphs, sets, hypernetworks, implicit layers, physics, recommenders, accumulation: with mistakes."""
import math

import torch
import torch.nn.functional as F
from torch import nn

from osr_base import accuracy, digits, gen, loader, mlp, r2
from program import Program, fault


def communities(seed, n=120, k=4):
    g = gen(seed)
    c = torch.arange(n) % k
    p = torch.where(c[:, None] == c[None], 0.5, 0.03)
    a = (torch.rand(n, n, generator=g) < p).float().triu(1)
    return a + a.T, c


class GraphAE(nn.Module):
    def __init__(self, adjacency, d, relu):
        super().__init__()
        a = adjacency + torch.eye(len(adjacency))
        s = a.sum(1).rsqrt()
        self.register_buffer("a", s[:, None] * a * s[None])
        self.w1, self.w2 = nn.Linear(d, 32), nn.Linear(32, 16)
        self.relu = relu

    def forward(self, x):
        z = self.a @ self.w2(F.relu(self.a @ self.w1(x)))
        if self.relu:
            z = F.relu(z)
        return z @ z.T


@fault("graph autoencoder whose codes pass a ReLU, so that no inner product is negative", rules=["output-loss-mismatch"],
       layers=[], fails=True, steps=300)
def osr_gae_relu(is_faulty):
    a, _ = communities(61)
    g = gen(62)
    hidden = (torch.rand(a.shape, generator=g) < 0.15).float().triu(1)
    hidden = hidden + hidden.T
    seen = a * (1 - hidden)
    model = GraphAE(seen, len(a), is_faulty)

    def step(m, b):
        (x,) = b
        keep = 1 - hidden
        weight = keep * (1 + 4 * seen)
        return (F.binary_cross_entropy_with_logits(m(x), seen, reduction="none") * weight).sum() / weight.sum()

    def score(m):
        p = m(torch.eye(len(a))) > 0
        on, off = (hidden * a).bool(), (hidden * (1 - a)).bool()
        return p[on].float().mean().item() + (~p[off]).float().mean().item() - 1

    return Program(model, None, [(torch.eye(len(a)),)] * 10, torch.optim.Adam(model.parameters(), 1e-2), score, step=step)


@fault("sixteen plain graph convolutions, one upon another", rules=["rank-collapse", "vanishing-gradient", "activation-drift"], layers=[],
       fails=True, steps=200)
def osr_deep_gcn(is_faulty):
    a, c = communities(63, n=160)
    x = torch.randn(160, 8, generator=gen(64)) + F.one_hot(c, 8).float() * 0.8
    train = torch.rand(160, generator=gen(65)) < 0.4

    class Net(nn.Module):
        def __init__(self, depth):
            super().__init__()
            s = a + torch.eye(160)
            self.register_buffer("a", s / s.sum(1, keepdim=True))
            self.layers = nn.ModuleList(nn.Linear(8 if i == 0 else 32, 32) for i in range(depth))
            self.out = nn.Linear(32, 4)

        def forward(self, h):
            for layer in self.layers:
                h = F.relu(self.a @ layer(h))
            return self.out(h)

    model = Net(16 if is_faulty else 2)
    return Program(model, None, [(x, c)] * 4, torch.optim.Adam(model.parameters(), 2e-3, weight_decay=1e-4),
                   lambda m: accuracy(m(x)[~train], c[~train]),
                   step=lambda m, b: F.cross_entropy(m(b[0])[train], b[1][train]))


def functions(seed, n=1200):
    g = gen(seed)
    x = torch.rand(n, 24, 1, generator=g) * 4 - 2
    amp = torch.rand(n, 1, 1, generator=g) * 2 - 1
    shift = torch.rand(n, 1, 1, generator=g) * 2 - 1
    return x, amp * torch.sin(2 * x) + shift


class NeuralProcess(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.encoder = mlp(2, 64, 64)
        self.decoder = mlp(65, 64, 64, 2)
        self.dim = dim

    def forward(self, xc, yc, xt):
        r = self.encoder(torch.cat([xc, yc], -1)).mean(self.dim, keepdim=True)
        mu, s = self.decoder(torch.cat([r.expand(*xt.shape[:2], 64), xt], -1)).chunk(2, -1)
        return torch.distributions.Normal(mu, 0.05 + F.softplus(s))


@fault("context of a neural process is averaged over the tasks of a batch instead of over its points",
       rules=["mixed-examples"], layers=[], fails=True, steps=500)
def osr_process_axis(is_faulty):
    x, y = functions(66)
    model = NeuralProcess(0 if is_faulty else 1)

    def step(m, b):
        u, v = b
        return -m(u[:, :12], v[:, :12], u[:, 12:]).log_prob(v[:, 12:]).mean()

    return Program(model, None, loader(x[:1000], y[:1000], n=20), torch.optim.Adam(model.parameters(), 3e-3),
                   lambda m: max(0.0, r2(m(x[1000:, :12], y[1000:, :12], x[1000:, 12:]).mean.flatten(), y[1000:, 12:].flatten())), step=step)


class Equilibrium(nn.Module):
    def __init__(self, gain, d=8, width=48):
        super().__init__()
        self.inject = nn.Linear(d, width)
        self.cell = nn.Linear(width, width, bias=False)
        nn.init.orthogonal_(self.cell.weight, gain)
        self.read = nn.Linear(width, 1)

    def forward(self, x):
        u = self.inject(x)
        z = torch.zeros_like(u)
        for _ in range(25):
            z = torch.tanh(self.cell(z) + u)
        return self.read(z)[:, 0]


@fault("cell of an equilibrium network starts far from a contraction (gain 8)", rules=["bad-initialisation", "exploding-gradient", "saturated-activation"],
       layers=["cell"], fails=True, steps=400)
def osr_equilibrium_gain(is_faulty):
    g = gen(67)
    x = torch.randn(2500, 8, generator=g)
    y = torch.sin(x[:, 0] + x[:, 1]) + 0.5 * torch.tanh(2 * x[:, 2])
    model = Equilibrium(8.0 if is_faulty else 0.6)
    return Program(model, None, loader(x[:2000], y[:2000]), torch.optim.Adam(model.parameters(), 2e-3),
                   lambda m: max(0.0, r2(m(x[2000:]), y[2000:])), step=lambda m, b: F.mse_loss(m(b[0]), b[1]))


@fault("micro-batches are accumulated as sums of summed losses", rules=["summed-loss", "learning-rate-too-high", "diverging"], layers=[], fails=True, steps=300)
def osr_accumulated_sums(is_faulty):
    g = gen(68)
    x = torch.randn(2500, 10, generator=g)
    y = torch.sin(x[:, :2]) @ torch.tensor([[1.0], [1.0]]) + 0.3 * x[:, 2:3] * x[:, 3:4]
    model = mlp(10, 64, 64, 1)

    def step(m, b):
        total = 0.0
        for u, v in zip(b[0].chunk(4), b[1].chunk(4)):
            loss = F.mse_loss(m(u), v, reduction="sum" if is_faulty else "mean")
            total = total + (loss if is_faulty else loss / 4)
        return total

    return Program(model, None, loader(x[:2000], y[:2000], n=128), torch.optim.SGD(model.parameters(), 0.03, momentum=0.9),
                   lambda m: max(0.0, r2(m(x[2000:]), y[2000:])), step=step)


@fault("a decay observed for 600 seconds, whose time is not scaled, for a tanh network", rules=["unscaled-input", "saturated-activation"],
       layers=[], fails=False, steps=500)
def osr_pinn_seconds(is_faulty):
    span, tau = 600.0, 150.0

    class Solution(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = mlp(1, 32, 32, 1, act=nn.Tanh)
            self.unit = 1.0 if is_faulty else span

        def forward(self, t):
            return self.net(t / self.unit)

    class Points:
        def __iter__(self):
            for _ in range(50):
                yield torch.rand(64, 1) * span, torch.linspace(0, span, 7)[:, None]

    model = Solution()

    def exact(t):
        return 2 * torch.exp(-t / tau) * torch.cos(2 * math.pi * t / 400)

    def step(m, b):
        t, seen = b
        t = t.clone().requires_grad_()
        u = m(t)
        du = torch.autograd.grad(u.sum(), t, create_graph=True)[0]
        w = 2 * math.pi / 400
        force = -2 * w * torch.exp(-t / tau) * torch.sin(w * t)
        return ((tau * (du - force) + u) ** 2).mean() + 4 * F.mse_loss(m(seen), exact(seen))

    def score(m):
        t = torch.rand(300, 1, generator=gen(3)) * span
        return max(0.0, r2(m(t), exact(t)))

    return Program(model, None, Points(), torch.optim.Adam(model.parameters(), 5e-3), score, step=step)


class Factors(nn.Module):
    def __init__(self, users, items, k, std):
        super().__init__()
        self.user, self.item = nn.Embedding(users, k), nn.Embedding(items, k)
        self.user_bias, self.item_bias = nn.Embedding(users, 1), nn.Embedding(items, 1)
        for e in (self.user, self.item):
            nn.init.normal_(e.weight, std=std)
        for e in (self.user_bias, self.item_bias):
            nn.init.zeros_(e.weight)

    def forward(self, u, i):
        return (self.user(u) * self.item(i)).sum(-1) + self.user_bias(u)[:, 0] + self.item_bias(i)[:, 0]


def ratings(seed, n=6000, users=60, items=50):
    g = gen(seed)
    u, i = torch.randint(users, (n,), generator=g), torch.randint(items, (n,), generator=g)
    p, q = torch.randn(users, 3, generator=g), torch.randn(items, 3, generator=g)
    b = 0.5 * torch.randn(items, generator=g)
    return u, i, (p[u] * q[i]).sum(1) / 1.7 + b[i] + 0.1 * torch.randn(n, generator=g)


@fault("weight decay of 0.5 in Adam on factors of users and items", rules=["weight-decay-dominates"], layers=[], fails=True, steps=400)
def osr_factors_decay(is_faulty):
    u, i, r = ratings(69)
    model = Factors(60, 50, 8, 0.1)
    return Program(model, None, loader(u[:5000], i[:5000], r[:5000], n=128),
                   torch.optim.Adam(model.parameters(), 2e-2, weight_decay=0.5 if is_faulty else 1e-5),
                   lambda m: r2(m(u[5000:], i[5000:]), r[5000:]), step=lambda m, b: F.mse_loss(m(b[0], b[1]), b[2]))


@fault("factors of 128 dimensions from the default N(0, 1)", rules=["bad-initialisation"], layers=["user", "item"], fails=True, steps=400)
def osr_factors_normal(is_faulty):
    u, i, r = ratings(70)
    model = Factors(60, 50, 128, 1.0 if is_faulty else 0.03)
    return Program(model, None, loader(u[:5000], i[:5000], r[:5000], n=128), torch.optim.Adam(model.parameters(), 5e-3),
                   lambda m: max(0.0, r2(m(u[5000:], i[5000:]), r[5000:])), step=lambda m, b: F.l1_loss(m(b[0], b[1]), b[2]))


class Hyper(nn.Module):
    """The weights of a small network are computed from the description of its task."""

    def __init__(self, std, width=24):
        super().__init__()
        self.width = width
        self.body = mlp(3, 48, 48)
        self.weights = nn.Linear(48, 2 * width + width * width + width + width + 1)
        if std is not None:
            nn.init.normal_(self.weights.weight, std=std)
            nn.init.zeros_(self.weights.bias)

    def forward(self, c, x):
        n, w = len(c), self.width
        p = self.weights(F.relu(self.body(c)))
        a, b, h, bh, o, bo = p.split([w, w, w * w, w, w, 1], 1)
        z = torch.tanh(x[..., None] * a[:, None] + b[:, None])
        z = torch.tanh(z @ h.view(n, w, w) + bh[:, None])
        return (z * o[:, None]).sum(-1) + bo


@fault("hypernetwork whose last layer is drawn from N(0, 1)", rules=["bad-initialisation", "saturated-activation", "activation-drift"], layers=["weights"], fails=False,
       steps=500)
def osr_hyper_scale(is_faulty):
    g = gen(71)
    c = torch.randn(2400, 3, generator=g)
    x = torch.rand(2400, 12, generator=g) * 4 - 2
    y = torch.tanh(c[:, :1]) * torch.sin(1.5 * x) + torch.tanh(c[:, 1:2]) * x / 2
    model = Hyper(1.0 if is_faulty else 0.06)
    return Program(model, None, loader(c[:2000], x[:2000], y[:2000], n=32), torch.optim.Adam(model.parameters(), 2e-3),
                   lambda m: max(0.0, r2(m(c[2000:], x[2000:]), y[2000:])), step=lambda m, b: F.mse_loss(m(b[0], b[1]), b[2]))


@fault("bias of a rare-event prior, -4.6, in every layer instead of the last", rules=["dying-neurons", "bad-initialisation"],
       layers=["0", "2"], fails=True, steps=400)
def osr_prior_everywhere(is_faulty):
    g = gen(72)
    x = torch.randn(3000, 6, generator=g)
    y = ((x[:, 0] * x[:, 1] + x[:, 2]) > 1.8).float()
    model = mlp(6, 64, 64, 1)
    layers = [part for part in model if isinstance(part, nn.Linear)]
    for layer in layers if is_faulty else layers[-1:]:
        nn.init.constant_(layer.bias, -4.6)

    def step(m, b):
        logit = m(b[0])[:, 0]
        ce = F.binary_cross_entropy_with_logits(logit, b[1], reduction="none")
        p = torch.sigmoid(logit)
        return (ce * (b[1] * (1 - p) + (1 - b[1]) * p).pow(2)).mean() * 4

    def score(m):
        p, t = m(x[2400:])[:, 0] > 0, y[2400:] > 0
        return (2 * (p & t).sum() / (p.sum() + t.sum()).clamp(min=1)).item()

    return Program(model, None, loader(x[:2400], y[:2400]), torch.optim.Adam(model.parameters(), 3e-3), score, step=step)


@fault("inner rate of 20 in meta-learning", rules=["exploding-gradient", "diverging", "non-finite", "loss-not-decreasing"], layers=[], fails=True, steps=300)
def osr_inner_rate(is_faulty):
    g = gen(73)
    n = 800
    amp, phase = torch.rand(n, 1, 1, generator=g) * 2 + 0.5, torch.rand(n, 1, 1, generator=g) * math.pi
    x = torch.rand(n, 20, 1, generator=g) * 6 - 3
    y = amp * torch.sin(x + phase)
    model = mlp(1, 40, 40, 1, act=nn.Tanh)
    rate = 20.0 if is_faulty else 0.1

    def adapted(m, u, v, w):
        with torch.enable_grad():
            names = [k for k, _ in m.named_parameters()]

            def loss(params, a, b):
                return F.mse_loss(torch.func.functional_call(m, params, (a,)), b)

            def one(a, b, c):
                params = dict(m.named_parameters())
                for _ in range(2):
                    grads = torch.func.grad(loss)(params, a, b)
                    params = {k: params[k] - rate * grads[k] for k in names}
                return torch.func.functional_call(m, params, (c,))

            return torch.func.vmap(one)(u, v, w)

    def step(m, b):
        u, v = b
        return F.mse_loss(adapted(m, u[:, :10], v[:, :10], u[:, 10:]), v[:, 10:])

    return Program(model, None, loader(x[:600], y[:600], n=16), torch.optim.Adam(model.parameters(), 5e-3),
                   lambda m: max(0.0, r2(adapted(m, x[600:, :10], y[600:, :10], x[600:, 10:]).flatten(), y[600:, 10:].flatten())), step=step)
