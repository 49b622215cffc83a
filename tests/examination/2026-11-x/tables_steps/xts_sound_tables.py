"""Tables and scientific problems: sound set-ups."""

import math

import torch
import torch.nn.functional as F
from program import Program, sound
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset, WeightedRandomSampler
from xts_data import accuracy, bumpy, correlation, gini, loader, mean_r2, mlp, r2


@sound("nothing: a plain regression", steps=400, least=0.85)
def xts_plain_regression():
    x = 5 + 3 * torch.randn(2500, 8)
    y = bumpy((x - 5) / 3) + 0.15 * torch.randn(2500)
    mean, std = x[:2000].mean(0), x[:2000].std(0)
    x = (x - mean) / std
    model = mlp(8, 64, 64, 1)
    return Program(model, lambda out, y: F.mse_loss(out.squeeze(-1), y), loader(x[:2000], y[:2000]),
                   torch.optim.Adam(model.parameters(), lr=2e-3), lambda m: r2(m(x[2000:]), y[2000:]))


@sound("nothing: embeddings and numbers from a dict", steps=400, least=0.75)
def xts_plain_embeddings():
    n = 4000
    shop, day, numbers = torch.randint(25, (n,)), torch.randint(7, (n,)), torch.randn(n, 4)
    a, b = torch.randn(25), torch.randn(7)
    logits = torch.stack([a[shop] + numbers[:, 0], b[day] * numbers[:, 1], numbers[:, 2] - a[shop]], 1)
    y = logits.argmax(1)

    class Sales(nn.Module):
        def __init__(self):
            super().__init__()
            self.shop, self.day = nn.Embedding(25, 8), nn.Embedding(7, 4)
            self.mlp = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 3))

        def forward(self, shop, day, numbers):
            return self.mlp(torch.cat([self.shop(shop), self.day(day), numbers], -1))

    class Rows(Dataset):
        def __len__(self):
            return 3200

        def __getitem__(self, i):
            return {"shop": shop[i], "day": day[i], "numbers": numbers[i]}, y[i]

    model = Sales()
    return Program(model, nn.CrossEntropyLoss(), DataLoader(Rows(), 64, shuffle=True),
                   torch.optim.AdamW(model.parameters(), lr=5e-3),
                   lambda m: accuracy(m(shop[3200:], day[3200:], numbers[3200:]), y[3200:]))


@sound("nothing: BatchNorm, dropout and one cycle of the rate", steps=400, least=0.8)
def xts_plain_one_cycle():
    centers = torch.randn(20, 10)
    which = torch.randint(20, (3000,))
    x, y = 1.5 * centers[which] + 0.6 * torch.randn(3000, 10), which % 5
    model = nn.Sequential(nn.Linear(10, 64, bias=False), nn.BatchNorm1d(64), nn.ReLU(), nn.Dropout(0.2),
                          nn.Linear(64, 64, bias=False), nn.BatchNorm1d(64), nn.ReLU(), nn.Dropout(0.2),
                          nn.Linear(64, 5))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=1e-2)
    return Program(model, nn.CrossEntropyLoss(label_smoothing=0.1), loader(x[:2500], y[:2500]), optimizer,
                   lambda m: accuracy(m(x[2500:]), y[2500:]),
                   scheduler=torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-2, total_steps=401))


@sound("nothing: tanh, SGD with momentum, half way", trained=200, steps=500, least=0.8)
def xts_plain_momentum():
    x = torch.randn(2500, 5)
    y = torch.stack([torch.sin(x[:, 0] + x[:, 1]), torch.tanh(2 * x[:, 2]) * x[:, 3]], 1)
    y = (y - y.mean(0)) / y.std(0)
    model = mlp(5, 64, 64, 2, act=nn.Tanh)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    return Program(model, nn.MSELoss(), loader(x[:2000], y[:2000]), optimizer,
                   lambda m: mean_r2(m(x[2000:]), y[2000:]),
                   scheduler=torch.optim.lr_scheduler.StepLR(optimizer, 300, 0.3))


@sound("nothing: an operator network", steps=500, least=0.85)
def xts_plain_operator():
    class DeepOperator(nn.Module):
        def __init__(self):
            super().__init__()
            self.branch, self.trunk = mlp(16, 64, 32, act=nn.GELU), mlp(1, 64, 64, 32, act=nn.Tanh)

        def forward(self, function, place):
            return torch.einsum("bp,bqp->bq", self.branch(function), self.trunk(place))

    def draw(n):
        a = torch.randn(n, 3)
        grid = torch.linspace(-1, 1, 16)
        k = torch.arange(1, 4)
        function = (a[:, :, None] * torch.sin(k[:, None] * 2 * grid)).sum(1)
        place = 2 * torch.rand(n, 8, 1) - 1
        return function, place, (a[:, None] * torch.cos(2 * k * place)).sum(2) / 1.2

    f, p, v = draw(1600)
    held = draw(200)
    model = DeepOperator()

    def step(model, batch):
        f, p, v = batch
        return F.mse_loss(model(f, p), v)

    return Program(model, None, loader(f, p, v, size=32), torch.optim.Adam(model.parameters(), lr=3e-3),
                   lambda m: r2(m(*held[:2]), held[2]), step=step)


@sound("the likelihood of a Cox model, whose loss starts and ends near the logarithm of the batch",
       steps=300, least=0.8)
def xts_cox_censored():
    x = torch.randn(2400, 6)
    risk = x[:, 0] - x[:, 1] + torch.sin(2 * x[:, 2])
    time = -torch.rand(2400).clamp_min(1e-6).log() / risk.exp()
    censor = 0.6 * torch.rand(2400)
    outcome = torch.stack([torch.minimum(time, censor), (time < censor).float()], 1)

    class Cox(nn.Module):
        def __init__(self):
            super().__init__()
            self.risk = nn.Sequential(nn.Linear(6, 32), nn.SELU(), nn.Linear(32, 1, bias=False))

        def forward(self, x):
            return self.risk(x).squeeze(1)

    def loss(score, outcome):
        at_risk = outcome[None, :, 0] >= outcome[:, None, 0]
        total = score[None].masked_fill(~at_risk, -1e9).logsumexp(1)
        return ((total - score) * outcome[:, 1]).sum() / outcome[:, 1].sum().clamp_min(1)

    model = Cox()
    return Program(model, loss, loader(x[:2000], outcome[:2000], size=100),
                   torch.optim.Adam(model.parameters(), lr=5e-3), lambda m: correlation(m(x[2000:]), risk[2000:]))


@sound("one row in forty is positive, and its weight is large", steps=400, least=0.7)
def xts_rare_positive():
    x = torch.randn(6000, 8)
    logit = 3 * bumpy(x) - 5.5
    y = (torch.rand(6000) < logit.sigmoid()).float()
    model = mlp(8, 48, 48, 1)
    nn.init.constant_(model[-1].bias, 0.0)
    weight = (1 - y[:5000].mean()) / y[:5000].mean()

    def loss(out, y):
        return F.binary_cross_entropy_with_logits(out.squeeze(1), y, pos_weight=weight)

    return Program(model, loss, loader(x[:5000], y[:5000], size=128),
                   torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=1e-2),
                   lambda m: gini(m(x[5000:]), y[5000:]))


@sound("prices in the hundred thousands, which the network scales by itself", steps=400, least=0.8)
def xts_prices_inside():
    class Scaled(nn.Module):
        def __init__(self, x, y):
            super().__init__()
            self.register_buffer("x_mean", x.mean(0))
            self.register_buffer("x_std", x.std(0))
            self.register_buffer("y_mean", y.mean())
            self.register_buffer("y_std", y.std())
            self.inner = mlp(5, 64, 64, 1, act=nn.GELU)

        def forward(self, x):
            return self.y_mean + self.y_std * self.inner((x - self.x_mean) / self.x_std).squeeze(1)

    z = torch.randn(2500, 5)
    x = z * torch.tensor([900.0, 0.02, 30.0, 1e4, 5.0]) + torch.tensor([4000.0, 0.1, 50.0, 5e4, 1.0])
    y = 300000 + 90000 * bumpy(z)
    model = Scaled(x[:2000], y[:2000])
    return Program(model, lambda out, y: ((out - y) / model.y_std).square().mean(), loader(x[:2000], y[:2000]),
                   torch.optim.Adam(model.parameters(), lr=3e-3), lambda m: r2(m(x[2000:]), y[2000:]))


@sound("five quantiles: the loss has a floor far from zero", trained=250, steps=500, least=0.75)
def xts_quantile_floor():
    class Monotone(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = mlp(4, 64, 64, 5, act=nn.SiLU)

        def forward(self, x):
            raw = self.body(x)
            return torch.cat([raw[:, :1], raw[:, :1] + F.softplus(raw[:, 1:]).cumsum(1)], 1)

    levels = torch.tensor([0.1, 0.3, 0.5, 0.7, 0.9])
    x = torch.randn(4000, 4)
    spread = 0.5 + 0.5 * x[:, 3].abs()
    y = 1.5 * bumpy(x) + spread * torch.randn(4000)
    true = 1.5 * bumpy(x)[:, None] + spread[:, None] * torch.special.ndtri(levels)

    def pinball(q, y):
        gap = y[:, None] - q
        return (gap * (levels - (gap < 0).float())).mean()

    model = Monotone()
    return Program(model, pinball, loader(x[:3500], y[:3500], size=128),
                   torch.optim.Adam(model.parameters(), lr=5e-3), lambda m: mean_r2(m(x[3500:]), true[3500:]))


@sound("targets that are mostly noise: the loss falls by a tenth only", steps=300, least=0.6)
def xts_noisy_targets():
    x = torch.randn(6000, 4)
    clean = 0.8 * torch.sin(1.5 * x[:, 0]) + 0.5 * x[:, 1]
    y = clean + 2.2 * torch.randn(6000)
    model = nn.Sequential(nn.Linear(4, 24), nn.Tanh(), nn.Linear(24, 1))
    return Program(model, lambda out, y: F.mse_loss(out[:, 0], y), loader(x[:5000], y[:5000], size=250),
                   torch.optim.AdamW(model.parameters(), lr=5e-3, weight_decay=0.05),
                   lambda m: r2(m(x[5000:]), clean[5000:]))


@sound("an autoencoder of a table whose decoder holds the encoder's weight", steps=500, least=0.85)
def xts_tied_table():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.encode = nn.Linear(20, 4)
            self.decode_bias = nn.Parameter(torch.zeros(20))

        def forward(self, x):
            return F.linear(self.encode(x), self.encode.weight.T, self.decode_bias)

    x = torch.randn(3000, 4) @ torch.linalg.qr(torch.randn(20, 4))[0].T * 2.2 + 0.1 * torch.randn(3000, 20)
    model = Tied()
    return Program(model, nn.MSELoss(), loader(x[:2500], x[:2500].clone(), size=50),
                   torch.optim.Adam(model.parameters(), lr=1e-2), lambda m: r2(m(x[2500:]), x[2500:]))


@sound("columns of ones and zeros that hardly ever vary, and one that is always one", steps=400, least=0.75)
def xts_rare_flags():
    flags = (torch.rand(4000, 40) < 0.04).float()
    flags[:, 0] = 1.0
    numbers = torch.randn(4000, 3)
    effect = 1.5 * torch.randn(40)
    y = flags @ effect + torch.sin(2 * numbers[:, 0]) + numbers[:, 1]
    y = (y - y.mean()) / y.std()
    x = torch.cat([flags, numbers], 1)

    class WideAndDeep(nn.Module):
        def __init__(self):
            super().__init__()
            self.wide = nn.Linear(43, 1)
            self.deep = mlp(43, 32, 1)

        def forward(self, x):
            return (self.wide(x) + self.deep(x)).squeeze(1)

    model = WideAndDeep()
    return Program(model, F.smooth_l1_loss, loader(x[:3400], y[:3400]),
                   torch.optim.Adam([{"params": model.wide.parameters(), "lr": 1e-2},
                                     {"params": model.deep.parameters()}], lr=3e-3),
                   lambda m: r2(m(x[3400:]), y[3400:]))


@sound("residual blocks that begin as the identity, with a last layer of zeros", steps=400, least=0.8)
def xts_zero_branches():
    class Block(nn.Module):
        def __init__(self, width):
            super().__init__()
            self.norm = nn.LayerNorm(width)
            self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
            nn.init.zeros_(self.down.weight)
            nn.init.zeros_(self.down.bias)

        def forward(self, x):
            return x + self.down(F.gelu(self.up(self.norm(x))))

    model = nn.Sequential(nn.Linear(6, 32), *[Block(32) for _ in range(3)], nn.LayerNorm(32), nn.Linear(32, 1))
    nn.init.zeros_(model[-1].weight)
    x = torch.randn(2500, 6)
    y = bumpy(x)[:, None]
    return Program(model, nn.HuberLoss(), loader(x[:2000], y[:2000]),
                   torch.optim.AdamW(model.parameters(), lr=3e-3), lambda m: r2(m(x[2000:]), y[2000:]))


@sound("few rows of three apart classes, learned until the loss is nearly zero", trained=400, steps=500, least=0.95)
def xts_learned_to_the_end():
    centers = 4 * torch.randn(3, 4)
    y = torch.randint(3, (400,))
    x = centers[y] + 0.5 * torch.randn(400, 4)
    model = mlp(4, 32, 32, 3)
    balanced = WeightedRandomSampler((1.0 / y[:200].bincount(minlength=3).float())[y[:200]], 200)
    return Program(model, F.cross_entropy, DataLoader(TensorDataset(x[:200], y[:200]), 20, sampler=balanced),
                   torch.optim.Adam(model.parameters(), lr=1e-2), lambda m: accuracy(m(x[200:]), y[200:]))


@sound("a network of sines with large first weights", steps=500, least=0.85)
def xts_sine_field():
    class Sine(nn.Module):
        def __init__(self, a, b, omega, is_first=False):
            super().__init__()
            self.linear, self.omega = nn.Linear(a, b), omega
            bound = 1 / a if is_first else math.sqrt(6 / a) / omega
            nn.init.uniform_(self.linear.weight, -bound, bound)

        def forward(self, x):
            return torch.sin(self.omega * self.linear(x))

    model = nn.Sequential(Sine(2, 64, 12.0, True), Sine(64, 64, 12.0), nn.Linear(64, 1))
    place = 2 * torch.rand(6000, 2) - 1
    height = torch.sin(8 * place[:, :1]) * torch.cos(6 * place[:, 1:]) + 0.5 * torch.sin(12 * place.sum(1, keepdim=True))
    return Program(model, nn.MSELoss(), loader(place[:5500], height[:5500], size=128),
                   torch.optim.Adam(model.parameters(), lr=2e-3), lambda m: r2(m(place[5500:]), height[5500:]))
