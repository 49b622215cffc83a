"""Sound set-ups on signals, and of networks that generate or teach themselves."""

from __future__ import annotations

import copy
import math

import torch
import torch.nn.functional as F
from program import Program, sound
from torch import nn
from torch.nn.utils.parametrizations import weight_norm
from yis_data import accuracy, chirps, fields, glyphs, loader, pulses, r2, tones


@sound("an ordinary network on tones", steps=300, least=0.9)
def yis_tones_plain():
    x, y = tones(1400)
    model = nn.Sequential(
        nn.Conv1d(1, 16, 9, 2, 4), nn.BatchNorm1d(16), nn.ReLU(), nn.Conv1d(16, 24, 5, 2, 2), nn.BatchNorm1d(24),
        nn.ReLU(), nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(24, 4),
    )
    opt = torch.optim.AdamW(model.parameters(), lr=2e-3)
    return Program(model, nn.CrossEntropyLoss(), loader(x[:1100], y[:1100]), opt, accuracy(x[1100:], y[1100:]))


class PulseRate(nn.Module):
    def __init__(self, mean, std):
        super().__init__()
        self.conv = nn.Sequential(nn.Conv1d(1, 16, 7, 2, 3), nn.ReLU(), nn.Conv1d(16, 24, 5, 2, 2), nn.ReLU())
        self.fc = nn.Sequential(nn.Linear(384, 48), nn.ReLU(), nn.Linear(48, 1))
        self.register_buffer("mean", mean)
        self.register_buffer("std", std)

    def forward(self, x):
        return self.fc(self.conv(x).flatten(1)).squeeze(-1) * self.std + self.mean


@sound("rates in beats per minute, which the network's last line brings to scale", steps=350, least=0.85)
def yis_rates_scaled_inside():
    x, rate = pulses(1300)
    bpm = 90 + 60 * (rate - 0.5)
    model = PulseRate(bpm[:1000].mean(), bpm[:1000].std())
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    return Program(
        model, nn.SmoothL1Loss(), loader(x[:1000], bpm[:1000]), opt, lambda net: r2(net(x[1000:]), bpm[1000:])
    )


class BiGRU(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.GRU(12, 20, bidirectional=True)  # frames first, as forward gives them
        self.tag = nn.Linear(40, 1)

    def forward(self, x):
        h, _ = self.rnn(x.transpose(0, 1))
        return self.tag(h).squeeze(-1).transpose(0, 1)


@sound("a network in both directions that may see what comes later, and has its frames first", steps=300, least=0.7)
def yis_both_directions():
    x, _ = chirps(1300, 10, 12, 0.4)
    centre = (F.relu(x - 0.3) * torch.arange(12)).sum(2) / F.relu(x - 0.3).sum(2).clamp(min=0.1)
    later = (centre.flip(1).cumsum(1).flip(1) / torch.arange(10, 0, -1) - 5.5) / 2  # mean of this and later ones
    model = BiGRU()
    opt = torch.optim.Adam(model.parameters(), lr=5e-3)
    return Program(
        model, nn.MSELoss(), loader(x[:1000], later[:1000]), opt,
        lambda net: r2(net(x[1000:]).flatten(), later[1000:].flatten()),
    )


class TiedAutoencoder(nn.Module):
    def __init__(self, pixels=100, z=24):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(z, pixels) / 10)
        self.bias_z, self.bias_x = nn.Parameter(torch.zeros(z)), nn.Parameter(torch.zeros(pixels))

    def forward(self, x):
        z = torch.tanh(F.linear(x.flatten(1), self.weight, self.bias_z))
        return F.linear(z, self.weight.t(), self.bias_x)


@sound("an autoencoder whose decoder has the encoder's weight, turned over", steps=400, least=0.75)
def yis_tied_autoencoder():
    x = fields(1200, 10, 3)
    model = TiedAutoencoder()
    opt = torch.optim.Adam(model.parameters(), lr=3e-3)
    return Program(
        model, lambda out, t: F.mse_loss(out, t.flatten(1)), loader(x[:900], x[:900]), opt,
        lambda net: r2(net(x[900:]).flatten(), x[900:].flatten()),
    )


@sound("an autoencoder without nonlinearities, on purpose: it looks for principal components", steps=400, least=0.8)
def yis_principal_components():
    mix = torch.randn(6, 64)
    x = torch.randn(1200, 6) @ mix / 6**0.5 + 0.1 * torch.randn(1200, 64)
    model = nn.Sequential(nn.Linear(64, 6, bias=False), nn.Linear(6, 64, bias=False))
    opt = torch.optim.Adam(model.parameters(), lr=5e-3)
    return Program(
        model, nn.MSELoss(), loader(x[:900], x[:900]), opt, lambda net: r2(net(x[900:]).flatten(), x[900:].flatten())
    )


class ConvVAE(nn.Module):
    def __init__(self, z=6):
        super().__init__()
        self.enc = nn.Sequential(nn.Conv2d(1, 12, 4, 2, 1), nn.ReLU(), nn.Conv2d(12, 16, 4, 2, 1), nn.ReLU(), nn.Flatten())
        self.stats = nn.Linear(64, 2 * z)
        self.dec = nn.Sequential(
            nn.Linear(z, 64), nn.ReLU(), nn.Unflatten(1, (16, 2, 2)), nn.ConvTranspose2d(16, 12, 4, 2, 1), nn.ReLU(),
            nn.ConvTranspose2d(12, 1, 4, 2, 1),
        )

    def forward(self, x):
        mu, logvar = self.stats(self.enc(x)).chunk(2, 1)
        z = mu + torch.randn_like(mu) * torch.exp(0.5 * logvar) if self.training else mu
        return {"x": self.dec(z), "mu": mu, "logvar": logvar}


@sound("a variational autoencoder, half trained, whose loss is a sum over pixels and latents", trained=150, steps=450, least=0.65)
def yis_vae_half_trained():
    x = fields(1400, 8, 3)
    model = ConvVAE(8)

    def loss(out, target):
        rec = 2 * ((out["x"] - target) ** 2).sum((1, 2, 3))
        kl = 0.5 * (out["mu"] ** 2 + out["logvar"].exp() - 1 - out["logvar"]).sum(1)
        return (rec + kl).mean()

    opt = torch.optim.Adam(model.parameters(), lr=2e-3)
    return Program(
        model, loss, loader(x[:1000], x[:1000]), opt, lambda net: r2(net(x[1000:])["x"].flatten(), x[1000:].flatten())
    )


def knn(z, y, bank, labels):
    s = F.normalize(z, dim=1) @ F.normalize(bank, dim=1).t()
    votes = F.one_hot(labels[s.topk(5).indices], int(labels.max()) + 1).sum(1)
    return float((votes.argmax(1) == y).float().mean())


class Contrast(nn.Module):
    def __init__(self):
        super().__init__()
        self.enc = nn.Sequential(
            nn.Conv2d(1, 12, 3, 2, 1), nn.ReLU(), nn.Conv2d(12, 24, 3, 2, 1), nn.ReLU(), nn.Flatten(), nn.Linear(216, 32)
        )
        self.proj = nn.Sequential(nn.ReLU(), nn.Linear(32, 16))

    def forward(self, x):
        return F.normalize(self.proj(self.enc(x)), dim=1)


@sound("contrast of two views, each of which is compared to all others of the batch, at a temperature of 0.2", trained=120, steps=250, least=0.8)
def yis_contrast_of_views():
    x, y = glyphs(1200, 6, 10, 0.2)
    model = Contrast()

    def view(a):
        return a + 1.2 * torch.randn_like(a)

    def step(net, batch):
        a, b = net(view(batch[0])), net(view(batch[0]))
        s = a @ b.t() / 0.2
        t = torch.arange(len(s))
        return (F.cross_entropy(s, t) + F.cross_entropy(s.t(), t)) / 2

    hard = x[900:] + 1.2 * torch.randn_like(x[900:])
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    return Program(
        model, None, loader(x[:900], size=24), opt, lambda net: knn(net(hard), y[900:], net(x[:900]), y[:900]), step=step
    )


class SelfTeacher(nn.Module):
    """A student, and a teacher that follows it."""

    def __init__(self, pixels=64, z=16):
        super().__init__()
        self.student = nn.Sequential(nn.Linear(pixels, 64), nn.ReLU(), nn.Linear(64, z))
        self.head = nn.Linear(z, 6)
        self.teacher = copy.deepcopy(nn.Sequential(self.student, self.head)).requires_grad_(False)

    def forward(self, x):
        return self.head(self.student(x))

    @torch.no_grad()
    def follow(self, rate=0.95):
        for p, q in zip([*self.student.parameters(), *self.head.parameters()], self.teacher.parameters()):
            q.lerp_(p, 1 - rate)


@sound("a mean teacher: half of the network gets no gradient and follows the other half", steps=300, least=0.75)
def yis_mean_teacher():
    x, y = glyphs(1500, 6, 8, 1.0)
    x = x.flatten(1)
    labelled = torch.rand(1500) < 0.4
    model = SelfTeacher()

    def step(net, batch):
        a, label, has = batch
        net.follow()
        out = net(a + 0.3 * torch.randn_like(a))
        with torch.no_grad():
            soft = net.teacher(a).softmax(1)
        known = (F.cross_entropy(out, label, reduction="none") * has).sum() / has.sum().clamp(min=1)
        return known + 0.3 * F.mse_loss(out.softmax(1), soft)

    opt = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.05, momentum=0.9)
    return Program(
        model, None, loader(x[:1200], y[:1200], labelled[:1200].float(), size=40), opt,
        lambda net: float((net.teacher(x[1200:]).argmax(1) == y[1200:]).float().mean()), step=step,
    )


class Coupling(nn.Module):
    def __init__(self, d, flip):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(d // 2, 48), nn.Tanh(), nn.Linear(48, d))
        nn.init.zeros_(self.net[2].weight)
        nn.init.zeros_(self.net[2].bias)
        self.flip = flip

    def forward(self, x):
        a, b = x.chunk(2, 1)
        if self.flip:
            a, b = b, a
        s, t = self.net(a).chunk(2, 1)
        s = torch.tanh(s)
        b = b * s.exp() + t
        return torch.cat([b, a] if self.flip else [a, b], 1), s.sum(1)


class Flow(nn.Module):
    def __init__(self, d=8, layers=4):
        super().__init__()
        self.layers = nn.ModuleList(Coupling(d, k % 2 == 1) for k in range(layers))

    def forward(self, x):
        total = 0.0
        for layer in self.layers:
            x, det = layer(x)
            total = total + det
        return x, total


@sound("a flow that starts as the identity and whose loss falls below zero", steps=500, least=0.7)
def yis_flow_below_zero():
    u = torch.randn(2400, 4)
    x = torch.cat([u, torch.sin(2 * u) + 0.1 * torch.randn(2400, 4)], 1)
    model = Flow()

    def nll(out, _):
        z, det = out
        return (0.5 * (z**2).sum(1) - det).mean()

    held = x[2000:]

    def score(net):  # 0: the identity; 1: what is possible
        best = 0.5 * 4 + (0.5 + math.log(0.1)) * 4
        start = float(0.5 * (held**2).sum(1).mean())
        return max(0.0, (start - float(nll(net(held), None))) / (start - best))

    opt = torch.optim.Adam(model.parameters(), lr=4e-3)
    return Program(model, nll, loader(x[:2000], x[:2000], size=64), opt, score)


class Conditioned(nn.Module):
    def __init__(self, pixels=64, d=128):
        super().__init__()
        self.register_buffer("freq", torch.exp(torch.linspace(0, 4, 8)))
        self.time = nn.Sequential(nn.Linear(16, d), nn.SiLU(), nn.Linear(d, 2 * d))
        self.inp, self.mid, self.out = nn.Linear(pixels, d), nn.Linear(d, d), nn.Linear(d, pixels)
        nn.init.zeros_(self.time[2].weight)
        nn.init.zeros_(self.time[2].bias)

    def forward(self, x, t):
        a = t[:, None] * self.freq
        scale, shift = self.time(torch.cat([a.sin(), a.cos()], 1)).chunk(2, 1)
        h = F.silu(self.inp(x) * (1 + scale) + shift)
        return self.out(F.silu(self.mid(h)))


@sound("a diffusion on noise that differs in every step, whose conditioning starts at 0; half trained", trained=200, steps=500, least=0.6)
def yis_diffusion_half_trained():
    x0 = fields(1300, 8, 3).flatten(1)
    model = Conditioned()

    def noised(x):
        t = torch.rand(len(x))
        e = torch.randn_like(x)
        a = torch.cos(t * 1.5)[:, None]
        return a * x + (1 - a * a).sqrt() * e, t, e

    held = noised(x0[1000:])

    def step(net, batch):
        xt, t, e = noised(batch[0])
        return F.mse_loss(net(xt, t), e)

    opt = torch.optim.AdamW(model.parameters(), lr=2e-3, betas=(0.9, 0.95))
    return Program(
        model, None, loader(x0[:1000], size=64), opt,
        lambda net: r2(net(held[0], held[1]).flatten(), held[2].flatten()), step=step,
    )


class Gated(nn.Module):
    """Causal, gated, dilated; classes of quantised samples come out."""

    def __init__(self, levels=12, c=16):
        super().__init__()
        self.embed = nn.Embedding(levels, c)
        self.filters = nn.ModuleList(weight_norm(nn.Conv1d(c, 2 * c, 2, dilation=2**k)) for k in range(4))
        self.out = nn.Conv1d(c, levels, 1)

    def forward(self, tokens):
        x = self.embed(tokens).transpose(1, 2)
        for conv in self.filters:
            a, b = conv(F.pad(x, (conv.dilation[0], 0))).chunk(2, 1)
            x = x + torch.tanh(a) * torch.sigmoid(b)
        return self.out(x)


@sound("a causal model of quantised samples with tanh and sigmoid gates, no norms, targets one further on", trained=200, steps=500, least=0.6)
def yis_gated_samples():
    x, _ = tones(1000, 40, 2, noise=0.0)
    tokens = ((x[:, 0] + 1) / 2 * 11.99).long().clamp(0, 11)
    model = Gated()
    opt = torch.optim.Adam(model.parameters(), lr=4e-3)
    given, asked = tokens[:, :-1], tokens[:, 1:]
    return Program(
        model, nn.CrossEntropyLoss(), loader(given[:800], asked[:800], size=16), opt,
        lambda net: float((net(given[800:]).argmax(1) - asked[800:])[:, 12:].abs().le(0).float().mean()),
    )


class Masked(nn.Module):
    """Fills in patches that were hidden."""

    def __init__(self, d=48):
        super().__init__()
        self.embed, self.out = nn.Linear(16, d), nn.Linear(d, 16)
        self.hidden = nn.Parameter(torch.zeros(d))
        self.pos = nn.Parameter(0.02 * torch.randn(16, d))
        layer = nn.TransformerEncoderLayer(d, 4, 2 * d, 0.0, "gelu", batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, patches, mask):
        h = torch.where(mask[..., None], self.hidden, self.embed(patches))
        return self.out(self.body(h + self.pos))


@sound("a masked autoencoder whose targets are its inputs, of which half are hidden", steps=400, least=0.6)
def yis_masked_patches():
    x = fields(1000, 16, 2)[:, 0]
    patches = x.view(-1, 4, 4, 4, 4).transpose(2, 3).reshape(-1, 16, 16)
    model = Masked()

    def step(net, batch):
        p = batch[0]
        mask = torch.rand(p.shape[:2]) < 0.5
        return ((net(p, mask) - p) ** 2)[mask].mean()

    held, hide = patches[800:], torch.rand(200, 16) < 0.5
    opt = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.05)
    return Program(
        model, None, loader(patches[:800], size=24), opt,
        lambda net: r2(net(held, hide)[hide].flatten(), held[hide].flatten()), step=step,
    )
