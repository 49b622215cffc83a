"""Faults of retrieval, recommenders, knowledge graphs, graph networks and sets."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from program import Program, fault
from torch import nn
from ztg_data import Rows, accuracy, bags, blocks, explained, loader, pairs, rated, retrieval, rng, topics, triples

ce = F.cross_entropy


class Towers(nn.Module):
    def __init__(self, dim=32):
        super().__init__()
        self.ask = nn.EmbeddingBag(180, dim)
        self.doc = nn.EmbeddingBag(180, dim)

    def forward(self, q, d):
        return F.normalize(self.ask(q), dim=1), F.normalize(self.doc(d), dim=1)


def similarity(model, q, d):
    a, b = model(q, d)
    return a @ b.T


@fault(
    "The cosines are multiplied by the temperature of 0.05 instead of divided by it: hardly any slope is left.",
    rules=("output-loss-mismatch", "learning-rate-too-low", "vanishing-gradient"),
    fails=True,
    steps=400,
)
def ztg_temperature_multiplied(is_faulty):
    q, d, _ = pairs(2000)
    model = Towers()

    def step(m, batch):
        a, b = m(*batch)
        sims = a @ b.T * 0.05 if is_faulty else a @ b.T / 0.05
        return ce(sims, torch.arange(len(sims)))

    return Program(model, None, loader(q, d), torch.optim.SGD(model.parameters(), 1.0, momentum=0.9),
                   retrieval(similarity), step=step)


@fault(
    "F.normalize with dim=0 makes columns of the batch unit vectors, not the embeddings.",
    rules=("mixed-examples",),
    fails=False,
    steps=500,
)
def ztg_normalised_down_the_batch(is_faulty):
    g = rng(12)
    worth = torch.randn(30, 12, generator=g)

    def data(n, seed):
        ids = torch.randint(30, (n, 4), generator=rng(seed))
        return ids, worth[ids].mean(1).argmax(1)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.bag = nn.EmbeddingBag(30, 32)
            self.fc = nn.Linear(32, 32)
            self.head = nn.Linear(32, 12)

        def forward(self, ids):
            h = F.relu(self.fc(self.bag(ids)))
            return self.head(8 * F.normalize(h, dim=0 if is_faulty else 1))

    xt, yt = data(300, 1)

    def score(m):  # one request at a time, as it is served
        return sum(int(m(row[None]).argmax() == y) for row, y in zip(xt, yt)) / len(yt)

    model = Net()
    return Program(model, ce, loader(*data(3000, 0), batch=64), torch.optim.Adam(model.parameters(), 5e-3), score)


class Factors(nn.Module):
    def __init__(self, dim=6, scale=0.3):
        super().__init__()
        self.users, self.items = nn.Embedding(60, dim), nn.Embedding(60, dim)
        nn.init.normal_(self.users.weight, std=scale)
        nn.init.normal_(self.items.weight, std=scale)

    def forward(self, pair):
        return (self.users(pair[:, 0]) * self.items(pair[:, 1])).sum(1)


@fault(
    "All user and item factors start at 0.1, so that the factors stay copies of one another.",
    rules=("symmetric-initialisation", "bad-initialisation"),
    layers=("users", "items"),
    fails=False,
    steps=500,
)
def ztg_equal_factors(is_faulty):
    model = Factors(4)
    if is_faulty:
        nn.init.constant_(model.users.weight, 0.1)
        nn.init.constant_(model.items.weight, 0.1)
    x, y = rated()
    return Program(model, F.mse_loss, loader(x, y, batch=128), torch.optim.Adam(model.parameters(), 2e-2),
                   explained(*rated(False)))


@fault(
    "Neural collaborative filtering without its ReLUs: it can only add up what it knows of user and item.",
    rules=("no-nonlinearity",),
    fails=True,
    steps=600,
)
def ztg_filter_without_relu(is_faulty):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.users, self.items = nn.Embedding(60, 8), nn.Embedding(60, 8)
            layers = [nn.Linear(16, 64), nn.Linear(64, 64), nn.Linear(64, 1)]
            if not is_faulty:
                layers = [layers[0], nn.ReLU(), layers[1], nn.ReLU(), layers[2]]
            self.mlp = nn.Sequential(*layers)

        def forward(self, pair):
            return self.mlp(torch.cat([self.users(pair[:, 0]), self.items(pair[:, 1])], 1)).squeeze(1)

    x, y = rated()
    model = Net()
    return Program(model, F.mse_loss, loader(x, y, batch=128), torch.optim.AdamW(model.parameters(), 8e-3),
                   explained(*rated(False)))


@fault(
    "The recommender is to predict watching times in seconds, thousands of them, from factors near 0.",
    rules=("unscaled-target",),
    fails=True,
    steps=400,
)
def ztg_seconds_watched(is_faulty):
    class Biased(Factors):
        def __init__(self):
            super().__init__(4)
            self.user_bias, self.item_bias = nn.Embedding(60, 1), nn.Embedding(60, 1)
            self.mean = nn.Parameter(torch.zeros(()))

        def forward(self, pair):
            u, i = pair.T
            return super().forward(pair) + self.user_bias(u)[:, 0] + self.item_bias(i)[:, 0] + self.mean

    scale, shift = (900.0, 3600.0) if is_faulty else (1.0, 0.0)
    x, y = rated()
    model = Biased()
    return Program(model, F.mse_loss, loader(x, y * scale + shift, batch=128),
                   torch.optim.Adam(model.parameters(), 2e-2), explained(*rated(False), scale, shift))


@fault(
    "An L2 term over the whole tables of factors is added without a coefficient and outweighs the ratings.",
    rules=("term-dominates", "weight-decay-dominates"),
    fails=True,
    steps=400,
)
def ztg_penalty_without_coefficient(is_faulty):
    x, y = rated()
    model = Factors(4)

    def step(m, batch):
        pair, rating = batch
        penalty = m.users.weight.square().sum() + m.items.weight.square().sum()
        return F.mse_loss(m(pair), rating) + (1.0 if is_faulty else 1e-4) * penalty

    return Program(model, None, loader(x, y, batch=128), torch.optim.Adam(model.parameters(), 2e-2),
                   explained(*rated(False)), step=step)


class TransE(nn.Module):
    def __init__(self, dim=16):
        super().__init__()
        self.entities, self.relations = nn.Embedding(40, dim), nn.Embedding(3, dim)

    def forward(self, h, r, t):
        return (self.entities(h) + self.relations(r) - self.entities(t)).norm(dim=-1)


def apart(known, test):
    """How well distances tell true triples from others: 1 if always, 0 for chance."""
    rows = torch.cat([known, test])

    def score(model):
        every = torch.arange(40).expand(len(rows), 40)
        far = model(rows[:, :1].expand(-1, 40), rows[:, 1:2].expand(-1, 40), every)
        return 2 * (far > far.gather(1, rows[:, 2:])).float().mean().item() * 40 / 39 - 1

    return score


def hits(known, test, sign=-1):
    """The mean reciprocal rank of the right tail, over known and held-out triples."""
    rows = torch.cat([known, test])

    def score(model):
        every = torch.arange(40).expand(len(rows), 40)
        out = sign * model(rows[:, :1].expand(-1, 40), rows[:, 1:2].expand(-1, 40), every)
        right = out.gather(1, rows[:, 2:])
        rank = (out >= right).sum(1)
        return (1 / rank.float()).mean().item()

    return score


@fault(
    "MarginRankingLoss is told (+1) that the first distance, that of the true triple, is to be the larger one.",
    rules=("output-loss-mismatch",),
    fails=True,
    steps=500,
)
def ztg_true_ones_pushed_apart(is_faulty):
    known, test = triples()
    model = TransE()
    criterion = nn.MarginRankingLoss(margin=2.0)

    def step(m, batch):
        h, r, t = batch[0].T
        true, false = m(h, r, t), m(h, r, torch.randint(40, t.shape))
        sign = torch.ones_like(true) if is_faulty else -torch.ones_like(true)
        return criterion(true, false, sign)

    return Program(model, None, loader(known.repeat(10, 1), batch=64), torch.optim.Adam(model.parameters(), 1e-2),
                   apart(known, test), step=step)


class Bilinear(nn.Module):
    def __init__(self, dim=24, is_one_table=False):
        super().__init__()
        heads = [nn.Embedding(40, dim)] * 2 if is_one_table else [nn.Embedding(40, dim) for _ in range(2)]
        self.roles = nn.ModuleList(heads)
        self.relation = nn.Embedding(3, dim)

    def forward(self, h, r, t):
        return (self.roles[0](h) * self.relation(r) * self.roles[1](t)).sum(-1)


@fault(
    "[nn.Embedding(…)] * 2 makes one table for both roles, so that a relation cannot have a direction.",
    rules=("shared-weight",),
    layers=("roles",),
    fails=False,
    steps=500,
)
def ztg_one_table_for_both_roles(is_faulty):
    known, test = triples()
    model = Bilinear(is_one_table=is_faulty)

    def criterion(out, labels):
        return F.binary_cross_entropy_with_logits(out, labels)

    # every question against all answers
    questions = torch.cat([known, test])
    labels = F.one_hot(questions[:, 2], 40).float()
    rows = {"h": questions[:, :1].expand(-1, 40), "r": questions[:, 1:2].expand(-1, 40),
            "t": torch.arange(40).expand(len(questions), 40)}
    batches = torch.utils.data.DataLoader(Rows(rows, labels), batch_size=40, shuffle=True)
    return Program(model, criterion, batches, torch.optim.Adam(model.parameters(), 1e-2), hits(known, test, 1))


@fault(
    "Only purchases are in the data and the negatives were forgotten: every label is 1.",
    rules=("constant-target",),
    fails=True,
    steps=400,
)
def ztg_no_negatives(is_faulty):
    x, y = rated()
    xt, yt = rated(False)
    liked = (y > 0).float()
    if is_faulty:
        x, liked = x[y > 0], liked[y > 0]

    def score(m):
        return ((m(xt) > 0) == (yt > 0)).float().mean().item()

    model = Factors(4)
    return Program(model, F.binary_cross_entropy_with_logits, loader(x, liked, batch=128),
                   torch.optim.Adam(model.parameters(), 1e-2), score)


class GCN(nn.Module):
    """Features of all nodes to classes, with a fixed matrix of propagation."""

    def __init__(self, a, widths, is_residual=False):
        super().__init__()
        self.register_buffer("a", a)
        self.layers = nn.ModuleList(nn.Linear(i, o) for i, o in zip(widths, widths[1:]))
        self.is_residual = is_residual

    def forward(self, x):
        for k, layer in enumerate(self.layers):
            new = layer(self.a @ x)
            if k < len(self.layers) - 1:
                new = F.relu(new)
            x = x + new if self.is_residual and new.shape == x.shape else new
        return x


def averaged(adjacency):
    a = adjacency + torch.eye(len(adjacency))
    return a / a.sum(1, keepdim=True)


def on_nodes(model, x, y, train, lr, opt=torch.optim.Adam, **more):
    """Full-batch training; what is not for training has no label."""
    labels = torch.where(train, y, -100)
    return Program(model, lambda out, t: ce(out, t, ignore_index=-100), [(x, labels)],
                   opt(model.parameters(), lr=lr, **more),
                   lambda m: (m(x).argmax(1) == y)[~train].float().mean().item())


@fault(
    "The adjacency is not normalised: every one of three layers adds up dozens of neighbours.",
    rules=("activation-drift", "exploding-gradient"),
    fails=True,
    steps=300,
)
def ztg_sums_of_neighbours(is_faulty):
    a, x, y, train = blocks(inside=0.35, outside=0.05)
    a = a + torch.eye(len(a)) if is_faulty else averaged(a)
    model = GCN(a, [8, 32, 32, 3])
    return on_nodes(model, x, y, train, 0.1, torch.optim.SGD)


@fault(
    "Twelve layers of averaging over neighbours without skip connections make all nodes alike.",
    rules=("rank-collapse", "vanishing-gradient", "activation-drift"),
    fails=True,
    steps=150,
)
def ztg_oversmoothed(is_faulty):
    a, x, y, train = blocks(inside=0.2, outside=0.04)
    model = GCN(averaged(a), [8] + [16] * 12 + [3], is_residual=not is_faulty)
    return on_nodes(model, x, y, train, 5e-3)


@fault(
    "Nodes come with the year, a count of citations and a length in characters as they are, next to small features.",
    rules=("unscaled-input", "ill-conditioned-input"),
    fails=True,
    steps=300,
)
def ztg_raw_node_features(is_faulty):
    a, x, y, train = blocks()
    g = rng(15)
    raw = torch.stack([1990 + 30 * torch.rand(150, generator=g), torch.rand(150, generator=g).exp() ** 7,
                       20_000 * torch.rand(150, generator=g)], 1)
    x = torch.cat([x, raw], 1)
    if not is_faulty:
        x = (x - x.mean(0)) / x.std(0)
    model = GCN(averaged(a), [11, 32, 3])
    return on_nodes(model, x, y, train, 0.1, torch.optim.SGD)


@fault(
    "Memory allowed only two documents per batch; the BatchNorm behind the pooling sees plus and minus one.",
    rules=("small-batch-batchnorm", "batchnorm-mode-gap"),
    layers=("norm",),
    fails=False,
    steps=500,
)
def ztg_two_documents_per_batch(is_faulty):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.bag = nn.EmbeddingBag(120, 32)
            self.fc, self.norm = nn.Linear(32, 32), nn.BatchNorm1d(32)
            self.head = nn.Linear(32, 8)

        def forward(self, ids):
            return self.head(F.relu(self.norm(self.fc(self.bag(ids)))))

    x, y = topics(1500, 8, share=0.4)
    model = Net()
    return Program(model, ce, loader(x, y, batch=2 if is_faulty else 32),
                   torch.optim.Adam(model.parameters(), 3e-3), accuracy(*topics(400, 8, share=0.4, seed=1)))


@fault(
    "Points of a set are not centred and come in map coordinates (hundreds of kilometres) into tanh layers.",
    rules=("saturated-activation", "unscaled-input"),
    fails=True,
    steps=300,
)
def ztg_map_coordinates(is_faulty):
    class Sets(nn.Module):
        def __init__(self):
            super().__init__()
            self.phi = nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh())
            self.rho = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 3))

        def forward(self, x):
            h = self.phi(x)
            return self.rho(torch.cat([h.mean(1), h.std(1)], 1))

    def data(n, seed):
        x, y = bags(n, seed=seed)
        return (x * 300 + torch.tensor([4000.0, 52000.0]) if is_faulty else x), y

    model = Sets()
    return Program(model, ce, loader(*data(1500, 0)), torch.optim.Adam(model.parameters(), 5e-3),
                   accuracy(*data(300, 1)))


@fault(
    "Graph attention: the softmax runs over the receiving nodes instead of over the neighbours that are summed.",
    rules=("wrong-softmax-dimension",),
    fails=False,
    steps=300,
)
def ztg_attention_over_receivers(is_faulty):
    def data(n, seed):
        # each node asks its one neighbour of type 0 for its colour; others are noise
        g = rng(seed)
        colour = torch.randint(4, (n, 8), generator=g)
        kind = torch.randint(1, 4, (n, 8), generator=g)
        lead = torch.randint(8, (n, 1), generator=g)
        kind.scatter_(1, lead, 0)
        return torch.stack([kind, colour], 2), colour.gather(1, lead).expand(n, 8).contiguous()

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.kind, self.colour = nn.Embedding(4, 16), nn.Embedding(4, 16)
            self.q, self.k = nn.Linear(32, 16), nn.Linear(32, 16)
            self.out = nn.Linear(16, 4)

        def forward(self, nodes):
            h = torch.cat([self.kind(nodes[..., 0]), self.colour(nodes[..., 1])], -1)
            e = self.q(h) @ self.k(h).transpose(1, 2) / 4
            weights = torch.softmax(e, 1 if is_faulty else 2)
            return self.out(weights @ self.colour(nodes[..., 1]))

    model = Net()
    return Program(model, lambda out, t: ce(out.flatten(0, 1), t.flatten()), loader(*data(1500, 0)),
                   torch.optim.SGD(model.parameters(), 0.1), accuracy(*data(300, 1)))
