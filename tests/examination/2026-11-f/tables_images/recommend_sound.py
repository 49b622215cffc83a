"""Recommenders, ranking, survival, siamese networks: sound set-ups."""

from __future__ import annotations

import torch
from recommend_and_rank import Factors, concordance, explained, face_net, faces, nearest, ratings
from program import Program, sound
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset


@sound("sparse gradients, tables that start near zero, a rate of 0.05", steps=400, least=0.8)
def sparse_factors():
    pairs, value = ratings(6000, 10)
    model = Factors(sparse=True)
    nn.init.normal_(model.user.weight, 0, 0.03)
    nn.init.normal_(model.item.weight, 0, 0.03)
    loader = DataLoader(TensorDataset(pairs, value), batch_size=128, shuffle=True)
    optimizer = torch.optim.SparseAdam(list(model.parameters()), 5e-2)
    return Program(model, nn.MSELoss(), loader, optimizer, explained(*ratings(1000, 11)))


@sound("Adagrad at 0.5 on embeddings, of which most rows are not in a batch", steps=300, least=0.75)
def adagrad_ratings():
    pairs, value = ratings(6000, 12)

    class Biased(Factors):
        def __init__(self):
            super().__init__(rank=6)
            self.user_bias = nn.Embedding(100, 1)
            self.item_bias = nn.Embedding(80, 1)
            for p in self.parameters():
                nn.init.uniform_(p, -0.3, 0.3)
            nn.init.zeros_(self.user_bias.weight)
            nn.init.zeros_(self.item_bias.weight)

        def forward(self, pairs):
            return super().forward(pairs) + self.user_bias(pairs[:, 0])[:, 0] + self.item_bias(pairs[:, 1])[:, 0]

    model = Biased()
    loader = DataLoader(TensorDataset(pairs, value), batch_size=64, shuffle=True)
    return Program(model, nn.MSELoss(), loader, torch.optim.Adagrad(model.parameters(), 0.5), explained(*ratings(1000, 13)))


@sound("two towers and a softmax over the others of the batch, at a temperature of 0.1", steps=300, least=0.65)
def in_batch_negatives():
    g = torch.Generator().manual_seed(36)
    taste = torch.randn(3000, 5, generator=g)
    query = torch.tanh(taste @ torch.randn(5, 16, generator=g)) + 0.1 * torch.randn(3000, 16, generator=g)
    item = torch.sin(taste @ torch.randn(5, 16, generator=g) / 2) + 0.1 * torch.randn(3000, 16, generator=g)

    class Towers(nn.Module):
        def __init__(self):
            super().__init__()
            self.query = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 16))
            self.item = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 16))

        def forward(self, query, item):
            return F.normalize(self.query(query), dim=1), F.normalize(self.item(item), dim=1)

    model = Towers()

    def step(model, batch):
        q, i = model(*batch)
        return F.cross_entropy(q @ i.T / 0.1, torch.arange(len(q)))

    loader = DataLoader(TensorDataset(query[:2500], item[:2500]), batch_size=64, shuffle=True, drop_last=True)

    def score(m):
        hits = 0
        for k in range(2500, 3000, 50):
            q, i = m(query[k : k + 50], item[k : k + 50])
            hits += ((q @ i.T).argmax(1) == torch.arange(50)).sum().item()
        return hits / 500

    return Program(model, None, loader, torch.optim.Adam(model.parameters(), 3e-3), score, step=step)


@sound("triplets with a margin; most have a loss of exactly zero later on", trained=200, steps=400, least=0.6)
def triplets():
    x, who = faces(2000, 4)
    g = torch.Generator().manual_seed(37)
    rows = [torch.nonzero(who == k).flatten() for k in range(12)]
    a = torch.randint(0, 2000, (6000,), generator=g)
    p = torch.stack([rows[who[n]][torch.randint(0, len(rows[who[n]]), (), generator=g)] for n in a])
    n = torch.randint(0, 2000, (6000,), generator=g)
    keep = who[a] != who[n]
    data = torch.stack([x[a], x[p], x[n]], 1)[keep]

    class Embed(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = face_net()

        def forward(self, x):
            return F.normalize(self.body(x), dim=-1)

    model = Embed()
    loader = DataLoader(TensorDataset(data), batch_size=64, shuffle=True)

    def step(model, batch):
        z = model(batch[0])
        return F.triplet_margin_loss(z[:, 0], z[:, 1], z[:, 2], margin=0.3)

    return Program(model, None, loader, torch.optim.Adam(model.parameters(), 3e-3), nearest(5), step=step)


@sound("a survival model: a loss that couples the examples of a batch, three quarters censored", steps=300, least=0.6)
def censored_survival():
    g = torch.Generator().manual_seed(38)
    x = torch.randn(3000, 6, generator=g)
    log_risk = 1.5 * x[:, 0] + x[:, 1] * x[:, 2]
    time = -torch.rand(3000, generator=g).log() * torch.exp(-log_risk)
    event = (torch.rand(3000, generator=g) < 0.3).float()
    model = nn.Sequential(nn.Linear(6, 48), nn.Tanh(), nn.Linear(48, 1, bias=False), nn.Flatten(0))

    def cox(risk, target):
        order = target[:, 0].argsort(descending=True)
        risk, happened = risk[order], target[order, 1]
        return -((risk - risk.logcumsumexp(0)) * happened).sum() / happened.sum().clamp(min=1)

    loader = DataLoader(TensorDataset(x[:2400], torch.stack([time, event], 1)[:2400]), batch_size=128, shuffle=True)
    optimizer = torch.optim.Adam(model.parameters(), 5e-3)
    return Program(model, cox, loader, optimizer, lambda m: concordance(m(x[2400:]), log_risk[2400:]))


@sound("a fresh network that ranks pairs, one tower for both sides", steps=250, least=0.6)
def pairwise_ranking():
    g = torch.Generator().manual_seed(39)
    x = torch.randn(1200, 8, generator=g)
    worth = x[:, 0] * x[:, 1] + x[:, 2]
    i, j = torch.randint(0, 900, (2, 5000), generator=g)

    class Pair(nn.Module):
        def __init__(self):
            super().__init__()
            self.tower = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 1))

        def forward(self, left, right):
            return (self.tower(left) - self.tower(right))[:, 0]

    model = Pair()
    batches = [
        ({"left": x[i[k : k + 50]], "right": x[j[k : k + 50]]}, (worth[i[k : k + 50]] > worth[j[k : k + 50]]).float())
        for k in range(0, 5000, 50)
    ]
    optimizer = torch.optim.RMSprop(model.parameters(), 1e-3)
    return Program(
        model, nn.BCEWithLogitsLoss(), batches, optimizer, lambda m: concordance(m.tower(x[900:])[:, 0], worth[900:])
    )
