"""Tables."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from program import Program, fault
from tab_data import accuracy, blobs, friedman, r2, spirals
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset


class Regressor(nn.Module):
    def __init__(self, inputs: int, hidden: int = 64) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU())
        self.out = nn.Linear(hidden, 1)

    def forward(self, x):
        return self.out(self.body(x))


@fault(
    "prices in euros, not standardized",
    rules=["unscaled-target", "learning-rate-too-low"],
    layers=[],
    fails=True,
    steps=500,
)
def tab_prices(is_faulty: bool) -> Program:
    x, z = friedman(1536)
    price = 182_000 + 9_000 * z
    train_y, test_y = price[:1024, None], price[1024:, None]
    mean, std = (0.0, 1.0) if is_faulty else (train_y.mean().item(), train_y.std().item())
    x = (x - 0.5) / 0.29
    loader = DataLoader(TensorDataset(x[:1024], (train_y - mean) / std), batch_size=64, shuffle=True)
    model = Regressor(8)
    return Program(
        model, nn.MSELoss(), loader, torch.optim.Adam(model.parameters(), lr=2e-3), r2(x[1024:], test_y, std, mean)
    )


@fault(
    "a column of unix timestamps and one of incomes go in raw",
    rules=["unscaled-input", "ill-conditioned-input", "saturated-output", "rank-collapse", "loss-not-decreasing"],
    layers=[],
    fails=True,
    steps=400,
)
def tab_timestamp(is_faulty: bool) -> Program:
    n = 1500
    age = 18 + 60 * torch.rand(n)
    income = torch.exp(10.5 + 0.5 * torch.randn(n))
    since = 1.6e9 + 3e7 * torch.rand(n)
    clicks = torch.poisson(3 * torch.ones(n))
    X = torch.stack([age, income, since, clicks], 1)
    risk = (age - 48).abs() / 15 - (income.log() - 10.5) * 1.5 + 0.4 * (clicks - 3)
    Y = (risk > 1.0).long()
    if not is_faulty:
        X = (X - X[:1000].mean(0)) / X[:1000].std(0)
    dl = DataLoader(TensorDataset(X[:1000], Y[:1000]), batch_size=50, shuffle=True)
    net = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 2))
    yt = Y[1000:]

    def balanced(model):
        hit = model(X[1000:]).argmax(1) == yt
        return (hit[yt == 0].float().mean() + hit[yt == 1].float().mean()).item() / 2

    return Program(net, nn.CrossEntropyLoss(), dl, torch.optim.Adam(net.parameters(), lr=3e-3), balanced)


@fault(
    "(N, 1) against (N,): the squared error is over all pairs",
    rules=["output-loss-mismatch"],
    fails=True,
    steps=400,
)
def tab_broadcast(is_faulty: bool) -> Program:
    x, y = friedman(1200)
    y = (y - y.mean()) / y.std()
    x = 2 * x - 1

    class Frame(Dataset):
        def __len__(self):
            return 900

        def __getitem__(self, i):
            return x[i], y[i]

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc1 = nn.Linear(8, 64)
            self.fc2 = nn.Linear(64, 32)
            self.fc3 = nn.Linear(32, 1)

        def forward(self, x):
            x = F.gelu(self.fc1(x))
            x = F.gelu(self.fc2(x))
            x = self.fc3(x)
            return x if is_faulty else x.squeeze(1)

    net = Net()
    return Program(
        net,
        F.mse_loss,
        DataLoader(Frame(), batch_size=60, shuffle=True),
        torch.optim.AdamW(net.parameters(), lr=2e-3),
        r2(x[900:], y[900:]),
    )


@fault("missing cells are NaN", rules=["non-finite"], layers=[], fails=True, steps=300)
def tab_missing(is_faulty: bool) -> Program:
    x, y = blobs(1600, classes=3, d=10)
    train, test = x[:1200].clone(), x[1200:]
    train[torch.rand(train.shape) < 0.02] = float("nan")
    if not is_faulty:
        train = torch.where(train.isnan(), train.nanmean(0), train)
    model = nn.Sequential(
        nn.Linear(10, 48), nn.BatchNorm1d(48), nn.ReLU(), nn.Linear(48, 24), nn.BatchNorm1d(24), nn.ReLU(), nn.Linear(24, 3)
    )
    loader = DataLoader(TensorDataset(train, y[:1200]), batch_size=40, shuffle=True)
    return Program(
        model,
        nn.CrossEntropyLoss(),
        loader,
        torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9),
        accuracy(test, y[1200:]),
    )


class Churn(Dataset):
    """Rows as they come out of a csv: numbers, and a last column of words."""

    def __init__(self, rows, positive):
        self.x = torch.tensor([row[:-1] for row in rows])
        self.y = torch.tensor([1.0 if row[-1] == positive else 0.0 for row in rows])

    def __len__(self):
        return len(self.y)

    def __getitem__(self, index):
        return self.x[index], self.y[index]


@fault("the word for positive is spelt differently", rules=["constant-target"], fails=True, steps=300)
def tab_spelling(is_faulty: bool) -> Program:
    x, k = blobs(1100, classes=2, d=8, spread=0.9)
    rows = [[*a, "Yes" if b else "No"] for a, b in zip(x.tolist(), k.tolist(), strict=True)]
    train = Churn(rows[:800], "yes" if is_faulty else "Yes")
    model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 1), nn.Flatten(0))
    return Program(
        model,
        nn.BCEWithLogitsLoss(),
        DataLoader(train, batch_size=32, shuffle=True),
        torch.optim.Adam(model.parameters(), 1e-3),
        lambda m: ((m(x[800:]) > 0) == (k[800:] == 1)).float().mean().item(),
    )


class Dense(nn.Module):
    """A layer by hand."""

    def __init__(self, n_in, n_out, centred):
        super().__init__()
        w = torch.rand(n_in, n_out)
        self.W = nn.Parameter((2 * w - 1) / n_in**0.5 if centred else w)
        self.b = nn.Parameter(torch.zeros(n_out))

    def forward(self, x):
        return x @ self.W + self.b


@fault(
    "weights by torch.rand, which are positive",
    rules=[
        "bad-initialisation",
        "full-neurons",
        "activation-drift",
        "rank-collapse",
        "exploding-gradient",
        "saturated-output",
        "learning-rate-too-high",
    ],
    layers=["d1", "d2", "d3", "d4"],
    fails=True,
    steps=400,
)
def tab_rand(is_faulty: bool) -> Program:
    class MLP(nn.Module):
        def __init__(self):
            super().__init__()
            c = not is_faulty
            self.d1, self.d2, self.d3, self.d4 = Dense(8, 64, c), Dense(64, 64, c), Dense(64, 64, c), Dense(64, 1, c)

        def forward(self, x):
            h = torch.relu(self.d1(x))
            h = torch.relu(self.d2(h))
            h = torch.relu(self.d3(h))
            return self.d4(h)[:, 0]

    x, y = friedman(1300)
    y = (y - y.mean()) / y.std()
    model = MLP()
    return Program(
        model,
        nn.MSELoss(),
        DataLoader(TensorDataset(x[:1000], y[:1000]), batch_size=50, shuffle=True),
        torch.optim.Adam(model.parameters(), lr=1e-3),
        r2(x[1000:], y[1000:]),
    )


@fault(
    "all weights filled with one constant",
    rules=["symmetric-initialisation", "bad-initialisation", "rank-collapse"],
    layers=["hidden1", "hidden2", "head"],
    fails=False,
    steps=400,
)
def tab_constant_init(is_faulty: bool) -> Program:
    class Classifier(nn.Module):
        def __init__(self, d, k):
            super().__init__()
            self.hidden1 = nn.Linear(d, 64)
            self.hidden2 = nn.Linear(64, 64)
            self.head = nn.Linear(64, k)
            self.act = nn.LeakyReLU(0.01)

        def forward(self, x):
            return self.head(self.act(self.hidden2(self.act(self.hidden1(x)))))

    def init_weights(m):
        if isinstance(m, nn.Linear):
            if is_faulty:
                m.weight.data.fill_(0.02)
            else:
                nn.init.xavier_uniform_(m.weight)
            m.bias.data.fill_(0.01)

    x, y = blobs(1400, classes=4, d=12)
    model = Classifier(12, 4)
    model.apply(init_weights)
    opt = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    return Program(
        model,
        nn.CrossEntropyLoss(),
        DataLoader(TensorDataset(x[:1000], y[:1000]), batch_size=50, shuffle=True),
        opt,
        accuracy(x[1000:], y[1000:]),
    )


@fault(
    "activations forgotten in forward",
    rules=["no-nonlinearity"],
    layers=["lin1", "lin2", "lin3"],
    fails=True,
    steps=600,
)
def tab_forgotten_activation(is_faulty: bool) -> Program:
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.lin1 = nn.Linear(2, 64)
            self.lin2 = nn.Linear(64, 64)
            self.lin3 = nn.Linear(64, 3)
            self.relu = nn.ReLU()
            self.dropout = nn.Dropout(0.05)

        def forward(self, x):
            if is_faulty:
                x = self.dropout(self.lin1(x))
                x = self.dropout(self.lin2(x))
            else:
                x = self.dropout(self.relu(self.lin1(x)))
                x = self.dropout(self.relu(self.lin2(x)))
            return self.lin3(x)

    x, y = spirals(1500)
    net = Net()
    return Program(
        net,
        nn.CrossEntropyLoss(),
        DataLoader(TensorDataset(x[:1100], y[:1100]), batch_size=64, shuffle=True),
        torch.optim.Adam(net.parameters(), lr=5e-3),
        accuracy(x[1100:], y[1100:]),
    )


@fault("blocks in a list, not in a ModuleList", rules=["no-gradient"], layers=[], fails=True, steps=500)
def tab_python_list(is_faulty: bool) -> Program:
    class Stack(nn.Module):
        def __init__(self):
            super().__init__()
            blocks = [nn.Sequential(nn.Linear(2 if i == 0 else 24, 24), nn.Tanh()) for i in range(3)]
            self.blocks = blocks if is_faulty else nn.ModuleList(blocks)
            self.readout = nn.Linear(24, 3)

        def forward(self, x):
            for block in self.blocks:
                x = block(x)
            return self.readout(x)

    x, y = spirals(1500)
    model = Stack()
    return Program(
        model,
        nn.CrossEntropyLoss(),
        DataLoader(TensorDataset(x[:1100], y[:1100]), batch_size=64, shuffle=True),
        torch.optim.Adam(model.parameters(), lr=1e-2),
        accuracy(x[1100:], y[1100:]),
    )


@fault(
    "sigmoid in the model and in the loss, rare labels",
    rules=["output-loss-mismatch"],
    layers=["sigmoid", "out"],
    fails=True,
    steps=400,
)
def tab_double_sigmoid(is_faulty: bool) -> Program:
    g = torch.Generator().manual_seed(5)
    w = torch.randn(15, 10, generator=g)
    x = torch.randn(1500, 15)
    y = ((x @ w) / 15**0.5 > 1.0).float()

    class Tagger(nn.Module):
        def __init__(self):
            super().__init__()
            self.hidden = nn.Linear(15, 64)
            self.out = nn.Linear(64, 10)
            self.sigmoid = nn.Sigmoid()

        def forward(self, x):
            return self.sigmoid(self.out(F.relu(self.hidden(x))))

    def f1(model):
        p, t = model(x[1000:]) > 0.5, y[1000:] > 0.5
        return 2 * (p & t).sum().item() / max(1, p.sum().item() + t.sum().item())

    model = Tagger()
    return Program(
        model,
        nn.BCEWithLogitsLoss() if is_faulty else nn.BCELoss(),
        DataLoader(TensorDataset(x[:1000], y[:1000]), batch_size=50, shuffle=True),
        torch.optim.Adam(model.parameters(), lr=2e-3),
        f1,
    )


@fault(
    "Dropout(0.9), meant to keep 0.9",
    rules=["dropout-too-strong"],
    layers=["net.2", "net.5"],
    fails=True,
    steps=400,
)
def tab_keep_prob(is_faulty: bool) -> Program:
    p = 0.9 if is_faulty else 0.1

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = nn.Sequential(
                nn.Linear(8, 48),
                nn.ReLU(),
                nn.Dropout(p),
                nn.Linear(48, 32),
                nn.ReLU(),
                nn.Dropout(p),
                nn.Linear(32, 1),
            )

        def forward(self, x):
            return self.net(x).squeeze(-1)

    x, y = friedman(1300)
    x, y = (x - 0.5) / 0.29, (y - 14) / 5
    model = Net()
    return Program(
        model,
        nn.SmoothL1Loss(),
        DataLoader(TensorDataset(x[:1000], y[:1000]), batch_size=40, shuffle=True),
        torch.optim.Adam(model.parameters(), lr=3e-3),
        r2(x[1000:], y[1000:]),
    )


@fault(
    "F.dropout without training=self.training",
    rules=["dropout-in-eval"],
    layers=[],
    fails=False,
    steps=600,
)
def tab_functional_dropout(is_faulty: bool) -> Program:
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc1, self.fc2, self.fc3 = nn.Linear(2, 64), nn.Linear(64, 64), nn.Linear(64, 4)

        def drop(self, x):
            return F.dropout(x) if is_faulty else F.dropout(x, training=self.training)

        def forward(self, x):
            x = self.drop(F.silu(self.fc1(x)))
            x = self.drop(F.silu(self.fc2(x)))
            return self.fc3(x)

    x, y = spirals(1500, arms=4)
    model = Net()
    return Program(
        model,
        nn.CrossEntropyLoss(),
        DataLoader(TensorDataset(x[:1000], y[:1000]), batch_size=64, shuffle=True),
        torch.optim.AdamW(model.parameters(), lr=5e-3, weight_decay=0.01),
        accuracy(x[1000:], y[1000:]),
    )


@fault(
    "the L2 of Adam with the weight decay that is used for AdamW",
    rules=["weight-decay-dominates"],
    fails=True,
    steps=500,
)
def tab_l2(is_faulty: bool) -> Program:
    x, y = spirals(1500, arms=4)
    model = nn.Sequential(nn.Linear(2, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 4))
    cls = torch.optim.Adam if is_faulty else torch.optim.AdamW
    return Program(
        model,
        nn.CrossEntropyLoss(),
        DataLoader(TensorDataset(x[:1200], y[:1200]), batch_size=60, shuffle=True),
        cls(model.parameters(), lr=5e-3, weight_decay=0.1),
        accuracy(x[1200:], y[1200:]),
    )


@fault(
    "a penalty on all weights that outweighs the error",
    rules=["term-dominates", "weight-decay-dominates"],
    fails=True,
    steps=400,
)
def tab_lasso(is_faulty: bool) -> Program:
    x, y = friedman(1300)
    x, y = (x - 0.5) / 0.29, ((y - 14) / 5)[:, None]
    strength = 5e-2 if is_faulty else 1e-5

    def step(model, batch):
        xb, yb = batch
        loss = F.mse_loss(model(xb), yb)
        l1 = sum(p.abs().sum() for p in model.parameters())
        return loss + strength * l1

    model = Regressor(8, 48)
    return Program(
        model,
        None,
        DataLoader(TensorDataset(x[:1000], y[:1000]), batch_size=50, shuffle=True),
        torch.optim.Adam(model.parameters(), lr=3e-3),
        r2(x[1000:], y[1000:]),
        step=step,
    )


@fault(
    "Gaussian likelihood with the wrong sign of the log variance",
    rules=["output-loss-mismatch", "term-dominates"],
    layers=[],
    fails=True,
    steps=400,
)
def tab_heteroscedastic(is_faulty: bool) -> Program:
    class MeanVar(nn.Module):
        def __init__(self):
            super().__init__()
            self.trunk = nn.Sequential(nn.Linear(8, 64), nn.SiLU(), nn.Linear(64, 64), nn.SiLU())
            self.mu = nn.Linear(64, 1)
            self.logvar = nn.Linear(64, 1)

        def forward(self, x):
            h = self.trunk(x)
            return torch.cat([self.mu(h), self.logvar(h)], 1)

    def nll(out, y):
        mu, logvar = out[:, 0], out[:, 1]
        precision = logvar.exp() if is_faulty else (-logvar).exp()
        return (0.5 * logvar + 0.5 * precision * (y - mu) ** 2).mean()

    x, y = friedman(1300)
    x, y = (x - 0.5) / 0.29, (y - 14) / 5
    model = MeanVar()
    return Program(
        model,
        nll,
        DataLoader(TensorDataset(x[:1000], y[:1000]), batch_size=50, shuffle=True),
        torch.optim.Adam(model.parameters(), lr=2e-3),
        lambda m: max(0.0, 1 - ((m(x[1000:])[:, 0] - y[1000:]) ** 2).mean().item() / y[1000:].var().item()),
    )


@fault(
    "pairs given to the ranking loss the wrong way round",
    rules=["output-loss-mismatch"],
    fails=True,
    steps=300,
)
def tab_ranking(is_faulty: bool) -> Program:
    rel = lambda x: torch.tanh(x[:, 0] * x[:, 1]) + x[:, 2] - 0.5 * x[:, 3].abs()  # noqa: E731
    better, worse = torch.randn(2, 1500, 6)
    swap = rel(better) < rel(worse)
    better[swap], worse[swap] = worse[swap].clone(), better[swap].clone()

    class Scorer(nn.Module):
        def __init__(self):
            super().__init__()
            self.f = nn.Sequential(nn.Linear(6, 48), nn.ReLU(), nn.Linear(48, 48), nn.ReLU(), nn.Linear(48, 1))

        def forward(self, pair):
            return self.f(pair[:, 0]).squeeze(1), self.f(pair[:, 1]).squeeze(1)

    criterion = nn.MarginRankingLoss(margin=0.5)
    pairs = torch.stack([better, worse], 1)
    sign = torch.full((1500,), -1.0 if is_faulty else 1.0)

    def score(model):
        a, b = model(pairs[1200:])
        return (a > b).float().mean().item()

    model = Scorer()
    return Program(
        model,
        lambda out, t: criterion(out[0], out[1], t),
        DataLoader(TensorDataset(pairs[:1200], sign[:1200]), batch_size=60, shuffle=True),
        torch.optim.Adam(model.parameters(), lr=2e-3),
        score,
    )


@fault(
    "blood values as they are in a Cox regression: the exponential overflows",
    rules=["unscaled-input", "non-finite", "ill-conditioned-input"],
    layers=[],
    fails=True,
    steps=300,
)
def tab_cox(is_faulty: bool) -> Program:
    n = 1000
    z = torch.randn(n, 5)
    risk = 1.2 * z[:, 0] + z[:, 1] ** 2 - 0.8 * z[:, 2] * (z[:, 3] > 0)
    raw = torch.stack(
        [60 + 12 * z[:, 0], 1.3 + 0.3 * z[:, 1], 263_000 + 90_000 * z[:, 2], 136 + 4 * z[:, 3], 580 + 90 * z[:, 4]], 1
    )
    t_event = -torch.log(torch.rand(n)) * torch.exp(-risk)
    t_cens = 3 * torch.rand(n)
    time, event = torch.minimum(t_event, t_cens), (t_event <= t_cens).float()
    x = raw if is_faulty else (raw - raw[:700].mean(0)) / raw[:700].std(0)

    def cox_loss(out, target):
        time, event = target[:, 0], target[:, 1]
        order = time.argsort(descending=True)
        log_h = out.flatten()[order]
        event = event[order]
        at_risk = torch.log(torch.cumsum(torch.exp(log_h), 0))
        return -((log_h - at_risk) * event).sum() / event.sum()

    def concordance(model):
        h = model(x[700:]).flatten()
        pair = (time[700:, None] < time[None, 700:]) & (event[700:, None] > 0)
        return ((h[:, None] > h[None]) & pair).sum().item() / pair.sum().item()

    net = nn.Sequential(nn.Linear(5, 32), nn.ReLU(), nn.Linear(32, 16), nn.ReLU(), nn.Linear(16, 1, bias=False))
    return Program(
        net,
        cox_loss,
        DataLoader(TensorDataset(x[:700], torch.stack([time, event], 1)[:700]), batch_size=100, shuffle=True),
        torch.optim.Adam(net.parameters(), lr=3e-3),
        concordance,
    )


@fault(
    "all in bfloat16, weights too",
    rules=["lost-updates", "rounding-error"],
    layers=[],
    fails=False,
    steps=600,
)
def tab_bfloat(is_faulty: bool) -> Program:
    x, y = friedman(1500, noise=0.3)
    x, y = (x - 0.5) / 0.29, ((y - 14) / 5)[:, None]

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.Sequential(
                nn.Linear(8, 128), nn.GELU(), nn.Linear(128, 128), nn.GELU(), nn.Linear(128, 1)
            )

        def forward(self, x):
            if is_faulty:
                return self.layers(x.bfloat16()).float()
            with torch.autocast("cpu", torch.bfloat16):
                return self.layers(x).float()

    net = Net()
    if is_faulty:
        net = net.bfloat16()
    return Program(
        net,
        nn.MSELoss(),
        DataLoader(TensorDataset(x[:1200], y[:1200]), batch_size=48, shuffle=True),
        torch.optim.AdamW(net.parameters(), lr=2e-4),
        r2(x[1200:], y[1200:]),
    )
