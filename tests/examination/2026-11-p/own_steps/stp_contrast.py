"""Contrastive and metric learning."""
import torch
import torch.nn as nn
import torch.nn.functional as F

from program import Program, fault, sound
from stp_tools import loader, r2, seeded


def views(n=3000, classes=12, dim=20, seed=1, noise=0.5):
    """Pairs of noisy views of one class prototype, bent nonlinearly."""
    g = seeded(seed)
    proto = torch.randn(classes, dim, generator=g)
    mix = torch.randn(dim, dim, generator=g) / dim**0.5
    y = torch.randint(classes, (n,), generator=g)
    make = lambda: torch.tanh((proto[y] + noise * torch.randn(n, dim, generator=g)) @ mix)  # noqa: E731
    return make(), make(), y


def knn_score(z, y, split):
    """Accuracy of the nearest class centroid."""
    a, ya, b, yb = z[:split], y[:split], z[split:], y[split:]
    if not torch.isfinite(z).all():
        return 0.0
    cent = torch.stack([a[ya == c].mean(0) for c in range(int(y.max()) + 1)])
    return float((torch.cdist(b, cent).argmin(1) == yb).float().mean())


def retrieval(za, zb):
    """How often the partner ranks first."""
    if not (torch.isfinite(za).all() and torch.isfinite(zb).all()):
        return 0.0
    za, zb = F.normalize(za, dim=-1), F.normalize(zb, dim=-1)
    return float(((za @ zb.T).argmax(1) == torch.arange(len(za))).float().mean())


def pairs(n=4000, seed=7, latent=6):
    """Two modalities of the same latent."""
    g = seeded(seed)
    z = torch.randn(n, latent, generator=g)
    a = torch.tanh(z @ torch.randn(latent, 24, generator=g) * 0.5) + 0.02 * torch.randn(n, 24, generator=g)
    b = torch.relu(z @ torch.randn(latent, 32, generator=g) * 0.5) + 0.02 * torch.randn(n, 32, generator=g)
    return a, b


class TwoTower(nn.Module):
    def __init__(self, da=24, db=32, dim=32):
        super().__init__()
        self.left = nn.Sequential(nn.Linear(da, 96), nn.GELU(), nn.Linear(96, dim))
        self.right = nn.Sequential(nn.Linear(db, 96), nn.GELU(), nn.Linear(96, dim))
        self.logit_scale = nn.Parameter(torch.tensor(1 / 0.07).log())

    def forward(self, a, b):
        return self.left(a), self.right(b)


@fault(
    "NT-Xent written by hand with exp of similarities over a temperature of 0.01: exp(100) is infinite in float32.",
    rules=("non-finite", "half-overflow"),
    fails=True,
    steps=300,
)
def stp_ntxent_exp(is_faulty):
    a, b = pairs()
    net = TwoTower()
    tau = 0.01

    def step(model, batch):
        za, zb = model(*batch)
        z = F.normalize(torch.cat([za, zb]), dim=1)
        sim = z @ z.T / tau
        n = za.shape[0]
        positive = torch.cat([torch.arange(n) + n, torch.arange(n)])
        if is_faulty:
            e = torch.exp(sim)
            top = e[torch.arange(2 * n), positive]
            return -torch.log(top / (e.sum(1) - e.diagonal())).mean()
        sim = sim.masked_fill(torch.eye(2 * n, dtype=torch.bool), float("-inf"))
        return F.cross_entropy(sim, positive)

    return Program(
        net, None, loader(a[:3744], b[:3744]), torch.optim.Adam(net.parameters(), lr=1e-3),
        lambda m: retrieval(*m(a[3744:], b[3744:])), step=step,
    )


@fault(
    "Batch-hard triplet loss takes the square root of distances, which is zero on the diagonal: its slope is infinite.",
    rules=("non-finite", "exploding-gradient"),
    fails=True,
    steps=300,
)
def stp_triplet_sqrt(is_faulty):
    x, _, y = views(noise=0.5, classes=8, seed=2)
    embed = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 16))

    def step(model, batch):
        data, label = batch
        z = model(data)
        square = (z[:, None] - z[None]).pow(2).sum(-1)
        dist = square.sqrt() if is_faulty else (square + 1e-8).sqrt()
        same = label[:, None] == label[None]
        hardest_positive = (dist * same).max(1).values
        hardest_negative = (dist + 1e6 * same).min(1).values
        return F.softplus(hardest_positive - hardest_negative).mean()

    return Program(
        embed, None, loader(x[:2500], y[:2500]), torch.optim.Adam(embed.parameters(), lr=1e-3),
        lambda m: verification(m(x[2500:]), y[2500:]), step=step,
    )


def verification(z, y):
    """1 - EER-like: how well a threshold on distance tells same from different."""
    if not torch.isfinite(z).all():
        return 0.0
    d = torch.cdist(z, z)
    same = y[:, None] == y[None]
    off = ~torch.eye(len(y), dtype=torch.bool)
    p, n = d[same & off], d[~same]
    if float(d.std()) < 1e-6:
        return 0.0
    cuts = torch.quantile(d.flatten()[:100000], torch.linspace(0.01, 0.9, 60))
    best = max(float(((p <= c).float().mean() + (n > c).float().mean()) / 2) for c in cuts)
    return 2 * best - 1


@fault(
    "CLIP-like towers whose embeddings are not normalised before they are multiplied by the logit scale.",
    rules=("saturated-output", "bad-initialisation", "output-loss-mismatch"),
    fails=False,
    steps=100,
)
def stp_clip_unnormalised(is_faulty):
    a, b = pairs(seed=8, latent=10)
    net = TwoTower(dim=64)

    def step(model, batch):
        za, zb = model(*batch)
        if not is_faulty:
            za, zb = F.normalize(za, dim=-1), F.normalize(zb, dim=-1)
        logits = model.logit_scale.exp() * za @ zb.T
        labels = torch.arange(len(za))
        return (F.cross_entropy(logits, labels) + F.cross_entropy(logits.T, labels)) / 2

    return Program(
        net, None, loader(a[:3744], b[:3744]), torch.optim.Adam(net.parameters(), lr=1e-3),
        lambda m: retrieval(*m(a[3744:], b[3744:])), step=step,
    )


@fault(
    "A siamese net is shown only pairs of the same class: contrastive loss without negatives maps all to one point.",
    rules=("constant-target", "rank-collapse", "sorted-batches"),
    fails=True,
    steps=300,
)
def stp_siamese_positives(is_faulty):
    x1, x2, y = views(seed=3, classes=10)
    g = seeded(4)
    if is_faulty:
        same = torch.ones(len(y))
    else:
        other = torch.randperm(len(y), generator=g)
        swap = torch.rand(len(y), generator=g) < 0.5
        x2 = torch.where(swap[:, None], x2[other], x2)
        same = (torch.where(swap, y[other], y) == y).float()
    xt, _, yt = views(seed=3, classes=10, n=3500)
    xt, yt = xt[3000:], yt[3000:]

    class Siamese(nn.Module):
        def __init__(self):
            super().__init__()
            self.encoder = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 8))

        def forward(self, left, right):
            return F.pairwise_distance(self.encoder(left), self.encoder(right))

    net = Siamese()

    def step(model, batch):
        left, right, is_same = batch
        d = model(left, right)
        return (is_same * d**2 + (1 - is_same) * F.relu(1 - d) ** 2).mean()

    def score(m):
        # a pair counts as the same below half the margin
        z = m.encoder(xt)
        d = torch.cdist(z, z)
        s = yt[:, None] == yt[None]
        return float(2 * (((d[s] < 0.5).float().mean() + (d[~s] >= 0.5).float().mean()) / 2) - 1)

    return Program(net, None, loader(x1, x2, same), torch.optim.Adam(net.parameters(), lr=1e-3), score, step=step)


@fault(
    "Weight decay of 0.3 goes into Adam's gradient (not AdamW), and pulls the embeddings to zero.",
    rules=("weight-decay-dominates", "rank-collapse", "optimizer-setting"),
    fails=False,
    steps=400,
)
def stp_embedding_decay(is_faulty):
    a, b = pairs(seed=18, latent=5)
    net = TwoTower()

    def step(model, batch):
        za, zb = model(*batch)
        # squared distances as in prototypical nets
        logits = -torch.cdist(za, zb) ** 2
        return F.cross_entropy(logits, torch.arange(len(za)))

    opt = torch.optim.Adam(net.parameters(), lr=1e-3, weight_decay=0.3 if is_faulty else 1e-5)

    def score(m):
        za, zb = m(a[3744:], b[3744:])
        return float((torch.cdist(za, zb).argmin(1) == torch.arange(len(za))).float().mean())

    return Program(net, None, loader(a[:3744], b[:3744]), opt, score, step=step)


# ------------------------------------------------------------------ sound


@sound("Towers on the unit sphere with a learned temperature that begins at 1/0.07.", steps=250, least=0.7)
def stp_clip():
    a, b = pairs(seed=28)
    net = TwoTower()

    def step(model, batch):
        za, zb = (F.normalize(z, dim=-1) for z in model(*batch))
        logits = model.logit_scale.exp() * za @ zb.T
        labels = torch.arange(len(za))
        return (F.cross_entropy(logits, labels) + F.cross_entropy(logits.T, labels)) / 2

    return Program(
        net, None, loader(a[:3744], b[:3744]), torch.optim.AdamW(net.parameters(), lr=1e-3, weight_decay=0.05),
        lambda m: retrieval(*m(a[3744:], b[3744:])), step=step,
    )


class SimSiam(nn.Module):
    def __init__(self):
        super().__init__()
        self.f = nn.Sequential(nn.Linear(20, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 32), nn.BatchNorm1d(32, affine=False))
        self.h = nn.Sequential(nn.Linear(32, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 32))

    def forward(self, x):
        z = self.f(x)
        return z, self.h(z)


@sound("SimSiam: stopped gradients, a loss that goes to -1, no negatives.", trained=100, steps=300, least=0.8)
def stp_simsiam():
    x1, x2, y = views(seed=5)
    net = SimSiam()

    def step(model, batch):
        (z1, p1), (z2, p2) = model(batch[0]), model(batch[1])
        d = lambda p, z: -F.cosine_similarity(p, z.detach(), dim=-1).mean()  # noqa: E731
        return 0.5 * d(p1, z2) + 0.5 * d(p2, z1)

    opt = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4)
    return Program(net, None, loader(x1[:2500], x2[:2500]), opt, lambda m: knn_score(m(x1)[0], y, 2500), step=step)


class ProtoNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 24))

    def forward(self, support, query):
        proto = self.embed(support).mean(1)
        return -torch.cdist(self.embed(query).flatten(0, 1), proto) ** 2


@sound("Prototypical network: every batch is one episode of five new classes, its labels always 0..4 in order.", steps=300, least=0.8)
def stp_episodes():
    g = seeded(51)
    mix = torch.randn(16, 16, generator=g) / 4

    def episode():
        # only the first six directions tell classes apart
        c = torch.randn(5, 1, 6, generator=g) * 1.5
        x = torch.cat([c + 0.4 * torch.randn(5, 10, 6, generator=g), 2.5 * torch.randn(5, 10, 10, generator=g)], -1)
        x = x @ mix * 1.5
        return x[:, :5], x[:, 5:]

    episodes = [episode() for _ in range(200)]
    held = [episode() for _ in range(40)]
    labels = torch.arange(5).repeat_interleave(5)
    net = ProtoNet()

    def step(model, batch):
        return F.cross_entropy(model(*batch), labels)

    def score(m):
        return sum(float((m(*e).argmax(1) == labels).float().mean()) for e in held) / len(held)

    return Program(net, None, episodes, torch.optim.Adam(net.parameters(), lr=1e-3), score, step=step)


@sound("Batch-hard triplets with a margin; the loss stays near the margin for long.", steps=300, least=0.7)
def stp_triplet():
    x, _, y = views(seed=2, classes=8)
    embed = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 16))

    def step(model, batch):
        z = F.normalize(model(batch[0]), dim=1)
        dist = (2 - 2 * z @ z.T).clamp_min(1e-6).sqrt()
        same = batch[1][:, None] == batch[1][None]
        hp = (dist * same).max(1).values
        hn = (dist + 10 * same).min(1).values
        return F.relu(hp - hn + 0.3).mean()

    return Program(
        embed, None, loader(x[:2500], y[:2500]), torch.optim.Adam(embed.parameters(), lr=1e-3),
        lambda m: verification(F.normalize(m(x[2500:]), dim=1), y[2500:]), step=step,
    )
