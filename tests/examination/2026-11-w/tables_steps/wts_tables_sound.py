"""Sound tables."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader
from wts_data import accuracy, balanced, concordance, loader, r2, surface

from program import Program, sound


@sound("nothing: a regression with AdamW", steps=400, least=0.85)
def wts_plain_regression():
    x = torch.randn(2000, 6)
    y = surface(x)[:, None]
    model = nn.Sequential(nn.Linear(6, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))
    return Program(
        model,
        nn.MSELoss(),
        loader(x[:1500], y[:1500]),
        torch.optim.AdamW(model.parameters(), lr=3e-3),
        lambda m: r2(m(x[1500:]), y[1500:]),
    )


@sound("a third of the labels are drawn anew, so that the loss stays high", steps=400, least=0.8)
def wts_noisy_labels():
    x = torch.randn(3000, 5)
    true = torch.stack([x[:, 0] + x[:, 1], x[:, 2] * 2, -x[:, 0] - x[:, 2]], 1).argmax(1)
    y = torch.where(torch.rand(len(x)) < 0.33, torch.randint(3, (len(x),)), true)
    model = nn.Sequential(nn.Linear(5, 40), nn.ReLU(), nn.Dropout(0.1), nn.Linear(40, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    return Program(
        model,
        nn.CrossEntropyLoss(),
        loader(x[:2400], y[:2400]),
        optimizer,
        lambda m: accuracy(m(x[2400:]), true[2400:]),
        scheduler=torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 400),
    )


@sound("three in a hundred rows are positive; some batches hold none", steps=500, least=0.8)
def wts_rare_fraud():
    n = 6000
    x = torch.randn(n, 8)
    strength = x[:, 0] + x[:, 1] * (x[:, 2] > 0) + 0.1 * torch.randn(n)
    y = (strength > strength.quantile(0.97)).float()
    model = nn.Sequential(nn.Linear(8, 48), nn.ReLU(), nn.Linear(48, 1))
    weight = torch.tensor(0.97 / 0.03)

    def step(model, batch):
        rows, label = batch
        return F.binary_cross_entropy_with_logits(model(rows)[:, 0], label, pos_weight=weight)

    return Program(
        model,
        None,
        loader(x[:4500], y[:4500], size=64),
        torch.optim.Adam(model.parameters(), lr=2e-3),
        lambda m: balanced((m(x[4500:])[:, 0] > 0).float(), y[4500:]),
        step=step,
    )


class Claims(nn.Module):
    def __init__(self):
        super().__init__()
        self.area = nn.Embedding(9, 4)
        self.net = nn.Sequential(nn.Linear(4 + 4, 40), nn.Tanh(), nn.Linear(40, 1))

    def forward(self, car, area, exposure):
        return self.net(torch.cat([car, self.area(area)], 1)).squeeze(1) + exposure.log()


class Policies(torch.utils.data.Dataset):
    def __init__(self, car, area, exposure, count):
        self.table = car, area, exposure, count

    def __len__(self):
        return len(self.table[0])

    def __getitem__(self, i):
        car, area, exposure, count = (column[i] for column in self.table)
        return {"car": car, "area": area, "exposure": exposure}, count


@sound("most counts are 0, and the loss is Poisson's with an offset, below 0 in part", steps=500, least=0.7)
def wts_claims_mostly_zero():
    n = 5000
    car, area, exposure = torch.randn(n, 4), torch.randint(9, (n,)), 0.2 + 0.8 * torch.rand(n)
    log_rate = 0.9 * torch.sin(car[:, 0]) + 0.7 * car[:, 1] + 0.6 * torch.randn(9)[area] - 0.7
    count = torch.poisson(exposure * log_rate.exp())
    model = Claims()
    train = Policies(car[:4000], area[:4000], exposure[:4000], count[:4000])
    return Program(
        model,
        nn.PoissonNLLLoss(log_input=True),
        DataLoader(train, batch_size=128, shuffle=True),
        torch.optim.Adam(model.parameters(), lr=4e-3),
        lambda m: r2(m(car[4000:], area[4000:], torch.ones(1000)), log_rate[4000:]),
    )


class Quantiles(nn.Module):
    """The middle one, and distances to the others that cannot be negative."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(5, 64), nn.SiLU(), nn.Linear(64, 64), nn.SiLU())
        self.middle, self.apart = nn.Linear(64, 1), nn.Linear(64, 2)

    def forward(self, x):
        h = self.body(x)
        mid, gap = self.middle(h), F.softplus(self.apart(h))
        return torch.cat([mid - gap[:, :1], mid, mid + gap[:, 1:]], 1)


@sound("quantiles, trained; the loss no longer falls", trained=400, steps=600, least=0.7)
def wts_quantiles_trained():
    taus = torch.tensor([0.05, 0.5, 0.95])
    x = torch.randn(2500, 5)
    scale = 0.3 * torch.exp(0.5 * x[:, 4])
    y = surface(x) + scale * torch.randn(len(x))

    def loss(q, y):
        gap = y[:, None] - q
        return torch.maximum(taus * gap, (taus - 1) * gap).sum(1).mean()

    model = Quantiles()
    best = loss(surface(x)[2000:, None] + scale[2000:, None] * torch.tensor([-1.645, 0, 1.645]), y[2000:])
    flat = loss(y[:2000].quantile(taus).expand(500, 3), y[2000:])
    return Program(
        model,
        loss,
        loader(x[:2000], y[:2000]),
        torch.optim.Adam(model.parameters(), lr=2e-3),
        lambda m: ((flat - loss(m(x[2000:]), y[2000:])) / (flat - best)).item(),
    )


@sound("Cox's loss compares the rows of a batch with each other", steps=300, least=0.75)
def wts_cox():
    n = 2400
    x = torch.randn(n, 6)
    hazard = 1.4 * x[:, 0] + 1.2 * x[:, 1] * x[:, 2].sign()
    died, left = -torch.log(torch.rand(n)) * torch.exp(-hazard), 8 * torch.rand(n)
    time, event = torch.minimum(died, left), (died <= left).float()
    net = nn.Sequential(nn.Linear(6, 48), nn.ReLU(), nn.Linear(48, 1, bias=False))

    def step(net, batch):
        rows, t, e = batch
        risk = net(rows).squeeze(1)
        at_risk = (t[None, :] >= t[:, None]).float()
        log_sum = torch.logsumexp(risk[None, :] + at_risk.clamp(min=1e-30).log(), dim=1)
        return ((log_sum - risk) * e).sum() / e.sum()

    return Program(
        net,
        None,
        loader(x[:1800], time[:1800], event[:1800], size=100),
        torch.optim.AdamW(net.parameters(), lr=5e-3, weight_decay=1e-3),
        lambda m: concordance(m(x[1800:]), time[1800:], event[1800:]),
        step=step,
    )


class ListRanker(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.embed = nn.Linear(d, 32)
        self.attention = nn.MultiheadAttention(32, 2, batch_first=True)
        self.score = nn.Sequential(nn.LayerNorm(32), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 1))

    def forward(self, documents, padded):
        h = self.embed(documents)
        h = h + self.attention(h, h, h, key_padding_mask=padded, need_weights=False)[0]
        return self.score(h).squeeze(-1).masked_fill(padded, -1e9)


@sound("lists padded to one length, whose padding gets scores of −1e9 on purpose", steps=400, least=0.75)
def wts_ranked_lists():
    n, width, d = 1600, 10, 6
    documents = torch.randn(n, width, d)
    padded = torch.arange(width)[None] >= torch.randint(4, width + 1, (n,))[:, None]
    documents[padded] = 0
    relevance = (documents[..., 0] + documents[..., 1].abs()).masked_fill(padded, -torch.inf)
    best = relevance.argmax(1)
    model = ListRanker(d)

    def step(model, batch):
        docs, pad, clicked = batch
        return F.cross_entropy(model(docs, pad), clicked)

    return Program(
        model,
        None,
        loader(documents[:1200], padded[:1200], best[:1200], size=50),
        torch.optim.Adam(model.parameters(), lr=3e-3),
        lambda m: accuracy(m(documents[1200:], padded[1200:]), best[1200:]),
        step=step,
    )


class Factors(nn.Module):
    def __init__(self, users, items, k):
        super().__init__()
        self.user, self.item = nn.Embedding(users, k), nn.Embedding(items, k)
        self.user_bias, self.item_bias = nn.Embedding(users, 1), nn.Embedding(items, 1)
        for table in (self.user, self.item):
            nn.init.normal_(table.weight, std=0.1)
        for table in (self.user_bias, self.item_bias):
            nn.init.zeros_(table.weight)

    def forward(self, pair):
        u, i = pair.unbind(1)
        return (self.user(u) * self.item(i)).sum(1) + (self.user_bias(u) + self.item_bias(i)).squeeze(1)


@sound("factors of users and items with nothing nonlinear; most rows of a table get no gradient", steps=600, least=0.7)
def wts_matrix_factors():
    users, items, n = 120, 80, 9000
    a, b, c = torch.randn(users, 2), torch.randn(items, 2), torch.randn(items)
    pair = torch.stack([torch.randint(users, (n,)), torch.randint(items, (n,))], 1)
    y = (a[pair[:, 0]] * b[pair[:, 1]]).sum(1) + c[pair[:, 1]] + 0.1 * torch.randn(n)
    model = Factors(users, items, 4)
    return Program(
        model,
        nn.MSELoss(),
        loader(pair[:7500], y[:7500], size=128),
        torch.optim.Adam(model.parameters(), lr=1e-2),
        lambda m: r2(m(pair[7500:]), y[7500:]),
    )


class Unscaling(nn.Module):
    """Works in standard units, and speaks in those of the data."""

    def __init__(self, x, y):
        super().__init__()
        for name, value in (("mx", x.mean(0)), ("sx", x.std(0)), ("my", y.mean()), ("sy", y.std())):
            self.register_buffer(name, value)
        self.net = nn.Sequential(nn.Linear(x.shape[1], 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))

    def forward(self, x):
        return self.my + self.sy * self.net((x - self.mx) / self.sx).squeeze(1)


@sound("raw inputs and raw targets of 10⁵, which the model scales itself; the loss is of 10⁴", steps=500, least=0.85)
def wts_scales_within():
    z = torch.randn(1800, 4)
    x = z * torch.tensor([3e4, 12.0, 0.02, 400.0]) + torch.tensor([6e4, 40.0, 0.1, 1500.0])
    y = 250_000 + 80_000 * surface(z)
    model = Unscaling(x[:1400], y[:1400])
    return Program(
        model,
        nn.L1Loss(),
        loader(x[:1400], y[:1400]),
        torch.optim.Adam(model.parameters(), lr=3e-3),
        lambda m: r2(m(x[1400:]), y[1400:]),
    )


class Block(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(d), nn.Linear(d, 2 * d), nn.Linear(2 * d, d)
        nn.init.zeros_(self.down.weight)
        nn.init.zeros_(self.down.bias)

    def forward(self, x):
        return x + self.down(F.gelu(self.up(self.norm(x))))


@sound("residual branches and the output start at 0: nothing below the last layer has a gradient at first", steps=400, least=0.8)
def wts_residual_zeros():
    x = torch.randn(2000, 5)
    y = surface(x)
    model = nn.Sequential(nn.Linear(5, 32), Block(32), Block(32), Block(32), nn.Linear(32, 1), nn.Flatten(0))
    nn.init.zeros_(model[4].weight)
    nn.init.zeros_(model[4].bias)
    return Program(
        model,
        nn.HuberLoss(),
        loader(x[:1500], y[:1500]),
        torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.05),
        lambda m: r2(m(x[1500:]), y[1500:]),
    )


@sound("a sum over the batch, at a rate that makes up for it", steps=500, least=0.8)
def wts_sum_at_low_rate():
    x = torch.randn(1600, 6)
    y = torch.stack([torch.sin(x[:, 0]) + x[:, 1], x[:, 2].abs()], 1)
    model = nn.Sequential(nn.Linear(6, 50), nn.Tanh(), nn.Linear(50, 2))
    return Program(
        model,
        lambda out, y: 0.5 * (out - y).square().sum(),
        loader(x[:1200], y[:1200], size=32),
        torch.optim.SGD(model.parameters(), lr=5e-4, momentum=0.9),
        lambda m: r2(m(x[1200:]), y[1200:]),
    )


@sound("a table of codes with many that occur once or never, and a padding row that stays 0", steps=500, least=0.75)
def wts_rare_categories():
    n, codes = 3500, 400
    often = (torch.rand(n) ** 4 * codes).long()
    missing = torch.rand(n) < 0.1
    effect = torch.randn(codes)
    numeric = torch.randn(n, 3)
    y = (effect[often].masked_fill(missing, 0.0) + numeric[:, 0] > 0).long()
    code = (often + 1).masked_fill(missing, 0)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.code = nn.Embedding(codes + 1, 8, padding_idx=0)
            self.out = nn.Sequential(nn.Linear(11, 48), nn.ReLU(), nn.Linear(48, 2))

        def forward(self, row):
            return self.out(torch.cat([self.code(row["code"]), row["numeric"]], 1))

    model = Net()
    held = {"code": code[2800:], "numeric": numeric[2800:]}
    return Program(
        model,
        None,
        loader(code[:2800], numeric[:2800], y[:2800], size=100),
        torch.optim.Adam(model.parameters(), lr=4e-3),
        lambda m: accuracy(m(held), y[2800:]),
        step=lambda m, b: F.cross_entropy(m({"code": b[0], "numeric": b[1]}), b[2]),
    )
