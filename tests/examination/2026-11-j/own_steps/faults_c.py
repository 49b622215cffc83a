"""Precision, optimizers, schedules, losses wrapped by hand."""
import torch
import torch.nn.functional as F
from own_common import acc, clusters, gen, loader, r2, smooth
from program import Program, fault
from torch import nn


@fault(
    "Weights in bfloat16, and a rate whose steps the embedding cannot hold",
    rules=("lost-updates",), layers=("emb",), fails=False, steps=400,
)
def bfloat_weights_small_rate(faulty):
    g = gen(21)
    tok = torch.randint(0, 200, (2400, 3), generator=g)
    y = torch.randn(200, 3, generator=g)[tok].sum(1).argmax(1)
    dtype = torch.bfloat16 if faulty else torch.float32

    class Bag(nn.Module):
        def __init__(self):
            super().__init__()
            self.emb, self.head = nn.Embedding(200, 16), nn.Linear(16, 3)

        def forward(self, t):
            return self.head(self.emb(t).sum(1))

    m = Bag().to(dtype)
    return Program(m, lambda o, t: F.cross_entropy(o.float(), t), loader(tok[:1900], y[:1900], bs=128),
                   torch.optim.Adam(m.parameters(), 2.5e-3), lambda m: acc(m(tok[1900:]).float(), y[1900:]))


@fault(
    "Squared distances of 256 large features are summed in float16 under autocast",
    rules=("half-overflow", "non-finite"), fails=True, steps=200,
)
def prototype_distances_in_half(faulty):
    x, y = clusters(23, 1600, 16, 4, sep=0.9)

    class Proto(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Linear(16, 256)
            self.anchors = nn.Parameter(torch.randn(8, 16))
            self.top = nn.Linear(8, 4)

        def forward(self, x):
            with torch.autocast("cpu", dtype=torch.float16):
                h, p = self.embed(x) * 16, self.embed(self.anchors) * 16
                if not faulty:
                    h, p = h.float(), p.float()
                d2 = (h[:, None] - p[None]).pow(2).sum(-1)
            return self.top(-d2.float() / 2**14)

    m = Proto()

    def score(m):
        out = m(x[1200:])
        return acc(out, y[1200:]) if out.isfinite().all() else 0.0

    return Program(m, F.cross_entropy, loader(x[:1200], y[:1200], bs=32), torch.optim.Adam(m.parameters(), 1e-2), score)


@fault(
    "weight_decay=0.9, meant as the decay of the learning rate",
    rules=("weight-decay-dominates",), fails=True, steps=300,
)
def ode_weight_decay(faulty):
    x, y = smooth(24, 1600, 4, 2)

    class ODE(nn.Module):
        def __init__(self):
            super().__init__()
            self.lift = nn.Linear(4, 24)
            self.field = nn.Sequential(nn.Linear(24, 48), nn.Tanh(), nn.Linear(48, 24))
            self.read = nn.Linear(24, 2)

        def forward(self, x):
            h = self.lift(x)
            for _ in range(5):
                h = h + 0.2 * self.field(h)
            return self.read(h)

    m = ODE()
    return Program(m, F.mse_loss, loader(x[:1300], y[:1300]),
                   torch.optim.Adam(m.parameters(), 5e-3, weight_decay=0.9 if faulty else 0.0),
                   lambda m: r2(m(x[1300:]), y[1300:]))


@fault(
    "ExponentialLR(gamma=0.7), meant for epochs, is stepped with every batch",
    rules=("learning-rate-too-low",), fails=True, steps=300,
)
def schedule_every_batch(faulty):
    x, t = smooth(25, 1600, 6, 2)
    lab = (t[:, 1] > 0).float()

    class TwoHeads(nn.Module):
        def __init__(self):
            super().__init__()
            self.trunk = nn.Sequential(nn.Linear(6, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU())
            self.reg, self.cls = nn.Linear(64, 1), nn.Linear(64, 1)

        def forward(self, x):
            h = self.trunk(x)
            return self.reg(h).squeeze(1), self.cls(h).squeeze(1)

    def step(m, batch):
        xb, a, b = batch
        r, c = m(xb)
        return F.mse_loss(r, a) + F.binary_cross_entropy_with_logits(c, b)

    m = TwoHeads()
    opt = torch.optim.Adam(m.parameters(), 2e-3)
    sched = torch.optim.lr_scheduler.ExponentialLR(opt, 0.7 if faulty else 0.7 ** (1 / 40))
    return Program(m, None, loader(x[:1300], t[:1300, 0], lab[:1300]), opt,
                   lambda m: r2(m(x[1300:])[0], t[1300:, 0]), scheduler=sched, step=step)


@fault(
    "Masked modelling, but the masked copy is thrown away: the network sees what it is asked for",
    rules=("future-seen",), fails=False, steps=400,
)
def masked_copy_unused(faulty):
    g = gen(29)
    x = torch.randn(2000, 3, generator=g) @ torch.randn(3, 16, generator=g) / 1.7 + 0.1 * torch.randn(2000, 16, generator=g)
    tm = torch.rand(400, 16, generator=g) < 0.3
    m = nn.Sequential(nn.Linear(32, 96), nn.ReLU(), nn.Linear(96, 16))

    def step(m, batch):
        (xb,) = batch
        mask = torch.rand_like(xb) < 0.3
        seen = xb.clone()
        if faulty:
            seen.masked_fill(mask, 0.0)
        else:
            seen.masked_fill_(mask, 0.0)
        out = m(torch.cat([seen, mask.float()], 1))
        return ((out - xb)[mask]).pow(2).mean()

    test = x[1600:]
    return Program(m, None, loader(x[:1600]), torch.optim.Adam(m.parameters(), 5e-3),
                   lambda m: r2(m(torch.cat([test.masked_fill(tm, 0.0), tm.float()], 1))[tm], test[tm]), step=step)


@fault(
    "Adam with eps=1.0, copied from a recipe for another network",
    rules=("optimizer-setting", "learning-rate-too-low"), fails=True, steps=300,
)
def adam_eps_one(faulty):
    x, y = smooth(30, 1600, 6)
    m = nn.Sequential(nn.Linear(6, 64), nn.SiLU(), nn.Linear(64, 64), nn.SiLU(), nn.Linear(64, 1))
    groups = [{"params": m[0].parameters(), "lr": 1e-3}, {"params": m[2:].parameters(), "lr": 2e-3}]
    return Program(m, nn.HuberLoss(), loader(x[:1300], y[:1300]), torch.optim.Adam(groups, eps=1.0 if faulty else 1e-8),
                   lambda m: r2(m(x[1300:]), y[1300:]))


@fault(
    "Rewards between 0 and 1 are stored as integers: they are all 0",
    rules=("constant-target",), fails=True, steps=300,
)
def reward_as_long(faulty):
    x, y = smooth(31, 1600, 5)
    r = torch.sigmoid(1.5 * y[:, 0])
    stored = r.long().float() if faulty else r
    m = nn.Sequential(nn.Linear(5, 64), nn.ReLU(), nn.Linear(64, 1))

    def step(m, batch):
        s, rew = batch
        return F.binary_cross_entropy_with_logits(m(s).squeeze(1), rew)

    return Program(m, None, loader(x[:1300], stored[:1300]), torch.optim.Adam(m.parameters(), 1e-2),
                   lambda m: r2(torch.sigmoid(m(x[1300:])), r[1300:]), step=step)


@fault(
    "A sparse autoencoder whose encoder bias starts at -6: nothing fires",
    rules=("dying-neurons", "bad-initialisation", "no-gradient", "rank-collapse"), layers=("encoder", "act"), fails=True, steps=300,
)
def sparse_autoencoder_bias(faulty):
    g = gen(32)
    x = torch.relu(torch.randn(1500, 8, generator=g) - 0.5) @ torch.randn(8, 20, generator=g)
    x = x / x.std()

    class SAE(nn.Module):
        def __init__(self):
            super().__init__()
            self.encoder, self.act, self.decoder = nn.Linear(20, 80), nn.ReLU(), nn.Linear(80, 20)
            nn.init.constant_(self.encoder.bias, -6.0 if faulty else -0.1)

        def forward(self, x):
            z = self.act(self.encoder(x))
            return self.decoder(z), z

    def step(m, batch):
        rec, z = m(batch[0])
        return F.mse_loss(rec, batch[0]) + 1e-3 * z.abs().mean()

    m = SAE()
    return Program(m, None, loader(x[:1200]), torch.optim.Adam(m.parameters(), 3e-3),
                   lambda m: r2(m(x[1200:])[0], x[1200:]), step=step)
