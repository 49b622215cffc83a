import copy

import torch
import torch.nn.functional as F
from faults_a import VAE, Towers, pairs
from faults_b import LoRA
from parts import acc, blobs, curved, factors, gen, loader, mlp, r2
from program import Program, sound
from torch import nn


@sound("an ELBO summed over pixels and latents and averaged over the batch", steps=300, least=0.6)
def elbo_summed_over_pixels():
    x = factors(seed=21)
    model = VAE()

    def step(model, batch):
        (v,) = batch
        out, mu, lv = model(v)
        rec = (out - v).pow(2).sum(1) / (2 * 0.1)
        return (rec - 0.5 * (1 + lv - mu**2 - lv.exp()).sum(1)).mean()

    return Program(model, None, loader(x[:1200], size=64), torch.optim.Adam(model.parameters(), 2e-3),
                   lambda m: r2(m(x[1200:])[0], x[1200:]), step=step)


@sound("a hinge discriminator with spectral norm and betas (0, 0.9)", steps=250, least=0.6)
def spectral_hinge_discriminator():
    g = gen(22)
    real = torch.randn(1000, 10, generator=g) * 0.7 + 0.8
    fake = torch.randn(1000, 10, generator=g).tanh() * 1.2 - 0.2
    sn = nn.utils.parametrizations.spectral_norm
    model = nn.Sequential(sn(nn.Linear(10, 48)), nn.LeakyReLU(0.2), sn(nn.Linear(48, 48)), nn.LeakyReLU(0.2),
                          sn(nn.Linear(48, 1)))

    def step(model, batch):
        r, f = batch
        return F.relu(1 - model(r)).mean() + F.relu(1 + model(f)).mean()

    return Program(model, None, loader(real[:800], fake[:800]),
                   torch.optim.Adam(model.parameters(), 2e-3, betas=(0.0, 0.9)),
                   lambda m: float(2 * torch.cat([m(real[800:]) > 0, m(fake[800:]) <= 0]).float().mean() - 1), step=step)


@sound("two towers with a symmetric cross entropy over the batch", trained=60, steps=300, least=0.6)
def clip_half_trained():
    a, b = pairs()
    model = Towers(12, 10)

    def step(model, batch):
        logits = model(*batch)
        lab = torch.arange(len(logits))
        return (F.cross_entropy(logits, lab) + F.cross_entropy(logits.T, lab)) / 2

    return Program(model, None, loader(a[:1200], b[:1200], size=48), torch.optim.AdamW(model.parameters(), 2e-3),
                   lambda m: sum(acc(m(a[i:i + 20], b[i:i + 20]), torch.arange(20)) for i in range(1200, 1500, 20)) / 15,
                   step=step)


@sound("REINFORCE: the loss hovers about zero and changes sign", steps=400, least=0.6)
def reinforce_with_baseline():
    x, best = blobs(k=4, d=8, seed=24)
    model = mlp(8, 48, 4)

    def step(model, batch):
        s, b = batch
        dist = torch.distributions.Categorical(logits=model(s))
        a = dist.sample()
        r = (a == b).float()
        return -((r - r.mean()) * dist.log_prob(a)).mean() - 0.005 * dist.entropy().mean()

    return Program(model, None, loader(x[:1200], best[:1200], size=64), torch.optim.Adam(model.parameters(), 3e-3),
                   lambda m: acc(m(x[1200:]), best[1200:]), step=step)


class DQN(nn.Module):
    def __init__(self):
        super().__init__()
        self.online = mlp(6, 64, 3)
        self.target = copy.deepcopy(self.online).requires_grad_(False)

    def forward(self, s):
        return self.online(s)


@sound("a frozen target network inside the model, updated by an average in the step", steps=400, least=0.6)
def dqn_soft_target():
    g = gen(25)
    s = torch.randn(1500, 6, generator=g)
    a = torch.randint(3, (1500,), generator=g)
    w = torch.randn(6, 3, generator=g) / 2
    good = (s @ w).argmax(1)
    r = (s @ w)[torch.arange(1500), a]
    s2 = torch.randn(1500, 6, generator=g)
    model = DQN()

    def step(model, batch):
        s, a, r, n = batch
        with torch.no_grad():
            for p, q in zip(model.target.parameters(), model.online.parameters()):
                p.lerp_(q, 0.05)
            goal = r + 0.5 * model.target(n).gather(1, model(n).argmax(1, keepdim=True)).squeeze(1)
        return F.smooth_l1_loss(model(s).gather(1, a[:, None]).squeeze(1), goal)

    return Program(model, None, loader(s[:1200], a[:1200], r[:1200], s2[:1200]),
                   torch.optim.Adam(model.online.parameters(), 2e-3), lambda m: acc(m(s[1200:]), good[1200:]), step=step)


@sound("LoRA: base frozen, one factor zero at the start", steps=300, least=0.6)
def lora_as_usual():
    x, y = blobs(seed=26, noise=0.6)
    model = nn.Sequential(LoRA(nn.Linear(12, 48), 8, False), nn.ReLU(), LoRA(nn.Linear(48, 5), 4, False))
    return Program(model, nn.CrossEntropyLoss(), loader(x[:1200], y[:1200]),
                   torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], 5e-3),
                   lambda m: acc(m(x[1200:]), y[1200:]))


class Denoiser(nn.Module):
    def __init__(self):
        super().__init__()
        self.time, self.inp = nn.Linear(8, 64), nn.Linear(8, 64)
        self.mid, self.out = nn.Linear(64, 64), nn.Linear(64, 8)
        nn.init.zeros_(self.out.weight)
        nn.init.zeros_(self.out.bias)

    def forward(self, x, t):
        f = t * torch.tensor([1.0, 2, 4, 8])
        h = F.silu(self.inp(x) + self.time(torch.cat([f.sin(), f.cos()], 1)))
        return self.out(F.silu(self.mid(h)))


@sound("denoiser with a last layer of zeros; its loss is noisy and stays well above 0", steps=400, least=0.6)
def denoiser_zero_output():
    g = gen(27)
    x0 = torch.randn(1500, 2, generator=g) @ torch.randn(2, 8, generator=g) * 0.5
    t_ = 0.3 + 0.6 * torch.rand(300, 1, generator=g)
    e_ = torch.randn(300, 8, generator=g)
    model = Denoiser()

    def step(model, batch):
        (x,) = batch
        t = 0.3 + 0.6 * torch.rand(len(x), 1)
        e = torch.randn_like(x)
        return F.mse_loss(model((1 - t).sqrt() * x + t.sqrt() * e, t), e)

    return Program(model, None, loader(x0[:1200], size=64), torch.optim.Adam(model.parameters(), 3e-3),
                   lambda m: r2(m((1 - t_).sqrt() * x0[1200:] + t_.sqrt() * e_, t_), e_), step=step)
