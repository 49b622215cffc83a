"""Faults: graphs, sets, recommenders, retrieval, fine-tuning."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import nn

from program import Program, fault
from wtg_data import (
    wtg_accuracy,
    wtg_communities,
    wtg_loader,
    wtg_r2,
    wtg_ratings,
    wtg_topic_text,
)


class Tower(nn.Module):
    def __init__(self, inputs, dim=24):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(inputs, 48), nn.ReLU(), nn.Linear(48, dim))

    def forward(self, x):
        return F.normalize(self.net(x), dim=-1)


class Retriever(nn.Module):
    def __init__(self):
        super().__init__()
        self.query_words = nn.EmbeddingBag(40, 16, mode="mean")
        self.query = Tower(16)
        self.doc = Tower(20)

    def forward(self, words, docs):
        return self.query(self.query_words(words)), self.doc(docs)


def wtg_pairs(n):
    """Questions of words, and the vectors of their documents."""
    words = torch.randint(0, 40, (n, 6))
    meaning = torch.randn(40, 20)
    docs = meaning[words].mean(1) * 2 + 0.1 * torch.randn(n, 20)
    return words, docs


@fault(
    "the positive of every query in an in-batch contrastive loss is said to be the first document",
    rules=["output-loss-mismatch", "constant-target", "labels-unrelated"],
    fails=True,
    steps=300,
)
def wtg_positives_at_zero(is_faulty):
    words, docs = wtg_pairs(1400)
    model = Retriever()
    opt = torch.optim.Adam(model.parameters(), lr=3e-3)

    def step(net, batch):
        q, d = net(*batch)
        sim = q @ d.T / 0.1
        target = torch.zeros(len(q), dtype=torch.long) if is_faulty else torch.arange(len(q))
        return F.cross_entropy(sim, target)

    def score(net):
        q, d = net(words[1200:1264], docs[1200:1264])
        return wtg_accuracy(q @ d.T, torch.arange(64))

    return Program(model, None, wtg_loader(words[:1200], docs[:1200]), opt, score, step=step)


class LoraLinear(nn.Module):
    def __init__(self, base, rank, zero_both):
        super().__init__()
        self.base = base
        for p in base.parameters():
            p.requires_grad_(False)
        self.lora_A = nn.Parameter(torch.empty(rank, base.in_features))
        self.lora_B = nn.Parameter(torch.zeros(base.out_features, rank))
        if zero_both:
            nn.init.zeros_(self.lora_A)
        else:
            nn.init.kaiming_uniform_(self.lora_A, a=math.sqrt(5))

    def forward(self, x):
        return self.base(x) + 2.0 * (x @ self.lora_A.T) @ self.lora_B.T


class TopicNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(60, 24)
        self.fc1 = nn.Linear(24, 48)
        self.fc2 = nn.Linear(48, 48)
        self.head = nn.Linear(48, 5)

    def forward(self, ids):
        x = self.words(ids).mean(1)
        return self.head(F.gelu(self.fc2(F.gelu(self.fc1(x)))))


def wtg_pretrained(net, x, y, steps=120):
    opt = torch.optim.Adam(net.parameters(), lr=3e-3)
    for i in range(steps):
        rows = torch.randint(0, len(x), (32,))
        opt.zero_grad()
        F.cross_entropy(net(x[rows]), y[rows]).backward()
        opt.step()
    net.zero_grad()
    return net


@fault(
    "both matrices of the adapters start at zero",
    rules=["bad-initialisation", "symmetric-initialisation", "no-gradient", "loss-not-decreasing"],
    layers=["fc1", "fc2"],
    fails=True,
    steps=200,
)
def wtg_lora_of_zeros(is_faulty):
    x, y = wtg_topic_text(1300, 12)
    model = wtg_pretrained(TopicNet(), x[:500], y[:500])
    for p in model.parameters():
        p.requires_grad_(False)
    model.fc1 = LoraLinear(model.fc1, 4, is_faulty)
    model.fc2 = LoraLinear(model.fc2, 4, is_faulty)
    new = (y + 2) % 5  # another numbering of the topics
    return Program(
        model,
        F.cross_entropy,
        wtg_loader(x[500:1000], new[500:1000]),
        torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2),
        lambda net: wtg_accuracy(net(x[1000:]), new[1000:]),
    )


@fault(
    "the head is replaced after the optimizer was made, so the optimizer has the old one",
    rules=["no-gradient"],
    layers=["head"],
    fails=True,
    steps=200,
)
def wtg_head_replaced_late(is_faulty):
    x, y = wtg_topic_text(1300, 12)
    model = wtg_pretrained(TopicNet(), x[:500], y[:500])
    for p in model.parameters():
        p.requires_grad = False
    coarse = (y >= 3).long() + (y == 2) * 2
    if not is_faulty:
        model.head = nn.Linear(48, 3)
    for p in model.head.parameters():
        p.requires_grad = True
    optimizer = torch.optim.SGD(model.head.parameters(), lr=0.1, momentum=0.9)
    if is_faulty:
        model.head = nn.Linear(48, 3)
    return Program(
        model,
        nn.CrossEntropyLoss(),
        wtg_loader(x[500:1000], coarse[500:1000]),
        optimizer,
        lambda net: wtg_accuracy(net(x[1000:]), coarse[1000:]),
    )


class GraphConv(nn.Module):
    def __init__(self, a, b):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(a, b))
        self.bias = nn.Parameter(torch.zeros(b))
        nn.init.kaiming_uniform_(self.weight.T, nonlinearity="relu")

    def forward(self, x, adjacency):
        return adjacency @ x @ self.weight + self.bias


class DeepGCN(nn.Module):
    def __init__(self, adjacency, depth):
        super().__init__()
        self.register_buffer("adjacency", adjacency)
        widths = [8] + [32] * depth
        self.convs = nn.ModuleList(GraphConv(a, b) for a, b in zip(widths[:-1], widths[1:]))
        self.out = nn.Linear(32, 1)

    def forward(self, x):
        for conv in self.convs:
            x = torch.relu(conv(x, self.adjacency))
        return self.out(x).squeeze(-1)


@fault(
    "the adjacency matrix is not normalised, so that sums over neighbours grow with each layer",
    rules=["activation-drift", "exploding-gradient", "bad-initialisation"],
    layers=["convs"],
    fails=True,
    steps=300,
)
def wtg_raw_adjacency(is_faulty):
    # sensors on a map, each with its neighbours; asked for: what reaches a sensor over two steps
    place = torch.rand(240, 2)
    a = (torch.cdist(place, place) < 0.2).float()
    mean = a / a.sum(1, keepdim=True)
    x = torch.randn(240, 8) + 2 * torch.sin(place @ torch.randn(2, 8) * 3)
    y = (mean @ torch.relu(mean @ x[:, :4])).sum(1)
    y = (y - y.mean()) / y.std()
    model = DeepGCN(a if is_faulty else mean, 4)
    train = torch.rand(240) < 0.6
    return Program(
        model,
        lambda out, y: F.mse_loss(out[train], y[train]),
        [(x, y)],
        torch.optim.Adam(model.parameters(), lr=3e-3),
        lambda net: wtg_r2(net(x)[~train], y[~train]),
    )


class PickOne(nn.Module):
    """Attention that pools a set into one value."""

    def __init__(self, dim):
        super().__init__()
        self.score = nn.Sequential(nn.Linear(5, 32), nn.Tanh(), nn.Linear(32, 1))
        self.value = nn.Linear(5, 16)
        self.out = nn.Linear(16, 1)
        self.dim = dim

    def forward(self, items):
        weights = torch.softmax(self.score(items), dim=self.dim)
        return self.out((weights * self.value(items)).sum(1)).squeeze(-1)


@fault(
    "the scores of pooling have shape (batch, items, 1), and the softmax goes over the last dimension",
    rules=["wrong-softmax-dimension", "no-gradient"],
    layers=["score"],
    fails=True,
    steps=400,
)
def wtg_pool_over_last(is_faulty):
    items = torch.randn(1500, 9, 5)
    chosen = items[..., 0].argmax(1)
    y = items[torch.arange(1500), chosen, 3] * 1.2 - items[torch.arange(1500), chosen, 4]
    model = PickOne(-1 if is_faulty else 1)
    return Program(
        model,
        nn.MSELoss(),
        wtg_loader(items[:1200], y[:1200]),
        torch.optim.Adam(model.parameters(), lr=1e-2),
        lambda net: wtg_r2(net(items[1200:]), y[1200:]),
    )



@fault(
    "Adam's weight_decay, which is added to the gradient, is as strong as the data",
    rules=["weight-decay-dominates"],
    fails=True,
    steps=600,
)
def wtg_decayed_factors(is_faulty):
    u, i, r = wtg_ratings(rank=2, n=2700)

    class Dot(nn.Module):
        def __init__(self):
            super().__init__()
            self.users = nn.Embedding(60, 4)
            self.items = nn.Embedding(50, 4)
            nn.init.normal_(self.users.weight, std=0.3)
            nn.init.normal_(self.items.weight, std=0.3)
            self.user_bias = nn.Embedding(60, 1)
            self.item_bias = nn.Embedding(50, 1)
            nn.init.zeros_(self.user_bias.weight)
            nn.init.zeros_(self.item_bias.weight)

        def forward(self, ui):
            a, b = ui.unbind(1)
            dot = (self.users(a) * self.items(b)).sum(1)
            return dot + self.user_bias(a)[:, 0] + self.item_bias(b)[:, 0]

    model = Dot()
    ui = torch.stack([u, i], 1)
    return Program(
        model,
        F.mse_loss,
        wtg_loader(ui[:2400], r[:2400], size=64),
        torch.optim.Adam(model.parameters(), lr=2e-2, weight_decay=0.1 if is_faulty else 1e-5),
        lambda net: wtg_r2(net(ui[2400:]), r[2400:]),
    )


class NeighbourAttention(nn.Module):
    def __init__(self, adjacency):
        super().__init__()
        self.adjacency = adjacency
        self.w = nn.Linear(16, 24)
        self.left, self.right = nn.Linear(24, 1), nn.Linear(24, 1)
        self.skip = nn.Linear(16, 24)
        self.out = nn.Linear(24, 4)

    def forward(self, x):
        h = self.w(x)
        e = F.leaky_relu(self.left(h) + self.right(h).T, 0.2)
        e = e.masked_fill(self.adjacency == 0, float("-inf"))
        h = F.elu(e.softmax(-1) @ h + self.skip(x))
        return self.out(h)


@fault(
    "graph attention without self-loops, and some nodes have no neighbours: a softmax of nothing but -inf",
    rules=["non-finite", "wrong-mask"],
    fails=True,
    steps=150,
)
def wtg_lonely_nodes(is_faulty):
    x, a, y = wtg_communities(150, inside=0.15, outside=0.01, noise=1.2)
    alone = torch.randperm(150)[:5]
    a[alone], a[:, alone] = 0, 0
    if not is_faulty:
        a = a + torch.eye(150)
    model = NeighbourAttention(a)
    train = torch.rand(150) < 0.6
    return Program(
        model,
        lambda out, target: F.cross_entropy(out[train], target[train]),
        [(x, y)],
        torch.optim.Adam(model.parameters(), lr=1e-2, weight_decay=5e-4),
        lambda net: wtg_accuracy(net(x)[~train], y[~train]),
    )


@fault(
    "phi and rho of a deep set are stacks of linear layers with nothing between",
    rules=["no-nonlinearity"],
    fails=True,
    steps=500,
)
def wtg_linear_set(is_faulty):
    points = torch.randn(1600, 8, 3) * (0.4 + torch.rand(1600, 1, 1))
    y = points.square().sum(-1).mean(1)
    y = (y - y.mean()) / y.std()

    def stack(*widths):
        layers = []
        for a, b in zip(widths[:-1], widths[1:]):
            layers.append(nn.Linear(a, b))
            if not is_faulty:
                layers.append(nn.SiLU())
        return nn.Sequential(*layers)

    class DeepSet(nn.Module):
        def __init__(self):
            super().__init__()
            self.phi = stack(3, 32, 32)
            self.rho = stack(32, 32)
            self.last = nn.Linear(32, 1)

        def forward(self, s):
            return self.last(self.rho(self.phi(s).mean(1))).squeeze(1)

    model = DeepSet()
    return Program(
        model,
        nn.SmoothL1Loss(),
        wtg_loader(points[:1300], y[:1300]),
        torch.optim.RMSprop(model.parameters(), lr=1e-3),
        lambda net: wtg_r2(net(points[1300:]), y[1300:]),
    )


class MoleculeNet(nn.Module):
    def __init__(self, functional):
        super().__init__()
        self.atom = nn.Embedding(8, 12)
        self.message = nn.Linear(12, 12)
        self.readout = nn.Linear(12, 1)
        self.functional = functional

    def forward(self, atoms, bonds):
        h = self.atom(atoms)
        for _ in range(2):
            h = h + F.relu(self.message(bonds @ h / 3))
        h = h.mean(1)
        h = F.dropout(h, 0.5) if self.functional else F.dropout(h, 0.5, training=self.training)
        return self.readout(h).squeeze(-1)


@fault(
    "F.dropout without training=self.training",
    rules=["dropout-in-eval"],
    fails=False,
    steps=400,
)
def wtg_functional_dropout(is_faulty):
    atoms = torch.randint(0, 8, (1300, 5))
    bonds = (torch.rand(1300, 5, 5) < 0.4).float().triu(1)
    bonds = bonds + bonds.transpose(1, 2)
    charge = torch.randn(8)
    y = charge[atoms].mean(1) + 0.3 * (bonds @ charge[atoms][..., None])[..., 0].mean(1)
    y = (y - y.mean()) / y.std()
    model = MoleculeNet(is_faulty)

    def step(net, batch):
        a, b, t = batch
        return F.mse_loss(net(a, b), t)

    return Program(
        model,
        None,
        wtg_loader(atoms[:1000], bonds[:1000], y[:1000]),
        torch.optim.Adam(model.parameters(), lr=5e-3),
        lambda net: wtg_r2(net(atoms[1000:], bonds[1000:]), y[1000:]),
        step=step,
    )
