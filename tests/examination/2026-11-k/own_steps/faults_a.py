import torch
import torch.nn.functional as F
from parts import acc, blobs, curved, factors, gen, loader, mlp, r2
from program import Program, fault
from torch import nn


class VAE(nn.Module):
    def __init__(self, d=16, z=4):
        super().__init__()
        self.enc = nn.Sequential(nn.Linear(d, 48), nn.ReLU())
        self.mu, self.logvar = nn.Linear(48, z), nn.Linear(48, z)
        self.dec = nn.Sequential(nn.Linear(z, 48), nn.ReLU(), nn.Linear(48, d))

    def forward(self, x):
        h = self.enc(x)
        mu, lv = self.mu(h), self.logvar(h)
        z = mu + torch.randn_like(mu) * (0.5 * lv).exp() if self.training else mu
        return self.dec(z), mu, lv


@fault("the KL is summed over the batch, the reconstruction averaged over pixels: posterior collapse",
       rules=["term-dominates", "summed-loss", "rank-collapse"], fails=True, steps=300)
def vae_kl_summed(bad):
    x = factors()
    model = VAE()

    def step(model, batch):
        (v,) = batch
        out, mu, lv = model(v)
        kl = -0.5 * (1 + lv - mu**2 - lv.exp())
        kl = kl.sum() if bad else kl.sum(1).mean() / v.shape[1]
        return F.mse_loss(out, v) + (kl if bad else 0.1 * kl)

    return Program(model, None, loader(x[:1200], size=64), torch.optim.Adam(model.parameters(), 3e-3),
                   lambda m: r2(m(x[1200:])[0], x[1200:]), step=step)


@fault("discriminator with BatchNorm that sees real and fake examples in separate passes, one kind per step",
       rules=["sorted-batches", "batchnorm-mode-gap"], fails=True, steps=200)
def discriminator_one_kind_per_step(bad):
    g = gen(1)
    real = torch.randn(1000, 10, generator=g) * 0.7 + 0.8
    fake = torch.randn(1000, 10, generator=g).tanh() * 1.2 - 0.2
    model = nn.Sequential(nn.Linear(10, 32), nn.BatchNorm1d(32), nn.LeakyReLU(0.2), nn.Linear(32, 32),
                          nn.BatchNorm1d(32), nn.LeakyReLU(0.2), nn.Linear(32, 1))
    batches = []
    for i in range(0, 800, 40):
        r, f = real[i:i + 40], fake[i:i + 40]
        one, zero = torch.ones(40, 1), torch.zeros(40, 1)
        if bad:
            batches += [(r, one), (f, zero)]
        else:
            batches += [(torch.cat([r[:20], f[:20]]), torch.cat([one[:20], zero[:20]])),
                        (torch.cat([r[20:], f[20:]]), torch.cat([one[20:], zero[20:]]))]

    def score(m):
        hit = torch.cat([m(real[800:]) > 0, m(fake[800:]) <= 0]).float().mean()
        return float(2 * hit - 1)

    return Program(model, nn.BCEWithLogitsLoss(), batches,
                   torch.optim.Adam(model.parameters(), 2e-3, betas=(0.5, 0.999)), score)


class Towers(nn.Module):
    def __init__(self, a, b, e=8):
        super().__init__()
        self.left, self.right = mlp(a, 48, e), mlp(b, 48, e)

    def forward(self, a, b):
        return F.normalize(self.left(a), dim=-1) @ F.normalize(self.right(b), dim=-1).T / 0.1


def pairs(n=1500):
    g = gen(5)
    z = torch.randn(n, 4, generator=g)
    return (torch.cat([z, z**2], 1) @ torch.randn(8, 12, generator=g) * 0.4,
            torch.tanh(z @ torch.randn(4, 10, generator=g)))


@fault("InfoNCE with labels of zeros in place of arange",
       rules=["output-loss-mismatch", "constant-target", "labels-unrelated"], fails=True, steps=300)
def infonce_zero_labels(bad):
    a, b = pairs()
    model = Towers(12, 10)

    def step(model, batch):
        logits = model(*batch)
        n = len(logits)
        labels = torch.zeros(n, dtype=torch.long) if bad else torch.arange(n)
        return (F.cross_entropy(logits, labels) + F.cross_entropy(logits.T, labels)) / 2

    def score(m):
        return sum(acc(m(a[i:i + 20], b[i:i + 20]), torch.arange(20)) for i in range(1200, 1500, 20)) / 15

    return Program(model, None, loader(a[:1200], b[:1200], size=48), torch.optim.Adam(model.parameters(), 2e-3),
                   score, step=step)


class Gated(nn.Module):
    """h -> sigmoid(h G) * (h W)."""

    def __init__(self, i, o, bad):
        super().__init__()
        fill = (lambda: torch.ones(i, o) / i) if bad else (lambda: torch.randn(i, o) / i**0.5)
        self.gate, self.value = nn.Parameter(fill()), nn.Parameter(fill())
        self.bias = nn.Parameter(torch.zeros(o))

    def forward(self, h):
        return torch.sigmoid(h @ self.gate) * (h @ self.value) + self.bias


@fault("a custom gated layer fills its weights with one constant",
       rules=["symmetric-initialisation", "bad-initialisation", "rank-collapse"], layers=["body", "head"], fails=False, steps=300)
def gated_layer_of_ones(bad):
    x, y = curved(d=6, out=3)
    model = nn.Sequential()
    model.add_module("body", Gated(6, 64, bad))
    model.add_module("head", Gated(64, 3, bad))
    return Program(model, nn.MSELoss(), loader(x[:1200], y[:1200]), torch.optim.Adam(model.parameters(), 5e-3),
                   lambda m: r2(m(x[1200:]), y[1200:]))


class Pool(nn.Module):
    def __init__(self, d, dim):
        super().__init__()
        self.key, self.dim = nn.Linear(d, 1), dim

    def forward(self, h):
        return (self.key(h).softmax(self.dim) * h).sum(1)


class NodeReadout(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.node = nn.Sequential(nn.Linear(6, 32), nn.ReLU())
        self.pool = Pool(32, dim)
        self.out = nn.Linear(32, 1)

    def forward(self, x):
        return self.out(self.pool(self.node(x)))


@fault("attention readout of a graph: softmax over the graphs of the batch, not over the nodes of a graph",
       rules=["wrong-softmax-dimension", "mixed-examples"], layers=["pool"], fails=True, steps=350)
def readout_softmax_over_batch(bad):
    g = gen(2)
    x = torch.randn(1500, 7, 6, generator=g)
    i = x[:, :, 0].argmax(1)
    y = x[torch.arange(1500), i][:, 1:2]
    model = NodeReadout(0 if bad else 1)
    return Program(model, nn.MSELoss(), loader(x[:1200], y[:1200]), torch.optim.Adam(model.parameters(), 1e-2),
                   lambda m: r2(m(x[1200:]), y[1200:]))


@fault("Q(s, a) of shape (B, 1) against returns of shape (B,)",
       rules=["output-loss-mismatch"], fails=True, steps=300)
def q_gather_not_squeezed(bad):
    x, q = curved(n=2700, d=4, out=3)
    g = gen(4)
    a = torch.randint(3, (2700,), generator=g)
    ret = q[torch.arange(2700), a] + 0.1 * torch.randn(2700, generator=g)
    model = mlp(4, 64, 3)

    def step(model, batch):
        s, a, r = batch
        qa = model(s).gather(1, a[:, None])
        return F.smooth_l1_loss(qa if bad else qa.squeeze(1), r)

    return Program(model, None, loader(x[:2400], a[:2400], ret[:2400]), torch.optim.Adam(model.parameters(), 4e-3),
                   lambda m: r2(m(x[2400:]), q[2400:]), step=step)
