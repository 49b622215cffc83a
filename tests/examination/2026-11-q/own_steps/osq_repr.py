import copy

import torch
import torch.nn.functional as F
from osq_common import acc, digits, gen, loader, r2, table
from program import Program, fault, sound
from torch import nn


def nearest(embed, xt, yt, xv, yv):
    def score(model):
        a, b = embed(model, xt), embed(model, xv)
        return float((yt[torch.cdist(b, a).argmin(1)] == yv).float().mean())
    return score


class Pairs:
    """Pairs of digits, half of them of one class."""

    def __init__(self, x, y, n=22, bs=64):
        self.x, self.y, self.n, self.bs = x, y, n, bs

    def __len__(self):
        return self.n

    def __iter__(self):
        for _ in range(self.n):
            i = torch.randint(0, len(self.x), (self.bs,))
            j = torch.randint(0, len(self.x), (self.bs,))
            for k in range(0, self.bs, 2):
                same = (self.y == self.y[i[k]]).nonzero().squeeze(1)
                j[k] = same[torch.randint(0, len(same), ())]
            yield self.x[i], self.x[j], (self.y[i] == self.y[j]).float()


def pair_skill(xv, yv):
    g = gen(5)
    i = torch.randperm(len(xv), generator=g)[:200]
    same = yv[i][:, None] == yv[i][None]
    off = ~torch.eye(200, dtype=torch.bool)

    def score(model):
        e = model(xv[i])
        near = torch.cdist(e, e) < 0.5
        return float(0.5 * ((near & same & off).sum() / (same & off).sum() + (~near & ~same).sum() / (~same).sum()) * 2 - 1)
    return score


@fault("a contrastive loss whose margin is 0, so that nothing pushes apart", rules=("rank-collapse",), fails=True, steps=300)
def osq_siamese_without_margin(is_faulty):
    xt, yt, xv, yv = digits()
    m = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 16))
    margin = 0.0 if is_faulty else 1.0

    def step(model, batch):
        a, b, same = batch
        d = F.pairwise_distance(model(a), model(b))
        return (same * d.pow(2) + (1 - same) * F.relu(margin - d).pow(2)).mean()

    return Program(m, None, Pairs(xt, yt), torch.optim.Adam(m.parameters(), 3e-3), pair_skill(xv, yv), step=step)


class TwoViews:
    """Left and right halves of images; two shuffled orders, or one."""

    def __init__(self, a, b, one_order, bs=128):
        self.a, self.b, self.one, self.bs = a, b, one_order, bs

    def __len__(self):
        return len(self.a) // self.bs

    def __iter__(self):
        i = torch.randperm(len(self.a))
        j = i if self.one else torch.randperm(len(self.a))
        for k in range(len(self)):
            part = slice(k * self.bs, (k + 1) * self.bs)
            yield self.a[i[part]], self.b[j[part]]


def latent_views(n, seed):
    g = gen(seed)
    w = torch.randn(2, 5, 20, generator=gen(50))
    z = torch.randn(n, 5, generator=g)
    return [torch.tanh(z @ w[k] * 0.5) + 0.1 * torch.randn(n, 20, generator=g) for k in (0, 1)]


class Clip(nn.Module):
    def __init__(self):
        super().__init__()
        self.image = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 16))
        self.text = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 16))
        self.log_scale = nn.Parameter(torch.tensor(2.0))

    def forward(self, a, b):
        return F.normalize(self.image(a), dim=1) @ F.normalize(self.text(b), dim=1).T * self.log_scale.exp()


def clip_step(model, batch):
    logits = model(*batch)
    goal = torch.arange(len(logits))
    return 0.5 * (F.cross_entropy(logits, goal) + F.cross_entropy(logits.T, goal))


def retrieval(seed):
    av, bv = latent_views(100, seed)
    return lambda model: acc(model(av, bv), torch.arange(100))


@fault("the two sides of the pairs are shuffled apart", rules=("labels-unrelated", "loss-not-decreasing"), fails=True, steps=300)
def osq_clip_pairs_apart(is_faulty):
    a, b = latent_views(1500, 51)
    m = Clip()
    return Program(m, None, TwoViews(a, b, not is_faulty), torch.optim.AdamW(m.parameters(), 3e-3), retrieval(52), step=clip_step)


@fault("a distance whose square root is taken of 0 on the diagonal", rules=("non-finite",), fails=True, steps=200)
def osq_batch_hard_sqrt_of_zero(is_faulty):
    xt, yt, xv, yv = digits()
    m = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 8))
    eps = 0.0 if is_faulty else 1e-6

    def step(model, batch):
        x, y = batch
        e = model(x)
        d = ((e[:, None] - e[None]).pow(2).sum(-1) + eps).sqrt()
        same = (y[:, None] == y[None]).float()
        far = (d * same).max(1).values
        near = (d + 100 * same).min(1).values
        spread = (d * same).sum() / same.sum()
        return F.relu(far - near + 1.0).mean() + 0.1 * spread

    return Program(m, None, loader(xt, yt, bs=48), torch.optim.Adam(m.parameters(), 2e-3), pair_skill2(xv, yv), step=step)


def pair_skill2(xv, yv):
    """Share of anchors whose nearest mean is that of their class, above chance."""
    def score(model):
        e = model(xv)
        mid = torch.stack([e[yv == k].mean(0) for k in range(10)])
        d = torch.cdist(e, mid)
        own = d.gather(1, yv[:, None]).squeeze(1)
        other = d.scatter(1, yv[:, None], float("inf")).min(1).values
        return float(((other - own) / other).mean())
    return score


@fault("kl_div takes the student's logits instead of log-probabilities", rules=("output-loss-mismatch",), fails=True, steps=300)
def osq_distill_kl_of_logits(is_faulty):
    xt, yt, xv, yv = digits()
    teacher_logits = 6.0 * F.one_hot(yt, 10).float() + 0.5 * torch.randn(len(yt), 10, generator=gen(53))

    m = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))

    def step(model, batch):
        x, t = batch
        out = model(x)
        q = out if is_faulty else out.log_softmax(1)
        return F.kl_div(q, t.softmax(1), reduction="batchmean")

    return Program(m, None, loader(xt, teacher_logits, bs=64), torch.optim.Adam(m.parameters(), 3e-3),
                   lambda model: float(model(xv).softmax(1).gather(1, yv[:, None]).mean()), step=step)


@fault("a distillation loss summed over the batch, with the rate of a mean", rules=("summed-loss", "learning-rate-too-high", "exploding-gradient", "diverging"),
       fails=True, steps=200)
def osq_distill_summed(is_faulty):
    xt, yt, xv, yv = digits()
    teacher_logits = 4.0 * F.one_hot(yt, 10).float() + 0.3 * torch.randn(len(yt), 10, generator=gen(54))
    m = nn.Sequential(nn.Linear(64, 48), nn.ReLU(), nn.Linear(48, 48), nn.ReLU(), nn.Linear(48, 10))

    def step(model, batch):
        x, t = batch
        return F.mse_loss(model(x), t, reduction="sum" if is_faulty else "mean")

    return Program(m, None, loader(xt, teacher_logits, bs=128), torch.optim.SGD(m.parameters(), 0.2, momentum=0.9),
                   lambda model: acc(model(xv), yv), step=step)


@fault("a supervised contrastive loss on batches of one class each: no negatives", rules=("sorted-batches", "rank-collapse", "constant-target"), fails=False, steps=300)
def osq_supcon_sorted(is_faulty):
    xt, yt, xv, yv = digits()
    order = yt.argsort(stable=True)
    m = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 16))

    def step(model, batch):
        x, y = batch
        e = F.normalize(model(x), dim=1)
        sim = (e @ e.T / 0.2).masked_fill(torch.eye(len(x), dtype=torch.bool), -1e4)
        same = (y[:, None] == y[None]).float().fill_diagonal_(0)
        return -(sim.log_softmax(1) * same).sum(1).div(same.sum(1).clamp(min=1)).mean()

    def score(model):
        e = F.normalize(model(xv), dim=1)
        s = e @ e.T
        same = yv[:, None] == yv[None]
        return float(s[same].mean() - s[~same].mean())

    return Program(m, None, loader(xt[order], yt[order], bs=64, shuffle=not is_faulty), torch.optim.Adam(m.parameters(), 2e-3), score, step=step)


def two_tasks(n, seed):
    g = gen(seed)
    x = torch.randn(n, 8, generator=g)
    y = ((x[:, 0] * x[:, 1] + x[:, 2]) > 0).long()
    v = 400 * (x[:, 3] + torch.sin(2 * x[:, 4]) + 0.3 * torch.randn(n, generator=g))
    return x, y, v


@fault("a regression of values in the hundreds drowns the classification next to it", rules=("term-dominates", "unscaled-target"), fails=True, steps=500)
def osq_multitask_unscaled(is_faulty):
    x, y, v = two_tasks(2000, 55)
    xv, yv, _ = two_tasks(600, 56)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU())
            self.label = nn.Linear(32, 2)
            self.value = nn.Linear(32, 1)

        def forward(self, x):
            h = self.body(x)
            return self.label(h), self.value(h).squeeze(1)

    k = 1.0 if is_faulty else 400.0

    def step(model, batch):
        x, y, v = batch
        logits, out = model(x)
        return F.cross_entropy(logits, y) + F.mse_loss(out, v / k)

    m = Net()
    opt = torch.optim.Adam(m.parameters(), 5e-3)
    return Program(m, None, loader(x, y, v, bs=64), opt, lambda model: 2 * acc(model(xv)[0], yv) - 1, step=step)


@fault("features of another, wider domain update the same BatchNorm, for the consistency term only", rules=("batchnorm-mode-gap",), layers=("norm",), fails=True, steps=300)
def osq_consistency_batchnorm(is_faulty):
    xt, yt, xv, yv = digits()

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.lin = nn.Linear(64, 48)
            self.norm = nn.BatchNorm1d(48, momentum=0.1)
            self.head = nn.Linear(48, 10)

        def forward(self, x):
            return self.head(torch.relu(self.norm(self.lin(x))))

    def step(model, batch):
        x, y = batch
        out = model(x)
        if not is_faulty:
            model.norm.eval()
        noisy = model(6.0 * x + 3.0)
        if not is_faulty:
            model.norm.train()
        return F.cross_entropy(out, y) + 1e-3 * F.mse_loss(noisy, out.detach())

    m = Net()
    return Program(m, None, loader(xt, yt, bs=64), torch.optim.Adam(m.parameters(), 3e-3),
                   lambda model: float(model(xv).softmax(1).gather(1, yv[:, None]).mean()), step=step)


class LoRA(nn.Module):
    def __init__(self, base, r, zero_a):
        super().__init__()
        self.base = base.requires_grad_(False)
        self.a = nn.Parameter(torch.zeros(r, base.in_features) if zero_a else torch.randn(r, base.in_features) / base.in_features**0.5)
        self.b = nn.Parameter(torch.zeros(base.out_features, r))

    def forward(self, x):
        return self.base(x) + x @ self.a.T @ self.b.T


def pretrained(xt, yt):
    """A digit network trained on pixels in another order of classes."""
    net = nn.Sequential(nn.Linear(64, 48), nn.ReLU(), nn.Linear(48, 10))
    opt = torch.optim.Adam(net.parameters(), 1e-2)
    for _ in range(60):
        i = torch.randint(0, len(xt), (128,))
        opt.zero_grad()
        F.cross_entropy(net(xt[i]), (yt[i] + 3) % 10).backward()
        opt.step()
    return net


@fault("both factors of the adapters start at zero", rules=("bad-initialisation", "no-gradient", "symmetric-initialisation", "loss-not-decreasing"), layers=("0", "2"), fails=True, steps=300)
def osq_lora_both_zero(is_faulty):
    xt, yt, xv, yv = digits()
    net = pretrained(xt, yt)
    net[0], net[2] = LoRA(net[0], 4, is_faulty), LoRA(net[2], 4, is_faulty)
    return Program(net, nn.CrossEntropyLoss(), loader(xt, yt, bs=64), torch.optim.AdamW([p for p in net.parameters() if p.requires_grad], 1e-2),
                   lambda model: acc(model(xv), yv))


class Fake(nn.Linear):
    def __init__(self, i, o, bits, through):
        super().__init__(i, o)
        self.levels, self.through = 2 ** (bits - 1) - 1, through

    def forward(self, x):
        s = self.weight.detach().abs().max() / self.levels
        w = (self.weight / s).round() * s
        if self.through:
            w = self.weight + (w - self.weight).detach()
        return F.linear(x, w, self.bias)


@fault("weights rounded in the forward pass without a straight-through gradient", rules=("no-gradient",), layers=("0", "2"), fails=True, steps=400)
def osq_qat_round(is_faulty):
    xt, yt, xv, yv = digits()
    m = nn.Sequential(Fake(64, 32, 4, not is_faulty), nn.ReLU(), Fake(32, 10, 4, not is_faulty))
    return Program(m, nn.CrossEntropyLoss(), loader(xt, yt, bs=64), torch.optim.SGD(m.parameters(), 0.1, momentum=0.9), lambda model: acc(model(xv), yv))


@fault("a momentum teacher whose parameters are the student's own ones are frozen with it", rules=("no-gradient", "shared-weight"), layers=("student.0", "teacher.0"), fails=True, steps=200)
def osq_teacher_is_student(is_faulty):
    xt, yt, xv, yv = digits()

    class MeanTeacher(nn.Module):
        def __init__(self):
            super().__init__()
            self.student = nn.Sequential(nn.Linear(64, 24), nn.Tanh(), nn.Linear(24, 10))
            nn.init.normal_(self.student[0].weight, std=0.02)
            if is_faulty:
                self.teacher = nn.Sequential(self.student[0], nn.Tanh(), copy.deepcopy(self.student[2]))
            else:
                self.teacher = copy.deepcopy(self.student)
            self.teacher.requires_grad_(False)

        def forward(self, x):
            return self.student(x)

    def step(model, batch):
        x, y = batch
        with torch.no_grad():
            for p, q in zip(model.teacher.parameters(), model.student.parameters()):
                p.lerp_(q, 0.05)
            aim = model.teacher(x + 0.1 * torch.randn_like(x)).softmax(1)
        out = model(x)
        return F.cross_entropy(out, y) + 0.5 * F.mse_loss(out.softmax(1), aim)

    m = MeanTeacher()
    return Program(m, None, loader(xt, yt, bs=64), torch.optim.Adam(m.parameters(), 2e-3), lambda model: float(model(xv).softmax(1).gather(1, yv[:, None]).mean()), step=step)


@sound("SimSiam: a loss of cosines that is negative, and a stopped gradient", steps=300, least=0.8)
def osq_s_simsiam():
    xt, yt, xv, yv = digits()

    class SimSiam(nn.Module):
        def __init__(self):
            super().__init__()
            self.f = nn.Sequential(nn.Linear(64, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 32), nn.BatchNorm1d(32, affine=False))
            self.h = nn.Sequential(nn.Linear(32, 16), nn.ReLU(), nn.Linear(16, 32))

        def forward(self, x):
            return self.f(x)

    def step(model, batch):
        x, = batch
        a, b = (model(x + 0.15 * torch.randn_like(x)) for _ in range(2))
        return -0.5 * (F.cosine_similarity(model.h(a), b.detach()).mean() + F.cosine_similarity(model.h(b), a.detach()).mean())

    m = SimSiam()
    return Program(m, None, loader(xt, bs=128), torch.optim.SGD(m.parameters(), 0.05, momentum=0.9, weight_decay=1e-4), nearest(lambda m, x: m(x), xt, yt, xv, yv), step=step)


@sound("CLIP with a learned temperature, half trained", trained=150, steps=300, least=0.7)
def osq_s_clip():
    a, b = latent_views(1500, 57)
    m = Clip()
    return Program(m, None, TwoViews(a, b, True), torch.optim.AdamW(m.parameters(), 3e-3), retrieval(58), step=clip_step)


@sound("a triplet loss on top of a frozen, random body", steps=300, least=0.8)
def osq_s_triplet_frozen_body():
    xt, yt, xv, yv = digits()
    body = nn.Sequential(nn.Linear(64, 256), nn.ReLU()).requires_grad_(False)
    m = nn.Sequential(body, nn.Linear(256, 16))

    def step(model, batch):
        x, y = batch
        e = F.normalize(model(x), dim=1)
        d = torch.cdist(e, e)
        same = y[:, None] == y[None]
        return F.relu((d * same).max(1).values - (d + 10.0 * same).min(1).values + 0.3).mean()

    return Program(m, None, loader(xt, yt, bs=64), torch.optim.Adam(m[1].parameters(), 3e-3), nearest(lambda m, x: F.normalize(m(x), dim=1), xt, yt, xv, yv), step=step)


@sound("distillation at T=4 with a factor of T², from a trained and frozen teacher", steps=300, least=0.85)
def osq_s_distill_temperature():
    xt, yt, xv, yv = digits()

    class Both(nn.Module):
        def __init__(self):
            super().__init__()
            self.teacher = pretrained(xt, yt).requires_grad_(False)
            self.student = nn.Sequential(nn.Linear(64, 24), nn.ReLU(), nn.Linear(24, 10))

        def forward(self, x):
            return self.student(x)

    def step(model, batch):
        x, y = batch
        out = model(x)
        with torch.no_grad():
            t = (model.teacher(x) / 4).softmax(1)
        return 0.3 * F.cross_entropy(out, y) + 0.7 * 16 * F.kl_div((out / 4).log_softmax(1), t, reduction="batchmean")

    m = Both()
    return Program(m, None, loader(xt, (yt + 3) % 10, bs=64), torch.optim.Adam(m.student.parameters(), 3e-3), lambda model: acc(model(xv), (yv + 3) % 10), step=step)


@sound("adapters that start with one factor at zero, on a frozen network", steps=300, least=0.8)
def osq_s_lora():
    xt, yt, xv, yv = digits()
    net = pretrained(xt, yt)
    net[0], net[2] = LoRA(net[0], 4, False), LoRA(net[2], 4, False)
    return Program(net, nn.CrossEntropyLoss(), loader(xt, yt, bs=64), torch.optim.AdamW([p for p in net.parameters() if p.requires_grad], 1e-2), lambda model: acc(model(xv), yv))


@sound("quantization-aware training with straight-through gradients, 4 bits", steps=300, least=0.85)
def osq_s_qat():
    xt, yt, xv, yv = digits()
    m = nn.Sequential(Fake(64, 48, 4, True), nn.ReLU(), Fake(48, 10, 4, True))
    return Program(m, nn.CrossEntropyLoss(), loader(xt, yt, bs=64), torch.optim.Adam(m.parameters(), 3e-3), lambda model: acc(model(xv), yv))


@sound("a mean teacher, with few labels of -1 for none", steps=400, least=0.8)
def osq_s_mean_teacher():
    xt, yt, xv, yv = digits()
    y = yt.clone()
    y[torch.rand(len(y), generator=gen(59)) < 0.7] = -1

    class MT(nn.Module):
        def __init__(self):
            super().__init__()
            self.student = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Dropout(0.3), nn.Linear(64, 10))
            self.teacher = copy.deepcopy(self.student).requires_grad_(False)

        def forward(self, x):
            return self.teacher(x)

    def step(model, batch):
        x, y = batch
        with torch.no_grad():
            for p, q in zip(model.teacher.parameters(), model.student.parameters()):
                p.lerp_(q, 0.05)
            aim = model.teacher(x).softmax(1)
        out = model.student(x + 0.1 * torch.randn_like(x))
        return F.cross_entropy(out, y, ignore_index=-1) + F.mse_loss(out.softmax(1), aim)

    m = MT()
    return Program(m, None, loader(xt, y, bs=64), torch.optim.Adam(m.student.parameters(), 3e-3), lambda model: acc(model(xv), yv), step=step)


@sound("two tasks weighted by learned variances: a loss that turns negative", steps=500, least=0.7)
def osq_s_uncertainty_weights():
    x, y, v = two_tasks(2000, 60)
    xv, yv, _ = two_tasks(600, 61)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU())
            self.label, self.value = nn.Linear(64, 2), nn.Linear(64, 1)
            self.s = nn.Parameter(torch.zeros(2))

    def step(model, batch):
        x, y, v = batch
        h = model.body(x)
        terms = torch.stack([F.cross_entropy(model.label(h), y), 0.5 * F.mse_loss(model.value(h).squeeze(1), v / 400)])
        return (terms * (-model.s).exp() + 0.5 * model.s).sum()

    m = Net()
    return Program(m, None, loader(x, y, v, bs=64), torch.optim.Adam(m.parameters(), 3e-3), lambda model: 2 * acc(model.label(model.body(xv)), yv) - 1, step=step)


@sound("an ordinary classifier of wine", steps=200, least=0.85)
def osq_s_wine():
    xt, yt, xv, yv = table("wine")
    m = nn.Sequential(nn.Linear(13, 32), nn.ReLU(), nn.Linear(32, 3))
    return Program(m, nn.CrossEntropyLoss(), loader(xt, yt, bs=16), torch.optim.Adam(m.parameters(), 5e-3), lambda model: acc(model(xv), yv))


@sound("an ordinary network for digits, in a training step of its own", steps=300, least=0.85)
def osq_s_digits_cnn():
    xt, yt, xv, yv = digits()
    m = nn.Sequential(nn.Unflatten(1, (1, 8, 8)), nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 16, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(64, 10))

    def step(model, batch):
        images, labels = batch
        return F.cross_entropy(model(images), labels)

    return Program(m, None, loader(xt, yt, bs=64), torch.optim.Adam(m.parameters(), 5e-3), lambda model: acc(model(xv), yv), step=step)


@sound("an ordinary logistic regression of two classes", steps=200, least=0.85)
def osq_s_cancer():
    xt, yt, xv, yv = table("cancer")
    m = nn.Sequential(nn.Linear(30, 1), nn.Flatten(0))
    return Program(m, nn.BCEWithLogitsLoss(), loader(xt, yt.float(), bs=32), torch.optim.SGD(m.parameters(), 0.1), lambda model: float(((model(xv) > 0).long() == yv).float().mean()))
