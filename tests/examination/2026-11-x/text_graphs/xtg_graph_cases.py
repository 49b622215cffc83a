"""Faults: graphs and sets."""

import torch
import torch.nn.functional as F
from program import Program, fault
from torch import nn
from torch.utils.data import DataLoader
from xtg_data import accuracy, blocks, loader, normalised


def halves(y, share=0.5):
    known = torch.rand(len(y)) < share
    return known, ~known


class DeepGcn(nn.Module):
    def __init__(self, a, residual, depth=16):
        super().__init__()
        self.register_buffer("a", a)
        self.first = nn.Linear(12, 32)
        self.convs = nn.ModuleList([nn.Linear(32, 32) for _ in range(depth)])
        self.last = nn.Linear(32, 4)
        self.residual = residual

    def forward(self, x):
        h = self.first(x).relu()
        for conv in self.convs:
            new = F.relu(conv(self.a @ h))
            h = h + 0.3 * new if self.residual else new
        return self.last(h)


@fault(
    "sixteen graph convolutions without residual connections: all nodes become alike",
    rules=["rank-collapse", "vanishing-gradient", "activation-drift", "loss-not-decreasing"],
    layers=["convs"],
    fails=True,
    steps=200,
)
def xtg_all_nodes_alike(is_faulty):
    x, a, y = blocks(150, 4, 0.25, 0.05, 12, 1.2)
    train, test = halves(y)
    model = DeepGcn(normalised(a), residual=not is_faulty)
    return Program(
        model,
        lambda z, t: F.cross_entropy(z[train], t[train]),
        [(x, y)],
        torch.optim.Adam(model.parameters(), lr=3e-3),
        lambda m: accuracy(m(x)[test], y[test]),
    )


class PickOne(nn.Module):
    """Attention over the elements of a set."""

    def __init__(self, axis):
        super().__init__()
        self.score = nn.Sequential(nn.Linear(7, 16), nn.Tanh(), nn.Linear(16, 1))
        self.value = nn.Linear(7, 16)
        self.out = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 3))
        self.axis = axis

    def forward(self, x):
        weight = self.score(x).softmax(dim=self.axis)
        return self.out((weight * self.value(x)).sum(1))


@fault(
    "attention pooling of a set: scores (batch, elements, 1) and softmax over the last axis, so that all weights are 1",
    rules=["wrong-softmax-dimension", "no-gradient"],
    layers=["score"],
    fails=True,
    steps=500,
)
def xtg_weights_all_one(is_faulty):
    n = 1500
    x = torch.randn(n, 9, 7)
    x[..., 0] = 0
    pick = torch.randint(9, (n,))
    x[torch.arange(n), pick, 0] = 2.0
    y = x[torch.arange(n), pick, 1:4].argmax(-1)
    model = PickOne(-1 if is_faulty else 1)
    return Program(
        model,
        nn.CrossEntropyLoss(),
        loader(x[:1200], y[:1200]),
        torch.optim.Adam(model.parameters(), lr=5e-3),
        lambda m: accuracy(m(x[1200:]), y[1200:]),
    )


class Gin(nn.Module):
    def __init__(self, colours=3, d=32):
        super().__init__()
        self.colour = nn.Embedding(colours, d)
        self.message = nn.Sequential(nn.Linear(2 * d, d), nn.ReLU())
        self.update = nn.Sequential(nn.Linear(2 * d, d), nn.ReLU())
        self.readout = nn.Linear(d, 2)

    def forward(self, x, edge_index, graph, sizes):
        h = self.colour(x)
        src, dst = edge_index
        m = self.message(torch.cat([h[src], h[dst]], -1))
        got = torch.zeros_like(h).index_add(0, dst, m) / 4
        h = self.update(torch.cat([h, got], -1))
        pooled = torch.zeros(len(sizes), h.shape[1]).index_add(0, graph, h)
        return self.readout(pooled / sizes[:, None])


def coloured_graphs(n):
    """Rings with chords; in graphs of class 1, neighbours tend to have the same colour."""
    out = []
    for _ in range(n):
        k, y = int(torch.randint(6, 11, ())), int(torch.randint(2, ()))
        x = torch.randint(3, (k,))
        pairs = torch.combinations(torch.arange(k))
        same = (x[pairs[:, 0]] == x[pairs[:, 1]]).float()
        p = torch.where(same == y, 0.5, 0.08)
        p = p * torch.where(same == 1, 1.0, 0.7)
        kept = pairs[torch.rand(len(pairs)) < p]
        out.append((x, torch.cat([kept, kept.flip(1)]).T, y))
    return out


def collate_graphs(rows, offset=True):
    xs, edges, graph, at = [], [], [], 0
    for g, (x, e, _) in enumerate(rows):
        xs.append(x)
        edges.append(e + at if offset else e)
        graph.append(torch.full((len(x),), g))
        at += len(x)
    sizes = torch.tensor([float(len(x)) for x in xs])
    inputs = {"x": torch.cat(xs), "edge_index": torch.cat(edges, 1), "graph": torch.cat(graph), "sizes": sizes}
    return inputs, torch.tensor([y for *_, y in rows])


@fault(
    "the collate function does not shift edges by the nodes before them: all edges lie in the first graphs of a batch",
    rules=["mixed-examples", "labels-unrelated"],
    fails=True,
    steps=300,
)
def xtg_edges_without_offset(is_faulty):
    graphs = coloured_graphs(700)
    model = Gin()
    held, y = collate_graphs(graphs[550:])
    return Program(
        model,
        nn.CrossEntropyLoss(),
        DataLoader(
            graphs[:550], batch_size=25, shuffle=True, collate_fn=lambda rows: collate_graphs(rows, not is_faulty)
        ),
        torch.optim.Adam(model.parameters(), lr=5e-3),
        lambda m: accuracy(m(**held), y),
    )


class Citation(nn.Module):
    def __init__(self, a, always):
        super().__init__()
        self.register_buffer("a", a)
        self.conv1, self.conv2 = nn.Linear(60, 16), nn.Linear(16, 5)
        self.always = always

    def drop(self, x):
        return F.dropout(x, 0.7) if self.always else F.dropout(x, 0.7, training=self.training)

    def forward(self, x):
        x = F.relu(self.a @ self.conv1(self.drop(x)))
        return self.a @ self.conv2(self.drop(x))


@fault(
    "F.dropout without training=self.training: it stays on in evaluation mode",
    rules=["dropout-in-eval"],
    fails=False,
    steps=200,
)
def xtg_functional_dropout(is_faulty):
    x, a, y = blocks(200, 5, 0.06, 0.012, 60, 3.5)
    train, test = halves(y)
    model = Citation(normalised(a), is_faulty)
    return Program(
        model,
        lambda z, t: F.cross_entropy(z[train], t[train]),
        [(x, y)],
        torch.optim.Adam(model.parameters(), lr=1e-2, weight_decay=5e-4),
        lambda m: accuracy(m(x)[test], y[test]),
    )


