"""Sound set-ups that look odd."""

import copy
import math

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.parametrizations import spectral_norm, weight_norm
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.checkpoint import checkpoint

from data import *
from program import Program, sound


@sound("The last layer starts at zero, so that the first prediction is the mean", steps=250, least=0.8)
def zero_last_layer():
    start()
    xa, ya, xb, yb = smooth()
    m = nn.Sequential(nn.Linear(6, 64), nn.SiLU(), nn.Linear(64, 64), nn.SiLU(), nn.Linear(64, 1))
    nn.init.zeros_(m[-1].weight)
    nn.init.zeros_(m[-1].bias)
    return Program(m, nn.MSELoss(), loader(xa, ya), torch.optim.Adam(m.parameters(), 3e-3), r2(xb, yb))


@sound("ReZero: every residual branch has a gate that starts at 0", steps=200, least=0.85)
def rezero_mlp():
    start()
    xa, ya, xb, yb = digits()

    class Block(nn.Module):
        def __init__(self, d):
            super().__init__()
            self.f = nn.Linear(d, d)
            self.alpha = nn.Parameter(torch.zeros(()))

        def forward(self, x):
            return x + self.alpha * F.relu(self.f(x))

    m = nn.Sequential(nn.Flatten(), nn.Linear(64, 48), *[Block(48) for _ in range(10)], nn.Linear(48, 10))
    return Program(m, nn.CrossEntropyLoss(), loader(xa, ya), torch.optim.Adam(m.parameters(), 2e-3), accuracy(xb, yb))


class SmallConv(nn.Module):
    def __init__(self, classes, bn=False):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 12, 3)
        self.bn1 = nn.BatchNorm2d(12) if bn else nn.Identity()
        self.conv2 = nn.Conv2d(12, 24, 3)
        self.bn2 = nn.BatchNorm2d(24) if bn else nn.Identity()
        self.fc = nn.Linear(24 * 16, classes)

    def features(self, x):
        x = F.relu(self.bn1(self.conv1(x)))
        return F.relu(self.bn2(self.conv2(x))).flatten(1)

    def forward(self, x):
        return self.fc(self.features(x))


@sound("A backbone pre-trained on even/odd is frozen, its BatchNorms kept in evaluation mode; only a fresh head learns", trained=40, steps=200, least=0.85)
def frozen_backbone_frozen_norms():
    start()
    xa, ya, xb, yb = digits()

    class Frozen(SmallConv):
        def train(self, mode=True):
            super().train(mode)
            self.bn1.eval()
            self.bn2.eval()
            return self

    m = SmallConv(2, bn=True)
    Program(m, F.cross_entropy, loader(xa, ya % 2), torch.optim.Adam(m.parameters(), 2e-3), accuracy(xb, yb % 2)).train(80)
    m.__class__ = Frozen
    for p in m.parameters():
        p.requires_grad_(False)
    m.fc = nn.Linear(24 * 16, 10)
    m.train()
    return Program(m, F.cross_entropy, loader(xa, ya), torch.optim.Adam(m.fc.parameters(), 2e-3), accuracy(xb, yb))


@sound("An autoencoder whose decoder uses the encoder's weights, transposed", trained=250, steps=300, least=0.7)
def tied_autoencoder():
    start()
    xa, _, xb, _ = digits(standard=False)
    xa, xb = xa.flatten(1), xb.flatten(1)

    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.w1 = nn.Parameter(torch.randn(48, 64) * 0.12)
            self.w2 = nn.Parameter(torch.randn(16, 48) * 0.14)
            self.b1, self.b2 = nn.Parameter(torch.zeros(48)), nn.Parameter(torch.zeros(16))
            self.c1, self.c2 = nn.Parameter(torch.zeros(48)), nn.Parameter(torch.zeros(64))

        def forward(self, x):
            z = F.linear(F.elu(F.linear(x, self.w1, self.b1)), self.w2, self.b2)
            return F.linear(F.elu(F.linear(z, self.w2.T, self.c1)), self.w1.T, self.c2)

    m = Tied()
    return Program(m, nn.MSELoss(), loader(xa, xa), torch.optim.Adam(m.parameters(), 3e-3), lambda m: r2_of(m(xb), xb))


@sound("Weight normalisation of all layers", steps=200, least=0.9)
def weight_normed():
    start()
    xa, ya, xb, yb = digits()
    m = nn.Sequential(weight_norm(nn.Conv2d(1, 12, 3)), nn.ReLU(), weight_norm(nn.Conv2d(12, 16, 3)), nn.ReLU(), nn.Flatten(), weight_norm(nn.Linear(256, 10)))
    return Program(m, nn.CrossEntropyLoss(), loader(xa, ya), torch.optim.Adam(m.parameters(), 2e-3), accuracy(xb, yb))


@sound("Batches of four with GroupNorm", steps=350, least=0.8)
def batches_of_four():
    start()
    xa, ya, xb, yb = digits()
    m = nn.Sequential(nn.Conv2d(1, 16, 3), nn.GroupNorm(4, 16), nn.ReLU(), nn.Conv2d(16, 16, 3, 2), nn.GroupNorm(4, 16), nn.ReLU(), nn.Flatten(), nn.Linear(64, 10))
    return Program(m, nn.CrossEntropyLoss(), loader(xa, ya, batch=4), torch.optim.SGD(m.parameters(), 0.01, momentum=0.9), accuracy(xb, yb))


@sound("A warm-up from a thousandth of the rate, then a cosine", steps=250, least=0.9)
def long_warmup():
    start()
    xa, ya, xb, yb = digits()
    m = nn.Sequential(nn.Flatten(), nn.Linear(64, 96), nn.LayerNorm(96), nn.GELU(), nn.Linear(96, 10))
    opt = torch.optim.AdamW(m.parameters(), 4e-3, weight_decay=0.05)
    rate = lambda s: max(1e-3, s / 50) if s < 50 else 0.5 * (1 + math.cos(math.pi * min(1, (s - 50) / 250)))
    return Program(m, nn.CrossEntropyLoss(label_smoothing=0.1), loader(xa, ya), opt, accuracy(xb, yb), scheduler=LambdaLR(opt, rate))


@sound("One positive in twenty, with a weight for positives", trained=100, steps=300, least=0.7)
def rare_positives():
    start()
    r = np.random.RandomState(11)
    x = r.randn(3000, 6)
    s = x[:, 0] + 0.8 * np.abs(x[:, 1]) - 0.5 * x[:, 2]
    y = (s > np.quantile(s, 0.95)).astype("float32")
    x, y = torch.tensor(x, dtype=torch.float32), torch.tensor(y)[:, None]
    m = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 1))
    nn.init.constant_(m[-1].bias, -3.0)
    loss = nn.BCEWithLogitsLoss(pos_weight=torch.tensor(8.0))

    def score(m):
        p = m(x[:1000]) > 0
        t = y[:1000] > 0
        return 0.5 * (p[t].float().mean() + (~p[~t]).float().mean()).item() * 2 - 1

    return Program(m, loss, loader(x[1000:], y[1000:], batch=64), torch.optim.Adam(m.parameters(), 3e-3), score)


@sound("Sparse counts: nine of ten inputs are zero and some columns are almost never used", trained=200, steps=250, least=0.85)
def sparse_counts():
    start()
    r = np.random.RandomState(12)
    topics = r.dirichlet(np.full(150, 0.05), 4)
    y = r.randint(0, 4, 1500)
    x = np.stack([r.multinomial(20, 0.6 * topics[k] + 0.4 * topics.mean(0)) for k in y])
    x, y = torch.log1p(torch.tensor(x, dtype=torch.float32)), torch.tensor(y)
    m = nn.Sequential(nn.Linear(150, 32), nn.ReLU(), nn.Dropout(0.5), nn.Linear(32, 4))
    return Program(m, nn.CrossEntropyLoss(), loader(x[300:], y[300:]), torch.optim.Adam(m.parameters(), 3e-3), accuracy(x[:300], y[:300]))


@sound("Prices in plain money; the head scales its output by the mean and spread of the training targets, the loss divides by the spread", steps=250, least=0.8)
def scaled_head():
    start()
    xa, ya, xb, yb = smooth(seed=36)
    pa, pb = 250_000 + 60_000 * ya, 250_000 + 60_000 * yb

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = nn.Sequential(nn.Linear(6, 64), nn.ReLU(), nn.Linear(64, 1))
            self.register_buffer("mean", pa.mean())
            self.register_buffer("std", pa.std())

        def forward(self, x):
            return self.mean + self.std * self.body(x)

    m = Net()
    return Program(m, lambda p, t: F.mse_loss(p / 60_000, t / 60_000), loader(xa, pa), torch.optim.Adam(m.parameters(), 5e-3), r2(xb, pb))


@sound("Two auxiliary heads on early layers, with small weights, that are not used for prediction", steps=200, least=0.9)
def deep_supervision():
    start()
    xa, ya, xb, yb = digits()

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.c1, self.c2, self.c3 = nn.Conv2d(1, 12, 3), nn.Conv2d(12, 16, 3), nn.Conv2d(16, 24, 3)
            self.aux1, self.aux2 = nn.Linear(12, 10), nn.Linear(16, 10)
            self.head = nn.Linear(24 * 4, 10)

        def forward(self, x):
            a = F.relu(self.c1(x))
            b = F.relu(self.c2(a))
            c = F.relu(self.c3(b))
            main = self.head(c.flatten(1))
            return (main, self.aux1(a.mean((2, 3))), self.aux2(b.mean((2, 3)))) if self.training else main

    def loss(out, y):
        main, one, two = out
        return F.cross_entropy(main, y) + 0.2 * F.cross_entropy(one, y) + 0.2 * F.cross_entropy(two, y)

    m = Net()
    return Program(m, loss, loader(xa, ya), torch.optim.Adam(m.parameters(), 3e-3), accuracy(xb, yb))


@sound("Gradient checkpointing of the residual blocks", steps=150, least=0.9)
def checkpointed_residual():
    start()
    xa, ya, xb, yb = digits()

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.stem = nn.Linear(64, 64)
            self.blocks = nn.ModuleList([nn.Sequential(nn.LayerNorm(64), nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 64)) for _ in range(3)])
            self.head = nn.Linear(64, 10)

        def forward(self, x):
            h = self.stem(x.flatten(1))
            for b in self.blocks:
                h = h + checkpoint(b, h, use_reentrant=False)
            return self.head(h)

    m = Net()
    return Program(m, F.cross_entropy, loader(xa, ya), torch.optim.AdamW(m.parameters(), 2e-3), accuracy(xb, yb))


@sound("A mean teacher: a slow copy of the network lives in the model, gets no gradient and is what is scored", trained=120, steps=250, least=0.85)
def mean_teacher():
    start()
    xa, ya, xb, yb = digits()

    class MeanTeacher(nn.Module):
        def __init__(self):
            super().__init__()
            self.student = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Dropout(0.2), nn.Linear(64, 10))
            self.teacher = copy.deepcopy(self.student).requires_grad_(False)

        def forward(self, x):
            return self.student(x) if self.training else self.teacher(x)

    def step(model, batch):
        x, y = batch
        with torch.no_grad():
            for s, t in zip(model.student.parameters(), model.teacher.parameters()):
                t.lerp_(s, 0.03)
            target = model.teacher(x + 0.1 * torch.randn_like(x)).softmax(1)
        logits = model.student(x)
        return F.cross_entropy(logits, y) + 0.5 * F.mse_loss(logits.softmax(1), target)

    m = MeanTeacher()
    return Program(m, None, loader(xa, ya), torch.optim.Adam(m.student.parameters(), 3e-3), score=accuracy(xb, yb), step=step)


@sound("A contrastive loss (NT-Xent) that compares each example with all others of its batch", trained=60, steps=200, least=0.92)
def contrastive_views():
    start()
    xa, ya, xb, yb = digits()
    g = torch.Generator().manual_seed(2)

    class Views:
        def __len__(self):
            return 43

        def __iter__(self):
            for i in torch.randperm(len(xa), generator=g)[:1376].split(32):
                x = xa[i]
                both = torch.stack([x, x])
                yield both.flatten(0, 1) + 0.5 * torch.randn(64, 1, 8, 8, generator=g), torch.arange(64).roll(32)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.enc = nn.Sequential(nn.Flatten(), nn.Linear(64, 96), nn.ReLU(), nn.Linear(96, 48))
            self.proj = nn.Sequential(nn.ReLU(), nn.Linear(48, 24))

        def forward(self, x):
            return F.normalize(self.proj(self.enc(x)), dim=1)

    def nt_xent(z, partner):
        sim = z @ z.T / 0.2
        sim = sim.masked_fill(torch.eye(len(z), dtype=torch.bool), float("-inf"))
        return F.cross_entropy(sim, partner)

    def score(m):
        near = torch.cdist(m(xb), m(xa)).topk(5, largest=False).indices
        return (ya[near].mode(1).values == yb).float().mean().item()

    m = Net()
    return Program(m, nt_xent, Views(), torch.optim.Adam(m.parameters(), 2e-3), score)


@sound("Low-rank adapters (one matrix starts at zero) on a frozen pre-trained net", steps=250, least=0.85)
def lora_adapters():
    start()
    xa, ya, xb, yb = digits()

    class Adapted(nn.Module):
        def __init__(self, base):
            super().__init__()
            self.base = base.requires_grad_(False)
            self.down = nn.Linear(base.in_features, 8, bias=False)
            self.up = nn.Linear(8, base.out_features, bias=False)
            nn.init.zeros_(self.up.weight)

        def forward(self, x):
            return self.base(x) + 2 * self.up(self.down(x))

    m = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    Program(m, F.cross_entropy, loader(xa, ya), torch.optim.Adam(m.parameters(), 3e-3), accuracy(xb, yb)).train(100)
    for i in (1, 3, 5):
        m[i] = Adapted(m[i])
    fa, fb = xa.flip(3), xb.flip(3)
    opt = torch.optim.AdamW([p for p in m.parameters() if p.requires_grad], 4e-3)
    return Program(m, F.cross_entropy, loader(fa, ya), opt, accuracy(fb, yb))


@sound("Log-normal inputs over four orders of magnitude; the model takes their logarithm and normalises them itself", steps=250, least=0.8)
def log_normal_inputs():
    start()
    xa, ya, xb, yb = smooth(seed=46)
    wide = lambda x: torch.exp(1.5 * x + 2)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = nn.BatchNorm1d(6)
            self.l1, self.l2, self.l3 = nn.Linear(6, 64), nn.Linear(64, 64), nn.Linear(64, 1)

        def forward(self, x):
            h = self.norm(torch.log(x))
            return self.l3(torch.tanh(self.l2(torch.tanh(self.l1(h)))))

    m = Net()
    return Program(m, nn.MSELoss(), loader(wide(xa), ya), torch.optim.Adam(m.parameters(), 3e-3), r2(wide(xb), yb))


@sound("A sine network (SIREN) that fits a wave: first frequencies of 15, the input one coordinate", trained=150, steps=300, least=0.8)
def siren_wave():
    start()
    t = torch.linspace(-1, 1, 800)[:, None]
    y = torch.sin(9 * t) * torch.exp(-t**2) + 0.5 * torch.sin(21 * t)

    class Sine(nn.Module):
        def __init__(self, i, o, w0, first=False):
            super().__init__()
            self.w0, self.lin = w0, nn.Linear(i, o)
            bound = 1 / i if first else math.sqrt(6 / i) / w0
            nn.init.uniform_(self.lin.weight, -bound, bound)

        def forward(self, x):
            return torch.sin(self.w0 * self.lin(x))

    m = nn.Sequential(Sine(1, 48, 15.0, True), Sine(48, 48, 15.0), nn.Linear(48, 1))
    return Program(m, nn.MSELoss(), loader(t[::2], y[::2]), torch.optim.Adam(m.parameters(), 1e-3), r2(t[1::2], y[1::2]))


@sound("A Cox partial likelihood: the loss compares each patient with those of its batch who lived longer", steps=250, least=0.8)
def survival_cox():
    start()
    r = np.random.RandomState(13)
    x = r.randn(1500, 6)
    risk = 1.2 * x[:, 0] + np.abs(x[:, 1]) - 0.8 * x[:, 2]
    time = r.exponential(np.exp(-1.5 * risk))
    censor = r.exponential(np.quantile(time, 0.8) * 2, 1500)
    event, seen = (time <= censor).astype("float32"), np.minimum(time, censor)
    x, t = torch.tensor(x, dtype=torch.float32), torch.tensor(np.stack([seen, event], 1), dtype=torch.float32)

    def cox(out, t):
        order = t[:, 0].argsort(descending=True)
        h, e = out[order, 0], t[order, 1]
        return -((h - torch.logcumsumexp(h, 0)) * e).sum() / e.sum().clamp(min=1)

    def score(m):  # concordance with the true risk
        h, z = m(x[:300])[:, 0], torch.tensor(risk[:300])
        i, j = torch.triu_indices(300, 300, 1)
        return 2 * ((h[i] > h[j]) == (z[i] > z[j])).float().mean().item() - 1

    m = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 1, bias=False))
    return Program(m, cox, loader(x[300:], t[300:], batch=64), torch.optim.Adam(m.parameters(), 2e-3), score)


@sound("One block used five times on purpose, with the input added each time", trained=100, steps=200, least=0.9)
def unrolled_block():
    start()
    xa, ya, xb, yb = digits()

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.inp, self.rec = nn.Linear(64, 64), nn.Linear(64, 64)
            self.norm, self.out = nn.LayerNorm(64), nn.Linear(64, 10)

        def forward(self, x):
            u = self.inp(x.flatten(1))
            z = torch.zeros_like(u)
            for _ in range(5):
                z = F.relu(self.norm(self.rec(z) + u))
            return self.out(z)

    m = Net()
    return Program(m, F.cross_entropy, loader(xa, ya), torch.optim.Adam(m.parameters(), 1e-3), accuracy(xb, yb))


@sound("Distillation: a trained, frozen teacher inside the model, softened targets", steps=200, least=0.85)
def distilled_student():
    start()
    xa, ya, xb, yb = digits()
    teacher = SmallConv(10)
    Program(teacher, F.cross_entropy, loader(xa, ya), torch.optim.Adam(teacher.parameters(), 2e-3), accuracy(xb, yb)).train(100)
    teacher.requires_grad_(False).eval()

    class Distiller(nn.Module):
        def __init__(self):
            super().__init__()
            self.student = nn.Sequential(nn.Flatten(), nn.Linear(64, 24), nn.ReLU(), nn.Linear(24, 10))
            self.teacher = teacher

        def forward(self, x):
            return self.student(x)

    def step(model, batch, T=3.0):
        x, y = batch
        s = model(x)
        soft = F.kl_div(F.log_softmax(s / T, 1), F.log_softmax(model.teacher(x) / T, 1), reduction="batchmean", log_target=True) * T * T
        return 0.7 * soft + 0.3 * F.cross_entropy(s, y)

    m = Distiller()
    return Program(m, None, loader(xa, ya), torch.optim.Adam(m.student.parameters(), 3e-3), accuracy(xb, yb), step=step)


@sound("A critic with spectral norm and hinge loss: real images against imitations", trained=100, steps=200, least=0.7)
def hinge_critic():
    start()
    xa, _, xb, _ = digits(standard=False)
    xa, xb = xa * 2 - 1, xb * 2 - 1
    g = torch.Generator().manual_seed(1)
    mean, std = xa.mean(0), xa.std(0)
    fa = (mean + std * torch.randn(xa.shape, generator=g)).clamp(-1, 1)
    fb = (mean + std * torch.randn(xb.shape, generator=g)).clamp(-1, 1)
    m = nn.Sequential(spectral_norm(nn.Conv2d(1, 16, 4, 2, 1)), nn.LeakyReLU(0.2), spectral_norm(nn.Conv2d(16, 32, 4, 2, 1)), nn.LeakyReLU(0.2), nn.Flatten(), spectral_norm(nn.Linear(128, 1)))

    def step(D, batch):
        real, fake = batch
        return F.relu(1 - D(real)).mean() + F.relu(1 + D(fake)).mean()

    score = lambda m: max(0.0, (m(xb) > 0).float().mean().item() + (m(fb) < 0).float().mean().item() - 1)
    return Program(m, None, loader(xa, fa, batch=24), torch.optim.Adam(m.parameters(), 2e-3, betas=(0.0, 0.9)), score, step=step)
