"""Latent variables, pairs, and graphs."""

import torch
import torch.nn.functional as F
from own_common import gen, loader
from program import Program, fault
from torch import nn


class VAE(nn.Module):
    def __init__(self, d=16, h=64, z=4):
        super().__init__()
        self.enc = nn.Sequential(nn.Linear(d, h), nn.ReLU(), nn.Linear(h, 2 * z))
        self.dec = nn.Sequential(nn.Linear(z, h), nn.ReLU(), nn.Linear(h, d))

    def forward(self, x):
        mu, logvar = self.enc(x).chunk(2, -1)
        z = mu + torch.randn_like(mu) * (0.5 * logvar).exp() if self.training else mu
        return self.dec(z), mu, logvar


def low_rank(n, d, seed):
    g = gen(seed)
    z = torch.randn(n, 3, generator=g)
    a = torch.randn(3, d, generator=g)
    x = torch.tanh(z @ a) + 0.05 * torch.randn(n, d, generator=g)
    return x / x.std()


@fault("real and fake go through a discriminator with BatchNorm in batches of their own; it is used on mixed ones", rules=["sorted-batches", "batchnorm-mode-gap", "mixed-examples"], fails=True, steps=150)
def discriminator_batches_apart(bad):
    g = gen(5)
    real = torch.randn(1500, 8, generator=g) + 0.9
    fake = torch.randn(1500, 8, generator=g) * 1.1 - 0.3
    m = nn.Sequential(nn.Linear(8, 48), nn.BatchNorm1d(48), nn.LeakyReLU(0.2), nn.Linear(48, 48), nn.BatchNorm1d(48), nn.LeakyReLU(0.2), nn.Linear(48, 1))

    def step(d, batch):
        r, f = batch
        if bad:
            a, b = d(r), d(f)
        else:
            a, b = d(torch.cat([r, f])).chunk(2)
        return F.binary_cross_entropy_with_logits(a, torch.ones_like(a)) + F.binary_cross_entropy_with_logits(b, torch.zeros_like(b))

    def score(d):
        x = torch.cat([real[1200:], fake[1200:]])
        y = torch.cat([torch.ones(300), torch.zeros(300)])
        p = d(x).squeeze(1) > 0
        return 2 * float((p == y.bool()).float().mean()) - 1

    return Program(m, None, loader(real[:1200], fake[:1200]), torch.optim.Adam(m.parameters(), 2e-3), score, step=step)


def two_views(n, seed):
    g = gen(seed)
    z = torch.randn(n, 6, generator=g)
    a = torch.tanh(z @ torch.randn(6, 20, generator=g)) + 0.1 * torch.randn(n, 20, generator=g)
    b = torch.tanh(z @ torch.randn(6, 14, generator=g)) + 0.1 * torch.randn(n, 14, generator=g)
    return a, b


class Towers(nn.Module):
    def __init__(self):
        super().__init__()
        self.image = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 16))
        self.text = nn.Sequential(nn.Linear(14, 64), nn.ReLU(), nn.Linear(64, 16))

    def forward(self, a, b):
        return F.normalize(self.image(a), dim=-1) @ F.normalize(self.text(b), dim=-1).T / 0.1


def retrieval(a, b):
    return lambda m: float((m(a, b).argmax(1) == torch.arange(len(a))).float().mean())


@fault("InfoNCE over the matrix of similarities, but the labels are zeros as for [positive, negatives...]", rules=["constant-target", "output-loss-mismatch", "labels-unrelated"], fails=True, steps=250)
def infonce_labels_all_zero(bad):
    a, b = two_views(1344, 11)
    m = Towers()

    def step(model, batch):
        sim = model(*batch)
        labels = torch.zeros(len(sim), dtype=torch.long) if bad else torch.arange(len(sim))
        return F.cross_entropy(sim, labels)

    return Program(m, None, loader(a[:1280], b[:1280]), torch.optim.Adam(m.parameters(), 2e-3), retrieval(a[1280:], b[1280:]), step=step)


def noisy_classes(n, seed, k=6):
    """Classes in 4 of 24 dimensions, the rest is loud noise."""
    g = gen(seed)
    c = 3 * torch.randn(k, 4, generator=g)
    y = torch.randint(0, k, (n,), generator=g)
    x = torch.cat([c[y] + torch.randn(n, 4, generator=g) * 0.7, 3.5 * torch.randn(n, 20, generator=g)], 1)
    return x / x.std(), y


def graph(n, k, degree, seed):
    """Nodes of k classes that know mostly nodes of their class; features are weak."""
    g = gen(seed)
    y = torch.randint(0, k, (n,), generator=g)
    same = (y[:, None] == y[None]).float()
    p = degree / n * (same * 0.75 * k + (1 - same) * 0.25 * k / (k - 1))
    a = (torch.rand(n, n, generator=g) < p).float().triu(1)
    a = a + a.T + torch.eye(n)
    x = F.one_hot(y, k).float() @ torch.randn(k, 16, generator=g) + 1.5 * torch.randn(n, 16, generator=g)
    return a, x / x.std(), y


class GCN(nn.Module):
    def __init__(self, a, depth, h=32, k=4, rounds=1):
        super().__init__()
        self.register_buffer("adj", a)
        self.layers = nn.ModuleList([nn.Linear(16 if i == 0 else h, h) for i in range(depth)])
        self.out = nn.Linear(h, k)
        self.rounds = rounds

    def forward(self, x):
        for layer in self.layers:
            for _ in range(self.rounds):
                x = self.adj @ x
            x = F.relu(layer(x))
        return self.out(x)


def masked(train, y):
    return lambda out, target: F.cross_entropy(out[train], target[train])


@fault("three graph layers that add up their neighbours, degree 25, without dividing by it", rules=["activation-drift", "exploding-gradient", "learning-rate-too-high", "bad-initialisation", "saturated-output"], layers=["layers"], fails=True, steps=200)
def gcn_sum_of_neighbours(bad):
    a, x, y = graph(300, 4, 25, 31)
    m = GCN(a if bad else a / a.sum(1, keepdim=True), 3)
    train = torch.arange(300) < 150
    return Program(m, masked(train, y), [(x, y)], torch.optim.SGD(m.parameters(), 0.1, momentum=0.9), lambda m: float((m(x).argmax(1) == y)[150:].float().mean()))


@fault("twelve rounds of averaging over neighbours in each of three layers: all nodes are the same node", rules=["rank-collapse"], layers=["layers", "out"], fails=True, steps=150)
def graph_oversmoothed(bad):
    a, x, y = graph(300, 4, 25, 32)
    m = GCN(a / a.sum(1, keepdim=True), 3, rounds=12 if bad else 1)
    train = torch.arange(300) < 150
    return Program(m, masked(train, y), [(x, y)], torch.optim.Adam(m.parameters(), 5e-3), lambda m: float((m(x).argmax(1) == y)[150:].float().mean()))
