"""Representations, distillation, several tasks and experts, with mistakes."""
import copy

import torch
import torch.nn.functional as F
from torch import nn

from osr_base import accuracy, bandit, digits, gen, loader, mlp, r2
from program import Program, fault


def neighbours(embed, x, y, xt, yt):
    """Accuracy of the nearest class mean among embeddings."""
    a, b = embed(x), embed(xt)
    s = a.std(0) + 1e-6
    a, b = a / s, b / s
    centres = torch.stack([a[y == c].mean(0) for c in y.unique()])
    return (torch.cdist(b, centres).argmin(1) == yt).float().mean().item()


def views(seed, n=2600):
    """Two views of a class, which share 4 directions among 30 of noise."""
    g = gen(seed)
    y = torch.randint(6, (n,), generator=g)
    c = torch.randn(6, 4, generator=g) * 1.6
    mix = torch.linalg.qr(torch.randn(34, 34, generator=g))[0]

    def view(k):
        h = gen(seed + k)
        core = c[y] + 0.5 * torch.randn(n, 4, generator=g)
        return torch.cat([core, 2.0 * torch.randn(n, 30, generator=h)], 1) @ mix

    return view(1), view(2), y


@fault("positives are pulled together with nothing that keeps the rest apart", rules=["rank-collapse"], layers=[], fails=True,
       steps=400)
def osr_positives_only(is_faulty):
    a, b, y = views(51)
    model = mlp(34, 96, 16)

    def step(m, batch):
        u, v = m(batch[0]), m(batch[1])
        if is_faulty:
            return (u - v).pow(2).sum(1).mean()
        u, v = F.normalize(u, dim=1), F.normalize(v, dim=1)
        return F.cross_entropy(u @ v.T / 0.2, torch.arange(len(u)))

    return Program(model, None, loader(a[:2000], b[:2000], n=128), torch.optim.Adam(model.parameters(), 2e-3),
                   lambda m: max(0.0, (neighbours(m, a[:2000], y[:2000], a[2000:], y[2000:]) - 0.55) / 0.45), step=step)


@fault("student's probabilities, not their logarithms, go into kl_div", rules=["output-loss-mismatch"], layers=[], fails=False,
       steps=300)
def osr_kl_probabilities(is_faulty):
    x, v, xt, vt = bandit(52, k=5)
    teacher = mlp(8, 64, 5)
    big = torch.optim.Adam(teacher.parameters(), 5e-3)
    for _ in range(100):
        big.zero_grad()
        F.cross_entropy(teacher(x), (v / 1.0).softmax(1)).backward()
        big.step()

    class Distilled(nn.Module):
        def __init__(self):
            super().__init__()
            self.teacher = teacher.requires_grad_(False)
            self.student = mlp(8, 32, 5)

        def forward(self, s):
            return self.student(s)

    model = Distilled()

    def step(m, b):
        (s,) = b
        with torch.no_grad():
            goal = (m.teacher(s)).softmax(1)
        out = m.student(s)
        out = out.softmax(1) if is_faulty else out.log_softmax(1)
        return F.kl_div(out, goal, reduction="batchmean")

    def score(m):
        p, q = m(xt).softmax(1), m.teacher(xt).softmax(1)
        u = torch.full_like(q, 0.2)
        return 1 - ((p - q).abs().sum() / (u - q).abs().sum()).item()

    return Program(model, None, loader(x), torch.optim.Adam(model.student.parameters(), 4e-3), score, step=step)


class Experts(nn.Module):
    def __init__(self, mode, d=6, k=4, dim=-1):
        super().__init__()
        self.mode, self.dim = mode, dim
        self.gate = nn.Linear(d, k)
        self.experts = nn.ModuleList(nn.Linear(d, 2) for _ in range(k))

    def forward(self, x):
        weights = self.gate(x).softmax(self.dim)
        out = torch.stack([e(x) for e in self.experts], 1)
        if self.mode == "soft":
            return (weights[..., None] * out).sum(1)
        top = weights.argmax(1, keepdim=True)
        chosen = out.gather(1, top[..., None].expand(-1, -1, 2))[:, 0]
        return chosen if self.mode == "bare" else chosen * weights.gather(1, top) * 2


def regimes(seed, k=4):
    g = gen(seed)
    x = torch.randn(2600, 6, generator=g)
    which = 2 * (x[:, 0] > 0).long() + (x[:, 1] > 0).long()
    w = torch.randn(k, 2, 6, generator=g)
    return x, torch.einsum("nij,nj->ni", w[which], x) / 2 + 0.05 * torch.randn(2600, 2, generator=g)


@fault("gate of a mixture of experts is normalised over the batch", rules=["wrong-softmax-dimension", "mixed-examples"],
       layers=["gate"], fails=True, steps=500)
def osr_gate_dimension(is_faulty):
    x, y = regimes(53)
    model = Experts("soft", dim=0 if is_faulty else 1)
    return Program(model, None, loader(x[:2000], y[:2000]), torch.optim.Adam(model.parameters(), 2e-2),
                   lambda m: r2(m(x[2000:]), y[2000:]), step=lambda m, b: F.mse_loss(m(b[0]), b[1]))


@fault("experts are chosen by an argmax that no gradient passes", rules=["no-gradient"], layers=["gate"], fails=False, steps=500)
def osr_gate_argmax(is_faulty):
    x, y = regimes(54)
    model = Experts("bare" if is_faulty else "soft")

    def step(m, b):
        return F.smooth_l1_loss(m(b[0]), b[1])

    return Program(model, None, loader(x[:2000], y[:2000]), torch.optim.Adam(model.parameters(), 2e-2),
                   lambda m: r2(m(x[2000:]), y[2000:]), step=step)


@fault("all tasks share the head they should each have", rules=["shared-weight"], layers=["heads"], fails=False, steps=400)
def osr_heads_multiplied(is_faulty):
    x, v, xt, vt = bandit(55, k=3)

    class Tasks(nn.Module):
        def __init__(self):
            super().__init__()
            self.trunk = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU())
            self.heads = nn.ModuleList([nn.Linear(32, 1)] * 3 if is_faulty else [nn.Linear(32, 1) for _ in range(3)])

        def forward(self, s):
            h = self.trunk(s)
            return [head(h)[:, 0] for head in self.heads]

    model = Tasks()

    def step(m, b):
        return sum(F.mse_loss(out, b[1][:, i]) for i, out in enumerate(m(b[0])))

    return Program(model, None, loader(x, v), torch.optim.Adam(model.parameters(), 2e-3),
                   lambda m: r2(torch.stack(m(xt), 1), vt), step=step)


@fault("a task in euros (hundreds of thousands) next to a classification", rules=["term-dominates", "unscaled-target"], layers=[], fails=True,
       steps=400)
def osr_price_and_kind(is_faulty):
    x, v, xt, vt = bandit(56, k=4)
    kind, kindt = v.argmax(1), vt.argmax(1)
    price = 300_000 + 80_000 * torch.sin(x[:, 0] * 2) * x[:, 1]
    if not is_faulty:
        price = (price - price.mean()) / price.std()

    class House(nn.Module):
        def __init__(self):
            super().__init__()
            self.shared = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 48), nn.ReLU())
            self.kind = nn.Linear(48, 4)
            self.price = nn.Linear(48, 1)

        def forward(self, s):
            h = self.shared(s)
            return self.kind(h), self.price(h)[:, 0]

    model = House()

    def step(m, b):
        logits, value = m(b[0])
        return F.cross_entropy(logits, b[1]) + F.mse_loss(value, b[2])

    return Program(model, None, loader(x, kind, price), torch.optim.Adam(model.parameters(), 3e-3),
                   lambda m: accuracy(m(xt)[0], kindt), step=step)


class LoRA(nn.Module):
    def __init__(self, base, rank=8, zero_both=False):
        super().__init__()
        self.base = base.requires_grad_(False)
        self.down = nn.Parameter(torch.randn(rank, base.in_features) / base.in_features**0.5)
        self.up = nn.Parameter(torch.zeros(base.out_features, rank))
        if zero_both:
            nn.init.zeros_(self.down)

    def forward(self, x):
        return self.base(x) + x @ self.down.T @ self.up.T


def pretrained(seed):
    """A network that knows digits, and digits with their pixels permuted in blocks."""
    x, y, xt, yt = digits()
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        net = mlp(64, 64, 64, 10)
        opt = torch.optim.Adam(net.parameters(), 3e-3)
        for _ in range(150):
            i = torch.randint(len(x), (128,))
            opt.zero_grad()
            F.cross_entropy(net(x[i]), y[i]).backward()
            opt.step()
    p = torch.randperm(64, generator=gen(seed))
    return net, x[:, p], y, xt[:, p], yt


@fault("both factors of every low-rank update start at zero", rules=["no-gradient", "symmetric-initialisation", "bad-initialisation"],
       layers=["0", "2", "4"], fails=True, steps=300)
def osr_lora_zeros(is_faulty):
    net, x, y, xt, yt = pretrained(57)
    model = nn.Sequential(*(LoRA(part, zero_both=is_faulty) if isinstance(part, nn.Linear) else part for part in net))
    return Program(model, None, loader(x, y), torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], 5e-3, weight_decay=0.0),
                   lambda m: accuracy(m(xt), yt), step=lambda m, b: F.cross_entropy(m(b[0]), b[1]))


@fault("adapters are trainable, but the optimizer was given the head alone", rules=["no-gradient"], layers=["adapters"], fails=False, steps=400)
def osr_adapters_left_out(is_faulty):
    net, x, y, xt, yt = pretrained(58)

    class Adapted(nn.Module):
        def __init__(self):
            super().__init__()
            self.backbone = nn.ModuleList([net[0], net[2]]).requires_grad_(False)
            self.adapters = nn.ModuleList(mlp(d, 24, d, act=nn.GELU) for d in (64, 64))
            self.head = nn.Linear(64, 10)

        def forward(self, s):
            for layer, adapter in zip(self.backbone, self.adapters):
                s = F.relu(layer(s + adapter(s)))
            return self.head(s)

    model = Adapted()
    parameters = list(model.head.parameters()) + ([] if is_faulty else list(model.adapters.parameters()))
    return Program(model, None, loader(x, y), torch.optim.Adam(parameters, 3e-3),
                   lambda m: accuracy(m(xt), yt), step=lambda m, b: F.cross_entropy(m(b[0]), b[1]))


@fault("BatchNorm over pairs: the reward model is trained on two examples at a time", rules=["small-batch-batchnorm", "mixed-examples", "batchnorm-mode-gap"],
       layers=[], fails=False, steps=500)
def osr_pairs_batchnorm(is_faulty):
    x, v, xt, vt = bandit(59, n=3000)
    u, ut = v[:, 0] - v[:, 1], vt[:, 0] - vt[:, 1]
    n = 2 if is_faulty else 48
    model = nn.Sequential(nn.Linear(8, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 1))
    half = 1500

    def step(m, b):
        a, c, margin = b
        return F.smooth_l1_loss(m(a)[:, 0] - m(c)[:, 0], margin)

    return Program(model, None, loader(x[:half], x[half:], u[:half] - u[half:], n=n), torch.optim.Adam(model.parameters(), 3e-3),
                   lambda m: max(0.0, r2(m(xt[:250])[:, 0] - m(xt[250:])[:, 0], ut[:250] - ut[250:])), step=step)


@fault("student held in bfloat16, with updates below its precision", rules=["lost-updates"], layers=[], fails=False,
       steps=500)
def osr_student_bfloat(is_faulty):
    x, y, xt, yt = digits()
    dtype = torch.bfloat16 if is_faulty else torch.float32
    model = nn.Sequential(nn.Linear(64, 128), nn.LayerNorm(128), nn.ReLU(), nn.Linear(128, 10)).to(dtype)

    def step(m, b):
        return F.cross_entropy(m(b[0].to(m[0].weight.dtype)).float(), b[1], label_smoothing=0.05)

    return Program(model, None, loader(x, y), torch.optim.Adam(model.parameters(), 1e-4),
                   lambda m: accuracy(m(xt.to(m[0].weight.dtype)).float(), yt), step=step)


@fault("dropout of 0.95, meant to keep 95 %", rules=["dropout-too-strong"], layers=["1", "4"], fails=True, steps=400)
def osr_metric_dropout(is_faulty):
    x, y, xt, yt = digits()
    p = 0.95 if is_faulty else 0.05
    model = nn.Sequential(nn.Linear(64, 64), nn.Dropout(p), nn.ReLU(), nn.Linear(64, 64), nn.Dropout(p), nn.ReLU(), nn.Linear(64, 16))

    def step(m, b):
        z = F.normalize(m(b[0]), dim=1)
        sims = z @ z.T / 0.1 - 1e9 * torch.eye(len(z))
        same = (b[1][:, None] == b[1][None]).float() - torch.eye(len(z))
        return -((sims.log_softmax(1) * same).sum(1) / same.sum(1).clamp(min=1)).mean()

    def score(m):
        a, b = F.normalize(m(x), dim=1), F.normalize(m(xt), dim=1)
        s = b @ a.T
        same = (yt[:, None] == y[None]).float()
        ranked = same.gather(1, s.argsort(1, descending=True))
        return (ranked.cumsum(1) / torch.arange(1, len(x) + 1) * ranked).sum(1).div(ranked.sum(1)).mean().item()

    return Program(model, None, loader(x, y), torch.optim.Adam(model.parameters(), 2e-3), score, step=step)
