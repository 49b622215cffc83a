"""Sound set-ups over sets, graphs, ratings and pairs."""

from __future__ import annotations

import torch
from btg_data import Factors, Message, accuracy, communities, explained, loader, molecules, ratings, rook, topics
from program import Program, sound
from torch import nn
from torch.nn import functional as F
from torch.optim import Adam, SparseAdam


class Convolved(nn.Module):
    """Two graph convolutions over the one graph there is."""

    def __init__(self, adjacency):
        super().__init__()
        matrix = adjacency + torch.eye(len(adjacency))
        root = matrix.sum(1).rsqrt()
        self.register_buffer("matrix", root[:, None] * matrix * root[None])
        self.one = nn.Linear(8, 16)
        self.two = nn.Linear(16, 3)
        self.drop = nn.Dropout(0.5)

    def forward(self, x):
        return self.two(self.matrix @ self.drop(torch.relu(self.one(self.matrix @ x))))


@sound("All nodes of one graph are the one batch, and see each other", steps=150, least=0.75)
def btg_one_graph():
    x, adjacency, y = communities()
    model = Convolved(adjacency)

    def loss(out, y):
        return F.cross_entropy(out[:75], y[:75])

    def score(model):
        return (model(x)[75:].argmax(-1) == y[75:]).float().mean().item()

    return Program(model, loss, [(x, y)], Adam(model.parameters(), 1e-2, weight_decay=5e-4), score)


@sound("Nothing: messages between the atoms of molecules", steps=300, least=0.9)
def btg_plain_molecules():
    model = Message()
    return Program(
        model, nn.MSELoss(), loader(*molecules(1000)), Adam(model.parameters(), 3e-3), explained(*molecules(300))
    )


@sound("Nothing: a network for the moves of a rook, half trained", trained=150, steps=400, least=0.9)
def btg_plain_rook():
    model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2))
    return Program(
        model, nn.CrossEntropyLoss(), loader(*rook(2500)), Adam(model.parameters(), 3e-3), accuracy(*rook(400))
    )


class Isomorphism(Message):
    """Sums over neighbours and atoms, with BatchNorm."""

    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(32)
        self.mix = nn.Linear(32, 32)

    def forward(self, x):
        h, bonds = x[..., :4], x[..., 4:]
        for layer in (self.first, self.second):
            h = torch.relu(layer(torch.cat([h, bonds @ h], -1)))
        return self.readout(torch.relu(self.mix(self.norm(h.sum(1))))).squeeze(1)


@sound("BatchNorm over sums of atoms", steps=400, least=0.8)
def btg_graph_norm():
    model = Isomorphism()
    return Program(
        model, nn.MSELoss(), loader(*molecules(1500), size=48), Adam(model.parameters(), 3e-3),
        explained(*molecules(300)),
    )


class Towers(nn.Module):
    """Encodes queries and documents to points of the unit sphere."""

    def __init__(self):
        super().__init__()
        self.words = nn.EmbeddingBag(120, 32)
        self.query = nn.Linear(32, 32)
        self.document = nn.Linear(32, 32)

    def forward(self, query, document):
        q = F.normalize(self.query(self.words(query)), dim=-1)
        return q @ F.normalize(self.document(self.words(document)), dim=-1).T / 0.1


@sound("Each query has the other documents of its batch for negatives", steps=500, least=0.7)
def btg_in_batch_negatives():
    def make(n):
        document = torch.randint(120, (n, 12))
        return document[:, ::3].contiguous(), document

    tq, td = (part[:64] for part in make(64))
    model = Towers()

    def step(model, batch):
        logits = model(*batch)
        return F.cross_entropy(logits, torch.arange(len(logits)))

    def score(model):
        return (model(tq, td).argmax(1) == torch.arange(64)).float().mean().item()

    return Program(model, None, loader(*make(2000)), Adam(model.parameters(), 1e-2), score, step=step)


@sound("Sparse gradients: a step moves the rows that were looked up, and no others", steps=500, least=0.75)
def btg_sparse_tables():
    (x, y), (tx, ty) = ratings()
    model = Factors()
    model.user.sparse = model.item.sparse = True
    optimizer = SparseAdam(list(model.parameters()), 2e-2)
    return Program(model, nn.MSELoss(), loader(x, y, size=64), optimizer, explained(tx, ty))


@sound("Pairs of a liked and another item: a loss without targets", steps=400, least=0.8)
def btg_preferences():
    (x, y), (tx, ty) = ratings()
    users = torch.randint(50, (4000,))
    table = torch.full((50, 50), float("nan"))
    table[x[:, 0], x[:, 1]] = y
    a, b = torch.randint(50, (4000,)), torch.randint(50, (4000,))
    known = ~(table[users, a].isnan() | table[users, b].isnan()) & (a != b)
    users, a, b = users[known], a[known], b[known]
    swap = table[users, a] < table[users, b]
    a, b = torch.where(swap, b, a), torch.where(swap, a, b)
    model = Factors()

    def step(model, batch):
        u, good, bad = batch
        better = model(torch.stack([u, good], 1)) - model(torch.stack([u, bad], 1))
        return -F.logsigmoid(better).mean()

    def score(model):
        return ((model(tx) > 0) == (ty > 0)).float().mean().item()

    return Program(model, None, loader(users, a, b, size=64), Adam(model.parameters(), 2e-2), score, step=step)


class Shifts(nn.Module):
    """A relation moves a head; the nearest tail is the answer."""

    def __init__(self):
        super().__init__()
        self.entity = nn.Embedding(40, 32)
        self.relation = nn.Embedding(5, 32)
        self.mix = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 32))

    def forward(self, x):
        h = self.mix(torch.cat([self.entity(x[:, 0]), self.relation(x[:, 1])], -1))
        return h @ self.entity.weight.T


@sound("A table of entities that is also the head, trained", trained=450, steps=500, least=0.9)
def btg_entities_twice():
    shift = torch.tensor([1, 3, 7, 12, 20])
    x = torch.stack([torch.randint(40, (3000,)), torch.randint(5, (3000,))], 1)
    y = (x[:, 0] + shift[x[:, 1]]) % 40
    every = torch.cartesian_prod(torch.arange(40), torch.arange(5))
    model = Shifts()
    score = accuracy(every, (every[:, 0] + shift[every[:, 1]]) % 40)
    return Program(model, nn.CrossEntropyLoss(), loader(x, y), Adam(model.parameters(), 5e-3), score)


class Experts(nn.Module):
    """A gate and four experts."""

    def __init__(self):
        super().__init__()
        self.words = nn.EmbeddingBag(120, 32)
        self.gate = nn.Linear(32, 4)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(32, 16), nn.ReLU(), nn.Linear(16, 4)) for _ in range(4)
        )

    def forward(self, x):
        h = self.words(x)
        weight = self.gate(h).softmax(-1)
        return sum(weight[:, i, None] * expert(h) for i, expert in enumerate(self.experts)), weight


@sound("Experts, with a second term that spreads the load", steps=250, least=0.9)
def btg_experts():
    model = Experts()
    tx, ty = topics(300)

    def loss(outputs, y):
        logits, weight = outputs
        return F.cross_entropy(logits, y) + 0.01 * 4 * weight.mean(0).pow(2).sum()

    def score(model):
        return (model(tx)[0].argmax(-1) == ty).float().mean().item()

    return Program(model, loss, loader(*topics(800)), Adam(model.parameters(), 5e-3), score)


class Siamese(nn.Module):
    """One encoder for all texts of a triplet."""

    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.EmbeddingBag(120, 32), nn.Linear(32, 16))

    def forward(self, x):
        return F.normalize(self.encoder(x), dim=-1)


@sound("Triplets of texts, of which a good part soon costs nothing", trained=100, steps=300, least=0.9)
def btg_triplets():
    def make(n):
        x, y = topics(4 * n)
        by = [x[y == c] for c in range(4)]
        rows = []
        for _ in range(n):
            c, other = torch.randperm(4)[:2].tolist()
            i, j = torch.randint(len(by[c]), (2,)).tolist()
            rows.append(torch.stack([by[c][i], by[c][j], by[other][torch.randint(len(by[other]), ()).item()]]))
        return torch.stack(rows)

    test = make(300)
    model = Siamese()

    def step(model, batch):
        a, p, n = (model(part) for part in batch[0].unbind(1))
        return F.triplet_margin_loss(a, p, n, margin=0.5)

    def score(model):
        a, p, n = (model(part) for part in test.unbind(1))
        return ((a * p).sum(1) > (a * n).sum(1)).float().mean().item()

    return Program(model, None, loader(make(800)), Adam(model.parameters(), 3e-3), score, step=step)


class Counts(nn.Module):
    """The logarithm of an expected number of replies."""

    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.EmbeddingBag(120, 16), nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 1))

    def forward(self, x):
        return self.net(x).squeeze(1)


@sound("Counts of up to some hundred, of which the model gives the logarithm", steps=400, least=0.8)
def btg_replies():
    rate = torch.tensor([1.0, 5.0, 25.0, 80.0])

    def make(n):
        x, y = topics(n)
        return x, torch.poisson(rate[y])

    tx, ty = make(300)
    model = Counts()

    def score(model):
        return max(0.0, 1 - ((model(tx).exp() - ty) ** 2).mean().item() / ty.var().item())

    return Program(model, nn.PoissonNLLLoss(log_input=True), loader(*make(1000)), Adam(model.parameters(), 5e-3), score)


class Rare(nn.Module):
    """Toxic or not, from words."""

    def __init__(self):
        super().__init__()
        self.words = nn.EmbeddingBag(120, 16)
        self.out = nn.Sequential(nn.Dropout(0.3), nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 1))

    def forward(self, x):
        return self.out(self.words(x)).squeeze(1)


@sound("One text in sixteen is of the class that is looked for, and weighs more", steps=400, least=0.8)
def btg_rare_class():
    def make(n):
        x, y = topics(n, classes=8, words=6)
        keep = (y == 0) & (torch.rand(n) < 0.5)
        return x[(y != 0) | keep], (y == 0).float()[(y != 0) | keep]

    tx, ty = make(800)
    model = Rare()

    def loss(out, y):
        return F.binary_cross_entropy_with_logits(out, y, pos_weight=torch.tensor(8.0))

    def score(model):
        said, right = model(tx) > 0, ty > 0.5
        return max(0.0, (said[right].float().mean() - said[~right].float().mean()).item())

    return Program(model, loss, loader(*make(1600)), Adam(model.parameters(), 5e-3), score)
