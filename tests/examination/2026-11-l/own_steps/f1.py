import copy
import torch
import torch.nn.functional as F
from torch import nn
from program import Program, fault
from kit import G, acc, groups, loader, manifold, mlp, r2, smooth


class VAE(nn.Module):
    def __init__(self, d=16, z=6):
        super().__init__()
        self.enc = mlp(d, 64, 2 * z)
        self.dec = mlp(z, 64, d)

    def forward(self, x):
        mu, lv = self.enc(x).chunk(2, 1)
        z = mu + torch.randn_like(mu) * (0.5 * lv).exp() if self.training else mu
        return self.dec(z), mu, lv


@fault("KL summed over batch and latents, reconstruction averaged over everything", rules=["term-dominates", "summed-loss", "rank-collapse"], fails=True, steps=400)
def vae_kl_sum(bad):
    x, t = manifold(1024, 1), manifold(300, 2)

    def step(m, b):
        r, mu, lv = m(b[0])
        kl = -0.5 * (1 + lv - mu**2 - lv.exp())
        kl = kl.sum() if bad else 0.02 * kl.sum(1).mean()
        return F.mse_loss(r, b[0]) + kl

    m = VAE()
    return Program(m, None, loader(x, bs=64), torch.optim.Adam(m.parameters(), 3e-3), lambda m: r2(m(t)[0], t), step=step)


class TwoTower(nn.Module):
    def __init__(self):
        super().__init__()
        self.left, self.right = mlp(12, 64, 16), mlp(12, 64, 16)

    def forward(self, a, b):
        return F.normalize(self.left(a), dim=1), F.normalize(self.right(b), dim=1)


def views(n, seed):
    g, w = G(seed), G(5)
    z = torch.randn(n, 6, generator=g)
    p, q = torch.randn(6, 12, generator=w), torch.randn(6, 12, generator=w)
    return torch.tanh(z @ p * 0.5) + 0.05 * torch.randn(n, 12, generator=g), torch.tanh(z @ q * 0.5) + 0.05 * torch.randn(n, 12, generator=g)


class Zip:
    def __init__(self, a, b):
        self.a, self.b = a, b

    def __iter__(self):
        return (((x[0]), (y[0])) for x, y in zip(self.a, self.b))

    def __len__(self):
        return len(self.a)


class LoRA(nn.Module):
    def __init__(self, base, r=4, zero=False):
        super().__init__()
        self.base = base
        for p in base.parameters():
            p.requires_grad_(False)
        self.a = nn.Parameter(torch.randn(r, base.in_features) / base.in_features**0.5)
        self.b = nn.Parameter(torch.zeros(base.out_features, r))
        if zero:
            nn.init.zeros_(self.a)

    def forward(self, x):
        return self.base(x) + 2 * F.linear(F.linear(x, self.a), self.b)


@fault("Both factors of every adapter begin at zero", rules=["bad-initialisation", "no-gradient", "symmetric-initialisation", "loss-not-decreasing"], layers=["0", "2", "4"], fails=True, steps=300)
def adapter_zero_zero(bad):
    x, y = groups(1024, 1)
    tx, ty = groups(400, 2)
    m = mlp(10, 64, 64, 5)
    for i in (0, 2, 4):
        m[i] = LoRA(m[i], 5, zero=bad)
    return Program(m, F.cross_entropy, loader(x, y), torch.optim.AdamW([p for p in m.parameters() if p.requires_grad], 5e-3), lambda m: acc(m(tx), ty))


class Adapted(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Linear(8, 6)
        self.out = nn.Linear(6, 1)

    def forward(self, x):
        return self.out(torch.tanh(self.trunk(x)))


@fault("The optimizer is made before the adapter is put in", rules=["no-gradient"], layers=["mid"], fails=True, steps=400)
def adapter_after_optimizer(bad):
    x, y = smooth(1024, 1)
    tx, ty = smooth(400, 2)
    m = Adapted()
    m.trunk.requires_grad_(False)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.trunk, self.out = m.trunk, m.out

        def forward(self, x):
            h = torch.tanh(self.trunk(x))
            return self.out(h + self.mid(torch.cat([h, x], 1)))

    net = Net()
    if bad:
        opt = torch.optim.Adam([p for p in net.parameters() if p.requires_grad], 5e-3)
    net.mid = mlp(14, 48, 6)
    nn.init.zeros_(net.mid[2].weight)
    if not bad:
        opt = torch.optim.Adam([p for p in net.parameters() if p.requires_grad], 5e-3)
    return Program(net, F.mse_loss, loader(x, y), opt, lambda m: r2(m(tx), ty))


def transitions(n, seed):
    g = G(seed)
    s = torch.rand(n, 4, generator=g) * 2 - 1
    a = torch.randint(0, 3, (n,), generator=g)
    s2 = (s + 0.3 * torch.stack([a - 1.0, 1.0 - a, (a == 1).float(), (a != 1).float()], 1)).clamp(-1, 1)
    r = torch.sin(3 * s[:, 0]) * (a - 1.0) + s[:, 1] * s[:, 2]
    return s, a, r, s2


@fault("Q(s, a) has shape (B, 1), the target (B,)", rules=["output-loss-mismatch"], fails=True, steps=400)
def q_gather_shape(bad):
    s, a, r, s2 = transitions(2048, 1)
    ts, ta, tr, _ = transitions(400, 2)

    def step(m, b):
        s, a, r, s2 = b
        q = m(s).gather(1, a[:, None])
        with torch.no_grad():
            y = r + 0.0 * m(s2).max(1).values
        return F.mse_loss(q if bad else q.squeeze(1), y)

    m = mlp(4, 64, 64, 3)
    return Program(m, None, loader(s, a, r, s2, bs=64), torch.optim.Adam(m.parameters(), 2e-3), lambda m: r2(m(ts).gather(1, ta[:, None])[:, 0], tr), step=step)


@fault("Policy gradient without its minus: reward is minimised", rules=["output-loss-mismatch", "saturated-output"], fails=True, steps=300)
def policy_sign(bad):
    x, y = groups(1024, 1, k=4)
    tx, ty = groups(400, 2, k=4)

    def step(m, b):
        s, best = b
        d = torch.distributions.Categorical(logits=m(s))
        act = d.sample()
        reward = (act == best).float()
        pg = (d.log_prob(act) * (reward - reward.mean())).mean()
        return (pg if bad else -pg) - 0.01 * d.entropy().mean()

    m = mlp(10, 64, 4, act=nn.Tanh)
    return Program(m, None, loader(x, y, bs=64), torch.optim.Adam(m.parameters(), 5e-3), lambda m: acc(m(tx), ty), step=step)


@fault("The weight of the entropy bonus outweighs the rewards", rules=["term-dominates"], fails=True, steps=300)
def entropy_bonus(bad):
    x, y = groups(1024, 1, k=4)
    tx, ty = groups(400, 2, k=4)

    def step(m, b):
        s, best = b
        d = torch.distributions.Categorical(logits=m(s))
        act = d.sample()
        reward = (act == best).float()
        return -(d.log_prob(act) * (reward - reward.mean())).mean() - (10.0 if bad else 0.01) * d.entropy().mean()

    def score(m):
        return m(tx).softmax(1).gather(1, ty[:, None]).mean().item()

    m = mlp(10, 64, 4, act=nn.Tanh)
    return Program(m, None, loader(x, y, bs=64), torch.optim.Adam(m.parameters(), 5e-3), score, step=step)
