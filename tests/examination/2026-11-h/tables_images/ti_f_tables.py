"""Faults in scripts on tables."""

import torch
import torch.nn.functional as F
from program import Program, fault
from ti_common import accuracy, classes, gen, loader, r2_pos, table
from torch import nn
from torch.utils.data import DataLoader, Dataset


@fault(
    "labels were read from a second file in another order than the features",
    rules=["labels-unrelated"],
    fails=True,
    steps=300,
)
def customers_and_labels_by_position(is_faulty):
    x, f = table(1200, 8, 1)
    xt, ft = table(500, 8, 2)
    customer = torch.randperm(len(x), generator=gen(3))  # the id in each row of labels.csv
    labels_file = (f > 0).float()[customer]
    if is_faulty:
        y = labels_file
    else:
        y = torch.empty_like(labels_file)
        y[customer] = labels_file
    net = nn.Sequential(nn.Linear(8, 48), nn.ReLU(), nn.Linear(48, 48), nn.ReLU(), nn.Linear(48, 1), nn.Flatten(0))
    return Program(
        net,
        nn.BCEWithLogitsLoss(),
        loader(x, y),
        torch.optim.Adam(net.parameters(), lr=3e-3),
        lambda m: float(((m(xt) > 0) == (ft > 0)).float().mean()),
    )


def claims(n, seed):
    x, _ = table(n, 6, seed)
    rate = torch.exp(1.5 + 0.6 * x[:, 0] - 0.4 * x[:, 1] + 0.3 * x[:, 2] * x[:, 3]).clamp(max=30)
    return x, rate, torch.poisson(rate, generator=gen(seed + 50))


class RateNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 64), nn.SiLU(), nn.Linear(64, 64), nn.SiLU())
        self.log_rate = nn.Linear(64, 1)

    def forward(self, x):
        return self.log_rate(self.body(x)).squeeze(1).exp()


@fault(
    "the model returns rates, but PoissonNLLLoss is left at its default, which takes logarithms of rates",
    rules=["output-loss-mismatch"],
    fails=True,
    steps=350,
)
def poisson_loss_takes_log_rates(is_faulty):
    x, _, y = claims(1200, 4)
    xt, rate, _ = claims(500, 5)
    net = RateNet()
    loss = nn.PoissonNLLLoss() if is_faulty else nn.PoissonNLLLoss(log_input=False)
    return Program(
        net,
        loss,
        loader(x, y),
        torch.optim.Adam(net.parameters(), lr=3e-3),
        lambda m: r2_pos(m(xt), rate),
    )


@fault(
    "the time of purchase goes into the network as seconds since 1970, next to standardised columns",
    rules=["unscaled-input", "ill-conditioned-input"],
    fails=True,
    steps=300,
)
def unix_seconds_as_a_feature(is_faulty):
    def frame(n, seed):
        x, f = table(n, 6, seed)
        when = 1.6e9 + 3e7 * torch.rand(n, 1, generator=gen(seed + 9))
        if not is_faulty:
            when = (when - 1.615e9) / 0.87e7
        return torch.cat([x, when], 1), (f > 0).long()

    x, y = frame(1200, 6)
    xt, yt = frame(500, 7)
    net = nn.Sequential(nn.Linear(7, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 2))
    return Program(
        net,
        nn.CrossEntropyLoss(),
        loader(x, y),
        torch.optim.Adam(net.parameters(), lr=3e-3),
        lambda m: accuracy(m(xt), yt),
    )


class Standardised(Dataset):
    """Rows of a table, each column less its mean, over its standard deviation."""

    def __init__(self, x, y, eps):
        self.mean, self.std = x.mean(0), x.std(0)
        self.eps, self.x, self.y = eps, x, y

    def scale(self, x):
        return (x - self.mean) / (self.std + self.eps)

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return self.scale(self.x[i]), self.y[i]


@fault(
    "one column (the country, after a filter) has a standard deviation of 0, by which it is divided",
    rules=["non-finite", "constant-feature"],
    fails=True,
    steps=250,
)
def column_divided_by_no_spread(is_faulty):
    x, y = classes(900, 9, 3, 10)
    xt, yt = classes(400, 9, 3, 11)
    x, xt = x * 4 + 7, xt * 4 + 7
    x, xt = (torch.cat([a, torch.full((len(a), 1), 49.0)], 1) for a in (x, xt))
    data = Standardised(x, y, 0.0 if is_faulty else 1e-6)
    net = nn.Sequential(nn.Linear(10, 40), nn.ReLU(), nn.Linear(40, 3))
    return Program(
        net,
        F.cross_entropy,
        DataLoader(data, batch_size=48, shuffle=True),
        torch.optim.AdamW(net.parameters(), lr=3e-3),
        lambda m: accuracy(m(data.scale(xt)), yt),
    )


@fault(
    "classes are numbered from 1 in the file, the network has outputs 0 to 3",
    rules=["model-fails", "output-loss-mismatch"],
    fails=True,
    steps=250,
)
def classes_counted_from_one(is_faulty):
    x, y = classes(1000, 8, 4, 12)
    xt, yt = classes(400, 8, 4, 13)
    in_file = y + 1
    target = in_file if is_faulty else in_file - 1
    net = nn.Sequential(nn.Linear(8, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 4))
    return Program(
        net,
        nn.CrossEntropyLoss(),
        loader(x, target),
        torch.optim.Adam(net.parameters(), lr=3e-3),
        lambda m: accuracy(m(xt), yt),
    )


@fault(
    "the share of churned contracts, between 0 and 1, is cast to integers for the cross entropy: all of class 0",
    rules=["constant-target"],
    fails=True,
    steps=250,
)
def share_cast_to_integers(is_faulty):
    x, f = table(1000, 7, 14)
    xt, ft = table(500, 7, 15)
    share = torch.sigmoid(2 * f) * 0.99
    y = share.long() if is_faulty else (share > 0.5).long()
    net = nn.Sequential(nn.Linear(7, 48), nn.GELU(), nn.Linear(48, 48), nn.GELU(), nn.Linear(48, 2))
    return Program(
        net,
        nn.CrossEntropyLoss(),
        loader(x, y, bs=50),
        torch.optim.Adam(net.parameters(), lr=3e-3),
        lambda m: accuracy(m(xt), (ft > 0).long()),
    )


class Experts(nn.Module):
    def __init__(self, d, experts, gate_dim):
        super().__init__()
        self.gate = nn.Linear(d, experts)
        self.experts = nn.ModuleList(nn.Sequential(nn.Linear(d, 24), nn.ReLU(), nn.Linear(24, 1)) for _ in range(experts))
        self.gate_dim = gate_dim

    def forward(self, x):
        share = torch.softmax(self.gate(x), dim=self.gate_dim)
        each = torch.cat([e(x) for e in self.experts], 1)
        return (share * each).sum(1)


@fault(
    "the gate of a mixture of experts takes its softmax over the batch",
    rules=["wrong-softmax-dimension", "mixed-examples"],
    layers=["gate"],
    fails=True,
    steps=350,
)
def gate_normalised_over_batch(is_faulty):
    x, f = table(1200, 8, 16)
    xt, ft = table(500, 8, 17)
    net = Experts(8, 4, 0 if is_faulty else 1)
    return Program(
        net,
        nn.MSELoss(),
        loader(x, f),
        torch.optim.Adam(net.parameters(), lr=5e-3),
        lambda m: r2_pos(m(xt), ft),
    )


@fault(
    "ten sensors share one large common signal, the target lies in their small differences; plain SGD",
    rules=["ill-conditioned-input"],
    fails=False,
    steps=400,
)
def sensors_with_common_signal(is_faulty):
    def frame(n, seed):
        x, f = table(n, 10, seed)
        common = torch.randn(n, 1, generator=gen(seed + 31))
        raw = common + 0.05 * x
        if not is_faulty:  # against the reference sensor, then standardised
            raw = (raw - common) / 0.05
        return raw, (f > 0).long()

    x, y = frame(1200, 18)
    xt, yt = frame(500, 19)
    net = nn.Sequential(nn.Linear(10, 64), nn.ReLU(), nn.Linear(64, 2))
    return Program(
        net,
        nn.CrossEntropyLoss(),
        loader(x, y),
        torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9),
        lambda m: accuracy(m(xt), yt),
    )
