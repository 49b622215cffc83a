"""Faulty programs on graphs, recommenders, pairs and what is near."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from atg_data import (
    accuracy,
    communities,
    explained,
    loader,
    molecules,
    normalised,
    ratings,
    topics,
    translated,
)
from program import Program, fault
from torch import nn


class Convolutions(nn.Module):
    """A graph network on one graph."""

    def __init__(self, adjacency, width, classes, depth=2, hidden=24, residual=False):
        super().__init__()
        self.register_buffer("adjacency", adjacency)
        self.first = nn.Linear(width, hidden)
        self.layers = nn.ModuleList(nn.Linear(hidden, hidden) for _ in range(depth))
        self.out = nn.Linear(hidden, classes)
        self.residual = residual

    def forward(self, x):
        h = F.relu(self.first(x))
        for layer in self.layers:
            new = F.relu(layer(self.adjacency @ h))
            h = h + new if self.residual else new
        return self.out(h)


def split(y, known=60):
    """Targets for training, and for the score, with -100 elsewhere."""
    order = torch.randperm(len(y))
    train, held = y.clone(), y.clone()
    train[order[known:]] = -100
    held[order[:known]] = -100
    return train, held


@fault("sixteen graph convolutions without residuals smooth everything away",
       rules=["rank-collapse", "vanishing-gradient"], layers=["layers"], fails=False, steps=120)
def atg_papers_smoothed_away(is_faulty):
    a, x, y = communities(noise=1.0)
    train, held = split(y)
    model = Convolutions(normalised(a), 12, 3, depth=16, residual=not is_faulty)
    return Program(model, nn.CrossEntropyLoss(), [(x, train)], torch.optim.Adam(model.parameters(), 1e-3),
                   accuracy(x, held))


@fault("neighbours are summed, never averaged, in a graph of many links",
       rules=["activation-drift", "exploding-gradient", "learning-rate-too-high", "diverging", "non-finite"],
       fails=True, steps=100)
def atg_crowded_graph_summed(is_faulty):
    a, x, y = communities(inside=0.5, outside=0.2, noise=1.0)
    train, held = split(y)
    a = a + torch.eye(len(a))
    if not is_faulty:
        a = a / a.sum(1, keepdim=True)
    model = Convolutions(a, 12, 3, depth=6, residual=True)
    return Program(model, nn.CrossEntropyLoss(), [(x, train)], torch.optim.SGD(model.parameters(), 0.05, momentum=0.9),
                   accuracy(x, held))


class Factors(nn.Module):
    """Users times items."""

    def __init__(self, users, items, width=8):
        super().__init__()
        self.user = nn.Embedding(users, width)
        self.item = nn.Embedding(items, width)
        for table in (self.user, self.item):
            nn.init.normal_(table.weight, std=0.3)

    def forward(self, pairs):
        return (self.user(pairs[:, 0]) * self.item(pairs[:, 1])).sum(-1)


@fault("the table of items is the table of users", rules=["shared-weight"], layers=["user", "item"], fails=True,
       steps=500)
def atg_films_share_table_of_users(is_faulty):
    pairs, r = ratings()
    model = Factors(60, 60)
    if is_faulty:
        model.item = model.user
    return Program(model, nn.MSELoss(), loader(pairs[:3000], r[:3000], size=128),
                   torch.optim.Adam(model.parameters(), 2e-2), explained(pairs[3000:], r[3000:]))


class Messages(nn.Module):
    """A network on small molecules, with a sum at its end."""

    def __init__(self, kinds=4, width=32):
        super().__init__()
        self.embed = nn.Linear(kinds, width)
        self.message = nn.Linear(width, width)
        self.update = nn.Linear(2 * width, width)
        self.out = nn.Linear(width, 1)

    def forward(self, atoms, bonds):
        h = F.relu(self.embed(atoms))
        for _ in range(2):
            h = F.relu(self.update(torch.cat([h, bonds @ self.message(h) / 3], -1)))
        return self.out(h).sum(1).squeeze(-1)


class Molecules:
    """A loader of dicts."""

    def __init__(self, atoms, bonds, energy, size=32):
        self.parts, self.size = (atoms, bonds, energy), size

    def __iter__(self):
        for rows in torch.randperm(len(self.parts[0])).split(self.size):
            atoms, bonds, energy = (part[rows] for part in self.parts)
            yield {"atoms": atoms, "bonds": bonds}, energy


@fault("energies in the hundreds, as they come from the chemistry program", rules=["unscaled-target"], fails=False,
       steps=400)
def atg_energies_as_computed(is_faulty):
    atoms, bonds, energy = molecules(1200)
    energy = 40 * energy - 900
    mean, std = (0.0, 1.0) if is_faulty else (energy[:1000].mean(), energy[:1000].std())
    model = Messages()

    def score(m):
        guess = m(atoms[1000:], bonds[1000:]) * std + mean
        real = energy[1000:]
        return max(0.0, (1 - ((guess - real) ** 2).mean() / real.var()).item())

    return Program(model, nn.MSELoss(), Molecules(atoms[:1000], bonds[:1000], (energy[:1000] - mean) / std),
                   torch.optim.Adam(model.parameters(), 2e-3), score)


@fault("years and citation counts next to features near 1", rules=["unscaled-input", "ill-conditioned-input"],
       layers=["first"], fails=False, steps=200)
def atg_citations_unscaled(is_faulty):
    a, x, y = communities(noise=1.0)
    train, held = split(y)
    year = 2000 + 10 * torch.randn(len(x), 1)
    cited = torch.rand(len(x), 1).pow(-1.2).clamp(max=3000) * 20
    x = torch.cat([x, year, cited], 1)
    if not is_faulty:
        x = (x - x.mean(0)) / x.std(0)
    model = Convolutions(normalised(a), 14, 3, depth=1)
    return Program(model, nn.CrossEntropyLoss(), [(x, train)], torch.optim.Adam(model.parameters(), 2e-3),
                   accuracy(x, held))


class Towers(nn.Module):
    """Two bags of words, made comparable."""

    def __init__(self, vocab=80, width=32):
        super().__init__()
        self.left = nn.EmbeddingBag(vocab, width)
        self.right = nn.EmbeddingBag(vocab, width)

    def forward(self, pair):
        return F.normalize(self.left(pair[0]), dim=-1), F.normalize(self.right(pair[1]), dim=-1)


@fault("in-batch negatives with labels 0, as if the positive stood in the first column",
       rules=["output-loss-mismatch", "constant-target"], fails=True, steps=300)
def atg_pairs_with_labels_zero(is_faulty):
    a, b = translated(1400)
    model = Towers()

    def step(m, batch):
        left, right = m(batch)
        logits = left @ right.T / 0.1
        labels = torch.zeros(len(logits), dtype=torch.long) if is_faulty else torch.arange(len(logits))
        return F.cross_entropy(logits, labels)

    def score(m):
        left, right = m((a[1200:], b[1200:]))
        return ((left @ right.T).argmax(1) == torch.arange(200)).float().mean().item()

    return Program(model, None, loader(a[:1200], b[:1200]), torch.optim.Adam(model.parameters(), 1e-2), score,
                   step=step)


class Spans(nn.Module):
    """Detects rare mentions in windows of words."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(100, 16)
        self.one = nn.Linear(16 * 3, 48)
        self.two = nn.Linear(48, 32)
        self.out = nn.Linear(32, 1)

    def forward(self, x):
        h = self.embed(x).flatten(1)
        return self.out(F.relu(self.two(F.relu(self.one(h))))).squeeze(-1)


@fault("the bias for a rare class is given to all layers, not only the last",
       rules=["dying-neurons", "bad-initialisation"], layers=["one", "two"], fails=True, steps=400)
def atg_mentions_prior_in_all_layers(is_faulty):
    names = torch.randperm(100)[:30]
    x = torch.randint(100, (3000, 3))
    y = torch.isin(x[:, 1], names).float()
    model = Spans()
    prior = -math.log((1 - 0.01) / 0.01)
    for layer in (model.one, model.two, model.out) if is_faulty else (model.out,):
        nn.init.constant_(layer.bias, prior)

    def score(m):
        guess, real = m(x[2600:]) > 0, y[2600:] > 0
        return 2 * (guess & real).sum().item() / max(1, (guess.sum() + real.sum()).item())

    return Program(model, nn.BCEWithLogitsLoss(), loader(x[:2600], y[:2600], size=64),
                   torch.optim.Adam(model.parameters(), 3e-3), score)


class Solubility(nn.Module):
    """Sums of atoms and of bonds, normalised over the batch."""

    def __init__(self, momentum):
        super().__init__()
        self.norm = nn.BatchNorm1d(20, momentum=momentum)
        self.body = nn.Sequential(nn.Linear(20, 48), nn.ReLU(), nn.Linear(48, 1))

    def forward(self, x):
        return self.body(self.norm(x)).squeeze(-1)


@fault("a momentum with which the running statistics hardly move in a run of this length",
       rules=["batchnorm-mode-gap"], layers=["norm"], fails=True, steps=300)
def atg_solubility_statistics_stand_still(is_faulty):
    atoms, bonds, energy = molecules(1400, 12)
    pairs = torch.einsum("bik,bij,bjl->bkl", atoms, bonds, atoms).flatten(1)
    x = torch.cat([5 * atoms.sum(1), pairs], 1)
    y = (energy - energy.mean()) / energy.std()
    model = Solubility(0.0005 if is_faulty else 0.1)
    return Program(model, nn.MSELoss(), loader(x[:1200], y[:1200]), torch.optim.Adam(model.parameters(), 3e-3),
                   explained(x[1200:], y[1200:]))


class Bottleneck(nn.Module):
    """A noisy code of a text, and its class."""

    def __init__(self, classes):
        super().__init__()
        self.bag = nn.EmbeddingBag(120, 32)
        self.mean = nn.Linear(32, 16)
        self.spread = nn.Linear(32, 16)
        self.head = nn.Linear(16, classes)

    def forward(self, x):
        h = self.bag(x)
        mean, log_var = self.mean(h), self.spread(h)
        code = mean + torch.randn_like(mean) * (0.5 * log_var).exp() if self.training else mean
        return self.head(code), mean, log_var


@fault("the divergence is a sum over batch and code next to a mean of cross entropies",
       rules=["term-dominates"], fails=True, steps=300)
def atg_bottleneck_divergence_summed(is_faulty):
    x, y = topics(1500, 16, classes=5, share=0.4)
    model = Bottleneck(5)

    def step(m, batch):
        logits, mean, log_var = m(batch[0])
        divergence = 0.5 * (mean**2 + log_var.exp() - 1 - log_var)
        return F.cross_entropy(logits, batch[1]) + (divergence.sum() if is_faulty else 0.01 * divergence.mean())

    def score(m):
        return (m(x[1200:])[0].argmax(-1) == y[1200:]).float().mean().item()

    return Program(model, None, loader(x[:1200], y[:1200]), torch.optim.Adam(model.parameters(), 5e-3), score,
                   step=step)


class Translations(nn.Module):
    """Heads plus relations, near to tails."""

    def __init__(self, entities, relations, width=6):
        super().__init__()
        self.entity = nn.Embedding(entities, width)
        self.relation = nn.Embedding(relations, width)
        nn.init.normal_(self.entity.weight, std=0.5)

    def forward(self, triples):
        h, r, t = triples.unbind(-1)
        return (self.entity(h) + self.relation(r) - self.entity(t)).norm(dim=-1)


def grid_facts(side=9):
    """Facts on a grid: so far to the right and up; in random order."""
    shifts = [(1, 0), (0, 1), (1, 1), (2, 0), (0, 2), (2, 1)]
    facts = [
        (i * side + j, k, (i + a) * side + j + b)
        for i in range(side) for j in range(side) for k, (a, b) in enumerate(shifts)
        if i + a < side and j + b < side
    ]
    facts = torch.tensor(facts)
    return facts[torch.randperm(len(facts))]


def hits(model, facts, entities, known, most=5):
    """The share of facts whose tail is among the nearest."""
    tries = facts[:, None].repeat(1, entities, 1)
    tries[..., 2] = torch.arange(entities)
    distance = model(tries)
    for row, (h, r, _) in enumerate(facts.tolist()):
        distance[row, known[(known[:, 0] == h) & (known[:, 1] == r), 2]] = float("inf")
    rank = (distance < model(facts)[:, None]).sum(1)
    return (rank < most).float().mean().item()


@fault("the ranking loss takes distances for similarities", rules=["output-loss-mismatch"], fails=True, steps=600)
def atg_facts_ranked_backwards(is_faulty):
    facts = grid_facts()
    known, held = facts[:330], facts[330:]
    model = Translations(81, 6)
    criterion = nn.MarginRankingLoss(margin=1.0)

    def step(m, batch):
        good = batch[0].repeat(6, 1)
        bad = good.clone()
        bad[:, 2] = torch.randint(81, (len(good),))
        near, far = m(good), m(bad)
        return criterion(near, far, torch.ones(len(good)) * (1 if is_faulty else -1))

    return Program(model, None, loader(known), torch.optim.Adam(model.parameters(), 3e-2),
                   lambda m: hits(m, held, 81, known), step=step)


@fault("an epsilon of 1 in Adam on small gradients", rules=["optimizer-setting", "learning-rate-too-low"],
       fails=True, steps=400)
def atg_links_epsilon_of_one(is_faulty):
    pairs, r = ratings(60, 60, 2)
    y = (r > 0).float()
    model = Factors(60, 60)
    optimizer = torch.optim.Adam(model.parameters(), 1e-2, eps=1.0 if is_faulty else 1e-8)

    def score(m):
        return max(0.0, 2 * ((m(pairs[3000:]) > 0) == (y[3000:] > 0)).float().mean().item() - 1)

    return Program(model, F.binary_cross_entropy_with_logits, loader(pairs[:3000], y[:3000], size=100), optimizer,
                   score)


class Lowered(nn.Module):
    """A matcher kept in a given precision."""

    def __init__(self, classes):
        super().__init__()
        self.bag = nn.EmbeddingBag(120, 64)
        self.body = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, classes))

    def forward(self, x):
        return self.body(self.bag(x)).float()


@fault("weights kept in bfloat16, and steps too small for it", rules=["lost-updates"], fails=False, steps=600)
def atg_adapter_in_bfloat16(is_faulty):
    x, y = topics(1500, 16, classes=4, share=0.5)
    model = Lowered(4)
    with torch.no_grad():
        for layer in (model.body[0], model.body[2]):
            layer.weight.mul_(2)
    if is_faulty:
        model = model.bfloat16()
    return Program(model, F.cross_entropy, loader(x[:1200], y[:1200]),
                   torch.optim.AdamW(model.parameters(), 2e-4), accuracy(x[1200:], y[1200:]))
