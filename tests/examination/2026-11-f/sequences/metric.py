"""Steps of one's own: pairs, triplets, teachers."""

import math

import torch
import torch.nn.functional as F
from program import Program, fault, sound
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

MIX = torch.randn(6, 40, generator=torch.Generator().manual_seed(11))
NOISE = torch.randn(40, 40, generator=torch.Generator().manual_seed(12))


def views(n, seed):
    """Two views each: the same six hidden numbers, mixed, under strong noise in some directions."""
    g = torch.Generator().manual_seed(seed)
    hidden = torch.randn(n, 6, generator=g)
    both = []
    for _ in range(2):
        disturbance = torch.randn(n, 12, generator=g) @ NOISE[:12]
        both.append((hidden @ MIX + 1.5 * disturbance) / 5)
    return both


class Encoder(nn.Module):
    def __init__(self, d=16):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(40, 64), nn.ReLU(), nn.Linear(64, d))

    def forward(self, x):
        return self.net(x)


def retrieval(m):
    """How often the nearest of 60 second views is the right one."""
    a, b = (F.normalize(m(v), dim=-1) for v in views(60, 99))
    return ((a @ b.T).argmax(1) == torch.arange(60)).float().mean().item()


def pairs(batch=64, n=2048, seed=1):
    return DataLoader(TensorDataset(*views(n, seed)), batch, shuffle=True, drop_last=True)


@fault(
    "the right partner of example i is i, and the labels of the contrastive loss say 0 for all",
    rules=["constant-target", "output-loss-mismatch", "labels-unrelated", "rank-collapse"], fails=True, steps=300,
)
def partner_zero(is_faulty):
    def step(m, batch):
        a, b = (F.normalize(m(v), dim=-1) for v in batch)
        logits = a @ b.T / 0.1
        labels = torch.zeros(len(a), dtype=torch.long) if is_faulty else torch.arange(len(a))
        return F.cross_entropy(logits, labels)

    model = Encoder()
    return Program(model, None, pairs(), torch.optim.Adam(model.parameters(), 2e-3), retrieval, step=step)


class TwoTowers(nn.Module):
    def __init__(self, log_scale):
        super().__init__()
        self.left, self.right = Encoder(), Encoder()
        self.logit_scale = nn.Parameter(torch.tensor(log_scale))

    def forward(self, a, b):
        a, b = F.normalize(self.left(a), dim=-1), F.normalize(self.right(b), dim=-1)
        return self.logit_scale.exp() * a @ b.T


def towers_retrieve(m):
    return (m(*views(60, 99)).argmax(1) == torch.arange(60)).float().mean().item()


def clip_step(m, batch):
    logits = m(*batch)
    labels = torch.arange(len(logits))
    return 0.5 * (F.cross_entropy(logits, labels) + F.cross_entropy(logits.T, labels))


@fault(
    "the scale of the similarities is stored as 1/0.07 where its logarithm belongs: e^14 instead of 14",
    rules=["saturated-output", "bad-initialisation", "exploding-gradient"], layers=["logit_scale"], fails=True, steps=300,
)
def scale_without_log(is_faulty):
    model = TwoTowers(1 / 0.07 if is_faulty else math.log(1 / 0.07))
    return Program(model, None, pairs(), torch.optim.SGD(model.parameters(), 0.1), towers_retrieve, step=clip_step)


def words(n, seed):
    """Token counts of 30 words and a soft class that a teacher knows."""
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 20, generator=g)
    w1 = torch.randn(20, 24, generator=torch.Generator().manual_seed(0))
    w2 = torch.randn(24, 8, generator=torch.Generator().manual_seed(1))
    return x, torch.tanh(x @ w1 / 3) @ w2


def agrees(m):
    x, t = words(400, 2)
    return (m(x).argmax(1) == t.argmax(1)).float().mean().item()


class SkipGram(nn.Module):
    def __init__(self):
        super().__init__()
        self.centre = nn.Embedding(40, 12)
        self.context = nn.Embedding(40, 12)
        nn.init.uniform_(self.centre.weight, -0.1, 0.1)
        nn.init.uniform_(self.context.weight, -0.1, 0.1)

    def forward(self, word, other):
        return (self.centre(word).unsqueeze(1) * self.context(other)).sum(-1)


def neighbours(n, seed):
    """Words of one of eight topics stand next to each other."""
    g = torch.Generator().manual_seed(seed)
    w = torch.randint(0, 40, (n,), generator=g)
    near = (w // 5) * 5 + torch.randint(0, 5, (n,), generator=g)
    return w, near, torch.randint(0, 40, (n, 6), generator=g)


@fault(
    "the score of the drawn negatives has lost its minus sign: they are drawn near as well",
    rules=["output-loss-mismatch", "rank-collapse"], fails=True, steps=400,
)
def negatives_drawn_near(is_faulty):
    def step(m, batch):
        w, near, far = batch
        pull = F.logsigmoid(m(w, near[:, None])).mean()
        push = F.logsigmoid(m(w, far) if is_faulty else -m(w, far)).sum(1).mean()
        return -(pull + push)

    def topics_found(m):
        scores = m.centre.weight @ m.context.weight.T
        best = scores.topk(5).indices // 5
        return (best == torch.arange(40)[:, None] // 5).float().mean().item()

    model = SkipGram()
    return Program(
        model, None, DataLoader(TensorDataset(*neighbours(6000, 1)), 100, shuffle=True),
        torch.optim.Adam(model.parameters(), 2e-2), topics_found, step=step,
    )


@sound("an ordinary two-tower contrastive network: its loss mixes the examples of a batch on purpose", steps=400, least=0.75)
def two_towers():
    model = TwoTowers(math.log(1 / 0.07))
    return Program(model, None, pairs(), torch.optim.Adam(model.parameters(), 3e-3), towers_retrieve, step=clip_step)


@sound("triplets, trained: for most of them the loss is exactly 0", trained=350, steps=400, least=0.7)
def triplets_trained():
    def step(m, batch):
        a, b = (F.normalize(m(v), dim=-1) for v in batch)
        return F.triplet_margin_loss(a, b, b.roll(1, 0), margin=0.5)

    model = Encoder()
    return Program(model, None, pairs(), torch.optim.Adam(model.parameters(), 3e-3), retrieval, step=step)


@sound("a student that learns from soft targets at a temperature of 4, whose loss is tiny and multiplied by 16", steps=300, least=0.7)
def distillation():
    student = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 8))

    def step(m, batch):
        x, t = batch
        soft = F.kl_div(F.log_softmax(m(x) / 4, -1), F.log_softmax(t / 4, -1), log_target=True, reduction="batchmean")
        return 16 * soft + 0.1 * F.cross_entropy(m(x), t.argmax(1))

    return Program(
        student, None, DataLoader(TensorDataset(*words(2000, 1)), 50, shuffle=True),
        torch.optim.Adam(student.parameters(), 3e-3), agrees, step=step,
    )
