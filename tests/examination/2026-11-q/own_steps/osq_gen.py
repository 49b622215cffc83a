import math

import torch
import torch.nn.functional as F
from osq_common import digits, gen, loader, r2
from program import Program, fault, sound
from torch import nn
from torch.func import functional_call


def frozen_call(module, *args):
    return functional_call(module, {k: v.detach() for k, v in module.named_parameters()}, args)


class VAE(nn.Module):
    def __init__(self, d=64, h=96, z=12, last=None):
        super().__init__()
        self.enc = nn.Sequential(nn.Linear(d, h), nn.ReLU(), nn.Linear(h, 2 * z))
        self.dec = nn.Sequential(nn.Linear(z, h), nn.ReLU(), nn.Linear(h, d), *([last] if last else []))

    def forward(self, x):
        mu, logvar = self.enc(x).chunk(2, 1)
        z = mu + (0.5 * logvar).exp() * torch.randn_like(mu)
        return self.dec(z), mu, logvar

    def rebuild(self, x):
        return self.dec(self.enc(x).chunk(2, 1)[0])


def kl(mu, logvar):
    return -0.5 * (1 + logvar - mu.pow(2) - logvar.exp())


@fault("reconstruction averaged over pixels, KL summed over latents", rules=("term-dominates", "rank-collapse"), fails=False, steps=400)
def osq_vae_kl_summed(is_faulty):
    xt, _, xv, _ = digits()

    def step(model, batch):
        x, = batch
        logits, mu, logvar = model(x)
        rec = F.binary_cross_entropy_with_logits(logits, x, reduction="none")
        return (rec.mean() if is_faulty else rec.sum(1).mean()) + 0.3 * kl(mu, logvar).sum(1).mean()

    m = VAE()
    return Program(m, None, loader(xt, bs=64), torch.optim.Adam(m.parameters(), 3e-3),
                   lambda model: r2(model.rebuild(xv).sigmoid(), xv), step=step)


@fault("pixels of 0 to 16 as targets of a binary cross-entropy", rules=("output-loss-mismatch", "unscaled-target", "unscaled-input", "diverging"),
       fails=True, steps=400)
def osq_vae_bce_on_raw_pixels(is_faulty):
    xt, _, xv, _ = digits()
    k = 16.0 if is_faulty else 1.0

    def step(model, batch):
        x, = batch
        logits, mu, logvar = model(x)
        return F.binary_cross_entropy_with_logits(logits, x, reduction="none").sum(1).mean() + 0.2 * kl(mu, logvar).sum(1).mean()

    m = VAE(h=64, z=10)
    return Program(m, None, loader(xt * k, bs=100), torch.optim.Adam(m.parameters(), 3e-3),
                   lambda model: r2(model.rebuild(xv * k).sigmoid(), xv), step=step)


@fault("a decoder that ends in a sigmoid, with a loss that applies one itself", rules=("output-loss-mismatch",), fails=False, steps=400)
def osq_vae_sigmoid_twice(is_faulty):
    xt, _, xv, _ = digits()
    xt, xv = (xt > 0.5).float(), (xv > 0.5).float()

    def step(model, batch):
        x, = batch
        out, mu, logvar = model(x)
        rec = F.binary_cross_entropy_with_logits(out, x, reduction="none") if is_faulty else F.binary_cross_entropy(out, x, reduction="none")
        return rec.sum(1).mean() + 0.1 * kl(mu, logvar).sum(1).mean()

    m = VAE(last=nn.Sigmoid())
    return Program(m, None, loader(xt, bs=64), torch.optim.Adam(m.parameters(), 2e-3),
                   lambda model: r2(model.rebuild(xv), xv), step=step)


T = 1000
ABAR = torch.cumprod(1 - torch.linspace(1e-4, 0.02, T), 0)


def cloud(n, seed):
    g = gen(seed)
    c = 1.2 * torch.randn(4, 6, generator=gen(1))
    return c[torch.randint(0, 4, (n,), generator=g)] + 0.15 * torch.randn(n, 6, generator=g)


def noised(x, t, eps):
    a = ABAR[t][:, None]
    return a.sqrt() * x + (1 - a).sqrt() * eps


def eps_score(xv, seed):
    g = gen(seed)
    t = torch.randint(100, T, (len(xv),), generator=g)
    eps = torch.randn(xv.shape, generator=g)
    return lambda model: r2(model(noised(xv, t, eps), t), eps)


class EpsNet(nn.Module):
    def __init__(self, t_scale, act=nn.SiLU):
        super().__init__()
        self.t_scale = t_scale
        self.net = nn.Sequential(nn.Linear(7, 96), act(), nn.Linear(96, 96), act(), nn.Linear(96, 6))

    def forward(self, x, t):
        return self.net(torch.cat([x, t[:, None] * self.t_scale], 1))


@fault("the prediction is compared with noise that is drawn anew", rules=("labels-unrelated", "loss-not-decreasing"), fails=True, steps=500)
def osq_ddpm_noise_redrawn(is_faulty):
    x0 = cloud(2000, 2)

    def step(model, batch):
        x, = batch
        t = torch.randint(0, T, (len(x),))
        eps = torch.randn_like(x)
        x_t = noised(x, t, eps)
        return F.mse_loss(model(x_t, t), torch.randn_like(x) if is_faulty else eps)

    m = EpsNet(1 / T)
    return Program(m, None, loader(x0, bs=128), torch.optim.AdamW(m.parameters(), 2e-3), eps_score(cloud(500, 3), 4), step=step)


@fault("time steps of 0 to 999 enter the network as they are", rules=("unscaled-input", "ill-conditioned-input"), fails=False, steps=400)
def osq_ddpm_raw_time(is_faulty):
    x0 = cloud(2000, 5)

    def step(model, batch):
        x, = batch
        t = torch.randint(0, T, (len(x),))
        eps = torch.randn_like(x)
        return F.mse_loss(model(noised(x, t, eps), t), eps)

    m = EpsNet(1.0 if is_faulty else 1 / T)
    return Program(m, None, loader(x0, bs=128), torch.optim.Adam(m.parameters(), 2e-3), eps_score(cloud(500, 6), 7), step=step)


class RealNVP(nn.Module):
    def __init__(self, std, layers=6):
        super().__init__()
        self.nets = nn.ModuleList(nn.Sequential(nn.Linear(1, 32), nn.Tanh(), nn.Linear(32, 2)) for _ in range(layers))
        for net in self.nets:
            nn.init.normal_(net[2].weight, std=std)
            nn.init.zeros_(net[2].bias)

    def forward(self, x):
        logdet = 0
        for i, net in enumerate(self.nets):
            keep, move = (x[:, :1], x[:, 1:]) if i % 2 == 0 else (x[:, 1:], x[:, :1])
            s, t = net(keep).chunk(2, 1)
            move = move * s.exp() + t
            logdet = logdet + s.squeeze(1)
            x = torch.cat([keep, move] if i % 2 == 0 else [move, keep], 1)
        return x, logdet

    def nll(self, x):
        z, logdet = self(x)
        return (0.5 * z.pow(2).sum(1) + math.log(2 * math.pi) - logdet).mean()


def banana(n, seed):
    g = gen(seed)
    a = torch.randn(n, 1, generator=g)
    return torch.cat([a, 0.8 * a**2 + 0.2 * torch.randn(n, 1, generator=g)], 1)


def nll_score(xv):
    return lambda model: max(-1.0, (3.318 - float(model.nll(xv))) / (3.318 - 1.229))


@fault("scale networks of a flow whose last layers start at N(0, 1)", fails=True, steps=300,
       rules=("bad-initialisation", "exploding-gradient", "activation-drift", "non-finite"), layers=("nets",))
def osq_flow_scale_init(is_faulty):
    m = RealNVP(1.0 if is_faulty else 0.01)
    return Program(m, None, loader(banana(2000, 8), bs=128), torch.optim.Adam(m.parameters(), 5e-3), nll_score(banana(500, 9)),
                   step=lambda model, batch: model.nll(batch[0]))


class Masked(nn.Linear):
    def __init__(self, mask):
        super().__init__(mask.shape[1], mask.shape[0])
        self.register_buffer("mask", mask.float())

    def forward(self, x):
        return F.linear(x, self.weight * self.mask, self.bias)


def chain(n, seed, d=16):
    g = gen(seed)
    flips = (torch.rand(n, d, generator=g) < 0.06).long()
    flips[:, 0] = torch.randint(0, 2, (n,), generator=g)
    return (flips.cumsum(1) % 2).float()


@fault("a MADE whose last mask is not strict, so that each bit sees itself", rules=("future-seen",), layers=("out", "hidden"), fails=True, steps=400)
def osq_made_sees_itself(is_faulty):
    d = 16
    deg = torch.arange(d)
    hid = torch.arange(128) % (d if is_faulty else d - 1)

    class MADE(nn.Module):
        def __init__(self):
            super().__init__()
            self.hidden = Masked(hid[:, None] >= deg[None])
            self.out = Masked(deg[:, None] >= hid[None] if is_faulty else deg[:, None] > hid[None])

        def forward(self, x):
            return self.out(torch.relu(self.hidden(2 * x - 1)))

    xv = chain(400, 11)

    def score(model):
        right = []
        for i in range(1, d):
            seen = xv.clone()
            seen[:, i:] = 0
            right.append(((model(seen)[:, i] > 0).float() == xv[:, i]).float().mean())
        return float(2 * torch.stack(right).mean() - 1)

    m = MADE()
    x = chain(2000, 10)
    return Program(m, F.binary_cross_entropy_with_logits, loader(x, x, bs=64), torch.optim.Adam(m.parameters(), 5e-3), score)


MU, SD = torch.tensor([2.0, -1.5]), torch.tensor([0.6, 0.3])


class GAN(nn.Module):
    def __init__(self, wrap=lambda x: x):
        super().__init__()
        self.g = nn.Sequential(nn.Linear(3, 32), nn.ReLU(), nn.Linear(32, 2))
        self.d = nn.Sequential(wrap(nn.Linear(2, 32)), nn.LeakyReLU(0.2), wrap(nn.Linear(32, 32)), nn.LeakyReLU(0.2), wrap(nn.Linear(32, 1)))


def gan_score(model):
    fake = model.g(torch.randn(500, 3, generator=gen(3)))
    return float(1 - ((fake.mean(0) - MU).norm() + (fake.std(0) - SD).norm()) / (MU.norm() + SD.norm()))


@fault("the fake is detached in the generator's loss as well", rules=("no-gradient",), layers=("g",), fails=True, steps=500)
def osq_gan_detached_fake(is_faulty):
    real = MU + SD * torch.randn(2000, 2, generator=gen(12))

    def step(model, batch):
        x, = batch
        fake = model.g(torch.randn(len(x), 3))
        d_loss = F.softplus(-model.d(x)).mean() + F.softplus(model.d(fake.detach())).mean()
        if is_faulty:
            fake = fake.detach()
        return d_loss + F.softplus(-frozen_call(model.d, fake)).mean()

    m = GAN()
    return Program(m, None, loader(real, bs=64), torch.optim.Adam([{"params": m.g.parameters(), "lr": 2e-3}, {"params": m.d.parameters(), "lr": 4e-3}], betas=(0.5, 0.99)), gan_score, step=step)


@fault("Adam with its betas swapped", rules=("optimizer-setting",), fails=False, steps=300)
def osq_autoencoder_betas_swapped(is_faulty):
    xt, _, xv, _ = digits()
    m = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 10), nn.Linear(10, 64), nn.GELU(), nn.Linear(64, 64))

    def step(model, batch):
        x, = batch
        return F.mse_loss(model(x + 0.1 * torch.randn_like(x)), x)

    return Program(m, None, loader(xt, bs=64), torch.optim.Adam(m.parameters(), 3e-3, betas=(0.999, 0.9) if is_faulty else (0.9, 0.999)),
                   lambda model: r2(model(xv), xv), step=step)


class Codes(nn.Module):
    def __init__(self, through=True):
        super().__init__()
        self.through = through
        self.book = nn.Parameter(torch.randn(8, 16, 4))

    def forward(self, h):
        z = h.view(len(h), 8, 4)
        d = (z[:, :, None] - self.book).pow(2).sum(-1)
        q = torch.stack([self.book[i][d[:, i].argmin(1)] for i in range(8)], 1)
        return (z + (q - z).detach() if self.through else q), z, q


@fault("a discrete code by argmax, through which no gradient passes", rules=("no-gradient",), layers=("enc",), fails=False, steps=500)
def osq_discrete_code_argmax(is_faulty):
    xt, _, xv, _ = digits()

    class DVAE(nn.Module):
        def __init__(self):
            super().__init__()
            self.enc = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10 * 8))
            self.dec = nn.Sequential(nn.Linear(80, 64), nn.ReLU(), nn.Linear(64, 64))

        def forward(self, x):
            logits = self.enc(x).view(-1, 10, 8)
            if is_faulty or not self.training:
                code = F.one_hot(logits.argmax(-1), 8).float()
            else:
                code = F.gumbel_softmax(logits, tau=1.0, hard=True)
            return self.dec(code.flatten(1))

    m = DVAE()
    return Program(m, F.mse_loss, loader(xt, xt, bs=64), torch.optim.Adam(m.parameters(), 4e-3), lambda model: r2(model(xv), xv))


@sound("a VAE with losses of about 20", steps=400, least=0.6)
def osq_s_vae():
    xt, _, xv, _ = digits()

    def step(model, batch):
        x, = batch
        logits, mu, logvar = model(x)
        return F.binary_cross_entropy_with_logits(logits, x, reduction="none").sum(1).mean() + 0.3 * kl(mu, logvar).sum(1).mean()

    m = VAE()
    return Program(m, None, loader(xt, bs=64), torch.optim.Adam(m.parameters(), 3e-3), lambda model: r2(model.rebuild(xv).sigmoid(), xv), step=step)


@sound("a quantized code with straight-through gradients and a codebook loss", steps=500, least=0.6)
def osq_s_vqvae():
    xt, _, xv, _ = digits()

    class VQ(nn.Module):
        def __init__(self):
            super().__init__()
            self.enc = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 32))
            self.codes = Codes()
            self.dec = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 64))

        def forward(self, x):
            out, z, q = self.codes(self.enc(x))
            return self.dec(out.flatten(1)), z, q

    def step(model, batch):
        x, = batch
        y, z, q = model(x)
        return F.mse_loss(y, x) + 0.1 * F.mse_loss(q, z.detach()) + 0.025 * F.mse_loss(z, q.detach())

    m = VQ()
    return Program(m, None, loader(xt, bs=64), torch.optim.Adam(m.parameters(), 3e-3), lambda model: r2(model(xv)[0], xv), step=step)


@sound("diffusion with a loss that stays high, by sinusoids of time", steps=500, least=0.6)
def osq_s_ddpm():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("freq", torch.exp(-torch.arange(8) * math.log(1000.0) / 8))
            self.time = nn.Sequential(nn.Linear(16, 64), nn.SiLU(), nn.Linear(64, 64))
            self.first, self.mid, self.last = nn.Linear(6, 64), nn.Linear(64, 64), nn.Linear(64, 6)
            nn.init.zeros_(self.last.weight)
            nn.init.zeros_(self.last.bias)

        def forward(self, x, t):
            ang = t[:, None].float() * self.freq
            h = self.first(x) + self.time(torch.cat([ang.sin(), ang.cos()], 1))
            h = h + self.mid(F.silu(h))
            return self.last(F.silu(h))

    def step(model, batch):
        x, = batch
        t = torch.randint(0, T, (len(x),))
        eps = torch.randn_like(x)
        return F.mse_loss(model(noised(x, t, eps), t), eps)

    m = Net()
    return Program(m, None, loader(cloud(2000, 13), bs=128), torch.optim.AdamW(m.parameters(), 3e-3), eps_score(cloud(500, 14), 15), step=step)


@sound("a flow that starts at the identity, with zeros in its last layers", steps=400, least=0.7)
def osq_s_realnvp_zero():
    m = RealNVP(0.0)
    return Program(m, None, loader(banana(2000, 16), bs=128), torch.optim.Adam(m.parameters(), 5e-3), nll_score(banana(500, 17)),
                   step=lambda model, batch: model.nll(batch[0]))


@sound("a trained flow", trained=400, steps=500, least=0.7)
def osq_s_flow_trained():
    m = RealNVP(0.01, layers=4)
    opt = torch.optim.Adam(m.parameters(), 5e-3)
    return Program(m, None, loader(banana(2000, 18), bs=128), opt, nll_score(banana(500, 19)),
                   scheduler=torch.optim.lr_scheduler.CosineAnnealingLR(opt, 500), step=lambda model, batch: model.nll(batch[0]))


@sound("a GAN with hinge losses and spectral norms: neither part's loss falls for long", steps=600, least=0.6)
def osq_s_hinge_gan():
    real = MU + SD * torch.randn(2000, 2, generator=gen(20))

    def step(model, batch):
        x, = batch
        fake = model.g(torch.randn(len(x), 3))
        d_loss = F.relu(1 - model.d(x)).mean() + F.relu(1 + model.d(fake.detach())).mean()
        for p in model.d.parameters():
            p.requires_grad_(False)
        g_loss = -model.d(fake).mean()
        for p in model.d.parameters():
            p.requires_grad_(True)
        return d_loss + g_loss

    m = GAN(nn.utils.spectral_norm)
    return Program(m, None, loader(real, bs=64), torch.optim.Adam([{"params": m.g.parameters(), "lr": 2e-3}, {"params": m.d.parameters(), "lr": 8e-3}], betas=(0.0, 0.9)), gan_score, step=step)


@sound("an ordinary autoencoder", steps=400, least=0.6)
def osq_s_autoencoder():
    xt, _, xv, _ = digits()
    m = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 16), nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 64))
    return Program(m, nn.MSELoss(), loader(xt, xt, bs=64), torch.optim.Adam(m.parameters(), 3e-3), lambda model: r2(model(xv), xv))


@sound("a generator trained by maximum mean discrepancy: a loss near 0 from the start", steps=400, least=0.7)
def osq_s_mmd_generator():
    real = MU + SD * torch.randn(2000, 2, generator=gen(21))

    class Gen(nn.Module):
        def __init__(self):
            super().__init__()
            self.g = nn.Sequential(nn.Linear(3, 32), nn.ReLU(), nn.Linear(32, 2))

    def k(a, b):
        d = (a[:, None] - b[None]).pow(2).sum(-1)
        return sum(torch.exp(-d / (2 * s)) for s in (0.2, 1.0, 5.0))

    def step(model, batch):
        x, = batch
        f = model.g(torch.randn(len(x), 3))
        return k(f, f).mean() - 2 * k(f, x).mean() + k(x, x).mean()

    m = Gen()
    return Program(m, None, loader(real, bs=64), torch.optim.Adam(m.parameters(), 3e-3), gan_score, step=step)
