"""Sound set-ups: graphs, sets, recommenders, retrieval, fine-tuning, series."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from program import Program, sound
from wtg_data import (
    wtg_accuracy,
    wtg_communities,
    wtg_loader,
    wtg_r2,
    wtg_ratings,
    wtg_series,
    wtg_topic_text,
)
from wtg_faults_graph import LoraLinear, Retriever, TopicNet, wtg_pairs, wtg_pretrained


class TwoLayerGCN(nn.Module):
    def __init__(self, adjacency):
        super().__init__()
        a = adjacency + torch.eye(len(adjacency))
        root = a.sum(1).rsqrt()
        self.register_buffer("a", root[:, None] * a * root[None])
        self.conv1, self.conv2 = nn.Linear(16, 32), nn.Linear(32, 4)

    def forward(self, x):
        x = F.dropout(F.relu(self.a @ self.conv1(x)), 0.3, self.training)
        return self.a @ self.conv2(x)


@sound("an ordinary GCN, with a few labelled nodes of one graph", steps=200, least=0.8)
def wtg_plain_gcn():
    x, a, y = wtg_communities(150, noise=2.0)
    model = TwoLayerGCN(a)
    labelled = torch.rand(150) < 0.4
    return Program(
        model,
        lambda out, y: F.cross_entropy(out[labelled], y[labelled]),
        [(x, y)],
        torch.optim.Adam(model.parameters(), lr=1e-2, weight_decay=5e-4),
        lambda net: wtg_accuracy(net(x)[~labelled], y[~labelled]),
    )


class Biased(nn.Module):
    def __init__(self, mean):
        super().__init__()
        self.u, self.v = nn.Embedding(60, 5), nn.Embedding(50, 5)
        self.bu, self.bv = nn.Embedding(60, 1), nn.Embedding(50, 1)
        self.register_buffer("mean", mean)
        for p in (self.u, self.v):
            nn.init.normal_(p.weight, std=0.3)
        for p in (self.bu, self.bv):
            nn.init.zeros_(p.weight)

    def forward(self, user, item):
        dot = (self.u(user) * self.v(item)).sum(-1)
        return self.mean + dot + (self.bu(user) + self.bv(item)).squeeze(-1)


@sound("ordinary matrix factorisation with biases that start at zero", steps=600, least=0.7)
def wtg_biased_factors():
    u, i, r = wtg_ratings(rank=2, n=2700)
    stars = 3.4 + r
    model = Biased(stars[:2400].mean())

    def step(net, batch):
        user, item, star = batch
        return F.mse_loss(net(user, item), star)

    return Program(
        model,
        None,
        wtg_loader(u[:2400], i[:2400], stars[:2400], size=64),
        torch.optim.Adam(model.parameters(), lr=2e-2),
        lambda net: wtg_r2(net(u[2400:], i[2400:]), stars[2400:]),
        step=step,
    )


@sound("an ordinary LSTM that forecasts standardised series; trained", trained=350, steps=400, least=0.8)
def wtg_lstm_forecast():
    past, future = wtg_series(1300, 16)

    class Forecast(nn.Module):
        def __init__(self):
            super().__init__()
            self.lstm = nn.LSTM(1, 32, batch_first=True)
            self.fc = nn.Linear(32, 1)

        def forward(self, x):
            return self.fc(self.lstm(x)[0][:, -1])

    model = Forecast()
    return Program(
        model,
        nn.MSELoss(),
        wtg_loader(past[:1000], future[:1000]),
        torch.optim.Adam(model.parameters(), lr=5e-3),
        lambda net: wtg_r2(net(past[1000:]), future[1000:]),
    )


@sound("two ordinary towers with a contrastive loss over the batch", steps=300, least=0.8)
def wtg_two_towers():
    words, docs = wtg_pairs(1400)
    model = Retriever()

    def step(net, batch):
        q, d = net(*batch)
        sim = q @ d.T / 0.07
        same = torch.arange(len(q))
        return (F.cross_entropy(sim, same) + F.cross_entropy(sim.T, same)) / 2

    def score(net):
        q, d = net(words[1200:1264], docs[1200:1264])
        return wtg_accuracy(q @ d.T, torch.arange(64))

    loader = wtg_loader(words[:1200], docs[:1200], size=48, drop_last=True)
    return Program(model, None, loader, torch.optim.AdamW(model.parameters(), lr=3e-3), score, step=step)


@sound("an ordinary deep set", steps=500, least=0.8)
def wtg_deep_set():
    points = torch.randn(1600, 8, 3) * (0.4 + torch.rand(1600, 1, 1))
    y = points.norm(dim=-1).amax(1)
    y = (y - y.mean()) / y.std()

    class DeepSet(nn.Module):
        def __init__(self):
            super().__init__()
            self.phi = nn.Sequential(nn.Linear(3, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU())
            self.rho = nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 1))

        def forward(self, s):
            return self.rho(self.phi(s).amax(1)).squeeze(1)

    model = DeepSet()
    return Program(
        model,
        nn.MSELoss(),
        wtg_loader(points[:1300], y[:1300]),
        torch.optim.Adam(model.parameters(), lr=3e-3),
        lambda net: wtg_r2(net(points[1300:]), y[1300:]),
    )


@sound("adapters whose second matrix starts at zero, so that the first has no gradient yet", steps=250, least=0.8)
def wtg_adapters():
    x, y = wtg_topic_text(1300, 12)
    model = wtg_pretrained(TopicNet(), x[:500], y[:500])
    for p in model.parameters():
        p.requires_grad_(False)
    model.fc1 = LoraLinear(model.fc1, 4, False)
    model.fc2 = LoraLinear(model.fc2, 4, False)
    new = (3 * y + 1) % 5
    return Program(
        model,
        nn.CrossEntropyLoss(),
        wtg_loader(x[500:1000], new[500:1000]),
        torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2),
        lambda net: wtg_accuracy(net(x[1000:]), new[1000:]),
    )


@sound("a new head that starts at zero, on a body that is frozen on purpose", steps=200, least=0.8)
def wtg_zero_head():
    x, y = wtg_topic_text(1300, 12)
    model = wtg_pretrained(TopicNet(), x[:500], y[:500])
    model.requires_grad_(False)
    model.head = nn.Linear(48, 3)
    nn.init.zeros_(model.head.weight)
    nn.init.zeros_(model.head.bias)
    coarse = torch.tensor([0, 0, 1, 2, 2])[y]
    return Program(
        model,
        F.cross_entropy,
        wtg_loader(x[500:1000], coarse[500:1000]),
        torch.optim.SGD(model.head.parameters(), lr=0.1, momentum=0.9),
        lambda net: wtg_accuracy(net(x[1000:]), coarse[1000:]),
    )


class SageNorm(nn.Module):
    def __init__(self, mean):
        super().__init__()
        self.register_buffer("mean", mean)
        self.own1, self.near1, self.bn1 = nn.Linear(16, 32), nn.Linear(16, 32, bias=False), nn.BatchNorm1d(32)
        self.own2, self.near2 = nn.Linear(32, 4), nn.Linear(32, 4, bias=False)

    def forward(self, x):
        h = F.relu(self.bn1(self.own1(x) + self.near1(self.mean @ x)))
        return self.own2(h) + self.near2(self.mean @ h)


@sound(
    "one graph is the only batch, its nodes see each other, and BatchNorm goes over them; trained",
    trained=150,
    steps=200,
    least=0.8,
)
def wtg_whole_graph():
    x, a, y = wtg_communities(200, noise=1.8)
    model = SageNorm(a / a.sum(1, keepdim=True).clamp(min=1))
    known = torch.rand(200) < 0.5

    def step(net, batch):
        features, labels, mask = batch
        return F.cross_entropy(net(features)[mask], labels[mask])

    return Program(
        model,
        None,
        [(x, y, known)],
        torch.optim.Adam(model.parameters(), lr=5e-3, weight_decay=1e-3),
        lambda net: wtg_accuracy(net(x)[~known], y[~known]),
        step=step,
    )


@sound("counts in the hundreds as targets, of a network that gives the log of their rate", steps=500, least=0.75)
def wtg_counts():
    n = 1500
    hour = torch.rand(n) * 24
    rain = (torch.rand(n) < 0.3).float()
    warm = torch.randn(n)
    rate = 3.5 + 0.9 * torch.sin(hour * 6.283 / 24) - 0.7 * rain + 0.4 * warm * (1 - rain)
    x = torch.stack([torch.sin(hour * 6.283 / 24), torch.cos(hour * 6.283 / 24), rain, warm], 1)
    y = torch.poisson(rate.exp())
    model = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 1), nn.Flatten(0))
    return Program(
        model,
        nn.PoissonNLLLoss(log_input=True),
        wtg_loader(x[:1200], y[:1200]),
        torch.optim.Adam(model.parameters(), lr=2e-3),
        lambda net: wtg_r2(net(x[1200:]), rate[1200:]),
    )
