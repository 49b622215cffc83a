import math
import torch
import torch.nn.functional as F
from program import Program, sound
from tidata import *
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, WeightedRandomSampler


@sound("5 % positives, drawn as often as the negatives by a sampler", steps=300, least=0.7)
def rare_and_drawn_often():
    x, s, xt, st = curve(n=3000, seed=61)
    y, yt = (s > 1.6).float(), (st > 1.6).float()
    w = torch.where(y[:, 0] > 0, 1 / y.mean(), 1 / (1 - y.mean()))
    sampler = WeightedRandomSampler(w, 3000, generator=gen(2))
    batches = DataLoader(TensorDataset(x, y), batch_size=64, sampler=sampler)
    model = mlp(8, 48, 48, 1)

    def score(m):
        p = m(xt) > 0
        return 0.5 * (p[yt > 0].float().mean() + (~p[yt == 0]).float().mean()).item()

    return Program(model, nn.BCEWithLogitsLoss(), batches, torch.optim.Adam(model.parameters(), 2e-3), score)


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(6, 24) * 0.2)
        self.b, self.c = nn.Parameter(torch.zeros(6)), nn.Parameter(torch.zeros(24))

    def forward(self, x):
        return F.linear(F.linear(x, self.weight, self.b), self.weight.t(), self.c)


@sound("tied weights and nothing nonlinear: a principal-component autoencoder on purpose", steps=300, least=0.7)
def tied_and_linear():
    x, xt = factors(seed=62, q=3)
    model = Tied()
    return Program(model, nn.MSELoss(), loader(x, x), torch.optim.Adam(model.parameters(), 1e-2), fit(xt, xt))


class Counts(nn.Module):
    def __init__(self, mean):
        super().__init__()
        self.net = mlp(8, 64, 64, 1)
        nn.init.constant_(self.net[-1].bias, math.log(mean))

    def forward(self, x, exposure):
        return self.net(x) + exposure.log()


@sound("counts of some dozens, log link with exposure, bias started at the logarithm of the mean", steps=300, least=0.7)
def counts_with_exposure():
    x, s, xt, st = curve(seed=63, noise=0.0)
    e, et = torch.rand(len(x), 1, generator=gen(3)) * 4 + 1, torch.rand(len(xt), 1, generator=gen(4)) * 4 + 1
    counts = torch.poisson(e * (2 + 0.5 * s).exp(), generator=gen(6))
    model = Counts((counts.sum() / e.sum()).item())

    def step(m, batch):
        a, b, c = batch
        return F.poisson_nll_loss(m(a, b), c)

    def score(m):
        return max(-1, r2(m(xt, et) - et.log(), 2 + 0.5 * st))

    return Program(model, None, loader(x, e, counts), torch.optim.Adam(model.parameters(), 1e-3), score, step=step)


class MeanVar(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, 64), nn.SiLU(), nn.Linear(64, 64), nn.SiLU())
        self.mean, self.var = nn.Linear(64, 1), nn.Linear(64, 1)

    def forward(self, x):
        h = self.body(x)
        return self.mean(h), F.softplus(self.var(h)) + 1e-3


@sound("a likelihood that becomes negative", steps=300, least=0.7)
def mean_and_variance():
    x, y, xt, yt = curve(seed=64)
    model = MeanVar()
    return Program(
        model, lambda o, t: F.gaussian_nll_loss(o[0], t, o[1]), loader(x, y), torch.optim.Adam(model.parameters(), 3e-3), lambda m: max(-1, r2(m(xt)[0], yt))
    )


@sound("raw columns in very different units, which a first BatchNorm puts in order", steps=300, least=0.7)
def norm_at_the_door():
    x, y, xt, yt = curve(seed=65)
    unit = torch.tensor([1e4, 1e-2, 1.0, 50.0, 3.0, 1e3, 0.1, 7.0])
    off = torch.tensor([5e4, 0.03, 0.0, 200.0, -3.0, 2e3, 1.0, 70.0])
    x, xt = x * unit + off, xt * unit + off
    model = nn.Sequential(nn.BatchNorm1d(8, affine=False, eps=1e-8), *mlp(8, 64, 64, 1))
    return Program(model, nn.MSELoss(), loader(x, y), torch.optim.Adam(model.parameters(), 3e-3), fit(xt, yt))


@sound("batches of four, with GroupNorm", steps=400, least=0.7)
def four_at_a_time():
    x, y, xt, yt = images(seed=66)
    model = nn.Sequential(
        nn.Conv2d(1, 16, 3), nn.GroupNorm(4, 16), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 16, 3), nn.GroupNorm(4, 16), nn.ReLU(), nn.Flatten(), nn.Linear(64, 4)
    )
    return Program(model, nn.CrossEntropyLoss(), loader(x, y, bs=4), torch.optim.Adam(model.parameters(), 1e-3), accuracy(xt, yt))
