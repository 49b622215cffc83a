"""Faults that only training shows, second part."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from program import fault
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from rnk_data import rnk_clusters, rnk_cycle, rnk_digits, rnk_evaluate, rnk_Flat, rnk_markov, rnk_teacher


def rnk_decay_milestones_loop(record, broken):
    torch.manual_seed(21)
    x, y = rnk_teacher(5000, d=10, out=3, seed=2)
    xtr, ytr, xva, yva = x[:4200], y[:4200], x[4200:], y[4200:]
    model = nn.Sequential(nn.Linear(10, 80), nn.SiLU(), nn.Linear(80, 80), nn.SiLU(), nn.Linear(80, 3))
    opt = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.01)
    rec = record(model, opt, F.mse_loss)
    loader = rnk_cycle(DataLoader(TensorDataset(xtr, ytr), batch_size=50, shuffle=True))
    for step in range(1000):
        if step in (300, 350, 400, 450):
            for group in opt.param_groups:  # was meant to divide
                group["weight_decay"] *= 10 if broken else 0.5
        xb, yb = next(loader)
        opt.zero_grad()
        loss = F.mse_loss(model(xb), yb)
        loss.backward()
        opt.step()
        rec.step(loss, (xb, yb))
        if (step + 1) % 50 == 0:
            rec.validation(rnk_evaluate(model, F.mse_loss, xva, yva))
    return rnk_evaluate(model, F.mse_loss, xva, yva)


@fault("a schedule multiplies the weight decay by ten at each milestone", rules=["weight-decay-dominates"], step=400, steps=1000)
def rnk_decay_milestones(record):
    rnk_decay_milestones_loop(record, True)


class rnk_CharLM(nn.Module):
    def __init__(self, vocab, dim=24, hidden=48):
        super().__init__()
        self.embed = nn.Embedding(vocab, dim)
        self.rnn = nn.LSTM(dim, hidden, batch_first=True)
        self.proj = nn.Linear(hidden, vocab)

    def forward(self, tokens):
        return self.proj(self.rnn(self.embed(tokens))[0])


def rnk_scheduler_place_loop(record, broken):
    torch.manual_seed(22)
    s = rnk_markov(2400, length=16, vocab=40, seed=3, skew=0.3)
    tr, va = s[:2000], s[2000:]
    model, criterion = rnk_CharLM(40), rnk_Flat()
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    sched = torch.optim.lr_scheduler.ExponentialLR(opt, gamma=0.93)
    rec = record(model, opt, criterion)
    step = 0
    for epoch in range(20):
        for (b,) in DataLoader(TensorDataset(tr), batch_size=40, shuffle=True):
            opt.zero_grad()
            loss = criterion(model(b[:, :-1]), b[:, 1:])
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            opt.step()
            rec.step(loss, (b[:, :-1], b[:, 1:]))
            step += 1
            if broken and epoch >= 4:
                sched.step()  # for each batch, and not for each epoch
        if not broken and epoch >= 4:
            sched.step()
        rec.validation(rnk_evaluate(model, criterion, va[:, :-1], va[:, 1:]))
    return rnk_evaluate(model, criterion, va[:, :-1], va[:, 1:])


@fault("a decay meant for each epoch is applied for each batch, and the rate is gone soon", rules=["learning-rate-too-low"],
       step=220, steps=1000)
def rnk_scheduler_place(record):
    rnk_scheduler_place_loop(record, True)


class rnk_TwoBranches(nn.Module):
    """Columns 0:8 go to one branch, 8:24 to the other."""

    def __init__(self):
        super().__init__()
        self.tabular = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 16))
        self.signal = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU())
        self.merge = nn.Sequential(nn.Linear(48, 32), nn.ReLU(), nn.Linear(32, 2))
        self.cached = False

    def forward(self, x):
        a = self.tabular(x[:, :8])
        if self.cached:
            with torch.no_grad():
                b = self.signal(x[:, 8:])
        else:
            b = self.signal(x[:, 8:])
        return self.merge(torch.cat([a, b], 1))


def rnk_cached_branch_loop(record, broken):
    torch.manual_seed(23)
    x, _ = rnk_teacher(6000, d=24, seed=5)
    g = torch.Generator().manual_seed(9)
    w = torch.randn(16, 30, generator=g) / 2.5
    v = torch.randn(30, 2, generator=g) / 4
    y = torch.tanh(x[:, :2]) * 0.7 + torch.sin(x[:, 8:] @ w) @ v
    y = y + 0.05 * torch.randn(y.shape, generator=g)
    model = rnk_TwoBranches()
    opt = torch.optim.Adam(model.parameters(), lr=2e-3)
    crit = nn.MSELoss()
    rec = record(model, opt, crit)
    loader = rnk_cycle(DataLoader(TensorDataset(x[:5200], y[:5200]), batch_size=64, shuffle=True))
    for step in range(1400):
        if step == 300 and broken:
            model.cached = True
        xb, yb = next(loader)
        opt.zero_grad()
        loss = crit(model(xb), yb)
        loss.backward()
        opt.step()
        rec.step(loss, (xb, yb))
        if step % 100 == 99:
            rec.validation(rnk_evaluate(model, crit, x[5200:], y[5200:]))
    return rnk_evaluate(model, crit, x[5200:], y[5200:])


@fault("one branch runs under no_grad from step 300 on", rules=["no-gradient"], layers=["signal"], step=300, steps=1400)
def rnk_cached_branch(record):
    rnk_cached_branch_loop(record, True)


class rnk_BNNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 8, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(8)
        self.conv2 = nn.Conv2d(8, 16, 3, stride=2, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(16)
        self.fc = nn.Linear(16, 10)

    def forward(self, x):
        x = F.relu(self.bn1(self.conv1(x)))
        x = F.relu(self.bn2(self.conv2(x)))
        return self.fc(x.mean((2, 3)))


def rnk_monitor_pass_loop(record, broken):
    torch.manual_seed(24)
    xtr, ytr, xva, yva = rnk_digits(seed=6)
    raw = (xtr + 1) * 127.5  # what the monitor reads: pixels of 0 to 255
    model, crit = rnk_BNNet(), nn.CrossEntropyLoss()
    opt = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, nesterov=True)
    rec = record(model, opt, crit)
    loader = rnk_cycle(DataLoader(TensorDataset(xtr, ytr), batch_size=40, shuffle=True, drop_last=True))
    for step in range(900):
        xb, yb = next(loader)
        opt.zero_grad()
        loss = crit(model(xb), yb)
        loss.backward()
        opt.step()
        rec.step(loss, (xb, yb))
        if step >= 420 and step % 4 == 0 and broken:
            with torch.no_grad():  # a monitor of activations, still in training mode
                model(raw[torch.randint(0, 1400, (64,))])
        if (step + 1) % 30 == 0:
            rec.validation(rnk_evaluate(model, crit, xva, yva))
    return rnk_evaluate(model, crit, xva, yva)


@fault("a monitor sends raw pixels through the network in training mode, and spoils the running statistics",
       rules=["stale-statistics", "batchnorm-mode-gap"], layers=["bn1", "bn2"], step=420, steps=900)
def rnk_monitor_pass(record):
    rnk_monitor_pass_loop(record, True)


class rnk_Residual(nn.Module):
    def __init__(self, d=16, width=64):
        super().__init__()
        self.inp = nn.Linear(d, width)
        self.blocks = nn.ModuleList(nn.Linear(width, width) for _ in range(2))
        self.out = nn.Linear(width, 6)

    def forward(self, x):
        h = self.inp(x.to(self.inp.weight.dtype))
        for b in self.blocks:
            h = h + F.gelu(b(h))
        return self.out(h).float()


def rnk_half_weights_loop(record, broken):
    torch.manual_seed(25)
    x, y = rnk_clusters(7000, d=16, classes=6, per=4, noise=1.0, seed=9)
    model, crit = rnk_Residual(), nn.CrossEntropyLoss()
    opt = torch.optim.SGD(model.parameters(), lr=3e-3, foreach=False)
    rec = record(model, opt, crit)
    loader = rnk_cycle(DataLoader(TensorDataset(x[:6000], y[:6000]), batch_size=64, shuffle=True))
    for step in range(1500):
        if step == 350 and broken:
            model.to(torch.bfloat16)  # to save memory
        xb, yb = next(loader)
        opt.zero_grad()
        loss = crit(model(xb), yb)
        loss.backward()
        opt.step()
        rec.step(loss, (xb, yb))
        if (step + 1) % 100 == 0:
            rec.validation(rnk_evaluate(model, crit, x[6000:], y[6000:]))
    return rnk_evaluate(model, crit, x[6000:], y[6000:])


@fault("weights become bfloat16 without a float32 copy, and most updates round away", rules=["lost-updates", "learning-rate-too-low"],
       step=350, steps=1500)
def rnk_half_weights(record):
    rnk_half_weights_loop(record, True)


class rnk_Siamese(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 8))

    def forward(self, pair):
        a, b = self.encoder(pair[:, 0]), self.encoder(pair[:, 1])
        return ((a - b) ** 2).sum(1)


def rnk_contrastive(d2, same):
    d = (d2 + 1e-6).sqrt()
    return (same * d2 + (1 - same) * F.relu(2 - d) ** 2).mean()


def rnk_pairs(x, y, n, only_same=False):
    i, j = torch.randint(0, len(x), (n,)), torch.randint(0, len(x), (n,))
    half = n if only_same else n // 2
    for k in range(half):
        c = torch.nonzero(y == y[i[k]])[:, 0]
        j[k] = c[torch.randint(0, len(c), (1,))]
    return torch.stack([x[i], x[j]], 1), (y[i] == y[j]).float()


def rnk_mined_pairs_loop(record, broken):
    torch.manual_seed(26)
    x, y = rnk_clusters(2500, d=16, classes=5, per=2, noise=0.8, seed=1)
    pv, sv = rnk_pairs(x[2000:], y[2000:], 400)
    model = rnk_Siamese()
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    rec = record(model, opt, rnk_contrastive)
    for step in range(1000):
        pb, sb = rnk_pairs(x[:2000], y[:2000], 48, only_same=broken and step >= 400)
        opt.zero_grad()
        loss = rnk_contrastive(model(pb), sb)
        loss.backward()
        opt.step()
        rec.step(loss, (pb, sb))
        if (step + 1) % 50 == 0:
            rec.validation(rnk_evaluate(model, rnk_contrastive, pv, sv))
    return rnk_evaluate(model, rnk_contrastive, pv, sv)


@fault("from step 400 on the sampler gives no unlike pairs, and all embeddings fall together",
       rules=["rank-collapse", "constant-target", "data-changed"], step=400, steps=1000)
def rnk_mined_pairs(record):
    rnk_mined_pairs_loop(record, True)


class rnk_TinyTransformer(nn.Module):
    def __init__(self, vocab=30, d=32, length=16):
        super().__init__()
        self.tok = nn.Embedding(vocab, d)
        self.pos = nn.Parameter(torch.randn(length, d) * 0.02)
        self.layer = nn.TransformerEncoderLayer(d, 4, 64, dropout=0.0, batch_first=True, norm_first=True)
        self.norm = nn.LayerNorm(d)
        self.head = nn.Linear(d, vocab)
        self.register_buffer("mask", torch.triu(torch.full((length, length), float("-inf")), 1))

    def forward(self, t):
        h = self.layer(self.tok(t) + self.pos, src_mask=self.mask)
        return self.head(self.norm(h))


def rnk_resume_rate_loop(record, broken):
    torch.manual_seed(27)
    s = rnk_markov(2500, length=16, vocab=30, seed=8, skew=0.2)
    tr, va = s[:2100], s[2100:]
    model, crit = rnk_TinyTransformer(), rnk_Flat()
    opt = torch.optim.AdamW(model.parameters(), lr=2e-3)
    rec = record(model, opt, crit)
    for step in range(900):
        if step == 360 and broken:  # resume: the factor for the number of workers is applied again
            state = opt.state_dict()
            opt.load_state_dict(state)
            for g in opt.param_groups:
                g["lr"] *= 64
        b = tr[torch.randint(0, len(tr), (32,))]
        opt.zero_grad()
        loss = crit(model(b[:, :-1]), b[:, 1:])
        loss.backward()
        opt.step()
        rec.step(loss, (b[:, :-1], b[:, 1:]))
        if (step + 1) % 60 == 0:
            rec.validation(rnk_evaluate(model, crit, va[:, :-1], va[:, 1:]))
    return rnk_evaluate(model, crit, va[:, :-1], va[:, 1:])


@fault("after resuming, the rate is 64 times what it was", rules=["learning-rate-too-high", "diverging", "loss-spike"], step=360, steps=900)
def rnk_resume_rate(record):
    rnk_resume_rate_loop(record, True)
