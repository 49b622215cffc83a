"""Graphs, retrieval, recommenders and adapters, with a fault."""

import torch
import torch.nn.functional as F
from program import Program, fault
from torch import nn
from torch.utils.data import DataLoader
from vtg_data import DictRows, accuracy, blocks, normalised, r2, topics, views, vtg_loader


class Relational(nn.Module):
    def __init__(self, copies):
        super().__init__()
        self.own = nn.Linear(6, 32)
        self.relations = nn.ModuleList([nn.Linear(32, 32)] * 3 if copies else [nn.Linear(32, 32) for _ in range(3)])
        self.out = nn.Linear(32, 3)

    def forward(self, x, adj):
        h = torch.relu(self.own(x))
        messages = sum(adj[:, r] @ lin(h) for r, lin in enumerate(self.relations))
        return self.out(torch.relu(h + messages))


@fault(
    "[nn.Linear(…)] * 3 gives all relations of an R-GCN one weight",
    rules=["shared-weight"],
    layers=["relations"],
    fails=True,
    steps=400,
)
def vtg_rgcn_relations_are_one(is_faulty):
    def make(n):
        x = torch.randn(n, 9, 6)
        kind = torch.randint(3, (n, 9, 9))
        linked = torch.rand(n, 9, 9) < 0.35
        adj = torch.stack([((kind == r) & linked).float() for r in range(3)], 1)
        s = torch.stack([(adj[:, r] @ x[..., :1])[..., 0] for r in range(3)], -1)
        return {"x": x, "adj": adj}, s.argmax(-1)

    (x, y), (xt, yt) = make(2048), make(300)
    model = Relational(is_faulty)
    return Program(
        model=model,
        loss=lambda out, target: F.cross_entropy(out.flatten(0, 1), target.flatten()),
        batches=DataLoader(DictRows(x, y), batch_size=32, shuffle=True),
        optimizer=torch.optim.Adam(model.parameters(), lr=4e-3),
        score=lambda m: accuracy(m(**xt), yt),
    )


class DeepGcn(nn.Module):
    def __init__(self, a_hat, residual):
        super().__init__()
        self.register_buffer("a_hat", a_hat)
        self.residual = residual
        self.lift = nn.Linear(16, 32)
        self.convs = nn.ModuleList(nn.Linear(32, 32) for _ in range(24))
        self.out = nn.Linear(32, 4)

    def forward(self, x):
        h = first = F.relu(self.lift(x))
        for conv in self.convs:
            m = F.relu(conv(self.a_hat @ h))
            h = 0.7 * m + 0.5 * first if self.residual else m
        return self.out(h)


@fault(
    "24 graph convolutions without residuals smooth all nodes into one",
    rules=["rank-collapse", "vanishing-gradient", "activation-drift"],
    layers=["convs"],
    fails=True,
    steps=150,
)
def vtg_gcn_oversmooths(is_faulty):
    y, a = blocks(160, 4)
    x = 0.7 * torch.randn(4, 16)[y] + torch.randn(160, 16)
    test = torch.rand(160) < 0.5
    target = y.masked_fill(test, -100)
    model = DeepGcn(normalised(a), residual=not is_faulty)
    return Program(
        model=model,
        loss=nn.CrossEntropyLoss(ignore_index=-100),
        batches=[(x, target)],
        optimizer=torch.optim.Adam(model.parameters(), lr=3e-3, weight_decay=5e-4),
        score=lambda m: accuracy(m(x)[test], y[test]),
    )


class Gin(nn.Module):
    def __init__(self):
        super().__init__()
        self.f1 = nn.Sequential(nn.Linear(2, 32), nn.ReLU(), nn.Linear(32, 32))
        self.f2 = nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 32))
        self.readout = nn.Linear(32, 1)

    def forward(self, x, edge_index, batch):
        src, dst = edge_index
        h = self.f1(x + torch.zeros_like(x).index_add(0, dst, x[src]))
        h = torch.relu(h)
        h = self.f2(h + torch.zeros_like(h).index_add(0, dst, h[src]))
        n = int(batch.max()) + 1
        pooled = h.new_zeros(n, 32).index_add(0, batch, h) / 10
        return self.readout(pooled)[:, 0]


@fault(
    "the collate function joins graphs without an offset on their edges, which all lie in the first graphs then",
    rules=["mixed-examples", "labels-unrelated"],
    fails=True,
    steps=400,
)
def vtg_edges_without_offset(is_faulty):
    def one():
        n = int(torch.randint(8, 13, ()))
        colour = torch.randint(2, (n,))
        label = int(torch.randint(2, ()))
        same = colour[:, None] == colour[None]
        p = torch.where(same == bool(label), 0.45, 0.12)
        edges = (torch.rand(n, n) < p).triu(1)
        edges = (edges | edges.T).nonzero().T
        return F.one_hot(colour, 2).float(), edges, label

    data = [one() for _ in range(900)]

    def collate(graphs, offsets=not is_faulty):
        xs, es, bs, total = [], [], [], 0
        for i, (x, e, _) in enumerate(graphs):
            xs.append(x)
            es.append(e + total if offsets else e)
            bs.append(torch.full((len(x),), i))
            total += len(x)
        inputs = {"x": torch.cat(xs), "edge_index": torch.cat(es, 1), "batch": torch.cat(bs)}
        return inputs, torch.tensor([float(g[2]) for g in graphs])

    model = Gin()
    xt, yt = collate(data[700:], offsets=True)
    return Program(
        model=model,
        loss=F.binary_cross_entropy_with_logits,
        batches=DataLoader(data[:700], batch_size=32, shuffle=True, collate_fn=collate),
        optimizer=torch.optim.Adam(model.parameters(), lr=3e-3),
        score=lambda m: ((m(**xt) > 0) == (yt > 0.5)).float().mean().item(),
    )


def tower(width):
    return nn.Sequential(nn.Linear(width, 64), nn.ReLU(), nn.Linear(64, 16))


class Towers(nn.Module):
    def __init__(self, left, right):
        super().__init__()
        self.query, self.document = tower(left), tower(right)

    def forward(self, q, d):
        return self.query(q), self.document(d)


def recall(model, q, d):
    a, b = model(q, d)
    return sum(
        (torch.cdist(a[i : i + 64], b[i : i + 64]).argmin(1) == torch.arange(64)).float().mean().item() / 4
        for i in range(0, 256, 64)
    )


@fault(
    "distances, instead of what is minus a distance, are the logits of in-batch retrieval",
    rules=["output-loss-mismatch"],
    fails=True,
    steps=350,
)
def vtg_distances_as_logits(is_faulty):
    left, right = torch.randn(8, 20) / 3, torch.randn(8, 24) / 3
    q, d = views(2304, 8, left, right)
    model = Towers(20, 24)

    def step(model, batch):
        a, b = model(*batch)
        distances = (a[:, None] - b[None]).square().sum(-1)
        logits = distances if is_faulty else -distances
        return F.cross_entropy(logits, torch.arange(len(a)))

    return Program(
        model=model,
        loss=None,
        batches=vtg_loader(q[:2048], d[:2048], batch=64),
        optimizer=torch.optim.Adam(model.parameters(), lr=2e-3),
        score=lambda m: recall(m, q[2048:], d[2048:]),
        step=step,
    )


class Factors(nn.Module):
    def __init__(self, users, items, dim, std):
        super().__init__()
        self.user, self.item = nn.Embedding(users, dim), nn.Embedding(items, dim)
        self.user_bias, self.item_bias = nn.Embedding(users, 1), nn.Embedding(items, 1)
        if std is not None:
            nn.init.normal_(self.user.weight, std=std)
            nn.init.normal_(self.item.weight, std=std)
        nn.init.zeros_(self.user_bias.weight)
        nn.init.zeros_(self.item_bias.weight)

    def forward(self, pair):
        u, i = pair[:, 0], pair[:, 1]
        dot = (self.user(u) * self.item(i)).sum(1)
        return dot + self.user_bias(u)[:, 0] + self.item_bias(i)[:, 0]


def ratings(users, items, n, rank=3):
    p, q = torch.randn(users, rank), torch.randn(items, rank)
    pair = torch.stack([torch.randint(users, (n,)), torch.randint(items, (n,))], 1)
    value = (p[pair[:, 0]] * q[pair[:, 1]]).sum(1) / rank**0.5
    value = value + 0.7 * torch.randn(users)[pair[:, 0]] + 0.7 * torch.randn(items)[pair[:, 1]]
    return pair, value / 1.4


@fault(
    "embeddings of 96 numbers of standard deviation 1 multiply to predictions ten times too large",
    rules=["bad-initialisation"],
    layers=["user", "item"],
    fails=True,
    steps=600,
)
def vtg_factors_start_large(is_faulty):
    pair, y = ratings(60, 80, 4096)
    model = Factors(60, 80, 96, None if is_faulty else 0.05)
    return Program(
        model=model,
        loss=nn.MSELoss(),
        batches=vtg_loader(pair[:3584], y[:3584], batch=128),
        optimizer=torch.optim.Adam(model.parameters(), lr=5e-3),
        score=lambda m: r2(m(pair[3584:]), y[3584:]),
    )


class Ncf(nn.Module):
    def __init__(self, users, items):
        super().__init__()
        self.u, self.i = nn.Embedding(users, 16), nn.Embedding(items, 16)
        self.mlp = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 1))

    def forward(self, user, item):
        return self.mlp(torch.cat([self.u(user), self.i(item)], -1)).squeeze(-1)


@fault(
    "stars count as a like above 0 instead of above 3, and all stars are above 0",
    rules=["constant-target"],
    fails=True,
    steps=500,
)
def vtg_everybody_likes_everything(is_faulty):
    pair, value = ratings(50, 60, 5120, rank=2)
    stars = (3.4 + 1.5 * value).round().clamp(1, 5)
    like = (stars > (0 if is_faulty else 3)).float()
    x = {"user": pair[:, 0], "item": pair[:, 1]}
    xt = {k: v[4608:] for k, v in x.items()}
    truth = stars[4608:] > 3
    model = Ncf(50, 60)
    return Program(
        model=model,
        loss=nn.BCEWithLogitsLoss(),
        batches=DataLoader(DictRows({k: v[:4608] for k, v in x.items()}, like[:4608]), 128, shuffle=True),
        optimizer=torch.optim.Adam(model.parameters(), lr=5e-3),
        score=lambda m: ((m(**xt) > 0) == truth).float().mean().item(),
    )


@fault(
    "the penalty on embeddings of a pairwise ranking outweighs the ranking",
    rules=["term-dominates", "weight-decay-dominates"],
    fails=True,
    steps=500,
)
def vtg_ranking_penalty_dominates(is_faulty):
    p, q = torch.randn(80, 3), torch.randn(70, 3)
    taste = p @ q.T

    def triples(n):
        u, i, j = torch.randint(80, (n,)), torch.randint(70, (n,)), torch.randint(70, (n,))
        better = taste[u, i] > taste[u, j]
        return u, torch.where(better, i, j), torch.where(better, j, i)

    train, test = triples(6144), triples(1024)
    model = nn.ModuleDict({"fans": nn.Embedding(80, 8), "songs": nn.Embedding(70, 8)})
    for table in model.values():
        nn.init.normal_(table.weight, std=0.3)
    penalty = 0.5 if is_faulty else 1e-3

    def margins(m, u, i, j):
        e = m["fans"](u)
        return (e * (m["songs"](i) - m["songs"](j))).sum(1)

    def step(m, batch):
        u, i, j = batch
        rank = -F.logsigmoid(margins(m, u, i, j)).mean()
        norms = m["fans"](u).square().sum(1) + m["songs"](i).square().sum(1) + m["songs"](j).square().sum(1)
        return rank + penalty * norms.mean()

    return Program(
        model=model,
        loss=None,
        batches=vtg_loader(*train, batch=128),
        optimizer=torch.optim.Adam(model.parameters(), lr=1e-2),
        score=lambda m: max(-1.0, 2 * (margins(m, *test) > 1e-3).float().mean().item() - 1),
        step=step,
    )


class Topic(nn.Module):
    def __init__(self, vocab, classes):
        super().__init__()
        self.bag = nn.EmbeddingBag(vocab, 32, mode="mean")
        self.trunk = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU())
        self.classifier = nn.Linear(64, classes)

    def forward(self, ids):
        return self.classifier(self.trunk(self.bag(ids)))


def pretrained(classes, noise=0.4):
    """A model of topics, the vocabulary of which later tasks share."""
    ids, y, vocab = topics(1024, 14, classes, per_topic=8, noise=noise)
    model = Topic(vocab, classes)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    for _ in range(200):
        pick = torch.randint(1024, (64,))
        optimizer.zero_grad()
        F.cross_entropy(model(ids[pick]), y[pick]).backward()
        optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return model


@fault(
    "the optimizer is made before the head is replaced, and steps the old head",
    rules=["no-gradient"],
    layers=["classifier"],
    fails=True,
    steps=250,
)
def vtg_head_replaced_after_optimizer(is_faulty):
    model = pretrained(10)
    ids, y, _ = topics(1536, 14, 10, per_topic=8, noise=0.4)
    y = y % 4
    model.requires_grad_(False)
    head = nn.Linear(64, 4)
    if is_faulty:
        model.classifier.requires_grad_(True)
        optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=5e-3)
        model.classifier = head
    else:
        model.classifier = head
        optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=5e-3)
    return Program(
        model=model,
        loss=F.cross_entropy,
        batches=vtg_loader(ids[:1152], y[:1152], batch=32),
        optimizer=optimizer,
        score=lambda m: accuracy(m(ids[1152:]), y[1152:]),
    )


@fault(
    "a model is fine-tuned in pure bfloat16, in which steps of a small rate are rounded away",
    rules=["lost-updates"],
    fails=True,
    steps=600,
)
def vtg_fine_tuned_in_bfloat16(is_faulty):
    model = pretrained(8)
    ids, y, _ = topics(1536, 14, 8, per_topic=8, noise=0.4)
    y = torch.roll(torch.arange(8), 3)[y]
    if is_faulty:
        model = model.to(torch.bfloat16)
    return Program(
        model=model,
        loss=lambda out, target: F.cross_entropy(out.float(), target),
        batches=vtg_loader(ids[:1152], y[:1152], batch=32),
        optimizer=torch.optim.AdamW(model.parameters(), lr=3e-4, weight_decay=0.0),
        score=lambda m: accuracy(m(ids[1152:]).float(), y[1152:]),
    )
