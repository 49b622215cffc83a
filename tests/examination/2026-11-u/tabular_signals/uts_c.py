"""Sound networks for tables, ranking and recommendation."""
import torch
import torch.nn.functional as F
from program import Program, sound
from sklearn.datasets import load_breast_cancer, load_digits, load_iris, load_wine
from torch import nn
from uts_tools import uts_acc, uts_auc, uts_clusters, uts_gen, uts_loader, uts_r2, uts_table


def uts_bunch(load, seed, share=0.75):
    bunch = load()
    x, y = torch.tensor(bunch.data, dtype=torch.float32), torch.tensor(bunch.target)
    order = torch.randperm(len(x), generator=uts_gen(seed))
    x, y = x[order], y[order]
    cut = int(share * len(x))
    mean, std = x[:cut].mean(0), x[:cut].std(0) + 1e-6
    x = (x - mean) / std
    return x[:cut], y[:cut], x[cut:], y[cut:]


@sound("an ordinary perceptron; some pixels of the digits never vary", steps=200, least=0.85)
def uts_s_digits():
    x, y, vx, vy = uts_bunch(load_digits, 1)
    net = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 10))
    return Program(net, nn.CrossEntropyLoss(), uts_loader(x, y, size=64), torch.optim.Adam(net.parameters(), 2e-3),
                   lambda m: uts_acc(m(vx), vy))


@sound("logistic regression: a single layer and nothing nonlinear", steps=150, least=0.9)
def uts_s_logistic():
    x, y, vx, vy = uts_bunch(load_breast_cancer, 2)
    net = nn.Linear(30, 1)
    return Program(net, lambda o, t: F.binary_cross_entropy_with_logits(o[:, 0], t.float()),
                   uts_loader(x, y, size=32), torch.optim.SGD(net.parameters(), 0.05, momentum=0.9),
                   lambda m: float(((m(vx)[:, 0] > 0).long() == vy).float().mean()))


@sound("the whole table of iris as one batch, in order", steps=200, least=0.85)
def uts_s_full_batch():
    x, y, vx, vy = uts_bunch(load_iris, 3, 0.7)
    by = torch.argsort(y)
    net = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 3))
    return Program(net, F.cross_entropy, [(x[by], y[by])], torch.optim.Adam(net.parameters(), 0.02),
                   lambda m: uts_acc(m(vx), vy))


@sound("batches of one row, without normalisation", steps=500, least=0.85)
def uts_s_one_by_one():
    x, y, vx, vy = uts_bunch(load_wine, 4)
    net = nn.Sequential(nn.Linear(13, 24), nn.ReLU(), nn.Linear(24, 3))
    return Program(net, F.cross_entropy, uts_loader(x, y, size=1), torch.optim.SGD(net.parameters(), 0.01),
                   lambda m: uts_acc(m(vx), vy))


@sound("an ordinary regression with BatchNorm, AdamW and a cosine", steps=250, least=0.75)
def uts_s_regression_bn():
    x, y = uts_table(2000, 5)
    vx, vy = uts_table(500, 6)
    net = nn.Sequential(nn.Linear(8, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 64), nn.BatchNorm1d(64),
                        nn.ReLU(), nn.Linear(64, 1))
    opt = torch.optim.AdamW(net.parameters(), 4e-3, weight_decay=1e-2)
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, 250)
    return Program(net, lambda o, t: F.mse_loss(o.squeeze(1), t), uts_loader(x, y, size=64, drop_last=True), opt,
                   lambda m: uts_r2(m(vx), vy), scheduler=sched)


class UtsTied(nn.Module):
    def __init__(self, d, k):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(k, d) * d ** -0.5)
        self.up, self.down = nn.Parameter(torch.zeros(k)), nn.Parameter(torch.zeros(d))

    def forward(self, x):
        z = F.leaky_relu(F.linear(x, self.weight, self.up), 0.1)
        return F.linear(z, self.weight.t(), self.down)


@sound("an autoencoder whose decoder is its encoder transposed; anomalies are what it does not rebuild",
       steps=300, least=0.85)
def uts_s_tied_autoencoder():
    basis = torch.randn(4, 20, generator=uts_gen(9))

    def normal(n, seed):
        g = uts_gen(seed)
        return torch.randn(n, 4, generator=g) @ basis / 2 + 0.1 * torch.randn(n, 20, generator=g)

    x, ok = normal(1500, 10), normal(300, 11)
    odd = ok[torch.randperm(300, generator=uts_gen(12))].clone()
    odd[:, ::2] = odd[torch.randperm(300, generator=uts_gen(13))][:, ::2]
    vx, vy = torch.cat([ok, odd]), torch.cat([torch.zeros(300), torch.ones(300)])
    net = UtsTied(20, 8)

    def step(model, batch):
        return F.mse_loss(model(batch[0]), batch[0])

    return Program(net, None, uts_loader(x, size=64), torch.optim.Adam(net.parameters(), 5e-3),
                   lambda m: uts_auc(((m(vx) - vx) ** 2).mean(1), vy), step=step)


@sound("two per cent of frauds, with pos_weight=49", steps=250, least=0.85)
def uts_s_rare_fraud():
    def data(n, seed):
        g = uts_gen(seed)
        y = (torch.rand(n, generator=g) < 0.02).float()
        x = torch.randn(n, 10, generator=g)
        x[:, 0] += 1.8 * y
        x[:, 1] = torch.where(y > 0, x[:, 1].abs() + x[:, 2].abs(), x[:, 1])
        return x, y

    x, y = data(8000, 14)
    vx, vy = data(4000, 15)
    net = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 1), nn.Flatten(0))
    return Program(net, nn.BCEWithLogitsLoss(pos_weight=torch.tensor(49.0)), uts_loader(x, y, size=256),
                   torch.optim.Adam(net.parameters(), 2e-3), lambda m: uts_auc(m(vx), vy))


@sound("a Cox model: the loss of an example hangs on who else is in the batch", steps=200, least=0.7)
def uts_s_cox():
    def data(n, seed):
        g = uts_gen(seed)
        x = torch.randn(n, 8, generator=g)
        hazard = torch.exp(1.2 * x[:, 0] - x[:, 1].abs() * 1.2)
        t = torch.empty(n).exponential_(1.0, generator=g) / hazard
        c = torch.empty(n).exponential_(0.3, generator=g)
        return x, torch.stack([torch.minimum(t, c), (t <= c).float()], 1)

    x, y = data(1500, 18)
    vx, vy = data(500, 19)

    def cox(risk, target):
        order = torch.argsort(target[:, 0], descending=True)
        r, event = risk.squeeze(1)[order], target[order, 1]
        return -((r - torch.logcumsumexp(r, 0)) * event).sum() / event.sum().clamp(min=1)

    def score(m):
        r, t, e = m(vx).squeeze(1), vy[:, 0], vy[:, 1]
        pairs = (t[:, None] < t[None]) & (e[:, None] > 0)
        return float((r[:, None] > r[None])[pairs].float().mean())

    net = nn.Sequential(nn.Linear(8, 48), nn.ReLU(), nn.Linear(48, 1, bias=False))
    return Program(net, cox, uts_loader(x, y, size=128), torch.optim.Adam(net.parameters(), 3e-3), score)


@sound("five quantiles of one target: outputs and targets have different shapes on purpose", steps=250, least=0.85)
def uts_s_quantiles():
    levels = torch.tensor([0.1, 0.25, 0.5, 0.75, 0.9])

    def data(n, seed):
        g = uts_gen(seed)
        x = torch.randn(n, 5, generator=g)
        return x, 1.5 * x[:, 0] - x[:, 1] + (0.3 + x[:, 2].abs()) * torch.randn(n, generator=g)

    x, y = data(3000, 20)
    vx, vy = data(1500, 21)

    def pinball(q, target):
        e = target[:, None] - q
        return torch.maximum(levels * e, (levels - 1) * e).mean()

    net = nn.Sequential(nn.Linear(5, 64), nn.ReLU(), nn.Linear(64, 5))
    return Program(net, pinball, uts_loader(x, y, size=100), torch.optim.Adam(net.parameters(), 5e-3),
                   lambda m: 1 - 2 * float(((vy[:, None] < m(vx)).float().mean(0) - levels).abs().mean()))


class UtsDotProduct(nn.Module):
    def __init__(self, users, items, k):
        super().__init__()
        self.user, self.item = nn.Embedding(users, k), nn.Embedding(items, k)
        nn.init.normal_(self.user.weight, std=0.3)
        nn.init.normal_(self.item.weight, std=0.3)

    def forward(self, pair):
        return (self.user(pair[:, 0]) * self.item(pair[:, 1])).sum(1)


@sound("a plain factorisation of ratings: embeddings only, most of whose rows have no gradient in a batch",
       steps=500, least=0.8)
def uts_s_factorisation():
    g = uts_gen(24)
    r = torch.randn(60, 3, generator=g) @ torch.randn(3, 50, generator=g) / 1.7
    pairs = torch.cartesian_prod(torch.arange(60), torch.arange(50))[torch.randperm(3000, generator=g)]
    y = r[pairs[:, 0], pairs[:, 1]] + 0.1 * torch.randn(3000, generator=g)
    net = UtsDotProduct(60, 50, 8)
    return Program(net, F.mse_loss, uts_loader(pairs[:2200], y[:2200], size=64),
                   torch.optim.Adam(net.parameters(), 0.01), lambda m: uts_r2(m(pairs[2200:]), y[2200:]))


@sound("Bayesian personalised ranking: scores without scale, only differences count", steps=400, least=0.75)
def uts_s_bpr():
    g = uts_gen(25)
    taste = torch.randn(80, 3, generator=g) @ torch.randn(3, 60, generator=g)
    likes = taste > 1.0
    u, i = likes.nonzero(as_tuple=True)
    keep = torch.rand(len(u), generator=g) < 0.75
    held = likes.clone()
    held[u[keep], i[keep]] = False
    disliked = ~likes
    net = UtsDotProduct(80, 60, 8)

    def step(model, batch):
        user, item = batch
        other = torch.randint(60, user.shape)
        good, bad = model(torch.stack([user, item], 1)), model(torch.stack([user, other], 1))
        return -F.logsigmoid(good - bad).mean()

    def score(m):
        s = m.user.weight @ m.item.weight.T
        total = [uts_auc(torch.cat([s[k][held[k]], s[k][disliked[k]]]),
                         torch.cat([torch.ones(int(held[k].sum())), torch.zeros(int(disliked[k].sum()))]))
                 for k in range(80) if held[k].any() and disliked[k].any()]
        return sum(total) / len(total)

    return Program(net, None, uts_loader(u[keep], i[keep], size=128), torch.optim.Adam(net.parameters(), 0.01),
                   score, step=step)


class UtsMixed(nn.Module):
    def __init__(self):
        super().__init__()
        self.region = nn.Embedding(9, 4, padding_idx=0)
        self.day = nn.Embedding(7, 3)
        self.deep = nn.Sequential(nn.Linear(7 + 4, 64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 32), nn.ReLU())
        self.demand, self.is_late = nn.Linear(32, 1), nn.Linear(32, 1)

    def forward(self, region, day, numbers):
        h = self.deep(torch.cat([self.region(region), self.day(day), numbers], 1))
        return self.demand(h)[:, 0], self.is_late(h)[:, 0]


@sound("a regression and a classification with weights 1 and 0.3; one embedding has a padding row", steps=300, least=0.7)
def uts_s_two_tasks():
    w = uts_gen(26)
    of_region, of_day = torch.randn(9, generator=w), torch.randn(7, generator=w)
    of_region[0] = 0

    def data(n, seed):
        g = uts_gen(seed)
        r, d = torch.randint(9, (n,), generator=g), torch.randint(7, (n,), generator=g)
        z = torch.randn(n, 4, generator=g)
        demand = of_region[r] + of_day[d] * z[:, 0] + 0.1 * torch.randn(n, generator=g)
        late = (z[:, 1] + of_region[r] + 0.3 * torch.randn(n, generator=g) > 0).float()
        return r, d, z, demand, late

    r, d, z, a, b = data(2000, 27)
    vr, vd, vz, va, vb = data(500, 28)

    def step(model, batch):
        region, day, numbers, demand, late = batch
        p, q = model(region, day, numbers)
        return F.mse_loss(p, demand) + 0.3 * F.binary_cross_entropy_with_logits(q, late)

    def score(m):
        p, q = m(vr, vd, vz)
        return 0.5 * (uts_r2(p, va) + uts_auc(q, vb))

    net = UtsMixed()
    return Program(net, None, uts_loader(r, d, z, a, b, size=64), torch.optim.Adam(net.parameters(), 3e-3), score,
                   step=step)


class UtsReZero(nn.Module):
    def __init__(self, d, width, depth, outs):
        super().__init__()
        self.into = nn.Linear(d, width)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width))
                                    for _ in range(depth))
        self.gates = nn.Parameter(torch.zeros(depth))
        self.out = nn.Linear(width, outs)

    def forward(self, x):
        h = self.into(x)
        for gate, block in zip(self.gates, self.blocks):
            h = h + gate * block(h)
        return self.out(h)


@sound("residual blocks behind gates that start at zero, so that their weights have no gradient at first",
       steps=250, least=0.85)
def uts_s_rezero():
    x, y = uts_clusters(1500, 29)
    vx, vy = uts_clusters(500, 30)
    net = UtsReZero(12, 32, 6, 5)
    return Program(net, F.cross_entropy, uts_loader(x, y, size=64), torch.optim.Adam(net.parameters(), 3e-3),
                   lambda m: uts_acc(m(vx), vy))


@sound("half trained, with BatchNorm and RMSprop", trained=120, steps=300, least=0.75)
def uts_s_half_trained():
    x, y = uts_table(2000, 33)
    vx, vy = uts_table(500, 34)
    net = nn.Sequential(nn.Linear(8, 64), nn.BatchNorm1d(64), nn.LeakyReLU(0.1), nn.Linear(64, 32), nn.BatchNorm1d(32),
                        nn.LeakyReLU(0.1), nn.Linear(32, 1), nn.Flatten(0))
    return Program(net, nn.HuberLoss(), uts_loader(x, y, size=50), torch.optim.RMSprop(net.parameters(), 1e-3),
                   lambda m: uts_r2(m(vx), vy))


@sound("trained to the end: saturated probabilities, which are right", trained=300, steps=300, least=0.9)
def uts_s_trained():
    x, y = uts_clusters(1500, 35)
    vx, vy = uts_clusters(500, 36)
    net = nn.Sequential(nn.Linear(12, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 5))
    return Program(net, F.cross_entropy, uts_loader(x, y, size=64), torch.optim.Adam(net.parameters(), 3e-3),
                   lambda m: uts_acc(m(vx), vy))


@sound("a summed loss whose rate has been divided by the size of the batch", steps=300, least=0.85)
def uts_s_summed():
    x, y = uts_clusters(1500, 37)
    vx, vy = uts_clusters(500, 38)
    net = nn.Sequential(nn.Linear(12, 48), nn.ReLU(), nn.Linear(48, 5))
    return Program(net, nn.CrossEntropyLoss(reduction="sum"), uts_loader(x, y, size=64, drop_last=True),
                   torch.optim.SGD(net.parameters(), 0.1 / 64, momentum=0.8), lambda m: uts_acc(m(vx), vy))
