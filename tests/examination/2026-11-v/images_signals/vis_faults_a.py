from __future__ import annotations

import math

import torch
import torch.nn.functional as F
import vis_data as D
from program import Program, fault
from torch import nn, optim
from torch.utils.data import DataLoader, Dataset, TensorDataset


def loader(x, y, size=32, shuffle=True, **kw):
    return DataLoader(TensorDataset(x, y), batch_size=size, shuffle=shuffle, **kw)


@fault("a ReLU behind the last convolution of a denoiser of standardised images", rules=["output-loss-mismatch"],
       layers=["body"], fails=False, steps=300)
def vis_denoiser_last_relu(is_faulty):
    clean, held = D.smooth(1024), D.smooth(256)
    noisy, held_noisy = clean + 0.5 * torch.randn_like(clean), held + 0.5 * torch.randn_like(held)

    class Denoiser(nn.Module):
        def __init__(self):
            super().__init__()
            layers = [nn.Conv2d(1, 12, 3, padding=1), nn.ReLU(), nn.Conv2d(12, 12, 3, padding=1), nn.ReLU(),
                      nn.Conv2d(12, 1, 3, padding=1)]
            if is_faulty:
                layers.append(nn.ReLU())
            self.body = nn.Sequential(*layers)

        def forward(self, x):
            return self.body(x)

    m = Denoiser()
    return Program(m, nn.MSELoss(), loader(noisy, clean), optim.Adam(m.parameters(), 3e-3), D.r2(held_noisy, held))


class MarkedPatches:
    """Nine patches; the label is the glyph of the marked one."""

    @staticmethod
    def draw(n):
        kinds = torch.randint(4, (n, 9))
        which = torch.randint(9, (n,))
        protos = torch.tensor([[1., 1, 0, 0] * 4, [0., 0, 1, 1] * 4, [1.] * 8 + [0.] * 8, [0.] * 8 + [1.] * 8])
        tokens = protos[kinds] + 0.2 * torch.randn(n, 9, 16)
        mark = F.one_hot(which, 9).float()[..., None].expand(n, 9, 16) + 0.1 * torch.randn(n, 9, 16)
        im = torch.stack([tokens, mark], 1).reshape(n, 2, 3, 3, 4, 4).permute(0, 1, 2, 4, 3, 5).reshape(n, 2, 12, 12)
        return im, kinds[torch.arange(n), which]


@fault("attention pooling takes its softmax over the single score of a patch, not over patches",
       rules=["wrong-softmax-dimension", "no-gradient"], layers=["pool"], fails=False, steps=500)
def vis_attention_pool_axis(is_faulty):
    x, y = MarkedPatches.draw(2000)
    xt, yt = MarkedPatches.draw(400)

    class AttentionPool(nn.Module):
        def __init__(self, dim):
            super().__init__()
            self.score = nn.Sequential(nn.Linear(dim, 16), nn.Tanh(), nn.Linear(16, 1))

        def forward(self, tokens):
            w = self.score(tokens).softmax(dim=-1 if is_faulty else 1)
            return (w * tokens).sum(1)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Conv2d(2, 24, 4, stride=4)
            self.pool = AttentionPool(24)
            self.head = nn.Sequential(nn.Linear(24, 32), nn.GELU(), nn.Linear(32, 4))

        def forward(self, im):
            return self.head(self.pool(self.embed(im).flatten(2).transpose(1, 2)))

    m = Net()
    return Program(m, F.cross_entropy, loader(x, y, 64), optim.AdamW(m.parameters(), 5e-3), D.accuracy(xt, yt))


@fault("a code that is rounded without a straight-through gradient", rules=["no-gradient"], layers=["encoder"],
       fails=False, steps=500)
def vis_rounded_code(is_faulty):
    x, xt = D.smooth(1500, coarse=3), D.smooth(300, coarse=3)

    class Quantised(nn.Module):
        def __init__(self):
            super().__init__()
            self.encoder = nn.Sequential(nn.Flatten(), nn.Linear(144, 48), nn.ReLU(), nn.Linear(48, 9))
            self.decoder = nn.Sequential(nn.Linear(9, 48), nn.ReLU(), nn.Linear(48, 144), nn.Unflatten(1, (1, 12, 12)))

        def forward(self, im):
            z = 4 * torch.tanh(self.encoder(im))
            code = torch.round(z)
            if not is_faulty:
                code = z + (code - z).detach()
            return self.decoder(code)

    m = Quantised()
    return Program(m, F.mse_loss, loader(x, x), optim.Adam(m.parameters(), lr=3e-3), D.r2(xt, xt))


@fault("clips are divided by their standard deviation, and some are silent", rules=["non-finite"], fails=True, steps=200)
def vis_silent_clips(is_faulty):
    x, y = D.tones(1200, classes=3)
    silent = torch.rand(1200) < 0.08
    x[silent], y[silent] = 0.0, 3
    xt, yt = D.tones(300, classes=3)

    class Clips(Dataset):
        def __len__(self):
            return len(y)

        def __getitem__(self, i):
            clip = x[i] - x[i].mean()
            return clip / (clip.std() if is_faulty else clip.std() + 1e-5), y[i]

    m = nn.Sequential(nn.Conv1d(1, 12, 9, stride=2), nn.ReLU(), nn.Conv1d(12, 16, 5, stride=2), nn.ReLU(),
                      nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(16, 4))
    xs = (xt - xt.mean(-1, keepdim=True)) / (xt.std(-1, keepdim=True) + 1e-5)
    return Program(m, nn.CrossEntropyLoss(), DataLoader(Clips(), 32, shuffle=True), optim.Adam(m.parameters(), 5e-3),
                   D.accuracy(xs, yt))


@fault("the bias for a rare foreground, meant for the last layer, is set in all convolutions",
       rules=["dying-neurons", "bad-initialisation", "no-gradient", "rank-collapse"], layers=["tower"], fails=True,
       steps=300)
def vis_prior_bias(is_faulty):
    def draw(n):
        im, at = D.spots(n)
        cell = (at * 10).round().long().clamp(max=9)
        heat = torch.zeros(n, 10, 10)
        heat[torch.arange(n), cell[:, 0], cell[:, 1]] = 1
        return im, heat

    x, y = draw(1000)
    xt, yt = draw(300)

    class Detector(nn.Module):
        def __init__(self, width=12):
            super().__init__()
            self.tower = nn.ModuleList([nn.Conv2d(1, width, 3, padding=1), nn.Conv2d(width, width, 3, padding=1)])
            self.heat = nn.Conv2d(width, 1, 3, padding=1)
            prior = -math.log((1 - 0.01) / 0.01)
            for name, layer in self.named_modules():
                if isinstance(layer, nn.Conv2d) and (is_faulty or name == "heat"):
                    nn.init.constant_(layer.bias, prior)

        def forward(self, im):
            for conv in self.tower:
                im = F.relu(conv(im))
            return self.heat(im).squeeze(1)

    def focal(logits, target):
        p = logits.sigmoid()
        ce = F.binary_cross_entropy_with_logits(logits, target, reduction="none")
        pt = torch.where(target > 0, p, 1 - p)
        return (ce * (1 - pt) ** 2).sum() / target.sum()

    m = Detector()

    def score(model):
        return float((model(xt).flatten(1).argmax(1) == yt.flatten(1).argmax(1)).float().mean())

    return Program(m, focal, loader(x, y), optim.Adam(m.parameters(), 3e-3), score)


@fault("16-bit samples are cast to float and not scaled", rules=["unscaled-input", "learning-rate-too-high"],
       fails=True, steps=400)
def vis_pcm_samples(is_faulty):
    def draw(n):
        a, y = D.tones(n)
        pcm = (a * 12000).clamp(-32768, 32767).to(torch.int16)
        return (pcm.float() if is_faulty else pcm.float() / 12000), y

    m = nn.Sequential(nn.Conv1d(1, 16, 9, stride=2), nn.ReLU(), nn.Conv1d(16, 16, 7, stride=2), nn.ReLU(),
                      nn.AdaptiveMaxPool1d(1), nn.Flatten(), nn.Linear(16, 4))
    x, y = draw(1200)
    xt, yt = draw(300)
    return Program(m, nn.CrossEntropyLoss(), loader(x, y), optim.SGD(m.parameters(), lr=0.05, momentum=0.9),
                   D.accuracy(xt, yt))


@fault("keypoints in pixels of the full frame as targets of an MSE", rules=["unscaled-target", "learning-rate-too-low"],
       fails=False, steps=300)
def vis_pixel_keypoints(is_faulty):
    x, y = D.spots(1024)
    xt, yt = D.spots(256)
    unit = 1920.0 if is_faulty else 1.0

    class Rows(Dataset):
        def __len__(self):
            return len(x)

        def __getitem__(self, i):
            return {"image": x[i]}, y[i] * unit

    class Regressor(nn.Module):
        def __init__(self):
            super().__init__()
            self.stem = nn.Conv2d(1, 8, 3, padding=1)
            self.down = nn.Conv2d(8, 16, 3, stride=2, padding=1)
            self.out = nn.Linear(16 * 25, 2)

        def forward(self, image):
            h = F.silu(self.down(F.silu(self.stem(image))))
            return self.out(h.flatten(1))

    m = Regressor()
    return Program(m, F.mse_loss, DataLoader(Rows(), batch_size=32, shuffle=True), optim.Adam(m.parameters()),
                   lambda model: D.r2_of(model(image=xt), yt * unit))


class Block(nn.Module):
    def __init__(self, dim, heads=2, batch_first=True):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.attn = nn.MultiheadAttention(dim, heads, batch_first=batch_first)
        self.mlp = nn.Sequential(nn.Linear(dim, 2 * dim), nn.GELU(), nn.Linear(2 * dim, dim))

    def forward(self, t):
        h = self.n1(t)
        t = t + self.attn(h, h, h, need_weights=False)[0]
        return t + self.mlp(self.n2(t))


class TinyViT(nn.Module):
    def __init__(self, dim=24, depth=2, patch=2, size=8, classes=4, batch_first=True, positions=True, cls=True):
        super().__init__()
        n = (size // patch) ** 2
        self.patch = nn.Conv2d(1, dim, patch, stride=patch)
        self.cls = nn.Parameter(0.02 * torch.randn(1, 1, dim)) if cls else None
        self.pos = nn.Parameter(0.2 * torch.randn(1, n, dim)) if positions else None
        self.blocks = nn.Sequential(*[Block(dim, batch_first=batch_first) for _ in range(depth)])
        self.norm, self.head = nn.LayerNorm(dim), nn.Linear(dim, classes)

    def forward(self, im):
        t = self.patch(im).flatten(2).transpose(1, 2)
        if self.pos is not None:
            t = t + self.pos
        if self.cls is not None:
            t = torch.cat([self.cls.expand(len(t), -1, -1), t], 1)
        t = self.norm(self.blocks(t))
        return self.head(t[:, 0] if self.cls is not None else t.mean(1))


def halves(n, size=8):
    """Which quarter holds a small square."""
    y = torch.randint(4, (n,))
    x = 0.3 * torch.randn(n, 1, size, size)
    off = torch.randint(size // 2 - 1, (n, 2))
    for i in range(n):
        r, c = int(off[i, 0]) + (size // 2) * int(y[i] // 2), int(off[i, 1]) + (size // 2) * int(y[i] % 2)
        x[i, 0, r : r + 2, c : c + 2] += 1.5
    return x, y


@fault("a decay meant for epochs is stepped with every batch", rules=["learning-rate-too-low"], fails=True, steps=400)
def vis_decay_per_batch(is_faulty):
    x, y = D.glyphs(1280)
    xt, yt = D.glyphs(400)
    m = nn.Sequential(nn.Conv2d(1, 12, 3), nn.ReLU(), nn.Conv2d(12, 16, 3), nn.ReLU(), nn.Conv2d(16, 16, 3), nn.ReLU(),
                      nn.AdaptiveMaxPool2d(1), nn.Flatten(), nn.Linear(16, 4))
    batches = loader(x, y)
    opt = optim.SGD(m.parameters(), lr=0.08, momentum=0.9)
    sched = optim.lr_scheduler.StepLR(opt, step_size=1 if is_faulty else len(batches), gamma=0.85)
    return Program(m, F.cross_entropy, batches, opt, D.accuracy(xt, yt), scheduler=sched)


@fault("the weight decay of AdamW is given to Adam, where it is an L2 penalty", rules=["weight-decay-dominates"], fails=True,
       steps=300)
def vis_adam_l2(is_faulty):
    x, y = D.discs(1000)
    xt, yt = D.discs(300)

    class Small(nn.Module):
        def __init__(self):
            super().__init__()
            self.enc1 = nn.Conv2d(1, 8, 3, padding=1)
            self.enc2 = nn.Conv2d(8, 16, 3, stride=2, padding=1)
            self.up = nn.ConvTranspose2d(16, 8, 2, stride=2)
            self.out = nn.Conv2d(16, 1, 3, padding=1)

        def forward(self, im):
            a = torch.relu(self.enc1(im))
            b = torch.relu(self.enc2(a))
            return self.out(torch.cat([a, torch.relu(self.up(b))], 1))

    m = Small()
    kind = optim.Adam if is_faulty else optim.AdamW
    return Program(m, nn.BCEWithLogitsLoss(), loader(x, y), kind(m.parameters(), lr=3e-3, weight_decay=0.3), D.iou(xt, yt))


@fault("a VAE averages its reconstruction over pixels and sums its KL", rules=["term-dominates", "rank-collapse"], fails=True, steps=400)
def vis_vae_terms(is_faulty):
    x, xt = D.smooth(1500, coarse=2), D.smooth(300, coarse=2)

    class VAE(nn.Module):
        def __init__(self):
            super().__init__()
            self.enc = nn.Sequential(nn.Flatten(), nn.Linear(144, 48), nn.ELU())
            self.mu, self.logvar = nn.Linear(48, 4), nn.Linear(48, 4)
            self.dec = nn.Sequential(nn.Linear(4, 48), nn.ELU(), nn.Linear(48, 144))

        def forward(self, im):
            h = self.enc(im)
            mu, logvar = self.mu(h), self.logvar(h)
            z = mu + torch.randn_like(mu) * (0.5 * logvar).exp() if self.training else mu
            return self.dec(z).view_as(im), mu, logvar

    def elbo(out, im):
        rec, mu, logvar = out
        kl = -0.5 * (1 + logvar - mu**2 - logvar.exp()).sum(1).mean()
        err = (rec - im).pow(2).flatten(1)
        return (err.mean() if is_faulty else err.sum(1).mean()) + kl

    m = VAE()
    return Program(m, elbo, loader(x, x), optim.Adam(m.parameters(), 2e-3), lambda v: D.r2_of(v(xt)[0], xt))


@fault("one BatchNorm stands in several places of a residual network", rules=["shared-weight", "batchnorm-mode-gap"],
       layers=["norm"], fails=True, steps=300)
def vis_one_norm(is_faulty):
    x, y = D.glyphs(1500)
    xt, yt = D.glyphs(400)
    width = 12

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.stem = nn.Conv2d(1, width, 3, padding=1)
            self.a, self.b, self.c = (nn.Conv2d(width, width, 3, padding=1) for _ in range(3))
            self.norm = nn.BatchNorm2d(width)
            if not is_faulty:
                self.norm_a, self.norm_b, self.norm_c = (nn.BatchNorm2d(width) for _ in range(3))
            self.fc = nn.Linear(width, 4)

        def forward(self, im):
            na, nb, nc = (self.norm,) * 3 if is_faulty else (self.norm_a, self.norm_b, self.norm_c)
            h = F.relu(self.norm(self.stem(im)))
            h = F.max_pool2d(h + F.relu(na(self.a(h))), 2)
            h = h + F.relu(nb(self.b(h)))
            h = h + F.relu(nc(self.c(h)))
            return self.fc(h.amax((2, 3)))

    m = Net()
    return Program(m, F.cross_entropy, loader(x, y), optim.SGD(m.parameters(), 0.03, momentum=0.9), D.accuracy(xt, yt))


@fault("a rate a hundred times that of the recipe, given to Adam", rules=["learning-rate-too-high"], fails=True, steps=300)
def vis_adam_rate(is_faulty):
    x, y = D.chirps(1200)
    xt, yt = D.chirps(300)

    class Spectral(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("window", torch.hann_window(24))
            self.net = nn.Sequential(nn.Conv2d(1, 10, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(10, 16, 3, padding=1),
                                     nn.ReLU(), nn.Conv2d(16, 16, 3), nn.ReLU(), nn.Flatten(), nn.Linear(16 * 4 * 4, 32), nn.ReLU(),
                                     nn.Linear(32, 3))

        def forward(self, w):
            s = torch.stft(w[:, 0], 24, 8, window=self.window, return_complex=True).abs()
            return self.net(torch.log1p(s)[:, None, :12, :12])

    m = Spectral()
    opt = optim.Adam(m.parameters(), lr=0.1 if is_faulty else 1e-3)
    return Program(m, F.cross_entropy, loader(x, y), opt, D.accuracy(xt, yt))
