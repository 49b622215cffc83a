import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, WeightedRandomSampler

from program import Program, fault
from ti_common import accuracy, classes, gen, loader, r2, r2_of, table


def mlp(d, out, width=64):
    return nn.Sequential(nn.Linear(d, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, out))


@fault("missing values of a table are coded -9999 and left in", rules=["unscaled-input"], fails=True, steps=300)
def missing_coded_minus_9999(faulty):
    x, y = table(1500, 8, seed=3)
    missing = torch.rand(x.shape, generator=gen(5)) < 0.04
    x = x.masked_fill(missing, -9999.0 if faulty else 0.0)
    net = mlp(8, 1)
    score = r2(x[1200:], y[1200:])
    return Program(
        net,
        lambda p, t: F.mse_loss(p.squeeze(1), t),
        loader(x[:1200], y[:1200]),
        torch.optim.Adam(net.parameters(), lr=2e-3),
        score,
    )


@fault(
    "the features were sorted by a column (sort_values) after the labels had been taken out",
    rules=["labels-unrelated", "output-loss-mismatch"],
    fails=True,
    steps=300,
)
def features_sorted_labels_not(faulty):
    x, y = classes(1500, 8, 3, seed=21)
    train_x, train_y = x[:1200], y[:1200]
    if faulty:
        train_x = train_x[train_x[:, 6].argsort()]
    net = mlp(8, 3)
    return Program(
        net,
        nn.CrossEntropyLoss(),
        loader(train_x, train_y, batch_size=50),
        torch.optim.Adam(net.parameters(), lr=2e-3),
        accuracy(x[1200:], y[1200:]),
    )


@fault(
    "a softplus rate is given to PoissonNLLLoss, which takes the logarithm of the rate by default",
    rules=["output-loss-mismatch"],
    fails=True,
    steps=350,
)
def poisson_rate_as_log(faulty):
    g = gen(33)
    x = torch.randn(1600, 6, generator=g)
    rate = torch.exp(0.6 + 0.9 * torch.sin(1.5 * x[:, 0]) + 0.7 * x[:, 1].clamp(-2, 2))
    y = torch.poisson(rate, generator=g)
    net = nn.Sequential(nn.Linear(6, 48), nn.ReLU(), nn.Linear(48, 48), nn.ReLU(), nn.Linear(48, 1), nn.Softplus(), nn.Flatten(0))
    return Program(
        net,
        nn.PoissonNLLLoss() if faulty else nn.PoissonNLLLoss(log_input=False),
        loader(x[:1300], y[:1300]),
        torch.optim.Adam(net.parameters(), lr=3e-3),
        lambda m: r2_of(m(x[1300:]), rate[1300:]),
    )


@fault(
    "class weights of the sampler by integer division: the rare class has weight 1, the others 0",
    rules=["constant-target", "sorted-batches"],
    fails=True,
    steps=250,
)
def sampler_weights_integer_division(faulty):
    x, t = table(1800, 8, seed=41)
    y = (t > 0.9).long() + (t > -0.3).long()
    train_y = y[:1400]
    counts = torch.bincount(train_y)
    per_class = counts.min() // counts if faulty else counts.min() / counts
    sampler = WeightedRandomSampler(per_class[train_y].double(), len(train_y), replacement=True)
    net = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 3))

    def balanced(model):
        hit = model(x[1400:]).argmax(1) == y[1400:]
        return sum(hit[y[1400:] == c].float().mean().item() for c in range(3)) / 3

    return Program(
        net,
        nn.CrossEntropyLoss(),
        DataLoader(TensorDataset(x[:1400], train_y), batch_size=64, sampler=sampler),
        torch.optim.Adam(net.parameters(), lr=3e-3),
        balanced,
    )


@fault(
    "twelve months of cumulated spend, all nearly one direction, where the differences between months matter",
    rules=["ill-conditioned-input"],
    fails=False,
    steps=400,
)
def cumulated_columns(faulty):
    g = gen(51)
    monthly = torch.randn(1600, 12, generator=g)
    level = 6 * torch.randn(1600, 1, generator=g)
    total = level + 0.25 * monthly.cumsum(1)
    y = torch.tanh(monthly[:, 3] - monthly[:, 8]) + 0.7 * monthly[:, 5] - 0.5 * monthly[:, 10]
    y = (y - y.mean()) / y.std()
    x = total if faulty else total.diff(dim=1)
    x = (x - x.mean(0)) / x.std(0)
    net = nn.Sequential(nn.Linear(x.shape[1], 40), nn.Tanh(), nn.Linear(40, 1), nn.Flatten(0))
    return Program(
        net, nn.MSELoss(), loader(x[:1300], y[:1300]), torch.optim.SGD(net.parameters(), lr=0.05), r2(x[1300:], y[1300:])
    )


@fault(
    "0.9 meant as momentum is passed as weight_decay",
    rules=["weight-decay-dominates"],
    fails=True,
    steps=300,
)
def momentum_given_as_decay(faulty):
    x, y = classes(1500, 8, 4, seed=61)
    net = nn.Sequential(nn.Linear(8, 64), nn.GELU(), nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 4))
    if faulty:
        opt = torch.optim.SGD(net.parameters(), lr=0.05, weight_decay=0.9)
    else:
        opt = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    return Program(net, nn.CrossEntropyLoss(), loader(x[:1200], y[:1200]), opt, accuracy(x[1200:], y[1200:]))


class MeanAndVariance(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU())
        self.mean = nn.Linear(64, 3)
        self.variance = nn.Linear(64, 3)

    def forward(self, x):
        h = self.body(x)
        return self.mean(h), self.variance(h)


@fault(
    "a Gaussian likelihood takes the root of variances that no softplus keeps positive",
    rules=["non-finite", "output-loss-mismatch"],
    fails=True,
    steps=300,
)
def variance_without_softplus(faulty):
    x, y = table(1500, 8, seed=71)
    y = torch.stack([y, 1.4 * torch.sin(2 * x[:, 6]), x[:, 7] - 0.5 * x[:, 5].abs()], 1)
    net = MeanAndVariance()

    def nll(out, target):
        mean, variance = out
        if not faulty:
            variance = F.softplus(variance) + 1e-3
        scale = variance.sqrt()
        return (scale.log() + 0.5 * ((target - mean) / scale) ** 2).mean()

    return Program(
        net,
        nll,
        loader(x[:1200], y[:1200]),
        torch.optim.Adam(net.parameters(), lr=4e-3),
        lambda m: r2_of(m(x[1200:])[0], y[1200:]),
    )
