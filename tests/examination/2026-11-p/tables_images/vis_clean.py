"""Sound set-ups that look odd."""

import math

import torch
import torch.nn.functional as F
from program import Program, sound
from torch import nn, optim
from torch.utils.data import DataLoader, TensorDataset
from vis_data import accuracy, blobs, loader, r2, rings, shapes, table, waves


@sound("Two linear layers in a row: a bottleneck on purpose, the outputs have rank 3", steps=300, least=0.8)
def reduced_rank():
    n, d, k, o = 1400, 20, 3, 12
    x = torch.randn(n, d)
    y = x @ torch.randn(d, k) @ torch.randn(k, o) / (d * k) ** 0.5 + 0.3 * torch.randn(n, o)
    net = nn.Sequential(nn.Linear(d, k, bias=False), nn.Linear(k, o))
    return Program(net, nn.MSELoss(), loader(x[:1024], y[:1024]), optim.Adam(net.parameters(), 1e-2), r2(x[1024:], y[1024:]))


@sound("An autoencoder whose decoder is the transposed encoder", trained=100, steps=400, least=0.7)
def tied_autoencoder():
    g = torch.Generator().manual_seed(3)
    mix = torch.randn(4, 24, generator=g) / 2
    z = torch.rand(1400, 4) * 2 - 1
    x = torch.tanh(z @ mix) + 0.03 * torch.randn(1400, 24)

    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.enc = nn.Linear(24, 8)
            self.bias = nn.Parameter(torch.zeros(24))

        def forward(self, x):
            return F.linear(torch.tanh(self.enc(x)), self.enc.weight.t(), self.bias)

    def score(model):
        t = x[1024:]
        return max(0.0, (1 - ((model(t) - t) ** 2).mean() / t.var()).item())

    def step(model, batch):
        (x,) = batch
        return F.mse_loss(model(x), x)

    net = Tied()
    return Program(net, None, loader(x[:1024]), optim.Adam(net.parameters(), 1e-2), score, step=step)


@sound("Random features, frozen on purpose, under a trained head", steps=300, least=0.7)
def random_features():
    x, y = table(1400, d=5)

    class RFF(nn.Module):
        def __init__(self, d, m):
            super().__init__()
            self.proj = nn.Linear(d, m)
            nn.init.normal_(self.proj.weight, 0, 0.7)
            nn.init.uniform_(self.proj.bias, 0, 2 * math.pi)
            self.proj.requires_grad_(False)
            self.m = m

        def forward(self, x):
            return (2 / self.m) ** 0.5 * torch.cos(self.proj(x))

    net = nn.Sequential(RFF(5, 256), nn.Linear(256, 1), nn.Flatten(0))
    opt = optim.Adam([p for p in net.parameters() if p.requires_grad], lr=0.03)
    return Program(net, nn.MSELoss(), loader(x[:1024], y[:1024]), opt, r2(x[1024:], y[1024:]))


@sound("Raw columns, but BatchNorm on the inputs; the prediction is scaled back inside the model", steps=350, least=0.8)
def scaled_inside():
    x, y = table(1400, d=6)
    x = x * torch.tensor([12.0, 21.0, 0.08, 1.0, 45.0, 0.2]) + torch.tensor([30.0, 52.0, 0.3, 2.0, 180.0, 0.1])
    price = 240.0 + 90.0 * y

    class Net(nn.Module):
        def __init__(self, mean, std):
            super().__init__()
            self.norm = nn.BatchNorm1d(6, affine=False)
            self.body = nn.Sequential(nn.Linear(6, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 1))
            self.register_buffer("mean", mean)
            self.register_buffer("std", std)

        def forward(self, x):
            return self.body(self.norm(x)).squeeze(1)

        def predict(self, x):
            return self(x) * self.std + self.mean

    mean, std = price[:1024].mean(), price[:1024].std()
    net = Net(mean, std)

    def score(model):
        o, t = model.predict(x[1024:]), price[1024:]
        return max(0.0, (1 - ((o - t) ** 2).mean() / t.var()).item())

    return Program(net, lambda o, t: F.mse_loss(o, (t - mean) / std), loader(x[:1024], price[:1024], batch=64),
                   optim.Adam(net.parameters(), 4e-3), score)


@sound("Counts under a Poisson likelihood that is summed, with Adam", steps=450, least=0.6)
def poisson_sum():
    x, y = table(1600, noise=0.0)
    rate = torch.exp(0.8 * y + 0.7)
    counts = torch.poisson(rate)
    net = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 1), nn.Flatten(0))
    loss = nn.PoissonNLLLoss(log_input=True, reduction="sum")

    def score(model):
        o, t = model(x[1200:]), rate[1200:].log()
        return max(0.0, (1 - ((o - t) ** 2).mean() / t.var()).item())

    return Program(net, loss, loader(x[:1200], counts[:1200], batch=16), optim.Adam(net.parameters(), 4e-3), score)


@sound("Two pictures at a time, with GroupNorm", steps=500, least=0.75)
def two_with_groupnorm():
    x, y = shapes(1024, noise=0.2)
    net = nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1), nn.GroupNorm(4, 8), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(8, 16, 3, padding=1), nn.GroupNorm(4, 16), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 4))  # fmt: skip
    opt = optim.Adam(net.parameters(), 3e-3, betas=(0.5, 0.999))
    return Program(net, nn.CrossEntropyLoss(), loader(x[:768], y[:768], batch=2), opt, accuracy(x[768:], y[768:]))


@sound("Cox regression: the loss of an example depends on its batch", steps=250, least=0.6)
def cox():
    x, y = table(1600, noise=0.0)
    time = torch.exp(-1.2 * y) * -torch.rand(1600).clamp(min=1e-4).log()
    censor = 3 * torch.rand(1600)
    event = (time <= censor).float()
    time = torch.minimum(time, censor)
    net = nn.Sequential(nn.Linear(8, 32), nn.SELU(), nn.Linear(32, 1, bias=False), nn.Flatten(0))

    def partial_likelihood(risk, target):
        t, e = target.unbind(1)
        order = t.argsort(descending=True)
        risk, e = risk[order], e[order]
        return -((risk - risk.logcumsumexp(0)) * e).sum() / e.sum().clamp(min=1)

    def score(model):  # concordance with the true risk
        a, b = model(x[1200:]), y[1200:]
        s = (a[:, None] - a[None]).sign() * (b[:, None] - b[None]).sign()
        return s.sum().item() / (len(a) * (len(a) - 1))

    target = torch.stack([time, event], 1)
    return Program(net, partial_likelihood, loader(x[:1200], target[:1200], batch=64), optim.Adam(net.parameters(), 5e-3), score)


class Sine(nn.Module):
    def __init__(self, i, o, w0=30.0, first=False):
        super().__init__()
        self.w0, self.linear = w0, nn.Linear(i, o)
        bound = 1 / i if first else math.sqrt(6 / i) / w0
        nn.init.uniform_(self.linear.weight, -bound, bound)

    def forward(self, x):
        return torch.sin(self.w0 * self.linear(x))


@sound("SIREN: sines of large arguments, tiny weights", steps=400, least=0.85)
def siren():
    c = torch.linspace(-1, 1, 40)
    grid = torch.stack(torch.meshgrid(c, c, indexing="ij"), -1).reshape(-1, 2)
    i, j = grid.unbind(1)
    img = torch.sin(9 * i + 3 * j * j) * torch.cos(6 * j) + 0.5 * torch.sign(i * j)
    perm = torch.randperm(1600)
    net = nn.Sequential(Sine(2, 48, w0=15.0, first=True), Sine(48, 48), nn.Linear(48, 1), nn.Flatten(0))
    tr, te = perm[:1300], perm[1300:]
    return Program(net, nn.MSELoss(), loader(grid[tr], img[tr], batch=128), optim.Adam(net.parameters(), 1e-3), r2(grid[te], img[te]))


@sound("A third of the labels are wrong", steps=200, least=0.85)
def noisy_labels():
    x, y = blobs(1600, spread=0.6)
    given = torch.where(torch.rand(1600) < 0.33, torch.randint(0, 5, (1600,)), y)
    net = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 5))
    opt = optim.SGD(net.parameters(), lr=0.1, weight_decay=1e-3)
    return Program(net, nn.CrossEntropyLoss(), loader(x[:1200], given[:1200], batch=64), opt, accuracy(x[1200:], y[1200:]))


@sound("Pictures with an empty border, whose pixels never vary", trained=120, steps=250, least=0.8)
def empty_border():
    x, y = shapes(1024, noise=0.2)
    x = x.clamp(0, 1)
    x = F.pad(x, (3, 3, 3, 3)).flatten(1)
    net = nn.Sequential(nn.Unflatten(1, (1, 18, 18)), nn.Conv2d(1, 8, 5, stride=2), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 49, 64), nn.ReLU(), nn.Linear(64, 4))
    return Program(net, F.cross_entropy, loader(x[:768], y[:768]), optim.Adam(net.parameters(), 3e-3), accuracy(x[768:], y[768:]))


@sound("Attention over time: a softmax over dimension 1 of (N, T, 1), and log-probabilities for NLLLoss", steps=350, least=0.75)
def attention_pooling():
    n, t = 1400, 20
    x = 0.5 * torch.randn(n, t, 5)
    y = torch.randint(0, 4, (n,))
    where = torch.randint(0, t, (n,))
    x[torch.arange(n), where, 0] += 3.0
    x[torch.arange(n), where, 1:] += 2.5 * F.one_hot(y, 4)

    class Pool(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Sequential(nn.Linear(5, 24), nn.ReLU())
            self.attend = nn.Linear(24, 1)
            self.out = nn.Linear(24, 4)

        def forward(self, x):
            h = self.embed(x)
            a = self.attend(h).softmax(dim=1)
            return F.log_softmax(self.out((a * h).sum(1)), dim=-1)

    net = Pool()
    return Program(net, nn.NLLLoss(), loader(x[:1024], y[:1024]), optim.Adam(net.parameters(), 5e-3), accuracy(x[1024:], y[1024:]))


@sound("Three quantiles by the pinball loss", steps=300, least=0.7)
def quantiles():
    x, y = table(1600)
    q = torch.tensor([0.1, 0.5, 0.9])
    net = nn.Sequential(nn.Linear(8, 64), nn.GELU(), nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 3))

    def pinball(out, y):
        e = y.unsqueeze(1) - out
        return torch.maximum(q * e, (q - 1) * e).mean()

    def score(model):
        o, t = model(x[1200:])[:, 1], y[1200:]
        return max(0.0, (1 - ((o - t) ** 2).mean() / t.var()).item())

    return Program(net, pinball, loader(x[:1200], y[:1200]), optim.Adam(net.parameters(), 3e-3), score)


@sound("Twins: one network for both pictures of a pair, with BatchNorm", steps=250, least=0.75)
def twins():
    x, y = shapes(1400, noise=0.2)
    n = 1000

    class Twin(nn.Module):
        def __init__(self):
            super().__init__()
            self.trunk = nn.Sequential(
                nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2),
                nn.Conv2d(8, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 8))
            self.out = nn.Linear(8, 1)

        def forward(self, pair):
            a, b = self.trunk(pair[:, 0]), self.trunk(pair[:, 1])
            return self.out((a - b).abs()).squeeze(1)

    def pairs(lo, hi):
        a = torch.arange(lo, hi)
        b = torch.randint(lo, hi, (hi - lo,))
        for i in range(0, hi - lo, 2):
            same = (y[lo:hi] == y[a[i]]).nonzero().flatten()
            b[i] = lo + same[torch.randint(0, len(same), ())]
        return torch.stack([x[a], x[b]], 1), (y[a] == y[b]).float()

    train, same = pairs(0, n)
    test, truth = pairs(n, 1400)

    def score(model):
        said, t = model(test) > 0, truth > 0
        return 0.5 * (said[t].float().mean() + (~said[~t]).float().mean()).item()

    net = Twin()
    return Program(net, nn.BCEWithLogitsLoss(), loader(train, same), optim.Adam(net.parameters(), 5e-3), score)


@sound("A learned ranking from pairs: only differences of outputs matter", trained=200, steps=200, least=0.7)
def ranking():
    x, y = table(1600, noise=0.0)
    net = nn.Sequential(nn.Linear(8, 48), nn.ReLU(), nn.Linear(48, 1, bias=False), nn.Flatten(0))

    def step(model, batch):
        xs, ys = batch
        s = model(xs)
        sign = (ys[:, None] - ys[None]).sign()
        return F.softplus(-sign * (s[:, None] - s[None])).mean()

    def score(model):
        a, b = model(x[1200:]), y[1200:]
        return ((a[:, None] - a[None]).sign() * (b[:, None] - b[None]).sign()).sum().item() / (400 * 399)

    return Program(net, None, loader(x[:1200], y[:1200]), optim.Adam(net.parameters(), 1e-2), score, step=step)


@sound("Adagrad and clamped outputs in (−1, 1) by tanh; sparse one-hot features, most of them zero in a batch", steps=300, least=0.65)
def sparse_features():
    n, f, k = 1800, 60, 3
    idx = torch.randint(0, f, (n, k * 2))
    x = torch.zeros(n, f).scatter_(1, idx, 1.0)
    g = torch.Generator().manual_seed(9)
    w = torch.randn(f, generator=g)
    y = torch.tanh(0.5 * (x @ w)) + 0.05 * torch.randn(n)
    net = nn.Sequential(nn.Linear(f, 32), nn.ReLU(), nn.Linear(32, 1), nn.Tanh(), nn.Flatten(0))
    return Program(net, nn.MSELoss(), loader(x[:1400], y[:1400]), optim.Adagrad(net.parameters(), 0.03), r2(x[1400:], y[1400:]))
