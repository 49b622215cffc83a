"""Sound set-ups, mostly of the form loss(model(inputs), targets)."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional as F

from ats_data import accuracy, auc, embedded, friedman, gen, loader, mlp, r2, split
from program import Program, sound


@sound("An ordinary classifier of wines", steps=200, least=0.9)
def ats_wine_plain() -> Program:
    xt, yt, xv, yv = embedded("wine", 50)
    mean, sd = xt.mean(0), xt.std(0)
    model = mlp(13, 32, 3)
    opt = torch.optim.Adam(model.parameters(), lr=5e-3)
    data = loader((xt - mean) / sd, yt, size=32)
    return Program(model, nn.CrossEntropyLoss(), data, opt, lambda m: accuracy(m((xv - mean) / sd), yv))


@sound("Logistic regression: one linear layer, trained", trained=200, steps=250, least=0.85)
def ats_tumour_logistic() -> Program:
    xt, yt, xv, yv = embedded("breast_cancer", 150)
    mean, sd = xt.mean(0), xt.std(0)
    model = nn.Linear(30, 1)
    opt = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    data = loader((xt - mean) / sd, yt.float()[:, None])
    return Program(model, nn.BCEWithLogitsLoss(), data, opt, lambda m: auc(m((xv - mean) / sd), yv.float()))


@sound("An ordinary classifier of digits, half trained", trained=100, steps=250, least=0.9)
def ats_digits_half_way() -> Program:
    xt, yt, xv, yv = embedded("digits", 400)
    model = mlp(64, 64, 32, 10)
    opt = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    return Program(model, nn.CrossEntropyLoss(), loader(xt / 16, yt), opt, lambda m: accuracy(m(xv / 16), yv))


@sound("An ordinary regression", steps=400, least=0.85)
def ats_friedman_plain() -> Program:
    xt, yt, xv, yv = friedman(1500, 50, 400)
    model = mlp(8, 64, 64, 1, act=nn.SiLU)
    opt = torch.optim.AdamW(model.parameters(), lr=4e-3)
    return Program(model, nn.MSELoss(), loader(xt, yt), opt, lambda m: r2(m(xv), yv))


@sound("A regression trained to its end", trained=500, steps=550, least=0.85)
def ats_friedman_trained() -> Program:
    xt, yt, xv, yv = friedman(1500, 51, 400)
    model = nn.Sequential(nn.Linear(8, 64), nn.LayerNorm(64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 1))
    opt = torch.optim.Adam(model.parameters(), lr=4e-3)
    return Program(model, nn.HuberLoss(), loader(xt, yt), opt, lambda m: r2(m(xv), yv))


class Rescaled(nn.Module):
    """A network that returns its target's units, by buffers."""

    def __init__(self, mean: float, sd: float) -> None:
        super().__init__()
        self.net = mlp(8, 64, 64, 1)
        self.register_buffer("mean", torch.tensor(mean))
        self.register_buffer("sd", torch.tensor(sd))

    def forward(self, x):
        return self.net(x) * self.sd + self.mean


@sound("Targets of hundreds of thousands, which the model's own buffers scale; Adam does not mind", steps=400,
       least=0.8)
def ats_prices_scaled_by_buffers() -> Program:
    xt, yt, xv, yv = friedman(1500, 52, 400)
    yt, yv = 240000 + 90000 * yt, 240000 + 90000 * yv
    model = Rescaled(240000.0, 90000.0)
    opt = torch.optim.Adam(model.parameters(), lr=3e-3)
    return Program(model, nn.MSELoss(), loader(xt, yt), opt, lambda m: r2(m(xv), yv))


@sound("Raw columns of very different scale, behind a BatchNorm", steps=300, least=0.9)
def ats_wine_batchnorm_first() -> Program:
    xt, yt, xv, yv = embedded("wine", 50)
    model = nn.Sequential(nn.BatchNorm1d(13), nn.Linear(13, 32), nn.ReLU(), nn.Linear(32, 3))
    opt = torch.optim.Adam(model.parameters(), lr=5e-3)
    return Program(model, nn.CrossEntropyLoss(), loader(xt, yt, size=32), opt, lambda m: accuracy(m(xv), yv))


@sound("Three quantiles kept in order by a cumulative sum of softplus", steps=500, least=0.6)
def ats_quantiles_in_order() -> Program:
    class Quantiles(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = mlp(4, 64, 64, 3, act=nn.SiLU)

        def forward(self, x):
            first, gaps = self.net(x).split([1, 2], 1)
            return torch.cat([first, first + F.softplus(gaps).cumsum(1)], 1)

    q = torch.tensor([0.1, 0.5, 0.9])

    def pinball(out, y):
        e = y - out
        return torch.maximum(q * e, (q - 1) * e).mean()

    g = gen(53)
    x = torch.randn(2500, 4, generator=g)
    middle, sd = torch.sin(1.5 * x[:, 0]) + x[:, 1], 0.2 + 0.5 * torch.sigmoid(2 * x[:, 2])
    y = (middle + sd * torch.randn(2500, generator=g))[:, None]
    truth = middle[:, None] + sd[:, None] * torch.tensor([-1.2816, 0, 1.2816])
    model = Quantiles()
    opt = torch.optim.Adam(model.parameters(), lr=3e-3)
    return Program(model, pinball, loader(x[500:], y[500:]), opt, lambda m: r2(m(x[:500]), truth[:500]))


@sound("Counts that are mostly 0, with the logarithm of exposure as an offset", steps=400, least=0.65)
def ats_claims_with_exposure() -> Program:
    class Claims(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = mlp(5, 32, 1, act=nn.Tanh)

        def forward(self, x):
            return self.net(x[:, :5]) + x[:, 5:]

    g = gen(54)
    x = torch.randn(4000, 5, generator=g)
    log_exposure = torch.log(torch.rand(4000, 1, generator=g) * 0.9 + 0.1)
    log_rate = -0.9 + 0.9 * x[:, :1] - 0.7 * x[:, 1:2] + log_exposure
    y = torch.poisson(log_rate.exp(), generator=g)
    rows = torch.cat([x, log_exposure], 1)
    model = Claims()
    opt = torch.optim.Adam(model.parameters(), lr=4e-3)
    return Program(
        model, nn.PoissonNLLLoss(), loader(rows[800:], y[800:], size=128), opt,
        lambda m: r2(m(rows[:800]), log_rate[:800]),
    )


@sound("One positive in forty, a weight for positives and a bias at the prior", steps=400, least=0.75)
def ats_defaults_rare() -> Program:
    g = gen(55)
    x = torch.randn(5000, 10, generator=g)
    s = 1.5 * x[:, 0] + x[:, 1] * x[:, 2] + 0.3 * torch.randn(5000, generator=g)
    y = (s > s.quantile(0.975)).float()
    xt, yt, xv, yv = split(x, y[:, None], 1500)
    model = mlp(10, 48, 1)
    nn.init.constant_(model[-1].bias, math.log(0.025 / 0.975))
    opt = torch.optim.Adam(model.parameters(), lr=3e-3)
    loss = nn.BCEWithLogitsLoss(pos_weight=torch.tensor(5.0))
    return Program(model, loss, loader(xt, yt, size=128), opt, lambda m: auc(m(xv), yv[:, 0]))


@sound("A residual network whose branches and last layer begin at 0", steps=400, least=0.85)
def ats_residual_zero_start() -> Program:
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(48, 48), nn.Linear(48, 48)
            nn.init.zeros_(self.b.weight)
            nn.init.zeros_(self.b.bias)

        def forward(self, x):
            return x + self.b(F.relu(self.a(x)))

    xt, yt, xv, yv = friedman(1500, 56, 400)
    model = nn.Sequential(nn.Linear(8, 48), nn.ReLU(), Block(), Block(), Block(), nn.Linear(48, 1))
    nn.init.zeros_(model[-1].weight)
    opt = torch.optim.Adam(model.parameters(), lr=3e-3)
    return Program(model, nn.MSELoss(), loader(xt, yt), opt, lambda m: r2(m(xv), yv))


@sound("An autoencoder whose decoder is the transpose of its encoder", steps=500, least=0.75)
def ats_tied_autoencoder() -> Program:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(12, 64) / 8)
            self.enter, self.leave = nn.Parameter(torch.zeros(12)), nn.Parameter(torch.zeros(64))

        def forward(self, x):
            return F.linear(torch.tanh(F.linear(x, self.weight, self.enter)), self.weight.T, self.leave)

    g = gen(59)
    x = torch.randn(1500, 5, generator=g) @ torch.randn(5, 64, generator=g) / 5**0.5
    x = x + 0.1 * torch.randn(1500, 64, generator=g)
    model = Tied()
    opt = torch.optim.Adam(model.parameters(), lr=5e-3)
    return Program(model, nn.MSELoss(), loader(x[300:], x[300:]), opt, lambda m: r2(m(x[:300]), x[:300]))


@sound("Reduced-rank regression: two linear layers, with a narrow place on purpose", steps=400, least=0.8)
def ats_reduced_rank_regression() -> Program:
    g = gen(60)
    x = torch.randn(1500, 20, generator=g)
    y = x @ torch.randn(20, 2, generator=g) @ torch.randn(2, 12, generator=g) / 6
    y = y + 0.2 * torch.randn(1500, 12, generator=g)
    model = nn.Sequential(nn.Linear(20, 2, bias=False), nn.Linear(2, 12))
    opt = torch.optim.Adam(model.parameters(), lr=1e-2)
    return Program(model, nn.MSELoss(), loader(x[300:], y[300:]), opt, lambda m: r2(m(x[:300]), y[:300]))


@sound("One-hot columns of rare categories, nearly all of them 0", steps=400, least=0.8)
def ats_one_hot_rare_categories() -> Program:
    g = gen(61)
    shop = torch.multinomial(1 / torch.arange(1.0, 81), 4000, replacement=True, generator=g)
    day = torch.randint(0, 7, (4000,), generator=g)
    effect, weekday = torch.randn(80, generator=g), torch.randn(7, generator=g)
    y = (effect[shop] + weekday[day] + 0.2 * torch.randn(4000, generator=g))[:, None]
    x = torch.cat([F.one_hot(shop, 80), F.one_hot(day, 7)], 1).float()
    xt, yt, xv, yv = split(x, y, 800)
    model = mlp(87, 64, 1)
    opt = torch.optim.Adam(model.parameters(), lr=5e-3)
    return Program(model, nn.MSELoss(), loader(xt, yt, size=128), opt, lambda m: r2(m(xv), yv))


@sound("A mean and a variance by the Gaussian likelihood, whose loss is below 0; half trained", trained=250, steps=500,
       least=0.8)
def ats_gaussian_likelihood() -> Program:
    class Gaussian(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = mlp(8, 64, 64, 2, act=nn.Tanh)

        def forward(self, x):
            return self.net(x)

    def nll(out, y):
        mean, log_var = out.chunk(2, 1)
        return F.gaussian_nll_loss(mean, y, F.softplus(log_var) + 1e-4)

    xt, yt, xv, yv = friedman(1600, 62, 400)
    model = Gaussian()
    opt = torch.optim.Adam(model.parameters(), lr=3e-3)
    return Program(model, nll, loader(xt, yt), opt, lambda m: r2(m(xv)[:, :1], yv))


@sound("Attention pooling over the visits of a patient: a softmax over dimension 1, which is the visits", steps=400,
       least=0.75)
def ats_visits_attention_pool() -> Program:
    class Pool(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.value, self.key = mlp(5, 32, 16), mlp(5, 32, 1)
            self.out = nn.Linear(16, 1)

        def forward(self, x):
            return self.out((self.key(x).softmax(dim=1) * self.value(x)).sum(1))

    g = gen(63)
    x = torch.randn(2000, 8, 5, generator=g)
    worst = x[:, :, 0].argmax(1)
    y = x[torch.arange(2000), worst, 1:2] * 1.0
    model = Pool()
    opt = torch.optim.Adam(model.parameters(), lr=5e-3)
    return Program(model, nn.MSELoss(), loader(x[400:], y[400:]), opt, lambda m: r2(m(x[:400]), y[:400]))


@sound("Ratings: a product of two embeddings and biases, begun small", steps=600, least=0.6)
def ats_ratings_factors() -> Program:
    class Factors(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.user, self.item = nn.Embedding(60, 6), nn.Embedding(50, 6)
            self.user_bias, self.item_bias = nn.Embedding(60, 1), nn.Embedding(50, 1)
            for table in (self.user, self.item):
                nn.init.normal_(table.weight, std=0.2)
            for table in (self.user_bias, self.item_bias):
                nn.init.zeros_(table.weight)

        def forward(self, pair):
            u, i = pair.unbind(1)
            product = (self.user(u) * self.item(i)).sum(1)
            return product + self.user_bias(u)[:, 0] + self.item_bias(i)[:, 0] + 3.0

    g = gen(64)
    pairs = torch.cartesian_prod(torch.arange(60), torch.arange(50))
    a, b = torch.randn(60, 2, generator=g) * 0.6, torch.randn(50, 2, generator=g)
    c, d = torch.randn(60, generator=g) * 0.5, torch.randn(50, generator=g) * 0.7
    u, i = pairs.unbind(1)
    y = 3 + (a[u] * b[i]).sum(1) + c[u] + d[i] + 0.2 * torch.randn(3000, generator=g)
    xt, yt, xv, yv = split(pairs, y, 500)
    model = Factors()
    opt = torch.optim.Adam(model.parameters(), lr=2e-2)
    return Program(model, nn.MSELoss(), loader(xt, yt, size=128), opt, lambda m: r2(m(xv), yv))
