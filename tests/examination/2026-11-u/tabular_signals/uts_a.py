"""Faults in networks for tables, ranking and recommendation."""
import torch
import torch.nn.functional as F
from program import Program, fault
from sklearn.datasets import load_digits
from torch import nn
from uts_tools import uts_acc, uts_clusters, uts_gen, uts_loader, uts_r2, uts_table


@fault(
    "the network returns (batch, 1), the targets are (batch,), so that the squared error is over all pairs",
    rules=("output-loss-mismatch",), fails=True, steps=300,
)
def uts_load_forecast_pairs(is_faulty):
    x, y = uts_table(1600, 1)
    vx, vy = uts_table(500, 2)
    net = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 1))

    def criterion(out, target):
        if not is_faulty:
            out = out.squeeze(1)
        return ((out - target) ** 2).mean()

    return Program(net, criterion, uts_loader(x, y, size=64), torch.optim.Adam(net.parameters(), 3e-3),
                   lambda m: uts_r2(m(vx), vy))


@fault(
    "the table is grouped by class and the loader does not shuffle",
    rules=("sorted-batches",), fails=True, steps=240,
)
def uts_digits_grouped(is_faulty):
    digits = load_digits()
    x, y = torch.tensor(digits.data, dtype=torch.float32) / 16, torch.tensor(digits.target)
    order = torch.randperm(len(x), generator=uts_gen(5))
    x, y = x[order], y[order]
    tx, ty, vx, vy = x[:1400], y[:1400], x[1400:], y[1400:]
    if is_faulty:  # as the export comes from the warehouse: ORDER BY label
        by = torch.argsort(ty)
        tx, ty = tx[by], ty[by]
    net = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    return Program(net, F.cross_entropy, uts_loader(tx, ty, size=32, shuffle=not is_faulty),
                   torch.optim.SGD(net.parameters(), 0.1, momentum=0.9), lambda m: uts_acc(m(vx), vy))


class UtsTransfer(nn.Module):
    def __init__(self, d, classes):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(d, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU())
        self.head = nn.Linear(128, classes)

    def forward(self, x):
        return self.head(self.trunk(x))


@fault(
    "the head is replaced after the optimizer has been made, so that the new one is never updated",
    rules=("no-gradient",), layers=("head",), fails=True, steps=250,
)
def uts_head_after_optimizer(is_faulty):
    x, y = uts_clusters(1500, 6)
    vx, vy = uts_clusters(500, 7)
    net = UtsTransfer(12, 20)
    for p in net.trunk.parameters():
        p.requires_grad_(False)
    if not is_faulty:
        net.head = nn.Linear(128, 5)
    opt = torch.optim.Adam([p for p in net.parameters() if p.requires_grad], 5e-3)
    if is_faulty:
        net.head = nn.Linear(128, 5)
    return Program(net, F.cross_entropy, uts_loader(x, y, size=50), opt, lambda m: uts_acc(m(vx), vy))


class UtsHashNet(nn.Module):
    """A binary code of a row, and a reader of the code."""

    def __init__(self, straight_through):
        super().__init__()
        self.straight_through = straight_through
        self.encoder = nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 6))
        self.reader = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 5))

    def forward(self, x):
        p = torch.sigmoid(self.encoder(x))
        bits = (p > 0.5).float()
        if self.straight_through:
            bits = bits + p - p.detach()
        return self.reader(bits)


@fault(
    "hard bits without a straight-through estimate: the encoder gets no gradient",
    rules=("no-gradient",), layers=("encoder",), fails=False, steps=400,
)
def uts_binary_codes(is_faulty):
    x, y = uts_clusters(1500, 8)
    vx, vy = uts_clusters(500, 9)
    net = UtsHashNet(not is_faulty)
    return Program(net, F.cross_entropy, uts_loader(x, y, size=64), torch.optim.Adam(net.parameters(), 5e-3),
                   lambda m: uts_acc(m(vx), vy))


class UtsFactors(nn.Module):
    def __init__(self, users, items, k):
        super().__init__()
        self.user, self.item = nn.Embedding(users, k), nn.Embedding(items, k)
        self.user_bias, self.item_bias = nn.Embedding(users, 1), nn.Embedding(items, 1)
        for bias in (self.user_bias, self.item_bias):
            nn.init.zeros_(bias.weight)

    def forward(self, user, item):
        dot = (self.user(user) * self.item(item)).sum(-1)
        return dot + self.user_bias(user).squeeze(-1) + self.item_bias(item).squeeze(-1)


def uts_ratings(users=60, items=50, k=6, per=0.7):
    g = uts_gen(10)
    a, b = torch.randn(users, k, generator=g), torch.randn(items, k, generator=g)
    r = a @ b.T / 2.5
    u, i = torch.meshgrid(torch.arange(users), torch.arange(items), indexing="ij")
    u, i, r = u.reshape(-1), i.reshape(-1), r.reshape(-1) + 0.05 * torch.randn(users * items, generator=g)
    order = torch.randperm(len(r), generator=g)
    cut = int(per * len(r))
    return [(u[s], i[s], r[s]) for s in (order[:cut], order[cut:])]


@fault(
    "all factors of users and items start at the same constant, so that the factors stay alike",
    rules=("symmetric-initialisation", "bad-initialisation"), layers=("user", "item"), fails=True, steps=500,
)
def uts_factors_alike(is_faulty):
    (u, i, r), (vu, vi, vr) = uts_ratings()
    net = UtsFactors(60, 50, 8)
    for table in (net.user, net.item):
        if is_faulty:
            nn.init.constant_(table.weight, 0.3)
        else:
            nn.init.normal_(table.weight, std=0.3)

    def step(model, batch):
        a, b, target = batch
        return F.mse_loss(model(a, b), target)

    return Program(net, None, uts_loader(u, i, r, size=256), torch.optim.Adam(net.parameters(), 0.02),
                   lambda m: uts_r2(m(vu, vi), vr), step=step)


def uts_perceptron(sizes, act, norm=None):
    layers = []
    for a, b in zip(sizes[:-2], sizes[1:-1]):
        layers.append(nn.Linear(a, b))
        if norm:
            layers.append(norm(b))
        layers.append(act())
    return nn.Sequential(*layers, nn.Linear(sizes[-2], sizes[-1]))


@fault(
    "eight sigmoid layers, through which hardly any gradient comes back",
    rules=("vanishing-gradient", "rank-collapse", "saturated-activation"), fails=True, steps=300,
)
def uts_churn_sigmoids(is_faulty):
    x, y = uts_clusters(1500, 11)
    vx, vy = uts_clusters(500, 12)
    net = uts_perceptron([12] + [32] * 8 + [5], nn.Sigmoid if is_faulty else nn.ReLU)
    return Program(net, nn.CrossEntropyLoss(), uts_loader(x, y, size=64), torch.optim.Adam(net.parameters(), 2e-3),
                   lambda m: uts_acc(m(vx), vy))


@fault(
    "BatchNorm over batches of two rows",
    rules=("small-batch-batchnorm", "batchnorm-mode-gap", "mixed-examples"), fails=False, steps=600,
)
def uts_pairs_of_rows(is_faulty):
    x, y = uts_table(1600, 13)
    vx, vy = uts_table(500, 14)
    net = uts_perceptron([8, 48, 48, 1], nn.ReLU, nn.BatchNorm1d if is_faulty else nn.LayerNorm)
    return Program(net, lambda o, t: F.mse_loss(o[:, 0], t), uts_loader(x, y, size=2),
                   torch.optim.Adam(net.parameters(), 1e-3), lambda m: uts_r2(m(vx), vy))


@fault(
    "momentum=0.001 of the BatchNorm (taken over from another framework), so that running statistics hardly move",
    rules=("batchnorm-mode-gap", "stale-statistics"), fails=True, steps=200,
)
def uts_bn_momentum(is_faulty):
    def data(n, seed):
        x, y = uts_table(n, seed)
        return 4.0 + 2.5 * x, y

    x, y = data(1600, 15)
    vx, vy = data(500, 16)
    momentum = 0.001 if is_faulty else 0.1
    net = nn.Sequential(nn.BatchNorm1d(8, momentum=momentum), nn.Linear(8, 64), nn.BatchNorm1d(64, momentum=momentum),
                        nn.ReLU(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 1), nn.Flatten(0))
    return Program(net, F.mse_loss, uts_loader(x, y, size=64, drop_last=True),
                   torch.optim.Adam(net.parameters(), 5e-3), lambda m: uts_r2(m(vx), vy))


class UtsEntity(nn.Module):
    """Embeddings of categories next to numbers."""

    def __init__(self, sizes, numbers, is_always_on):
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(n, 6) for n in sizes)
        self.mix = nn.Linear(6 * len(sizes) + numbers, 64)
        self.out = nn.Linear(64, 1)
        self.is_always_on = is_always_on

    def drop(self, h, p):
        return F.dropout(h, p) if self.is_always_on else F.dropout(h, p, self.training)

    def forward(self, categories, numbers):
        e = torch.cat([t(categories[:, k]) for k, t in enumerate(self.tables)], 1)
        e = self.drop(e, 0.3)
        h = self.drop(torch.relu(self.mix(torch.cat([e, numbers], 1))), 0.3)
        return self.out(h)[:, 0]


def uts_sales(n, seed):
    w = uts_gen(99)
    shop, item = torch.randn(12, generator=w), torch.randn(20, generator=w)
    g = uts_gen(seed)
    c = torch.stack([torch.randint(12, (n,), generator=g), torch.randint(20, (n,), generator=g)], 1)
    z = torch.randn(n, 3, generator=g)
    y = shop[c[:, 0]] + item[c[:, 1]] + z[:, 0] * shop[c[:, 0]].sign() + 0.1 * torch.randn(n, generator=g)
    return c, z, y / 1.7


@fault(
    "F.dropout without training=, so that it stays on when the model is used",
    rules=("dropout-in-eval",), fails=False, steps=400,
)
def uts_sales_dropout(is_faulty):
    c, z, y = uts_sales(2000, 17)
    vc, vz, vy = uts_sales(600, 18)
    net = UtsEntity((12, 20), 3, is_faulty)
    batches = [({"categories": c[k : k + 100], "numbers": z[k : k + 100]}, y[k : k + 100]) for k in range(0, 2000, 100)]
    return Program(net, nn.MSELoss(), batches, torch.optim.Adam(net.parameters(), 5e-3),
                   lambda m: uts_r2(m(vc, vz), vy))


@fault(
    "weight_decay=0.3 in Adam, which pulls all weights to zero",
    rules=("weight-decay-dominates",), fails=True, steps=300,
)
def uts_risk_decay(is_faulty):
    x, y = uts_table(1600, 19)
    vx, vy = uts_table(500, 20)
    net = uts_perceptron([8, 64, 32, 1], nn.ELU)
    opt = torch.optim.Adam(net.parameters(), lr=3e-3, weight_decay=0.3 if is_faulty else 1e-5)
    return Program(net, lambda o, t: F.smooth_l1_loss(o.squeeze(-1), t), uts_loader(x, y, size=64), opt,
                   lambda m: uts_r2(m(vx), vy))


@fault(
    "betas of Adam the wrong way around",
    rules=("optimizer-setting", "diverging", "learning-rate-too-high"), fails=False, steps=150,
)
def uts_betas_swapped(is_faulty):
    x, y = uts_table(1600, 21)
    vx, vy = uts_table(500, 22)
    net = uts_perceptron([8, 64, 64, 1], nn.GELU)
    opt = torch.optim.AdamW(net.parameters(), 1e-2, betas=(0.999, 0.9) if is_faulty else (0.9, 0.999))
    return Program(net, lambda o, t: F.mse_loss(o[:, 0], t), uts_loader(x, y, size=64), opt,
                   lambda m: uts_r2(m(vx), vy))


class UtsAutoRec(nn.Module):
    def __init__(self, items):
        super().__init__()
        self.encode = nn.Linear(items, 12)
        self.decode = nn.Linear(12, items)

    def forward(self, seen):
        centred = torch.where(seen != 0, seen - 3.0, torch.zeros_like(seen))
        return 3.0 + self.decode(F.elu(self.encode(centred)))


@fault(
    "items without a rating are asked to be reconstructed as zero",
    rules=("padding-in-loss", "output-loss-mismatch"), fails=True, steps=400,
)
def uts_unrated_items(is_faulty):
    g = uts_gen(23)
    a, b = torch.randn(900, 2, generator=g), torch.randn(40, 2, generator=g)
    ratings = 3 + 0.7 * (a @ b.T) + 0.1 * torch.randn(900, 40, generator=g)
    is_known = torch.rand(900, 40, generator=g) < 0.5
    seen = torch.where(is_known, ratings, torch.zeros(()))
    tx, vx = seen[:700], seen[700:]

    def criterion(out, target):
        error = (out - target) ** 2
        if is_faulty:
            return error.mean()
        known = (target != 0).float()
        return (error * known).sum() / known.sum()

    def score(m):
        out = m(vx)
        hidden = ~is_known[700:]
        return uts_r2(out[hidden], ratings[700:][hidden])

    net = UtsAutoRec(40)
    return Program(net, criterion, uts_loader(tx, tx, size=50), torch.optim.Adam(net.parameters(), 1e-2), score)


class UtsTwoTasks(nn.Module):
    def __init__(self, is_shared):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU())
        self.revenue = nn.Linear(32, 1)
        self.returns = self.revenue if is_shared else nn.Linear(32, 1)

    def forward(self, x):
        h = self.body(x)
        return {"revenue": self.revenue(h)[:, 0], "returns": self.returns(h)[:, 0]}


@fault(
    "both tasks have been given one and the same head",
    rules=("shared-weight",), layers=("revenue", "returns"), fails=True, steps=300,
)
def uts_one_head_for_two(is_faulty):
    def data(n, seed):
        x, y = uts_table(n, seed)
        z = torch.cos(x[:, 5]) * 1.4 + x[:, 6] * 0.8 - 0.5 * y
        return x, torch.stack([y, z - 0.5], 1)

    x, y = data(1600, 24)
    vx, vy = data(500, 25)

    def criterion(out, target):
        return F.mse_loss(out["revenue"], target[:, 0]) + F.mse_loss(out["returns"], target[:, 1])

    def score(m):
        out = m(vx)
        return 0.5 * (uts_r2(out["revenue"], vy[:, 0]) + uts_r2(out["returns"], vy[:, 1]))

    net = UtsTwoTasks(is_faulty)
    return Program(net, criterion, uts_loader(x, y, size=64), torch.optim.Adam(net.parameters(), 3e-3), score)


class UtsTokens(nn.Module):
    """Every number of a row becomes a token."""

    def __init__(self, d, width, is_normed_first):
        super().__init__()
        self.norm = nn.LayerNorm(1) if is_normed_first else nn.LayerNorm(width)
        self.is_normed_first = is_normed_first
        self.embed = nn.Parameter(0.5 * torch.randn(d, width))
        self.bias = nn.Parameter(0.5 * torch.randn(d, width))
        self.layer = nn.TransformerEncoderLayer(width, 2, 32, dropout=0.0, batch_first=True)
        self.out = nn.Linear(d * width, 1)

    def forward(self, x):
        x = x.unsqueeze(-1)
        if self.is_normed_first:
            x = self.norm(x)
        h = x * self.embed + self.bias
        if not self.is_normed_first:
            h = self.norm(h)
        return self.out(self.layer(h).flatten(1)).squeeze(-1)


@fault(
    "LayerNorm over a dimension of one: every number becomes the same",
    rules=("rank-collapse", "constant-feature", "loss-not-decreasing", "labels-unrelated", "no-gradient"),
    layers=("norm",), fails=True, steps=250,
)
def uts_norm_of_one(is_faulty):
    x, y = uts_table(1600, 26)
    vx, vy = uts_table(400, 27)
    net = UtsTokens(8, 16, is_faulty)
    return Program(net, nn.MSELoss(), uts_loader(x, y, size=32), torch.optim.Adam(net.parameters(), 3e-3),
                   lambda m: uts_r2(m(vx), vy))


@fault(
    "the model is cast to bfloat16, in which small steps of its weights are rounded away",
    rules=("lost-updates", "learning-rate-too-low"), fails=False, steps=600,
)
def uts_bfloat_weights(is_faulty):
    x, y = uts_clusters(1600, 28)
    vx, vy = uts_clusters(500, 29)
    dtype = torch.bfloat16 if is_faulty else torch.float32
    net = uts_perceptron([12, 256, 256, 5], nn.ReLU).to(dtype)
    opt = torch.optim.Adam(net.parameters(), 2e-5)
    return Program(net, lambda o, t: F.cross_entropy(o.float(), t), uts_loader(x.to(dtype), y, size=64), opt,
                   lambda m: uts_acc(m(vx.to(dtype)), vy))


@fault(
    "the last batch of an epoch holds one row, on which BatchNorm raises",
    rules=("model-fails", "small-batch-batchnorm"), fails=True, steps=300,
)
def uts_left_over_row(is_faulty):
    x, y = uts_table(513, 30)
    vx, vy = uts_table(500, 31)
    net = nn.Sequential(nn.Linear(8, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 64), nn.BatchNorm1d(64),
                        nn.ReLU(), nn.Linear(64, 1))
    return Program(net, lambda o, t: F.mse_loss(o.squeeze(1), t), uts_loader(x, y, size=64, drop_last=not is_faulty),
                   torch.optim.Adam(net.parameters(), 2e-3), lambda m: uts_r2(m(vx), vy))


@fault(
    "gas sensors that nearly agree are fed as they are; the target hangs on their small differences",
    rules=("ill-conditioned-input", "learning-rate-too-low"), fails=False, steps=300,
)
def uts_agreeing_sensors(is_faulty):
    mix = torch.randn(10, 10, generator=uts_gen(32))

    def data(n, seed):
        g = uts_gen(seed)
        z = torch.randn(n, 10, generator=g)
        common = torch.randn(n, 1, generator=g)
        x = common + 0.08 * z @ mix / 3
        y = torch.tanh(z[:, 0] + z[:, 1]) + 0.5 * z[:, 2]
        return x, y + 0.05 * torch.randn(n, generator=g)

    x, y = data(2000, 33)
    vx, vy = data(500, 34)
    x, vx = (x - x.mean(0)) / x.std(0), (vx - x.mean(0)) / x.std(0)
    if not is_faulty:  # whitening
        _, s, v = torch.linalg.svd(x, full_matrices=False)
        turn = v.T / s * len(x) ** 0.5
        x, vx = x @ turn, vx @ turn
    net = nn.Sequential(nn.Linear(10, 48), nn.Tanh(), nn.Linear(48, 1), nn.Flatten(0))
    return Program(net, F.mse_loss, uts_loader(x, y, size=64), torch.optim.SGD(net.parameters(), 0.05, momentum=0.9),
                   lambda m: uts_r2(m(vx), vy))


@fault(
    "prices in single currency units as targets, with a rate for targets near one",
    rules=("unscaled-target",), fails=True, steps=300,
)
def uts_flat_prices(is_faulty):
    x, y = uts_table(1600, 35)
    vx, vy = uts_table(500, 36)
    price, vprice = 240_000 + 60_000 * y, 240_000 + 60_000 * vy
    shift, scale = (0.0, 1.0) if is_faulty else (price.mean(), price.std())
    net = uts_perceptron([8, 64, 32, 1], nn.ReLU)
    return Program(net, lambda o, t: F.l1_loss(o[:, 0], t), uts_loader(x, (price - shift) / scale, size=64),
                   torch.optim.Adam(net.parameters(), 3e-3), lambda m: uts_r2(m(vx)[:, 0] * scale + shift, vprice))
