"""Faults, mostly in programs of the form loss(model(inputs), targets)."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional as F
from torch.optim.lr_scheduler import ExponentialLR

from ats_data import accuracy, auc, embedded, friedman, gen, loader, mlp, r2, split, standard
from program import Program, fault


@fault(
    "Columns of a flat sale (year, square feet, distance in metres, floor) go in raw",
    rules=("unscaled-input", "ill-conditioned-input", "saturated-activation"),
    fails=False,
    steps=400,
)
def ats_flat_sale_raw_columns(is_faulty: bool) -> Program:
    g = gen(1)
    z = torch.randn(1500, 4, generator=g)
    raw = torch.stack([1985 + 15 * z[:, 0], 900 + 250 * z[:, 1], 4000 + 1500 * z[:, 2], 5 + 2 * z[:, 3]], 1)
    y = 0.8 * z[:, 0] * z[:, 3] + torch.sin(1.5 * z[:, 1]) - 0.6 * z[:, 2] + 0.1 * torch.randn(1500, generator=g)
    x = raw if is_faulty else standard(raw)
    xt, yt, xv, yv = split(x, y[:, None], 400)
    model = nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1))
    opt = torch.optim.Adam(model.parameters(), lr=3e-3)
    return Program(model, nn.MSELoss(), loader(xt, yt), opt, lambda m: r2(m(xv), yv))


@fault(
    "The head is replaced for the new task after the optimizer has been made",
    rules=("no-gradient",),
    layers=("head",),
    fails=True,
    steps=250,
)
def ats_head_replaced_after_optimizer(is_faulty: bool) -> Program:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Sequential(nn.Linear(64, 48), nn.ReLU())
            self.head = nn.Linear(48, 2)

        def forward(self, x):
            return self.head(self.body(x))

    xt, yt, xv, yv = embedded("digits", 400)
    model = Net()
    model.body.requires_grad_(False)
    new = nn.Linear(48, 10)
    if is_faulty:
        opt = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
        model.head = new
    else:
        model.head = new
        opt = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
    return Program(model, nn.CrossEntropyLoss(), loader(xt / 16, yt), opt, lambda m: accuracy(m(xv / 16), yv))


@fault(
    "A count model returns rates (softplus), while the Poisson loss takes logarithms of rates",
    rules=("output-loss-mismatch",),
    fails=True,
    steps=400,
)
def ats_claims_rate_as_log_rate(is_faulty: bool) -> Program:
    g = gen(4)
    x = torch.randn(3000, 5, generator=g)
    rate = torch.exp(-1.2 + 0.9 * x[:, 0] - 0.7 * x[:, 1] + 0.4 * x[:, 2] * x[:, 3])
    y = torch.poisson(rate, generator=g)
    xt, yt, xv, rv = x[600:], y[600:, None], x[:600], rate[:600]
    model = nn.Sequential(nn.Linear(5, 32), nn.SiLU(), nn.Linear(32, 32), nn.SiLU(), nn.Linear(32, 1), nn.Softplus())
    opt = torch.optim.Adam(model.parameters(), lr=3e-3)
    loss = nn.PoissonNLLLoss(log_input=is_faulty)
    return Program(
        model, loss, loader(xt, yt, size=128), opt, lambda m: r2((m(xv) + 1e-6).log(), (rv + 1e-6).log())
    )


@fault(
    "Sensor columns scaled to 0..1 are then cast to integers, so that all are 0",
    rules=("constant-feature", "labels-unrelated", "rank-collapse"),
    fails=True,
    steps=250,
)
def ats_imitation_integer_sensors(is_faulty: bool) -> Program:
    g = gen(5)
    low, high = torch.tensor([0.0, -40.0, 200.0, 0.0, 10.0]), torch.tensor([5.0, 40.0, 900.0, 1.0, 70.0])
    u = torch.rand(1500, 5, generator=g) * 0.98
    raw = low + u * (high - low)
    action = (u[:, 0] + u[:, 1] > 1).long() + 2 * (u[:, 2] > u[:, 3]).long()
    x = (raw - low) / (high - low)
    if is_faulty:
        x = x.long().float()
    xt, yt, xv, yv = split(x, action, 400)
    model = mlp(5, 64, 64, 4)
    opt = torch.optim.Adam(model.parameters(), lr=4e-3)
    return Program(model, nn.CrossEntropyLoss(), loader(xt, yt), opt, lambda m: accuracy(m(xv), yv))


@fault(
    "A schedule meant for epochs (factor 0.9) is stepped after every batch",
    rules=("learning-rate-too-low",),
    fails=False,
    steps=500,
)
def ats_auction_schedule_per_batch(is_faulty: bool) -> Program:
    g = gen(6)
    x = torch.randn(2000, 10, generator=g)
    rival = 0.8 * x[:, 0] + x[:, 1] * x[:, 2] + 0.3 * torch.randn(2000, generator=g)
    won = (x[:, 3] > rival).float()
    xt, yt, xv, yv = split(x, won[:, None], 500)
    model = mlp(10, 64, 32, 1)
    opt = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    sched = ExponentialLR(opt, gamma=0.9 if is_faulty else 0.9985)
    return Program(
        model, nn.BCEWithLogitsLoss(), loader(xt, yt), opt, lambda m: auc(m(xv), yv[:, 0]), scheduler=sched
    )


@fault(
    "Rows of a table that is sorted by class, in batches without shuffling",
    rules=("sorted-batches",),
    fails=True,
    steps=300,
)
def ats_digits_sorted_by_label(is_faulty: bool) -> Program:
    xt, yt, xv, yv = embedded("digits", 400)
    order = yt.argsort()
    xt, yt = xt[order] / 16, yt[order]
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    opt = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    data = loader(xt, yt, size=32, shuffle=not is_faulty)
    return Program(model, nn.CrossEntropyLoss(), data, opt, lambda m: accuracy(m(xv / 16), yv))


@fault(
    "All weights of a fingerprint model begin at the same constant",
    rules=("symmetric-initialisation", "bad-initialisation", "rank-collapse"),
    fails=True,
    steps=400,
)
def ats_fingerprint_constant_weights(is_faulty: bool) -> Program:
    g = gen(8)
    bits = (torch.rand(2000, 24, generator=g) < 0.4).float()
    s = 2 * bits - 1
    y = s[:, 0] * s[:, 1] + s[:, 2] * s[:, 3] + s[:, 4] * s[:, 5]
    xt, yt, xv, yv = split(bits, y[:, None] / 1.7, 400)
    model = mlp(24, 96, 96, 1)
    if is_faulty:
        for p in model.parameters():
            nn.init.constant_(p, 0.05)
    opt = torch.optim.Adam(model.parameters(), lr=3e-3)
    return Program(model, nn.MSELoss(), loader(xt, yt), opt, lambda m: r2(m(xv), yv))


@fault(
    "The bias for a rare class (log odds of 1 in 30) goes into every layer, not only the last",
    rules=("dying-neurons", "bad-initialisation", "no-gradient"),
    layers=("0", "2", "1", "3"),
    fails=True,
    steps=400,
)
def ats_fraud_prior_in_every_bias(is_faulty: bool) -> Program:
    g = gen(9)
    x = torch.randn(4000, 8, generator=g)
    y = (x[:, 0] * x[:, 1] + x[:, 2] ** 2 > 4.0).float()
    xt, yt, xv, yv = split(x, y[:, None], 1000)
    model = mlp(8, 48, 48, 1)
    prior = math.log(1 / 29)
    with torch.no_grad():
        for i, m in enumerate(model):
            if isinstance(m, nn.Linear) and (is_faulty or i == 4):
                m.bias.fill_(prior)
    opt = torch.optim.Adam(model.parameters(), lr=2e-3)
    return Program(model, nn.BCEWithLogitsLoss(), loader(xt, yt, size=128), opt, lambda m: auc(m(xv), yv[:, 0]))


@fault("Three linear layers with no activation between them", rules=("no-nonlinearity",), fails=True, steps=400)
def ats_gene_interaction_linear(is_faulty: bool) -> Program:
    class Screen(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc1, self.fc2, self.fc3 = nn.Linear(6, 64), nn.Linear(64, 64), nn.Linear(64, 1)
            self.drop = nn.Dropout(0.05)

        def forward(self, x):
            x = self.drop(self.fc1(x))
            x = x if is_faulty else F.relu(x)
            x = self.fc2(x)
            x = x if is_faulty else F.relu(x)
            return self.fc3(x)

    g = gen(10)
    x = torch.randn(2000, 6, generator=g)
    y = torch.tanh(x[:, 0]) * x[:, 1] + x[:, 2].abs() + 0.2 * x[:, 4]
    xt, yt, xv, yv = split(x, standard(y[:, None]), 400)
    model = Screen()
    opt = torch.optim.Adam(model.parameters(), lr=3e-3)
    return Program(model, nn.MSELoss(), loader(xt, yt), opt, lambda m: r2(m(xv), yv))


@fault("Dropout of 0.95, meant as the share to keep", rules=("dropout-too-strong",), layers=("2", "5"),
       fails=True, steps=400)
def ats_yield_dropout_keep_share(is_faulty: bool) -> Program:
    xt, yt, xv, yv = friedman(1500, 11, 400)
    p = 0.95 if is_faulty else 0.05
    model = nn.Sequential(
        nn.Linear(8, 64), nn.ReLU(), nn.Dropout(p), nn.Linear(64, 64), nn.ReLU(), nn.Dropout(p), nn.Linear(64, 1)
    )
    opt = torch.optim.Adam(model.parameters(), lr=3e-3)
    return Program(model, nn.MSELoss(), loader(xt, yt), opt, lambda m: r2(m(xv), yv))


@fault("Hourly load curves are averaged over time before anything knows the hour", rules=("order-lost",),
       fails=True, steps=400)
def ats_load_curve_without_hours(is_faulty: bool) -> Program:
    class Curve(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.value = nn.Linear(1, 32)
            self.hour = nn.Embedding(24, 32)
            self.mix = nn.Sequential(nn.ReLU(), nn.Linear(32, 48), nn.ReLU())
            self.out = nn.Linear(48, 3)
            if is_faulty:
                self.hour = None

        def forward(self, x):
            h = self.value(x.unsqueeze(-1))
            if self.hour is not None:
                h = h + self.hour.weight
            return self.out(self.mix(h).mean(1))

    g = gen(12)
    kind = torch.randint(0, 3, (1500,), generator=g)
    t = torch.arange(24.0)
    peak = torch.tensor([5.0, 12.0, 19.0])[kind] + torch.randn(1500, generator=g)
    x = 2 * torch.exp(-((t - peak[:, None]) ** 2) / 6) + 0.3 * torch.randn(1500, 24, generator=g)
    xt, yt, xv, yv = split(x, kind, 400)
    model = Curve()
    opt = torch.optim.Adam(model.parameters(), lr=5e-3)
    return Program(model, nn.CrossEntropyLoss(), loader(xt, yt), opt, lambda m: accuracy(m(xv), yv))


@fault(
    "Spending is divided by its maximum and cut to whole numbers, so that every customer is in class 0",
    rules=("constant-target",),
    fails=True,
    steps=300,
)
def ats_customer_tiers_all_zero(is_faulty: bool) -> Program:
    g = gen(13)
    x = torch.randn(1600, 7, generator=g)
    score = x[:, 0] + 0.8 * x[:, 1] * x[:, 2] + 0.5 * x[:, 5]
    rank = score.argsort().argsort().float() / 1600
    xt, yt, xv, yv = split(x, (4 * rank).long(), 400)
    if is_faulty:
        yt = (yt / 4).long()
    model = mlp(7, 64, 64, 4)
    opt = torch.optim.Adam(model.parameters(), lr=4e-3)
    return Program(model, nn.CrossEntropyLoss(), loader(xt, yt), opt, lambda m: accuracy(m(xv), yv))


@fault(
    "Convolutions of a forecast are padded on both sides, so that each step sees the value it is asked for",
    rules=("future-seen",),
    fails=False,
    steps=400,
)
def ats_forecast_centred_convolution(is_faulty: bool) -> Program:
    class Forecast(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Conv1d(1, 32, 5), nn.Conv1d(32, 1, 1)

        def forward(self, x):
            h = F.pad(x.unsqueeze(1), (2, 2) if is_faulty else (4, 0))
            return self.b(F.relu(self.a(h))).squeeze(1)

    g = gen(14)
    t = torch.arange(49.0)
    freq = 0.6 + 0.8 * torch.rand(1200, 1, generator=g)
    phase = 6.3 * torch.rand(1200, 1, generator=g)
    s = torch.sin(freq * t + phase) + 0.05 * torch.randn(1200, 49, generator=g)
    xt, yt, xv, yv = split(s[:, :-1], s[:, 1:], 300)
    model = Forecast()
    opt = torch.optim.Adam(model.parameters(), lr=5e-3)
    return Program(model, nn.MSELoss(), loader(xt, yt, size=32), opt, lambda m: r2(m(xv)[:, -1], yv[:, -1]))


@fault(
    "The mask of a basket is inverted: the padding is pooled, and the items are not",
    rules=("wrong-mask", "labels-unrelated", "rank-collapse"),
    fails=True,
    steps=300,
)
def ats_basket_mask_inverted(is_faulty: bool) -> Program:
    class Basket(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.items = nn.Embedding(40, 16, padding_idx=0)
            self.phi = nn.Sequential(nn.Linear(16, 32), nn.ReLU())
            self.rho = mlp(32, 32, 1)

        def forward(self, ids, padding):
            h = self.phi(self.items(ids))
            hide = ~padding if is_faulty else padding
            return self.rho(h.masked_fill(hide.unsqueeze(-1), 0.0).sum(1) / 4)

    g = gen(15)
    ids = torch.randint(1, 40, (1600, 12), generator=g)
    length = torch.randint(3, 13, (1600, 1), generator=g)
    padding = torch.arange(12) >= length
    price = torch.randn(40, generator=g)
    y = (price[ids] * ~padding).sum(1, keepdim=True) / 2.8
    ids = ids.masked_fill(padding, 0)
    batches = [
        ({"ids": ids[i : i + 64], "padding": padding[i : i + 64]}, y[i : i + 64]) for i in range(0, 1216, 64)
    ]
    model = Basket()
    opt = torch.optim.Adam(model.parameters(), lr=8e-3)
    return Program(model, nn.MSELoss(), batches, opt, lambda m: r2(m(ids[1216:], padding[1216:]), y[1216:]))


@fault(
    "Mixture weights are a softmax over the batch instead of over the components",
    rules=("wrong-softmax-dimension", "mixed-examples"),
    fails=True,
    steps=400,
)
def ats_mixture_weights_over_batch(is_faulty: bool) -> Program:
    class Mixture(nn.Module):
        def __init__(self, k: int = 4) -> None:
            super().__init__()
            self.trunk = nn.Sequential(nn.Linear(3, 48), nn.Tanh(), nn.Linear(48, 48), nn.Tanh())
            self.weight, self.mean, self.log_sd = nn.Linear(48, k), nn.Linear(48, k), nn.Linear(48, k)

        def forward(self, x):
            h = self.trunk(x)
            pi = torch.softmax(self.weight(h), dim=0 if is_faulty else -1)
            return pi, self.mean(h), self.log_sd(h).clamp(-4, 3)

    def nll(out, y):
        pi, mean, log_sd = out
        log_p = -0.5 * ((y - mean) / log_sd.exp()) ** 2 - log_sd
        return -torch.logsumexp(torch.log(pi + 1e-9) + log_p, 1).mean()

    g = gen(16)
    x = torch.randn(1600, 3, generator=g)
    y = torch.where(x[:, 0] > 0, 1.5 + torch.sin(2 * x[:, 1]), -1.5 + 0.5 * x[:, 2])
    y = y + 0.15 * torch.randn(1600, generator=g)
    xt, yt, xv, yv = split(x, y[:, None], 400)

    def score(m):
        pi, mean, _ = m(xv)
        return r2((pi * mean).sum(1), yv)

    model = Mixture()
    opt = torch.optim.Adam(model.parameters(), lr=4e-3)
    return Program(model, nll, loader(xt, yt), opt, score)


@fault(
    "BatchNorm with a momentum of 0.001 on raw vital signs, so that its running statistics never arrive",
    rules=("batchnorm-mode-gap",),
    layers=("norm",),
    fails=True,
    steps=250,
)
def ats_vital_signs_slow_statistics(is_faulty: bool) -> Program:
    class Vitals(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.BatchNorm1d(5, momentum=0.001 if is_faulty else 0.1)
            self.net = mlp(5, 48, 3)

        def forward(self, x):
            return self.net(self.norm(x))

    g = gen(17)
    z = torch.randn(1500, 5, generator=g)
    x = torch.tensor([80.0, 120.0, 37.0, 16.0, 97.0]) + z * torch.tensor([12.0, 15.0, 0.6, 3.0, 1.5])
    y = (z[:, 0] + z[:, 1] > 0.7).long() + (z[:, 3] - z[:, 4] > 0).long()
    xt, yt, xv, yv = split(x, y, 400)
    model = Vitals()
    opt = torch.optim.Adam(model.parameters(), lr=5e-3)
    return Program(model, nn.CrossEntropyLoss(), loader(xt, yt), opt, lambda m: accuracy(m(xv), yv))
