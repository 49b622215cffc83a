"""Tables whose loss takes outputs and targets."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from program import Program, fault
from torch import nn
from torch.utils.data import DataLoader
from zts_data import DictRows, accuracy, blobs, friedman, gen, loader, mlp, r2, r2_of, ratings, sk


class Recommender(nn.Module):
    def __init__(self):
        super().__init__()
        self.users, self.items = nn.Embedding(60, 8), nn.Embedding(40, 8)
        self.mlp = mlp(16, 48, 1)

    def forward(self, pairs):
        return self.mlp(torch.cat([self.users(pairs[:, 0]), self.items(pairs[:, 1])], 1))


@fault("The optimizer is given the head only, so the embeddings of users and items stay random",
       rules=["no-gradient"], layers=["users", "items"], fails=False, steps=500)
def zts_ratings_head_only(is_faulty):
    x, y = ratings(2000, 1)
    model = Recommender()
    optimizer = torch.optim.Adam(model.mlp.parameters() if is_faulty else model.parameters(), lr=5e-3)
    return Program(model, nn.MSELoss(), loader(x, y), optimizer, r2(*ratings(400, 2)))


@fault("Missing ages are left as NaN in the table", rules=["non-finite"], fails=True, steps=300)
def zts_missing_age(is_faulty):
    x, y = friedman(1500, 1)
    age = x[:, 3].clone()
    missing = torch.rand(len(x), generator=gen(9)) < 0.03
    age[missing] = float("nan")
    if not is_faulty:
        age = torch.nan_to_num(age, nan=0.0)
    x = torch.cat([x[:, :3], age.unsqueeze(1), x[:, 4:]], 1)
    model = mlp(8, 48, 1)
    return Program(model, nn.MSELoss(), loader(x, y), torch.optim.Adam(model.parameters(), lr=5e-3),
                   r2(*friedman(400, 2)))


@fault("The export of a table is ordered by its label and never shuffled",
       rules=["sorted-batches"], fails=True, steps=500)
def zts_export_in_order(is_faulty):
    x, y = blobs(1600, 1)
    order = y.argsort()
    model = mlp(6, 48, 48, 4)
    return Program(model, nn.CrossEntropyLoss(), loader(x[order], y[order], batch=32, shuffle=not is_faulty),
                   torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9), accuracy(*blobs(500, 2)))


@fault("Chemical measurements of wine go in raw, proline near a thousand and hue near one",
       rules=["unscaled-input", "ill-conditioned-input", "dying-neurons"], fails=True, steps=300)
def zts_wine_raw(is_faulty):
    x, y, xt, yt = sk("wine", 0.3, scale=not is_faulty)
    model = mlp(13, 32, 16, 3)
    return Program(model, nn.CrossEntropyLoss(), loader(x, y, batch=16),
                   torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9), accuracy(xt, yt))


@fault("Features were sorted by customer after the join, the outcomes were not",
       rules=["labels-unrelated", "output-loss-mismatch"], fails=True, steps=400)
def zts_churn_bad_join(is_faulty):
    x, y = blobs(1600, 1)
    customer = torch.randperm(len(x), generator=gen(4))
    x = x[customer.argsort()]
    y = y if is_faulty else y[customer.argsort()]
    model = mlp(6, 64, 64, 4)
    return Program(model, nn.CrossEntropyLoss(), loader(x, y), torch.optim.Adam(model.parameters(), lr=2e-3),
                   accuracy(*blobs(500, 2)))


class ShopModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.shop = nn.Embedding(12, 6)
        self.body = mlp(9, 32, 1)

    def forward(self, numbers, shop):
        return self.body(torch.cat([numbers, self.shop(shop)], 1))


def shops(n, seed):
    g = gen(seed)
    effect = torch.randn(12, 3, generator=gen(8))
    numbers, shop = torch.randn(n, 3, generator=g), torch.randint(0, 12, (n,), generator=g)
    return numbers, shop, (effect[shop] * numbers).sum(1, keepdim=True) * 0.6 + effect[shop].mean(1, keepdim=True)


@fault("Shop numbers are looked up as integers in a vocabulary of strings, so every shop becomes the unknown one",
       rules=["constant-feature"], fails=True, steps=500)
def zts_shop_always_unknown(is_faulty):
    numbers, shop, y = shops(2000, 1)
    vocabulary = {(str(i) if is_faulty else i): i for i in range(12)}
    codes = torch.tensor([vocabulary.get(int(s), 0) for s in shop])
    test_numbers, test_shop, test_y = shops(500, 2)
    model = ShopModel()
    rows = DataLoader(DictRows({"numbers": numbers, "shop": codes}, y), batch_size=64, shuffle=True)
    return Program(model, nn.MSELoss(), rows, torch.optim.Adam(model.parameters(), lr=5e-3),
                   r2({"numbers": test_numbers, "shop": test_shop}, test_y))


@fault("Delays are in months but the threshold for a default is in days, so nobody ever defaults",
       rules=["constant-target"], fails=True, steps=300)
def zts_default_threshold(is_faulty):
    x, y = friedman(1500, 1)
    days = 30 + 40 * y
    delay = days / 30 if is_faulty else days
    label = (delay > 30).float()
    xt, yt = friedman(500, 2)
    model = mlp(8, 32, 1)
    return Program(model, nn.BCEWithLogitsLoss(), loader(x, label), torch.optim.Adam(model.parameters(), lr=5e-3),
                   accuracy(xt, (30 + 40 * yt > 30).float()))


def claims(n, seed):
    g = gen(seed)
    x = torch.randn(n, 5, generator=g)
    rate = torch.exp(-1.2 + 0.8 * x[:, 0] - 0.6 * x[:, 1] * (x[:, 2] > 0)).clamp(max=5).unsqueeze(1)
    return x, rate, torch.poisson(rate, generator=g)


@fault("The network ends in a softplus, a rate, but the Poisson loss keeps its default and takes it for a log-rate",
       rules=["output-loss-mismatch"], fails=True, steps=500)
def zts_claims_log_input(is_faulty):
    x, _, count = claims(3000, 1)
    xt, rate, _ = claims(500, 2)
    model = nn.Sequential(*mlp(5, 32, 1), nn.Softplus())
    return Program(model, nn.PoissonNLLLoss(log_input=is_faulty), loader(x, count),
                   torch.optim.Adam(model.parameters(), lr=3e-3), r2(xt, rate))


class Assay(nn.Module):
    """Predicts three properties of a molecule from its descriptors."""

    def __init__(self, is_shared):
        super().__init__()
        self.body = mlp(8, 48, 32)
        self.heads = nn.ModuleList([nn.Linear(32, 1)] * 3 if is_shared else [nn.Linear(32, 1) for _ in range(3)])

    def forward(self, x):
        h = torch.relu(self.body(x))
        return torch.cat([head(h) for head in self.heads], 1)


def properties(n, seed):
    x = torch.randn(n, 8, generator=gen(seed))
    return x, torch.stack([x[:, 0] * 0.8 + x[:, 1].abs() - 0.8, -x[:, 2] + 0.5 * x[:, 3], torch.sin(2 * x[:, 4])], 1)


@fault("The list of heads is one linear layer repeated three times",
       rules=["shared-weight"], layers=["heads"], fails=False, steps=400)
def zts_heads_repeated(is_faulty):
    model = Assay(is_faulty)
    return Program(model, nn.MSELoss(), loader(*properties(2000, 1)), torch.optim.Adam(model.parameters(), lr=4e-3),
                   r2(*properties(500, 2)))


class Experts(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.experts = nn.ModuleList(nn.Linear(4, 1) for _ in range(5))
        self.gate = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 5), nn.Softmax(dim=dim))

    def forward(self, x):
        return (self.gate(x) * torch.cat([expert(x) for expert in self.experts], 1)).sum(1, keepdim=True)


@fault("The gate of a mixture of experts takes its softmax over the rows of the batch instead of over the experts",
       rules=["wrong-softmax-dimension", "mixed-examples"], layers=["gate"], fails=True, steps=500)
def zts_gate_over_rows(is_faulty):
    def data(n, seed):
        x = torch.randn(n, 4, generator=gen(seed))
        return x, torch.where(x[:, :1] > 0, 1 + x[:, 1:2], -x[:, 2:3] - 0.5)

    model = Experts(0 if is_faulty else 1)
    return Program(model, nn.MSELoss(), loader(*data(2000, 1)), torch.optim.Adam(model.parameters(), lr=1e-2),
                   r2(*data(500, 2)))


@fault("A decay meant for epochs is applied at every step, so the rate is gone after a few dozen of them",
       rules=["learning-rate-too-low"], fails=True, steps=500)
def zts_decay_every_step(is_faulty):
    model = mlp(6, 64, 64, 4)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    rows = loader(*blobs(1600, 1))
    gamma = 0.6 if is_faulty else 0.8 ** (1 / len(rows))
    return Program(model, nn.CrossEntropyLoss(), rows, optimizer, accuracy(*blobs(500, 2)),
                   scheduler=torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma))


@fault("Momentum of 1, so that no earlier step is ever forgotten",
       rules=["optimizer-setting", "learning-rate-too-high", "diverging"], fails=True, steps=400)
def zts_momentum_one(is_faulty):
    model = mlp(8, 48, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=1.0 if is_faulty else 0.9)
    return Program(model, nn.MSELoss(), loader(*friedman(1500, 1)), optimizer, r2(*friedman(400, 2)))


@fault("Weight decay of 1 where 1e-4 was meant", rules=["weight-decay-dominates"], fails=True, steps=400)
def zts_decay_of_one(is_faulty):
    model = mlp(6, 64, 64, 4)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3, weight_decay=1.0 if is_faulty else 1e-4)
    return Program(model, nn.CrossEntropyLoss(), loader(*blobs(1600, 1)), optimizer, accuracy(*blobs(500, 2)))


@fault("The BatchNorm that standardises raw columns has a momentum of 1e-4, so evaluation sees its initial statistics",
       rules=["batchnorm-mode-gap"], layers=["0"], fails=True, steps=400)
def zts_input_norm_never_warm(is_faulty):
    def raw(n, seed):
        x, y = friedman(n, seed)
        return x * torch.tensor([12.0, 3, 5, 9, 2, 8, 4, 6]) + torch.tensor([45.0, 10, 20, 60, 7, 30, 15, 25]), y

    model = nn.Sequential(nn.BatchNorm1d(8, momentum=1e-4 if is_faulty else 0.1), *mlp(8, 48, 1))
    return Program(model, nn.MSELoss(), loader(*raw(1500, 1)), torch.optim.Adam(model.parameters(), lr=5e-3),
                   r2(*raw(400, 2)))


@fault("BatchNorm trained on batches of two rows", rules=["small-batch-batchnorm", "batchnorm-mode-gap"],
       fails=False, steps=600)
def zts_batches_of_two(is_faulty):
    model = nn.Sequential(nn.Linear(8, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 32), nn.BatchNorm1d(32),
                          nn.ReLU(), nn.Linear(32, 1))
    return Program(model, nn.MSELoss(), loader(*friedman(1500, 1), batch=2 if is_faulty else 32),
                   torch.optim.Adam(model.parameters(), lr=5e-3), r2(*friedman(400, 2)))


class NoisyRecommender(nn.Module):
    def __init__(self, always):
        super().__init__()
        self.always = always
        self.users, self.items = nn.Embedding(60, 16), nn.Embedding(40, 16)
        self.fc, self.out = nn.Linear(32, 64), nn.Linear(64, 1)

    def forward(self, pairs):
        on = True if self.always else self.training
        h = torch.cat([self.users(pairs[:, 0]), self.items(pairs[:, 1])], 1)
        h = F.dropout(h, 0.5, training=on)
        h = F.dropout(torch.relu(self.fc(h)), 0.5, training=on)
        return self.out(h)


@fault("Functional dropout is not told about the mode of the network, and drops in evaluation as well",
       rules=["dropout-in-eval"], fails=False, steps=600)
def zts_functional_dropout(is_faulty):
    model = NoisyRecommender(is_faulty)
    return Program(model, nn.MSELoss(), loader(*ratings(2200, 1)), torch.optim.Adam(model.parameters(), lr=8e-3),
                   r2(*ratings(400, 2)))


@fault("Dropout is given the share to keep, 0.9, which is the share it drops",
       rules=["dropout-too-strong"], fails=True, steps=500)
def zts_keep_share(is_faulty):
    p = 0.9 if is_faulty else 0.1
    model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Dropout(p), nn.Linear(32, 32), nn.ReLU(), nn.Dropout(p),
                          nn.Linear(32, 1))
    return Program(model, nn.MSELoss(), loader(*friedman(1500, 1)), torch.optim.Adam(model.parameters(), lr=3e-3),
                   r2(*friedman(400, 2)))


class Basket(nn.Module):
    """A deep set; `present` marks the real items."""

    def __init__(self, inverted):
        super().__init__()
        self.inverted = inverted
        self.item, self.total = mlp(4, 32, 32), mlp(32, 32, 1)

    def forward(self, items, present):
        gone = present if self.inverted else ~present
        return self.total(self.item(items).masked_fill(gone.unsqueeze(-1), 0.0).sum(1))


def baskets(n, seed):
    g = gen(seed)
    items = torch.randn(n, 8, 4, generator=g)
    present = torch.arange(8) < torch.randint(2, 8, (n, 1), generator=g)
    items = items * present.unsqueeze(-1)
    y = (items[..., 0] * items[..., 1] + items[..., 2].abs() * present - 0.4 * present).sum(1, keepdim=True)
    return {"items": items, "present": present}, y / 2.5


@fault("The mask of a deep set is read the wrong way round: real items are blanked, padding is summed",
       rules=["wrong-mask"], fails=True, steps=500)
def zts_basket_mask(is_faulty):
    x, y = baskets(2000, 1)
    model = Basket(is_faulty)
    return Program(model, nn.MSELoss(), DataLoader(DictRows(x, y), batch_size=64, shuffle=True),
                   torch.optim.Adam(model.parameters(), lr=3e-3), r2(*baskets(400, 2)))


@fault("All weights start at the same constant", rules=["symmetric-initialisation", "bad-initialisation"],
       fails=False, steps=500)
def zts_constant_weights(is_faulty):
    model = mlp(6, 48, 48, 4, act=nn.Tanh)
    if is_faulty:
        for p in model.parameters():
            nn.init.constant_(p, 0.1)
    return Program(model, nn.CrossEntropyLoss(), loader(*blobs(1600, 1)),
                   torch.optim.Adam(model.parameters(), lr=3e-3), accuracy(*blobs(500, 2)))


@fault("No activation between the layers, only norms", rules=["no-nonlinearity"], fails=True, steps=500)
def zts_yield_linear(is_faulty):
    def data(n, seed):
        x = torch.randn(n, 6, generator=gen(seed))
        return x, x[:, :1] * x[:, 1:2] + x[:, 2:3].abs() - 0.8

    act = nn.Identity if is_faulty else nn.ReLU
    model = nn.Sequential(nn.Linear(6, 48), nn.BatchNorm1d(48), act(), nn.Linear(48, 48), nn.BatchNorm1d(48), act(),
                          nn.Linear(48, 1))
    return Program(model, nn.MSELoss(), loader(*data(2000, 1)), torch.optim.Adam(model.parameters(), lr=4e-3),
                   r2(*data(500, 2)))


@fault("Ten layers of sigmoids under plain gradient descent",
       rules=["vanishing-gradient", "activation-drift", "rank-collapse", "saturated-activation",
              "bad-initialisation"], fails=True, steps=500)
def zts_ten_sigmoids(is_faulty):
    model = mlp(8, *[32] * 10, 1, act=nn.Sigmoid if is_faulty else nn.ReLU)
    for m in model:
        if isinstance(m, nn.Linear):
            nn.init.kaiming_normal_(m.weight)
            nn.init.zeros_(m.bias)
    return Program(model, nn.MSELoss(), loader(*friedman(1500, 1)),
                   torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9), r2(*friedman(400, 2)))


class MaskedLinear(nn.Linear):
    def __init__(self, mask):
        super().__init__(mask.shape[1], mask.shape[0])
        self.register_buffer("mask", mask.float())

    def forward(self, x):
        return F.linear(x, self.weight * self.mask, self.bias)


def flags(n, seed, width=12):
    g = gen(seed)
    columns = [torch.rand(n, generator=g) < 0.5 for _ in range(2)]
    for _ in range(width - 2):
        new = ~(columns[-1] & columns[-2])
        columns.append(new ^ (torch.rand(n, generator=g) < 0.05))
    return torch.stack(columns, 1).float()


@fault("In a masked autoregressive network the mask of the output has >= instead of >, so each column sees itself",
       rules=["future-seen"], fails=True, steps=400)
def zts_made_sees_itself(is_faulty):
    d, h = 12, 96
    deg_in, deg_h = torch.arange(1, d + 1), torch.arange(h) % d + 1
    first = deg_h[:, None] >= deg_in[None]
    last = deg_in[:, None] >= deg_h[None] if is_faulty else deg_in[:, None] > deg_h[None]
    model = nn.Sequential(MaskedLinear(first), nn.ReLU(), MaskedLinear(last))
    x, xt = flags(2000, 1), flags(400, 2)
    noise = (torch.rand(400, d, generator=gen(3)) < 0.5).float()

    def score(model):
        right = 0.0
        for i in range(2, d):
            seen = torch.cat([xt[:, :i], noise[:, i:]], 1)
            right += float(((model(seen)[:, i] > 0) == (xt[:, i] > 0.5)).float().mean())
        return right / (d - 2)

    return Program(model, nn.BCEWithLogitsLoss(), loader(x, x), torch.optim.Adam(model.parameters(), lr=5e-3), score)


@fault("The loss is summed over a batch of 256, with a rate that was chosen for a mean",
       rules=["summed-loss", "learning-rate-too-high", "diverging"], fails=True, steps=400)
def zts_sum_of_squares(is_faulty):
    model = mlp(8, 48, 1, act=nn.Tanh)
    return Program(model, nn.MSELoss(reduction="sum" if is_faulty else "mean"),
                   loader(*friedman(2048, 1), batch=256), torch.optim.SGD(model.parameters(), lr=0.1),
                   r2(*friedman(400, 2)))


@fault("A curve is fitted on raw powers of its argument, which are nearly collinear, by gradient descent",
       rules=["ill-conditioned-input"], fails=False, steps=600)
def zts_raw_powers(is_faulty):
    def data(n, seed):
        t = torch.rand(n, generator=gen(seed)) * 2 - 1
        y = torch.sin(4.5 * t) + 0.7 * torch.cos(6 * t)
        if is_faulty:
            return torch.stack([t**k for k in range(1, 10)], 1), y.unsqueeze(1)
        return torch.stack([torch.cos(k * torch.acos(t)) for k in range(1, 10)], 1), y.unsqueeze(1)

    model = nn.Linear(9, 1)
    return Program(model, nn.MSELoss(), loader(*data(1500, 1)), torch.optim.SGD(model.parameters(), lr=0.1),
                   r2(*data(400, 2)))


class Factors(nn.Module):
    def __init__(self, std):
        super().__init__()
        self.users, self.items = nn.Embedding(60, 64), nn.Embedding(40, 64)
        self.user_bias, self.item_bias = nn.Embedding(60, 1), nn.Embedding(40, 1)
        for e in (self.users, self.items):
            nn.init.normal_(e.weight, std=std)
        for e in (self.user_bias, self.item_bias):
            nn.init.zeros_(e.weight)

    def forward(self, pairs):
        a, b = pairs.T
        return (self.users(a) * self.items(b)).sum(1, keepdim=True) + self.user_bias(a) + self.item_bias(b)


@fault("64 factors per user and item start with standard deviation 1, so that first predictions are tens of stars off",
       rules=["bad-initialisation"], layers=["users", "items"], fails=True, steps=500)
def zts_factors_too_wide(is_faulty):
    model = Factors(1.0 if is_faulty else 0.05)
    return Program(model, nn.MSELoss(), loader(*ratings(2000, 1)), torch.optim.Adam(model.parameters(), lr=5e-3),
                   r2(*ratings(400, 2)))


@fault("Log-returns of both signs are predicted through a final ReLU",
       rules=["output-loss-mismatch"], fails=False, steps=400)
def zts_returns_through_relu(is_faulty):
    model = nn.Sequential(*mlp(8, 48, 1), nn.ReLU() if is_faulty else nn.Identity())
    return Program(model, nn.SmoothL1Loss(), loader(*friedman(1500, 1)),
                   torch.optim.Adam(model.parameters(), lr=3e-3), lambda m: r2_of(m(friedman(400, 2)[0]),
                                                                                friedman(400, 2)[1]))
