"""Faults: retrieval, contrastive learning and recommenders."""

import torch
import torch.nn.functional as F
from program import Program, fault
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from xtg_data import accuracy, loader, r2


class Towers(nn.Module):
    def __init__(self):
        super().__init__()
        self.query = nn.Sequential(nn.Linear(20, 48), nn.ReLU(), nn.Linear(48, 16))
        self.document = nn.Sequential(nn.Linear(30, 48), nn.ReLU(), nn.Linear(48, 16))

    def forward(self, q, d):
        return F.normalize(self.query(q), dim=-1) @ F.normalize(self.document(d), dim=-1).T


class Zipped:
    """Two loaders side by side."""

    def __init__(self, *loaders):
        self.loaders = loaders

    def __iter__(self):
        return zip(*self.loaders)

    def __len__(self):
        return min(len(one) for one in self.loaders)


def info_nce(model, batch):
    q, d = batch
    similarity = model(q, d) / 0.1
    target = torch.arange(len(q))
    return (F.cross_entropy(similarity, target) + F.cross_entropy(similarity.T, target)) / 2


@fault(
    "queries and documents come from two loaders, each of which shuffles for itself",
    rules=["labels-unrelated", "loss-not-decreasing", "output-loss-mismatch"],
    fails=True,
    steps=300,
)
def xtg_shuffled_apart(is_faulty):
    z = torch.randn(1100, 6)
    q = z @ torch.randn(6, 20) + 0.2 * torch.randn(1100, 20)
    d = torch.tanh(z @ torch.randn(6, 30)) + 0.1 * torch.randn(1100, 30)
    if is_faulty:
        batches = Zipped(
            DataLoader(q[:1000], batch_size=32, shuffle=True), DataLoader(d[:1000], batch_size=32, shuffle=True)
        )
    else:
        batches = DataLoader(TensorDataset(q[:1000], d[:1000]), batch_size=32, shuffle=True)
    model = Towers()
    return Program(
        model,
        None,
        batches,
        torch.optim.Adam(model.parameters(), lr=3e-3),
        lambda m: accuracy(m(q[1000:], d[1000:]), torch.arange(100)),
        step=info_nce,
    )


class Factors(nn.Module):
    def __init__(self, users=60, items=50, d=8):
        super().__init__()
        self.user, self.item = nn.Embedding(users, d), nn.Embedding(items, d)
        self.user_bias, self.item_bias = nn.Embedding(users, 1), nn.Embedding(items, 1)
        for table in (self.user, self.item, self.user_bias, self.item_bias):
            nn.init.normal_(table.weight, std=0.3)

    def forward(self, pairs):
        u, i = pairs.unbind(-1)
        dot = (self.user(u) * self.item(i)).sum(-1)
        return dot + self.user_bias(u).squeeze(-1) + self.item_bias(i).squeeze(-1)


def ratings(n, users=60, items=50):
    pairs = torch.stack([torch.randint(users, (n,)), torch.randint(items, (n,))], 1)
    p, q = torch.randn(users, 3), torch.randn(items, 3)
    r = (p[pairs[:, 0]] * q[pairs[:, 1]]).sum(1) + 0.2 * torch.randn(n)
    return pairs, r / r.std()


@fault(
    "Adam with weight_decay=0.1 for factors and biases, of which a batch touches few",
    rules=["weight-decay-dominates"],
    fails=True,
    steps=600,
)
def xtg_decayed_factors(is_faulty):
    pairs, r = ratings(2600)
    model = Factors()
    return Program(
        model,
        nn.MSELoss(),
        loader(pairs[:2200], r[:2200], size=64),
        torch.optim.Adam(model.parameters(), lr=1e-2, weight_decay=0.1 if is_faulty else 1e-5),
        lambda m: r2(m(pairs[2200:]), r[2200:]),
    )


class History(nn.Module):
    """What comes next, from the items that a user has seen."""

    def __init__(self, safe):
        super().__init__()
        self.item = nn.Embedding(41, 24, padding_idx=0)
        self.query = nn.Parameter(torch.randn(24) / 5)
        self.next = nn.Linear(24, 4)
        self.safe = safe

    def forward(self, seen):
        e = self.item(seen)
        empty = seen == 0
        if self.safe:
            empty = empty & ~empty.all(1, keepdim=True)
        weight = (e @ self.query).masked_fill(empty, float("-inf")).softmax(-1)
        return self.next((weight[..., None] * e).sum(1))


@fault(
    "users without a history: every place is masked with minus infinity, and the softmax is NaN",
    rules=["non-finite", "wrong-mask"],
    fails=True,
    steps=300,
)
def xtg_users_without_history(is_faulty):
    n = 1000
    y = torch.randint(4, (n,))
    seen = torch.randint(1, 41, (n, 8))
    typical = 1 + 4 * torch.randint(10, (n, 8)) + y[:, None]
    seen = torch.where(torch.rand(n, 8) < 0.7, typical, seen)
    count = torch.randint(2, 9, (n,))
    count[torch.rand(n) < 0.03] = 0
    count[:3] = 0
    seen[torch.arange(8) >= count[:, None]] = 0
    model = History(not is_faulty)
    return Program(
        model,
        nn.CrossEntropyLoss(),
        loader(seen[:800], y[:800]),
        torch.optim.Adam(model.parameters(), lr=1e-2),
        lambda m: accuracy(m(seen[800:]).nan_to_num(), y[800:]),
    )


@fault(
    "the pairwise loss of a ranking is given with the wrong sign: what was bought is to come last",
    rules=["output-loss-mismatch"],
    fails=True,
    steps=500,
)
def xtg_ranking_upside_down(is_faulty):
    p, q = torch.randn(60, 3), torch.randn(50, 3)
    n = 3000
    user, a, b = torch.randint(60, (n,)), torch.randint(50, (n,)), torch.randint(50, (n,))
    liked = (p[user] * (q[a] - q[b])).sum(1) > 0
    better, worse = torch.where(liked, a, b), torch.where(liked, b, a)
    model = Factors()

    def step(m, batch):
        u, i, j = batch
        margin = m(torch.stack([u, i], 1)) - m(torch.stack([u, j], 1))
        return -F.logsigmoid(-margin if is_faulty else margin).mean()

    def score(m):
        u, i, j = user[2600:], better[2600:], worse[2600:]
        return (m(torch.stack([u, i], 1)) > m(torch.stack([u, j], 1))).float().mean().item()

    return Program(
        model,
        None,
        loader(user[:2600], better[:2600], worse[:2600], size=64),
        torch.optim.Adam(model.parameters(), lr=2e-2),
        score,
        step=step,
    )
