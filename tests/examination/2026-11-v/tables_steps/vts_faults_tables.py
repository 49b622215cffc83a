"""Faults in programs on tables."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from program import Program, fault
from torch import nn
from torch.utils.data import DataLoader
from vts_data import VtsDicts, vts_acc, vts_loader, vts_r2, vts_rank_corr, vts_relation


class TripRate(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.hidden1, self.hidden2 = nn.Linear(d, 64), nn.Linear(64, 32)
        self.rate = nn.Linear(32, 1)

    def forward(self, x):
        return F.softplus(self.rate(F.relu(self.hidden2(F.relu(self.hidden1(x))))))


@fault(
    "a Poisson likelihood left at taking logarithms of rates, while the network returns rates",
    rules=["output-loss-mismatch"],
    fails=True,
    steps=400,
)
def vts_trip_counts(is_faulty):
    f = vts_relation(6, pair=0.2)
    x, xt = torch.randn(4000, 6), torch.randn(600, 6)
    y = torch.poisson((0.9 * f(x) - 0.5).exp())
    true = (0.9 * f(xt) - 0.5).exp()
    net = TripRate(6)

    def deviance(rate):
        rate = rate.clamp(min=1e-4)
        return (true * (true / rate).log() - true + rate).mean()

    return Program(
        net, nn.PoissonNLLLoss() if is_faulty else nn.PoissonNLLLoss(log_input=False), vts_loader(x, y, batch=100),
        torch.optim.Adam(net.parameters(), lr=2e-3),
        lambda m: max(0.0, (1 - deviance(m(xt)) / deviance(true.mean())).item()),
    )


class StoreSales(nn.Module):
    def __init__(self, sizes, d_num, dim=6):
        super().__init__()
        self.emb = nn.ModuleList(nn.Embedding(s, dim) for s in sizes)
        for e in self.emb:
            nn.init.normal_(e.weight, std=0.01)
        self.norm = nn.LayerNorm(d_num)
        self.trunk = nn.Sequential(nn.Linear(dim * len(sizes) + d_num, 64), nn.GELU(), nn.Linear(64, 32), nn.GELU())
        self.head = nn.Linear(32, 1)

    def forward(self, cats, nums):
        e = [emb(cats[:, i]) for i, emb in enumerate(self.emb)]
        return self.head(self.trunk(torch.cat([*e, self.norm(nums)], 1))).squeeze(1)


@fault(
    "parameter groups that leave out the embeddings",
    rules=["no-gradient"],
    layers=["emb"],
    fails=False,
    steps=500,
)
def vts_store_groups(is_faulty):
    sizes, n = [30, 12, 7], 2560
    effects = [torch.randn(s) for s in sizes]
    w = torch.randn(4) * 0.25

    def sample(n):
        cats = torch.stack([torch.randint(0, s, (n,)) for s in sizes], 1)
        nums = torch.randn(n, 4)
        y = sum(e[cats[:, i]] for i, e in enumerate(effects)) + nums @ w
        return {"cats": cats, "nums": nums}, y / 1.8

    x, y = sample(n)
    xt, yt = sample(600)
    net = StoreSales(sizes, 4)
    groups = [
        {"params": net.head.parameters(), "lr": 5e-3},
        {"params": [*net.trunk.parameters(), *net.norm.parameters()], "lr": 3e-3},
    ]
    if not is_faulty:
        groups.append({"params": net.emb.parameters(), "lr": 1e-2})
    opt = torch.optim.AdamW(groups, weight_decay=1e-3)
    return Program(
        net, nn.SmoothL1Loss(), DataLoader(VtsDicts(x, y + 0.05 * torch.randn(n)), 64, shuffle=True, drop_last=True),
        opt, lambda m: vts_r2(m(**xt), yt),
    )


@fault(
    "a LambdaLR whose function returns the rate itself instead of a factor",
    rules=["learning-rate-too-low"],
    fails=True,
    steps=500,
)
def vts_absolute_lambda(is_faulty):
    base, total = 2e-3, 500
    f = vts_relation(10, outs=4, pair=0.0)
    x, xt = torch.randn(4000, 10), torch.randn(800, 10)
    y, yt = f(x).argmax(1), f(xt).argmax(1)
    net = nn.Sequential(
        nn.Linear(10, 96), nn.LayerNorm(96), nn.SiLU(), nn.Linear(96, 96), nn.LayerNorm(96), nn.SiLU(),
        nn.Linear(96, 4),
    )
    opt = torch.optim.AdamW(net.parameters(), lr=base, weight_decay=0.01)

    def schedule(step):
        factor = min(1.0, (step + 1) / 20) * 0.5 * (1 + math.cos(math.pi * min(step, total) / total)) + 0.01
        return base * factor if is_faulty else factor

    return Program(
        net, nn.CrossEntropyLoss(label_smoothing=0.02), vts_loader(x, y, batch=128), opt,
        lambda m: max(0.0, (vts_acc(m(xt), yt) - 0.25) / 0.75),
        scheduler=torch.optim.lr_scheduler.LambdaLR(opt, schedule),
    )


class SensorNet(nn.Module):
    def __init__(self, d, momentum):
        super().__init__()
        self.bn0 = nn.BatchNorm1d(d, momentum=momentum)
        self.l1 = nn.Linear(d, 48)
        self.bn1 = nn.BatchNorm1d(48, momentum=momentum)
        self.l2 = nn.Linear(48, 1)

    def forward(self, x):
        return self.l2(torch.relu(self.bn1(self.l1(self.bn0(x)))))


@fault(
    "BatchNorm that takes up a thousandth of a batch's statistics, over raw sensor readings",
    rules=["batchnorm-mode-gap", "stale-statistics"],
    layers=["bn0", "bn1"],
    fails=True,
    steps=300,
)
def vts_slow_batchnorm(is_faulty):
    f = vts_relation(7)
    offset, scale = torch.tensor([20.0, 5, 0, 3, 12, 1, 7]), torch.tensor([6.0, 2, 0.5, 1, 4, 3, 2])
    z, zt = torch.randn(3000, 7), torch.randn(600, 7)
    y, yt = f(z) + 0.1 * torch.randn(3000, 1), f(zt)
    net = SensorNet(7, 0.001 if is_faulty else 0.1)
    return Program(
        net, nn.MSELoss(), vts_loader(z * scale + offset, y, batch=100), torch.optim.Adam(net.parameters(), lr=5e-3),
        lambda m: vts_r2(m(zt * scale + offset), yt),
    )


class FieldNet(nn.Module):
    """Embeds each field, then an MLP over all of them."""

    def __init__(self, sizes, dim, mixed):
        super().__init__()
        self.tables = nn.ModuleDict({f"c{i}": nn.Embedding(s, dim) for i, s in enumerate(sizes)})
        self.mlp = nn.Sequential(nn.Linear(dim * len(sizes), 64), nn.Mish(), nn.Linear(64, 3))
        self.mixed = mixed

    def forward(self, ids):
        e = torch.stack([self.tables[f"c{i}"](ids[:, i]) for i in range(ids.shape[1])])
        e = e.contiguous().view(ids.shape[0], -1) if self.mixed else e.transpose(0, 1).flatten(1)
        return self.mlp(e)


@fault(
    "embeddings stacked over fields first and then viewed as if examples came first",
    rules=["mixed-examples", "labels-unrelated"],
    fails=True,
    steps=500,
)
def vts_stacked_fields(is_faulty):
    sizes = [8, 10, 6, 9]
    effects = [torch.randn(s, 3) for s in sizes]

    def sample(n):
        ids = torch.stack([torch.randint(0, s, (n,)) for s in sizes], 1)
        return ids, sum(e[ids[:, i]] for i, e in enumerate(effects)).argmax(1)

    x, y = sample(3200)
    xt, yt = sample(640)
    net = FieldNet(sizes, 6, is_faulty)
    return Program(
        net, nn.CrossEntropyLoss(), vts_loader(x, y, batch=64), torch.optim.Adam(net.parameters(), lr=4e-3),
        lambda m: max(0.0, 1.5 * (vts_acc(m(xt), yt) - 1 / 3)),
    )


class ThreeTargets(nn.Module):
    def __init__(self, d, heads):
        super().__init__()
        self.shared = nn.Sequential(nn.Linear(d, 80), nn.ReLU(), nn.Linear(80, 40), nn.ReLU())
        self.heads = nn.ModuleList(heads)

    def forward(self, x):
        h = self.shared(x)
        return torch.cat([head(h) for head in self.heads], 1)


@fault(
    "heads of three tasks made as a list times three, which is one head",
    rules=["shared-weight"],
    layers=["heads"],
    fails=False,
    steps=400,
)
def vts_times_three(is_faulty):
    f = vts_relation(8, outs=3, pair=0.2)
    x, xt = torch.randn(3000, 8), torch.randn(600, 8)
    y, yt = f(x), f(xt)
    heads = [nn.Linear(40, 1)] * 3 if is_faulty else [nn.Linear(40, 1) for _ in range(3)]
    net = ThreeTargets(8, heads)
    return Program(
        net, nn.HuberLoss(), vts_loader(x, y + 0.05 * torch.randn_like(y), batch=100),
        torch.optim.RMSprop(net.parameters(), lr=1e-3), lambda m: vts_r2(m(xt), yt),
    )


@fault(
    "assays that were not measured count in the loss as zeros",
    rules=["padding-in-loss"],
    fails=True,
    steps=500,
)
def vts_missing_assays(is_faulty):
    f = vts_relation(12, k=8, outs=6, pair=0.2)
    x, xt = torch.randn(3000, 12), torch.randn(600, 12)
    value, yt = f(x) + 2, f(xt) + 2
    seen = torch.rand(3000, 6) < 0.25
    y = torch.where(seen, value, torch.zeros(()))
    net = nn.Sequential(nn.Linear(12, 96), nn.ELU(), nn.Linear(96, 48), nn.ELU(), nn.Linear(48, 6))
    assays = {"y": y, "seen": seen.float()}

    def loss(out, target):
        error = (out - target["y"]) ** 2
        if is_faulty:
            return error.mean()
        return (error * target["seen"]).sum() / target["seen"].sum()

    batches = DataLoader(VtsDicts({"input": x}, assays), 64, shuffle=True, drop_last=True)
    return Program(net, loss, batches, torch.optim.AdamW(net.parameters(), lr=3e-3), lambda m: vts_r2(m(xt), yt))


@fault(
    "the likelihood of a discrete hazard summed over the batch, at a rate that was meant for a mean",
    rules=["summed-loss", "learning-rate-too-high", "diverging", "exploding-gradient"],
    fails=True,
    steps=400,
)
def vts_hazard_sum(is_faulty):
    bins, d = 8, 6
    f = vts_relation(d, pair=0.3)
    x, xt = torch.randn(4096, d), torch.randn(600, d)
    hazard = torch.sigmoid(1.5 * f(x) - 1.2).expand(-1, bins)
    died = torch.rand(4096, bins) < hazard
    first = torch.where(died.any(1), died.float().argmax(1), torch.full((4096,), bins))
    grid = torch.arange(bins)
    at_risk = (grid <= first[:, None]).float()
    event = (grid == first[:, None]).float()
    net = nn.Sequential(nn.Linear(d, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, bins))

    def loss(logits, target):
        at_risk, event = target.unbind(-1)
        nll = (F.binary_cross_entropy_with_logits(logits, event, reduction="none") * at_risk).sum(1)
        return nll.sum() if is_faulty else nll.mean()

    return Program(
        net, loss, vts_loader(x, torch.stack([at_risk, event], -1), batch=256),
        torch.optim.SGD(net.parameters(), lr=0.03, momentum=0.9, nesterov=True),
        lambda m: vts_rank_corr(m(xt).sigmoid().mean(1), f(xt)),
    )


class Merchants(nn.Module):
    def __init__(self, n_merchants, d):
        super().__init__()
        self.merchant = nn.Embedding(n_merchants, 8)
        self.amount = nn.Linear(d, 24)
        self.out = nn.Sequential(nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 1))

    def forward(self, merchant_id, amounts):
        return self.out(torch.cat([self.merchant(merchant_id), self.amount(amounts)], -1))[:, 0]


@fault(
    "identities that count from one, in an embedding that has no row for the last of them",
    rules=["model-fails"],
    layers=["merchant"],
    fails=True,
    steps=400,
)
def vts_ids_from_one(is_faulty):
    many = 40
    effect, w = torch.randn(many + 1), torch.randn(3) * 0.5

    def sample(n, last):
        ids, a = torch.randint(1, last + 1, (n,)), torch.randn(n, 3)
        return {"merchant_id": ids, "amounts": a}, effect[ids] + a @ w

    x, y = sample(2560, many)
    xt, yt = sample(500, many - 1)
    net = Merchants(many if is_faulty else many + 1, 3)
    return Program(
        net, nn.L1Loss(), DataLoader(VtsDicts(x, y), 128, shuffle=True), torch.optim.Adam(net.parameters(), lr=6e-3),
        lambda m: vts_r2(m(**xt), yt),
    )


@fault(
    "concentrations in mol per litre, a millionth each, as targets",
    rules=["unscaled-target"],
    fails=True,
    steps=400,
)
def vts_micromolar(is_faulty):
    f = vts_relation(9, pair=0.2)
    x, xt = torch.randn(2000, 9), torch.randn(500, 9)
    unit = 1e-6 if is_faulty else 1.0
    y, yt = unit * (f(x) + 3 + 0.05 * torch.randn(2000, 1)), unit * (f(xt) + 3)
    net = nn.Sequential(nn.Linear(9, 64), nn.Softplus(), nn.Linear(64, 64), nn.Softplus(), nn.Linear(64, 1))
    return Program(
        net, nn.MSELoss(), vts_loader(x, y, batch=80), torch.optim.Adam(net.parameters(), lr=4e-3),
        lambda m: vts_r2(m(xt) / unit, yt / unit),
    )


@fault(
    "ratings scaled to between 0 and 1 and then cast to integers with the codes, so that they are all 0",
    rules=["constant-feature", "labels-unrelated"],
    fails=True,
    steps=400,
)
def vts_cast_columns(is_faulty):
    w = torch.randn(8)
    w = w / w.norm()

    def sample(n):
        ratings = torch.rand(n, 8)
        codes = torch.randint(0, 2, (n, 3))
        y = ((ratings - 0.5) @ w) * 3 + 0.15 * codes.sum(1)
        x = torch.cat([ratings.long() if is_faulty else ratings, codes], 1).float()
        return x, (y > 0.2).float()

    x, y = sample(2560)
    xt, yt = sample(600)

    class Churn(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = nn.Sequential(nn.Linear(11, 32), nn.Tanh(), nn.Linear(32, 16), nn.Tanh())
            self.logit = nn.Linear(16, 1)

        def forward(self, x):
            return self.logit(self.body(x)).flatten()

    net = Churn()
    return Program(
        net, nn.BCEWithLogitsLoss(), vts_loader(x, y), torch.optim.Adam(net.parameters(), lr=1e-2),
        lambda m: max(0.0, 2 * ((m(xt) > 0).float() == yt).float().mean().item() - 1),
    )


