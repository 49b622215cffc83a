"""Sound programs on tables and graphs."""

import copy

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, WeightedRandomSampler

from program import Program, sound
from tiq_common import accuracy, blobs, community, digits, friedman, loader, molecules, r2, split, table
from tiq_faults_img import _collated, _Graphs


@sound("ordinary: MLP on wine", steps=200, least=0.8)
def tiq_s_wine():
    x, y, xt, yt = table("wine")
    model = nn.Sequential(nn.Linear(13, 32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 3))
    return Program(model, nn.CrossEntropyLoss(), loader(x, y, 16), torch.optim.Adam(model.parameters(), lr=3e-3), accuracy(xt, yt))


@sound("ordinary: regression, half trained", trained=150, steps=400, least=0.7)
def tiq_s_friedman():
    x, y, xt, yt = friedman()
    mean, std = y.mean(), y.std()
    model = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))
    return Program(model, nn.MSELoss(), loader(x, ((y - mean) / std)[:, None], 32), torch.optim.Adam(model.parameters(), lr=3e-3), r2(xt, (yt - mean) / std))


@sound("logistic regression: one linear layer", trained=300, steps=300, least=0.85)
def tiq_s_logistic():
    x, y, xt, yt = table("breast_cancer")
    model = nn.Linear(30, 1)
    return Program(model, nn.BCEWithLogitsLoss(), loader(x, y.float()[:, None], 32), torch.optim.SGD(model.parameters(), lr=0.1),
                   accuracy(xt, yt[:, None], lambda o: (o > 0).long()))


class _Affine(nn.Module):
    def __init__(self, mean, std, inverse=False):
        super().__init__()
        self.register_buffer("mean", mean)
        self.register_buffer("std", std)
        self.inverse = inverse

    def forward(self, x):
        return x * self.std + self.mean if self.inverse else (x - self.mean) / self.std


@sound("raw inputs and dollars as targets, scaled inside of the model and of the loss", steps=400, least=0.65)
def tiq_s_scaled_inside():
    x, y, xt, yt = friedman()
    factors = torch.tensor([1.0, 1e3, 1e-2, 1e4, 50.0, 1e-3, 1.0, 10.0])
    x, xt, y, yt = x * factors, xt * factors, 1e5 * y, 1e5 * yt
    body = nn.Sequential(nn.Linear(8, 64), nn.SiLU(), nn.Linear(64, 64), nn.SiLU(), nn.Linear(64, 1), nn.Flatten(0))
    model = nn.Sequential(_Affine(x.mean(0), x.std(0)), body, _Affine(y.mean(), y.std(), True))
    scale = y.std()
    return Program(model, lambda o, t: F.mse_loss(o / scale, t / scale), loader(x, y, 32), torch.optim.Adam(model.parameters(), lr=4e-3), r2(xt, yt))


@sound("raw wine with BatchNorm first", steps=200, least=0.8)
def tiq_s_bn_first():
    x, y, xt, yt = table("wine", standard=False)
    model = nn.Sequential(nn.BatchNorm1d(13), nn.Linear(13, 24), nn.Tanh(), nn.Linear(24, 3))
    return Program(model, nn.CrossEntropyLoss(), loader(x, y, 24, drop_last=True), torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9), accuracy(xt, yt))


@sound("a frozen random layer on purpose, only the head learns", steps=300, least=0.75)
def tiq_s_random_features():
    x, y, xt, yt = digits(flat=True)
    hidden = nn.Linear(64, 200)
    hidden.requires_grad_(False)
    model = nn.Sequential(hidden, nn.ReLU(), nn.Linear(200, 10))
    return Program(model, nn.CrossEntropyLoss(), loader(x, y, 32), torch.optim.Adam(model[2].parameters(), lr=5e-3), accuracy(xt, yt))


@sound("a summed loss with a rate to match", steps=300, least=0.7)
def tiq_s_sum():
    x, y, xt, yt = friedman()
    mean, std = y.mean(), y.std()
    model = nn.Sequential(nn.Linear(8, 48), nn.ReLU(), nn.Linear(48, 24), nn.ReLU(), nn.Linear(24, 1))
    return Program(model, nn.MSELoss(reduction="sum"), loader(x, ((y - mean) / std)[:, None], 50), torch.optim.SGD(model.parameters(), lr=8e-4, momentum=0.9),
                   r2(xt, (yt - mean) / std))


@sound("Poisson loss on logarithms of rates, counts as targets", steps=400, least=0.6)
def tiq_s_poisson():
    g = torch.Generator().manual_seed(1)
    x = torch.randn(1500, 6, generator=g)
    rate = torch.exp(1.5 + 0.7 * torch.sin(2 * x[:, 0]) + 0.5 * x[:, 1])
    y = torch.poisson(rate, generator=g)
    x, y, xt, yt = split(x, torch.stack([y, rate], 1), 300)
    model = nn.Sequential(nn.Linear(6, 48), nn.ReLU(), nn.Linear(48, 48), nn.ReLU(), nn.Linear(48, 1), nn.Flatten(0))
    return Program(model, nn.PoissonNLLLoss(log_input=True), loader(x, y[:, 0], 32), torch.optim.Adam(model.parameters(), lr=3e-3), r2(xt, yt[:, 1].log()))


@sound("mean and variance are both learned; the loss becomes negative", trained=200, steps=400, least=0.6)
def tiq_s_gaussian_nll():
    x, y, xt, yt = friedman()
    mean, std = y.mean(), y.std()

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = nn.Sequential(nn.Linear(8, 64), nn.ELU(), nn.Linear(64, 64), nn.ELU())
            self.mean, self.raw = nn.Linear(64, 1), nn.Linear(64, 1)

        def forward(self, x):
            h = self.body(x)
            return self.mean(h), F.softplus(self.raw(h)) + 1e-3

    model = Net()
    criterion = nn.GaussianNLLLoss()
    return Program(model, lambda o, t: criterion(o[0], t, o[1]), loader(x, ((y - mean) / std)[:, None], 32), torch.optim.Adam(model.parameters(), lr=3e-3),
                   r2(xt, (yt - mean) / std, lambda o: o[0]))


@sound("three quantiles from one target by broadcasting on purpose", steps=400, least=0.6)
def tiq_s_quantiles():
    x, y, xt, yt = friedman()
    mean, std = y.mean(), y.std()
    q = torch.tensor([0.1, 0.5, 0.9])

    def pinball(o, t):
        d = t[:, None] - o
        return torch.maximum(q * d, (q - 1) * d).mean()

    model = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 3))
    return Program(model, pinball, loader(x, (y - mean) / std, 32), torch.optim.Adam(model.parameters(), lr=4e-3), r2(xt, (yt - mean) / std, lambda o: o[:, 1]))


@sound("rare class, balanced by a sampler", steps=300, least=0.8)
def tiq_s_sampler():
    x, y, xt, yt = blobs(1500, 16, 2, 1.6, 6)
    keep = (y == 0) | (torch.arange(len(y)) % 8 == 0)
    x, y = x[keep], y[keep]
    weight = 1 / torch.bincount(y).float()[y]
    train = DataLoader(TensorDataset(x, y.float()[:, None]), batch_size=32, sampler=WeightedRandomSampler(weight, 600))
    model = nn.Sequential(nn.Linear(16, 48), nn.ReLU(), nn.Linear(48, 1))
    return Program(model, nn.BCEWithLogitsLoss(), train, torch.optim.Adam(model.parameters(), lr=3e-3), accuracy(xt, yt[:, None], lambda o: (o > 0).long()))


class _Mixed(nn.Module):
    def __init__(self):
        super().__init__()
        self.city, self.kind = nn.Embedding(400, 4), nn.Embedding(6, 3)
        nn.init.normal_(self.city.weight, std=0.05)
        self.mlp = nn.Sequential(nn.Linear(11, 48), nn.ReLU(), nn.Linear(48, 1))

    def forward(self, numbers, city, kind):
        return self.mlp(torch.cat([numbers, self.city(city), self.kind(kind)], 1)).squeeze(1)


@sound("embeddings of columns: most rows of a large table get no gradient in a batch", trained=250, steps=500, least=0.6)
def tiq_s_categories():
    g = torch.Generator().manual_seed(3)
    n = 2400
    city = (400 * torch.rand(n, generator=g) ** 4).long()
    kind = torch.randint(6, (n,), generator=g)
    numbers = torch.randn(n, 4, generator=g)
    y = 1.2 * torch.randn(400, generator=g)[city] + numbers[:, 0] * torch.linspace(-1, 1, 6)[kind] + numbers[:, 1]
    y = (y - y.mean()) / y.std()
    train = DataLoader(TensorDataset(numbers[:2000], city[:2000], kind[:2000], y[:2000]), batch_size=64, shuffle=True,
                       collate_fn=lambda rows: (lambda c: ({"numbers": c[0], "city": c[1], "kind": c[2]}, c[3]))([torch.stack(r) for r in zip(*rows)]))
    model = _Mixed()
    t = {"numbers": numbers[2000:], "city": city[2000:], "kind": kind[2000:]}
    optimizer = torch.optim.AdamW([{"params": [model.city.weight, model.kind.weight], "lr": 2e-2, "weight_decay": 0.0}, {"params": model.mlp.parameters()}], lr=4e-3)
    return Program(model, nn.MSELoss(), train, optimizer, lambda m: float(1 - ((m(**t) - y[2000:]) ** 2).sum() / ((y[2000:] - y[2000:].mean()) ** 2).sum()))


@sound("hinge loss on targets of -1 and 1, tanh units", steps=300, least=0.75)
def tiq_s_hinge():
    x, y, xt, yt = blobs(1200, 14, 2, 1.5, 8)
    model = nn.Sequential(nn.Linear(14, 48), nn.Tanh(), nn.Linear(48, 1), nn.Flatten(0))
    return Program(model, lambda o, t: F.relu(1 - o * t).square().mean(), loader(x, 2.0 * y - 1, 32), torch.optim.NAdam(model.parameters(), lr=3e-3),
                   accuracy(xt, yt, lambda o: (o > 0).long()))


@sound("whole graph in one batch, most nodes without labels", steps=150, least=0.8)
def tiq_s_gcn():
    x, a, y = community()
    a = a + torch.eye(len(a))
    d = a.sum(1).rsqrt()

    class Gcn(nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.drop, self.two = nn.Linear(12, 32), nn.Dropout(0.5), nn.Linear(32, 4)
            self.register_buffer("a", d[:, None] * a * d)

        def forward(self, x):
            return self.two(self.a @ self.drop(F.relu(self.one(self.a @ x))))

    known = torch.arange(len(y)) % 4 == 0
    model = Gcn()
    return Program(model, nn.CrossEntropyLoss(ignore_index=-1), [(x, torch.where(known, y, -1))], torch.optim.Adam(model.parameters(), lr=1e-2, weight_decay=5e-4),
                   lambda m: float((m(x).argmax(1) == y)[~known].float().mean()))


class _Gat(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.lift = nn.Linear(12, width)
        self.source, self.target = nn.Parameter(0.1 * torch.randn(width, 2)), nn.Parameter(0.1 * torch.randn(width, 2))
        self.out = nn.Linear(2 * width, 4)

    def forward(self, x, a):
        h = self.lift(x)
        e = F.leaky_relu((h @ self.source)[:, None] + (h @ self.target)[None], 0.2)
        w = e.masked_fill(a[..., None] == 0, float("-inf")).softmax(1)
        return self.out(F.elu(torch.einsum("ijk,jd->ikd", w, h)).flatten(1))


@sound("graph attention with -inf for what is no edge, trained", trained=150, steps=200, least=0.75)
def tiq_s_gat():
    x, a, y = community(160)
    a = a + torch.eye(len(a))
    known = torch.arange(len(y)) % 3 == 0
    model = _Gat()
    return Program(model, nn.CrossEntropyLoss(), [({"x": x, "a": a}, torch.where(known, y, -100))], torch.optim.Adam(model.parameters(), lr=1e-2),
                   lambda m: float((m(x, a).argmax(1) == y)[~known].float().mean()))


@sound("padded graphs, padding masked out of the readout", steps=400, least=0.85)
def tiq_s_graph_mask():
    x, a, m, y = molecules(700)

    def readout(h, score, mask):
        weight = score.masked_fill(mask == 0, -1e9).softmax(1)
        return (weight[..., None] * h).sum(1)

    model = _Graphs(readout)
    t = {"x": x[500:], "a": a[500:], "mask": m[500:]}
    return Program(model, nn.CrossEntropyLoss(), _collated(x[:500], a[:500], m[:500], y[:500]), torch.optim.Adam(model.parameters(), lr=5e-3),
                   lambda model: float((model(**t).argmax(1) == y[500:]).float().mean()))


@sound("a set network that ignores order on purpose", steps=400, least=0.6)
def tiq_s_deep_sets():
    g = torch.Generator().manual_seed(2)
    x = torch.randn(1400, 10, 2, generator=g) * (0.3 + torch.rand(1400, 1, 1, generator=g))
    y = x.norm(dim=2).max(1).values
    y = (y - y.mean()) / y.std()

    class Sets(nn.Module):
        def __init__(self):
            super().__init__()
            self.each = nn.Sequential(nn.Linear(2, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU())
            self.all = nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 1))

        def forward(self, x):
            return self.all(self.each(x).max(1).values).squeeze(1)

    model = Sets()
    return Program(model, nn.HuberLoss(), loader(x[:1100], y[:1100], 32), torch.optim.Adam(model.parameters(), lr=3e-3), r2(x[1100:], y[1100:]))


@sound("a frozen teacher inside of the module; soft targets", steps=300, least=0.85)
def tiq_s_distil():
    x, y, xt, yt = digits(flat=True)
    teacher = nn.Sequential(nn.Linear(64, 96), nn.ReLU(), nn.Linear(96, 10))
    opt = torch.optim.Adam(teacher.parameters(), lr=3e-3)
    for i in range(150):
        j = torch.arange(i * 32, i * 32 + 32) % len(x)
        opt.zero_grad()
        F.cross_entropy(teacher(x[j]), y[j]).backward()
        opt.step()

    class Both(nn.Module):
        def __init__(self):
            super().__init__()
            self.student = nn.Sequential(nn.Linear(64, 24), nn.ReLU(), nn.Linear(24, 10))
            self.teacher = copy.deepcopy(teacher).requires_grad_(False)

        def forward(self, x):
            return self.student(x)

    def step(model, batch):
        x, y = batch
        out = model(x)
        with torch.no_grad():
            soft = (model.teacher(x) / 3).softmax(1)
        return 9 * F.kl_div((out / 3).log_softmax(1), soft, reduction="batchmean") + 0.3 * F.cross_entropy(out, y)

    model = Both()
    return Program(model, None, loader(x, y, 32), torch.optim.Adam(model.student.parameters(), lr=3e-3), accuracy(xt, yt), step=step)
