import math

import torch
import torch.nn.functional as F
from program import Program, sound
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, WeightedRandomSampler

from ti_data import acc, clusters, gen, r2, surface


@sound("The loss is a sum over the batch, and the rate is that much smaller", steps=300, least=0.75)
def sum_with_its_rate():
    x, y = surface(1600, seed=121)
    net = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1), nn.Flatten(0))
    return Program(net, nn.MSELoss(reduction="sum"), DataLoader(TensorDataset(x[:1280], y[:1280]), 64, shuffle=True),
                   torch.optim.SGD(net.parameters(), 0.03 / 64, momentum=0.9), lambda n: r2(n(x[1280:]), y[1280:]))


@sound("Raw columns of very different scale, standardised by a BatchNorm without weights at the input", steps=300, least=0.75)
def raw_columns_behind_norm():
    x, y = surface(1600, seed=122)
    x = x * torch.tensor([1.0, 1e4, 1e-3, 30, 5, 1, 1e6, 0.1]) + torch.tensor([0, 5e4, 0.01, -20, 100, 0, 3e6, 7])
    net = nn.Sequential(nn.BatchNorm1d(8, affine=False), nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1), nn.Flatten(0))
    return Program(net, nn.MSELoss(), DataLoader(TensorDataset(x[:1280], y[:1280]), 64, shuffle=True),
                   torch.optim.Adam(net.parameters(), 4e-3), lambda n: r2(n(x[1280:]), y[1280:]))


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.enc = nn.Linear(24, 6)
        self.bias = nn.Parameter(torch.zeros(24))

    def forward(self, x):
        return F.linear(torch.tanh(self.enc(x)), self.enc.weight.t(), self.bias)


@sound("An autoencoder whose decoder is the encoder's weight transposed, on purpose", trained=100, steps=400, least=0.7)
def tied_autoencoder():
    g = gen(123)
    z = torch.randn(1600, 4, generator=g)
    x = 0.4 * z @ torch.randn(4, 24, generator=g) + 0.05 * torch.randn(1600, 24, generator=g)
    net = Tied()
    return Program(net, nn.MSELoss(), DataLoader(TensorDataset(x[:1280], x[:1280]), 64, shuffle=True),
                   torch.optim.Adam(net.parameters(), 5e-3), lambda n: r2(n(x[1280:]), x[1280:]))


@sound("Two in a hundred are positive; the sampler draws both classes alike, so batches do not look like the data", steps=300, least=0.6)
def rare_class_resampled():
    g = gen(124)
    x = torch.randn(6000, 8, generator=g)
    y = ((x[:, 0] ** 2 + x[:, 1] ** 2 > 6) & (x[:, 2] > 0)).long()
    w = torch.where(y[:4000] == 1, 1.0 / y[:4000].sum(), 1.0 / (1 - y[:4000]).sum())
    net = nn.Sequential(nn.Linear(8, 48), nn.ReLU(), nn.Linear(48, 48), nn.ReLU(), nn.Linear(48, 2))

    def score(n):
        p, t = n(x[4000:]).argmax(1), y[4000:]
        return float((p[t == 1] == 1).float().mean() + (p[t == 0] == 0).float().mean()) - 1

    return Program(net, nn.CrossEntropyLoss(), DataLoader(TensorDataset(x[:4000], y[:4000]), 64, sampler=WeightedRandomSampler(w, 4000)),
                   torch.optim.Adam(net.parameters(), 3e-3), score)


@sound("Mean and logarithm of the variance from one network: the loss falls below zero", trained=120, steps=400, least=0.65)
def heteroscedastic_negative_loss():
    x, y = surface(2000, seed=125, noise=0.05)
    net = nn.Sequential(nn.Linear(8, 64), nn.SiLU(), nn.Linear(64, 64), nn.SiLU(), nn.Linear(64, 2))

    def nll(out, t):
        mean, lv = out[:, 0], out[:, 1].clamp(-8, 4)
        return 0.5 * (lv + (t - mean) ** 2 * torch.exp(-lv)).mean()

    return Program(net, nll, DataLoader(TensorDataset(x[:1600], y[:1600]), 64, shuffle=True),
                   torch.optim.Adam(net.parameters(), 4e-3), lambda n: r2(n(x[1600:])[:, 0], y[1600:]))


class Uncertain(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU())
        self.price, self.kind = nn.Linear(64, 1), nn.Linear(64, 3)
        self.log_var = nn.Parameter(torch.zeros(2))

    def forward(self, x):
        h = self.trunk(x)
        return self.price(h).squeeze(1), self.kind(h)


@sound("Two losses with learned weights (parameters that no layer has), one of them three times the other", steps=400, least=0.7)
def learned_task_weights():
    x, y = surface(1800, seed=126)
    kind = torch.bucketize(x[:, 5] + 0.5 * x[:, 6] ** 2, torch.tensor([-0.2, 0.9]))
    net = Uncertain()

    def step(net, batch):
        p, k = net(batch[0])
        l1, l2 = 3 * F.mse_loss(p, batch[1]), F.cross_entropy(k, batch[2])
        w = torch.exp(-net.log_var)
        return w[0] * l1 + w[1] * l2 + net.log_var.sum()

    def score(n):
        p, k = n(x[1500:])
        return 0.5 * r2(p, y[1500:]) + 0.5 * acc(k, kind[1500:])

    return Program(net, None, DataLoader(TensorDataset(x[:1500], y[:1500], kind[:1500]), 50, shuffle=True),
                   torch.optim.Adam(net.parameters(), 4e-3), score, step=step)


class OneHotCounts(nn.Module):
    """Counts from one-hot columns; the network ends in log rates, its last bias in the logarithm of the mean."""

    def __init__(self, d, mean):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(d, 48), nn.ReLU(), nn.Linear(48, 1))
        nn.init.zeros_(self.net[2].weight)
        nn.init.constant_(self.net[2].bias, math.log(mean))

    def forward(self, x):
        return self.net(x).squeeze(1)


@sound("Counts near 50 on one-hot columns of which some never occur; the last layer starts at zero with the mean as its bias", steps=300, least=0.7)
def counts_on_one_hot_columns():
    g = gen(127)
    a, b = torch.randint(0, 12, (2000,), generator=g), torch.randint(0, 5, (2000,), generator=g)
    x = torch.cat([F.one_hot(a, 16), F.one_hot(b, 8)], 1).float()
    rate = 50 * torch.exp(0.4 * torch.randn(12, generator=g)[a] + 0.3 * torch.randn(5, generator=g)[b])
    y = torch.poisson(rate, generator=g)
    net = OneHotCounts(24, float(y[:1600].mean()))
    return Program(net, nn.PoissonNLLLoss(log_input=True), DataLoader(TensorDataset(x[:1600], y[:1600]), 64, shuffle=True),
                   torch.optim.Adam(net.parameters(), 3e-3), lambda n: r2(n(x[1600:]).exp(), rate[1600:]))
