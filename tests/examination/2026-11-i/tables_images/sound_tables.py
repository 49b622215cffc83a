import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Sampler, TensorDataset

from program import Program, sound
from ti_common import accuracy, classes, gen, loader, r2, r2_of, table


@sound("counts with an exposure: log-rates plus a log-exposure column, PoissonNLLLoss with log_input", steps=350, least=0.7)
def counts_with_exposure():
    g = gen(301)
    x = torch.randn(1600, 6, generator=g)
    exposure = 0.5 + 4 * torch.rand(1600, generator=g)
    rate = torch.exp(0.3 + 0.8 * torch.sin(1.5 * x[:, 0]) + 0.6 * x[:, 1].clamp(-2, 2))
    y = torch.poisson(rate * exposure, generator=g)

    class Rate(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = nn.Sequential(nn.Linear(6, 48), nn.Tanh(), nn.Linear(48, 48), nn.Tanh(), nn.Linear(48, 1))

        def forward(self, both):
            return self.net(both[:, :6]).squeeze(1) + both[:, 6].log()

    both = torch.cat([x, exposure[:, None]], 1)
    net = Rate()
    return Program(
        net,
        nn.PoissonNLLLoss(log_input=True, full=False),
        loader(both[:1300], y[:1300]),
        torch.optim.Adam(net.parameters(), lr=4e-3),
        lambda m: r2_of(m(both[1300:]).exp(), (rate * exposure)[1300:]),
    )


@sound("a sum over the batch as loss, with a rate that was divided by the batch size", steps=350, least=0.75)
def summed_with_small_rate():
    x, y = classes(1500, 8, 3, seed=302)
    net = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 3))
    opt = torch.optim.SGD(net.parameters(), lr=0.05 / 64, momentum=0.9)
    return Program(net, nn.CrossEntropyLoss(reduction="sum"), loader(x[:1200], y[:1200]), opt, accuracy(x[1200:], y[1200:]))


@sound("targets near 12 (log prices), the last bias set to their mean", steps=350, least=0.75)
def log_prices_bias_at_mean():
    x, t = table(1500, 8, seed=303)
    y = 12.1 + 0.6 * t
    net = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1), nn.Flatten(0))
    nn.init.constant_(net[4].bias, y[:1200].mean().item())
    return Program(net, nn.HuberLoss(), loader(x[:1200], y[:1200]), torch.optim.Adam(net.parameters(), lr=3e-3), r2(x[1200:], y[1200:]))


class Pinball(nn.Module):
    def __init__(self, q):
        super().__init__()
        self.register_buffer("q", torch.tensor(q))

    def forward(self, out, target):
        gap = target[:, None] - out
        return torch.maximum(self.q * gap, (self.q - 1) * gap).mean()


@sound("three quantiles against one target, which is broadcast on purpose", steps=350, least=0.7)
def three_quantiles():
    x, y = table(1500, 8, seed=304)
    net = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 3))
    return Program(
        net,
        Pinball([0.1, 0.5, 0.9]),
        loader(x[:1200], y[:1200]),
        torch.optim.Adam(net.parameters(), lr=4e-3),
        lambda m: r2_of(m(x[1200:])[:, 1], y[1200:]),
    )


@sound("four in a hundred positives, pos_weight of the ratio, last bias left at zero", steps=350, least=0.75)
def rare_positives_weighted():
    x, t = table(4000, 8, seed=305)
    y = (t > torch.quantile(t, 0.96)).float()
    net = nn.Sequential(nn.Linear(8, 48), nn.ReLU(), nn.Linear(48, 48), nn.ReLU(), nn.Linear(48, 1), nn.Flatten(0))

    def balanced(m):
        p, h = m(x[3000:]) > 0, y[3000:] > 0
        return max(0.0, p[h].float().mean().item() + (~p[~h]).float().mean().item() - 1)

    return Program(
        net,
        nn.BCEWithLogitsLoss(pos_weight=torch.tensor(24.0)),
        loader(x[:3000], y[:3000], batch_size=100),
        torch.optim.Adam(net.parameters(), lr=2e-3),
        balanced,
    )


class Balanced(Sampler):
    """As many rows of each class in every batch, class after class inside of it."""

    def __init__(self, y, per, batches):
        self.rows = [torch.nonzero(y == c).flatten() for c in y.unique()]
        self.per, self.batches = per, batches

    def __len__(self):
        return self.batches

    def __iter__(self):
        for _ in range(self.batches):
            yield torch.cat([r[torch.randint(len(r), (self.per,))] for r in self.rows]).tolist()


@sound("batches that hold the classes one after another, equally many of each, from imbalanced data", steps=300, least=0.7)
def balanced_batch_sampler():
    x, t = table(2000, 8, seed=306)
    y = (t > 0.9).long() + (t > -0.3).long()
    net = nn.Sequential(nn.Linear(8, 64), nn.LeakyReLU(), nn.Linear(64, 64), nn.LeakyReLU(), nn.Linear(64, 3))
    return Program(
        net,
        nn.CrossEntropyLoss(),
        DataLoader(TensorDataset(x[:1600], y[:1600]), batch_sampler=Balanced(y[:1600], 16, 40)),
        torch.optim.Adam(net.parameters(), lr=2e-3),
        accuracy(x[1600:], y[1600:]),
    )


class Kendall(nn.Module):
    """Two tasks and a learned log-variance of each."""

    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU())
        self.kind = nn.Linear(64, 3)
        self.value = nn.Linear(64, 1)
        self.log_var = nn.Parameter(torch.zeros(2))

    def forward(self, x):
        h = self.trunk(x)
        return self.kind(h), self.value(h).squeeze(1)


@sound("two tasks weighted by learned variances, so that the loss goes below zero; half trained", trained=120, steps=350, least=0.75)
def learned_task_weights():
    x, y = classes(1500, 8, 3, seed=307)
    v = torch.sin(2 * x[:, 6]) + 0.3 * x[:, 7]
    net = Kendall()

    def step(model, batch):
        a, c, r = batch
        kind, value = model(a)
        losses = torch.stack([F.cross_entropy(kind, c), F.mse_loss(value, r)])
        return (torch.exp(-model.log_var) * losses + model.log_var).sum()

    def score(m):
        kind, value = m(x[1200:])
        return 0.5 * (kind.argmax(1) == y[1200:]).float().mean().item() + 0.5 * r2_of(value, v[1200:])

    return Program(
        net, None, loader(x[:1200], y[:1200], v[:1200]), torch.optim.Adam(net.parameters(), lr=3e-3), score, step=step
    )
