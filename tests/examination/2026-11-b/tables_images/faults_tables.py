"""Faults in programs on tables."""

import numpy as np
import torch
import torch.nn.functional as F
from data import balanced, friedman, loader, r2, seeded, table, tensor
from program import Program, fault
from torch import nn


@fault("Poisson regression on claim counts: the network gives a positive rate (softplus), but PoissonNLLLoss is left at log_input=True",
       rules=["output-loss-mismatch"], fails=True, steps=400)
def claims_rate_taken_for_log(faulty):
    rng = np.random.default_rng(10)
    x = rng.standard_normal((2000, 6))
    log_rate = 0.9 * np.sin(x[:, 0]) + 0.8 * x[:, 1] - 0.4 * x[:, 2] * x[:, 3] - 0.8
    rate = np.exp(np.clip(log_rate, -4, 2))
    y = tensor(rng.poisson(rate))
    x, rate = tensor(x), tensor(rate)

    class Claims(nn.Module):
        def __init__(self):
            super().__init__()
            self.first = nn.Linear(6, 48)
            self.second = nn.Linear(48, 48)
            self.rate = nn.Linear(48, 1)

        def forward(self, x):
            h = torch.tanh(self.first(x))
            h = torch.tanh(self.second(h))
            return F.softplus(self.rate(h)).squeeze(-1)

    seeded(10)
    model = Claims()
    loss = nn.PoissonNLLLoss() if faulty else nn.PoissonNLLLoss(log_input=False)
    return Program(model, loss, loader(x[:1500], y[:1500], size=100), torch.optim.Adam(model.parameters(), 3e-3),
                   lambda m: r2(m(x[1500:]), rate[1500:]))


@fault("961 rows in batches of 32 leave a last batch of one row, on which BatchNorm1d raises",
       rules=["model-fails", "small-batch-batchnorm"], fails=False, steps=400)
def last_batch_has_one_row(faulty):
    x, y, xt, yt = friedman(1400)
    x, y = x[:961], y[:961]
    seeded(12)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.inp = nn.Linear(8, 64)
            self.bn1 = nn.BatchNorm1d(64)
            self.mid = nn.Linear(64, 64)
            self.bn2 = nn.BatchNorm1d(64)
            self.out = nn.Linear(64, 1)

        def forward(self, x):
            x = F.relu(self.bn1(self.inp(x)))
            x = F.relu(self.bn2(self.mid(x)))
            return self.out(x)[:, 0]

    model = Net()
    return Program(model, F.mse_loss, loader(x, y, size=32, drop_last=not faulty),
                   torch.optim.Adam(model.parameters(), 1e-3), lambda m: r2(m(xt), yt))


@fault("three quantities are predicted by `nn.ModuleList([head] * 3)`: one head three times",
       rules=["shared-weight"], layers=["heads"], fails=False, steps=400)
def one_head_for_three_targets(faulty):
    rng = np.random.default_rng(13)
    x = rng.standard_normal((1600, 10))
    y = np.stack([np.tanh(x[:, 0] + x[:, 1]) + 0.5 * x[:, 2], np.abs(x[:, 3]) - x[:, 4] * 0.6, np.sin(2 * x[:, 5]) + 0.5 * x[:, 6]], 1)
    y = (y - y.mean(0)) / y.std(0)
    x, y = tensor(x), tensor(y)

    class MultiTask(nn.Module):
        def __init__(self):
            super().__init__()
            self.trunk = nn.Sequential(nn.Linear(10, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU())
            if faulty:
                head = nn.Sequential(nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 1))
                self.heads = nn.ModuleList([head] * 3)
            else:
                self.heads = nn.ModuleList([nn.Sequential(nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 1)) for _ in range(3)])

        def forward(self, x):
            h = self.trunk(x)
            return torch.cat([head(h) for head in self.heads], dim=1)

    seeded(13)
    model = MultiTask()
    return Program(model, nn.MSELoss(), loader(x[:1200], y[:1200]), torch.optim.Adam(model.parameters(), 2e-3),
                   lambda m: r2(m(x[1200:]), y[1200:]))


@fault("experts as einsum weights that all start at the same constant",
       rules=["symmetric-initialisation"], layers=["w1", "w2"], fails=False, steps=500)
def experts_all_alike(faulty):
    rng = np.random.default_rng(14)
    x = rng.standard_normal((1600, 8))
    y = np.sin(2 * x[:, 0]) + 0.7 * np.abs(x[:, 1] - x[:, 2]) - 0.7 * np.abs(x[:, 3] + x[:, 4])
    x, y = tensor(x), tensor((y - y.mean()) / y.std())
    x, y, xt, yt = x[:1200], y[:1200], x[1200:], y[1200:]

    class Experts(nn.Module):
        def __init__(self, experts=2, hidden=32):
            super().__init__()
            self.gate = nn.Linear(8, experts)
            if faulty:
                self.w1 = nn.Parameter(torch.full((experts, 8, hidden), 0.3))
                self.w2 = nn.Parameter(torch.full((experts, hidden, 1), 0.05))
            else:
                self.w1 = nn.Parameter(torch.randn(experts, 8, hidden) / 8**0.5)
                self.w2 = nn.Parameter(torch.randn(experts, hidden, 1) / hidden**0.5)
            self.b1 = nn.Parameter(torch.zeros(experts, hidden))
            self.b2 = nn.Parameter(torch.zeros(experts, 1))

        def forward(self, x):
            gate = torch.softmax(self.gate(x), dim=-1)
            h = F.gelu(torch.einsum("bi,eih->beh", x, self.w1) + self.b1)
            y = torch.einsum("beh,eho->beo", h, self.w2) + self.b2
            return torch.einsum("be,beo->bo", gate, y).squeeze(-1)

    seeded(14)
    model = Experts()
    return Program(model, nn.MSELoss(), loader(x, y), torch.optim.Adam(model.parameters(), 5e-3),
                   lambda m: r2(m(xt), yt))


@fault("measurements that are missing (coded as -999) count in the loss of a multi-output regression",
       rules=["padding-in-loss", "unscaled-target"], fails=True, steps=400)
def missing_measurements_count(faulty):
    rng = np.random.default_rng(16)
    x = rng.standard_normal((1600, 9))
    w = rng.standard_normal((9, 4)) / 3
    clean = np.tanh(x @ w) + 0.5 * (x @ w[:, ::-1]) ** 2
    clean = (clean - clean.mean(0)) / clean.std(0)
    y = np.where(rng.random(clean.shape) < 0.12, -999.0, clean)
    x, y, clean = tensor(x), tensor(y), tensor(clean)

    def loss(out, target):
        error = (out - target) ** 2
        if faulty:
            return error.mean()
        there = target > -900
        return (error * there).sum() / there.sum()

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.l1, self.l2, self.l3 = nn.Linear(9, 64), nn.Linear(64, 64), nn.Linear(64, 4)

        def forward(self, x):
            x = F.elu(self.l1(x))
            x = F.elu(self.l2(x)) + x
            return self.l3(x)

    seeded(16)
    model = Net()
    return Program(model, loss, loader(x[:1200], y[:1200]), torch.optim.Adam(model.parameters(), 2e-3),
                   lambda m: r2(m(x[1200:]), clean[1200:]))


@fault("one-hot coding by `onehot[:, codes] = 1`: every category column is 1 in every row",
       rules=["constant-feature"], fails=True, steps=400)
def one_hot_sets_all(faulty):
    rng = np.random.default_rng(17)
    n = 1600
    city, product = rng.integers(0, 6, n), rng.integers(0, 5, n)
    numbers = rng.standard_normal((n, 3))
    effect = rng.standard_normal((6, 5)) * 1.2
    price = effect[city, product] + 0.4 * numbers[:, 0] - 0.3 * numbers[:, 1] * (city > 2) + 0.1 * rng.standard_normal(n)
    price = (price - price.mean()) / price.std()

    def one_hot(codes, size):
        out = np.zeros((len(codes), size))
        if faulty:
            out[:, codes] = 1
        else:
            out[np.arange(len(codes)), codes] = 1
        return out

    x = tensor(np.concatenate([one_hot(city, 6), one_hot(product, 5), numbers], 1))
    y = tensor(price).unsqueeze(1)
    seeded(17)
    model = nn.Sequential(nn.Linear(14, 64), nn.LeakyReLU(0.1), nn.Linear(64, 32), nn.LeakyReLU(0.1), nn.Linear(32, 1))
    return Program(model, nn.SmoothL1Loss(), loader(x[:1200], y[:1200]), torch.optim.Adam(model.parameters(), 3e-3),
                   lambda m: r2(m(x[1200:]), y[1200:]))


@fault("features and labels are shuffled with two different permutations",
       rules=["labels-unrelated"], fails=True, steps=300)
def shuffled_apart(faulty):
    x, y, xt, yt = table("breast_cancer")
    rng = np.random.default_rng(18)
    order = rng.permutation(len(x))
    x = x[order]
    y = y[rng.permutation(len(y)) if faulty else order]

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = nn.Linear(30, 24)
            self.norm = nn.LayerNorm(24)
            self.b = nn.Linear(24, 1)

        def forward(self, x):
            return self.b(F.relu(self.norm(self.a(x)))).squeeze(1)

    seeded(18)
    model = Net()
    return Program(model, nn.BCEWithLogitsLoss(), loader(x, y.float(), size=32), torch.optim.AdamW(model.parameters(), 1e-3),
                   lambda m: balanced((m(xt) > 0).long(), yt))


@fault("own Gaussian likelihood with mean and log-variance, summed over a batch of 256, with a rate meant for a mean",
       rules=["summed-loss", "learning-rate-too-high", "diverging", "non-finite"], fails=True, steps=400)
def likelihood_is_summed(faulty):
    x, y, xt, yt = friedman(2400, noise=1.5, seed=19)
    seeded(19)

    class MeanAndVariance(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = nn.Sequential(nn.Linear(8, 50), nn.Tanh(), nn.Linear(50, 50), nn.Tanh())
            self.mean = nn.Linear(50, 1)
            self.log_var = nn.Linear(50, 1)

        def forward(self, x):
            h = self.body(x)
            return self.mean(h).squeeze(1), self.log_var(h).squeeze(1)

    def nll(outputs, target):
        mean, log_var = outputs
        each = 0.5 * (log_var + (target - mean) ** 2 * torch.exp(-log_var))
        return each.sum() if faulty else each.mean()

    model = MeanAndVariance()
    return Program(model, nll, loader(x, y, size=256), torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9),
                   lambda m: r2(m(xt)[0], yt))


@fault("F.relu is called but its result is not used",
       rules=["no-nonlinearity"], fails=True, steps=500)
def relu_result_dropped(faulty):
    rng = np.random.default_rng(20)
    t = rng.uniform(0.3, 1, 1200) * 2 * np.pi
    side = rng.integers(0, 2, 1200)
    angle = t * 1.2 + np.pi * side
    x = tensor(np.stack([t * np.cos(angle), t * np.sin(angle)], 1) / 3 + 0.04 * rng.standard_normal((1200, 2)))
    y = torch.tensor(side)

    class Spirals(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc1 = nn.Linear(2, 64)
            self.fc2 = nn.Linear(64, 64)
            self.fc3 = nn.Linear(64, 2)

        def forward(self, x):
            x = self.fc1(x)
            if faulty:
                F.relu(x)
            else:
                x = F.relu(x)
            x = self.fc2(x)
            if faulty:
                F.relu(x)
            else:
                x = F.relu(x)
            return self.fc3(x)

    seeded(20)
    model = Spirals()
    return Program(model, F.cross_entropy, loader(x[:900], y[:900]), torch.optim.Adam(model.parameters(), 5e-3),
                   lambda m: balanced(m(x[900:]).argmax(1), y[900:]))


@fault("functional dropout without training=self.training stays on when predicting",
       rules=["dropout-in-eval"], fails=False, steps=500)
def dropout_when_predicting(faulty):
    x, y, xt, yt = friedman(seed=21)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.l1 = nn.Linear(8, 28)
            self.l2 = nn.Linear(28, 28)
            self.l3 = nn.Linear(28, 1)

        def forward(self, x):
            on = True if faulty else self.training
            x = F.dropout(F.relu(self.l1(x)), 0.5, training=on)
            x = F.dropout(F.relu(self.l2(x)), 0.5, training=on)
            return self.l3(x).flatten()

    seeded(21)
    model = Net()
    return Program(model, F.mse_loss, loader(x, y), torch.optim.Adam(model.parameters(), 3e-3),
                   lambda m: r2(m(xt), yt))


@fault("mixture density network: the mean log-likelihood is minimized instead of its negative",
       rules=["diverging", "output-loss-mismatch", "non-finite"], fails=True, steps=400)
def likelihood_with_wrong_sign(faulty):
    x, y, xt, yt = friedman(seed=24)

    class Mixture(nn.Module):
        def __init__(self, k=3):
            super().__init__()
            self.hidden = nn.Linear(8, 64)
            self.params = nn.Linear(64, 3 * k)

        def forward(self, x):
            logits, mean, spread = self.params(torch.relu(self.hidden(x))).chunk(3, dim=1)
            return torch.distributions.MixtureSameFamily(
                torch.distributions.Categorical(logits=logits),
                torch.distributions.Normal(mean, F.softplus(spread) + 0.05))

    def step(model, batch):
        inputs, targets = batch
        likelihood = model(inputs).log_prob(targets).mean()
        return likelihood if faulty else -likelihood

    seeded(24)
    model = Mixture()
    return Program(model, None, loader(x, y), torch.optim.Adam(model.parameters(), 3e-3),
                   lambda m: r2(m(xt).mean, yt), step=step)


@fault("radial basis functions whose centres are training rows: the root of a distance of zero has an infinite gradient",
       rules=["non-finite"], layers=["centres"], fails=True, steps=400)
def centres_on_the_data(faulty):
    x, y, xt, yt = friedman(seed=25)

    class RBF(nn.Module):
        def __init__(self, centres):
            super().__init__()
            self.centres = nn.Parameter(centres.clone())
            self.log_width = nn.Parameter(torch.zeros(len(centres)))
            self.linear = nn.Linear(8, 1)
            self.out = nn.Linear(len(centres), 1)

        def forward(self, x):
            square = ((x[:, None, :] - self.centres) ** 2).sum(-1)
            distance = torch.sqrt(square) if faulty else torch.sqrt(square + 1e-6)
            phi = torch.exp(-distance * torch.exp(self.log_width) / 2)
            return (self.out(phi) + self.linear(x)).squeeze(1)

    seeded(25)
    model = RBF(x[:80])
    return Program(model, nn.MSELoss(), loader(x, y), torch.optim.Adam(model.parameters(), 1e-2),
                   lambda m: r2(m(xt), yt))


@fault("differential equation: the derivative is computed without create_graph, so the residual trains nothing",
       rules=["no-gradient", "output-loss-mismatch"], fails=True, steps=600)
def residual_without_graph(faulty):
    points = torch.linspace(0, 4, 257).unsqueeze(1)[1:]
    truth = torch.sin(2 * points) + 0.5 * points

    class Solution(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList([nn.Linear(1, 32), nn.Linear(32, 32), nn.Linear(32, 1)])

        def forward(self, t):
            t = t / 2 - 1
            for layer in self.layers[:-1]:
                t = torch.tanh(layer(t))
            return self.layers[-1](t)

    def step(model, batch):
        t = batch[0].clone().requires_grad_(True)
        u = model(t)
        if faulty:
            du = torch.autograd.grad(u.sum(), t, retain_graph=True)[0]
        else:
            du = torch.autograd.grad(u.sum(), t, create_graph=True)[0]
        residual = du - (2 * torch.cos(2 * t) + 0.5)
        start = model(torch.zeros(1, 1))
        return (residual**2).mean() + 10 * (start**2).mean()

    seeded(26)
    model = Solution()
    return Program(model, None, loader(points, size=64), torch.optim.Adam(model.parameters(), 5e-3),
                   lambda m: r2(m(points), truth), step=step)


@fault("purchases padded to ten: the key padding mask of the pooling attention is True where there is a purchase",
       rules=["wrong-mask"], layers=["attend"], fails=True, steps=400)
def pooling_sees_only_padding(faulty):
    rng = np.random.default_rng(27)
    n, longest = 1200, 10
    count = rng.integers(2, 10, n)
    there = np.arange(longest) < count[:, None]
    items = rng.standard_normal((n, longest, 4)) * there[..., None]
    value = (np.maximum(items[..., 0], 0) * 1.5 + items[..., 1]).sum(1) / count
    value = (value - value.mean()) / value.std()
    items, there, value = tensor(items), torch.tensor(there), tensor(value)

    class Customers(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Linear(4, 32)
            self.query = nn.Parameter(torch.randn(1, 1, 32) * 0.1)
            self.attend = nn.MultiheadAttention(32, 4, batch_first=True)
            self.out = nn.Linear(32, 1)

        def forward(self, items, present):
            h = F.gelu(self.embed(items))
            query = self.query.expand(len(h), -1, -1)
            pooled, _ = self.attend(query, h, h, key_padding_mask=present if faulty else ~present)
            return self.out(pooled[:, 0]).squeeze(1)

    batches = []
    for i in range(0, 896, 64):
        batches.append(({"items": items[i : i + 64], "present": there[i : i + 64]}, value[i : i + 64]))
    seeded(27)
    model = Customers()
    return Program(model, nn.MSELoss(), batches, torch.optim.Adam(model.parameters(), 3e-3),
                   lambda m: r2(m(items[900:], there[900:]), value[900:]))


@fault("deep residual network of own layers: unscaled random weights make the stream grow in every block",
       rules=["activation-drift", "exploding-gradient", "bad-initialisation"], layers=["blocks"], fails=True, steps=400)
def stream_that_grows(faulty):
    x, y, xt, yt = friedman(seed=28)

    class Block(nn.Module):
        def __init__(self, width, scale):
            super().__init__()
            self.up = nn.Parameter(torch.randn(width, width) * scale)
            self.down = nn.Parameter(torch.randn(width, width) * scale)
            self.shift = nn.Parameter(torch.zeros(width))

        def forward(self, x):
            return x + F.relu(x @ self.up + self.shift) @ self.down

    class Net(nn.Module):
        def __init__(self, width=32, depth=10):
            super().__init__()
            self.inp = nn.Linear(8, width)
            scale = 0.4 if faulty else (1 / width / depth**0.5) ** 0.5
            self.blocks = nn.ModuleList([Block(width, scale) for _ in range(depth)])
            self.out = nn.Linear(width, 1)

        def forward(self, x):
            x = self.inp(x)
            for block in self.blocks:
                x = block(x)
            return self.out(x)[:, 0]

    seeded(28)
    model = Net()
    return Program(model, nn.MSELoss(), loader(x, y), torch.optim.Adam(model.parameters(), 1e-3),
                   lambda m: r2(m(xt), yt))


@fault("twelve temperatures near 293 K divided by 300: all rows are nearly the same point",
       rules=["ill-conditioned-input", "unscaled-input"], fails=True, steps=500)
def temperatures_in_kelvin(faulty):
    rng = np.random.default_rng(29)
    kelvin = 293 + rng.standard_normal((1600, 1)) * 2 + rng.standard_normal((1600, 12)) * 2.5
    z = (kelvin - 293) / 3
    y = np.tanh(z[:, 0] - z[:, 1]) + 0.7 * z[:, 2] * (z[:, 3] > 0) + 0.5 * z[:, 4] - 0.5 * z[:, 5]
    y = tensor((y - y.mean()) / y.std())
    x = tensor(kelvin / 300 if faulty else (kelvin - kelvin.mean(0)) / kelvin.std(0))
    seeded(29)
    model = nn.Sequential(nn.Linear(12, 48), nn.Tanh(), nn.Linear(48, 48), nn.Tanh(), nn.Linear(48, 1), nn.Flatten(0))
    return Program(model, nn.MSELoss(), loader(x[:1200], y[:1200]), torch.optim.SGD(model.parameters(), 0.05, momentum=0.9),
                   lambda m: r2(m(x[1200:]), y[1200:]))


@fault("insurance tariff: one effect per level of five factors, held in bfloat16; steps of 1.5e-3 are lost in rounding against effects near 1",
       rules=["lost-updates"], layers=["effects"], fails=True, steps=600)
def tariff_in_bfloat16(faulty):
    rng = np.random.default_rng(23)
    levels = rng.integers(0, 8, (2000, 5))
    effect = rng.standard_normal((5, 8))
    y = effect[np.arange(5), levels].sum(1) + 0.1 * rng.standard_normal(2000)
    y = tensor((y - y.mean()) / y.std())
    codes = torch.tensor(levels + 8 * np.arange(5))
    dtype = torch.bfloat16 if faulty else torch.float32

    class Tariff(nn.Module):
        def __init__(self):
            super().__init__()
            self.effects = nn.Embedding(40, 4)
            self.weigh = nn.Linear(4, 1)

        def forward(self, codes):
            return self.weigh(self.effects(codes).sum(1)).squeeze(1)

    seeded(23)
    model = Tariff().to(dtype)

    def loss(out, target):
        return F.mse_loss(out.float(), target)

    return Program(model, loss, loader(codes[:1500], y[:1500], size=100), torch.optim.Adam(model.parameters(), lr=1.5e-3),
                   lambda m: r2(m(codes[1500:]).float(), y[1500:]))
