"""Faults in tables and pictures, second half."""
import math

import torch
import torch.nn.functional as F
from program import Program, fault
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, WeightedRandomSampler
from tis_common import accuracy, credit, digits, gen, iou, loader, parts, r2, r_squared, satellite, sensors, split, table


@fault("a ReLU at the end of a regression of standardised targets", rules=["output-loss-mismatch", "dying-neurons"],
       layers=["net.5", "net.4"], fails=True, steps=300)
def tis_boston_style(is_faulty):
    x, y = sensors(2000, seed=60)
    y = (y - y.mean()) / y.std() - 0.5
    xa, ya, xb, yb = split(x, y)

    class tis_House(nn.Module):
        def __init__(self):
            super().__init__()
            layers = [nn.Linear(10, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1)]
            self.net = nn.Sequential(*layers, *([nn.ReLU()] if is_faulty else []))

        def forward(self, x):
            return self.net(x).squeeze(-1)

    model = tis_House()
    return Program(model, nn.MSELoss(), loader(xa, ya, 40), torch.optim.NAdam(model.parameters(), lr=3e-3),
                   r_squared(xb, yb))


@fault("the features are shuffled without their labels", rules=["labels-unrelated"], fails=True, steps=300)
def tis_two_shuffles(is_faulty):
    x, y = credit(2000, seed=61)
    x = torch.cat([x[:, :1].log(), x[:, 1:]], 1)
    x = (x - x.mean(0)) / x.std(0)
    xa, ya, xb, yb = split(x, y)
    rows = torch.randperm(len(xa), generator=gen(9))
    xa, ya = xa[rows], ya if is_faulty else ya[rows]
    model = nn.Sequential(nn.Linear(6, 32), nn.LayerNorm(32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 1))
    return Program(model, lambda o, t: F.binary_cross_entropy_with_logits(o[:, 0], t.float()), loader(xa, ya, 64),
                   torch.optim.AdamW(model.parameters(), lr=3e-3),
                   lambda m: ((m(xb)[:, 0] > 0) == (yb == 1)).float().mean().item())


class tis_Stack(nn.Module):
    def __init__(self, act):
        super().__init__()
        self.first, self.second, self.third = nn.Linear(3, 32), nn.Linear(32, 32), nn.Linear(32, 3)
        self.act = act

    def forward(self, x):
        return self.third(self.act(self.second(self.act(self.first(x)))))


@fault("no activation between layers", rules=["no-nonlinearity"], fails=True, steps=400)
def tis_shells(is_faulty):
    g = gen(62)
    y = torch.randint(3, (1500,), generator=g)
    x = F.normalize(torch.randn(1500, 3, generator=g), dim=1) * (0.5 + y[:, None] + 0.15 * torch.randn(1500, 1, generator=g))
    xa, ya, xb, yb = split(x, y)
    model = tis_Stack((lambda h: h) if is_faulty else torch.tanh)
    return Program(model, nn.CrossEntropyLoss(), loader(xa, ya, 50), torch.optim.Adam(model.parameters(), lr=0.01),
                   accuracy(xb, yb))


@fault("reduction='sum' with the rate of a mean", rules=["summed-loss", "learning-rate-too-high", "diverging", "non-finite"],
       fails=True, steps=300)
def tis_summed_squares(is_faulty):
    x, y = sensors(2400, seed=63)
    xa, ya, xb, yb = split(x, y[:, None])
    model = nn.Sequential(nn.Linear(10, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 1))
    return Program(model, nn.MSELoss(reduction="sum" if is_faulty else "mean"), loader(xa, ya, 128),
                   torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9), r_squared(xb, yb))


class tis_Windows(nn.Module):
    """Eight sensors over twelve moments; the recorder's axes are exchanged before the dense layers."""
    def __init__(self, plain):
        super().__init__()
        self.per = nn.Linear(12, 6)
        self.head = nn.Sequential(nn.ReLU(), nn.Linear(48, 32), nn.ReLU(), nn.Linear(32, 4))
        self.plain = plain

    def forward(self, x):
        h = self.per(x).transpose(0, 1)
        h = h.reshape(x.shape[0], -1) if self.plain else h.transpose(0, 1).reshape(x.shape[0], -1)
        return self.head(h)


@fault("a reshape across the batch axis", rules=["mixed-examples"], fails=True, steps=300)
def tis_machine_states(is_faulty):
    g = gen(64)
    y = torch.randint(4, (1600,), generator=g)
    phase = torch.rand(1600, 8, 1, generator=g) * 2
    x = torch.sin(torch.arange(12.) * (0.3 + 0.35 * y[:, None, None]) + phase) + 0.4 * torch.randn(1600, 8, 12, generator=g)
    xa, ya, xb, yb = split(x, y)
    model = tis_Windows(is_faulty)
    return Program(model, nn.CrossEntropyLoss(), loader(xa, ya, 32, drop_last=True),
                   torch.optim.Adam(model.parameters(), lr=3e-3), accuracy(xb, yb))


class tis_Pool(nn.Module):
    """Sets of 10 readings, one of which is flagged; attention has to find it."""
    def __init__(self, dim):
        super().__init__()
        self.value = nn.Linear(6, 16)
        self.weight = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 1))
        self.out = nn.Linear(16, 3)
        self.dim = dim

    def forward(self, x):
        w = torch.softmax(self.weight(x), dim=self.dim)
        return self.out((w * self.value(x)).sum(1))


@fault("softmax over an axis of one", rules=["wrong-softmax-dimension"], layers=["weight"], fails=True, steps=400)
def tis_flagged_reading(is_faulty):
    g = gen(65)
    x = torch.randn(2400, 10, 6, generator=g)
    x[:, :, 5] = 0
    at = torch.randint(10, (2400,), generator=g)
    x[torch.arange(2400), at, 5] = 2.0
    y = x[torch.arange(2400), at, :3].argmax(1)
    xa, ya, xb, yb = split(x, y)
    model = tis_Pool(-1 if is_faulty else 1)
    return Program(model, nn.CrossEntropyLoss(), loader(xa, ya, 48), torch.optim.Adam(model.parameters(), lr=0.01),
                   accuracy(xb, yb))


@fault("pixels of whole numbers divided without remainder", rules=["constant-feature", "labels-unrelated", "loss-not-decreasing"], fails=True, steps=200)
def tis_byte_pictures(is_faulty):
    xa, ya, xb, yb = digits(1.0)
    xa, xb = ((v * 15).to(torch.uint8) for v in (xa, xb))
    xa, xb = (((v // 255) if is_faulty else v / 255).float().unflatten(1, (1, 8, 8)) for v in (xa, xb))
    model = nn.Sequential(nn.Conv2d(1, 12, 3), nn.ELU(), nn.Conv2d(12, 12, 3), nn.ELU(), nn.Flatten(), nn.Linear(192, 10))
    return Program(model, nn.CrossEntropyLoss(), loader(xa, ya, 32), torch.optim.Adam(model.parameters(), lr=3e-3),
                   accuracy(xb, yb))


@fault("shares are cast to whole numbers", rules=["constant-target"], fails=True, steps=300)
def tis_shares(is_faulty):
    x, y = sensors(1800, seed=66)
    share = torch.sigmoid(y)
    xa, ya, xb, yb = split(x, share)
    if is_faulty:
        ya = ya.long().float()
    model = nn.Sequential(nn.Linear(10, 48), nn.LeakyReLU(), nn.Linear(48, 48), nn.LeakyReLU(), nn.Linear(48, 1),
                          nn.Sigmoid(), nn.Flatten(0))
    return Program(model, nn.MSELoss(), loader(xa, ya, 40), torch.optim.Adam(model.parameters(), lr=5e-3),
                   r_squared(xb, yb))


class tis_Variational(nn.Module):
    def __init__(self):
        super().__init__()
        self.enc = nn.Sequential(nn.Linear(64, 64), nn.ReLU())
        self.mu, self.logvar = nn.Linear(64, 8), nn.Linear(64, 8)
        self.dec = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 64))

    def forward(self, x):
        h = self.enc(x)
        mu, logvar = self.mu(h), self.logvar(h)
        z = mu + torch.randn_like(mu) * (0.5 * logvar).exp() if self.training else mu
        return self.dec(z), mu, logvar


@fault("a mean over pixels against a sum over latents", rules=["term-dominates", "rank-collapse"], fails=True, steps=400)
def tis_digit_latents(is_faulty):
    xa, _, xb, _ = digits(6.0)

    def loss(out, x):
        rec, mu, lv = out
        kl = -0.5 * (1 + lv - mu.pow(2) - lv.exp()).sum(1).mean()
        return (rec - x).pow(2).mean() + (1.0 if is_faulty else 0.002) * kl

    model = tis_Variational()
    return Program(model, loss, loader(xa, xa, 48), torch.optim.Adam(model.parameters(), lr=3e-3),
                   lambda m: r2(m(xb)[0], xb))


@fault("all weights in bfloat16, with small steps", rules=["lost-updates"], fails=False, steps=400)
def tis_brain_floats(is_faulty):
    xa, ya, xb, yb = digits(8.0)

    class tis_Cast(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = nn.Sequential(nn.Linear(64, 96), nn.ReLU(), nn.Linear(96, 96), nn.ReLU(), nn.Linear(96, 10))
            self.net.to(torch.bfloat16 if is_faulty else torch.float32)

        def forward(self, x):
            return self.net(x.to(self.net[0].weight.dtype)).float()

    model = tis_Cast()
    return Program(model, nn.CrossEntropyLoss(), loader(xa, ya, 32),
                   torch.optim.SGD(model.parameters(), lr=2e-3, momentum=0.9), accuracy(xb, yb))


@fault("key points that were not marked count as (-1, -1)", rules=["padding-in-loss", "wrong-mask"], fails=True, steps=400)
def tis_key_points(is_faulty):
    def make(n, seed):
        g = gen(seed)
        p = torch.rand(n, 3, 2, generator=g) * 0.8 + 0.1
        axis = (torch.arange(12) + 0.5) / 12
        spot = torch.exp(-((axis[:, None] - p[..., 1, None, None]) ** 2 + (axis[None] - p[..., 0, None, None]) ** 2) / 0.012)
        return spot + 0.05 * torch.randn(n, 3, 12, 12, generator=g), p, torch.rand(n, 3, generator=g) < 0.6

    xa, pa, seen = make(900, 67)
    xb, pb, _ = make(300, 68)
    pa = torch.where(seen[..., None], pa, torch.tensor(-1.0))

    def loss(out, p):
        squares = (out.view_as(p) - p).pow(2)
        return squares.mean() if is_faulty else squares[p >= 0].mean()

    model = nn.Sequential(nn.Conv2d(3, 12, 3, stride=2), nn.ReLU(), nn.Flatten(), nn.Linear(300, 64), nn.ReLU(), nn.Linear(64, 6))
    return Program(model, loss, loader(xa, pa, 32), torch.optim.Adam(model.parameters(), lr=3e-3),
                   lambda m: r2(m(xb).view_as(pb), pb))


class tis_Visits(nn.Module):
    """A patient's visits, of varying number, summed up by attention."""
    def __init__(self, invert):
        super().__init__()
        self.embed = nn.Linear(5, 16)
        self.query = nn.Parameter(torch.randn(1, 1, 16) * 0.2)
        self.attention = nn.MultiheadAttention(16, 2, batch_first=True)
        self.head = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 1))
        self.invert = invert

    def forward(self, visits, real):
        h = F.relu(self.embed(visits))
        mask = real if self.invert else ~real
        pooled, _ = self.attention(self.query.expand(len(h), -1, -1), h, h, key_padding_mask=mask, need_weights=False)
        return self.head(pooled[:, 0])[:, 0]


@fault("the mask of attention is inverted", rules=["wrong-mask"], layers=["attention"], fails=True, steps=400)
def tis_patient_visits(is_faulty):
    def make(n, seed):
        g = gen(seed)
        x = torch.randn(n, 9, 5, generator=g) + torch.randn(n, 1, 5, generator=g)
        count = torch.randint(1, 9, (n,), generator=g)
        real = torch.arange(9) < count[:, None]
        x = x * real[..., None]
        y = (x[..., 0].sum(1) / count) + (x[..., 1].sum(1) / count).abs()
        return x, real, (y - 0.9) / 1.2

    xa, ra, ya = make(1600, 69)
    xb, rb, yb = make(500, 70)
    rows = [({"visits": x, "real": r}, y) for x, r, y in zip(xa, ra, ya)]
    model = tis_Visits(is_faulty)
    return Program(model, nn.MSELoss(), DataLoader(rows, 32, shuffle=True), torch.optim.Adam(model.parameters(), lr=5e-3),
                   lambda m: r2(m(xb, rb), yb))


class tis_TwoStage(nn.Module):
    def __init__(self, share):
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(4, 12, 3, padding=1), nn.Conv2d(12, 12, 3, padding=1)
        self.bn = nn.BatchNorm2d(12)
        self.bn2 = self.bn if share else nn.BatchNorm2d(12)
        self.fc = nn.Linear(12, 5)

    def forward(self, x):
        x = F.relu(self.bn(self.conv1(x)))
        x = F.relu(self.bn2(self.conv2(x)))
        return self.fc(x.mean((2, 3)))


@fault("one BatchNorm in two places", rules=["shared-weight", "batchnorm-mode-gap"], layers=["bn", "bn2"], fails=False, steps=300)
def tis_satellite_norms(is_faulty):
    x, y = satellite(1500, seed=71)
    xa, ya, xb, yb = split(x, y)
    model = tis_TwoStage(is_faulty)
    return Program(model, nn.CrossEntropyLoss(), loader(xa, ya, 32), torch.optim.Adam(model.parameters(), lr=5e-3),
                   accuracy(xb, yb))


@fault("a momentum of 0.9995", rules=["optimizer-setting", "learning-rate-too-high", "diverging"], fails=True, steps=300)
def tis_heavy_ball(is_faulty):
    xa, ya, xb, yb = digits()
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    opt = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9995 if is_faulty else 0.9)
    return Program(model, nn.CrossEntropyLoss(), loader(xa, ya, 32), opt, accuracy(xb, yb))


@fault("powers of one reading as features", rules=["ill-conditioned-input"], fails=False, steps=500)
def tis_calibration_curve(is_faulty):
    g = gen(72)
    t = torch.rand(1200, 1, generator=g) * 2 + 1
    y = torch.sin(5 * t) + 0.02 * torch.randn(1200, 1, generator=g)
    x = torch.cat([t ** k for k in range(1, 9)], 1)
    x = (x - x.mean(0)) / x.std(0)
    if not is_faulty:
        x = torch.linalg.qr(x.double())[0].float() * math.sqrt(len(x))
    xa, ya, xb, yb = split(x, y)
    model = nn.Linear(8, 1)
    return Program(model, nn.MSELoss(), loader(xa, ya, 60), torch.optim.SGD(model.parameters(), lr=0.05), r_squared(xb, yb))


@fault("a last layer drawn with a deviation of 10", rules=["saturated-output", "bad-initialisation", "unscaled-target"], layers=["head"],
       fails=False, steps=200)
def tis_loud_head(is_faulty):
    x, y = satellite(1400, seed=73)
    xa, ya, xb, yb = split(x, y)

    class tis_Land(nn.Module):
        def __init__(self):
            super().__init__()
            self.trunk = nn.Sequential(nn.Conv2d(4, 16, 3, stride=2), nn.BatchNorm2d(16), nn.ReLU(), nn.Flatten())
            self.head = nn.Linear(144, 5)
            nn.init.normal_(self.head.weight, std=10.0 if is_faulty else 0.05)

        def forward(self, x):
            return self.head(self.trunk(x))

    model = tis_Land()
    return Program(model, nn.CrossEntropyLoss(), loader(xa, ya, 32), torch.optim.Adam(model.parameters(), lr=2e-3),
                   accuracy(xb, yb))


class tis_Norming(nn.Module):
    """Scales every row of counts to length one."""
    def __init__(self, eps):
        super().__init__()
        self.eps = eps

    def forward(self, x):
        return x / (x.pow(2).sum(1, keepdim=True) + self.eps).sqrt()


@fault("rows of zeros are divided by their length", rules=["non-finite"], layers=["2"], fails=True, steps=200)
def tis_unit_rows(is_faulty):
    xa, ya, xb, yb = digits()
    xa = xa.clone()
    blank = torch.rand(len(xa), generator=gen(74)) < 0.03
    xa[blank] = 0
    model = nn.Sequential(nn.Linear(64, 48, bias=False), nn.ReLU(), tis_Norming(0.0 if is_faulty else 1e-6), nn.Linear(48, 10))
    return Program(model, nn.CrossEntropyLoss(), loader(xa, ya, 32), torch.optim.Adam(model.parameters(), lr=0.01),
                   accuracy(xb, yb))


@fault("unit-variance weights in six layers", rules=["bad-initialisation", "activation-drift", "exploding-gradient", "saturated-output"],
       fails=False, steps=250)
def tis_randn_layers(is_faulty):
    xa, ya, xb, yb = digits()

    class tis_Dense(nn.Module):
        def __init__(self, a, b):
            super().__init__()
            self.w = nn.Parameter(torch.randn(a, b) * (1.0 if is_faulty else math.sqrt(2 / a)))
            self.b = nn.Parameter(torch.zeros(b))

        def forward(self, x):
            return x @ self.w + self.b

    sizes, layers = [64, 48, 48, 48, 48, 48], []
    for a, b in zip(sizes, sizes[1:]):
        layers += [tis_Dense(a, b), nn.ReLU()]
    model = nn.Sequential(*layers, tis_Dense(48, 10))
    return Program(model, nn.CrossEntropyLoss(), loader(xa, ya, 32), torch.optim.Adam(model.parameters(), lr=1e-3),
                   accuracy(xb, yb))


@fault("KLDivLoss given probabilities", rules=["output-loss-mismatch"], fails=False, steps=300)
def tis_label_distribution(is_faulty):
    g = gen(75)
    x, _ = sensors(1800, seed=75)
    w = torch.randn(10, 6, generator=g) * 0.8
    p = torch.softmax(x @ w + 0.5 * (x[:, :1] * x[:, 1:2]), 1)
    xa, pa, xb, pb = split(x, p)
    model = nn.Sequential(nn.Linear(10, 48), nn.ReLU(), nn.Linear(48, 6), nn.Softmax(1) if is_faulty else nn.LogSoftmax(1))

    def score(m):
        out = m(xb)
        out = out / out.sum(1, keepdim=True) if (out >= 0).all() else out.exp()
        return r2(out, pb)

    return Program(model, nn.KLDivLoss(reduction="batchmean"), loader(xa, pa, 36),
                   torch.optim.Adam(model.parameters(), lr=5e-3), score)


@fault("predicted counts are rounded in front of the loss", rules=["no-gradient", "loss-not-decreasing"], fails=True, steps=300)
def tis_rounded_counts(is_faulty):
    x, y = sensors(1600, seed=76)
    count = torch.poisson((y + 1.5).clamp(0, 4) * 2, generator=gen(77))
    xa, ya, xb, yb = split(x, count)
    clean = (xb[:, 3] * 0 + (torch.sin(1.3 * xb[:, 0]) + xb[:, 1] * xb[:, 2] * 0.7 + 0.5 * xb[:, 3] + 1.5).clamp(0, 4) * 2)

    class tis_Counter(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = nn.Sequential(nn.Linear(10, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1), nn.Softplus())

        def forward(self, x):
            n = self.net(x)[:, 0]
            return torch.round(n) if is_faulty else n

    model = tis_Counter()
    return Program(model, nn.L1Loss(), loader(xa, ya, 32), torch.optim.Adam(model.parameters(), lr=3e-3), r_squared(xb, clean))


@fault("hooks clip every gradient at a millionth", rules=["vanishing-gradient", "learning-rate-too-low", "no-gradient", "loss-not-decreasing"],
       fails=True, steps=250)
def tis_clipped_by_hooks(is_faulty):
    xa, ya, xb, yb = digits(8.0)
    model = nn.Sequential(nn.Linear(64, 64), nn.Mish(), nn.Linear(64, 10))
    most = 1e-6 if is_faulty else 1.0
    for p in model.parameters():
        p.register_hook(lambda g: g.clamp(-most, most))
    return Program(model, nn.CrossEntropyLoss(), loader(xa, ya, 32), torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9),
                   accuracy(xb, yb))


class tis_Propagate(nn.Module):
    def __init__(self, hops):
        super().__init__()
        self.hops = hops
        self.lin = nn.Linear(12, 32)
        self.out = nn.Linear(32, 4)

    def forward(self, x, adj):
        h = self.lin(x)
        for _ in range(self.hops):
            h = adj @ h
        return self.out(F.relu(h))


@fault("sixty rounds of averaging over neighbours", rules=["rank-collapse"], fails=True, steps=200)
def tis_averaged_nodes(is_faulty):
    g = gen(78)
    y = torch.arange(160) % 4
    near = torch.where(y[:, None] == y[None], 0.2, 0.02)
    adj = (torch.rand(160, 160, generator=g) < near).float().triu(1)
    adj = adj + adj.T + torch.eye(160)
    adj = adj / adj.sum(1, keepdim=True)
    x = torch.randn(160, 12, generator=g) + 0.7 * F.one_hot(y, 12)
    train = torch.rand(160, generator=g) < 0.5
    model = tis_Propagate(60 if is_faulty else 2)
    batches = [({"x": x, "adj": adj}, torch.where(train, y, -100))]
    return Program(model, nn.CrossEntropyLoss(), batches, torch.optim.Adam(model.parameters(), lr=0.01),
                   lambda m: (m(x, adj).argmax(1) == y)[~train].float().mean().item())


@fault("(N, C, H, W) read as if channels came last", rules=["output-loss-mismatch"], fails=True, steps=300)
def tis_view_of_channels(is_faulty):
    def make(n, seed):
        image, mask = parts(n, seed, size=12)
        classes = mask.long() * (1 + (torch.arange(12) > 5).long())[None, None]
        return image, classes

    xa, ya = make(500, 79)
    xb, yb = make(150, 80)

    class tis_Dense3(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.c = nn.Conv2d(3, 12, 3, padding=1), nn.Conv2d(12, 12, 3, padding=1), nn.Conv2d(12, 3, 1)

        def forward(self, x):
            axis = torch.linspace(-1, 1, 12)
            grid = torch.stack(torch.meshgrid(axis, axis, indexing="ij"))
            x = torch.cat([x, grid.expand(len(x), -1, -1, -1)], 1)
            return self.c(F.relu(self.b(F.relu(self.a(x)))))

    def loss(out, t):
        if is_faulty:
            return F.cross_entropy(out.reshape(-1, 3), t.reshape(-1))
        return F.cross_entropy(out.permute(0, 2, 3, 1).reshape(-1, 3), t.reshape(-1))

    def score(m):
        found = m(xb).argmax(1)
        return sum((((found == c) & (yb == c)).sum() / ((found == c) | (yb == c)).sum()).item() for c in range(3)) / 3

    model = tis_Dense3()
    return Program(model, loss, loader(xa, ya, 16), torch.optim.Adam(model.parameters(), lr=5e-3), score)


@fault("batches of three in front of BatchNorm", rules=["small-batch-batchnorm", "batchnorm-mode-gap"], fails=False, steps=400)
def tis_three_at_a_time(is_faulty):
    x, y = credit(2400, seed=81)
    x = torch.cat([x[:, :1].log(), x[:, 1:]], 1)
    xa, ya, xb, yb = split((x - x.mean(0)) / x.std(0), y)
    layers, wide = [], 6
    for _ in range(3):
        layers += [nn.Linear(wide, 32), nn.BatchNorm1d(32), nn.ReLU()]
        wide = 32
    model = nn.Sequential(*layers, nn.Linear(32, 2))
    return Program(model, nn.CrossEntropyLoss(), loader(xa, ya, 2 if is_faulty else 48, drop_last=True),
                   torch.optim.Adam(model.parameters(), lr=3e-3), accuracy(xb, yb))


@fault("classes counted from one", rules=["output-loss-mismatch", "model-fails"], fails=True, steps=200)
def tis_severity_grades(is_faulty):
    xa, ya, xb, yb = table("iris")
    ya = ya + 1 if is_faulty else ya
    model = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 3), nn.LogSoftmax(1))
    return Program(model, nn.NLLLoss(), loader(xa, ya, 16), torch.optim.Adagrad(model.parameters(), lr=0.1), accuracy(xb, yb))


@fault("softmax and cross-entropy for labels that go together", rules=["output-loss-mismatch"], fails=False, steps=300)
def tis_findings(is_faulty):
    g = gen(82)
    x = torch.randn(2000, 12, generator=g)
    y = ((x @ torch.randn(12, 5, generator=g) * 0.5 + x[:, :5] * x[:, 5:10]) > 1.8).float()
    xa, ya, xb, yb = split(x, y)

    def score(m):
        found, real = m(xb) > 0, yb > 0.5
        return (2 * (found & real).sum() / (found.sum() + real.sum())).item()

    model = nn.Sequential(nn.Linear(12, 96), nn.ReLU(), nn.Linear(96, 96), nn.ReLU(), nn.Linear(96, 5))
    return Program(model, nn.CrossEntropyLoss() if is_faulty else nn.BCEWithLogitsLoss(), loader(xa, ya, 40),
                   torch.optim.Adam(model.parameters(), lr=5e-3), score)
