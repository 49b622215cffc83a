"""Faults in networks on signals, in networks that generate, and in what steps they take."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from program import Program, fault
from torch import nn
from torch.utils.data import DataLoader, Dataset
from yis_data import accuracy, chirps, fields, glyphs, loader, pulses, r2, tones


class RateNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Sequential(
            nn.Conv1d(1, 16, 7, 2, 3), nn.ReLU(), nn.Conv1d(16, 24, 5, 2, 2), nn.ReLU(), nn.Flatten()
        )
        self.fc = nn.Sequential(nn.Linear(24 * 16, 48), nn.ReLU(), nn.Linear(48, 1))

    def forward(self, x):
        return self.fc(self.conv(x))


@fault(
    "outputs of shape (batch, 1) against targets of shape (batch,), which broadcast to all pairs",
    rules=("output-loss-mismatch",),
    fails=True,
    steps=400,
)
def yis_rate_broadcasts(is_faulty):
    x, rate = pulses(1300)
    target = (rate - 0.5) * 3
    model = RateNet()
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)

    def loss(out, y):
        return ((out - y) ** 2).mean() if is_faulty else ((out.squeeze(1) - y) ** 2).mean()

    return Program(
        model, loss, loader(x[:1000], target[:1000]), opt, lambda net: r2(net(x[1000:]).squeeze(1), target[1000:])
    )


class FrameGRU(nn.Module):
    def __init__(self, batch_first, bins=12):
        super().__init__()
        self.inp = nn.Linear(bins, 24)
        self.rnn = nn.GRU(24, 32, batch_first=batch_first)
        self.out = nn.Linear(32, 4)

    def forward(self, x):
        h, _ = self.rnn(torch.tanh(self.inp(x)))
        return self.out(h[:, -1])


@fault(
    "a GRU without batch_first on (batch, frames, bins), which runs over the batch",
    rules=("mixed-examples",),
    layers=("rnn",),
    fails=False,
    steps=400,
)
def yis_gru_over_the_batch(is_faulty):
    x, y = chirps(1500)
    model = FrameGRU(not is_faulty)
    opt = torch.optim.Adam(model.parameters(), lr=4e-3)
    return Program(model, nn.CrossEntropyLoss(), loader(x[:1200], y[:1200]), opt, accuracy(x[1200:], y[1200:]))


class VQ(nn.Module):
    def __init__(self, straight, d=4, codes=32):
        super().__init__()
        self.encoder = nn.Sequential(nn.Conv2d(1, 16, 4, 4), nn.ReLU(), nn.Conv2d(16, d, 1))
        self.codebook = nn.Embedding(codes, d)
        nn.init.uniform_(self.codebook.weight, -0.5, 0.5)
        self.decoder = nn.Sequential(nn.ConvTranspose2d(d, 16, 2, 2), nn.ReLU(), nn.ConvTranspose2d(16, 1, 2, 2))
        self.straight = straight

    def forward(self, x):
        z = self.encoder(x)
        flat = z.permute(0, 2, 3, 1).reshape(-1, z.shape[1])
        idx = torch.cdist(flat.detach(), self.codebook.weight).argmin(1)
        q = self.codebook(idx).view(z.shape[0], z.shape[2], z.shape[3], -1).permute(0, 3, 1, 2)
        code_loss = F.mse_loss(q, z.detach())
        if self.straight:
            code_loss = code_loss + 0.25 * F.mse_loss(z, q.detach())
            q = z + (q - z).detach()
        return self.decoder(q), code_loss


@fault(
    "a vector-quantised autoencoder without the straight-through estimate, whose encoder gets no gradient",
    rules=("no-gradient",),
    layers=("encoder",),
    fails=False,
    steps=500,
)
def yis_quantised_without_straight_through(is_faulty):
    x = fields(1200, 12, 4)
    model = VQ(not is_faulty)

    def step(net, batch):
        (b,) = batch
        out, extra = net(b)
        return F.mse_loss(out, b) + extra

    opt = torch.optim.Adam(model.parameters(), lr=3e-3)
    return Program(
        model, None, loader(x[:900]), opt, lambda net: r2(net(x[900:])[0].flatten(), x[900:].flatten()), step=step
    )


class VAE(nn.Module):
    def __init__(self, z=8, pixels=100):
        super().__init__()
        self.enc = nn.Sequential(nn.Flatten(), nn.Linear(pixels, 96), nn.ReLU())
        self.mu, self.logvar = nn.Linear(96, z), nn.Linear(96, z)
        self.dec = nn.Sequential(nn.Linear(z, 96), nn.ReLU(), nn.Linear(96, pixels))

    def forward(self, x):
        h = self.enc(x)
        mu, logvar = self.mu(h), self.logvar(h)
        z = mu + torch.randn_like(mu) * (0.5 * logvar).exp() if self.training else mu
        return self.dec(z), mu, logvar


@fault(
    "the divergence of a VAE is summed over its latents, the error of its pixels averaged, and so it outweighs",
    rules=("term-dominates", "rank-collapse"),
    fails=True,
    steps=500,
)
def yis_divergence_outweighs(is_faulty):
    x = fields(1400, 10, 3)
    model = VAE()

    def elbo(out, target):
        rec, mu, logvar = out
        kl = -0.5 * (1 + logvar - mu**2 - logvar.exp()).sum(1).mean()
        error = (rec - target.flatten(1)) ** 2
        if is_faulty:
            return error.mean() + kl
        return (error.sum(1).mean() + kl) / 100

    opt = torch.optim.Adam(model.parameters(), lr=2e-3)
    return Program(
        model, elbo, loader(x[:1000], x[:1000]), opt,
        lambda net: r2(net(x[1000:])[0].flatten(), x[1000:].flatten()),
    )


class WaveNetish(nn.Module):
    """Predicts the next sample at every place."""

    def __init__(self, causal, c=16):
        super().__init__()
        self.convs = nn.ModuleList(
            nn.Conv1d(1 if k == 0 else c, c, 3, dilation=2**k) for k in range(3)
        )
        self.out = nn.Conv1d(c, 1, 1)
        self.causal = causal

    def forward(self, x):
        for conv in self.convs:
            pad = 2 * conv.dilation[0]
            x = F.pad(x, (pad, 0) if self.causal else (pad // 2, pad - pad // 2))
            x = torch.tanh(conv(x))
        return self.out(x)


@fault(
    "convolutions of a model of the next sample are padded on both sides, so that it sees the sample asked for",
    rules=("future-seen",),
    layers=("convs",),
    fails=False,
    steps=400,
)
def yis_padded_on_both_sides(is_faulty):
    x, _ = tones(900, 40, noise=0.05)
    model = WaveNetish(not is_faulty)

    def loss(out, target):
        return F.mse_loss(out, target)

    def score(net):
        held = x[700:]
        ahead = torch.cat([net(held[..., :k])[..., -1] for k in range(20, 39, 3)], 1)
        return r2(ahead.flatten(), torch.cat([held[..., k] for k in range(20, 39, 3)], 1).flatten())

    opt = torch.optim.Adam(model.parameters(), lr=4e-3)
    return Program(model, loss, loader(x[:700, :, :-1], x[:700, :, 1:]), opt, score)


class Recordings(Dataset):
    """Frames of different numbers, filled up with an idle machine's noise."""

    def __init__(self, n, frames=14):
        self.x, self.y = chirps(n, 8, 10)
        self.n = torch.randint(0, 7, (n,))
        self.full = 1.5 * torch.randn(n, frames, 10)
        self.full[:, :8] = self.x
        self.pad = (torch.arange(frames) >= 8).repeat(n, 1)

    def __len__(self):
        return len(self.y)

    def __getitem__(self, k):
        return {"x": self.full[k], "pad": self.pad[k]}, self.y[k]


class SignalTransformer(nn.Module):
    def __init__(self, inverts, d=24):
        super().__init__()
        self.embed = nn.Linear(10, d)
        self.pos = nn.Parameter(0.3 * torch.randn(14, d))
        layer = nn.TransformerEncoderLayer(d, 2, 48, 0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.head = nn.Linear(d, 4)
        self.inverts = inverts

    def forward(self, x, pad):
        mask = ~pad if self.inverts else pad
        h = self.encoder(self.embed(x) + self.pos, src_key_padding_mask=mask)
        return self.head((h * mask.logical_not()[..., None]).sum(1) / mask.logical_not().sum(1, keepdim=True))


@fault(
    "a mask of padding whose True means 'real', for a layer whose True means 'hidden'",
    rules=("wrong-mask",),
    fails=True,
    steps=300,
)
def yis_mask_of_real_frames(is_faulty):
    data, held = Recordings(1000), Recordings(300)
    model = SignalTransformer(is_faulty)
    opt = torch.optim.AdamW(model.parameters(), lr=3e-3)
    return Program(
        model, nn.CrossEntropyLoss(), DataLoader(data, 32, shuffle=True, drop_last=True), opt,
        lambda net: float((net(held.full, held.pad).argmax(1) == held.y).float().mean()),
    )


class PooledByAttention(nn.Module):
    """Instances of a bag (patches) are weighted and added up."""

    def __init__(self, dim, d=24):
        super().__init__()
        self.instance = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, d), nn.ReLU())
        self.attention = nn.Sequential(nn.Linear(d, 16), nn.Tanh(), nn.Linear(16, 1))
        self.classify = nn.Linear(d, 4)
        self.dim = dim

    def forward(self, bag):  # batch, instances, pixels
        h = self.instance(bag)
        a = torch.softmax(self.attention(h), dim=self.dim)
        return self.classify((a * h).sum(1))


@fault(
    "weights of attention are normalised over a dimension of size 1 in place of the instances, and so are all 1",
    rules=("wrong-softmax-dimension",),
    fails=False,
    steps=300,
)
def yis_softmax_over_one(is_faulty):
    t, u = torch.randn(4, 16), torch.randn(16)
    n, size = 1500, 16
    kind = torch.randint(4, (n, size))
    light = 0.6 * torch.rand(n, size)
    best = torch.randint(size, (n,))  # the brightest patch names the bag, however bright the bag
    light[torch.arange(n), best] = 1.6
    light = light + 3 * torch.rand(n, 1) - 2
    y = kind[torch.arange(n), best]
    bag = t[kind] + light[..., None] * u + 0.2 * torch.randn(n, size, 16)
    model = PooledByAttention(-1 if is_faulty else 1)
    opt = torch.optim.Adam(model.parameters(), lr=2e-3)
    return Program(model, nn.CrossEntropyLoss(), loader(bag[:1200], y[:1200]), opt, accuracy(bag[1200:], y[1200:]))


@fault(
    "a decay meant for every epoch is made on every step, so that the rate is gone before anything is learned",
    rules=("learning-rate-too-low",),
    fails=True,
    steps=400,
)
def yis_decay_on_every_step(is_faulty):
    x, y = tones(1500)
    model = nn.Sequential(
        nn.Conv1d(1, 16, 9, 2, 4), nn.BatchNorm1d(16), nn.ReLU(), nn.Conv1d(16, 24, 5, 2, 2), nn.BatchNorm1d(24),
        nn.ReLU(), nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(24, 4),
    )
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    gamma = 0.75
    rate = (lambda k: gamma**k) if is_faulty else (lambda k: gamma ** (k // 40))
    return Program(
        model, nn.CrossEntropyLoss(), loader(x[:1280], y[:1280]), opt, accuracy(x[1280:], y[1280:]),
        scheduler=torch.optim.lr_scheduler.LambdaLR(opt, rate),
    )


@fault(
    "pressures in mmHg as they are, which a network that starts at 0 must first reach",
    rules=("unscaled-target",),
    fails=False,
    steps=400,
)
def yis_pressure_in_mmhg(is_faulty):
    x, rate = pulses(1200)
    mmhg = torch.stack([120 + 40 * (rate - 0.5), 75 + 25 * (rate - 0.5)], 1)
    mean, std = mmhg[:900].mean(0), mmhg[:900].std(0)
    target = mmhg if is_faulty else (mmhg - mean) / std
    model = nn.Sequential(
        nn.Conv1d(1, 16, 7, 2, 3), nn.ReLU(), nn.Conv1d(16, 24, 5, 2, 2), nn.ReLU(), nn.Flatten(),
        nn.Linear(384, 48), nn.ReLU(), nn.Linear(48, 2),
    )
    opt = torch.optim.Adam(model.parameters(), lr=5e-4)

    def score(net):
        out = net(x[900:])
        return r2(out if is_faulty else out * std + mean, mmhg[900:])

    return Program(model, nn.MSELoss(), loader(x[:900], target[:900]), opt, score)


class Denoiser(nn.Module):
    """What noise is in an image, given the step of the diffusion."""

    def __init__(self, pixels=64, d=128):
        super().__init__()
        self.time = nn.Sequential(nn.Linear(1, d), nn.SiLU(), nn.Linear(d, d))
        self.inp = nn.Linear(pixels, d)
        self.mid = nn.Sequential(nn.SiLU(), nn.Linear(d, d), nn.SiLU(), nn.Linear(d, pixels))

    def forward(self, x, t):
        return self.mid(self.inp(x) + self.time(t))


@fault(
    "the step of a diffusion, 0 to 999, goes into a linear layer as it is",
    rules=("unscaled-input",),
    layers=("time",),
    fails=True,
    steps=600,
)
def yis_raw_diffusion_step(is_faulty):
    x0 = fields(1300, 8, 3).flatten(1)
    bar = torch.cos(torch.linspace(0, 1, 1001)[:1000] * math.pi / 2 * 0.98 + 0.01) ** 2
    model = Denoiser()

    def noised(x):
        t = torch.randint(1000, (len(x),))
        e = torch.randn_like(x)
        a = bar[t][:, None]
        when = t[:, None].float()
        return a.sqrt() * x + (1 - a).sqrt() * e, when if is_faulty else when / 500 - 1, e

    fixed = noised(x0[1000:])

    def step(net, batch):
        xt, t, e = noised(batch[0])
        return F.mse_loss(net(xt, t), e)

    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    return Program(
        model, None, loader(x0[:1000], size=64), opt,
        lambda net: r2(net(fixed[0], fixed[1]).flatten(), fixed[2].flatten()), step=step,
    )


@fault(
    "an error that is summed over batch and pixels, with a rate for means",
    rules=("summed-loss", "learning-rate-too-high", "diverging", "non-finite"),
    fails=True,
    steps=250,
)
def yis_summed_over_pixels(is_faulty):
    clean = fields(800, 12, 4)
    noisy = clean + 0.7 * torch.randn_like(clean)
    model = nn.Sequential(
        nn.Conv2d(1, 12, 5, padding=2), nn.ReLU(), nn.Conv2d(12, 12, 3, padding=1), nn.ReLU(),
        nn.Conv2d(12, 1, 3, padding=1),
    )
    opt = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    return Program(
        model, nn.MSELoss(reduction="sum" if is_faulty else "mean"), loader(noisy[:600], clean[:600], size=16), opt,
        lambda net: r2(net(noisy[600:]).flatten(), clean[600:].flatten()),
    )


class FrameTagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv1d(6, 24, 5, padding=2), nn.ReLU(), nn.Conv1d(24, 24, 5, padding=2), nn.ReLU(), nn.Conv1d(24, 4, 1)
        )

    def forward(self, x):
        return self.net(x)


@fault(
    "frames that fill up short recordings have label 0 and count in the loss",
    rules=("padding-in-loss",),
    fails=False,
    steps=350,
)
def yis_filled_frames_count(is_faulty):
    n, frames = 1300, 40
    t = torch.randn(4, 6)
    y = torch.randint(4, (n, frames // 4)).repeat_interleave(4, 1)
    length = torch.randint(2, 6, (n, 1))
    real = torch.arange(frames) < length
    x = 0.6 * t[y].transpose(1, 2) * real[:, None] + torch.randn(n, 6, frames)  # the recorder runs on
    y = torch.where(real, y, torch.zeros_like(y))
    target = y if is_faulty else torch.where(real, y, torch.full_like(y, -100))
    model = FrameTagger()
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)

    def score(net):
        hit = net(x[1000:]).argmax(1) == y[1000:]
        return float(hit[real[1000:]].float().mean())

    return Program(
        model, nn.CrossEntropyLoss(ignore_index=-100), loader(x[:1000], target[:1000], size=20), opt, score
    )


class Embedder(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Sequential(nn.Conv2d(1, 12, 3, 2, 1), nn.ReLU(), nn.Conv2d(12, 24, 3, 2, 1), nn.ReLU())
        self.fc = nn.Linear(216, 16)

    def forward(self, x):
        return self.fc(self.conv(x).flatten(1))


@fault(
    "a retrieval network that is only told to bring pairs together, and maps everything to one point",
    rules=("rank-collapse",),
    fails=True,
    steps=300,
)
def yis_only_brings_together(is_faulty):
    x, y = glyphs(1400, 8, 10, 0.9)
    model = Embedder()

    def step(net, batch):
        a, label = batch
        z = net(a)
        d = torch.cdist(z, z) ** 2 / 16
        same = (label[:, None] == label[None]).float()
        loss = (d * same).sum() / same.sum()
        if not is_faulty:
            loss = loss + (F.relu(1 - d) * (1 - same)).sum() / (1 - same).sum()
        return loss

    def score(net):
        z = net(x[1000:])
        d = (z[:, None] - z[None]).pow(2).mean(-1)
        same = y[1000:, None] == y[None, 1000:]
        hit = (d < 0.5) == same
        return float(hit[same].float().mean() + hit[~same].float().mean()) - 1

    opt = torch.optim.Adam(model.parameters(), lr=2e-3)
    return Program(model, None, loader(x[:1000], y[:1000]), opt, score, step=step)


@fault(
    "a network of bfloat16 weights, most of whose steps are rounded away",
    rules=("lost-updates", "rounding-error", "learning-rate-too-low"),
    fails=False,
    steps=400,
)
def yis_weights_of_bfloat16(is_faulty):
    x, y = chirps(1500, noise=0.4)
    kind = torch.bfloat16 if is_faulty else torch.float32
    x = x.flatten(1).to(kind)
    model = nn.Sequential(nn.Linear(120, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 4)).to(kind)
    opt = torch.optim.Adam(model.parameters(), lr=1e-4)
    return Program(model, nn.CrossEntropyLoss(), loader(x[:1200], y[:1200]), opt, accuracy(x[1200:], y[1200:]))
