"""Recommenders, ranking, survival, siamese networks."""

from __future__ import annotations

import torch
from program import Program, fault
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset


def ratings(n: int, seed: int, users: int = 100, items: int = 80, rank: int = 4):
    g = torch.Generator().manual_seed(3000)
    p, q = torch.randn(users, rank, generator=g), torch.randn(items, rank, generator=g)
    g = torch.Generator().manual_seed(3001 + seed)
    pairs = torch.stack([torch.randint(0, users, (n,), generator=g), torch.randint(0, items, (n,), generator=g)], 1)
    value = (p[pairs[:, 0]] * q[pairs[:, 1]]).sum(1) / 2 + 0.1 * torch.randn(n, generator=g)
    return pairs, value


def explained(x, y):
    return lambda m: max(0.0, 1 - ((m(x) - y) ** 2).mean().item() / y.var().item())


def concordance(risk, better):
    """How often the higher of two values has the higher score, 0 at chance."""
    a, b = torch.triu_indices(len(risk), len(risk), 1)
    keep = better[a] != better[b]
    a, b = a[keep], b[keep]
    same = (risk[a] > risk[b]) == (better[a] > better[b])
    tie = risk[a] == risk[b]
    return max(0.0, 2 * torch.where(tie, 0.5, same.float()).mean().item() - 1)


class Factors(nn.Module):
    def __init__(self, users=100, items=80, rank=8, sparse=False):
        super().__init__()
        self.user = nn.Embedding(users, rank, sparse=sparse)
        self.item = nn.Embedding(items, rank, sparse=sparse)

    def forward(self, pairs):
        return (self.user(pairs[:, 0]) * self.item(pairs[:, 1])).sum(1)


def faces(n: int, seed: int, people: int = 12):
    g = torch.Generator().manual_seed(33)
    centres = torch.randn(people, 20, generator=g)
    mix = torch.randn(20, 20, generator=g) / 4
    g = torch.Generator().manual_seed(3300 + seed)
    who = torch.randint(0, people, (n,), generator=g)
    raw = centres[who] + 0.9 * torch.randn(n, 20, generator=g)
    return torch.tanh(raw @ mix) + 0.3 * torch.randn(n, 20, generator=g), who


def nearest(seed):
    x, who = faces(600, seed)

    def score(model):
        z = model(x)
        d = torch.cdist(z, z)
        d.fill_diagonal_(float("inf"))
        return ((who[d.argmin(1)] == who).float().mean().item() - 1 / 12) * 12 / 11

    return score


def face_net():
    return nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 8))


@fault(
    "both embedding tables filled with 0.1: all factors stay alike",
    rules=["symmetric-initialisation", "bad-initialisation", "rank-collapse"],
    layers=["user", "item"],
    fails=False,
    steps=500,
)
def factors_alike(is_faulty):
    pairs, value = ratings(6000, 0)
    model = Factors()
    for table in (model.user, model.item):
        if is_faulty:
            nn.init.constant_(table.weight, 0.1)
        else:
            nn.init.normal_(table.weight, 0, 0.1)
    loader = DataLoader(TensorDataset(pairs, value), batch_size=128, shuffle=True)
    optimizer = torch.optim.Adam(model.parameters(), 2e-2)
    return Program(model, nn.MSELoss(), loader, optimizer, explained(*ratings(1000, 1)))


@fault(
    "a weight decay meant for AdamW given to Adam, whose normalised steps it fills",
    rules=["weight-decay-dominates"],
    fails=True,
    steps=500,
)
def decay_of_adamw_in_adam(is_faulty):
    pairs, value = ratings(6000, 2)
    model = Factors()
    nn.init.normal_(model.user.weight, 0, 0.2)
    nn.init.normal_(model.item.weight, 0, 0.2)
    loader = DataLoader(TensorDataset(pairs, value), batch_size=128, shuffle=True)
    kind = torch.optim.Adam if is_faulty else torch.optim.AdamW
    optimizer = kind(model.parameters(), 1e-2, weight_decay=0.1)
    return Program(model, nn.MSELoss(), loader, optimizer, explained(*ratings(1000, 3)))


@fault(
    "Cox's partial likelihood over the subjects who have left instead of those still at risk",
    rules=["output-loss-mismatch"],
    fails=True,
    steps=250,
)
def risk_set_reversed(is_faulty):
    g = torch.Generator().manual_seed(32)
    x = torch.randn(3000, 6, generator=g)
    log_risk = 1.2 * x[:, 0] + x[:, 1] * x[:, 2]
    time = -torch.rand(3000, generator=g).log() * torch.exp(-log_risk)
    censored = torch.rand(3000, generator=g) < 0.25
    model = nn.Sequential(nn.Linear(6, 48), nn.SELU(), nn.Linear(48, 48), nn.SELU(), nn.Linear(48, 1), nn.Flatten(0))

    def cox(risk, target):
        order = target[:, 0].argsort(descending=not is_faulty)
        risk, event = risk[order], target[order, 1]
        return -((risk - risk.logcumsumexp(0)) * event).sum() / event.sum()

    target = torch.stack([time, (~censored).float()], 1)
    loader = DataLoader(TensorDataset(x[:2400], target[:2400]), batch_size=100, shuffle=True)
    optimizer = torch.optim.Adam(model.parameters(), 2e-3)
    return Program(model, cox, loader, optimizer, lambda m: concordance(m(x[2400:]), log_risk[2400:]))


@fault(
    "a Euclidean distance by sqrt; some pairs hold one picture twice, where its slope is infinite",
    rules=["non-finite"],
    fails=True,
    steps=400,
)
def distance_zero(is_faulty):
    x, who = faces(2000, 0)
    g = torch.Generator().manual_seed(34)
    i = torch.randint(0, 2000, (12000,), generator=g)
    j = torch.randint(0, 2000, (12000,), generator=g)
    same = torch.rand(12000, generator=g) < 0.5
    by_person = [torch.nonzero(who == k).flatten() for k in range(12)]
    for n in torch.nonzero(same).flatten().tolist():
        mates = by_person[who[i[n]]]
        j[n] = mates[j[n] % len(mates)]
    pairs = torch.stack([x[i], x[j]], 1)
    model = face_net()

    def contrastive(z, is_same):
        squared = (z[:, 0] - z[:, 1]).square().sum(1)
        d = squared.sqrt() if is_faulty else (squared + 1e-9).sqrt()
        return (is_same * d**2 + (1 - is_same) * F.relu(2 - d) ** 2).mean()

    loader = DataLoader(TensorDataset(pairs, (who[i] == who[j]).float()), batch_size=64, shuffle=True)
    return Program(model, contrastive, loader, torch.optim.Adam(model.parameters(), 3e-3), nearest(1))


@fault(
    "pairs of the same person only: everybody is drawn to one point",
    rules=["rank-collapse", "constant-target"],
    fails=True,
    steps=400,
)
def nothing_pushes_apart(is_faulty):
    x, who = faces(2000, 2)
    g = torch.Generator().manual_seed(35)
    order = who.argsort()
    x, who = x[order], who[order]
    i = torch.randint(0, 2000, (8000,), generator=g)
    j = torch.empty_like(i)
    for k in range(12):
        rows = torch.nonzero(who == k).flatten()
        mine = who[i] == k
        j[mine] = rows[torch.randint(0, len(rows), (int(mine.sum()),), generator=g)]
    other = torch.randint(0, 2000, (8000,), generator=g)
    same = torch.ones(8000, dtype=torch.bool) if is_faulty else torch.rand(8000, generator=g) < 0.5
    j = torch.where(same, j, other)
    same = (who[i] == who[j]).float()

    def loss(z, is_same):
        d = (z[:, 0] - z[:, 1]).square().sum(1)
        return (is_same * d + (1 - is_same) * F.relu(2 - (d + 1e-6).sqrt()) ** 2).mean()

    model = face_net()
    loader = DataLoader(TensorDataset(torch.stack([x[i], x[j]], 1), same), batch_size=64, shuffle=True)
    return Program(model, loss, loader, torch.optim.Adam(model.parameters(), 5e-3), nearest(3))
