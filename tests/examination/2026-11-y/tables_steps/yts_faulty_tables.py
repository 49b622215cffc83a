"""Faults in programs on tables."""
import torch
import torch.nn.functional as F
from program import Program, fault
from torch import nn
from torch.utils.data import DataLoader, Dataset
from yts_data import above_chance, loader, mlp, r2, surface


class Rentals(Dataset):
    def __init__(self, n):
        self.numeric = torch.randn(n, 6)
        self.weekday = torch.randint(0, 7, (n,))
        self.count = surface(self.numeric) + torch.cos(self.weekday * 0.9) + 0.1 * torch.randn(n)

    def __len__(self):
        return len(self.count)

    def __getitem__(self, i):
        return {"numeric": self.numeric[i], "weekday": self.weekday[i]}, self.count[i]


class RentalNet(nn.Module):
    def __init__(self, squeezes):
        super().__init__()
        self.squeezes = squeezes
        self.day = nn.Embedding(7, 3)
        self.body = nn.Sequential(nn.Linear(9, 64), nn.SiLU(), nn.Linear(64, 64), nn.SiLU())
        self.head = nn.Linear(64, 1)

    def forward(self, numeric, weekday):
        out = self.head(self.body(torch.cat([numeric, self.day(weekday)], 1)))
        return out.squeeze(-1) if self.squeezes else out


@fault("The outputs are a column and the targets a row, so that the hand-written squared error pairs all with all.",
       rules=["output-loss-mismatch", "loss-not-decreasing", "mixed-examples"], fails=True, steps=400)
def yts_rentals_column(is_faulty):
    train, test = Rentals(2000), Rentals(600)
    model = RentalNet(not is_faulty)
    return Program(
        model, lambda out, y: ((out - y) ** 2).mean(), DataLoader(train, batch_size=64, shuffle=True),
        torch.optim.Adam(model.parameters(), 3e-3),
        lambda m: r2(m(test.numeric, test.weekday).flatten(), test.count))


class Loans(nn.Module):
    def __init__(self, shops):
        super().__init__()
        self.shop = nn.Embedding(shops, 2)
        self.joint = mlp(2 + 4, 48, 48, 1)

    def forward(self, rows):
        return self.joint(torch.cat([self.shop(rows[:, 0].long()), rows[:, 1:]], 1)).flatten()


@fault("The embedding is replaced by a larger one after the optimizer was made, which goes on moving the old one.",
       rules=["no-gradient"], layers=["shop"], fails=True, steps=600)
def yts_loans_larger_vocabulary(is_faulty):
    worth = torch.randn(300)

    def table(n):
        shop, rest = torch.randint(0, 300, (n,)), torch.randn(n, 4)
        return (torch.cat([shop[:, None].float(), rest], 1),
                2 * worth[shop] + 0.5 * torch.tanh(rest[:, 0] * rest[:, 1]) + 0.1 * torch.randn(n))

    (x, y), (xt, yt) = table(6000), table(1000)
    model = Loans(100)
    grown = nn.Embedding(300, 2)
    if not is_faulty:
        model.shop = grown
    optimizer = torch.optim.AdamW(
        [{"params": model.shop.parameters(), "lr": 3e-2, "weight_decay": 0.0},
         {"params": model.joint.parameters(), "lr": 3e-3}])
    model.shop = grown
    return Program(model, nn.HuberLoss(), loader(x, y, size=128), optimizer, lambda m: r2(m(xt), yt))


@fault("Survival times are in days, thousands of them, where the network's softplus returns a mean near 1.",
       rules=["unscaled-target", "output-loss-mismatch"], fails=True, steps=400)
def yts_survival_in_days(is_faulty):
    def patients(n):
        x = torch.randn(n, 8)
        log_mean = 0.7 * surface(x)
        life = torch.distributions.Exponential(torch.exp(-log_mean)).sample() * 2500
        end = torch.rand(n) * 9000
        return x, torch.stack([torch.minimum(life, end), (life < end).float()], 1), log_mean

    x, y, _ = patients(4000)
    xt, _, truth = patients(800)
    unit = 1.0 if is_faulty else 2500.0
    y = y / torch.tensor([unit, 1.0])

    def censored_nll(mean, y):
        mean = mean.squeeze(1)
        return (y[:, 1] * mean.log() + y[:, 0] / mean).mean()

    model = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 1), nn.Softplus())
    return Program(model, censored_nll, loader(x, y, size=128), torch.optim.Adam(model.parameters(), 2e-3),
                   lambda m: r2(torch.log(m(xt).squeeze(1) * unit / 2500), truth))


class Ranker(nn.Module):
    def __init__(self, turns):
        super().__init__()
        self.turns = turns
        self.query = nn.Linear(5, 16)
        self.document = nn.Linear(6, 16)
        self.out = mlp(16, 32, 1)

    def forward(self, query, documents):
        n, d, f = documents.shape
        q = self.query(query).repeat_interleave(d, 0)
        flat = (documents.transpose(0, 1) if self.turns else documents).reshape(n * d, f)
        return self.out(torch.tanh(q + self.document(flat))).view(n, d)


@fault("Documents are flattened in another order than their queries and scores, so that rows mix across queries.",
       rules=["mixed-examples", "output-loss-mismatch", "loss-not-decreasing"], fails=True, steps=400)
def yts_ranker_flattened(is_faulty):
    like = torch.randn(5, 6) / 2

    def lists(n):
        q, d = torch.randn(n, 5), torch.randn(n, 8, 6)
        return q, d, 2 * torch.tanh((d * (q @ like)[:, None]).sum(-1)) + d[..., 0]

    q, d, rel = lists(2500)
    qt, dt, rt = lists(500)
    data = [({"query": a, "documents": b}, c) for a, b, c in zip(q, d, rel)]

    def listwise(scores, relevance):
        return -(F.softmax(relevance, -1) * F.log_softmax(scores, -1)).sum(-1).mean()

    def tau(m):
        s = m(qt, dt)
        pairs = torch.sign(s[:, :, None] - s[:, None]) * torch.sign(rt[:, :, None] - rt[:, None])
        return max(0.0, float(pairs.sum() / (500 * 56)))

    model = Ranker(is_faulty)
    return Program(model, listwise, DataLoader(data, 32, shuffle=True), torch.optim.Adam(model.parameters(), 5e-3), tau)


@fault("Assays that were not made are filled with zeros and count in the loss like those that were.",
       rules=["padding-in-loss"], fails=True, steps=500)
def yts_assays_not_made(is_faulty):
    mix = torch.randn(10, 12)

    def compounds(n):
        x = torch.randn(n, 10)
        return x, torch.tanh(x @ mix / 2) + 0.5 * (x[:, :1] * x[:, 1:2]) + 1.0

    x, y = compounds(3000)
    xt, yt = compounds(600)
    y = torch.where(torch.rand_like(y) < 0.75, torch.nan, y)

    def loss(out, y):
        made = ~y.isnan()
        error = (out - y.nan_to_num()) ** 2
        return error.mean() if is_faulty else error[made].mean()

    model = nn.Sequential(nn.Linear(10, 96), nn.GELU(), nn.Linear(96, 96), nn.GELU(), nn.Linear(96, 12))
    return Program(model, loss, loader(x, y), torch.optim.AdamW(model.parameters(), 3e-3), lambda m: r2(m(xt), yt))


class Quantiles(nn.Module):
    def __init__(self, clips):
        super().__init__()
        self.fc1, self.fc2, self.fc3 = nn.Linear(7, 64), nn.Linear(64, 64), nn.Linear(64, 3)
        self.clips = clips

    def forward(self, x):
        x = F.relu(self.fc1(x))
        x = F.relu(self.fc2(x))
        x = self.fc3(x)
        return F.relu(x) if self.clips else x


def pinball(out, y):
    levels = torch.tensor([0.1, 0.5, 0.9])
    gap = y[:, None] - out
    return torch.maximum(levels * gap, (levels - 1) * gap).mean()


@fault("A ReLU after the last layer too, although the targets are centred and half of them are negative.",
       rules=["output-loss-mismatch", "dying-neurons"], layers=["fc3"], fails=False, steps=500)
def yts_quantiles_clipped(is_faulty):
    def sales(n):
        x = torch.randn(n, 7)
        f = 1.3 * surface(x) - 0.2
        return x, f + 0.2 * (1 + x[:, 6].abs()) * torch.randn(n), f

    x, y, _ = sales(3000)
    xt, _, ft = sales(600)
    model = Quantiles(is_faulty)
    return Program(model, pinball, loader(x, y), torch.optim.RMSprop(model.parameters(), 1e-3),
                   lambda m: r2(m(xt)[:, 1], ft))


@fault("PoissonNLLLoss is left at its default of log rates, where the network ends in softplus and returns rates.",
       rules=["output-loss-mismatch"], fails=True, steps=400)
def yts_counts_of_rates(is_faulty):
    def claims(n):
        x = torch.randn(n, 6)
        rate = torch.exp(1.6 + 0.4 * surface(x))
        return x, torch.poisson(rate)[:, None], rate[:, None]

    x, y, _ = claims(4000)
    xt, _, rate = claims(800)
    model = nn.Sequential(nn.Linear(6, 64), nn.ELU(), nn.Linear(64, 32), nn.ELU(), nn.Linear(32, 1), nn.Softplus())
    return Program(model, nn.PoissonNLLLoss(log_input=is_faulty), loader(x, y, size=100),
                   torch.optim.Adam(model.parameters(), 4e-3), lambda m: r2(m(xt), rate))


class Factors(nn.Module):
    def __init__(self, users, items, rank=6):
        super().__init__()
        self.user, self.item = nn.Embedding(users, rank), nn.Embedding(items, rank)
        self.user_bias, self.item_bias = nn.Embedding(users, 1), nn.Embedding(items, 1)
        for table in (self.user, self.item):
            nn.init.normal_(table.weight, std=0.3)
        for table in (self.user_bias, self.item_bias):
            nn.init.zeros_(table.weight)

    def forward(self, pairs):
        u, i = pairs.unbind(1)
        return (self.user(u) * self.item(i)).sum(1) + self.user_bias(u)[:, 0] + self.item_bias(i)[:, 0]


@fault("Adam's L2 penalty of 0.05 is many times the gradient of an embedding row, and shrinks the factors to nothing.",
       rules=["weight-decay-dominates"], fails=True, steps=600)
def yts_factors_decayed(is_faulty):
    a, b = torch.randn(120, 3), torch.randn(80, 3)
    bias = 0.7 * torch.randn(80)

    def ratings(n):
        pairs = torch.stack([torch.randint(0, 120, (n,)), torch.randint(0, 80, (n,))], 1)
        return pairs, (a[pairs[:, 0]] * b[pairs[:, 1]]).sum(1) / 1.5 + bias[pairs[:, 1]] + 0.1 * torch.randn(n)

    (x, y), (xt, yt) = ratings(6000), ratings(1000)
    model = Factors(120, 80)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2, weight_decay=5e-2 if is_faulty else 5e-5)
    return Program(model, F.mse_loss, loader(x, y, size=256), optimizer, lambda m: r2(m(xt), yt))


@fault("Raw powers of the dose as features, which are nearly collinear, instead of orthogonal polynomials.",
       rules=["ill-conditioned-input"], fails=False, steps=500)
def yts_dose_powers(is_faulty):
    def features(dose):
        if is_faulty:
            return torch.stack([dose**k for k in range(1, 10)], 1)
        return torch.stack([torch.cos(k * torch.arccos(dose)) for k in range(1, 10)], 1)

    def response(dose):
        return torch.sin(5 * dose) + 0.6 * torch.cos(6 * dose) + 0.5 * dose

    dose, dose_t = 2 * torch.rand(3000) - 1, 2 * torch.rand(500) - 1
    x, xt = features(dose), features(dose_t)
    mean, std = x.mean(0), x.std(0)
    y = response(dose) + 0.1 * torch.randn(3000)
    model = nn.Linear(9, 1)
    return Program(model, lambda o, t: F.mse_loss(o.squeeze(-1), t), loader((x - mean) / std, y),
                   torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.5),
                   lambda m: r2(m((xt - mean) / std).squeeze(-1), response(dose_t)))


@fault("The threshold that makes the labels is in euros where the column is in thousands, so that all labels are 0.",
       rules=["constant-target"], fails=True, steps=300)
def yts_churn_threshold(is_faulty):
    def customers(n):
        x = torch.randn(n, 9)
        return x, 12 + 4 * surface(x)

    (x, spent), (xt, spent_t) = customers(3000), customers(700)
    label = (spent > (12000 if is_faulty else 12)).float()
    model = nn.Sequential(nn.BatchNorm1d(9), nn.Linear(9, 48), nn.LeakyReLU(), nn.Linear(48, 1), nn.Flatten(0))

    def balanced(m):
        guess, truth = m(xt) > 0, spent_t > 12
        return max(0.0, float(guess[truth].float().mean() - guess[~truth].float().mean()))

    return Program(model, nn.BCEWithLogitsLoss(), loader(x, label), torch.optim.Adam(model.parameters(), 3e-3), balanced)


class Block(nn.Module):
    def __init__(self, width, keep):
        super().__init__()
        self.linear, self.drop = nn.Linear(width, width), nn.Dropout(keep)

    def forward(self, x):
        return self.drop(F.relu(self.linear(x)))


@fault("0.92 is meant as the share that is kept, and taken by nn.Dropout as the share that is dropped.",
       rules=["dropout-too-strong"], layers=["trunk"], fails=False, steps=400)
def yts_keep_probability(is_faulty):
    centres = torch.randn(12, 10)

    def rows(n):
        x = torch.randn(n, 10)
        return x, torch.cdist(x, centres).argmin(1) % 4

    (x, y), (xt, yt) = rows(4000), rows(800)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            p = 0.92 if is_faulty else 0.08
            self.stem = nn.Linear(10, 64)
            self.trunk = nn.ModuleList([Block(64, p) for _ in range(3)])
            self.classes = nn.Linear(64, 4)

        def forward(self, x):
            x = F.relu(self.stem(x))
            for block in self.trunk:
                x = block(x)
            return self.classes(x)

    model = Net()
    return Program(model, nn.CrossEntropyLoss(), loader(x, y, size=128), torch.optim.Adam(model.parameters(), 3e-3),
                   lambda m: above_chance(m(xt), yt, 4))


class Basket(nn.Module):
    def __init__(self, hides_items):
        super().__init__()
        self.hides_items = hides_items
        self.item = nn.Embedding(51, 16, padding_idx=0)
        self.key = nn.Linear(16, 1)
        self.value = nn.Linear(16, 32)
        self.head = nn.Sequential(nn.LayerNorm(32), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 1))

    def forward(self, items):
        e = self.item(items)
        real = items != 0
        hidden = real if self.hides_items else ~real
        share = self.key(e).squeeze(-1).masked_fill(hidden, -1e9).softmax(-1)
        return self.head((share[..., None] * self.value(e)).sum(1)).squeeze(-1)


@fault("The mask is true for items and hides what it is true for: the pooling attends to padding only.",
       rules=["wrong-mask"], layers=[], fails=True, steps=500)
def yts_basket_mask(is_faulty):
    worth = torch.randn(51)

    def baskets(n):
        items = torch.randint(1, 51, (n, 10))
        size = torch.randint(2, 9, (n, 1))
        real = torch.arange(10) < size
        return items * real, (worth[items] * real).sum(1) / size[:, 0] * 2

    (x, y), (xt, yt) = baskets(4000), baskets(800)
    model = Basket(is_faulty)
    return Program(model, F.mse_loss, loader(x, y), torch.optim.Adam(model.parameters(), 5e-3), lambda m: r2(m(xt), yt))
