"""Tables: faults."""

import math

import torch
import torch.nn.functional as F
from program import Program, fault
from torch import nn
from torch.utils.data import DataLoader, Dataset
from xts_data import bumpy, correlation, gini, loader, mean_r2, mlp, r2


@fault("rates (after a softplus) go into a Poisson loss that takes their logarithms",
       rules=["output-loss-mismatch"], fails=True, steps=400)
def xts_claim_counts(is_faulty):
    class Frequency(nn.Module):
        def __init__(self):
            super().__init__()
            self.region = nn.Embedding(8, 4)
            self.body = mlp(4 + 3, 32, 32, 1, act=nn.SiLU)

        def forward(self, numeric, region):
            return F.softplus(self.body(torch.cat([numeric, self.region(region)], 1))).squeeze(1)

    numeric, region = torch.randn(4000, 3), torch.randint(8, (4000,))
    effect = torch.linspace(-0.8, 0.8, 8)[torch.randperm(8)]
    rate = (0.1 + 0.6 * torch.sin(2 * numeric[:, 0]) + 0.5 * numeric[:, 1] + effect[region]).exp()
    count = torch.poisson(rate)

    class Policies(Dataset):
        def __len__(self):
            return 3500

        def __getitem__(self, i):
            return {"numeric": numeric[i], "region": region[i]}, count[i]

    def loss(rates, counts):
        if is_faulty:
            return F.poisson_nll_loss(rates, counts)
        return F.poisson_nll_loss(rates, counts, log_input=False)

    model = Frequency()
    return Program(model, loss, DataLoader(Policies(), 128, shuffle=True),
                   torch.optim.Adam(model.parameters(), lr=5e-3),
                   lambda m: r2(m(numeric[3500:], region[3500:]), rate[3500:]))


@fault("times and events are sorted for the partial likelihood, and the patients' features are not",
       rules=["labels-unrelated"], fails=True, steps=300)
def xts_cox_order(is_faulty):
    x = torch.randn(1500, 7)
    risk = 1.2 * x[:, 0] - 0.8 * x[:, 1] + 0.8 * torch.tanh(2 * x[:, 2])
    time = -torch.rand(1500).clamp_min(1e-6).log() / risk.exp()
    censor = 4 * torch.rand(1500)
    event = (time < censor).float()
    seen = torch.minimum(time, censor)
    train, test = slice(0, 1200), slice(1200, 1500)
    order = seen[train].argsort(descending=True)
    features = x[train] if is_faulty else x[train][order]
    outcome = torch.stack([seen[train][order], event[train][order]], 1)

    def partial(score, outcome):
        at = outcome[:, 0].argsort(descending=True)
        score, event = score.squeeze(-1)[at], outcome[at, 1]
        return -((score - score.logcumsumexp(0)) * event).sum() / event.sum().clamp_min(1)

    model = nn.Sequential(nn.Linear(7, 32), nn.ELU(), nn.Dropout(0.1), nn.Linear(32, 1, bias=False))
    return Program(model, partial, loader(features, outcome, size=128),
                   torch.optim.Adam(model.parameters(), lr=3e-3), lambda m: correlation(m(x[test]), risk[test]))


@fault("the bias for a rare class is put into every layer instead of the last one",
       rules=["dying-neurons", "bad-initialisation"], layers=["body"], fails=True, steps=400)
def xts_fraud_prior(is_faulty):
    x = torch.randn(5000, 8)
    logit = 3 * bumpy(x) - 5
    y = (torch.rand(5000) < logit.sigmoid()).float()
    prior = -math.log((1 - 0.02) / 0.02)

    class Fraud(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU())
            self.top = nn.Linear(32, 1)
            for layer in self.modules() if is_faulty else [self.top]:
                if isinstance(layer, nn.Linear):
                    nn.init.constant_(layer.bias, prior)

        def forward(self, x):
            return self.top(self.body(x)).flatten()

    def focal(logits, labels, gamma=1.0):
        bce = F.binary_cross_entropy_with_logits(logits, labels, reduction="none")
        p = torch.exp(-bce)
        return ((1 - p) ** gamma * bce).mean() * 10

    model = Fraud()
    return Program(model, focal, loader(x[:4000], y[:4000], size=128),
                   torch.optim.Adam(model.parameters(), lr=3e-3), lambda m: gini(m(x[4000:]), y[4000:]))


@fault("channels that share nearly all of their variation, where the target is in their differences",
       rules=["ill-conditioned-input"], fails=True, steps=500)
def xts_common_mode(is_faulty):
    own = torch.randn(2500, 12)
    x = torch.randn(2500, 1) + 0.06 * own
    x = (x - x.mean(0)) / x.std(0)
    y = 0.7 * own[:, 0] - 0.7 * own[:, 5] + 0.8 * torch.sin(own[:, 3] - own[:, 9])
    y = y[:, None]
    if not is_faulty:
        values, vectors = torch.linalg.eigh(torch.cov(x[:2000].T))
        x = x @ vectors / values.sqrt()
    model = mlp(12, 48, 48, 1, act=nn.Tanh)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.8)
    return Program(model, nn.MSELoss(), loader(x[:2000], y[:2000]), optimizer,
                   lambda m: r2(m(x[2000:]), y[2000:]))


@fault("BatchNorm with the momentum of another library, so that its running statistics hardly leave their start",
       rules=["batchnorm-mode-gap", "stale-statistics"], layers=["bn_in", "bn_1", "bn_2"], fails=True, steps=400)
def xts_other_momentum(is_faulty):
    momentum = 0.0005 if is_faulty else 0.1

    class Tower(nn.Module):
        def __init__(self):
            super().__init__()
            self.bn_in = nn.BatchNorm1d(6, momentum=momentum)
            self.fc_1 = nn.Linear(6, 64)
            self.bn_1 = nn.BatchNorm1d(64, momentum=momentum)
            self.fc_2 = nn.Linear(64, 64)
            self.bn_2 = nn.BatchNorm1d(64, momentum=momentum)
            self.price = nn.Linear(64, 1)

        def forward(self, x):
            x = self.bn_in(x)
            x = torch.relu(self.bn_1(self.fc_1(x)))
            x = torch.relu(self.bn_2(self.fc_2(x)))
            return self.price(x)[:, 0]

    z = torch.randn(3000, 6)
    y = bumpy(z)
    x = z * torch.tensor([3.0, 8.0, 0.3, 5.0, 2.0, 1.0]) + torch.tensor([20.0, 5.0, 1.0, -9.0, 4.0, 0.0])
    model = Tower()
    optimizer = torch.optim.Adam(model.parameters(), lr=4e-3)
    return Program(model, F.smooth_l1_loss, loader(x[:2500], y[:2500]), optimizer,
                   lambda m: r2(m(x[2500:]), y[2500:]),
                   scheduler=torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 400, 1e-4))


@fault("the list of heads holds one and the same head four times",
       rules=["shared-weight"], layers=["heads"], fails=True, steps=400)
def xts_heads_times_four(is_faulty):
    class FourOutcomes(nn.Module):
        def __init__(self):
            super().__init__()
            self.encoder = nn.Sequential(nn.Linear(8, 64), nn.SiLU(), nn.Linear(64, 32), nn.SiLU())
            if is_faulty:
                self.heads = nn.ModuleList([nn.Linear(32, 1)] * 4)
            else:
                self.heads = nn.ModuleList([nn.Linear(32, 1) for _ in range(4)])

        def forward(self, x):
            h = self.encoder(x)
            return torch.cat([head(h) for head in self.heads], dim=1)

    x = torch.randn(2500, 8)
    y = torch.stack([bumpy(x), torch.sin(2 * x[:, 4]), -bumpy(x[:, 2:]), x[:, 6] * x[:, 7].sign()], 1)
    y = (y - y.mean(0)) / y.std(0)
    model = FourOutcomes()
    return Program(model, lambda out, target: (out - target).square().mean(0).sum(), loader(x[:2000], y[:2000]),
                   torch.optim.RMSprop(model.parameters(), lr=2e-3), lambda m: mean_r2(m(x[2000:]), y[2000:]))


@fault("weight decay for AdamW is given to Adam, where it outweighs the gradient",
       rules=["weight-decay-dominates"], fails=True, steps=400)
def xts_coupled_decay(is_faulty):
    x = torch.randn(2500, 6)
    mean = (0.7 * bumpy(x)).exp()
    y = mean * (0.5 + torch.rand(2500))

    class Gamma(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = mlp(6, 40, 40, 1, act=nn.Softplus)

        def forward(self, x):
            return self.net(x).squeeze(-1)

    def gamma_loss(log_mean, y):
        return (y * torch.exp(-log_mean) + log_mean).mean()

    model = Gamma()
    decay = [p for p in model.parameters() if p.ndim > 1]
    rest = [p for p in model.parameters() if p.ndim == 1]
    optimizer = torch.optim.Adam([{"params": decay, "weight_decay": 0.6 if is_faulty else 1e-5},
                                  {"params": rest, "weight_decay": 0.0}], lr=5e-3)
    return Program(model, gamma_loss, loader(x[:2000], y[:2000]), optimizer,
                   lambda m: r2(m(x[2000:]), mean[2000:].log()))


@fault("the results of the activations are not assigned",
       rules=["no-nonlinearity"], layers=["first", "second", "third"], fails=True, steps=500)
def xts_unassigned_relu(is_faulty):
    class Interaction(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second, self.third = nn.Linear(4, 64), nn.Linear(64, 64), nn.Linear(64, 1)

        def forward(self, x):
            x = self.first(x)
            if is_faulty:
                F.relu(x)
            else:
                x = F.relu(x)
            x = self.second(x)
            if is_faulty:
                F.relu(x)
            else:
                x = F.relu(x)
            return self.third(x)

    x = torch.randn(3000, 4)
    y = (x[:, :1] * x[:, 1:2] + x[:, 2:3].abs() - 0.8)
    model = Interaction()
    return Program(model, nn.L1Loss(), loader(x[:2500], y[:2500]), torch.optim.Adam(model.parameters(), lr=2e-3),
                   lambda m: r2(m(x[2500:]), y[2500:]))


@fault("attention of a table's columns takes the batch for the sequence",
       rules=["mixed-examples"], layers=["blocks"], fails=False, steps=600)
def xts_column_attention(is_faulty):
    class Block(nn.Module):
        def __init__(self, width):
            super().__init__()
            self.norm_a, self.norm_f = nn.LayerNorm(width), nn.LayerNorm(width)
            self.attention = nn.MultiheadAttention(width, 2, batch_first=not is_faulty)
            self.feed = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

        def forward(self, h):
            q = self.norm_a(h)
            h = h + self.attention(q, q, q, need_weights=False)[0]
            return h + self.feed(self.norm_f(h))

    class Columns(nn.Module):
        def __init__(self, columns=4, width=16):
            super().__init__()
            self.scale = nn.Parameter(torch.randn(columns, width) * 0.7)
            self.shift = nn.Parameter(torch.randn(columns, width) * 0.7)
            self.blocks = nn.Sequential(Block(width), Block(width))
            self.read = nn.Linear(width, 1)

        def forward(self, x):
            return self.read(self.blocks(x[..., None] * self.scale + self.shift).mean(1)).squeeze(1)

    x = 2 * torch.rand(3000, 4) - 1
    y = 2 * x[:, 0] * x[:, 1] + 1.5 * x[:, 2].abs() * x[:, 3].sign()
    model = Columns()
    return Program(model, F.mse_loss, loader(x[:2500], y[:2500], size=64),
                   torch.optim.AdamW(model.parameters(), lr=5e-3, weight_decay=1e-4),
                   lambda m: r2(m(x[2500:]), y[2500:]))


@fault("assays that were not made count in the loss as results of zero",
       rules=["padding-in-loss"], fails=True, steps=400)
def xts_missing_assays(is_faulty):
    x = torch.randn(3000, 10)
    full = torch.stack([2 + bumpy(x[:, i:]) for i in range(5)], 1)
    made = torch.rand(3000, 5) < 0.3
    table = torch.where(made, full, torch.full_like(full, float("nan")))

    def loss(out, results):
        known = ~results.isnan()
        results = results.nan_to_num(0.0)
        error = (out - results) ** 2
        return error.mean() if is_faulty else (error * known).sum() / known.sum()

    model = mlp(10, 64, 64, 5, act=nn.SiLU)
    return Program(model, loss, loader(x[:2500], table[:2500], size=128),
                   torch.optim.Adam(model.parameters(), lr=4e-3),
                   lambda m: mean_r2(m(x[2500:]), full[2500:]))


@fault("quantiles are learned at a rate that was meant for plain gradient descent",
       rules=["learning-rate-too-high"], fails=True, steps=400)
def xts_quantile_rate(is_faulty):
    class Quantiles(nn.Module):
        def __init__(self, levels):
            super().__init__()
            self.register_buffer("levels", torch.tensor(levels))
            self.net = mlp(5, 64, 64, len(levels))

        def forward(self, x):
            return self.net(x)

    x = torch.randn(3500, 5)
    middle, spread = bumpy(x), 0.2 + 0.3 * x[:, 4].abs()
    y = middle + spread * torch.randn(3500)
    model = Quantiles([0.1, 0.5, 0.9])
    true = torch.stack([middle - 1.2816 * spread, middle, middle + 1.2816 * spread], 1)

    def pinball(out, target):
        gap = target.unsqueeze(1) - out
        return torch.maximum(model.levels * gap, (model.levels - 1) * gap).sum(1).mean()

    return Program(model, pinball, loader(x[:3000], y[:3000]),
                   torch.optim.Adam(model.parameters(), lr=0.4 if is_faulty else 4e-3),
                   lambda m: mean_r2(m(x[3000:]), true[3000:]))
