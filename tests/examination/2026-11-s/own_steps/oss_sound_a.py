import copy
import math

import torch
import torch.nn.functional as F
from oss_faults_a import VAE, VQVAE, ActorCritic, Flow, Mixture, QPair, TwoTower, clip_step, grid_world, match_labels
from oss_faults_a import noised, piecewise
from oss_kit import accuracy, digits, gen, loader, moons, r2
from program import Program, sound
from torch import nn


@sound("a VQ-VAE with a straight-through estimator and a codebook much of which is unused", steps=400, least=0.6)
def oss_ok_vqvae():
    x, _, vx, _ = digits()
    model = VQVAE(k=64, z=4, parts=8)

    def step(model, batch):
        (x,) = batch
        out, e, q = model(x)
        return F.mse_loss(out, x) + F.mse_loss(q, e.detach()) + 0.25 * F.mse_loss(e, q.detach())

    return Program(model, None, loader(x), torch.optim.Adam(model.parameters(), 3e-3), lambda m: r2(m(vx)[0], vx),
                   step=step)


@sound("a VAE whose two terms are both sums over dimensions", trained=150, steps=400, least=0.6)
def oss_ok_vae_sums():
    x, _, vx, _ = digits()
    model = VAE(z=10)

    def step(model, batch):
        (x,) = batch
        out, mu, lv = model(x)
        rec = ((out - x) ** 2).sum(1) / (2 * 0.3)
        kl = 0.5 * (mu**2 + lv.exp() - 1 - lv).sum(1)
        return (rec + kl).mean()

    return Program(model, None, loader(x), torch.optim.Adam(model.parameters(), 2e-3), lambda m: r2(m(vx)[0], vx),
                   step=step)


@sound("a flow whose couplings begin as the identity, with zero last layers", steps=400, least=0.6)
def oss_ok_flow_zero_init():
    x, _ = moons(2500, 0)
    v, _ = moons(500, 1)
    model = Flow(6)
    return Program(model, None, loader(x), torch.optim.Adam(model.parameters(), 5e-3),
                   lambda m: float(m(v).mean() + 2.9), step=lambda m, b: -m(b[0]).mean())


class SineDenoiser(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("freq", torch.exp(-math.log(10000) * torch.arange(8) / 8))
        self.time = nn.Sequential(nn.Linear(16, 32), nn.SiLU(), nn.Linear(32, 64))
        self.inp, self.mid, self.out = nn.Linear(2, 64), nn.Linear(64, 64), nn.Linear(64, 2)
        nn.init.zeros_(self.out.weight)
        nn.init.zeros_(self.out.bias)

    def forward(self, x, t):
        a = t[:, None].float() * self.freq
        e = self.time(torch.cat([a.sin(), a.cos()], 1))
        h = F.silu(self.inp(x) + e)
        return self.out(h + F.silu(self.mid(h)))


@sound("a denoiser with a zero output layer; noise that cannot all be told", steps=400, least=0.6)
def oss_ok_ddpm():
    x, _ = moons(2500, 0)
    v, _ = moons(1000, 1)
    vt, ve = torch.randint(300, 1000, (1000,), generator=gen(1)), torch.randn(1000, 2, generator=gen(2))
    model = SineDenoiser()

    def step(model, batch):
        (x,) = batch
        t, eps = torch.randint(300, 1000, (len(x),)), torch.randn_like(x)
        return F.mse_loss(model(noised(x, t, eps), t), eps)

    return Program(model, None, loader(x, batch=128), torch.optim.AdamW(model.parameters(), 3e-3),
                   lambda m: r2(m(noised(v, vt, ve), vt), ve), step=step)


@sound("double DQN with a frozen target network that follows by Polyak averages", steps=500, least=0.8)
def oss_ok_double_dqn():
    nxt, reward, done, q = grid_world()
    g = gen(5)
    s, a = torch.randint(0, 24, (3000,), generator=g), torch.randint(0, 4, (3000,), generator=g)
    eye = torch.eye(25)
    model = QPair(25)

    def step(model, batch):
        s, a, r, s2, d = batch
        with torch.no_grad():
            best = model.online(eye[s2]).argmax(1, keepdim=True)
            y = r + 0.9 * (1 - d) * model.target(eye[s2]).gather(1, best)[:, 0]
            for t, o in zip(model.target.parameters(), model.online.parameters()):
                t.lerp_(o, 0.05)
        return F.smooth_l1_loss(model(eye[s]).gather(1, a[:, None])[:, 0], y)

    def score(m):
        best = m(eye[:-1]).argmax(1)
        return float((q[:-1].gather(1, best[:, None])[:, 0] > q[:-1].max(1).values - 1e-4).float().mean())

    return Program(model, None, loader(s, a, reward[s, a], nxt[s, a], done[s, a]),
                   torch.optim.Adam(model.online.parameters(), 2e-3), score, step=step)


@sound("PPO's clipped ratio on logged actions: a loss near zero that is often negative", steps=300, least=0.7)
def oss_ok_ppo_clip():
    x, y, vx, vy = digits()
    x, y, vx, vy = x[y < 3], y[y < 3], vx[vy < 3], vy[vy < 3]
    model = nn.ModuleDict({"new": nn.Sequential(nn.Linear(64, 32), nn.Tanh(), nn.Linear(32, 3))})
    nn.init.normal_(model["new"][2].weight, 0, 0.01)
    model["old"] = copy.deepcopy(model["new"]).requires_grad_(False)

    def step(m, batch):
        obs, label = batch
        with torch.no_grad():
            for p, q in zip(m["old"].parameters(), m["new"].parameters()):
                p.lerp_(q, 0.2)
            old = m["old"](obs).log_softmax(1)
            act = torch.multinomial(old.exp(), 1)
            adv = (act[:, 0] == label).float()
            adv = (adv - adv.mean()) / (adv.std() + 1e-6)
        lp = m["new"](obs).log_softmax(1)
        ratio = (lp.gather(1, act) - old.gather(1, act)).exp()[:, 0]
        surrogate = torch.min(ratio * adv, ratio.clamp(0.8, 1.2) * adv)
        return -surrogate.mean() + 0.01 * (lp.exp() * lp).sum(1).mean()

    return Program(model, None, loader(x, y, batch=64), torch.optim.Adam(model["new"].parameters(), 1e-3, eps=1e-5),
                   lambda m: accuracy(m["new"](vx), vy), step=step)


@sound("an actor-critic with normalised returns that are mostly noise", trained=100, steps=300, least=0.6)
def oss_ok_actor_critic():
    g = gen(1)
    w = torch.randn(6, 5, generator=g)
    obs = torch.randn(3000, 6, generator=g)
    best = (obs @ w).argmax(1)
    ret = obs[:, 0] + 2 * torch.randn(3000, generator=g)
    model = ActorCritic()

    def step(model, batch):
        o, b, r = batch
        logits, v = model(o)
        act = torch.distributions.Categorical(logits=logits.detach()).sample()
        reward = (act == b).float()
        pg = -(logits.log_softmax(1).gather(1, act[:, None])[:, 0] * (reward - reward.mean())).mean()
        return pg + 0.1 * F.mse_loss(v, r / 2.2)

    return Program(model, None, loader(obs[:2500], best[:2500], ret[:2500], batch=128),
                   torch.optim.RMSprop(model.parameters(), 1e-3, alpha=0.99, eps=1e-5),
                   lambda m: accuracy(m(obs[2500:])[0], best[2500:]), step=step)


@sound("CLIP with a learned temperature", steps=300, least=0.6)
def oss_ok_clip():
    x, y, vx, vy = digits()
    model = TwoTower()
    return Program(model, None, loader(x[:, ::2], x[:, 1::2], batch=64), torch.optim.AdamW(model.parameters(), 2e-3),
                   lambda m: match_labels(m, vx[:, ::2], vx[:, 1::2], vy), step=clip_step)


class BYOL(nn.Module):
    def __init__(self):
        super().__init__()
        self.online = nn.Sequential(nn.Linear(64, 96), nn.BatchNorm1d(96), nn.ReLU(), nn.Linear(96, 32))
        self.target = copy.deepcopy(self.online).requires_grad_(False)
        self.predictor = nn.Sequential(nn.Linear(32, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 32))
        self.probe = nn.Linear(32, 10)

    def forward(self, x):
        return self.probe(self.online(x).detach())


@sound("BYOL with an online probe on detached features", steps=400, least=0.75)
def oss_ok_byol():
    x, y, vx, vy = digits()
    model = BYOL()

    def view(x):
        return x * (torch.rand_like(x) > 0.2) + 0.2 * torch.randn_like(x)

    def step(model, batch):
        x, y = batch
        with torch.no_grad():
            for t, o in zip(model.target.parameters(), model.online.parameters()):
                t.lerp_(o, 0.01)
        a, b = view(x), view(x)
        h = model.online(a)
        with torch.no_grad():
            z = model.target(b)
        loss = 2 - 2 * F.cosine_similarity(model.predictor(h), z).mean()
        return loss + F.cross_entropy(model.probe(h.detach()), y)

    opt = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], 2e-3)
    return Program(model, None, loader(x, y, batch=96), opt, lambda m: accuracy(m(vx), vy), step=step)


@sound("VICReg: three terms of weights 25, 25 and 1", steps=400, least=0.6)
def oss_ok_vicreg():
    x, y, vx, vy = digits()
    model = TwoTower(out=16)
    del model.log_scale

    def step(model, batch):
        u, v = model.image(batch[0]), model.text(batch[1])
        loss = 25 * F.mse_loss(u, v)
        for z in (u, v):
            c = torch.cov(z.T)
            loss = loss + 25 * F.relu(1 - (c.diag() + 1e-4).sqrt()).mean() + (c - c.diag().diag()).pow(2).sum() / 16
        return loss

    def score(m):
        u, v = F.layer_norm(m.image(vx[:, :32]), (16,)), F.layer_norm(m.text(vx[:, 32:]), (16,))
        return float((vy[(u @ v.T).argmax(1)] == vy).float().mean())

    return Program(model, None, loader(x[:, :32], x[:, 32:], batch=128),
                   torch.optim.Adam([*model.image.parameters(), *model.text.parameters()], 2e-3), score, step=step)


@sound("a mixture of experts that goes to the best two of six, with a balancing loss", steps=500, least=0.6)
def oss_ok_moe_top2():
    x, y = piecewise(4)

    class Sparse(nn.Module):
        def __init__(self):
            super().__init__()
            self.router = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 6))
            self.experts = nn.ModuleList(nn.Linear(4, 1) for _ in range(6))

        def forward(self, x):
            logits = self.router(x)
            top, idx = logits.topk(2, 1)
            w = torch.zeros_like(logits).scatter(1, idx, top.softmax(1))
            self.balance = 6 * ((w > 0).float().mean(0) * logits.softmax(1).mean(0)).sum()
            return (w * torch.cat([e(x) for e in self.experts], 1)).sum(1)

    model = Sparse()

    def step(model, batch):
        pred = model(batch[0])
        return F.mse_loss(pred, batch[1]) + 0.005 * model.balance

    return Program(model, None, loader(x[:2100], y[:2100]), torch.optim.Adam(model.parameters(), 1e-2),
                   lambda m: r2(m(x[2100:]), y[2100:]), step=step)


@sound("an ordinary dense mixture", trained=400, steps=500, least=0.7)
def oss_ok_moe_dense():
    x, y = piecewise(6)
    model = Mixture(1)
    return Program(model, F.mse_loss, loader(x[:2100], y[:2100]), torch.optim.Adam(model.parameters(), 1e-2),
                   lambda m: r2(m(x[2100:]), y[2100:]))


@sound("a PINN that is given an initial value and slope as hard constraints", steps=400, least=0.8)
def oss_ok_pinn():
    net = nn.Sequential(nn.Linear(1, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 1))
    grid = torch.linspace(0, 4, 101)[:, None]

    def u(m, t):
        return 1 + t**2 * m(t / 2 - 1)

    def step(m, batch):
        t = batch[0].clone().requires_grad_(True)
        y = u(m, t)
        (d,) = torch.autograd.grad(y.sum(), t, create_graph=True)
        (dd,) = torch.autograd.grad(d.sum(), t, create_graph=True)
        return (dd + 2.25 * y).pow(2).mean()

    return Program(net, None, loader(4 * torch.rand(1600, 1, generator=gen(0)), batch=48),
                   torch.optim.Adam(net.parameters(), 1e-2), lambda m: max(-1.0, r2(u(m, grid), torch.cos(1.5 * grid))),
                   scheduler=None, step=step)
