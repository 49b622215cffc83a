"""Pairs, views, teachers and students."""

from __future__ import annotations

import copy

import torch
import torch.nn.functional as F
from program import Program, fault, sound
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def r2(prediction, goal):
    return (1 - (prediction - goal).pow(2).mean() / (goal - goal.mean(0)).pow(2).mean()).item()


def accuracy(x, y):
    return lambda m: (m(x).argmax(1) == y).float().mean().item()


def mlp(*sizes, act=nn.ReLU):
    layers = []
    for a, b in zip(sizes[:-1], sizes[1:], strict=True):
        layers += [nn.Linear(a, b), act()]
    return nn.Sequential(*layers[:-1])


def blobs(n, dim, classes, seed, spread=1.0, scale=1.0):
    """Classes that are each in two places."""
    g = torch.Generator().manual_seed(seed)
    centres = scale * torch.randn(2 * classes, dim, generator=g)
    which = torch.randint(2 * classes, (n,), generator=g)
    return centres[which] + spread * torch.randn(n, dim, generator=g), which % classes


def two_modalities(n, seed, dim=8):
    g = torch.Generator().manual_seed(seed)
    z = torch.randn(n, dim, generator=g)
    first, second = (torch.linalg.qr(torch.randn(dim, dim, generator=g)).Q for _ in range(2))
    noise = 0.05 * torch.randn(2, n, dim, generator=g)
    return z @ first + noise[0], z @ second + noise[1]


def retrieval(a, b):
    return (a @ b.T).argmax(1).eq(torch.arange(len(a))).float().mean().item()


class TwoTowers(nn.Module):
    def __init__(self, dim=8):
        super().__init__()
        self.image = mlp(dim, 64, 16)
        self.text = mlp(dim, 64, 16)
        self.logit_scale = nn.Parameter(torch.tensor(2.3))

    def forward(self, image, text):
        return F.normalize(self.image(image), dim=-1), F.normalize(self.text(text), dim=-1)


def clip_step(model, batch):
    a, b = model(**batch)
    logits = model.logit_scale.exp() * a @ b.T
    labels = torch.arange(len(a))
    return 0.5 * (F.cross_entropy(logits, labels) + F.cross_entropy(logits.T, labels))


def clip_score(a, b):
    return lambda m: retrieval(*m(a[-64:], b[-64:]))


@fault(
    "Images and captions come from two loaders that each shuffle on their own, so that no pair is one.",
    rules=["labels-unrelated", "output-loss-mismatch"],
    fails=True,
    steps=400,
)
def pairs_shuffled_apart(is_faulty: bool) -> Program:
    a, b = two_modalities(1088, 5)
    g = torch.Generator().manual_seed(0)
    if is_faulty:
        images = DataLoader(a[:1024], 64, shuffle=True, generator=g)
        texts = DataLoader(b[:1024], 64, shuffle=True, generator=torch.Generator().manual_seed(1))
        batches = [{"image": i, "text": t} for i, t in zip(images, texts, strict=True)]
    else:
        pairs = DataLoader(TensorDataset(a[:1024], b[:1024]), 64, shuffle=True, generator=g)
        batches = [{"image": i, "text": t} for i, t in pairs]
    model = TwoTowers()
    return Program(model, None, batches, torch.optim.Adam(model.parameters(), lr=3e-3), clip_score(a, b), step=clip_step)


@sound("Pairs in a dict, a learned temperature without weight decay, outputs of unit length.", steps=400, least=0.7)
def clip_two_towers() -> Program:
    a, b = two_modalities(1088, 7)
    batches = [{"image": a[i : i + 64], "text": b[i : i + 64]} for i in range(0, 1024, 64)]
    model = TwoTowers()
    groups = [
        {"params": [*model.image.parameters(), *model.text.parameters()], "weight_decay": 0.05},
        {"params": [model.logit_scale], "weight_decay": 0.0, "lr": 1e-2},
    ]
    return Program(model, None, batches, torch.optim.AdamW(groups, lr=3e-3), clip_score(a, b), step=clip_step)


@fault(
    "Distillation with F.kl_div on the teacher's log-probabilities, without log_target.",
    rules=["non-finite", "output-loss-mismatch"],
    fails=True,
    steps=300,
)
def distillation_log_target(is_faulty: bool) -> Program:
    x, y = blobs(2048, 8, 5, 3)
    g = torch.Generator().manual_seed(1)
    logits = 4.0 * F.one_hot(y, 5).float() + torch.randn(2048, 5, generator=g)
    student = mlp(8, 64, 64, 5)
    batches = [{"x": x[i : i + 64], "teacher_logits": logits[i : i + 64]} for i in range(0, 1536, 64)]
    temperature = 2.0

    def step(model, batch):
        s = F.log_softmax(model(batch["x"]) / temperature, dim=-1)
        t = F.log_softmax(batch["teacher_logits"] / temperature, dim=-1)
        return F.kl_div(s, t, reduction="batchmean", log_target=not is_faulty) * temperature**2

    return Program(
        student, None, batches, torch.optim.Adam(student.parameters(), lr=1e-3), accuracy(x[1536:], y[1536:]), step=step
    )


class Distilled(nn.Module):
    def __init__(self, teacher, student):
        super().__init__()
        self.teacher = teacher.requires_grad_(False).eval()
        self.student = student

    def train(self, mode=True):
        super().train(mode)
        self.teacher.eval()
        return self

    def forward(self, x):
        return self.student(x)


@sound("A frozen teacher in evaluation mode inside of the model; the cross-entropy ends at its entropy, not at 0.", steps=400, least=0.8)
def distillation_frozen_teacher() -> Program:
    g = torch.Generator().manual_seed(2)
    x = torch.randn(2048, 10, generator=g)
    teacher = mlp(10, 96, 4, act=nn.Tanh)
    with torch.no_grad():
        for p in teacher.parameters():
            p.copy_(torch.randn(p.shape, generator=g) * (0.4 if p.ndim == 2 else 0.1))
    model = Distilled(teacher, mlp(10, 48, 4))
    loader = DataLoader(TensorDataset(x[:1536]), 64, shuffle=True, generator=torch.Generator().manual_seed(3))

    def step(model, batch):
        with torch.no_grad():
            goal = model.teacher(batch[0]).div(3).softmax(-1)
        return F.cross_entropy(model(batch[0]).div(3), goal) * 9

    def score(m):
        return (m(x[1536:]).argmax(1) == m.teacher(x[1536:]).argmax(1)).float().mean().item()

    return Program(model, None, loader, torch.optim.Adam(model.student.parameters(), lr=3e-3), score, step=step)


@fault(
    "Distances between all pairs are square roots of 0 on the diagonal, masked only afterwards.",
    rules=["non-finite", "exploding-gradient"],
    fails=True,
    steps=300,
)
def metric_sqrt_of_zero(is_faulty: bool) -> Program:
    x, y = blobs(2048, 10, 4, 8)
    net = mlp(10, 64, 64, 3)
    batches = [(x[i : i + 48], y[i : i + 48]) for i in range(0, 1536, 48)]

    def step(model, batch):
        v, label = batch
        z = model(v)
        squared = (z[:, None] - z[None]).pow(2).sum(-1)
        distance = squared.sqrt() if is_faulty else (squared + 1e-8).sqrt()
        same = (label[:, None] == label[None]).float()
        off = 1 - torch.eye(len(v))
        return ((same * distance.pow(2) + (1 - same) * F.relu(2 - distance).pow(2)) * off).sum() / off.sum()

    def score(m):
        z, held = m(x), m(x[1536:])
        if not held.isfinite().all():
            return 0.25
        centres = torch.stack([z[:1536][y[:1536] == c].mean(0) for c in range(4)])
        return (torch.cdist(held, centres).argmin(1) == y[1536:]).float().mean().item()

    return Program(net, None, batches, torch.optim.Adam(net.parameters(), lr=1e-3), score, step=step)


@sound("Nearly all triplets are satisfied, so that most of the loss and many gradients are 0.", steps=500, least=0.85, trained=350)
def triplets_satisfied() -> Program:
    x, y = blobs(2048, 10, 4, 9, spread=0.5)
    g = torch.Generator().manual_seed(1)
    net = mlp(10, 64, 64, 4)
    batches = []
    for _ in range(30):
        anchor = torch.randint(1536, (64,), generator=g)
        rows = (y[anchor][:, None] == y[None, :1536]).float()
        positive = torch.multinomial(rows, 1, generator=g).squeeze(1)
        negative = torch.multinomial(1 - rows, 1, generator=g).squeeze(1)
        batches.append({"anchor": x[anchor], "positive": x[positive], "negative": x[negative]})

    def step(model, batch):
        a, p, n = model(torch.cat([batch["anchor"], batch["positive"], batch["negative"]])).chunk(3)
        return F.triplet_margin_loss(a, p, n, margin=0.5)

    def score(m):
        z, held = m(x[:1536]), m(x[1536:])
        return (y[:1536][torch.cdist(held, z).argmin(1)] == y[1536:]).float().mean().item()

    return Program(net, None, batches, torch.optim.Adam(net.parameters(), lr=1e-3), score, step=step)


class SimSiam(nn.Module):
    def __init__(self, dim=12):
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Linear(dim, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 32), nn.BatchNorm1d(32, affine=False)
        )
        self.predictor = nn.Sequential(nn.Linear(32, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 32))

    def forward(self, x):
        return self.encoder(x)


@sound("A loss that falls towards -1, with a detached branch and no negatives.", steps=400, least=0.75)
def simsiam_stop_gradient() -> Program:
    g = torch.Generator().manual_seed(4)
    centres = 1.5 * torch.randn(6, 4, generator=g)
    y = torch.randint(6, (2048,), generator=g)
    core = centres[y] + 0.3 * torch.randn(2048, 4, generator=g)
    nuisance = 2.5 * torch.randn(2, 2048, 8, generator=g)
    first, second = (torch.cat([core, n], 1) for n in nuisance)
    model = SimSiam()
    loader = DataLoader(TensorDataset(first[:1536], second[:1536]), 128, shuffle=True, generator=torch.Generator().manual_seed(0))

    def step(model, batch):
        z1, z2 = model.encoder(batch[0]), model.encoder(batch[1])
        p1, p2 = model.predictor(z1), model.predictor(z2)
        return -0.5 * (F.cosine_similarity(p1, z2.detach()).mean() + F.cosine_similarity(p2, z1.detach()).mean())

    def score(m):
        z, held = (F.normalize(m(v), dim=1) for v in (first[:1536], first[1536:]))
        return (y[:1536][(held @ z.T).topk(9).indices].mode(1).values == y[1536:]).float().mean().item()

    return Program(model, None, loader, torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9), score, step=step)


class Student(nn.Module):
    def __init__(self, dim, classes):
        super().__init__()
        self.student = mlp(dim, 64, 64, classes)
        self.teacher = copy.deepcopy(self.student).requires_grad_(False)

    def forward(self, x):
        return self.teacher(x)


@sound("The average teacher is used and scored but not trained; most unlabelled examples fall below the threshold.", steps=500, least=0.8)
def ema_teacher_threshold() -> Program:
    x, y = blobs(2048, 6, 3, 14, spread=0.6, scale=1.5)
    g = torch.Generator().manual_seed(2)
    batches = []
    for _ in range(40):
        labelled = torch.randint(120, (24,), generator=g)
        free = torch.randint(120, 1536, (96,), generator=g)
        batches.append({"x": x[labelled], "y": y[labelled], "weak": x[free]})
    model = Student(6, 3)

    def step(model, batch):
        supervised = F.cross_entropy(model.student(batch["x"]), batch["y"])
        with torch.no_grad():
            sure, guess = model.teacher(batch["weak"]).softmax(-1).max(-1)
            for slow, fast in zip(model.teacher.parameters(), model.student.parameters(), strict=True):
                slow.mul_(0.98).add_(fast, alpha=0.02)
        strong = batch["weak"] + 0.3 * torch.randn_like(batch["weak"])
        each = F.cross_entropy(model.student(strong), guess, reduction="none")
        return supervised + (each * (sure > 0.95)).mean()

    return Program(
        model,
        None,
        batches,
        torch.optim.SGD(model.student.parameters(), lr=0.05, momentum=0.9, nesterov=True, weight_decay=5e-4),
        accuracy(x[1536:], y[1536:]),
        step=step,
    )


MASK = 16


def cyclic(n, seed, length=10):
    g = torch.Generator().manual_seed(seed)
    start = torch.randint(16, (n, 1), generator=g)
    stride = torch.tensor([1, 3])[torch.randint(2, (n, 1), generator=g)]
    return (start + stride * torch.arange(length)) % 16


class MaskedLM(nn.Module):
    def __init__(self, length=10, width=48):
        super().__init__()
        self.token = nn.Embedding(17, width)
        self.place = nn.Parameter(0.5 * torch.randn(length, width))
        self.block = nn.TransformerEncoderLayer(width, 4, 96, dropout=0.0, batch_first=True, norm_first=True)
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, 16)

    def forward(self, ids):
        return self.head(self.norm(self.block(self.token(ids) + self.place)))


def mlm_score(ids):
    g = torch.Generator().manual_seed(5)
    mask = torch.rand(ids.shape, generator=g) < 0.2

    def score(m):
        return (m(ids.masked_fill(mask, MASK)).argmax(-1) == ids)[mask].float().mean().item()

    return score


@fault(
    "masked_fill is called as if it worked in place; the network sees the tokens it is asked for.",
    rules=["future-seen", "label-shift"],
    fails=True,
    steps=400,
)
def mlm_mask_not_applied(is_faulty: bool) -> Program:
    ids = cyclic(1280, 1)
    model = MaskedLM()
    batches = [{"input_ids": part} for part in ids[:1024].split(32)]

    def step(model, batch):
        tokens = batch["input_ids"]
        labels = tokens.clone()
        picked = torch.rand(tokens.shape) < 0.2
        labels[~picked] = -100
        if is_faulty:
            tokens.masked_fill(picked, MASK)
        else:
            tokens = tokens.masked_fill(picked, MASK)
        return F.cross_entropy(model(tokens).transpose(1, 2), labels)

    return Program(
        model, None, batches, torch.optim.AdamW(model.parameters(), lr=3e-3), mlm_score(ids[1024:]), step=step
    )


@sound("Four in five labels are -100, and 10 % of the masked tokens are left as they are.", steps=500, least=0.8)
def mlm_ordinary() -> Program:
    ids = cyclic(1280, 2)
    model = MaskedLM()
    batches = [{"input_ids": part} for part in ids[:1024].split(32)]
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

    def step(model, batch):
        tokens = batch["input_ids"]
        picked = torch.rand(tokens.shape) < 0.2
        labels = tokens.masked_fill(~picked, -100)
        seen = tokens.masked_fill(picked & (torch.rand(tokens.shape) < 0.9), MASK)
        return F.cross_entropy(model(seen).flatten(0, 1), labels.flatten())

    return Program(
        model,
        None,
        batches,
        optimizer,
        mlm_score(ids[1024:]),
        scheduler=torch.optim.lr_scheduler.LambdaLR(optimizer, lambda n: min(1.0, n / 50)),
        step=step,
    )


@sound("Cross-correlations over the batch: the loss of an example depends on all others, on purpose.", steps=300, least=0.75)
def barlow_twins() -> Program:
    a, b = two_modalities(1088, 15)
    net = nn.ModuleDict({"image": mlp(8, 64, 12), "text": mlp(8, 64, 12)})
    batches = [(a[i : i + 128], b[i : i + 128]) for i in range(0, 1024, 128)]

    def step(net, batch):
        u, v = net["image"](batch[0]), net["text"](batch[1])
        u, v = ((w - w.mean(0)) / w.std(0) for w in (u, v))
        c = u.T @ v / len(u)
        on = (c.diagonal() - 1).pow(2).sum()
        return on + 0.02 * (c.pow(2).sum() - c.diagonal().pow(2).sum())

    def score(m):
        u, v = m["image"](a[-64:]), m["text"](b[-64:])
        u, v = ((w - w.mean(0)) / w.std(0) for w in (u, v))
        return retrieval(F.normalize(u, dim=1), F.normalize(v, dim=1))

    return Program(net, None, batches, torch.optim.Adam(net.parameters(), lr=3e-3), score, step=step)


@sound("Inputs and labels of a batch are mixed with those of others, so that no label is pure.", steps=400, least=0.8)
def mixup_step() -> Program:
    x, y = blobs(2048, 10, 4, 18, spread=0.7)
    net = mlp(10, 64, 64, 4, act=nn.GELU)
    loader = DataLoader(TensorDataset(x[:1536], y[:1536]), 64, shuffle=True, generator=torch.Generator().manual_seed(6))

    def step(model, batch):
        v, label = batch
        lam = torch.distributions.Beta(0.4, 0.4).sample().item()
        other = torch.randperm(len(v))
        out = model(lam * v + (1 - lam) * v[other])
        return lam * F.cross_entropy(out, label) + (1 - lam) * F.cross_entropy(out, label[other])

    return Program(net, None, loader, torch.optim.Adam(net.parameters(), lr=1e-3), accuracy(x[1536:], y[1536:]), step=step)
