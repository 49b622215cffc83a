"""Faults: time series, speech-like sequences, recurrent networks."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader

from program import Program, fault
from wtg_data import wtg_accuracy, wtg_loader, wtg_r2


class Smoother(nn.Module):
    def __init__(self):
        super().__init__()
        self.gru = nn.GRU(2, 24, batch_first=True)
        self.head = nn.Linear(24, 1)

    def forward(self, x):
        return self.head(self.gru(x)[0]).squeeze(-1)


@fault(
    "targets of short series are filled up with zeros, and the loss averages over those too",
    rules=["padding-in-loss"],
    fails=False,
    steps=400,
)
def wtg_zeros_after_the_end(is_faulty):
    n, length = 900, 20
    x = torch.randn(n, length, 2).cumsum(1) * 0.3
    lengths = torch.randint(4, length + 1, (n,))
    y = 2 + x[..., 0] + 0.5 * x[..., 1]
    real = torch.arange(length)[None] < lengths[:, None]
    # recorders repeat shuffled readings after the end of a series; its targets are zero there
    x = torch.where(real[..., None], x, x[torch.randperm(n)])
    y = y * real
    model = Smoother()

    def step(net, batch):
        inputs, target, valid = batch
        error = (net(inputs) - target) ** 2
        return error.mean() if is_faulty else (error * valid).sum() / valid.sum()

    def score(net):
        return wtg_r2(net(x[700:])[real[700:]], y[700:][real[700:]])

    loader = wtg_loader(x[:700], y[:700], real[:700].float())
    return Program(model, None, loader, torch.optim.Adam(model.parameters(), lr=5e-3), score, step=step)


class WeatherGRU(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.GRU(3, 24, batch_first=True)
        self.fc = nn.Linear(24, 1)

    def forward(self, x):
        states, _ = self.rnn(x)
        return self.fc(states[:, -1])[:, 0]


@fault(
    "air pressure in pascals and wind in m/s go into a GRU as they are",
    rules=["unscaled-input", "saturated-activation", "ill-conditioned-input"],
    layers=["rnn"],
    fails=True,
    steps=500,
)
def wtg_pascals(is_faulty):
    z = torch.randn(1300, 12, 3).cumsum(1) / 2
    y = (z[:, -1, 0] - z[:, -4, 0]) + 0.7 * z[:, -1, 1] * 0.5 - 0.4 * z[:, -1, 2]
    y = (y - y.mean()) / y.std()
    raw = z * torch.tensor([600.0, 80.0, 40.0]) + torch.tensor([101325.0, 300.0, 150.0])
    x = raw if is_faulty else (raw - raw.mean((0, 1))) / raw.std((0, 1))
    model = WeatherGRU()
    return Program(
        model,
        F.mse_loss,
        wtg_loader(x[:1000], y[:1000]),
        torch.optim.Adam(model.parameters(), lr=5e-3),
        lambda net: wtg_r2(net(x[1000:]), y[1000:]),
    )


class Remember(nn.Module):
    def __init__(self, std):
        super().__init__()
        self.embedding = nn.Embedding(6, 16)
        self.rnn = nn.RNN(16, 32, batch_first=True)
        self.fc = nn.Linear(32, 4)
        if std is None:
            nn.init.orthogonal_(self.rnn.weight_hh_l0)
        else:
            nn.init.normal_(self.rnn.weight_hh_l0, std=std)

    def forward(self, ids):
        return self.fc(self.rnn(self.embedding(ids))[0][:, -1])


@fault(
    "all weights of an RNN that has to remember start at N(0, 0.02)",
    rules=["vanishing-gradient", "bad-initialisation"],
    layers=["rnn"],
    fails=True,
    steps=400,
)
def wtg_forgetful_rnn(is_faulty):
    n, length = 1500, 24
    ids = torch.randint(4, 6, (n, length))
    y = torch.randint(0, 4, (n,))
    ids[:, 0] = y
    model = Remember(0.02 if is_faulty else None)
    return Program(
        model,
        nn.CrossEntropyLoss(),
        wtg_loader(ids[:1200], y[:1200]),
        torch.optim.Adam(model.parameters(), lr=1e-3),
        lambda net: wtg_accuracy(net(ids[1200:]), y[1200:]),
    )


class TwoTasks(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Conv1d(2, 24, 3, padding=1), nn.ReLU(), nn.Conv1d(24, 24, 3, padding=1), nn.ReLU())
        self.trend = nn.Linear(24, 3)
        self.price = nn.Linear(24, 1)

    def forward(self, x):
        h = self.body(x).mean(-1)
        return {"trend": self.trend(h), "price": self.price(h).squeeze(-1)}


@fault(
    "a classification and a price in cents share a body, and their losses are added as they are",
    rules=["term-dominates", "unscaled-target"],
    fails=True,
    steps=300,
)
def wtg_price_in_cents(is_faulty):
    n = 1400
    x = torch.randn(n, 2, 16)
    slope = torch.randint(0, 3, (n,))
    x[:, 0] += (slope - 1.0)[:, None] * (torch.arange(16) % 4 == 0) * 2.0
    cents = 4000 * torch.randn(n)
    x[:, 1] += cents[:, None] / 4000
    y = {"trend": slope, "price": cents if is_faulty else cents / 4000}
    model = TwoTasks()
    rows = [(x[i], {k: v[i] for k, v in y.items()}) for i in range(1000)]

    def loss(out, target):
        return F.cross_entropy(out["trend"], target["trend"]) + F.mse_loss(out["price"], target["price"])

    return Program(
        model,
        loss,
        DataLoader(rows, batch_size=32, shuffle=True),
        torch.optim.AdamW(model.parameters(), lr=1e-3),
        lambda net: wtg_accuracy(net(x[1000:])["trend"], slope[1000:]),
    )
