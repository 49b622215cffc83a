"""Sound programs on graphs, recommenders, pairs and what is near."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from atg_data import accuracy, communities, explained, loader, molecules, normalised, ratings, topics, translated
from program import Program, sound
from torch import nn


def split(y, known=60):
    """Targets for training, and for the score, with -100 elsewhere."""
    order = torch.randperm(len(y))
    train, held = y.clone(), y.clone()
    train[order[known:]] = -100
    held[order[:known]] = -100
    return train, held


class Gcn(nn.Module):
    """Two graph convolutions."""

    def __init__(self, adjacency, width, classes):
        super().__init__()
        self.register_buffer("adjacency", adjacency)
        self.one, self.two = nn.Linear(width, 24), nn.Linear(24, classes)
        self.drop = nn.Dropout(0.5)

    def forward(self, x):
        h = F.relu(self.adjacency @ self.one(x))
        return self.adjacency @ self.two(self.drop(h))


@sound("an ordinary graph network: one batch, whose nodes see each other; most targets are hidden", steps=150,
       least=0.85)
def atg_gcn_ordinary():
    a, x, y = communities()
    train, held = split(y)
    model = Gcn(normalised(a), 12, 3)
    return Program(model, nn.CrossEntropyLoss(), [(x, train)],
                   torch.optim.Adam(model.parameters(), 1e-2, weight_decay=5e-4), accuracy(x, held))


@sound("a simplified graph network: linear by intention", steps=200, least=0.85)
def atg_simplified_graph():
    a, x, y = communities()
    train, held = split(y)
    a = normalised(a)
    x = a @ a @ x
    model = nn.Linear(12, 3)
    return Program(model, nn.CrossEntropyLoss(), [(x, train)], torch.optim.Adam(model.parameters(), 3e-2),
                   accuracy(x, held))


class Biased(nn.Module):
    """Factors and biases."""

    def __init__(self, users, items, width=8, std=0.05):
        super().__init__()
        self.user, self.item = nn.Embedding(users, width), nn.Embedding(items, width)
        self.user_bias, self.item_bias = nn.Embedding(users, 1), nn.Embedding(items, 1)
        for table in (self.user, self.item):
            nn.init.normal_(table.weight, std=std)
        for table in (self.user_bias, self.item_bias):
            nn.init.zeros_(table.weight)

    def forward(self, pairs):
        u, i = pairs.unbind(1)
        return (self.user(u) * self.item(i)).sum(1) + (self.user_bias(u) + self.item_bias(i)).squeeze(1)


@sound("small factors and zero biases of a recommender", steps=500, least=0.8)
def atg_recommender_small_start():
    pairs, r = ratings()
    model = Biased(60, 60)
    return Program(model, nn.MSELoss(), loader(pairs[:3000], r[:3000], size=128),
                   torch.optim.Adam(model.parameters(), 2e-2), explained(pairs[3000:], r[3000:]))


@sound("an ordinary recommender, half trained", trained=200, steps=500, least=0.8)
def atg_recommender_half_trained():
    pairs, r = ratings(50, 70)
    model = Biased(50, 70, std=0.3)
    return Program(model, nn.MSELoss(), loader(pairs[:3000], r[:3000], size=128),
                   torch.optim.Adam(model.parameters(), 2e-2), explained(pairs[3000:], r[3000:]))


class Twins(nn.Module):
    """One encoder for both sides."""

    def __init__(self, vocab=160, width=64):
        super().__init__()
        self.embed = nn.EmbeddingBag(vocab, width)
        self.body = nn.Sequential(nn.Linear(width, 96), nn.ReLU(), nn.Linear(96, 64))

    def forward(self, pair):
        a, b = (F.normalize(self.body(self.embed(side)), dim=-1) for side in pair)
        return a @ b.T / 0.07


@sound("contrastive pairs: outputs depend on the batch by design, one encoder serves both sides, sharp temperature",
       steps=600, least=0.65)
def atg_twin_encoder():
    a, b = translated(1400)
    b = b + 80
    model = Twins()

    def step(m, batch):
        logits = m(batch)
        same = torch.arange(len(logits))
        return 0.5 * (F.cross_entropy(logits, same) + F.cross_entropy(logits.T, same))

    def score(m):
        return (m((a[1200:], b[1200:])).argmax(1) == torch.arange(200)).float().mean().item()

    return Program(model, None, loader(a[:1200], b[:1200], size=48), torch.optim.Adam(model.parameters(), 1e-2), score,
                   step=step)


@sound("a set network: order does not matter to the question", steps=500, least=0.7)
def atg_sets_without_order():
    worth = torch.randn(30)
    x = torch.randint(30, (2500, 7))
    y = worth[x].amax(1) - worth[x].amin(1)
    y = (y - y.mean()) / y.std()

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.phi = nn.Sequential(nn.Embedding(30, 32), nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 64))
            self.rho = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))

        def forward(self, x):
            return self.rho(self.phi(x).amax(1)).squeeze(-1)

    model = Model()
    return Program(model, nn.MSELoss(), loader(x[:2200], y[:2200], size=64),
                   torch.optim.Adam(model.parameters(), 3e-3), explained(x[2200:], y[2200:]))


class Skip(nn.Module):
    """Word vectors from contexts."""

    def __init__(self, vocab, width=16):
        super().__init__()
        self.word, self.context = nn.Embedding(vocab, width), nn.Embedding(vocab, width)
        nn.init.uniform_(self.word.weight, -0.5 / width, 0.5 / width)
        nn.init.zeros_(self.context.weight)

    def forward(self, pairs):
        return (self.word(pairs[:, 0]) * self.context(pairs[:, 1])).sum(-1)


@sound("word2vec: contexts begin at zero, words near it, and nothing is nonlinear", steps=500, least=0.7)
def atg_words_from_contexts():
    vocab, groups = 80, 4
    word = torch.randint(vocab, (6000,))
    near = (word % groups) + groups * torch.randint(vocab // groups, (6000,))
    pairs = torch.stack([torch.cat([word, word]), torch.cat([near, torch.randint(vocab, (6000,))])], 1)
    y = torch.cat([torch.ones(6000), torch.zeros(6000)])
    model = Skip(vocab)
    test = torch.cartesian_prod(torch.arange(vocab), torch.arange(vocab))
    same = test[:, 0] % groups == test[:, 1] % groups

    def score(m):
        guess = m(test) > 0
        return 2 * (guess & same).sum().item() / max(1, (guess.sum() + same.sum()).item())

    return Program(model, F.binary_cross_entropy_with_logits, loader(pairs, y, size=128),
                   torch.optim.Adam(model.parameters(), 2e-2), score)


class MoleculeNet(nn.Module):
    """Messages over bonds, with BatchNorm over graphs."""

    def __init__(self, kinds=4, width=32, norm=False):
        super().__init__()
        self.embed = nn.Linear(kinds, width)
        self.update = nn.Linear(2 * width, width)
        self.norm = nn.BatchNorm1d(width) if norm else nn.Identity()
        self.out = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 1))

    def forward(self, atoms, bonds):
        h = F.relu(self.embed(atoms))
        h = F.relu(self.update(torch.cat([h, bonds @ h / 3], -1)))
        return self.out(self.norm(h.sum(1))).squeeze(-1)


class Graphs:
    """A loader of dicts."""

    def __init__(self, atoms, bonds, energy, size):
        self.parts, self.size = (atoms, bonds, energy), size

    def __iter__(self):
        for rows in torch.randperm(len(self.parts[0])).split(self.size):
            if len(rows) == self.size:
                atoms, bonds, energy = (part[rows] for part in self.parts)
                yield {"atoms": atoms, "bonds": bonds}, energy


def molecule_program(size, norm):
    """Energies of molecules."""
    atoms, bonds, energy = molecules(1300)
    energy = (energy - energy.mean()) / energy.std()
    model = MoleculeNet(norm=norm)

    def score(m):
        guess, real = m(atoms[1100:], bonds[1100:]), energy[1100:]
        return max(0.0, (1 - ((guess - real) ** 2).mean() / real.var()).item())

    return Program(model, nn.MSELoss(), Graphs(atoms[:1100], bonds[:1100], energy[:1100], size),
                   torch.optim.Adam(model.parameters(), 3e-3), score)


@sound("ordinary molecules", steps=300, least=0.75)
def atg_molecules_ordinary():
    return molecule_program(32, False)


@sound("BatchNorm over sixteen molecules, which is enough; trained", trained=300, steps=400, least=0.7)
def atg_molecules_batchnorm_of_sixteen():
    return molecule_program(16, True)


@sound("ordinary network on scaled counts of words", trained=120, steps=300, least=0.85)
def atg_counts_ordinary():
    words, y = topics(1500, 20, classes=5)
    x = F.one_hot(words, 120).sum(1).float().log1p()
    model = nn.Sequential(nn.Linear(120, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 5))
    return Program(model, nn.CrossEntropyLoss(), loader(x[:1200], y[:1200]),
                   torch.optim.Adam(model.parameters(), 1e-3), accuracy(x[1200:], y[1200:]))


class Experts(nn.Module):
    """Four experts and a gate that begins at zero."""

    def __init__(self, classes):
        super().__init__()
        self.bag = nn.EmbeddingBag(120, 32)
        self.gate = nn.Linear(32, 4)
        nn.init.zeros_(self.gate.weight)
        nn.init.zeros_(self.gate.bias)
        self.experts = nn.ModuleList(nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, classes))
                                     for _ in range(4))

    def forward(self, x):
        h = self.bag(x)
        share = self.gate(h).softmax(-1)
        return torch.einsum("be,ebc->bc", share, torch.stack([e(h) for e in self.experts])), share


@sound("a mixture of experts whose gate begins at zero, with a term for balance", steps=300, least=0.85)
def atg_experts_balanced():
    x, y = topics(1500, 16, classes=6)
    model = Experts(6)

    def loss(outputs, t):
        logits, share = outputs
        return F.cross_entropy(logits, t) + 0.1 * 4 * (share.mean(0) ** 2).sum()

    return Program(model, loss, loader(x[:1200], y[:1200]), torch.optim.Adam(model.parameters(), 3e-3),
                   lambda m: (m(x[1200:])[0].argmax(-1) == y[1200:]).float().mean().item())


@sound("replies ranked by a margin: no target, and a loss that is often 0", steps=400, least=0.7)
def atg_replies_by_margin():
    a, b = translated(1400)

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.left, self.right = nn.EmbeddingBag(80, 32), nn.EmbeddingBag(80, 32)

        def forward(self, a, b):
            return F.cosine_similarity(self.left(a)[:, None], self.right(b)[None], dim=-1)

    model = Model()

    def step(m, batch):
        s = m(*batch)
        good = s.diagonal()[:, None]
        return (0.4 - good + s).clamp(min=0)[~torch.eye(len(s), dtype=torch.bool)].mean()

    def score(m):
        return (m(a[1200:], b[1200:]).argmax(1) == torch.arange(200)).float().mean().item()

    return Program(model, None, loader(a[:1200], b[:1200]), torch.optim.Adam(model.parameters(), 1e-2), score,
                   step=step)


class Tall(nn.Module):
    """Twelve residual graph layers with norms before them."""

    def __init__(self, adjacency, width, classes):
        super().__init__()
        self.register_buffer("adjacency", adjacency)
        self.first = nn.Linear(width, 16)
        self.norms = nn.ModuleList(nn.LayerNorm(16) for _ in range(12))
        self.layers = nn.ModuleList(nn.Linear(16, 16) for _ in range(12))
        self.out = nn.Linear(16, classes)

    def forward(self, x):
        h = self.first(x)
        for norm, layer in zip(self.norms, self.layers, strict=True):
            h = h + 0.5 * F.relu(layer(self.adjacency @ norm(h)))
        return self.out(h)


@sound("a deep graph network, which residuals and norms keep apart", steps=150, least=0.85)
def atg_tall_graph():
    a, x, y = communities(noise=1.2)
    train, held = split(y)
    model = Tall(normalised(a), 12, 3)
    return Program(model, nn.CrossEntropyLoss(), [(x, train)], torch.optim.AdamW(model.parameters(), 3e-3),
                   accuracy(x, held))


@sound("rare positives: most targets are 0, and the last bias says so", steps=400, least=0.8)
def atg_rare_mentions():
    names = torch.randperm(100)[:8]
    x = torch.randint(100, (4000, 3))
    y = torch.isin(x[:, 1], names).float()

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(100, 16)
            self.body = nn.Sequential(nn.Linear(48, 48), nn.ReLU(), nn.Linear(48, 1))
            nn.init.constant_(self.body[2].bias, -2.4)

        def forward(self, x):
            return self.body(self.embed(x).flatten(1)).squeeze(-1)

    model = Model()

    def score(m):
        guess, real = m(x[3500:]) > 0, y[3500:] > 0
        return 2 * (guess & real).sum().item() / max(1, (guess.sum() + real.sum()).item())

    return Program(model, nn.BCEWithLogitsLoss(pos_weight=torch.tensor(3.0)), loader(x[:3500], y[:3500], size=64),
                   torch.optim.Adam(model.parameters(), 5e-3), score)


class Links(nn.Module):
    """Scores links by the vectors of nodes, of which there is one table."""

    def __init__(self, nodes):
        super().__init__()
        self.node = nn.Embedding(nodes, 8)
        self.bias = nn.Parameter(torch.zeros(()))

    def forward(self, pairs):
        return (self.node(pairs[:, 0]) * self.node(pairs[:, 1])).sum(-1) + self.bias


@sound("links of a graph without directions: both ends share one table, plain SGD with a rate of 3", steps=600,
       least=0.7)
def atg_links_one_table():
    y = torch.arange(60) % 3
    pairs = torch.combinations(torch.arange(60))
    pairs = pairs[torch.randperm(len(pairs))]
    link = (y[pairs[:, 0]] == y[pairs[:, 1]]) ^ (torch.rand(len(pairs)) < 0.03)
    model = Links(60)

    def score(m):
        guess, real = m(pairs[1400:]) > 0, link[1400:]
        return 2 * (guess & real).sum().item() / max(1, (guess.sum() + real.sum()).item())

    return Program(model, F.binary_cross_entropy_with_logits, loader(pairs[:1400], link[:1400].float(), size=100),
                   torch.optim.SGD(model.parameters(), 3.0), score)
