"""Sound set-ups on tables that may look faulty."""

import numpy as np
import torch
import torch.nn.functional as F
from data import accuracy, balanced, friedman, loader, r2, seeded, table, tensor
from program import Program, sound
from torch import nn


@sound("an ordinary regression network", steps=300, least=0.9)
def plain_regression():
    x, y, xt, yt = friedman(seed=100)
    seeded(100)
    model = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1), nn.Flatten(0))
    return Program(model, nn.MSELoss(), loader(x, y), torch.optim.Adam(model.parameters(), 2e-3), lambda m: r2(m(xt), yt))


@sound("the last layer starts at zero", steps=300, least=0.9)
def last_layer_starts_at_zero():
    x, y, xt, yt = friedman(seed=101)
    seeded(101)
    model = nn.Sequential(nn.Linear(8, 64), nn.GELU(), nn.LayerNorm(64), nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 1))
    nn.init.zeros_(model[-1].weight)
    nn.init.zeros_(model[-1].bias)
    return Program(model, lambda out, y: F.huber_loss(out.squeeze(1), y), loader(x, y), torch.optim.AdamW(model.parameters(), 2e-3),
                   lambda m: r2(m(xt), yt))


@sound("ReZero: residual branches multiplied by gates that start at zero", steps=300, least=0.9)
def residual_gates_at_zero():
    x, y, xt, yt = friedman(seed=102)

    class Block(nn.Module):
        def __init__(self, width):
            super().__init__()
            self.a, self.b = nn.Linear(width, width), nn.Linear(width, width)
            self.gate = nn.Parameter(torch.zeros(1))

        def forward(self, x):
            return x + self.gate * self.b(F.relu(self.a(x)))

    seeded(102)
    model = nn.Sequential(nn.Linear(8, 40), *[Block(40) for _ in range(5)], nn.Linear(40, 1), nn.Flatten(0))
    return Program(model, F.mse_loss, loader(x, y), torch.optim.Adam(model.parameters(), 3e-3), lambda m: r2(m(xt), yt))


@sound("house prices in dollars: the network multiplies its output by the spread and adds the mean", steps=400, least=0.9)
def prices_in_dollars():
    x, y, xt, yt = friedman(seed=103)
    y, yt = 310_000 + 95_000 * y, 310_000 + 95_000 * yt

    class Prices(nn.Module):
        def __init__(self, mean, spread):
            super().__init__()
            self.net = nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1))
            self.register_buffer("mean", mean)
            self.register_buffer("spread", spread)

        def forward(self, x):
            return self.mean + self.spread * self.net(x).squeeze(1)

    seeded(103)
    model = Prices(y.mean(), y.std())
    return Program(model, lambda out, y: F.mse_loss(out / 95_000, y / 95_000), loader(x, y), torch.optim.Adam(model.parameters(), 3e-3),
                   lambda m: r2(m(xt), yt))


@sound("rare events (4 %), with a weight on them", steps=400, least=0.75)
def rare_events_weighted():
    rng = np.random.default_rng(104)
    x = rng.standard_normal((4000, 6))
    risk = 2.2 * x[:, 0] + 1.5 * np.abs(x[:, 1]) + x[:, 2]
    y = (risk > np.quantile(risk, 0.96)).astype(float)
    x, y = tensor(x), tensor(y)
    seeded(104)
    model = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 1), nn.Flatten(0))
    return Program(model, nn.BCEWithLogitsLoss(pos_weight=torch.tensor(15.0)), loader(x[:3000], y[:3000], size=100),
                   torch.optim.Adam(model.parameters(), 2e-3), lambda m: balanced((m(x[3000:]) > 0).long(), y[3000:].long()))


@sound("amounts over five decades, brought to scale by a log inside the network", steps=300, least=0.85)
def lognormal_amounts():
    rng = np.random.default_rng(105)
    z = rng.standard_normal((1600, 5))
    amounts = np.exp(2 * z + 3)
    y = np.tanh(z[:, 0]) + 0.5 * z[:, 1] - 0.5 * np.abs(z[:, 2]) + 0.3 * z[:, 3] * (z[:, 4] > 0)
    x, y = tensor(amounts), tensor((y - y.mean()) / y.std())

    class Amounts(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = nn.Sequential(nn.Linear(5, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 1))

        def forward(self, x):
            return self.net((torch.log(x) - 3) / 2).squeeze(-1)

    seeded(105)
    model = Amounts()
    return Program(model, nn.MSELoss(), loader(x[:1200], y[:1200]), torch.optim.Adam(model.parameters(), 3e-3),
                   lambda m: r2(m(x[1200:]), y[1200:]))


@sound("five categorical columns through embeddings, one of them with 200 sparse levels", steps=400, least=0.8)
def embedded_categories():
    rng = np.random.default_rng(106)
    sizes = [200, 12, 7, 3, 2]
    codes = np.stack([rng.integers(0, s, 4000) for s in sizes], 1)
    effects = [rng.standard_normal(s) for s in sizes]
    y = sum(e[c] for e, c in zip(effects, codes.T)) + 0.6 * effects[1][codes[:, 1]] * effects[2][codes[:, 2]]
    x, y = torch.tensor(codes), tensor((y - y.mean()) / y.std())

    class Categories(nn.Module):
        def __init__(self):
            super().__init__()
            self.tables = nn.ModuleList([nn.Embedding(s, 8) for s in sizes])
            self.hidden = nn.Linear(40, 64)
            self.out = nn.Linear(64, 1)

        def forward(self, codes):
            h = torch.cat([t(codes[:, i]) for i, t in enumerate(self.tables)], dim=1)
            return self.out(F.relu(self.hidden(h))).squeeze(1)

    seeded(106)
    model = Categories()
    return Program(model, F.mse_loss, loader(x[:3400], y[:3400], size=100), torch.optim.Adam(model.parameters(), 5e-3),
                   lambda m: r2(m(x[3400:]), y[3400:]))


@sound("Poisson counts with a log-rate output and exposure as an offset", steps=300, least=0.75)
def counts_with_exposure():
    rng = np.random.default_rng(107)
    x = rng.standard_normal((2400, 5))
    exposure = rng.uniform(0.5, 8, 2400)
    log_rate = 0.7 * x[:, 0] - 0.5 * np.abs(x[:, 1]) + 0.4 * x[:, 2]
    y = tensor(rng.poisson(np.exp(log_rate) * exposure))
    x, truth, exposure = tensor(x), tensor(log_rate), tensor(exposure)

    class Counts(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(5, 32), nn.Linear(32, 1)

        def forward(self, features, exposure):
            return self.b(F.softplus(self.a(features))).squeeze(1) + torch.log(exposure)

    batches = [({"features": x[i : i + 100], "exposure": exposure[i : i + 100]}, y[i : i + 100]) for i in range(0, 1800, 100)]
    seeded(107)
    model = Counts()
    return Program(model, nn.PoissonNLLLoss(log_input=True), batches, torch.optim.Adam(model.parameters(), 3e-3),
                   lambda m: r2(m(x[1800:], torch.ones(600)), truth[1800:]))


@sound("three quantiles at once with the pinball loss", steps=400, least=0.8)
def three_quantiles():
    rng = np.random.default_rng(108)
    x = rng.uniform(-1, 1, (2400, 4))
    middle, width = np.sin(3 * x[:, 0]) + x[:, 1], 0.15 + 0.4 * np.abs(x[:, 2])
    y = tensor(middle + width * rng.standard_normal(2400))
    levels = torch.tensor([0.1, 0.5, 0.9])
    truth = tensor(middle[:, None] + width[:, None] * np.array([-1.2816, 0, 1.2816]))
    x = tensor(x)

    def pinball(out, target):
        error = target[:, None] - out
        return torch.maximum(levels * error, (levels - 1) * error).mean()

    seeded(108)
    model = nn.Sequential(nn.Linear(4, 48), nn.Tanh(), nn.Linear(48, 48), nn.Tanh(), nn.Linear(48, 3))
    return Program(model, pinball, loader(x[:1800], y[:1800]), torch.optim.Adam(model.parameters(), 3e-3),
                   lambda m: r2(m(x[1800:]), truth[1800:]))


@sound("mean and variance from two heads, Gaussian likelihood, shown after 150 steps", trained=150, steps=400, least=0.8)
def mean_and_variance():
    rng = np.random.default_rng(109)
    x = rng.uniform(-1, 1, (2000, 3))
    y = np.sin(3 * x[:, 0]) + x[:, 1] + 0.3 * np.exp(x[:, 2]) * rng.standard_normal(2000)
    x, y = tensor(x), tensor(y)

    class Both(nn.Module):
        def __init__(self):
            super().__init__()
            self.shared = nn.Linear(3, 48)
            self.mean = nn.Linear(48, 1)
            self.spread = nn.Linear(48, 1)

        def forward(self, x):
            h = torch.tanh(self.shared(x))
            return self.mean(h).squeeze(1), F.softplus(self.spread(h)).squeeze(1) + 1e-3

    def loss(out, target):
        return F.gaussian_nll_loss(out[0], target, out[1] ** 2)

    truth = torch.sin(3 * x[1500:, 0]) + x[1500:, 1]
    seeded(109)
    model = Both()
    return Program(model, loss, loader(x[:1500], y[:1500]), torch.optim.Adam(model.parameters(), 5e-3),
                   lambda m: r2(m(x[1500:])[0], truth))


@sound("ordinal ratings by ordered thresholds of one score", steps=400, least=0.75)
def ordered_thresholds():
    rng = np.random.default_rng(110)
    x = rng.standard_normal((2000, 6))
    latent = x[:, 0] + np.abs(x[:, 1]) - 0.7 * x[:, 2] + 0.1 * rng.standard_normal(2000)
    y = torch.tensor(np.digitize(latent, np.quantile(latent, [0.2, 0.4, 0.6, 0.8])))
    x = tensor(x)

    class Ordinal(nn.Module):
        def __init__(self):
            super().__init__()
            self.score = nn.Sequential(nn.Linear(6, 32), nn.ELU(), nn.Linear(32, 32), nn.ELU(), nn.Linear(32, 1, bias=False))
            self.first = nn.Parameter(torch.tensor(-1.5))
            self.gaps = nn.Parameter(torch.zeros(3))

        def forward(self, x):
            cuts = torch.cat([self.first[None], self.first + torch.cumsum(F.softplus(self.gaps), 0)])
            return self.score(x) - cuts

    def loss(out, rating):
        above = (rating[:, None] > torch.arange(4)).float()
        return F.binary_cross_entropy_with_logits(out, above)

    seeded(110)
    model = Ordinal()
    return Program(model, loss, loader(x[:1500], y[:1500]), torch.optim.Adam(model.parameters(), 5e-3),
                   lambda m: float(((m(x[1500:]) > 0).sum(1) == y[1500:]).float().mean()))


@sound("softmax regression on wine: one linear layer, nothing else", steps=200, least=0.9)
def one_linear_layer():
    x, y, xt, yt = table("wine")
    seeded(111)
    model = nn.Linear(13, 3)
    return Program(model, nn.CrossEntropyLoss(), loader(x, y, size=16), torch.optim.SGD(model.parameters(), lr=0.1),
                   lambda m: accuracy(m(xt), yt))


@sound("mixture of experts with a soft gate and a load-balancing term that looks at the whole batch", steps=400, least=0.85)
def balanced_experts():
    rng = np.random.default_rng(112)
    x = rng.standard_normal((1600, 4))
    y = np.where(x[:, 0] > 0, 1.5 * x[:, 1] - x[:, 2], -x[:, 1] + x[:, 3]) + 0.05 * rng.standard_normal(1600)
    x, y = tensor(x), tensor(y / y.std())

    class Mixture(nn.Module):
        def __init__(self, experts=4):
            super().__init__()
            self.gate = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, experts))
            self.experts = nn.ModuleList([nn.Linear(4, 1) for _ in range(experts)])

        def forward(self, x):
            gate = F.softmax(self.gate(x), dim=1)
            out = torch.cat([e(x) for e in self.experts], 1)
            return (gate * out).sum(1), gate

    def step(model, batch):
        inputs, target = batch
        out, gate = model(inputs)
        return F.mse_loss(out, target) + 0.01 * len(model.experts) * (gate.mean(0) ** 2).sum()

    seeded(112)
    model = Mixture()
    return Program(model, None, loader(x[:1200], y[:1200]), torch.optim.Adam(model.parameters(), 1e-2),
                   lambda m: r2(m(x[1200:])[0], y[1200:]), step=step)


@sound("two tasks with learned weights exp(-s) L + s", steps=400, least=0.8)
def uncertainty_weights():
    rng = np.random.default_rng(113)
    x = rng.standard_normal((1600, 6))
    a = np.sin(1.5 * x[:, 0]) + 0.5 * np.abs(x[:, 1])
    b = (x[:, 2] + np.abs(x[:, 3]) > 0.7).astype(float)
    x, a, b = tensor(x), tensor((a - a.mean()) / a.std()), tensor(b)

    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = nn.Sequential(nn.Linear(6, 48), nn.ReLU(), nn.Linear(48, 48), nn.ReLU())
            self.value, self.event = nn.Linear(48, 1), nn.Linear(48, 1)
            self.s = nn.Parameter(torch.zeros(2))

        def forward(self, x):
            h = self.body(x)
            return self.value(h).squeeze(1), self.event(h).squeeze(1)

    def step(model, batch):
        inputs, value, event = batch
        v, e = model(inputs)
        losses = torch.stack([F.mse_loss(v, value), F.binary_cross_entropy_with_logits(e, event)])
        return (torch.exp(-model.s) * losses + model.s).sum()

    def score(m):
        v, e = m(x[1200:])
        return (r2(v, a[1200:]) + balanced((e > 0).long(), b[1200:].long())) / 2

    seeded(113)
    model = Two()
    return Program(model, None, loader(x[:1200], a[:1200], b[:1200]), torch.optim.Adam(model.parameters(), 2e-3), score, step=step)


@sound("differential equation with derivatives of the network in the loss", steps=500, least=0.95)
def oscillator_equation():
    t = torch.linspace(0, 1, 201).unsqueeze(1)
    truth = torch.exp(-t) * torch.cos(5 * t)

    class Solution(nn.Module):
        def __init__(self):
            super().__init__()
            self.l1, self.l2, self.l3 = nn.Linear(1, 32), nn.Linear(32, 32), nn.Linear(32, 1)

        def forward(self, t):
            h = torch.tanh(self.l1(2 * t - 1))
            h = torch.tanh(self.l2(h))
            return 1 + t * (-1 + t * self.l3(h))  # u(0) = 1 and u'(0) = -1 hold by construction

    def step(model, batch):
        time = batch[0].clone().requires_grad_(True)
        u = model(time)
        du = torch.autograd.grad(u.sum(), time, create_graph=True)[0]
        ddu = torch.autograd.grad(du.sum(), time, create_graph=True)[0]
        return ((ddu + 2 * du + 26 * u) ** 2).mean() / 100

    seeded(114)
    model = Solution()
    return Program(model, None, loader(t, size=67), torch.optim.Adam(model.parameters(), 5e-3), lambda m: r2(m(t), truth), step=step)


@sound("sets of purchases pooled by attention without positions: order does not matter", steps=300, least=0.85)
def attention_over_sets():
    rng = np.random.default_rng(115)
    count = rng.integers(2, 9, 1200)
    there = np.arange(8) < count[:, None]
    items = rng.standard_normal((1200, 8, 4)) * there[..., None]
    y = (np.maximum(items[..., 0], 0) + 0.7 * items[..., 1]).sum(1) / count
    items, there, y = tensor(items), torch.tensor(there), tensor((y - y.mean()) / y.std())

    class SetPool(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Linear(4, 32)
            self.score = nn.Linear(32, 1)
            self.out = nn.Linear(32, 1)

        def forward(self, items, present):
            h = F.gelu(self.embed(items))
            weight = self.score(h).squeeze(-1).masked_fill(~present, float("-inf")).softmax(dim=1)
            return self.out(torch.einsum("bn,bnd->bd", weight, h)).squeeze(1)

    batches = [({"items": items[i : i + 64], "present": there[i : i + 64]}, y[i : i + 64]) for i in range(0, 896, 64)]
    seeded(115)
    model = SetPool()
    return Program(model, nn.MSELoss(), batches, torch.optim.Adam(model.parameters(), 5e-3),
                   lambda m: r2(m(items[900:], there[900:]), y[900:]))


@sound("LoRA: frozen weights of a network trained before, low-rank corrections whose second factor starts at zero", steps=300, least=0.85)
def low_rank_corrections():
    x, y, xt, yt = friedman(seed=116)
    seeded(116)
    base = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))
    optimizer = torch.optim.Adam(base.parameters(), 3e-3)
    for i in range(150):
        optimizer.zero_grad()
        j = (i * 64) % 1152
        F.mse_loss(base(x[j : j + 64]).squeeze(1), y[j : j + 64]).backward()
        optimizer.step()

    class LoRA(nn.Module):
        def __init__(self, linear, rank=6):
            super().__init__()
            self.linear = linear.requires_grad_(False)
            self.a = nn.Parameter(torch.randn(rank, linear.in_features) / linear.in_features**0.5)
            self.b = nn.Parameter(torch.zeros(linear.out_features, rank))

        def forward(self, x):
            return self.linear(x) + F.linear(F.linear(x, self.a), self.b)

    model = nn.Sequential(LoRA(base[0]), nn.ReLU(), LoRA(base[2]), nn.ReLU(), LoRA(base[4]), nn.Flatten(0))
    y, yt = -0.5 * y + 0.8 * x[:, 5], -0.5 * yt + 0.8 * xt[:, 5]  # another task on the same features
    return Program(model, nn.MSELoss(), loader(x, y), torch.optim.Adam([p for p in model.parameters() if p.requires_grad], 5e-3),
                   lambda m: r2(m(xt), yt))
