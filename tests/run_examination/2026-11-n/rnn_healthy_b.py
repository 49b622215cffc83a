from __future__ import annotations

import copy
import math

import torch
import torch.nn.functional as F
from program import healthy
from torch import nn

from rnn_data import *


class RnnDeepSet(nn.Module):
    def __init__(self):
        super().__init__()
        self.phi = nn.Sequential(nn.Linear(3, 32), nn.LeakyReLU(0.1), nn.Linear(32, 48), nn.LeakyReLU(0.1))
        self.rho = nn.Sequential(nn.Linear(96, 32), nn.LeakyReLU(0.1), nn.Linear(32, 4))

    def forward(self, x):
        h = self.phi(x)
        return self.rho(torch.cat([h.mean(1), h.amax(1)], 1))


@healthy("Augmentation is faded in between steps 700 and 900: the training loss rises, the validation does not.", steps=2000)
def rnn_set_augmented(record):
    rnn_seed(31)
    g = rnn_gen(31)
    x, y = rnn_cloud(4000, g)
    vx, vy = rnn_cloud(800, g)
    model = RnnDeepSet()
    loss = nn.CrossEntropyLoss(label_smoothing=0.05)
    opt = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.01)
    rec = record(model, opt, loss)
    it = rnn_epochs(len(x), 40, g)
    for step in range(1, 2001):
        rnn_set_lr(opt, rnn_cosine(step, 2000, 2e-3, end=2e-5))
        i = next(it)
        xb = x[i]
        f = min(1.0, max(0.0, (step - 700) / 200))
        if f:
            s = 1 + 0.08 * f * torch.randn(len(i), 1, 3, generator=g)
            xb = xb * s + 0.05 * f * torch.randn(xb.shape, generator=g)
        opt.zero_grad()
        value = loss(model(xb), y[i])
        value.backward()
        opt.step()
        rec.step(value.item(), (xb, y[i]))
        if step % 100 == 0:
            rec.validation(rnn_eval(model, loss, vx, vy))


class RnnTwin(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(64, 96), nn.BatchNorm1d(96), nn.ReLU(), nn.Linear(96, 48))
        self.proj = nn.Sequential(nn.ReLU(), nn.Linear(48, 24))

    def forward(self, x):
        b = x.shape[0]
        z = F.normalize(self.proj(self.body(x.flatten(0, 1))), dim=1)
        return z.view(b, 2, -1)


@healthy("A contrastive, self-supervised loss, which ends far above zero.", steps=2000)
def rnn_contrastive(record):
    rnn_seed(32)
    g = rnn_gen(32)
    x, _, vx, _ = rnn_digits()
    x, vx = x.flatten(1), vx.flatten(1)[:256]

    def views(b, gen):
        m = (torch.rand(len(b), 2, 64, generator=gen) > 0.2).float()
        return b[:, None] * m + 0.3 * torch.randn(len(b), 2, 64, generator=gen)

    def info_nce(z, target):
        s = z[:, 0] @ z[:, 1].T / 0.2
        return 0.5 * (F.cross_entropy(s, target) + F.cross_entropy(s.T, target))

    model = RnnTwin()
    opt = torch.optim.Adam(model.parameters(), lr=1e-3, weight_decay=1e-4)
    rec = record(model, opt, info_nce)
    it = rnn_epochs(len(x), 64, g)
    vv = views(vx, rnn_gen(3200))
    for step in range(1, 2001):
        rnn_set_lr(opt, rnn_cosine(step, 2000, 1e-3, warm=100))
        b = views(x[next(it)], g)
        t = torch.arange(len(b))
        opt.zero_grad()
        value = info_nce(model(b), t)
        value.backward()
        opt.step()
        rec.step(value.item(), (b, t))
        if step % 100 == 0:
            rec.validation(rnn_eval(model, info_nce, vv, torch.arange(len(vv))))


class RnnResNet(nn.Module):
    def __init__(self, d=20, w=48, classes=5):
        super().__init__()
        self.inp = nn.Linear(d, w)
        self.blocks = nn.ModuleList(nn.Sequential(nn.LayerNorm(w), nn.Linear(w, w), nn.SiLU(), nn.Linear(w, w)) for _ in range(4))
        self.out = nn.Sequential(nn.LayerNorm(w), nn.Linear(w, classes))

    def forward(self, x):
        h = self.inp(x)
        for b in self.blocks:
            h = h + 0.5 * b(h)
        return self.out(h)


@healthy("One class in twenty times as many examples as another, and smoothed labels.", steps=2000)
def rnn_imbalanced(record):
    rnn_seed(33)
    g = rnn_gen(33)
    x, y = rnn_teacher(40000, g, classes=5)
    keep = torch.rand(len(y), generator=g) < torch.tensor([1.0, 0.6, 0.3, 0.12, 0.05])[y]
    x, y = x[keep], y[keep]
    x, y, vx, vy = x[1500:], y[1500:], x[:1500], y[:1500]
    model = RnnResNet()
    loss = nn.CrossEntropyLoss(label_smoothing=0.1)
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.05)
    sched = torch.optim.lr_scheduler.OneCycleLR(opt, 2e-3, total_steps=2001)
    rec = record(model, opt, loss)
    it = rnn_epochs(len(x), 64, g)
    for step in range(1, 2001):
        i = next(it)
        opt.zero_grad()
        value = loss(model(x[i]), y[i])
        value.backward()
        opt.step()
        sched.step()
        rec.step(value.item(), (x[i], y[i]))
        if step % 100 == 0:
            rec.validation(rnn_eval(model, loss, vx, vy))


@healthy("A denoising autoencoder: corruption makes the loss noisy and keeps it from zero.", steps=2000)
def rnn_denoiser(record):
    rnn_seed(34)
    g = rnn_gen(34)
    x, _, vx, _ = rnn_digits()
    model = nn.Sequential(
        nn.Conv2d(1, 12, 3, stride=2, padding=1), nn.GELU(), nn.Conv2d(12, 24, 3, stride=2, padding=1), nn.GELU(),
        nn.ConvTranspose2d(24, 12, 2, stride=2), nn.GELU(), nn.ConvTranspose2d(12, 1, 2, stride=2),
    )
    loss = nn.MSELoss()
    opt = torch.optim.Adam(model.parameters(), lr=3e-3)
    sched = torch.optim.lr_scheduler.ExponentialLR(opt, 0.9985)
    rec = record(model, opt, loss)
    it = rnn_epochs(len(x), 32, g)

    def corrupt(b, gen):
        level = 0.2 + 0.8 * torch.rand(len(b), 1, 1, 1, generator=gen)
        return b + level * torch.randn(b.shape, generator=gen)

    vc = corrupt(vx, rnn_gen(340))
    for step in range(1, 2001):
        i = next(it)
        xb = corrupt(x[i], g)
        opt.zero_grad()
        value = loss(model(xb), x[i])
        value.backward()
        opt.step()
        sched.step()
        rec.step(value.item(), (xb, x[i]))
        if step % 100 == 0:
            rec.validation(rnn_eval(model, loss, vc, vx))


class RnnBnNet(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 12, 3, padding=1, bias=False), nn.BatchNorm2d(12), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(12, 24, 3, padding=1, bias=False), nn.BatchNorm2d(24), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(),
        )
        self.head = nn.Linear(96, classes)

    def forward(self, x):
        return self.head(self.features(x))

    def train(self, mode=True):
        super().train(mode)
        if getattr(self, "fixed_statistics", False):
            for m in self.modules():
                if isinstance(m, nn.BatchNorm2d):
                    m.eval()
        return self


@healthy("Fine-tuning with BatchNorm kept in evaluation mode on purpose; batches of eight.", steps=2000)
def rnn_fixed_batchnorm(record):
    rnn_seed(35)
    g = rnn_gen(35)
    x, y = rnn_images(5000, g)
    vx, vy = rnn_images(600, g)
    loss = nn.CrossEntropyLoss()
    model = RnnBnNet(3)
    pre = torch.optim.Adam(model.parameters(), lr=2e-3)
    it = rnn_epochs(len(x), 64, g)
    for _ in range(150):  # pretraining on coarse classes
        i = next(it)
        pre.zero_grad()
        loss(model(x[i]), y[i] // 2).backward()
        pre.step()
    model.head = nn.Linear(96, 6)
    model.fixed_statistics = True
    model.train()
    opt = torch.optim.AdamW([{"params": model.features.parameters(), "lr": 1e-4}, {"params": model.head.parameters(), "lr": 1e-3}], weight_decay=0.01)
    rec = record(model, opt, loss)
    it = rnn_epochs(len(x), 8, g)
    for step in range(1, 2001):
        i = next(it)
        opt.zero_grad()
        value = loss(model(x[i]), y[i])
        value.backward()
        opt.step()
        rec.step(value.item(), (x[i], y[i]))
        if step % 100 == 0:
            rec.validation(rnn_eval(model, loss, vx, vy))


@healthy("A noise-free function that is learned early, to a very small loss; the rate fades.", steps=2000)
def rnn_exact_function(record):
    rnn_seed(36)
    g = rnn_gen(36)
    model = nn.Sequential(nn.Linear(2, 48), nn.Tanh(), nn.Linear(48, 48), nn.Tanh(), nn.Linear(48, 1))

    def make(n):
        x = torch.rand(n, 2, generator=g) * 2 - 1
        return x, torch.sin(2 * x[:, :1]) * torch.cos(1.5 * x[:, 1:])

    x, y = make(4000)
    vx, vy = make(600)
    loss = nn.MSELoss()
    opt = torch.optim.Adam(model.parameters(), lr=4e-3)
    rec = record(model, opt, loss)
    it = rnn_epochs(len(x), 100, g)
    for step in range(1, 2001):
        rnn_set_lr(opt, rnn_cosine(step, 2000, 4e-3))
        i = next(it)
        opt.zero_grad()
        value = loss(model(x[i]), y[i])
        value.backward()
        opt.step()
        rec.step(value.item(), (x[i], y[i]))
        if step % 100 == 0:
            rec.validation(rnn_eval(model, loss, vx, vy))


class RnnCounter(nn.Module):
    def __init__(self, vocab=6, hidden=32):
        super().__init__()
        self.emb = nn.Embedding(vocab, 12)
        self.rnn = nn.LSTM(12, hidden, batch_first=True)
        self.head = nn.Linear(hidden, 4)

    def forward(self, x):
        return self.head(self.rnn(self.emb(x))[0][:, -1])


@healthy("A curriculum of longer and longer sequences: the loss rises a little whenever the task gets harder.", steps=2000)
def rnn_length_curriculum(record):
    rnn_seed(37)
    g = rnn_gen(37)

    def make(n, length):
        # which of the four letters stood last behind a marker (4)? 5 is filler
        x = torch.randint(0, 6, (n, length), generator=g)
        x[:, 0] = 4
        x[:, 1] = torch.randint(0, 4, (n,), generator=g)
        t = torch.zeros(n, dtype=torch.long)
        for k in range(1, length):
            hit = (x[:, k - 1] == 4) & (x[:, k] < 4)
            t = torch.where(hit, x[:, k], t)
        return x, t

    held = {n: make(800, n) for n in (4, 6, 8, 10, 12)}
    model = RnnCounter()
    loss = nn.CrossEntropyLoss()
    opt = torch.optim.Adam(model.parameters(), lr=5e-3)
    rec = record(model, opt, loss)
    for step in range(1, 2001):
        length = 4 + 2 * min(4, (step - 1) // 300)
        rnn_set_lr(opt, 5e-3 if step < 1500 else 1e-3)
        x, y = make(48, length)
        opt.zero_grad()
        value = loss(model(x), y)
        value.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        rec.step(value.item(), (x, y))
        if step % 100 == 0:
            rec.validation(rnn_eval(model, loss, *held[length]))


@healthy("Batches of six and much noise in the targets: the loss soon lies at its noise floor.", steps=2000)
def rnn_noise_floor(record):
    rnn_seed(38)
    g = rnn_gen(38)
    w = torch.randn(10, 1, generator=g)

    def make(n):
        x = torch.randn(n, 10, generator=g)
        return x, x @ w + 0.5 * torch.sin(2 * x[:, :1]) + 1.0 * torch.randn(n, 1, generator=g)

    x, y = make(12000)
    vx, vy = make(2000)
    model = nn.Sequential(nn.Linear(10, 24), nn.ReLU(), nn.Linear(24, 1))
    loss = nn.MSELoss()
    opt = torch.optim.SGD(model.parameters(), lr=0.01)
    rec = record(model, opt, loss)
    it = rnn_epochs(len(x), 6, g)
    for step in range(1, 2001):
        rnn_set_lr(opt, 0.01 if step < 1000 else 0.002)
        i = next(it)
        opt.zero_grad()
        value = loss(model(x[i]), y[i])
        value.backward()
        opt.step()
        rec.step(value.item(), (x[i], y[i]))
        if step % 100 == 0:
            rec.validation(rnn_eval(model, loss, vx, vy))


class RnnTopK(nn.Module):
    def __init__(self, d=64, h=72, k=10):
        super().__init__()
        self.enc = nn.Linear(d, h)
        self.act = nn.ReLU()
        self.dec = nn.Linear(h, d)
        self.k = k

    def forward(self, x):
        h = self.act(self.enc(x))
        cut = h.topk(self.k, dim=1).values[:, -1:]
        return self.dec(h * (h >= cut))


@healthy("An autoencoder that keeps ten of 72 units per example: sparse activations by design.", steps=2000)
def rnn_topk_autoencoder(record):
    rnn_seed(39)
    g = rnn_gen(39)
    x, _, vx, _ = rnn_digits()
    x, vx = x.flatten(1), vx.flatten(1)
    model = RnnTopK()
    loss = nn.MSELoss()
    opt = torch.optim.Adam(model.parameters(), lr=1.5e-3)
    rec = record(model, opt, loss)
    it = rnn_epochs(len(x), 48, g)
    for step in range(1, 2001):
        rnn_set_lr(opt, rnn_cosine(step, 2000, 1.5e-3, warm=50))
        i = next(it)
        opt.zero_grad()
        value = loss(model(x[i]), x[i])
        value.backward()
        opt.step()
        rec.step(value.item(), (x[i], x[i]))
        if step % 100 == 0:
            rec.validation(rnn_eval(model, loss, vx, vx))


@healthy("A masked language model with random masks, a rising schedule of weight decay, and an average of the weights that is evaluated.", steps=2000)
def rnn_masked_model(record):
    rnn_seed(40)
    g = rnn_gen(40)
    text, held = rnn_text(60000, 31, sharp=2.0), rnn_text(4000, 32, sharp=2.0)

    def make(source, n):
        w, _ = rnn_windows(source, n, 16, g)
        hide = torch.rand(w.shape, generator=g) < 0.2
        return torch.where(hide, 20, w), torch.where(hide, w, -100)

    def loss(o, y):
        return F.cross_entropy(o.flatten(0, 1), y.flatten(), ignore_index=-100)

    vx, vy = make(held, 200)
    model = RnnLM(21, d=32, heads=4, layers=2, length=16, causal=False, drop=0.05)
    ema = copy.deepcopy(model)
    opt = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.02)
    rec = record(model, opt, loss)
    for step in range(1, 2001):
        for group in opt.param_groups:
            group["lr"] = rnn_cosine(step, 2000, 3e-3, warm=150, end=1e-5)
            group["weight_decay"] = 0.1 - 0.08 * 0.5 * (1 + math.cos(math.pi * step / 2000))
        x, y = make(text, 32)
        opt.zero_grad()
        value = loss(model(x), y)
        value.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        with torch.no_grad():
            for a, b in zip(ema.parameters(), model.parameters()):
                a.lerp_(b, 0.01)
        rec.step(value.item(), (x, y))
        if step % 200 == 0:
            rec.validation(rnn_eval(ema, loss, vx, vy))
