"""Unusual, and right."""

import math

import torch
import torch.nn.functional as F
from program import Program, sound
from ti_common import accuracy, factors, gen, loader, r2_pos, shapes, table
from torch import nn, optim


class ZeroBlock(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(c, c, 3, padding=1, bias=False), nn.BatchNorm2d(c)
        self.conv2, self.bn2 = nn.Conv2d(c, c, 3, padding=1, bias=False), nn.BatchNorm2d(c)
        nn.init.zeros_(self.bn2.weight)

    def forward(self, x):
        return F.relu(x + self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x))))))


@sound("residual branches begin at zero: the last BatchNorm of each has a weight of 0", steps=200, least=0.85)
def zero_gamma_resnet():
    x, y, _, _ = shapes(800, 120)
    xt, yt, _, _ = shapes(400, 121)
    net = nn.Sequential(
        nn.Conv2d(1, 12, 3, padding=1), nn.MaxPool2d(2), ZeroBlock(12), ZeroBlock(12), nn.Flatten(), nn.Linear(432, 4)
    )
    return Program(
        net,
        nn.CrossEntropyLoss(),
        loader(x, y, bs=40),
        optim.SGD(net.parameters(), lr=0.02, momentum=0.9, nesterov=True),
        lambda m: accuracy(m(xt), yt),
    )


@sound("large counts with an exposure as offset; the last bias starts at the logarithm of the mean", steps=350, least=0.7)
def counts_with_exposure():
    def frame(n, seed):
        x, f = table(n, 6, seed)
        exposure = 0.5 + torch.rand(n, generator=gen(seed + 3))
        rate = 200 * torch.exp(0.5 * f.clamp(-2, 2))
        return x, exposure, rate, torch.poisson(rate * exposure, generator=gen(seed + 4))

    x, e, _, y = frame(1200, 122)
    xt, _, rate_t, _ = frame(400, 123)
    net = nn.Sequential(nn.Linear(6, 64), nn.SiLU(), nn.Linear(64, 64), nn.SiLU(), nn.Linear(64, 1))
    nn.init.constant_(net[-1].bias, math.log(float(y.sum() / e.sum())))

    def step(model, batch):
        rows, exposure, count = batch
        return F.poisson_nll_loss(model(rows)[:, 0] + exposure.log(), count) / 200

    return Program(
        net,
        None,
        loader(x, e, y),
        optim.Adam(net.parameters(), lr=3e-3),
        lambda m: r2_pos(m(xt)[:, 0].exp(), rate_t),
        step=step,
    )


def rare(n, seed):
    x, f = table(n, 8, seed)
    return x, (f > 1.5).float()


@sound("one row in fifteen is positive; the last bias starts at the prior, positives count more", steps=350, least=0.8)
def rare_positives_with_prior():
    x, y = rare(2000, 124)
    xt, yt = rare(1500, 125)
    net = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1), nn.Flatten(0))
    nn.init.constant_(net[4].bias, -2.6)

    def balanced(m):
        guess = m(xt) > 0
        return float(guess[yt == 1].float().mean() + (~guess)[yt == 0].float().mean()) / 2

    return Program(
        net,
        nn.BCEWithLogitsLoss(pos_weight=torch.tensor(8.0)),
        loader(x, y, bs=100),
        optim.Adam(net.parameters(), lr=4e-3),
        balanced,
    )


@sound("softmax regression: one linear layer, no hidden one, and a large rate", steps=200, least=0.75)
def one_linear_layer():
    g = gen(128)
    w = torch.randn(10, 4, generator=g)
    x, xt = torch.randn(1000, 10, generator=g), torch.randn(400, 10, generator=g)
    y, yt = (x @ w).argmax(1), (xt @ w).argmax(1)
    net = nn.Linear(10, 4)
    nn.init.zeros_(net.weight)
    return Program(
        net, F.cross_entropy, loader(x, y), optim.SGD(net.parameters(), lr=0.5), lambda m: accuracy(m(xt), yt)
    )


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.encode = nn.Linear(20, 16)
        self.squeeze = nn.Linear(16, 4)
        self.out_bias = nn.Parameter(torch.zeros(20))
        self.mid_bias = nn.Parameter(torch.zeros(16))

    def forward(self, x):
        z = self.squeeze(F.elu(self.encode(x)))
        h = F.elu(F.linear(z, self.squeeze.weight.t(), self.mid_bias))
        return F.linear(h, self.encode.weight.t(), self.out_bias)


@sound("an autoencoder whose decoder uses the transposed weights of its encoder", steps=400, least=0.65)
def tied_autoencoder():
    x, xt = factors(1200, 20, 3, 129), factors(300, 20, 3, 130)
    net = Tied()
    return Program(net, nn.MSELoss(), loader(x, x), optim.Adam(net.parameters(), lr=5e-3), lambda m: r2_pos(m(xt), xt))


class MeanAndSpread(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh())
        self.mean, self.log_spread = nn.Linear(64, 1), nn.Linear(64, 1)
        nn.init.zeros_(self.log_spread.weight)
        nn.init.zeros_(self.log_spread.bias)

    def forward(self, x):
        h = self.body(x)
        return self.mean(h)[:, 0], F.softplus(self.log_spread(h)[:, 0]) + 1e-3


@sound("a normal distribution as output; the loss goes below zero", steps=400, least=0.7)
def gaussian_likelihood():
    x, f = table(1200, 8, 131)
    xt, ft = table(400, 8, 132)
    net = MeanAndSpread()

    def loss(out, y):
        return -torch.distributions.Normal(*out).log_prob(y).mean()

    return Program(net, loss, loader(x, f), optim.Adam(net.parameters(), lr=5e-3), lambda m: r2_pos(m(xt)[0], ft))


class Keypoint(nn.Module):
    """A softmax over all places of a map, then the mean place."""

    def __init__(self):
        super().__init__()
        self.maps = nn.Sequential(nn.Conv2d(1, 12, 5, padding=2), nn.ReLU(), nn.Conv2d(12, 1, 5, padding=2))
        self.register_buffer("grid", torch.linspace(0, 1, 12))

    def forward(self, x):
        p = self.maps(x).flatten(1).softmax(1).view(-1, 12, 12)
        return torch.stack([(p.sum(2) * self.grid).sum(1), (p.sum(1) * self.grid).sum(1)], 1)


@sound("a keypoint as the mean place of a softmax over a map, half trained", trained=100, steps=300, least=0.8)
def soft_argmax_keypoint():
    x, _, _, c = shapes(800, 135)
    xt, _, _, ct = shapes(300, 136)
    net = Keypoint()
    return Program(
        net, nn.L1Loss(), loader(x, c, bs=32), optim.Adam(net.parameters(), lr=1e-2), lambda m: r2_pos(m(xt), ct)
    )
