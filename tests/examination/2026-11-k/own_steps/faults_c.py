import torch
import torch.nn.functional as F
from parts import acc, blobs, curved, factors, gen, loader, mlp, r2
from program import Program, fault
from torch import nn


@fault("all weights in bfloat16 with a small rate: most steps round away",
       rules=["lost-updates", "rounding-error"], fails=False, steps=400)
def pure_bfloat16(bad):
    x, y = blobs(d=16, k=6, noise=1.0)
    model = nn.Sequential(nn.Linear(16, 128), nn.GELU(), nn.Linear(128, 128), nn.GELU(), nn.Linear(128, 6))
    dt = torch.bfloat16 if bad else torch.float32
    model.to(dt)
    opt = torch.optim.Adam(model.parameters(), 5e-5)

    def step(model, batch):
        v, t = batch
        return F.cross_entropy(model(v.to(dt)).float(), t)

    return Program(model, None, loader(x[:1200], y[:1200]), opt, lambda m: acc(m(x[1200:].to(dt)).float(), y[1200:]),
                   step=step)


@fault("float16 autocast without loss scaling, for a mean over many small numbers",
       rules=["gradient-underflow", "no-gradient"], fails=True, steps=250)
def autocast_without_scaler(bad):
    g = gen(14)
    x = torch.randn(1200, 8, generator=g)
    y = 0.01 * torch.tanh(x @ torch.randn(8, 64, generator=g) / 2)
    model = mlp(8, 64, 64)
    opt = torch.optim.Adam(model.parameters(), 2e-3, eps=1e-12)

    def step(model, batch):
        v, t = batch
        with torch.autocast("cpu", dtype=torch.float16):
            out = model(v)
        loss = F.mse_loss(out.float() * 0.01, t)
        return loss if bad else loss * 2**16

    return Program(model, None, loader(x[:1000], y[:1000], size=256), opt, lambda m: r2(0.01 * m(x[1000:]), y[1000:]), step=step)


class Norm(nn.Module):
    def __init__(self, d, bad):
        super().__init__()
        self.scale, self.bad = nn.Parameter(torch.ones(d)), bad

    def forward(self, h):
        v = h if self.bad else h.float()
        return (v * (v * v).mean(-1, keepdim=True).add(1e-6).rsqrt()).to(h.dtype) * self.scale.to(h.dtype)


class HalfNet(nn.Module):
    def __init__(self, bad):
        super().__init__()
        self.inp, self.norm, self.out = nn.Linear(10, 64), Norm(64, bad), mlp(64, 64, 4)
        with torch.no_grad():
            self.inp.weight.mul_(400)

    def forward(self, x):
        with torch.autocast("cpu", dtype=torch.float16):
            return self.out(self.norm(self.inp(x)))


@fault("a home-made RMSNorm squares in float16, where the squares are infinite",
       rules=["half-overflow", "rounding-error", "rank-collapse", "non-finite"], layers=["norm", "inp"], fails=True, steps=250)
def rmsnorm_squares_in_half(bad):
    x, y = blobs(d=10, k=4, noise=0.6)
    model = HalfNet(bad)
    return Program(model, lambda o, t: F.cross_entropy(o.float(), t), loader(x[:1200], y[:1200]),
                   torch.optim.Adam(model.parameters(), 2e-3), lambda m: acc(m(x[1200:]).float(), y[1200:]))


@fault("Adam with eps=1, as copied from a TensorFlow recipe with another rate",
       rules=["optimizer-setting", "learning-rate-too-low"], fails=True, steps=300)
def adam_eps_one(bad):
    x, y = curved(d=6)
    model = mlp(6, 48, 2)
    opt = torch.optim.Adam(model.parameters(), 2e-3, eps=1.0 if bad else 1e-8)

    def step(model, batch):
        v, t = batch
        mean, lv = model(v).chunk(2, 1)
        return F.gaussian_nll_loss(mean, t, lv.exp() + 1e-3)

    return Program(model, None, loader(x[:1200], y[:1200]), opt, lambda m: r2(m(x[1200:])[:, :1], y[1200:]), step=step)


class Mixture(nn.Module):
    def __init__(self, bad):
        super().__init__()
        e = nn.Linear(6, 1)
        self.experts = nn.ModuleList([e] * 4 if bad else [nn.Linear(6, 1) for _ in range(4)])
        self.gate = nn.Linear(6, 4)

    def forward(self, x):
        y = torch.cat([e(x) for e in self.experts], 1)
        return (self.gate(x).softmax(1) * y).sum(1, keepdim=True)


@fault("a list of experts made by [expert] * 4", rules=["shared-weight", "no-gradient", "no-nonlinearity"],
       layers=["experts", "gate"], fails=True, steps=400)
def experts_are_one(bad):
    g = gen(16)
    x = torch.randn(1500, 6, generator=g)
    y = torch.where(x[:, :1] > 0, x[:, 1:2] + x[:, 2:3], -x[:, 1:2] - x[:, 2:3])
    model = Mixture(bad)
    return Program(model, nn.MSELoss(), loader(x[:1200], y[:1200]), torch.optim.Adam(model.parameters(), 2e-2),
                   lambda m: r2(m(x[1200:]), y[1200:]))


class Relation(nn.Module):
    def __init__(self, bad):
        super().__init__()
        self.a, self.b, self.c = nn.Linear(8, 64), nn.Linear(64, 64), nn.Linear(64, 1)
        self.bad = bad

    def forward(self, s):
        h, k = self.a(s), None
        if self.bad:
            F.relu(h)
            k = self.b(h)
            F.relu(k)
        else:
            k = F.relu(self.b(F.relu(h)))
        return self.c(k).squeeze(-1)


@fault("the result of F.relu is thrown away", rules=["no-nonlinearity"], layers=["a", "b", "c"], fails=True, steps=300)
def relu_result_dropped(bad):
    g = gen(17)
    x = torch.randn(1500, 8, generator=g)
    y = ((x[:, 0] * x[:, 1] > 0).float() * 2 - 1)
    model = Relation(bad)

    def step(model, batch):
        v, t = batch
        return F.softplus(-t * model(v)).mean()

    return Program(model, None, loader(x[:1200], y[:1200]), torch.optim.Adam(model.parameters(), 5e-3),
                   lambda m: float((m(x[1200:]).sign() * y[1200:]).mean()), step=step)


class Critic(nn.Module):
    def __init__(self, bad):
        super().__init__()
        self.l1, self.l2, self.v, self.bad = nn.Linear(6, 64), nn.Linear(64, 64), nn.Linear(64, 1), bad

    def forward(self, s):
        h = F.relu(self.l1(s))
        h = F.dropout(h, 0.4) if self.bad else F.dropout(h, 0.4, self.training)
        h = F.relu(self.l2(h))
        h = F.dropout(h, 0.4) if self.bad else F.dropout(h, 0.4, self.training)
        return self.v(h)


@fault("F.dropout without its training argument", rules=["dropout-in-eval"], fails=False, steps=400)
def critic_functional_dropout(bad):
    x, y = curved(d=6)
    model = Critic(bad)
    return Program(model, nn.MSELoss(), loader(x[:1200], y[:1200]), torch.optim.Adam(model.parameters(), 3e-3),
                   lambda m: r2(m(x[1200:]), y[1200:]))


class Made(nn.Module):
    def __init__(self, d, bad):
        super().__init__()
        self.inp, self.out = nn.Linear(d, d * 8), nn.Linear(d * 8, d)
        deg = torch.arange(d * 8) % d
        i = torch.arange(d)
        self.register_buffer("m1", (deg[:, None] >= i[None]).float())
        self.register_buffer("m2", ((i[:, None] >= deg[None]) if bad else (i[:, None] > deg[None])).float())

    def forward(self, x):
        h = F.relu(F.linear(x, self.inp.weight * self.m1, self.inp.bias))
        return F.linear(h, self.out.weight * self.m2, self.out.bias)


@fault("the output mask of an autoregressive density model includes the variable itself",
       rules=["future-seen", "label-shift"], fails=True, steps=300)
def made_sees_itself(bad):
    g = gen(18)
    x = (torch.rand(1500, 10, generator=g) < 0.5).float()
    for i in range(2, 10):
        flip = (torch.rand(1500, generator=g) < 0.05).float()
        x[:, i] = (x[:, i - 2] - flip).abs()
    model = Made(10, bad)

    def score(m):
        hits, rest = [], (torch.rand(300, 10, generator=gen(5)) < 0.5).float()
        for i in range(2, 10):
            v = x[1200:].clone()
            v[:, i:] = rest[:, i:]
            hits.append(((m(v)[:, i] > 0).float() == x[1200:, i]).float().mean())
        return float(2 * torch.stack(hits).mean() - 1)

    return Program(model, None, loader(x[:1200]), torch.optim.Adam(model.parameters(), 5e-3), score,
                   step=lambda m, b: F.binary_cross_entropy_with_logits(m(b[0]), b[0]))


@fault("the policy's last layer starts far too large: it never explores",
       rules=["saturated-output", "bad-initialisation"], layers=["4"], fails=False, steps=400)
def policy_starts_certain(bad):
    x, best = blobs(k=4, d=8, noise=0.5)
    model = mlp(8, 48, 4)
    nn.init.normal_(model[4].weight, std=300.0 if bad else 0.01)

    def step(model, batch):
        s, b = batch
        dist = torch.distributions.Categorical(logits=model(s))
        a = dist.sample()
        r = (a == b).float()
        return -((r - r.mean()) * dist.log_prob(a)).mean()

    return Program(model, None, loader(x[:1200], best[:1200], size=64), torch.optim.Adam(model.parameters(), 2e-3),
                   lambda m: float(m(x[1200:]).softmax(1).gather(1, best[1200:, None]).mean()), step=step)


class Value(nn.Module):
    def __init__(self, bad):
        super().__init__()
        self.net = mlp(3, 64, 1)
        self.mean, self.std = (0.0, 1.0) if bad else (900.0, 250.0)

    def forward(self, s):
        return self.net(s).squeeze(-1)

    def value(self, s):
        return self(s) * self.std + self.mean


@fault("the critic regresses raw returns of about 900", rules=["unscaled-target"], fails=True, steps=300)
def critic_raw_returns(bad):
    x, y = curved(n=2700, d=3)
    ret = 900 + 250 * y.squeeze(1)
    model = Value(bad)

    def step(model, batch):
        s, r = batch
        return F.mse_loss(model(s), (r - model.mean) / model.std)

    return Program(model, None, loader(x[:2400], ret[:2400]), torch.optim.Adam(model.parameters(), 1e-3),
                   lambda m: max(0.0, r2(m.value(x[2400:]), ret[2400:])), step=step)
