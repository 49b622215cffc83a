import copy
import math

import torch
import torch.nn.functional as F
from program import Program, sound
from torch import nn
from torch.distributions import Categorical
from torch.func import functional_call
from tos_kit import acc, dl, r2, rn, ru, table


@sound("PPO's clipped surrogate: tiny values around zero, two heads, entropy", steps=300, least=0.8)
def tos_ppo():
    s = rn(2200, 8)
    best = (s @ rn(8, 4, s=1)).argmax(1)

    class TosPPO(nn.Module):
        def __init__(self):
            super().__init__()
            self.pi = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 4))
            self.v = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 1))
            nn.init.orthogonal_(self.pi[2].weight, 0.01)

        def forward(self, x):
            return self.pi(x), self.v(x)[:, 0]

    model = TosPPO()

    def step(m, batch):
        x, good = batch
        logits, v = m(x)
        pi = Categorical(logits=logits)
        a = pi.sample()
        logp = pi.log_prob(a)
        ratio = (logp - logp.detach()).exp()
        ret = (a == good).float()
        adv = ret - v.detach()
        adv = (adv - adv.mean()) / (adv.std() + 1e-8)
        clipped = torch.min(ratio * adv, ratio.clamp(0.8, 1.2) * adv).mean()
        return -clipped + 0.5 * F.mse_loss(v, ret) - 0.01 * pi.entropy().mean()

    return Program(model, None, dl(s[200:], best[200:], bs=128), torch.optim.Adam(model.parameters(), 4e-3, eps=1e-5),
                   lambda m: acc(m(s[:200])[0], best[:200]), step=step)


@sound("a target network inside the model that is frozen and never moved by the optimizer", steps=400, least=0.7)
def tos_dqn_target():
    s = ru(2000, 2, s=1) * 2 - 1
    a = (ru(2000, s=2) * 2).long()
    r = torch.where(a == 1, torch.sin(3 * s[:, 0]), torch.cos(3 * s[:, 1]))
    nxt = ru(2000, 2, s=3) * 2 - 1

    class TosDQN(nn.Module):
        def __init__(self):
            super().__init__()
            self.online = nn.Sequential(nn.Linear(2, 48), nn.ReLU(), nn.Linear(48, 48), nn.ReLU(), nn.Linear(48, 2))
            self.target = copy.deepcopy(self.online).requires_grad_(False)

        def forward(self, x):
            return self.online(x)

    model = TosDQN()

    def step(m, batch):
        x, action, reward, after = batch
        with torch.no_grad():
            for p, q in zip(m.target.parameters(), m.online.parameters()):
                p.lerp_(q, 0.05)
            aim = reward + 0.3 * m.target(after).max(1)[0]
        return F.smooth_l1_loss(m(x).gather(1, action[:, None])[:, 0], aim)

    def score(m):
        q = m(s[:300])
        gap, true = q[:, 1] - q[:, 0], torch.sin(3 * s[:300, 0]) - torch.cos(3 * s[:300, 1])
        return r2(gap, true)

    return Program(model, None, dl(s[300:], a[300:], r[300:], nxt[300:], bs=128),
                   torch.optim.Adam(model.online.parameters(), 3e-3), score, step=step)


@sound("critic of a WGAN with a gradient penalty: negative, unbounded loss", steps=300, least=0.8)
def tos_wgan_critic():
    real = rn(1000, 2) * 0.5 + 1.5
    fake = rn(1000, 2, s=1) - 0.5
    model = nn.Sequential(nn.Linear(2, 48), nn.LeakyReLU(0.2), nn.Linear(48, 48), nn.LeakyReLU(0.2), nn.Linear(48, 1))

    def step(m, batch):
        a, b = batch
        mix = torch.lerp(a, b, torch.rand(len(a), 1)).requires_grad_(True)
        g = torch.autograd.grad(m(mix).sum(), mix, create_graph=True)[0]
        return m(b).mean() - m(a).mean() + 10 * ((g.norm(dim=1) - 1) ** 2).mean()

    return Program(model, None, dl(real[200:], fake[200:]), torch.optim.Adam(model.parameters(), 2e-3, betas=(0.0, 0.9)),
                   lambda m: float((m(real[:200]) > m(fake[:200]).mean()).float().mean() * (m(fake[:200]) < m(real[:200]).mean()).float().mean()),
                   step=step)


class TosVae2(nn.Module):
    def __init__(self, z=8):
        super().__init__()
        self.enc = nn.Sequential(nn.Linear(64, 96), nn.ReLU(), nn.Linear(96, 2 * z))
        self.dec = nn.Sequential(nn.Linear(z, 96), nn.ReLU(), nn.Linear(96, 64))

    def forward(self, x):
        mu, lv = self.enc(x).chunk(2, 1)
        z = mu + torch.randn_like(mu) * (lv / 2).exp() if self.training else mu
        return self.dec(z), mu, lv


@sound("VAE summed over pixels, with KL in nats", steps=400, least=0.6, trained=100)
def tos_vae_pixels():
    x, y, vx, vy = table("digits")
    model = TosVae2()

    def step(m, batch):
        b, _ = batch
        logits, mu, lv = m(b)
        rec = F.binary_cross_entropy_with_logits(logits, b, reduction="sum") / len(b)
        return rec - 0.2 * (1 + lv - mu**2 - lv.exp()).sum() / len(b)

    return Program(model, None, dl(x, y), torch.optim.Adam(model.parameters(), 4e-3), lambda m: r2(m(vx)[0].sigmoid(), vx), step=step)


@sound("two towers and a learned temperature; the loss mixes the examples of a batch on purpose", steps=350, least=0.8)
def tos_clip():
    z = rn(1500, 4)
    a, b = torch.tanh(z @ rn(4, 10, s=2)), torch.tanh(z @ rn(4, 24, s=3))

    class TosClip(nn.Module):
        def __init__(self):
            super().__init__()
            self.image = nn.Sequential(nn.Linear(10, 64), nn.GELU(), nn.Linear(64, 16, bias=False))
            self.text = nn.Sequential(nn.Linear(24, 64), nn.GELU(), nn.Linear(64, 16, bias=False))
            self.logit_scale = nn.Parameter(torch.tensor(math.log(1 / 0.07)))

        def forward(self, p, q):
            return self.logit_scale.exp() * F.normalize(self.image(p), dim=-1) @ F.normalize(self.text(q), dim=-1).T

    model = TosClip()

    def step(m, batch):
        s = m(*batch)
        y = torch.arange(len(s))
        return (F.cross_entropy(s, y) + F.cross_entropy(s.T, y)) / 2

    return Program(model, None, dl(a[64:], b[64:], bs=48, drop_last=True), torch.optim.AdamW(model.parameters(), 3e-3, weight_decay=0.1),
                   lambda m: acc(m(a[:64], b[:64]), torch.arange(64)), step=step)


@sound("distillation at temperature 4 from a frozen teacher inside the model", steps=300, least=0.85)
def tos_distill():
    x, y, vx, vy = table("digits")
    with torch.random.fork_rng():
        torch.manual_seed(3)
        teacher = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
        opt = torch.optim.Adam(teacher.parameters(), 3e-3)
        for _ in range(100):
            opt.zero_grad()
            F.cross_entropy(teacher(x), y).backward()
            opt.step()

    class TosPair(nn.Module):
        def __init__(self):
            super().__init__()
            self.teacher = teacher.requires_grad_(False).eval()
            self.student = nn.Sequential(nn.Linear(64, 24), nn.ReLU(), nn.Linear(24, 10))

        def forward(self, b):
            return self.student(b)

    model = TosPair()

    def step(m, batch):
        b, t = batch
        out, temp = m(b), 4.0
        with torch.no_grad():
            soft = (m.teacher(b) / temp).softmax(1)
        kl = F.kl_div((out / temp).log_softmax(1), soft, reduction="batchmean") * temp**2
        return 0.9 * kl + 0.1 * F.cross_entropy(out, t)

    return Program(model, None, dl(x, y), torch.optim.Adam(model.student.parameters(), 5e-3), lambda m: acc(m(vx), vy), step=step)


class TosColloc:
    def __init__(self, low, high, n=40):
        self.low, self.high, self.n = low, high, n

    def __len__(self):
        return self.n

    def __iter__(self):
        for _ in range(self.n):
            yield self.low + (self.high - self.low) * torch.rand(64, 1)


@sound("PINN of Poisson's equation: second derivatives, no targets at all", steps=500, least=0.8)
def tos_pinn_poisson():
    model = nn.Sequential(nn.Linear(1, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 1))

    def step(m, x):
        x = x.requires_grad_(True)
        u = m(x)
        d = torch.autograd.grad(u.sum(), x, create_graph=True)[0]
        dd = torch.autograd.grad(d.sum(), x, create_graph=True)[0]
        ends = m(torch.tensor([[0.0], [1.0]]))
        return ((dd + math.pi**2 * torch.sin(math.pi * x)) ** 2).mean() + 30 * (ends**2).mean()

    t = torch.linspace(0, 1, 60)[:, None]
    return Program(model, None, TosColloc(0.0, 1.0), torch.optim.Adam(model.parameters(), 4e-3),
                   lambda m: r2(m(t), torch.sin(math.pi * t)), step=step)


class TosEpisodes:
    def __init__(self, x, y, n=50):
        self.x, self.y, self.n = x, y, n

    def __len__(self):
        return self.n

    def __iter__(self):
        for _ in range(self.n):
            ways = torch.randperm(10)[:4]
            rows = torch.stack([torch.where(self.y == k)[0][torch.randperm(int((self.y == k).sum()))[:10]] for k in ways])
            yield self.x[rows[:, :3]], self.x[rows[:, 3:]]


@sound("prototypical network: episodes whose labels mean nothing outside them", steps=200, least=0.8, trained=50)
def tos_prototypes():
    x, y, vx, vy = table("digits")
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 16))

    def step(m, batch):
        sup, qry = batch
        proto = m(sup).mean(1)
        d = torch.cdist(m(qry).flatten(0, 1), proto) ** 2
        return F.cross_entropy(-d, torch.arange(4).repeat_interleave(7))

    def score(m):
        z = m(x)
        return acc(-torch.cdist(m(vx), torch.stack([z[y == k].mean(0) for k in range(10)])), vy)

    return Program(model, None, TosEpisodes(x, y), torch.optim.Adam(model.parameters(), 2e-3), score, step=step)


class TosEps(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("freq", 2.0 ** torch.arange(0, 5))
        self.inp = nn.Linear(2, 64)
        self.time = nn.Sequential(nn.Linear(10, 64), nn.SiLU(), nn.Linear(64, 64))
        self.mid = nn.Sequential(nn.SiLU(), nn.Linear(64, 64), nn.SiLU())
        self.out = nn.Linear(64, 2)
        nn.init.zeros_(self.out.weight)
        nn.init.zeros_(self.out.bias)

    def forward(self, x, t):
        a = t[:, None] * self.freq
        return self.out(self.mid(self.inp(x) + self.time(torch.cat([a.sin(), a.cos()], 1))))


@sound("diffusion with a last layer of zeros; the loss never gets near zero", steps=500, least=0.6)
def tos_diffusion():
    g = (ru(1500, s=3) * 4).long()
    x0 = torch.tensor([[1.5, 1.5], [-1.5, 1.5], [1.5, -1.5], [-1.5, -1.5]])[g] + 0.1 * rn(1500, 2, s=4)

    def noised(x, t, e):
        return (t * 1.57).cos()[:, None] * x + (t * 1.57).sin()[:, None] * e

    model = TosEps()

    def step(m, batch):
        (x,) = batch
        t, e = torch.rand(len(x)), torch.randn_like(x)
        return F.mse_loss(m(noised(x, t, e), t), e)

    ht, he = ru(300, s=9), rn(300, 2, s=8)
    return Program(model, None, dl(x0[300:], bs=128), torch.optim.Adam(model.parameters(), 3e-3),
                   lambda m: r2(m(noised(x0[:300], ht, he), ht), he), step=step)


@sound("MAML: the loss is taken after an inner step on weights that are no parameters", steps=250, least=0.6)
def tos_maml():
    n = 500
    w = rn(n, 5, 1, s=1) * 0.3 + torch.tensor([1.0, -1, 0.5, 2, -0.5])[None, :, None]
    x = rn(n, 24, 5, s=2)
    y = torch.tanh(x @ w)
    model = nn.Sequential(nn.Linear(5, 24), nn.Tanh(), nn.Linear(24, 1))

    def adapted(m, sx, sy):
        params = dict(m.named_parameters())
        with torch.enable_grad():
            loss = F.mse_loss(functional_call(m, params, (sx,)), sy)
            grads = torch.autograd.grad(loss, list(params.values()), create_graph=m.training)
        return {k: p - 0.1 * g for (k, p), g in zip(params.items(), grads)}

    def step(m, batch):
        total = 0.0
        for a, b in zip(*batch):
            total = total + F.mse_loss(functional_call(m, adapted(m, a[:12], b[:12]), (a[12:],)), b[12:])
        return total / len(batch[0])

    def score(m):
        outs = [functional_call(m, adapted(m, a[:12], b[:12]), (a[12:],)) for a, b in zip(x[:40], y[:40])]
        return r2(torch.cat(outs), y[:40, 12:].flatten(0, 1))

    return Program(model, None, dl(x[40:], y[40:], bs=4), torch.optim.Adam(model.parameters(), 5e-3), score, step=step)


class TosTied(nn.Module):
    def __init__(self):
        super().__init__()
        self.enc = nn.Linear(64, 40)
        self.bias = nn.Parameter(torch.zeros(64))

    def forward(self, x):
        return F.linear(torch.relu(self.enc(x)), self.enc.weight.t(), self.bias)


@sound("denoising autoencoder with tied weights: the inputs are not what it returns", steps=350, least=0.6)
def tos_tied_autoencoder():
    x, y, vx, vy = table("digits")
    model = TosTied()

    def step(m, batch):
        b, _ = batch
        hidden = torch.rand_like(b) < 0.25
        return F.mse_loss(m(b.masked_fill(hidden, 0.0)), b)

    return Program(model, None, dl(x, y), torch.optim.Adam(model.parameters(), 5e-3), lambda m: r2(m(vx), vx), step=step)


@sound("score matching by denoising", steps=300, least=0.7)
def tos_score_matching():
    x = rn(1300, 2) @ torch.tensor([[1.0, 0.7], [0.0, 0.5]])
    cov = torch.tensor([[1.0, 0.0], [0.7, 0.5]]) @ torch.tensor([[1.0, 0.7], [0.0, 0.5]]) + 0.25 * torch.eye(2)
    model = nn.Sequential(nn.Linear(2, 64), nn.Softplus(), nn.Linear(64, 64), nn.Softplus(), nn.Linear(64, 2))

    def step(m, batch):
        (b,) = batch
        e = torch.randn_like(b)
        return ((0.5 * m(b + 0.5 * e) + e) ** 2).sum(1).mean()

    noisy = x[:300] + 0.5 * rn(300, 2, s=5)
    emp = torch.linalg.inv(x[300:].T @ x[300:] / 1000 + 0.25 * torch.eye(2))
    return Program(model, None, dl(x[300:], bs=100), torch.optim.Adam(model.parameters(), 3e-3), lambda m: r2(m(noisy), -noisy @ emp), step=step)


@sound("Cox's partial likelihood: outputs have no scale or zero, and are compared within a batch", steps=250, least=0.8)
def tos_cox():
    x = rn(1200, 6)
    risk = x @ rn(6, 1, s=1)[:, 0] / 1.5
    time = -torch.log(ru(1200, s=2).clamp(1e-6)) * torch.exp(-risk * 2)
    event = (ru(1200, s=3) < 0.7).float()
    model = nn.Sequential(nn.Linear(6, 24), nn.SELU(), nn.Linear(24, 1, bias=False))

    def step(m, batch):
        b, t, e = batch
        order = t.argsort(descending=True)
        h = m(b[order])[:, 0]
        return -((h - torch.logcumsumexp(h, 0)) * e[order]).sum() / e.sum().clamp(min=1)

    def score(m):
        h, t = m(x[:200])[:, 0], risk[:200]
        pairs = t[:, None] > t[None]
        return float((h[:, None] > h[None])[pairs].float().mean())

    return Program(model, None, dl(x[200:], time[200:], event[200:], bs=80), torch.optim.Adam(model.parameters(), 5e-3), score, step=step)


@sound("domain-adversarial network: a gradient turned round, one loss that ought not to fall", steps=300, least=0.75)
def tos_gradient_reversal():
    class Rev(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.view_as(x)

        @staticmethod
        def backward(ctx, g):
            return -0.2 * g

    class TosDANN(nn.Module):
        def __init__(self):
            super().__init__()
            self.f = nn.Sequential(nn.Linear(10, 32), nn.ReLU())
            self.label, self.domain = nn.Linear(32, 3), nn.Linear(32, 1)

        def forward(self, x):
            h = self.f(x)
            return self.label(h), self.domain(Rev.apply(h))[:, 0]

    x = rn(1400, 10)
    y = (x[:, :5] @ rn(5, 3, s=2)).argmax(1)
    dom = (ru(1400, s=3) < 0.5).float()
    x[:, 9] += 2 * dom
    model = TosDANN()

    def step(m, batch):
        b, t, d = batch
        c, where = m(b)
        ce = F.cross_entropy(c, t, reduction="none")
        return (ce * (1 - d)).sum() / (1 - d).sum().clamp(min=1) + F.binary_cross_entropy_with_logits(where, d)

    return Program(model, None, dl(x[200:], y[200:], dom[200:]), torch.optim.Adam(model.parameters(), 4e-3), lambda m: acc(m(x[:200])[0], y[:200]), step=step)


class TosCoupling(nn.Module):
    def __init__(self):
        super().__init__()
        self.nets = nn.ModuleList(nn.Sequential(nn.Linear(1, 32), nn.Tanh(), nn.Linear(32, 2)) for _ in range(4))
        for n in self.nets:
            nn.init.zeros_(n[2].weight)
            nn.init.zeros_(n[2].bias)

    def forward(self, x):
        logdet = 0.0
        for i, n in enumerate(self.nets):
            a, b = (x[:, :1], x[:, 1:]) if i % 2 == 0 else (x[:, 1:], x[:, :1])
            s, t = n(a).chunk(2, 1)
            s = torch.tanh(s)
            b = b * s.exp() + t
            logdet = logdet + s[:, 0]
            x = torch.cat([a, b] if i % 2 == 0 else [b, a], 1)
        return x, logdet


@sound("normalising flow of identity couplings: starts from zeros, likelihood as the loss", steps=350, least=0.6)
def tos_flow():
    a = rn(1500, s=1)
    x = torch.stack([a, a**2 - 1 + 0.3 * rn(1500, s=2)], 1)
    model = TosCoupling()

    def nll(m, b):
        z, ld = m(b)
        return (0.5 * (z**2).sum(1) + math.log(2 * math.pi) - ld).mean()

    def score(m):  # from that of a Gaussian to that of the truth
        best = 0.5 + 0.5 * math.log(2 * math.pi) + 0.5 + 0.5 * math.log(2 * math.pi) + math.log(0.3)
        gauss = 1 + math.log(2 * math.pi) + 0.5 * math.log(2.09)
        return max(0.0, min(1.0, (gauss - float(nll(m, x[:300]))) / (gauss - best)))

    return Program(model, None, dl(x[300:], bs=100), torch.optim.Adam(model.parameters(), 5e-3), score, step=lambda m, batch: nll(m, batch[0]))
