import copy
import torch
import torch.nn.functional as F
from torch import nn
from program import Program, fault
from kit import G, acc, groups, loader, manifold, mlp, r2, smooth


class MoE(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.gate = nn.Linear(8, 4)
        self.experts = nn.ModuleList(mlp(8, 32, 1) for _ in range(4))
        self.dim = dim

    def forward(self, x):
        w = F.softmax(self.gate(x), dim=self.dim)
        return (w[:, :, None] * torch.stack([e(x) for e in self.experts], 1)).sum(1)


@fault("The gate of a mixture of experts is normalised over the batch", rules=["wrong-softmax-dimension", "mixed-examples"], fails=True, steps=300)
def moe_gate(bad):
    x, y = smooth(1024, 1)
    tx, ty = smooth(400, 2)
    m = MoE(0 if bad else 1)
    return Program(m, F.mse_loss, loader(x, y), torch.optim.Adam(m.parameters(), 5e-3), lambda m: r2(m(tx), ty))


@fault("Real and fake go through the BatchNorm of a discriminator apart, so that it never sees both in one batch", rules=["batchnorm-mode-gap", "sorted-batches"], layers=["0", "2", "5"], fails=True, steps=300)
def disc_apart(bad):
    def real(n, s):
        return torch.randn(n, 8, generator=G(s)) + 0.7

    def fake(n, s):
        return torch.randn(n, 8, generator=G(s)) * 1.0 - 0.7

    r, f, tr, tf = real(1024, 1), fake(1024, 2), real(200, 3), fake(200, 4)

    def step(m, b):
        if bad:
            o = torch.cat([m(b[0]), m(b[1])])
        else:
            o = m(torch.cat(b))
        n = len(b[0])
        return F.binary_cross_entropy_with_logits(o[:, 0], torch.cat([torch.ones(n), torch.zeros(n)]))

    def score(m):
        return (((m(tr) > 0).float().mean() + (m(tf) <= 0).float().mean()) - 1).item()

    m = nn.Sequential(nn.BatchNorm1d(8), nn.Linear(8, 32), nn.BatchNorm1d(32), nn.LeakyReLU(0.2), nn.Linear(32, 32), nn.BatchNorm1d(32), nn.LeakyReLU(0.2), nn.Linear(32, 1))
    return Program(m, None, loader(r, f), torch.optim.Adam(m.parameters(), 2e-3, betas=(0.5, 0.999)), score, step=step)


@fault("The sampler of pairs draws pairs of the same class only", rules=["constant-target", "rank-collapse"], fails=True, steps=300)
def same_pairs_only(bad):
    def pairs(n, seed, positives):
        x, y = groups(4 * n, seed)
        g = G(seed + 50)
        i = torch.randint(0, 4 * n, (n,), generator=g)
        want = (torch.rand(n, generator=g) < positives).float()
        j = torch.empty_like(i)
        for k in range(n):
            pool = ((y == y[i[k]]) == bool(want[k])).nonzero()[:, 0]
            j[k] = pool[torch.randint(0, len(pool), (1,), generator=g)]
        return x[i], x[j], want

    a, b, y = pairs(1000, 1, 1.0 if bad else 0.5)
    ta, tb, ty = pairs(400, 2, 0.5)

    def step(m, batch):
        a, b, y = batch
        d = (m(a) - m(b)).norm(dim=1)
        return (y * d**2 + (1 - y) * F.relu(2 - d) ** 2).mean()

    def score(m):
        d = (m(ta) - m(tb)).norm(dim=1)
        return max(0.0, 2 * ((d < 1).float() == ty).float().mean().item() - 1)

    m = mlp(10, 64, 8)
    return Program(m, None, loader(a, b, y), torch.optim.Adam(m.parameters(), 3e-3), score, step=step)


class Denoiser(nn.Module):
    def __init__(self, d=8):
        super().__init__()
        self.net = mlp(d + 1, 96, 96, d)

    def forward(self, x, t):
        return self.net(torch.cat([x, t[:, None]], 1))


def noised(x, t, e):
    a = torch.cos(t * 1.5)[:, None]
    return a * x + (1 - a**2).sqrt() * e


def den_score(m, t_scale=1.0):
    g = G(12)
    x = manifold(400, 2, d=8, k=2)
    t = torch.rand(400, generator=g)
    e = torch.randn(x.shape, generator=g)
    return r2(m(noised(x, t, e), t * t_scale), e)


@fault("The noise that is asked for is drawn again, and is not the one that was added", rules=["labels-unrelated", "output-loss-mismatch", "loss-not-decreasing"], fails=True, steps=400)
def noise_again(bad):
    x = manifold(1024, 1, d=8, k=2)

    def step(m, b):
        x = b[0]
        t = torch.rand(len(x))
        e = torch.randn_like(x)
        o = m(noised(x, t, e), t)
        return F.mse_loss(o, torch.randn_like(x) if bad else e)

    m = Denoiser()
    return Program(m, None, loader(x, bs=64), torch.optim.Adam(m.parameters(), 2e-3), den_score, step=step)


@fault("The number of the diffusion step goes in as 0..1000 next to data of scale 1", rules=["unscaled-input"], fails=False, steps=300)
def raw_timestep(bad):
    x = manifold(1024, 1, d=8, k=2)
    s = 1000.0 if bad else 1.0

    def step(m, b):
        x = b[0]
        t = torch.rand(len(x))
        e = torch.randn_like(x)
        return F.mse_loss(m(noised(x, t, e), t * s), e)

    m = Denoiser()
    return Program(m, None, loader(x, bs=64), torch.optim.Adam(m.parameters(), 2e-3), lambda m: den_score(m, s), step=step)


class Heads(nn.Module):
    def __init__(self, bad):
        super().__init__()
        self.body = mlp(8, 64, 64)
        self.heads = nn.ModuleList([nn.Linear(64, 1)] * 4 if bad else [nn.Linear(64, 1) for _ in range(4)])

    def forward(self, x):
        h = F.relu(self.body(x))
        return torch.cat([k(h) for k in self.heads], 1)


@fault("[head] * 4 makes one head of four tasks", rules=["shared-weight"], layers=["heads"], fails=True, steps=300)
def heads_times_four(bad):
    x, y = smooth(1024, 1, out=4)
    tx, ty = smooth(400, 2, out=4)
    m = Heads(bad)
    return Program(m, None, loader(x, y), torch.optim.Adam(m.parameters(), 3e-3), lambda m: r2(m(tx), ty), step=lambda m, b: sum(F.mse_loss(o, y) for o, y in zip(m(b[0]).T, b[1].T)) / 4)


class Flow(nn.Module):
    def __init__(self, bad):
        super().__init__()
        self.inp, self.f, self.out = nn.Linear(8, 32), nn.Linear(32, 32), nn.Linear(32, 1)
        self.bad = bad

    def forward(self, x):
        h = self.inp(x)
        for _ in range(30):
            h = torch.tanh(self.f(h)) if self.bad else h + torch.tanh(self.f(h)) / 10
        return self.out(h)


@fault("A neural ODE without h + dt·f(h): each step replaces the state", rules=["vanishing-gradient", "rank-collapse", "activation-drift"], layers=["f", "inp"], fails=False, steps=300)
def euler_without_state(bad):
    x, y = smooth(1024, 1)
    tx, ty = smooth(400, 2)
    m = Flow(bad)
    return Program(m, F.mse_loss, loader(x, y), torch.optim.Adam(m.parameters(), 3e-3), lambda m: r2(m(tx), ty))


@fault("A critic is fitted to returns of thousands as they come", rules=["unscaled-target"], fails=True, steps=400)
def critic_returns(bad):
    x, y = smooth(1024, 1)
    tx, ty = smooth(400, 2)
    k, o = (900.0, 4000.0) if bad else (1.0, 0.0)
    m = mlp(8, 64, 64, 1)
    return Program(m, F.smooth_l1_loss, loader(x, y * k + o), torch.optim.Adam(m.parameters(), 1e-3), lambda m: r2((m(tx) - o) / k, ty))


class TwoTask(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = mlp(10, 64)
        self.cls, self.reg = nn.Linear(64, 5), nn.Linear(64, 1)

    def forward(self, x):
        h = torch.tanh(self.body(x))
        return self.cls(h), self.reg(h)


class RawLinear(nn.Linear):
    def __init__(self, a, b, bad):
        super().__init__(a, b)
        self.bad = bad

    def forward(self, x):
        return x @ (self.weight.data if self.bad else self.weight).T + self.bias


@fault("A layer of one's own multiplies with weight.data", rules=["no-gradient"], layers=["0"], fails=False, steps=400)
def weight_data(bad):
    x, y = smooth(1024, 1)
    tx, ty = smooth(400, 2)
    m = nn.Sequential(RawLinear(8, 10, bad), nn.Tanh(), nn.Linear(10, 1))
    return Program(m, F.mse_loss, loader(x, y), torch.optim.Adam(m.parameters(), 1e-2), lambda m: r2(m(tx), ty))


@fault("Masked modelling without the mask on the inputs", rules=["future-seen"], fails=False, steps=400)
def mask_forgotten(bad):
    x, t = manifold(1024, 1, d=12, k=3), manifold(400, 2, d=12, k=3)
    hide = torch.rand(t.shape, generator=G(4)) < 0.3

    def step(m, b):
        mask = torch.rand_like(b[0]) < 0.3
        o = m(b[0] if bad else b[0].masked_fill(mask, 0.0))
        return F.mse_loss(o[mask], b[0][mask])

    m = mlp(12, 96, 96, 12)
    return Program(m, None, loader(x, bs=64), torch.optim.Adam(m.parameters(), 3e-3), lambda m: r2(m(t.masked_fill(hide, 0.0))[hide], t[hide]), step=step)


class Actor(nn.Module):
    def __init__(self, bad):
        super().__init__()
        self.a, self.b, self.out = nn.Linear(8, 32), nn.Linear(32, 32), nn.Linear(32, 1)
        self.bad = bad

    def forward(self, x):
        on = True if self.bad else self.training
        h = F.dropout(F.relu(self.a(x)), 0.3, on)
        return self.out(F.dropout(F.relu(self.b(h)), 0.3, on))


@fault("F.dropout without self.training", rules=["dropout-in-eval"], fails=False, steps=400)
def functional_dropout(bad):
    x, y = smooth(1024, 1)
    tx, ty = smooth(400, 2)
    m = Actor(bad)
    return Program(m, F.mse_loss, loader(x, y), torch.optim.Adam(m.parameters(), 5e-3), lambda m: r2(m(tx), ty))


@fault("A momentum of 0.999 where 0.9 was meant", rules=["optimizer-setting", "learning-rate-too-high"], fails=True, steps=300)
def momentum_typo(bad):
    x, y = smooth(1024, 1)
    tx, ty = smooth(400, 2)
    m = mlp(8, 64, 64, 1)
    o = torch.optim.SGD([{"params": m[:2].parameters()}, {"params": m[2:].parameters(), "lr": 0.02}], lr=0.03, momentum=0.999 if bad else 0.9)
    return Program(m, F.mse_loss, loader(x, y), o, lambda m: r2(m(tx), ty))
