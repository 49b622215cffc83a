"""Faulty tables."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from wts_data import accuracy, balanced, concordance, loader, r2, surface

from program import Program, fault


class PriceNet(nn.Module):
    def __init__(self, n_in, hidden=64):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(n_in, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU())
        self.price = nn.Linear(hidden, 1)

    def forward(self, x):
        return self.price(self.body(x)).squeeze(-1)


@fault("house prices stay in dollars", rules=["unscaled-target"], fails=True, steps=400)
def wts_prices_in_dollars(is_faulty):
    x = torch.randn(1536, 8)
    y = 260_000 + 85_000 * (surface(x) + 0.1 * torch.randn(len(x)))
    mean, std = (0.0, 1.0) if is_faulty else (y[:1024].mean(), y[:1024].std())
    model = PriceNet(8)
    return Program(
        model,
        nn.SmoothL1Loss(),
        loader(x[:1024], (y[:1024] - mean) / std),
        torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=1e-2),
        lambda m: r2(m(x[1024:]) * std + mean, y[1024:]),
    )


class CreditScorer(nn.Module):
    def __init__(self):
        super().__init__()
        self.region = nn.Embedding(6, 3)
        self.fc1 = nn.Linear(3 + 3, 48)
        self.fc2 = nn.Linear(48, 48)
        self.fc3 = nn.Linear(48, 1)

    def forward(self, income, age, ratio, region):
        h = torch.cat([torch.stack([income, age, ratio], 1), self.region(region)], 1)
        return self.fc3(F.relu(self.fc2(F.relu(self.fc1(h)))))[:, 0]


class Rows(torch.utils.data.Dataset):
    def __init__(self, columns, y):
        self.columns, self.y = columns, y

    def __len__(self):
        return len(self.y)

    def __getitem__(self, i):
        return {name: column[i] for name, column in self.columns.items()}, self.y[i]


@fault(
    "income in dollars and age in days go in next to a ratio",
    rules=["unscaled-input", "ill-conditioned-input"],
    fails=True,
    steps=500,
)
def wts_credit_raw_units(is_faulty):
    n = 2000
    z = torch.randn(n, 3)
    region = torch.randint(6, (n,))
    effect = torch.randn(6)
    y = ((1.5 * z[:, 2] * torch.sign(z[:, 0] + 0.2) + z[:, 1] + effect[region]) > 0).float()
    raw = {"income": 52_000 * torch.exp(0.5 * z[:, 0]), "age": 15_000 + 4000 * z[:, 1], "ratio": 0.3 + 0.1 * z[:, 2]}
    if not is_faulty:
        raw = {k: (v - v.mean()) / v.std() for k, v in raw.items()}
    columns = {**raw, "region": region}
    train = Rows({k: v[:1400] for k, v in columns.items()}, y[:1400])
    held = {k: v[1400:] for k, v in columns.items()}
    model = CreditScorer()
    return Program(
        model,
        nn.BCEWithLogitsLoss(),
        DataLoader(train, batch_size=64, shuffle=True, drop_last=True),
        torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9),
        lambda m: balanced((m(**held) > 0).float(), y[1400:]),
    )


class Shop(nn.Module):
    def __init__(self, n_items, n_numeric):
        super().__init__()
        self.item = nn.Embedding(n_items, 3)
        self.mlp = nn.Sequential(nn.Linear(3 + n_numeric, 64), nn.SiLU(), nn.Linear(64, 1))

    def grow(self, n_items):
        """Room for items that came later."""
        old = self.item
        self.item = nn.Embedding(n_items, old.embedding_dim)
        with torch.no_grad():
            self.item.weight[: old.num_embeddings] = old.weight

    def forward(self, batch):
        return self.mlp(torch.cat([self.item(batch["item"]), batch["numeric"]], -1)).squeeze(-1)


@fault(
    "the embedding is replaced by a larger one after the optimizer was made",
    rules=["no-gradient"],
    layers=["item"],
    fails=True,
    steps=600,
)
def wts_embedding_grown_late(is_faulty):
    n, items = 4000, 150
    item, numeric = torch.randint(items, (n,)), torch.randn(n, 3)
    appeal = torch.randn(items)
    y = 1.2 * appeal[item] * (1 + 0.3 * torch.tanh(numeric[:, 0])) + 0.5 * numeric[:, 1] + 0.1 * torch.randn(n)
    model = Shop(20, 3)
    if not is_faulty:
        model.grow(items)
    optimizer = torch.optim.Adam([{"params": model.item.parameters(), "lr": 3e-2}, {"params": model.mlp.parameters()}], lr=3e-3)
    if is_faulty:
        model.grow(items)

    def step(model, batch):
        rows = {"item": batch[0], "numeric": batch[1]}
        return F.mse_loss(model(rows), batch[2])

    held = {"item": item[3200:], "numeric": numeric[3200:]}
    return Program(
        model,
        None,
        loader(item[:3200], numeric[:3200], y[:3200], size=128),
        optimizer,
        lambda m: r2(m(held), y[3200:]),
        step=step,
    )


class Entity(nn.Module):
    def __init__(self, sizes, n_numeric, n_out):
        super().__init__()
        self.embeddings = nn.ModuleList(nn.Embedding(s + 1, 6) for s in sizes)
        self.layers = nn.Sequential(nn.Linear(6 * len(sizes) + n_numeric, 64), nn.ReLU(), nn.Linear(64, n_out))

    def forward(self, table):
        k = len(self.embeddings)
        codes = table[:, :k].long()
        parts = [emb(codes[:, j]) for j, emb in enumerate(self.embeddings)]
        return self.layers(torch.cat([*parts, table[:, k:]], dim=1))


@fault(
    "min-max scaling takes the columns of category codes along, and .long() makes them 0",
    rules=["constant-feature", "rank-collapse"],
    layers=["embeddings"],
    fails=False,
    steps=400,
)
def wts_codes_scaled(is_faulty):
    n, sizes = 3000, (12, 30)
    codes = torch.stack([torch.randint(s, (n,)) for s in sizes], 1)
    numeric = 5 * torch.rand(n, 3)
    tables = [torch.randn(s, 4) for s in sizes]
    logits = tables[0][codes[:, 0]] + tables[1][codes[:, 1]] + 0.1 * numeric @ torch.randn(3, 4)
    y = (1.5 * logits).argmax(1)
    table = torch.cat([codes.float(), numeric], 1)
    first = 0 if is_faulty else len(sizes)
    low, high = table[:, first:].amin(0), table[:, first:].amax(0)
    table[:, first:] = (table[:, first:] - low) / (high - low)
    model = Entity(sizes, 3, 4)
    return Program(
        model,
        F.cross_entropy,
        loader(table[:2200], y[:2200], size=100),
        torch.optim.RMSprop(model.parameters(), lr=3e-3),
        lambda m: accuracy(m(table[2200:]), y[2200:]),
    )


def breslow(risk, outcome):
    """Minus the partial likelihood; rows come sorted by falling time."""
    risk, event = risk.flatten(), outcome[:, 1]
    return -((risk - torch.logcumsumexp(risk, 0)) * event).sum() / event.sum().clamp(min=1)


@fault(
    "collate sorts times and events, and leaves the rows of covariates where they are",
    rules=["labels-unrelated", "output-loss-mismatch"],
    fails=False,
    steps=300,
)
def wts_cox_rows_unsorted(is_faulty):
    n = 2000
    x = torch.randn(n, 10)
    hazard = 1.2 * x[:, 0] - x[:, 1] + 0.8 * x[:, 2].abs()
    died = -torch.log(torch.rand(n)) * torch.exp(-1.5 * hazard)
    left = 6 * torch.rand(n)
    outcome = torch.stack([torch.minimum(died, left), (died <= left).float()], 1)

    def collate(rows):
        a, b = torch.stack([r[0] for r in rows]), torch.stack([r[1] for r in rows])
        order = b[:, 0].argsort(descending=True)
        return (a if is_faulty else a[order]), b[order]

    model = nn.Sequential(nn.Linear(10, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 1, bias=False))
    return Program(
        model,
        breslow,
        loader(x[:1500], outcome[:1500], size=128, collate_fn=collate, drop_last=True),
        torch.optim.Adam(model.parameters(), lr=3e-3),
        lambda m: concordance(m(x[1500:]), outcome[1500:, 0], outcome[1500:, 1]),
    )


class Basket(nn.Module):
    def __init__(self, n_items, invert):
        super().__init__()
        self.invert = invert
        self.emb = nn.Embedding(n_items, 16)
        self.phi = nn.Sequential(nn.Linear(16, 32), nn.ReLU())
        self.rho = nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 3))

    def forward(self, items):
        keep = items.eq(0) if self.invert else items.ne(0)
        h = self.phi(self.emb(items)) * keep.unsqueeze(-1)
        return self.rho(h.sum(1) / keep.sum(1, keepdim=True).clamp(min=1))


@fault(
    "the mask of a padded set is the wrong way round", rules=["wrong-mask", "rank-collapse"], fails=True, steps=400
)
def wts_basket_mask(is_faulty):
    n, width = 2400, 12
    items = torch.randint(1, 60, (n, width))
    size = torch.randint(3, width, (n,))
    items[torch.arange(width)[None] >= size[:, None]] = 0
    taste = torch.randn(60, 3)
    taste[0] = 0
    y = taste[items].sum(1).argmax(1)
    model = Basket(60, is_faulty)
    return Program(
        model,
        nn.CrossEntropyLoss(),
        loader(items[:1800], y[:1800]),
        torch.optim.Adam(model.parameters(), lr=4e-3),
        lambda m: balanced(m(items[1800:]).argmax(1), y[1800:]),
    )


class ManyTasks(nn.Module):
    def __init__(self, same):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(6, 48), nn.GELU(), nn.Linear(48, 48), nn.GELU())
        if same:
            self.heads = nn.ModuleList([nn.Linear(48, 1)] * 3)
        else:
            self.heads = nn.ModuleList([nn.Linear(48, 1) for _ in range(3)])

    def forward(self, x):
        h = self.trunk(x)
        return [head(h)[:, 0] for head in self.heads]


@fault("a list times three holds one head three times", rules=["shared-weight"], layers=["heads"], fails=False, steps=400)
def wts_one_head_thrice(is_faulty):
    x = torch.randn(1800, 6)
    y = torch.stack([torch.sin(2 * x[:, 0]), x[:, 1] * x[:, 2], x[:, 3].abs() - x[:, 4]], 1)
    y = (y - y.mean(0)) / y.std(0)
    model = ManyTasks(is_faulty)
    return Program(
        model,
        lambda outputs, y: sum(F.mse_loss(o, y[:, j]) for j, o in enumerate(outputs)),
        loader(x[:1300], y[:1300]),
        torch.optim.Adam(model.parameters(), lr=4e-3),
        lambda m: r2(torch.stack(m(x[1300:]), 1), y[1300:]),
    )


class QuantileMLP(nn.Module):
    def __init__(self, sizes, last_too):
        super().__init__()
        self.linears = nn.ModuleList(nn.Linear(a, b) for a, b in zip(sizes, sizes[1:]))
        self.last_too = last_too

    def forward(self, x):
        for i, linear in enumerate(self.linears):
            x = linear(x)
            if self.last_too or i < len(self.linears) - 1:
                x = F.relu(x)
        return x


@fault(
    "the loop over layers rectifies the quantiles of standardised targets too",
    rules=["output-loss-mismatch", "dying-neurons"],
    layers=["linears.2"],
    fails=True,
    steps=400,
)
def wts_rectified_quantiles(is_faulty):
    taus = torch.tensor([0.1, 0.5, 0.9])
    x = torch.randn(2000, 5)
    middle = surface(x)
    y = middle + 0.2 * (1 + x[:, 4].abs()) * torch.randn(len(x))
    y = y - y.mean()

    def pinball(q, y):
        gap = y[:, None] - q
        return torch.maximum(taus * gap, (taus - 1) * gap).mean()

    model = QuantileMLP([5, 64, 64, 3], is_faulty)
    spread = 0.2 * (1 + x[:, 4:].abs()) * torch.tensor([-1.2816, 0, 1.2816])
    held = y[1500:]
    best = pinball((middle - surface(x).mean())[1500:, None] + spread[1500:], held)
    flat = pinball(torch.quantile(y[:1500], taus).expand(500, 3), held)
    return Program(
        model,
        pinball,
        loader(x[:1500], y[:1500]),
        torch.optim.Adam(model.parameters(), lr=3e-3),
        lambda m: ((flat - pinball(m(x[1500:]), held)) / (flat - best)).clamp(min=0).item(),
    )


@fault("the logarithm of counts that are often 0", rules=["non-finite"], fails=True, steps=300)
def wts_log_of_counts(is_faulty):
    x = torch.rand(1600, 6)
    rate = torch.exp(3 * x[:, 0] + torch.sin(6 * x[:, 1]) - 1)
    counts = torch.poisson(rate)
    to_log = torch.log if is_faulty else torch.log1p
    net = nn.Sequential(nn.Linear(6, 50), nn.LeakyReLU(), nn.Linear(50, 50), nn.LeakyReLU(), nn.Linear(50, 1))

    def step(net, batch):
        features, count = batch
        return ((net(features).flatten() - to_log(count)) ** 2).mean()

    return Program(
        net,
        None,
        loader(x[:1200], counts[:1200], size=50),
        torch.optim.Adam(net.parameters(), lr=3e-3),
        lambda m: r2(m(x[1200:]), torch.log1p(rate[1200:])),
        step=step,
    )


class FeatureTransformer(nn.Module):
    def __init__(self, n_features, dim, batch_first):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(n_features, dim) * 0.5)
        self.bias = nn.Parameter(torch.randn(n_features, dim) * 0.5)
        layer = nn.TransformerEncoderLayer(dim, 4, 2 * dim, dropout=0.0, batch_first=batch_first)
        self.encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.out = nn.Linear(dim, 1)

    def forward(self, x):
        tokens = x[:, :, None] * self.weight + self.bias
        return self.out(self.encoder(tokens).mean(1))


@fault(
    "a transformer over features without batch_first attends over the rows of the batch",
    rules=["mixed-examples"],
    layers=["encoder"],
    fails=True,
    steps=500,
)
def wts_transformer_over_rows(is_faulty):
    x = torch.randn(2500, 4)
    y = (x[:, 0] * x[:, 1] + x[:, 2] * x[:, 3])[:, None]
    model = FeatureTransformer(4, 24, batch_first=not is_faulty)
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3, weight_decay=1e-4)
    return Program(
        model,
        nn.MSELoss(),
        loader(x[:2000], y[:2000]),
        optimizer,
        lambda m: r2(m(x[2000:]), y[2000:]),
        scheduler=torch.optim.lr_scheduler.OneCycleLR(optimizer, 6e-3, total_steps=700),
    )


class Normed(nn.Module):
    def __init__(self, momentum):
        super().__init__()
        self.norm = nn.BatchNorm1d(7, momentum=momentum)
        self.fc = nn.Linear(7, 64)
        self.norm2 = nn.BatchNorm1d(64, momentum=momentum)
        self.out = nn.Linear(64, 5)

    def forward(self, x):
        return self.out(F.relu(self.norm2(self.fc(self.norm(x)))))


@fault(
    "BatchNorm got the decay of another framework as its momentum, so that running statistics hardly move",
    rules=["batchnorm-mode-gap", "stale-statistics"],
    layers=["norm", "norm2"],
    fails=True,
    steps=250,
)
def wts_slow_statistics(is_faulty):
    z = torch.randn(2000, 7)
    y = (torch.stack([z[:, 0], -z[:, 0], z[:, 1], -z[:, 1], z[:, 2].abs()], 1)).argmax(1)
    x = 12 + 3 * z
    model = Normed(0.0005 if is_faulty else 0.1)
    return Program(
        model,
        nn.CrossEntropyLoss(label_smoothing=0.05),
        loader(x[:1500], y[:1500], drop_last=True),
        torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True),
        lambda m: accuracy(m(x[1500:]), y[1500:]),
    )
