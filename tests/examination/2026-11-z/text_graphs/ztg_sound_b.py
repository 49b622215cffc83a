"""Sound retrieval, recommenders, knowledge graphs, graph networks and sets."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from program import Program, sound
from torch import nn
from ztg_data import Rows, accuracy, bags, blocks, explained, loader, molecules, pairs, rated, retrieval, rng

ce = F.cross_entropy


class GCN(nn.Module):
    def __init__(self, adjacency, dim=8, classes=3, dropout=0.0):
        super().__init__()
        a = adjacency + torch.eye(len(adjacency))
        self.register_buffer("a", a / a.sum(1, keepdim=True))
        self.one, self.two = nn.Linear(dim, 32), nn.Linear(32, classes)
        self.drop = nn.Dropout(dropout)

    def forward(self, x):
        return self.two(self.a @ self.drop(F.relu(self.one(self.a @ x))))


def on_nodes(model, x, y, train, lr=1e-2):
    labels = torch.where(train, y, -100)
    return Program(model, lambda out, t: ce(out, t, ignore_index=-100), [(x, labels)],
                   torch.optim.Adam(model.parameters(), lr),
                   lambda m: (m(x).argmax(1) == y)[~train].float().mean().item())


@sound("Ordinary: a graph convolution over communities; nodes depend on one another as they should.", steps=150,
       least=0.85)
def ztg_communities():
    a, x, y, train = blocks()
    return on_nodes(GCN(a), x, y, train)


@sound("One batch, always the same, of which 5 % of the nodes have labels.", steps=150, least=0.75)
def ztg_few_labels():
    a, x, y, _ = blocks(inside=0.25, outside=0.02)
    train = torch.arange(len(y)) < 12
    return on_nodes(GCN(a, dropout=0.3), x, y, train)


class Factors(nn.Module):
    def __init__(self, dim=4):
        super().__init__()
        self.users, self.items = nn.Embedding(60, dim), nn.Embedding(60, dim)
        nn.init.normal_(self.users.weight, std=0.3)
        nn.init.normal_(self.items.weight, std=0.3)
        self.mean = nn.Parameter(torch.zeros(()))

    def forward(self, pair):
        return (self.users(pair[:, 0]) * self.items(pair[:, 1])).sum(1) + self.mean


@sound("Ordinary: factors of users and items, a product without any nonlinearity.", steps=400, least=0.9)
def ztg_factors():
    model = Factors()
    return Program(model, F.mse_loss, loader(*rated(), batch=128), torch.optim.Adam(model.parameters(), 2e-2),
                   explained(*rated(False)))


@sound("Factors that are trained already, and go on with a smaller rate.", trained=400, steps=500, least=0.9)
def ztg_factors_trained():
    model = Factors()
    opt = torch.optim.Adam(model.parameters(), 2e-2)
    plan = torch.optim.lr_scheduler.StepLR(opt, 300, 0.2)
    return Program(model, F.mse_loss, loader(*rated(), batch=128), opt, explained(*rated(False)), scheduler=plan)


@sound("Stars from 1 to 5 as they are; the mean is where the bias starts.", steps=400, least=0.85)
def ztg_stars():
    x, y = rated()
    model = Factors()
    nn.init.constant_(model.mean, 3.2)
    return Program(model, F.mse_loss, loader(x, (y + 3.2).clamp(1, 5), batch=128),
                   torch.optim.Adam(model.parameters(), 2e-2), explained(*rated(False), shift=3.2))


def contrast(model, batch):
    a, b = model(*batch)
    return ce(a @ b.T / 0.07, torch.arange(len(a)))


class Towers(nn.Module):
    def __init__(self, is_one_encoder=False):
        super().__init__()
        self.ask = nn.EmbeddingBag(180, 32)
        self.doc = self.ask if is_one_encoder else nn.EmbeddingBag(180, 32)

    def forward(self, q, d):
        return F.normalize(self.ask(q), dim=1), F.normalize(self.doc(d), dim=1)


def similarity(model, q, d):
    a, b = model(q, d)
    return a @ b.T


@sound("Ordinary: two towers; the other documents of a batch are the wrong ones.", steps=300, least=0.85)
def ztg_two_towers():
    q, d, _ = pairs(2000)
    model = Towers()
    return Program(model, None, loader(q, d), torch.optim.Adam(model.parameters(), 1e-2), retrieval(similarity),
                   step=contrast)


@sound("Siamese: both towers are one encoder on purpose.", steps=300, least=0.85)
def ztg_siamese():
    q, d, _ = pairs(2000)
    model = Towers(True)
    return Program(model, None, loader(q, d), torch.optim.Adam(model.parameters(), 1e-2), retrieval(similarity),
                   step=contrast)


@sound("Ordinary: a network of sets which are pooled by mean and maximum.", steps=300, least=0.9)
def ztg_sets():
    class Sets(nn.Module):
        def __init__(self):
            super().__init__()
            self.phi = nn.Sequential(nn.Linear(2, 32), nn.ReLU(), nn.Linear(32, 32))
            self.rho = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 3))

        def forward(self, x):
            h = self.phi(x - x.mean(1, keepdim=True))
            return self.rho(torch.cat([h.mean(1), h.amax(1)], 1))

    model = Sets()
    return Program(model, ce, loader(*bags(1500)), torch.optim.Adam(model.parameters(), 5e-3), accuracy(*bags(300,
                   seed=1)))


@sound("Ordinary: a network of small graphs with BatchNorm, batches of 32.", steps=300, least=0.9)
def ztg_small_graphs():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.two = nn.Linear(4, 32), nn.Linear(64, 32)
            self.norm, self.head = nn.BatchNorm1d(32), nn.Linear(32, 2)

        def forward(self, adjacency, nodes):
            h = F.relu(self.one(torch.cat([nodes, adjacency @ nodes], -1)))
            h = F.relu(self.two(torch.cat([h, adjacency @ h / 3], -1))).mean(1)
            return self.head(F.relu(self.norm(h)))

    def data(n, seed):
        adjacency, nodes, y = molecules(n, seed=seed)
        return {"adjacency": adjacency, "nodes": nodes}, y

    model = Net()
    batches = torch.utils.data.DataLoader(Rows(*data(1000, 0)), batch_size=32, shuffle=True, drop_last=True)
    return Program(model, ce, batches, torch.optim.Adam(model.parameters(), 3e-3), accuracy(*data(300, 1)))


@sound("Counts of very different size go in as they are, but a BatchNorm stands first.", steps=300, least=0.85)
def ztg_norm_of_raw_counts():
    g = rng(31)
    scale = 10 ** torch.randint(0, 5, (12,), generator=g).float()
    direction = torch.randn(12, 4, generator=g)

    def data(n, seed):
        z = torch.randn(n, 12, generator=rng(seed))
        return z * scale + 3 * scale, (z @ direction).argmax(1)

    model = nn.Sequential(nn.BatchNorm1d(12), nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 4))
    return Program(model, ce, loader(*data(2000, 0)), torch.optim.Adam(model.parameters(), 5e-3),
                   accuracy(*data(400, 1)))


@sound("Contrast of purchases with sampled items: a pairwise loss which has no targets at all.", steps=500, least=0.7)
def ztg_bayesian_ranking():
    x, y = rated()
    xt, yt = rated(False)
    liked, others = x[y > 0], x[y <= 0]
    model = Factors()

    def step(m, batch):
        pair = batch[0]
        same = torch.randint(len(others), (len(pair),))
        return -F.logsigmoid(m(pair) - m(others[same])).mean()

    def score(m):
        out = m(xt)
        return 2 * (out[yt > 0][:, None] > out[yt <= 0][None]).float().mean().item() - 1

    return Program(model, None, loader(liked, batch=128), torch.optim.Adam(model.parameters(), 1e-2), score, step=step)


@sound("Linear word vectors (skip-gram): two tables, no nonlinearity, softmax over the words.", steps=500, least=0.85)
def ztg_skip_gram():
    # words 3k, 3k+1, 3k+2 keep company
    g = rng(41)
    word = torch.randint(60, (6000,), generator=g)
    company = word // 3 * 3 + torch.randint(3, (6000,), generator=g)
    model = nn.Sequential(nn.Embedding(60, 24), nn.Linear(24, 60, bias=False))
    every = torch.arange(60)

    def score(m):
        best = m(every).topk(3).indices
        return (best // 3 == (every // 3)[:, None]).float().mean().item()

    return Program(model, ce, loader(word, company, batch=64), torch.optim.Adam(model.parameters(), 1e-2), score)


@sound("Logarithms of counts, which are all positive, are the targets of a smooth L1 loss; half trained.", trained=150,
       steps=400, least=0.85)
def ztg_log_of_counts():
    def data(n, seed):
        g = rng(seed)
        ids = torch.randint(40, (n, 6), generator=g)
        worth = torch.randn(40, generator=rng(43))
        return ids, torch.log1p(torch.exp(worth[ids].sum(1) / 2 + 3))

    model = nn.Sequential(nn.EmbeddingBag(40, 16, mode="sum"), nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 1),
                          nn.Flatten(0))
    return Program(model, F.smooth_l1_loss, loader(*data(2000, 0)), torch.optim.AdamW(model.parameters(), 3e-3),
                   explained(*data(400, 1)))
