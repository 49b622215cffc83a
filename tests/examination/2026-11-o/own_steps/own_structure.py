"""Graphs, sets, mixtures of experts."""

import copy

import torch
import torch.nn.functional as F
from program import Program, fault, sound
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset


def r2(got: Tensor, want: Tensor) -> float:
    return max(0.0, 1 - ((got - want).pow(2).mean() / (want - want.mean(0)).pow(2).mean()).item())


# ---------------------------------------------------------------- a graph of four groups


class Graph:
    def __init__(self, n=240, inside=0.12, outside=0.02, noise=1.2):
        self.y = torch.arange(4).repeat(n // 4)
        same = self.y[:, None] == self.y[None]
        up = (torch.rand(n, n) < torch.where(same, inside, outside)).triu(1)
        self.adj = (up | up.T).float()
        self.x = F.one_hot(self.y, 4).float() @ torch.randn(4, 12) * 0.7 + noise * torch.randn(n, 12)
        order = torch.randperm(n)
        self.train = torch.zeros(n, dtype=torch.bool)
        self.train[order[: n // 2]] = True

    def normalised(self):
        a = self.adj + torch.eye(len(self.adj))
        d = a.sum(1).rsqrt()
        return d[:, None] * a * d[None]

    def averaged(self):
        a = self.adj + torch.eye(len(self.adj))
        return a / a.sum(1, keepdim=True)

    def score(self, model):
        said = model(self.x).argmax(1)
        right = (said == self.y)[~self.train].float().mean().item()
        return max(0.0, (right - 0.25) / 0.75)


class GCN(nn.Module):
    def __init__(self, adj, widths, drop=0.0):
        super().__init__()
        self.register_buffer("adj", adj)
        self.lins = nn.ModuleList([nn.Linear(i, o) for i, o in zip(widths, widths[1:])])
        self.drop = nn.Dropout(drop)

    def forward(self, x):
        for i, lin in enumerate(self.lins):
            x = self.adj @ lin(self.drop(x))
            if i + 1 < len(self.lins):
                x = x.relu()
        return x


@fault(
    "twelve rounds of averaging over neighbours, with nothing that goes round them: all nodes become the same",
    rules=["rank-collapse", "vanishing-gradient", "activation-drift", "loss-not-decreasing"],
    fails=True,
    steps=300,
)
def gcn_oversmoothed(is_faulty):
    class Deep(nn.Module):
        def __init__(self, adj, rounds=12, width=32):
            super().__init__()
            self.register_buffer("adj", adj)
            self.embed = nn.Linear(12, width)
            self.rounds = nn.ModuleList([nn.Linear(width, width) for _ in range(rounds)])
            self.classify = nn.Linear(width, 4)

        def forward(self, x):
            h = self.embed(x)
            for lin in self.rounds:
                new = F.relu(lin(self.adj @ h))
                h = new if is_faulty else h + 0.3 * new
            return self.classify(h)

    graph = Graph()
    net = Deep(graph.averaged())

    def loss(out, y):
        return F.cross_entropy(out, y, ignore_index=-100)

    y = torch.where(graph.train, graph.y, -100)
    return Program(net, loss, [(graph.x, y)], torch.optim.Adam(net.parameters(), lr=2e-3), graph.score)


@fault(
    "messages are summed over a dense graph, layer after layer, where the mean was meant",
    rules=["activation-drift", "exploding-gradient", "saturated-output", "learning-rate-too-high", "bad-initialisation"],
    fails=True,
    steps=300,
)
def gnn_summed_messages(is_faulty):
    graph = Graph(inside=0.35, outside=0.15)
    a = graph.adj + torch.eye(len(graph.adj))
    if not is_faulty:
        a = a / a.sum(1, keepdim=True)

    class Layer(nn.Module):
        def __init__(self, i, o):
            super().__init__()
            self.own, self.others = nn.Linear(i, o), nn.Linear(i, o, bias=False)

        def forward(self, h):
            return self.own(h) + self.others(a @ h)

    net = nn.Sequential(Layer(12, 32), nn.ReLU(), Layer(32, 32), nn.ReLU(), Layer(32, 32), nn.ReLU(), Layer(32, 4))

    def step(model, batch):
        x, y, mask = batch
        return F.cross_entropy(model(x)[mask], y[mask])

    opt = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    return Program(net, None, [(graph.x, graph.y, graph.train)], opt, graph.score, step=step)


@fault(
    "nodes without a label hold 0 in the table, and 0 is a class: the loss takes them in",
    rules=["padding-in-loss", "labels-unrelated"],
    fails=True,
    steps=200,
)
def gcn_unlabelled_as_zero(is_faulty):
    graph = Graph()
    labelled = graph.train & (torch.rand(len(graph.y)) < 0.4)
    table = torch.where(labelled, graph.y, 0)
    net = GCN(graph.normalised(), [12, 32, 4])

    def step(model, data):
        x, y, mask = data
        logits = model(x)
        if is_faulty:
            return F.cross_entropy(logits, y)
        return F.cross_entropy(logits[mask], y[mask])

    opt = torch.optim.Adam(net.parameters(), lr=5e-3, weight_decay=5e-4)
    return Program(net, None, [(graph.x, table, labelled)], opt, graph.score, step=step)


# ---------------------------------------------------------------- sets

ITEMS, FEATURES = 10, 4


def bags(n, seed=None):
    """Sets of 2 to 9 items of 4 numbers, padded with 0 to 10, and what they are worth."""
    g = None if seed is None else torch.Generator().manual_seed(seed)
    x = torch.randn(n, ITEMS, FEATURES, generator=g)
    count = torch.randint(2, ITEMS, (n, 1), generator=g)
    valid = torch.arange(ITEMS)[None] < count
    x = x * valid[..., None]
    worth = (x[..., 0] * (x[..., 1] > 0) + x[..., 2]) * valid
    return x, valid, worth.sum(1) / count[:, 0] ** 0.5


class Dicts:
    def __init__(self, x, valid, y, size=64):
        self.data = DataLoader(TensorDataset(x, valid, y), batch_size=size, shuffle=True)

    def __len__(self):
        return len(self.data)

    def __iter__(self):
        for x, valid, y in self.data:
            yield {"items": x, "valid": valid}, y


class SetAttention(nn.Module):
    def __init__(self, width=32, inverted=False):
        super().__init__()
        self.inverted = inverted
        self.embed = nn.Sequential(nn.Linear(FEATURES, width), nn.ReLU(), nn.Linear(width, width))
        self.seed = nn.Parameter(torch.randn(1, 4, width) * 0.3)
        self.pool = nn.MultiheadAttention(width, 4, batch_first=True)
        self.out = nn.Sequential(nn.Linear(4 * width + 1, 64), nn.ReLU(), nn.Linear(64, 1))

    def forward(self, items, valid):
        h = self.embed(items)
        mask = valid if self.inverted else ~valid
        pooled = self.pool(self.seed.expand(len(h), -1, -1), h, h, key_padding_mask=mask, need_weights=False)[0]
        size = valid.sum(1, keepdim=True) / ITEMS
        return self.out(torch.cat([pooled.flatten(1), size], 1)).squeeze(1)


def bag_score(model):
    x, valid, y = bags(800, 1)
    return r2(model(items=x, valid=valid), y)


@fault(
    "key_padding_mask is True for what is real, and the pooling attends to padding only",
    rules=["wrong-mask"],
    layers=["pool"],
    fails=True,
    steps=500,
)
def set_mask_inverted(is_faulty):
    net = SetAttention(inverted=is_faulty)
    return Program(net, nn.MSELoss(), Dicts(*bags(5000)), torch.optim.Adam(net.parameters(), lr=3e-3), bag_score)


class AttentionMIL(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.dim = dim
        self.embed = nn.Sequential(nn.Linear(5, 32), nn.ReLU())
        self.score = nn.Sequential(nn.Linear(32, 16), nn.Tanh(), nn.Linear(16, 1))
        self.head = nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 1))

    def forward(self, bag):
        h = self.embed(bag)
        a = torch.softmax(self.score(h), dim=self.dim)
        return self.head((a * h).sum(1)).squeeze(1)


def instances(n, seed=None):
    """Bags of 12; the instance that is first in one feature counts."""
    g = None if seed is None else torch.Generator().manual_seed(seed)
    x = torch.randn(n, 12, 5, generator=g)
    which = x[..., 0].argmax(1)
    return x, x[torch.arange(n), which, 1:3].sum(1)


def mil_score(model):
    x, y = instances(800, 5)
    return r2(model(x), y)


@fault(
    "attention over the instances of a bag is a softmax over a dimension of one, so that all weights are 1",
    rules=["wrong-softmax-dimension", "no-gradient"],
    layers=["score"],
    fails=False,
    steps=600,
)
def mil_softmax_of_one(is_faulty):
    net = AttentionMIL(dim=-1 if is_faulty else 1)
    loader = DataLoader(TensorDataset(*instances(5000)), batch_size=64, shuffle=True)

    def step(model, batch):
        bag, label = batch
        return F.mse_loss(model(bag), label)

    return Program(net, None, loader, torch.optim.Adam(net.parameters(), lr=4e-3), mil_score, step=step)


@fault(
    "nn.MultiheadAttention without batch_first: the items attend to the same place of other sets",
    rules=["mixed-examples"],
    layers=["attention"],
    fails=False,
    steps=500,
)
def set_attends_across_batch(is_faulty):
    class Relate(nn.Module):
        def __init__(self):
            super().__init__()
            self.inp = nn.Linear(4, 32)
            self.attention = nn.MultiheadAttention(32, 4, batch_first=not is_faulty)
            self.norm = nn.LayerNorm(32)
            self.out = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 1))

        def forward(self, x):
            h = self.inp(x)
            h = self.norm(h + self.attention(h, h, h)[0])
            return self.out(h).squeeze(-1)

    def make(n, seed=None):
        g = None if seed is None else torch.Generator().manual_seed(seed)
        x = torch.randn(n, 6, 4, generator=g)
        return x, 2 * x[..., 0].mean(1, keepdim=True) * torch.ones(6) + 0.3 * x[..., 1]

    def score(model):
        x, y = make(64, 3)
        return r2(model(x), y)

    net = Relate()
    loader = DataLoader(TensorDataset(*make(6000)), batch_size=64, shuffle=True)

    def step(model, batch):
        x, y = batch
        return F.mse_loss(model(x), y)

    return Program(net, None, loader, torch.optim.AdamW(net.parameters(), lr=3e-3), score, step=step)


# ---------------------------------------------------------------- mixtures of experts

_gen = torch.Generator().manual_seed(77)
PLANES = torch.randn(4, 8, 2, generator=_gen) / 2
CORNERS = torch.tensor([[1.0, 1.0], [1.0, -1.0], [-1.0, 1.0], [-1.0, -1.0]]) * 1.5


def regimes(n, seed=None):
    """Four regimes, each with its own linear rule; the first two inputs tell which."""
    g = None if seed is None else torch.Generator().manual_seed(seed)
    k = torch.randint(4, (n,), generator=g)
    x = torch.randn(n, 8, generator=g)
    x[:, :2] = CORNERS[k] + 0.3 * x[:, :2]
    return x, torch.einsum("bi,bio->bo", x, PLANES[k])


def regime_score(model):
    x, y = regimes(1000, 4)
    out = model(x)
    return r2(out[0] if isinstance(out, tuple) else out, y)


class MoE(nn.Module):
    def __init__(self, experts, gate=None):
        super().__init__()
        self.experts = nn.ModuleList(experts)
        self.gate = gate or nn.Linear(8, len(self.experts))

    def forward(self, x):
        w = self.gate(x).softmax(-1)
        y = torch.stack([e(x) for e in self.experts], 1)
        return (w[..., None] * y).sum(1)


@fault(
    "`[Linear(8, 2)] * 4` is four times the same expert",
    rules=["shared-weight", "symmetric-initialisation"],
    layers=["experts"],
    fails=False,
    steps=500,
)
def moe_one_expert_four_times(is_faulty):
    net = MoE([nn.Linear(8, 2)] * 4 if is_faulty else [nn.Linear(8, 2) for _ in range(4)])
    loader = DataLoader(TensorDataset(*regimes(5000)), batch_size=64, shuffle=True)
    return Program(net, nn.MSELoss(), loader, torch.optim.Adam(net.parameters(), lr=1e-2), regime_score)


@fault(
    "all experts are copies of one dense layer, and the gate starts at 0: they get the same gradient for ever",
    rules=["symmetric-initialisation", "bad-initialisation"],
    layers=["experts", "gate"],
    fails=False,
    steps=500,
)
def moe_copied_experts(is_faulty):
    dense = nn.Sequential(nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 2))
    gate = nn.Linear(8, 4)
    nn.init.zeros_(gate.weight)
    nn.init.zeros_(gate.bias)
    experts = [copy.deepcopy(dense) for _ in range(4)]
    if not is_faulty:
        for e in experts:
            e[0].reset_parameters()
            e[2].reset_parameters()
    net = MoE(experts, gate)

    def step(model, batch):
        x, y = batch
        return (model(x) - y).square().mean()

    return Program(
        net, None, list(zip(*(t.split(64) for t in regimes(6400)))), torch.optim.Adam(net.parameters(), lr=5e-3),
        regime_score, step=step,
    )


@fault(
    "the router picks by argmax, and its probability is not multiplied to what the expert gives: it never learns",
    rules=["no-gradient"],
    layers=["router"],
    fails=False,
    steps=600,
)
def moe_router_argmax(is_faulty):
    class Routed(nn.Module):
        def __init__(self):
            super().__init__()
            self.router = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))
            self.experts = nn.ModuleList([nn.Linear(8, 2) for _ in range(4)])

        def forward(self, x):
            p = self.router(x).softmax(-1)
            if is_faulty:
                p = F.one_hot(p.argmax(-1), 4).float()
            else:
                p = p + (F.one_hot(p.argmax(-1), 4) - p).detach()
            return sum(p[:, i, None] * e(x) for i, e in enumerate(self.experts))

    net = Routed()
    loader = DataLoader(TensorDataset(*regimes(5000)), batch_size=64, shuffle=True)

    def step(model, batch):
        x, y = batch
        return F.mse_loss(model(x), y)

    return Program(net, None, loader, torch.optim.Adam(net.parameters(), lr=1e-2), regime_score, step=step)


# ---------------------------------------------------------------- sound


@sound("a graph net with one batch, the whole graph, of which half the nodes count", steps=200, least=0.75)
def gcn_full_batch():
    graph = Graph()
    net = GCN(graph.normalised(), [12, 32, 4], drop=0.3)

    def step(model, data):
        x, y, mask = data
        return F.cross_entropy(model(x)[mask], y[mask])

    opt = torch.optim.Adam(net.parameters(), lr=1e-2, weight_decay=5e-4)
    return Program(net, None, [(graph.x, graph.y, graph.train)], opt, graph.score, step=step)


@sound("a graph net whose nodes see their neighbours, half trained, with labels to be ignored", trained=60, steps=200,
       least=0.75)
def gcn_ignored_labels():
    graph = Graph(noise=1.0)
    net = GCN(graph.averaged(), [12, 48, 48, 4])
    y = torch.where(graph.train, graph.y, -100)
    return Program(
        net, nn.CrossEntropyLoss(), [(graph.x, y)], torch.optim.AdamW(net.parameters(), lr=5e-3), graph.score
    )


@sound("a deep set: items that are real are summed, the order does not matter", steps=500, least=0.75)
def deep_set_sum():
    class DeepSet(nn.Module):
        def __init__(self):
            super().__init__()
            self.phi = nn.Sequential(nn.Linear(FEATURES, 64), nn.ReLU(), nn.Linear(64, 32))
            self.rho = nn.Sequential(nn.Linear(33, 64), nn.ReLU(), nn.Linear(64, 1))

        def forward(self, items, valid):
            h = (self.phi(items) * valid[..., None]).sum(1)
            return self.rho(torch.cat([h, valid.sum(1, keepdim=True) / ITEMS], 1)).squeeze(1)

    net = DeepSet()
    return Program(net, F.mse_loss, Dicts(*bags(5000)), torch.optim.Adam(net.parameters(), lr=2e-3), bag_score)


@sound("attention over padded sets with a mask that is right", steps=500, least=0.75)
def set_attention_masked():
    net = SetAttention()

    def step(model, batch):
        inputs, worth = batch
        return F.smooth_l1_loss(model(**inputs), worth)

    return Program(
        net, None, Dicts(*bags(5000)), torch.optim.Adam(net.parameters(), lr=3e-3), bag_score, step=step
    )


@sound("trained attention over bags, which looks at one instance because that is the one that counts", trained=500,
       steps=600, least=0.75)
def mil_looks_at_one():
    net = AttentionMIL(dim=1)
    loader = DataLoader(TensorDataset(*instances(5000)), batch_size=64, shuffle=True)
    return Program(net, nn.MSELoss(), loader, torch.optim.Adam(net.parameters(), lr=4e-3), mil_score)


@sound("an ordinary mixture of experts with a balance loss", steps=500, least=0.75)
def moe_ordinary():
    class Sparse(nn.Module):
        def __init__(self):
            super().__init__()
            self.router = nn.Linear(8, 6)
            self.experts = nn.ModuleList(
                [nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2)) for _ in range(6)]
            )

        def forward(self, x):
            p = self.router(x).softmax(-1)
            top, who = p.topk(2, dim=-1)
            w = torch.zeros_like(p).scatter(1, who, top / top.sum(1, keepdim=True))
            out = sum(w[:, i, None] * e(x) for i, e in enumerate(self.experts))
            return out, 6 * ((w > 0).float().mean(0) / 2 * p.mean(0)).sum()

    net = Sparse()

    def step(model, batch):
        x, y = batch
        out, balance = model(x)
        return F.mse_loss(out, y) + 0.01 * balance

    loader = DataLoader(TensorDataset(*regimes(5000)), batch_size=64, shuffle=True)
    return Program(net, None, loader, torch.optim.Adam(net.parameters(), lr=5e-3), regime_score, step=step)
