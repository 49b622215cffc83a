from __future__ import annotations

import copy
import math

import torch
import torch.nn.functional as F
from program import healthy
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from rnn_data import *


@healthy("Warm restarts of the rate: the loss steps up a little at each restart.", steps=2000)
def rnn_restarts(record):
    rnn_seed(1)
    g = rnn_gen(1)
    x, y = rnn_images(6000, g)
    vx, vy = rnn_images(600, g)
    model = nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(8, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(64, 6),
    )
    loss = nn.CrossEntropyLoss()
    opt = torch.optim.SGD(model.parameters(), lr=0.025, momentum=0.9, weight_decay=1e-3, nesterov=True)
    sched = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(opt, T_0=500, eta_min=1e-4)
    rec = record(model, opt, loss)
    it = rnn_epochs(len(x), 48, g)
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


@healthy("A language model with tied weights, warm-up and cosine.", steps=2000)
def rnn_tied_lm(record):
    rnn_seed(2)
    g = rnn_gen(2)
    text, held = rnn_text(60000, 11), rnn_text(4000, 12)
    vx, vy = rnn_windows(held, 100, 20, g)
    model = RnnLM(20, d=32, heads=4, layers=2, length=20, tied=True)
    decay = [p for p in model.parameters() if p.ndim > 1]
    rest = [p for p in model.parameters() if p.ndim <= 1]
    opt = torch.optim.AdamW([{"params": decay, "weight_decay": 0.05}, {"params": rest, "weight_decay": 0.0}], lr=3e-3, betas=(0.9, 0.98))
    rec = record(model, opt, rnn_lm_loss)
    for step in range(1, 2001):
        rnn_set_lr(opt, rnn_cosine(step, 2000, 3e-3, warm=200, end=1e-4))
        x, y = rnn_windows(text, 16, 20, g)
        value = rnn_lm_loss(model(x), y)
        opt.zero_grad(set_to_none=True)
        value.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        rec.step(value.item(), (x, y))
        if step % 200 == 0:
            rec.validation(rnn_eval(model, rnn_lm_loss, vx, vy))


class RnnVae(nn.Module):
    def __init__(self, z=6):
        super().__init__()
        self.enc = nn.Sequential(nn.Linear(64, 64), nn.ELU(), nn.Linear(64, 2 * z))
        self.dec = nn.Sequential(nn.Linear(z, 64), nn.ELU(), nn.Linear(64, 64))

    def forward(self, x):
        mu, lv = self.enc(x).chunk(2, 1)
        z = mu + torch.randn_like(mu) * (0.5 * lv).exp() if self.training else mu
        return self.dec(z), mu, lv


@healthy("A VAE whose KL term is annealed in from step 300 to 900: the total rises while it comes in.", steps=2000)
def rnn_vae_annealed(record):
    rnn_seed(3)
    g = rnn_gen(3)
    x, _, vx, _ = rnn_digits()
    x, vx = x.flatten(1), vx.flatten(1)
    model = RnnVae()
    beta = 0.0

    def elbo(out, target):
        r, mu, lv = out
        kl = -0.5 * (1 + lv - mu**2 - lv.exp()).sum(1).mean()
        return F.mse_loss(r, target, reduction="none").sum(1).mean() + beta * kl

    opt = torch.optim.Adam(model.parameters(), lr=2e-3)
    rec = record(model, opt, elbo)
    it = rnn_epochs(len(x), 64, g)
    for step in range(1, 2001):
        beta = 0.5 * min(1.0, max(0.0, (step - 300) / 600))
        rnn_set_lr(opt, 2e-3 if step < 1500 else 5e-4)
        i = next(it)
        value = elbo(model(x[i]), x[i])
        opt.zero_grad()
        value.backward()
        opt.step()
        rec.step(value.item(), (x[i], x[i]))
        if step % 100 == 0:
            model.eval()
            with torch.no_grad():
                r = model(vx)[0]
                rec.validation(float(F.mse_loss(r, vx)))
            model.train()


class RnnFactor(nn.Module):
    def __init__(self, users=120, items=80, d=6):
        super().__init__()
        self.user = nn.Embedding(users, d)
        self.item = nn.Embedding(items, d)
        self.ub = nn.Embedding(users, 1)
        self.ib = nn.Embedding(items, 1)
        for e in (self.user, self.item):
            nn.init.normal_(e.weight, std=0.3)
        for e in (self.ub, self.ib):
            nn.init.zeros_(e.weight)

    def forward(self, x):
        u, i = x[:, 0], x[:, 1]
        return (self.user(u) * self.item(i)).sum(1) + self.ub(u).squeeze(1) + self.ib(i).squeeze(1)


@healthy("Sparse features: most rows of the embeddings get no gradient in a step; ordinary weight decay.", steps=2000)
def rnn_factor_model(record):
    rnn_seed(4)
    g = rnn_gen(4)
    x, y = rnn_ratings(25000, g)
    vx, vy = rnn_ratings(3000, g)
    model = RnnFactor()
    loss = nn.MSELoss()
    opt = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.02)
    rec = record(model, opt, loss)
    dl = DataLoader(TensorDataset(x, y), batch_size=64, shuffle=True, generator=g, drop_last=True)
    step = 0
    while step < 2000:
        for xb, yb in dl:
            rnn_set_lr(opt, 1e-2 * (1 - step / 2000))
            opt.zero_grad()
            value = loss(model(xb), yb)
            value.backward()
            opt.step()
            step += 1
            rec.step(value.item(), (xb, yb))
            if step % 200 == 0:
                rec.validation(rnn_eval(model, loss, vx, vy))
            if step == 2000:
                break


class RnnGruRegressor(nn.Module):
    def __init__(self, hidden=24):
        super().__init__()
        self.rnn = nn.GRU(1, hidden, batch_first=True)
        self.out = nn.Linear(hidden, 1)

    def forward(self, x):
        return self.out(self.rnn(x)[0][:, -1])


@healthy("Clipping that acts in nearly every step.", steps=2000)
def rnn_clipped_gru(record):
    rnn_seed(5)
    g = rnn_gen(5)
    x, y = rnn_forecast(5000, g)
    vx, vy = rnn_forecast(800, g)
    model = RnnGruRegressor()
    loss = nn.SmoothL1Loss()
    opt = torch.optim.Adam(model.parameters(), lr=4e-3)
    sched = torch.optim.lr_scheduler.LinearLR(opt, 1.0, 0.02, total_iters=2000)
    rec = record(model, opt, loss)
    it = rnn_epochs(len(x), 32, g)
    for step in range(1, 2001):
        i = next(it)
        opt.zero_grad()
        value = loss(model(x[i]), y[i])
        value.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.02)
        opt.step()
        sched.step()
        rec.step(value.item(), (x[i], y[i]))
        if step % 100 == 0:
            rec.validation(rnn_eval(model, loss, vx, vy))


class RnnResConv(nn.Module):
    def __init__(self, c=12):
        super().__init__()
        self.stem = nn.Conv2d(1, c, 3, padding=1)
        self.a = nn.ModuleList(nn.Conv2d(c, c, 3, padding=1, bias=False) for _ in range(3))
        self.b = nn.ModuleList(nn.BatchNorm2d(c) for _ in range(3))
        self.head = nn.Linear(c * 4, 10)

    def forward(self, x):
        h = self.stem(x)
        for a, b in zip(self.a, self.b):
            h = h + F.relu(b(a(h)))
        return self.head(F.adaptive_avg_pool2d(h, 2).flatten(1))


@healthy("Steps down of the rate: the loss falls from one step to the next.", steps=2000)
def rnn_step_decay_resnet(record):
    rnn_seed(6)
    g = rnn_gen(6)
    x, y, vx, vy = rnn_digits()
    model = RnnResConv()
    loss = nn.CrossEntropyLoss(label_smoothing=0.1)
    opt = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=2e-3)
    sched = torch.optim.lr_scheduler.MultiStepLR(opt, [800, 1400], 0.1)
    rec = record(model, opt, loss)
    it = rnn_epochs(len(x), 32, g)
    for step in range(1, 2001):
        i = next(it)
        # small shifts and noise
        sh = torch.randint(-1, 2, (2,), generator=g).tolist()
        xb = torch.roll(x[i], sh, (2, 3)) + 0.4 * torch.randn(x[i].shape, generator=g)
        opt.zero_grad()
        value = loss(model(xb), y[i])
        value.backward()
        opt.step()
        sched.step()
        rec.step(value.item(), (xb, y[i]))
        if step % 100 == 0:
            rec.validation(rnn_eval(model, loss, vx, vy))


@healthy("Strong dropout: the training loss stays above the validation loss.", steps=2000)
def rnn_strong_dropout(record):
    rnn_seed(7)
    g = rnn_gen(7)
    x, y, vx, vy = rnn_digits()
    model = nn.Sequential(
        nn.Flatten(), nn.Dropout(0.2), nn.Linear(64, 160), nn.ReLU(), nn.Dropout(0.5), nn.Linear(160, 100), nn.ReLU(), nn.Dropout(0.5), nn.Linear(100, 10)
    )
    loss = nn.CrossEntropyLoss()
    opt = torch.optim.RMSprop(model.parameters(), lr=7e-4)
    rec = record(model, opt, loss)
    it = rnn_epochs(len(x), 50, g)
    for step in range(1, 2001):
        rnn_set_lr(opt, rnn_cosine(step, 2000, 7e-4))
        i = next(it)
        opt.zero_grad()
        value = loss(model(x[i]), y[i])
        value.backward()
        opt.step()
        rec.step(value.item(), (x[i], y[i]))
        if step % 100 == 0:
            rec.validation(rnn_eval(model, loss, vx, vy))


class RnnGcn(nn.Module):
    def __init__(self, adj, feats, hidden=16, classes=4):
        super().__init__()
        self.register_buffer("adj", adj)
        self.register_buffer("feats", feats)
        self.w1 = nn.Linear(feats.shape[1], hidden)
        self.w2 = nn.Linear(hidden, classes)
        self.drop = nn.Dropout(0.4)

    def forward(self, nodes):
        h = self.drop(F.relu(self.adj @ self.w1(self.feats)))
        return (self.adj @ self.w2(h))[nodes]


@healthy("Full-batch training of a graph network: every batch is the same by design.", steps=2000)
def rnn_graph_full_batch(record):
    rnn_seed(8)
    g = rnn_gen(8)
    n = 400
    c = torch.randint(0, 4, (n,), generator=g)
    p = torch.where(c[:, None] == c[None], 0.03, 0.012)
    a = torch.triu((torch.rand(n, n, generator=g) < p).float(), 1)
    a = a + a.T + torch.eye(n)
    d = a.sum(1).rsqrt()
    adj = d[:, None] * a * d[None]
    centre = torch.randn(4, 12, generator=g)
    feats = 0.8 * centre[c] + 1.3 * torch.randn(n, 12, generator=g)
    train, held = torch.arange(0, 200), torch.arange(200, 400)
    model = RnnGcn(adj, feats)
    loss = nn.CrossEntropyLoss()
    opt = torch.optim.Adam(model.parameters(), lr=3e-3, weight_decay=1e-2)
    rec = record(model, opt, loss)
    for step in range(1, 2001):
        opt.zero_grad()
        value = loss(model(train), c[train])
        value.backward()
        opt.step()
        rec.step(value.item(), (train, c[train]))
        if step % 100 == 0:
            rec.validation(rnn_eval(model, loss, held, c[held]))


class RnnBackboned(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.backbone = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU())
        self.head = nn.Linear(64, classes)

    def forward(self, x):
        return self.head(self.backbone(x))


@healthy("A planned thaw: the pretrained backbone joins at step 900 at a tenth of the rate, and the loss gets better.", steps=2000)
def rnn_planned_thaw(record):
    rnn_seed(9)
    g = rnn_gen(9)
    loss = nn.CrossEntropyLoss()
    old = RnnBackboned(9)
    sx, sy = rnn_teacher(4000, g, classes=9)
    pre = torch.optim.Adam(old.parameters(), lr=2e-3)
    it = rnn_epochs(len(sx), 64, g)
    for _ in range(300):
        i = next(it)
        pre.zero_grad()
        loss(old(sx[i]), sy[i]).backward()
        pre.step()
    x, y = rnn_teacher(15000, g, classes=6)
    vx, vy = rnn_teacher(1500, g, classes=6)
    model = RnnBackboned(6)
    model.backbone.load_state_dict(old.backbone.state_dict())
    for p in model.backbone.parameters():
        p.requires_grad_(False)
    opt = torch.optim.Adam(model.head.parameters(), lr=3e-3)
    rec = record(model, opt, loss)
    it = rnn_epochs(len(x), 64, g)
    for step in range(1, 2001):
        if step == 901:
            for p in model.backbone.parameters():
                p.requires_grad_(True)
            opt.add_param_group({"params": list(model.backbone.parameters()), "lr": 3e-4})
        i = next(it)
        opt.zero_grad()
        value = loss(model(x[i]), y[i])
        value.backward()
        opt.step()
        rec.step(value.item(), (x[i], y[i]))
        if step % 100 == 0:
            rec.validation(rnn_eval(model, loss, vx, vy))


class RnnTagger(nn.Module):
    def __init__(self, vocab=20, d=16, hidden=32):
        super().__init__()
        self.emb = nn.Embedding(vocab, d)
        self.rnn = nn.LSTM(d, hidden, batch_first=True)
        self.head = nn.Linear(hidden, vocab)

    def forward(self, x):
        return self.head(self.rnn(self.emb(x))[0])


@healthy("Gradients accumulated over three small batches before each step.", steps=2000)
def rnn_accumulated_lstm(record):
    rnn_seed(10)
    g = rnn_gen(10)
    text, held = rnn_text(60000, 21), rnn_text(4000, 22)
    vx, vy = rnn_windows(held, 100, 14, g)
    model = RnnTagger()
    opt = torch.optim.Adam(model.parameters(), lr=5e-3)
    rec = record(model, opt, rnn_lm_loss)
    for step in range(1, 2001):
        rnn_set_lr(opt, rnn_cosine(step, 2000, 5e-3, end=5e-4))
        opt.zero_grad()
        total, xs, ys = 0.0, [], []
        for _ in range(3):
            x, y = rnn_windows(text, 6, 14, g)
            value = rnn_lm_loss(model(x), y) / 3
            value.backward()
            total += value.item()
            xs.append(x)
            ys.append(y)
        opt.step()
        rec.step(total, (torch.cat(xs), torch.cat(ys)))
        if step % 200 == 0:
            rec.validation(rnn_eval(model, rnn_lm_loss, vx, vy))
