import math

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import parametrizations
from torch.optim import lr_scheduler

from program import Program, sound
from tti_common import *


def scaled_friedman(seed=5):
    xa, ya, xb, yb = friedman(seed=seed)
    m, s = ya.mean(), ya.std()
    return 3.4 * xa - 1.7, (ya - m) / s, 3.4 * xb - 1.7, (yb - m) / s


@sound("an ordinary classifier of standardised features", trained=150, steps=200, least=0.9)
def tti_plain_wine():
    xa, ya, xb, yb = sk("wine")
    net = nn.Sequential(nn.Linear(13, 32), nn.ReLU(), nn.Linear(32, 3))
    return Program(net, nn.CrossEntropyLoss(), loader(xa, ya, 16), torch.optim.Adam(net.parameters(), 3e-3), accuracy(xb, yb))


@sound("an ordinary regression", steps=300, least=0.85)
def tti_plain_regression():
    xa, ya, xb, yb = scaled_friedman()
    net = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1), nn.Flatten(0))
    return Program(net, nn.MSELoss(), loader(xa, ya), torch.optim.Adam(net.parameters(), 2e-3), r2(xb, yb))


@sound("logistic regression", steps=200, least=0.9)
def tti_logistic():
    xa, ya, xb, yb = sk("breast_cancer")
    net = nn.Linear(30, 1)
    return Program(net, nn.BCEWithLogitsLoss(), loader(xa, ya[:, None].float()), torch.optim.SGD(net.parameters(), 0.1), binary(xb, yb))


@sound("a plain MLP on digits, examined half trained", trained=100, steps=200, least=0.9)
def tti_half_trained():
    xa, ya, xb, yb = sk("digits")
    net = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Dropout(0.2), nn.Linear(64, 10))
    return Program(net, nn.CrossEntropyLoss(), loader(xa, ya), torch.optim.SGD(net.parameters(), 0.05, momentum=0.9), accuracy(xb, yb))


@sound("raw features, which a first BatchNorm brings to one scale", steps=250, least=0.9)
def tti_norm_first():
    xa, ya, xb, yb = sk("wine", scaled=False)
    net = nn.Sequential(nn.BatchNorm1d(13), nn.Linear(13, 32), nn.Tanh(), nn.Linear(32, 3))
    return Program(net, nn.CrossEntropyLoss(), loader(xa, ya, 24), torch.optim.Adam(net.parameters(), 5e-3), accuracy(xb, yb))


@sound("targets in the tens of thousands, which the network scales itself", steps=300, least=0.85)
def tti_scaled_inside():
    xa, ya, xb, yb = scaled_friedman(seed=8)
    ya, yb = 300000 + 80000 * ya, 300000 + 80000 * yb

    class Prices(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = nn.Sequential(nn.Linear(8, 64), nn.SiLU(), nn.Linear(64, 64), nn.SiLU(), nn.Linear(64, 1))
            self.register_buffer("mean", ya.mean())
            self.register_buffer("std", ya.std())

        def forward(self, x):
            return self.net(x)[:, 0] * self.std + self.mean

    net = Prices()
    s = ya.std()
    return Program(net, lambda out, y: F.smooth_l1_loss(out / s, y / s), loader(xa, ya), torch.optim.Adam(net.parameters(), 3e-3), r2(xb, yb))


@sound("a network that is linear on purpose: a low-rank factorisation", steps=300, least=0.8)
def tti_reduced_rank():
    g = gen(71)
    x = torch.randn(900, 20, generator=g)
    a = torch.randn(20, 3, generator=g) @ torch.randn(3, 12, generator=g) / 8
    xa, ya, xb, yb = split(x, x @ a + 0.2 * torch.randn(900, 12, generator=g))
    net = nn.Sequential(nn.Linear(20, 3, bias=False), nn.Linear(3, 12))
    return Program(net, nn.MSELoss(), loader(xa, ya), torch.optim.Adam(net.parameters(), 2e-2), r2(xb, yb))


@sound("random features that stay as they are, with a trained head", steps=300, least=0.85)
def tti_random_features():
    xa, ya, xb, yb = sk("digits")

    class RandomFeatures(nn.Module):
        def __init__(self):
            super().__init__()
            self.project = nn.Linear(64, 300)
            nn.init.normal_(self.project.weight, std=0.06)
            nn.init.uniform_(self.project.bias, 0, 2 * math.pi)
            self.project.requires_grad_(False)
            self.head = nn.Linear(300, 10)

        def forward(self, x):
            return self.head(torch.cos(self.project(x)) * math.sqrt(2))

    net = RandomFeatures()
    return Program(net, nn.CrossEntropyLoss(), loader(xa, ya), torch.optim.Adam(net.head.parameters(), 1e-2), accuracy(xb, yb))


@sound("twelve residual blocks whose last layers start at zero", steps=250, least=0.8)
def tti_deep_residual():
    xa, ya, xb, yb = scaled_friedman(seed=9)

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm, self.a, self.b = nn.LayerNorm(32), nn.Linear(32, 32), nn.Linear(32, 32)
            nn.init.zeros_(self.b.weight)
            nn.init.zeros_(self.b.bias)

        def forward(self, x):
            return x + self.b(F.gelu(self.a(self.norm(x))))

    net = nn.Sequential(nn.Linear(8, 32), *[Block() for _ in range(12)], nn.LayerNorm(32), nn.Linear(32, 1), nn.Flatten(0))
    opt = torch.optim.AdamW(net.parameters(), 3e-3)
    return Program(net, nn.MSELoss(), loader(xa, ya), opt, r2(xb, yb), scheduler=lr_scheduler.OneCycleLR(opt, 4e-3, total_steps=700))


@sound("self-normalising network with AlphaDropout", steps=300, least=0.9)
def tti_selu():
    xa, ya, xb, yb = sk("breast_cancer")
    layers = []
    for i in range(6):
        lin = nn.Linear(30 if i == 0 else 40, 40)
        nn.init.kaiming_normal_(lin.weight, nonlinearity="linear")
        nn.init.zeros_(lin.bias)
        layers += [lin, nn.SELU(), nn.AlphaDropout(0.05)]
    net = nn.Sequential(*layers, nn.Linear(40, 2))
    return Program(net, nn.CrossEntropyLoss(label_smoothing=0.1), loader(xa, ya), torch.optim.SGD(net.parameters(), 0.02, momentum=0.9), accuracy(xb, yb))


@sound("the 0.5 quantile by a pinball loss of three quantiles", steps=350, least=0.75)
def tti_quantiles():
    xa, ya, xb, yb = scaled_friedman(seed=10)
    taus = torch.tensor([0.1, 0.5, 0.9])

    def pinball(out, y):
        d = y[:, None] - out
        return torch.maximum(taus * d, (taus - 1) * d).mean()

    net = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 3))
    middle = lambda m: r2(xb, yb)(lambda x: m(x)[:, 1])
    return Program(net, pinball, loader(xa, ya), torch.optim.Adam(net.parameters(), 4e-3), middle)


@sound("counts with a log-linear rate and Poisson loss, which goes below 0", steps=300, least=0.7)
def tti_poisson():
    g = gen(73)
    x = torch.randn(1500, 6, generator=g)
    rate = torch.exp(1.5 + 0.8 * x[:, 0] - 0.5 * x[:, 1] + 0.4 * torch.tanh(x[:, 2] * x[:, 3]))
    count = torch.poisson(rate, generator=g)
    xa, ya, xb, _ = split(x, count)
    _, _, _, rb = split(x, rate)
    net = nn.Sequential(nn.Linear(6, 32), nn.Tanh(), nn.Linear(32, 1), nn.Flatten(0))
    return Program(net, nn.PoissonNLLLoss(), loader(xa, ya), torch.optim.Adam(net.parameters(), 1e-2), lambda m: r2(xb, rb.log())(m))


@sound("a variance of its own for every example", steps=350, least=0.75)
def tti_gaussian_nll():
    g = gen(75)
    x = 2 * torch.rand(1200, 3, generator=g) - 1
    clean = torch.sin(3 * x[:, 0]) + x[:, 1]
    y = clean + (0.05 + 0.4 * (x[:, 2] > 0)) * torch.randn(1200, generator=g)
    xa, ya, xb, _ = split(x, y)
    _, _, _, cb = split(x, clean)

    class MeanVar(nn.Module):
        def __init__(self):
            super().__init__()
            self.trunk = nn.Sequential(nn.Linear(3, 48), nn.Tanh(), nn.Linear(48, 48), nn.Tanh())
            self.mean, self.var = nn.Linear(48, 1), nn.Linear(48, 1)

        def forward(self, x):
            h = self.trunk(x)
            return self.mean(h)[:, 0], F.softplus(self.var(h))[:, 0] + 1e-4

    net = MeanVar()
    return Program(net, lambda out, y: F.gaussian_nll_loss(out[0], y, out[1]), loader(xa, ya), torch.optim.Adam(net.parameters(), 4e-3),
                   lambda m: r2(xb, cb)(lambda x: m(x)[0]))


@sound("mixture of experts with a softmax gate", steps=300, least=0.8)
def tti_mixture():
    g = gen(77)
    x = torch.randn(1000, 5, generator=g)
    y = torch.where(x[:, 0] > 0, 2 * x[:, 1], -2 * x[:, 2])
    xa, ya, xb, yb = split(x, y / y.std())

    class Mixture(nn.Module):
        def __init__(self):
            super().__init__()
            self.gate = nn.Linear(5, 3)
            self.experts = nn.Linear(5, 3)

        def forward(self, x):
            return (F.softmax(self.gate(x), -1) * self.experts(x)).sum(-1)

    net = Mixture()
    return Program(net, nn.MSELoss(), loader(xa, ya), torch.optim.Adam(net.parameters(), 3e-2), r2(xb, yb))


@sound("Adadelta at a rate of 1", steps=300, least=0.85)
def tti_adadelta():
    xa, ya, xb, yb = sk("digits")
    net = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    return Program(net, nn.CrossEntropyLoss(), loader(xa, ya), torch.optim.Adadelta(net.parameters(), lr=1.0), accuracy(xb, yb))


@sound("a whole table per step with Rprop", steps=120, least=0.9)
def tti_rprop():
    xa, ya, xb, yb = sk("iris")
    net = nn.Sequential(nn.Linear(4, 12), nn.Tanh(), nn.Linear(12, 3))
    return Program(net, nn.CrossEntropyLoss(), [(xa, ya)], torch.optim.Rprop(net.parameters(), 0.005), accuracy(xb, yb))


@sound("a multiclass hinge loss of a linear machine", steps=300, least=0.85)
def tti_hinge():
    xa, ya, xb, yb = sk("digits")
    net = nn.Linear(64, 10)
    opt = torch.optim.SGD(net.parameters(), lr=0.05, weight_decay=1e-3)
    return Program(net, nn.MultiMarginLoss(), loader(xa, ya), opt, accuracy(xb, yb))


@sound("sine activations with ω = 8 on one coordinate", trained=250, steps=400, least=0.8)
def tti_siren():
    g = gen(79)
    x = 2 * torch.rand(600, 1, generator=g) - 1
    xa, ya, xb, yb = split(x, torch.sin(12 * x[:, 0]) * (0.6 + 0.4 * x[:, 0]))

    class Sine(nn.Module):
        def __init__(self, i, o, first):
            super().__init__()
            self.lin = nn.Linear(i, o)
            bound = 1 / i if first else math.sqrt(6 / i) / 8
            nn.init.uniform_(self.lin.weight, -bound, bound)

        def forward(self, x):
            return torch.sin(8 * self.lin(x))

    net = nn.Sequential(Sine(1, 48, True), Sine(48, 48, False), nn.Linear(48, 1), nn.Flatten(0))
    return Program(net, nn.MSELoss(), loader(xa, ya), torch.optim.Adam(net.parameters(), 2e-3), r2(xb, yb))


@sound("wide and deep: a sum of a linear path and a network, with embeddings of categories", steps=350, least=0.8)
def tti_wide_deep():
    g = gen(81)
    cat = torch.randint(0, 12, (1500, 2), generator=g)
    num = torch.randn(1500, 4, generator=g)
    effect = torch.randn(12, generator=g)
    y = effect[cat[:, 0]] + 0.8 * effect[cat[:, 1]] * num[:, 0] + num[:, 1]
    xa, ya, xb, yb = split(torch.cat([cat.float(), num], 1), y / y.std())

    class WideDeep(nn.Module):
        def __init__(self):
            super().__init__()
            self.emb = nn.ModuleList(nn.Embedding(12, 6) for _ in range(2))
            self.wide = nn.Linear(4, 1)
            self.deep = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 1))

        def forward(self, x):
            num = x[:, 2:]
            e = [layer(x[:, i].long()) for i, layer in enumerate(self.emb)]
            return (self.wide(num) + self.deep(torch.cat([*e, num], 1)))[:, 0]

    net = WideDeep()
    return Program(net, nn.MSELoss(), loader(xa, ya, 48), torch.optim.Adam(net.parameters(), 1e-2), r2(xb, yb))


@sound("rare positives with a weight for them", steps=300, least=0.7)
def tti_rare():
    g = gen(83)
    x = torch.randn(2000, 8, generator=g)
    y = (x[:, 0] + x[:, 1] * 0.7 > 2.0).float()
    xa, ya, xb, yb = split(x, y)

    def score(model):
        p = model(xb) > 0
        return 0.5 * ((p & (yb > 0)).sum() / yb.sum() + (~p & (yb == 0)).sum() / (yb == 0).sum()).item()

    net = nn.Sequential(nn.Linear(8, 24), nn.ReLU(), nn.Linear(24, 1), nn.Flatten(0))
    nn.init.constant_(net[2].bias, -2.7)
    return Program(net, nn.BCEWithLogitsLoss(pos_weight=torch.tensor(10.0)), loader(xa, ya, 64), torch.optim.Adam(net.parameters(), 5e-3), score)


@sound("a denoising autoencoder with one weight for both directions", steps=350, least=0.6)
def tti_tied():
    xa, _, xb, _ = sk("digits")
    xa, xb = xa.clamp(-3, 3), xb.clamp(-3, 3)

    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.randn(24, 64) * 0.1)
            self.b, self.c = nn.Parameter(torch.zeros(24)), nn.Parameter(torch.zeros(64))

        def forward(self, x):
            if self.training:
                x = x + 0.2 * torch.randn_like(x)
            return F.linear(torch.tanh(F.linear(x, self.weight, self.b) * 0.5) * 2, self.weight.t(), self.c)

    net = Tied()
    return Program(net, nn.MSELoss(), loader(xa, xa), torch.optim.Adam(net.parameters(), 1e-2), r2(xb, xb))


@sound("batches of two with GroupNorm", trained=300, steps=500, least=0.8)
def tti_tiny_batches():
    xa, ya, xb, yb = sk("digits")
    net = nn.Sequential(nn.Linear(64, 48), nn.GroupNorm(6, 48), nn.ReLU(), nn.Linear(48, 10))
    return Program(net, nn.CrossEntropyLoss(), loader(xa, ya, 2), torch.optim.SGD(net.parameters(), 0.01, momentum=0.9), accuracy(xb, yb))


@sound("weight normalisation, a warm-up from 0 and a cosine", steps=300, least=0.8)
def tti_weight_norm():
    xa, ya, xb, yb = scaled_friedman(seed=12)
    net = nn.Sequential(parametrizations.weight_norm(nn.Linear(8, 64)), nn.ReLU(), parametrizations.weight_norm(nn.Linear(64, 64)), nn.ReLU(),
                        parametrizations.weight_norm(nn.Linear(64, 1)), nn.Flatten(0))
    opt = torch.optim.Adam(net.parameters(), 6e-3)
    sched = lr_scheduler.LambdaLR(opt, lambda i: min(i / 30, 0.5 * (1 + math.cos(math.pi * min(i, 600) / 600))))
    return Program(net, nn.MSELoss(), loader(xa, ya), opt, r2(xb, yb), scheduler=sched)


@sound("a loss summed over the batch with a rate that allows for it", steps=250, least=0.85)
def tti_sum_small_rate():
    xa, ya, xb, yb = sk("digits")
    net = nn.Sequential(nn.Linear(64, 48), nn.LeakyReLU(), nn.Linear(48, 10))
    return Program(net, nn.CrossEntropyLoss(reduction="sum"), loader(xa, ya), torch.optim.SGD(net.parameters(), 2e-3, momentum=0.9), accuracy(xb, yb))


@sound("missing values with a column that says so", steps=300, least=0.85)
def tti_missing_flags():
    xa, ya, xb, yb = sk("wine")
    hide = lambda x, seed: (lambda m: torch.cat([torch.where(m, 0.0, x), m.float()], 1))(torch.rand(x.shape, generator=gen(seed)) < 0.1)
    xa, xb = hide(xa, 1), hide(xb, 2)
    net = nn.Sequential(nn.Linear(26, 32), nn.ReLU(), nn.Dropout(0.3), nn.Linear(32, 3))
    return Program(net, nn.CrossEntropyLoss(), loader(xa, ya, 16), torch.optim.NAdam(net.parameters(), 3e-3), accuracy(xb, yb))
