"""Graphs, sets, series, retrieval and recommenders with nothing wrong."""

import torch
import torch.nn.functional as F
from program import Program, sound
from torch import nn
from torch.utils.data import DataLoader
from vtg_data import DictRows, accuracy, blocks, normalised, r2, topics, views, vtg_loader, waves


class Gcn(nn.Module):
    def __init__(self, a_hat):
        super().__init__()
        self.register_buffer("a_hat", a_hat)
        self.w1, self.w2 = nn.Linear(16, 32), nn.Linear(32, 4)
        self.drop = nn.Dropout(0.3)

    def forward(self, x):
        h = F.relu(self.a_hat @ self.w1(x))
        return self.a_hat @ self.w2(self.drop(h))


@sound("ordinary: a GCN on the nodes of one graph, trained for a while", trained=80, steps=200, least=0.8)
def vtg_gcn_of_one_graph():
    y, a = blocks(160, 4, p_in=0.12, p_out=0.015)
    x = 0.7 * torch.randn(4, 16)[y] + torch.randn(160, 16)
    train = torch.rand(160) < 0.4
    model = Gcn(normalised(a))
    return Program(
        model=model,
        loss=lambda out, target: F.cross_entropy(out[train], target[train]),
        batches=[(x, y)],
        optimizer=torch.optim.Adam(model.parameters(), lr=1e-2, weight_decay=5e-4),
        score=lambda m: accuracy(m(x)[~train], y[~train]),
    )


class Forecaster(nn.Module):
    def __init__(self):
        super().__init__()
        self.gru = nn.GRU(1, 32, batch_first=True)
        self.out = nn.Linear(32, 3)

    def forward(self, x):
        return self.out(self.gru(x[..., None])[1][-1])


@sound("ordinary: a trained GRU forecasts three steps", trained=450, steps=450, least=0.85)
def vtg_gru_three_steps():
    w = waves(2560, 19)
    x, y = w[:, :16], w[:, 16:]
    model = Forecaster()
    return Program(
        model=model,
        loss=nn.MSELoss(),
        batches=vtg_loader(x[:2048], y[:2048], batch=64),
        optimizer=torch.optim.Adam(model.parameters(), lr=5e-3),
        score=lambda m: r2(m(x[2048:]), y[2048:]),
    )


class Mf(nn.Module):
    def __init__(self, users, items):
        super().__init__()
        self.p, self.q = nn.Embedding(users, 6), nn.Embedding(items, 6)
        self.bu, self.bi = nn.Embedding(users, 1), nn.Embedding(items, 1)
        self.mean = nn.Parameter(torch.tensor(0.0))
        for table in (self.p, self.q):
            nn.init.normal_(table.weight, std=0.3)
        for table in (self.bu, self.bi):
            nn.init.zeros_(table.weight)

    def forward(self, user, item):
        own = self.bu(user).squeeze(1) + self.bi(item).squeeze(1)
        return self.mean + own + (self.p(user) * self.q(item)).sum(1)


@sound("ordinary: factors and biases of a recommender, with nothing nonlinear between", steps=600, least=0.7)
def vtg_factors_and_biases():
    p, q = torch.randn(60, 2), torch.randn(50, 2)
    user, item = torch.randint(60, (5632,)), torch.randint(50, (5632,))
    y = (p[user] * q[item]).sum(1) + 0.5 * torch.randn(60)[user] + 0.5 * torch.randn(50)[item]
    y = (y - y.mean()) / y.std() + 0.1 * torch.randn(5632)
    xt = {"user": user[5120:], "item": item[5120:]}
    model = Mf(60, 50)
    return Program(
        model=model,
        loss=nn.MSELoss(),
        batches=DataLoader(DictRows({"user": user[:5120], "item": item[:5120]}, y[:5120]), 128, shuffle=True),
        optimizer=torch.optim.Adam(model.parameters(), lr=1e-2),
        score=lambda m: r2(m(**xt), y[5120:]),
    )


class Pairs(nn.Module):
    def __init__(self):
        super().__init__()
        self.text = nn.Sequential(nn.Linear(20, 64), nn.GELU(), nn.Linear(64, 16))
        self.image = nn.Sequential(nn.Linear(24, 64), nn.GELU(), nn.Linear(64, 16))
        self.logit_scale = nn.Parameter(torch.tensor(1 / 0.07).log())

    def forward(self, inputs):
        a, b = inputs.split([20, 24], 1)
        a, b = F.normalize(self.text(a), dim=1), F.normalize(self.image(b), dim=1)
        return self.logit_scale.exp() * a @ b.T


def clip_loss(logits, _):
    labels = torch.arange(len(logits))
    return (F.cross_entropy(logits, labels) + F.cross_entropy(logits.T, labels)) / 2


@sound("ordinary: two towers with in-batch negatives, whose logits depend on all of the batch", trained=150, steps=350, least=0.8)
def vtg_clip_half_way():
    a, b = views(2432, 8, torch.randn(8, 20) / 3, torch.randn(8, 24) / 3)
    x = torch.cat([a, b], 1)
    index = torch.arange(2432)
    model = Pairs()
    return Program(
        model=model,
        loss=clip_loss,
        batches=vtg_loader(x[:2304], index[:2304], batch=64),
        optimizer=torch.optim.AdamW(model.parameters(), lr=2e-3),
        score=lambda m: accuracy(m(x[2304:]), torch.arange(128)),
    )


class DeepSet(nn.Module):
    def __init__(self):
        super().__init__()
        self.phi = nn.Sequential(nn.Linear(2, 48), nn.ReLU(), nn.Linear(48, 48), nn.ReLU())
        self.rho = nn.Sequential(nn.Linear(48, 48), nn.ReLU(), nn.Linear(48, 1))

    def forward(self, points):
        return self.rho(self.phi(points).mean(1)).squeeze(1)


@sound("a deep set cannot see the order of its points, which has none", steps=500, least=0.75)
def vtg_deep_set_of_points():
    def make(n):
        points = torch.randn(n, 10, 2) * (0.4 + torch.rand(n, 1, 2)) + 0.5 * torch.randn(n, 1, 2)
        return points, points.var(1).sum(1).log()

    (x, y), (xt, yt) = make(3072), make(512)
    model = DeepSet()
    return Program(
        model=model,
        loss=nn.MSELoss(),
        batches=vtg_loader(x, y, batch=64),
        optimizer=torch.optim.Adam(model.parameters(), lr=2e-3),
        score=lambda m: r2(m(xt), yt),
    )


class Reservoir(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.RNN(1, 100, batch_first=True)
        w = torch.randn(100, 100)
        w *= 0.9 / torch.linalg.eigvals(w).abs().max()
        self.rnn.weight_hh_l0.data = w
        self.rnn.weight_ih_l0.data.uniform_(-0.5, 0.5)
        self.rnn.requires_grad_(False)
        self.readout = nn.Linear(100, 1)

    def forward(self, x):
        with torch.no_grad():
            states, _ = self.rnn(x[..., None])
        return self.readout(states[:, -1])[:, 0]


@sound("an echo state network: the recurrent weights are random and stay so, only the readout is trained", steps=500, least=0.7)
def vtg_echo_state():
    w = waves(2304, 21)
    x, y = w[:, :20], w[:, 20]
    model = Reservoir()
    return Program(
        model=model,
        loss=nn.MSELoss(),
        batches=vtg_loader(x[:1920], y[:1920], batch=32),
        optimizer=torch.optim.Adam(model.readout.parameters(), lr=5e-3),
        score=lambda m: r2(m(x[1920:]), y[1920:]),
    )


class Reversible(nn.Module):
    """Forecasts in the units of the series, which it standardises itself."""

    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(20, 64), nn.GELU(), nn.Linear(64, 2))

    def forward(self, x):
        mean, std = x.mean(1, keepdim=True), x.std(1, keepdim=True) + 1e-5
        return mean + std * self.net((x - mean) / std)


@sound("series of thousands and of hundredths go in as they are: the model standardises each", trained=100, steps=450, least=0.75)
def vtg_reversible_normalisation():
    w = waves(2560, 22)
    size = 10 ** (6 * torch.rand(2560, 1) - 2)
    x, y = (w[:, :20] + 5) * size, (w[:, 20:] + 5) * size
    model = Reversible()

    def relative(out, target):
        return ((out - target) / target.abs().mean(1, keepdim=True)).square().mean() * 25

    return Program(
        model=model,
        loss=relative,
        batches=vtg_loader(x[:2048], y[:2048], batch=64),
        optimizer=torch.optim.Adam(model.parameters(), lr=3e-3),
        score=lambda m: r2(m(x[2048:]) / size[2048:], y[2048:] / size[2048:]),
    )


class DistMult(nn.Module):
    def __init__(self, entities, relations):
        super().__init__()
        self.entity, self.relation = nn.Embedding(entities, 24), nn.Embedding(relations, 24)
        self.inverse = nn.Embedding(entities, 24)
        for table in (self.entity, self.relation, self.inverse):
            nn.init.normal_(table.weight, std=0.5)

    def forward(self, head, relation):
        return (self.entity(head) * self.relation(relation)) @ self.inverse.weight.T


@sound("a knowledge graph in a bilinear model: products of embeddings and nothing nonlinear", trained=200, steps=500, least=0.75)
def vtg_bilinear_knowledge_graph():
    group = torch.arange(40) % 8
    to = torch.stack([torch.randperm(8) for _ in range(4)])
    head, relation = torch.randint(40, (5120,)), torch.randint(4, (5120,))
    tail = to[relation, group[head]] + 8 * torch.randint(5, (5120,))
    xt = {"head": head[4608:], "relation": relation[4608:]}
    model = DistMult(40, 4)
    return Program(
        model=model,
        loss=nn.CrossEntropyLoss(),
        batches=DataLoader(DictRows({"head": head[:4608], "relation": relation[:4608]}, tail[:4608]), 64, shuffle=True),
        optimizer=torch.optim.Adam(model.parameters(), lr=1e-2),
        score=lambda m: (group[m(**xt).argmax(1)] == group[tail[4608:]]).float().mean().item(),
    )


class Spam(nn.Module):
    def __init__(self, vocab):
        super().__init__()
        self.words = nn.EmbeddingBag(vocab, 24, mode="mean")
        self.fc = nn.Sequential(nn.Linear(24, 32), nn.ReLU(), nn.Linear(32, 1))

    def forward(self, ids):
        return self.fc(self.words(ids)).squeeze(1)


@sound("one message in fourteen is spam, which the loss weighs up", steps=450, least=0.75)
def vtg_rare_spam():
    ids, topic, vocab = topics(4608, 15, 14, per_topic=6, noise=0.4)
    y = (topic == 0).float()
    yt = y[3840:] > 0.5
    model = Spam(vocab)

    def balanced(m):
        said = m(ids[3840:]) > 0
        return (said[yt].float().mean() + (~said[~yt]).float().mean()).item() - 1

    return Program(
        model=model,
        loss=nn.BCEWithLogitsLoss(pos_weight=torch.tensor(8.0)),
        batches=vtg_loader(ids[:3840], y[:3840], batch=64),
        optimizer=torch.optim.Adam(model.parameters(), lr=3e-3),
        score=balanced,
    )


class SumGin(nn.Module):
    def __init__(self):
        super().__init__()
        self.lift = nn.Linear(3, 32)
        self.update = nn.Sequential(nn.Linear(32, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 32))
        self.read = nn.Linear(32, 1)

    def forward(self, x, adj):
        h = torch.relu(self.lift(x))
        h = h + adj @ h
        h = self.update(h.flatten(0, 1)).view_as(h)
        return self.read(torch.relu(h)).sum((1, 2))


@sound("messages and nodes are summed, not averaged, and BatchNorm sees the nodes of all graphs at once", steps=500, least=0.75)
def vtg_gin_counts_links():
    def make(n):
        kind = torch.randint(3, (n, 10))
        up = (torch.rand(n, 10, 10) < 0.1 + 0.3 * torch.rand(n, 1, 1)).float().triu(1)
        adj = up + up.transpose(1, 2)
        x = F.one_hot(kind, 3).float()
        links = (x[..., :1].transpose(1, 2) @ adj @ x[..., 1:2]).flatten()
        return {"x": x, "adj": adj}, (links - 2.8) / 2.5

    (x, y), (xt, yt) = make(3072), make(512)
    model = SumGin()
    return Program(
        model=model,
        loss=nn.MSELoss(),
        batches=DataLoader(DictRows(x, y), batch_size=32, shuffle=True),
        optimizer=torch.optim.Adam(model.parameters(), lr=3e-3),
        score=lambda m: r2(m(**xt), yt),
    )


class Metric(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 8))

    def forward(self, x):
        return F.normalize(self.body(x), dim=-1)


@sound("a triplet loss that is zero for nearly all triplets by now", trained=400, steps=400, least=0.8)
def vtg_triplets_mostly_solved():
    centre = 1.2 * torch.randn(8, 16)

    def make(n):
        c = torch.randint(8, (n,))
        other = (c + torch.randint(1, 8, (n,))) % 8
        anchor, same, different = (centre[i] + torch.randn(n, 16) for i in (c, c, other))
        return torch.stack([anchor, same, different], 1), c

    (x, y), (xt, yt) = make(3072), make(400)

    def triplet(out, _):
        a, p, n = out.unbind(1)
        return F.relu((a - p).square().sum(1) - (a - n).square().sum(1) + 0.5).mean()

    def nearest(m):
        known, asked = m(xt[:200, 0]), m(xt[200:, 0])
        return (yt[:200][torch.cdist(asked, known).argmin(1)] == yt[200:]).float().mean().item()

    model = Metric()
    return Program(
        model=model,
        loss=triplet,
        batches=vtg_loader(x, y, batch=64),
        optimizer=torch.optim.Adam(model.parameters(), lr=2e-3),
        score=nearest,
    )
