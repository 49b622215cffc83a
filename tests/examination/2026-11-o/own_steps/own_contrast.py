"""Contrastive and metric learning."""

import torch
import torch.nn as nn
import torch.nn.functional as F
from program import Program, fault, sound
from torch.utils.data import DataLoader, TensorDataset

# ---------------------------------------------------------------- pictures and captions: two views of one thing

_g = torch.Generator().manual_seed(100)
MIX_A = torch.randn(6, 24, generator=_g) / 6**0.5
MIX_B = torch.randn(6, 16, generator=_g) / 6**0.5


def views(n, seed=None):
    g = torch.Generator().manual_seed(seed) if seed is not None else None
    z = torch.randn(n, 6, generator=g)
    a = torch.tanh(z @ MIX_A) * 1.5 + 0.3 * torch.randn(n, 24, generator=g)
    b = z @ MIX_B + 0.3 * torch.randn(n, 16, generator=g)
    return a, b


class TwoTowers(nn.Module):
    def __init__(self, dim=16):
        super().__init__()
        self.image = nn.Sequential(nn.Linear(24, 64), nn.ReLU(), nn.Linear(64, dim))
        self.text = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, dim))
        self.scale = nn.Parameter(torch.tensor(2.3))

    def forward(self, a, b):
        a = F.normalize(self.image(a), dim=-1)
        b = F.normalize(self.text(b), dim=-1)
        return self.scale.exp() * a @ b.T


def retrieval(model):
    a, b = views(100, seed=7)
    logits = model(a, b)
    return (logits.argmax(1) == torch.arange(100)).float().mean().item()


def clip_loss(model, batch):
    a, b = batch
    logits = model(a, b)
    labels = torch.arange(len(a))
    return (F.cross_entropy(logits, labels) + F.cross_entropy(logits.T, labels)) / 2


class Zipped:
    """A batch of each of two loaders at a time."""

    def __init__(self, one, other):
        self.one, self.other = one, other

    def __len__(self):
        return len(self.one)

    def __iter__(self):
        for (a,), (b,) in zip(self.one, self.other):
            yield a, b


@fault(
    "pictures and captions come from two loaders that shuffle each for itself, so that pairs are no pairs",
    rules=["labels-unrelated", "output-loss-mismatch", "loss-not-decreasing"],
    fails=True,
    steps=400,
)
def clip_two_shuffles(is_faulty):
    net = TwoTowers()
    a, b = views(4000)
    if is_faulty:
        batches = Zipped(
            DataLoader(TensorDataset(a), batch_size=64, shuffle=True),
            DataLoader(TensorDataset(b), batch_size=64, shuffle=True),
        )
    else:
        batches = DataLoader(TensorDataset(a, b), batch_size=64, shuffle=True)
    return Program(net, None, batches, torch.optim.AdamW(net.parameters(), lr=3e-3), retrieval, step=clip_loss)


# ---------------------------------------------------------------- things of classes, under strong nuisances

CLASSES = 8
CENTRES = torch.randn(CLASSES, 5, generator=_g) * 1.2
ROTATE = torch.linalg.qr(torch.randn(25, 25, generator=_g))[0]


def things(n, seed=None, labels=None):
    g = torch.Generator().manual_seed(seed) if seed is not None else None
    y = torch.randint(CLASSES, (n,), generator=g) if labels is None else labels
    x = torch.cat([CENTRES[y] + 0.3 * torch.randn(n, 5, generator=g), 1.3 * torch.randn(n, 20, generator=g)], 1)
    return x @ ROTATE, y


def neighbours(embed):
    """Whether the nearest of 400 known things is of the same class, scaled so that chance is 0."""

    def score(model):
        x, y = things(400, seed=1)
        q, want = things(300, seed=2)
        e, f = embed(model, x), embed(model, q)
        if not torch.isfinite(e).all():
            return 0.0
        near = torch.cdist(F.normalize(f, dim=-1), F.normalize(e, dim=-1)).topk(5, largest=False).indices
        got = y[near].mode(1).values
        return max(0.0, ((got == want).float().mean().item() - 1 / CLASSES) / (1 - 1 / CLASSES))

    return score


class Encoder(nn.Module):
    def __init__(self, out=8):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(25, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU())
        self.project = nn.Linear(64, out)

    def forward(self, x):
        return self.project(self.layers(x))


@fault(
    "pairs are labelled 1 and 0 for a loss that wants 1 and -1: nothing pushes unlike things apart",
    rules=["output-loss-mismatch", "rank-collapse", "constant-target"],
    fails=True,
    steps=500,
)
def siamese_zero_one(is_faulty):
    encoder = Encoder()
    x, y = things(4000)
    other, z = things(4000)
    swap = torch.rand(4000) < 0.5
    other[swap], z[swap] = things(int(swap.sum()), labels=y[swap])
    same = (y == z).float()
    if not is_faulty:
        same = 2 * same - 1
    loader = DataLoader(TensorDataset(x, other, same), batch_size=64, shuffle=True)

    def step(model, batch):
        left, right, label = batch
        return F.cosine_embedding_loss(model(left), model(right), label, margin=0.2)

    return Program(
        encoder, None, loader, torch.optim.Adam(encoder.parameters(), lr=2e-3), neighbours(lambda m, x: m(x)),
        step=step,
    )


@fault(
    "distances within a batch are roots of sums of squares, and the distance of a thing to itself is the root of 0",
    rules=["non-finite"],
    fails=True,
    steps=400,
)
def triplet_root_of_zero(is_faulty):
    net = Encoder()
    x, y = things(4000)

    def distances(e):
        square = (e[:, None] - e[None]).pow(2).sum(-1)
        return square.sqrt() if is_faulty else (square + 1e-8).sqrt()

    def step(model, batch):
        x, y = batch
        d = distances(model(x))
        alike = y[:, None] == y[None]
        hardest = (d * alike).max(1).values
        closest = (d + 1e3 * alike).min(1).values
        return F.relu(hardest - closest + 1.0).mean()

    loader = DataLoader(TensorDataset(x, y), batch_size=64, shuffle=True)
    return Program(
        net, None, loader, torch.optim.Adam(net.parameters(), lr=1e-3), neighbours(lambda m, x: m(x)), step=step
    )


@fault(
    "the things lie in a folder per class, and the loader does not shuffle: a batch has no two classes to tell apart",
    rules=["sorted-batches"],
    fails=True,
    steps=500,
)
def supcon_by_folder(is_faulty):
    x, y = things(4000, labels=torch.arange(CLASSES).repeat_interleave(500))
    net = Encoder(16)

    def step(model, batch):
        x, y = batch
        z = F.normalize(model(x), dim=1)
        sim = z @ z.T / 0.2
        eye = torch.eye(len(x), dtype=torch.bool)
        logp = sim - sim.masked_fill(eye, -1e9).logsumexp(1, keepdim=True)
        pos = (y[:, None] == y[None]) & ~eye
        return -(logp * pos).sum(1).div(pos.sum(1).clamp(min=1)).mean()

    loader = DataLoader(TensorDataset(x, y), batch_size=50, shuffle=not is_faulty)
    return Program(
        net, None, loader, torch.optim.Adam(net.parameters(), lr=2e-3), neighbours(lambda m, x: m(x)), step=step
    )


@fault(
    "a prototype net is trained at Adam's rate 0.3, left over from plain SGD",
    rules=["learning-rate-too-high", "diverging"],
    fails=True,
    steps=400,
)
def prototypes_fast(is_faulty):
    net = Encoder(16)

    class Episodes:
        """5 of each class to make prototypes of, 5 to ask for."""

        def __iter__(self):
            for _ in range(50):
                y = torch.arange(CLASSES).repeat_interleave(10)
                yield things(80, labels=y)[0].view(CLASSES, 10, 25)

    def step(model, episode):
        z = model(episode)
        proto, query = z[:, :5].mean(1), z[:, 5:].flatten(0, 1)
        want = torch.arange(CLASSES).repeat_interleave(5)
        return F.cross_entropy(-torch.cdist(query, proto).pow(2), want)

    return Program(
        net, None, Episodes(), torch.optim.Adam(net.parameters(), lr=0.3 if is_faulty else 1e-3),
        neighbours(lambda m, x: m(x)), step=step,
    )


@fault(
    "the embedding of a siamese net is trained with Adam's own weight decay of 0.1",
    rules=["weight-decay-dominates", "rank-collapse"],
    fails=False,
    steps=500,
)
def contrastive_decay(is_faulty):
    net = Encoder()

    class Pairs:
        def __len__(self):
            return 60

        def __iter__(self):
            for _ in range(60):
                x, y = things(64)
                z = torch.where(torch.rand(64) < 0.5, y, torch.randint(CLASSES, (64,)))
                yield torch.cat([x, things(64, labels=z)[0]]), (y == z).float()

    def loss(embedded, same):
        left, right = embedded.chunk(2)
        d = (left - right).pow(2).sum(1)
        return (same * d + (1 - same) * F.relu(2 - (d + 1e-8).sqrt()).pow(2)).mean()

    opt = torch.optim.Adam(net.parameters(), lr=2e-3, weight_decay=0.1 if is_faulty else 1e-5)
    return Program(net, loss, Pairs(), opt, neighbours(lambda m, x: m(x)))


# ---------------------------------------------------------------- sound


@sound("two towers and a learned temperature: every example is told apart from the others of its batch", steps=400,
       least=0.8)
def clip_small():
    net = TwoTowers()
    a, b = views(4000)
    loader = DataLoader(TensorDataset(a, b), batch_size=64, shuffle=True)
    return Program(net, None, loader, torch.optim.AdamW(net.parameters(), lr=3e-3), retrieval, step=clip_loss)


@sound("two towers, all but done", trained=400, steps=500, least=0.75)
def clip_late():
    net = TwoTowers(24)
    a, b = views(6000)
    loader = DataLoader(TensorDataset(a, b), batch_size=64, shuffle=True)
    return Program(net, None, loader, torch.optim.Adam(net.parameters(), lr=2e-3), retrieval, step=clip_loss)


@sound("a siamese net: one encoder at two places", steps=500, least=0.8)
def siamese_one_encoder():
    class Siamese(nn.Module):
        def __init__(self):
            super().__init__()
            self.encoder = Encoder()
            self.compare = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))

        def forward(self, left, right):
            return self.compare((self.encoder(left) - self.encoder(right)).abs()).squeeze(1)

    net = Siamese()

    class Pairs:
        def __iter__(self):
            for _ in range(60):
                x, y = things(96)
                z = torch.where(torch.rand(96) < 0.5, y, torch.randint(CLASSES, (96,)))
                yield {"left": x, "right": things(96, labels=z)[0]}, (y == z).float()

    def score(model):
        (x, y), (other, z) = things(1000, 1), things(1000, 2)
        other[:500], z[:500] = things(500, 3, labels=y[:500])
        same = y == z
        said = model(x, other) > 0
        return (said[same].float().mean() + (~said[~same]).float().mean()).item() - 1

    return Program(
        net, F.binary_cross_entropy_with_logits, Pairs(), torch.optim.Adam(net.parameters(), lr=2e-3), score
    )


@sound("SimSiam: one of the two views gets no gradient, and the loss is negative", steps=600, least=0.6)
def simsiam_stop_gradient():
    class SimSiam(nn.Module):
        def __init__(self):
            super().__init__()
            self.encoder = nn.Sequential(
                nn.Linear(25, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 16), nn.BatchNorm1d(16, affine=False)
            )
            self.predictor = nn.Sequential(nn.Linear(16, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 16))

        def forward(self, x):
            z = self.encoder(x)
            return z.detach(), self.predictor(z)

    class TwoViews:
        def __iter__(self):
            for _ in range(50):
                y = torch.randint(CLASSES, (128,))
                yield things(128, labels=y)[0], things(128, labels=y)[0]

    def step(model, batch):
        (z1, p1), (z2, p2) = model(batch[0]), model(batch[1])
        return -(F.cosine_similarity(p1, z2).mean() + F.cosine_similarity(p2, z1).mean()) / 2

    net = SimSiam()
    return Program(
        net, None, TwoViews(), torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9),
        neighbours(lambda m, x: m.encoder(x)), step=step,
    )


@sound("a triplet net at the end, when most triplets have loss 0", trained=350, steps=500, least=0.8)
def triplets_mostly_done():
    net = Encoder()

    class Triplets:
        def __iter__(self):
            for _ in range(60):
                y = torch.randint(CLASSES, (64,))
                n = (y + torch.randint(1, CLASSES, (64,))) % CLASSES
                yield things(64, labels=y)[0], things(64, labels=y)[0], things(64, labels=n)[0]

    def step(model, batch):
        anchor, positive, negative = (model(x) for x in batch)
        return F.triplet_margin_loss(anchor, positive, negative, margin=1.0)

    return Program(
        net, None, Triplets(), torch.optim.Adam(net.parameters(), lr=1e-3), neighbours(lambda m, x: m(x)), step=step
    )
