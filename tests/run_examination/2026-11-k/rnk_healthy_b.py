"""Healthy runs, second part."""

from __future__ import annotations

import copy

import torch
import torch.nn.functional as F
from program import healthy
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from rnk_data import rnk_clusters, rnk_cycle, rnk_digits, rnk_evaluate, rnk_Flat, rnk_markov, rnk_teacher

# loss at which the run is meant to end, and by how much it may differ
FLOORS = {"rnk_heavy_tails": (0.76, 0.12), "rnk_second_order": (0.0025, 0.001)}


class rnk_MaskedLM(nn.Module):
    def __init__(self, vocab=62, d=32, length=21):
        super().__init__()
        self.tok = nn.Embedding(vocab, d)
        self.pos = nn.Embedding(length, d)
        layer = nn.TransformerEncoderLayer(d, 4, 64, dropout=0.05, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(d, vocab)

    def forward(self, t):
        return self.head(self.encoder(self.tok(t) + self.pos(torch.arange(t.shape[1]))))


@healthy("a masked language model with rare words: most places do not count, and some rows hardly ever get a gradient", steps=1200)
def rnk_masked_words(record):
    torch.manual_seed(41)
    s = rnk_markov(6000, length=20, vocab=60, seed=21, skew=1.0, peak=3.0)
    model, crit = rnk_MaskedLM(), rnk_Flat()
    opt = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.05)
    sched = torch.optim.lr_scheduler.LambdaLR(opt, lambda k: min((k + 1) / 100, (1300 - k) / 1200))
    rec = record(model, opt, crit)

    def mask(t):
        m = torch.rand(t.shape) < 0.15
        m[:, 7] = True
        return torch.where(m, 61, t), torch.where(m, t, -100)

    xv, yv = mask(s[5500:])
    for step in range(1200):
        x, y = mask(s[torch.randint(0, 5500, (24,))])
        opt.zero_grad()
        loss = crit(model(x), y)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        sched.step()
        rec.step(loss, (x, y))
        if (step + 1) % 100 == 0:
            rec.validation(rnk_evaluate(model, crit, xv, yv))


@healthy("validation is of an exponential average of the weights, which lags behind at first", steps=1000)
def rnk_average_weights(record):
    torch.manual_seed(42)
    x, y = rnk_teacher(12000, d=10, out=2, hidden=12, seed=22)
    model = nn.Sequential(nn.Linear(10, 96), nn.ELU(), nn.Linear(96, 96), nn.ELU(), nn.Linear(96, 2))
    ema = copy.deepcopy(model)
    crit = nn.MSELoss()
    opt = torch.optim.Adamax(model.parameters(), lr=5e-3)
    rec = record(model, opt, crit)
    loader = rnk_cycle(DataLoader(TensorDataset(x[:11000], y[:11000]), batch_size=32, shuffle=True))
    for step in range(1000):
        xb, yb = next(loader)
        opt.zero_grad()
        loss = crit(model(xb), yb)
        loss.backward()
        opt.step()
        with torch.no_grad():
            for a, b in zip(ema.parameters(), model.parameters()):
                a.lerp_(b, 0.005)
        rec.step(loss, (xb, yb))
        if (step + 1) % 40 == 0:
            rec.validation(rnk_evaluate(ema, crit, x[11000:], y[11000:]))


@healthy("gradient accumulation over 1, then 4, then 8 micro-batches, each time divided as it should be", steps=1000)
def rnk_more_micro_batches(record):
    torch.manual_seed(43)
    x, y = rnk_clusters(20000, d=14, classes=5, per=3, noise=1.0, seed=23)
    model = nn.Sequential(nn.Linear(14, 64), nn.LayerNorm(64), nn.GELU(), nn.Linear(64, 5))
    crit = nn.CrossEntropyLoss()
    opt = torch.optim.Adam(model.parameters(), lr=2e-3)
    rec = record(model, opt, crit)
    loader = rnk_cycle(DataLoader(TensorDataset(x[:18000], y[:18000]), batch_size=16, shuffle=True))
    for step in range(1000):
        n = 1 if step < 350 else 4 if step < 700 else 8
        total = 0.0
        opt.zero_grad()
        for _ in range(n):
            xb, yb = next(loader)
            loss = crit(model(xb), yb) / n
            loss.backward()
            total = total + loss.detach()
        opt.step()
        rec.step(total, (xb, yb))
        if (step + 1) % 50 == 0:
            rec.validation(rnk_evaluate(model, crit, x[18000:], y[18000:]))


class rnk_ConvBN(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 10, 3, padding=1)
        self.bn1 = nn.BatchNorm2d(10)
        self.conv2 = nn.Conv2d(10, 20, 3, padding=1, stride=2)
        self.bn2 = nn.BatchNorm2d(20)
        self.fc = nn.Linear(20 * 16, 10)

    def forward(self, x):
        x = F.leaky_relu(self.bn1(self.conv1(x)), 0.1)
        x = F.leaky_relu(self.bn2(self.conv2(x)), 0.1)
        return self.fc(x.flatten(1))


@healthy("BatchNorm is put into evaluation mode on purpose for the second half, at a lower rate", steps=1000)
def rnk_frozen_norms(record):
    torch.manual_seed(44)
    xtr, ytr, xva, yva = rnk_digits(seed=24)
    model, crit = rnk_ConvBN(), nn.CrossEntropyLoss()
    opt = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9, weight_decay=1e-3)
    rec = record(model, opt, crit)
    loader = rnk_cycle(DataLoader(TensorDataset(xtr, ytr), batch_size=32, shuffle=True, drop_last=True))
    for step in range(1000):
        model.train()
        if step >= 500:
            for m in model.modules():
                if isinstance(m, nn.BatchNorm2d):
                    m.eval()
        if step == 500:
            opt.param_groups[0]["lr"] = 0.002
        xb, yb = next(loader)
        xb = xb + 0.2 * torch.randn_like(xb)
        loss = crit(model(xb), yb)
        opt.zero_grad()
        loss.backward()
        opt.step()
        rec.step(loss, (xb, yb))
        if (step + 1) % 50 == 0:
            rec.validation(rnk_evaluate(model, crit, xva, yva))


@healthy("dropout is raised from 0 to 0.3 at step 500 and the batch doubled at 800; the training loss goes up, validation does not", steps=1200)
def rnk_dropout_later(record):
    torch.manual_seed(45)
    x, y = rnk_clusters(12000, d=18, classes=6, per=3, noise=1.2, seed=25)
    drops = [nn.Dropout(0.0), nn.Dropout(0.0)]
    model = nn.Sequential(nn.Linear(18, 128), nn.ReLU(), drops[0], nn.Linear(128, 128), nn.ReLU(), drops[1], nn.Linear(128, 6))
    crit = nn.CrossEntropyLoss()
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    rec = record(model, opt, crit)
    data = TensorDataset(x[:10000], y[:10000])
    loader = rnk_cycle(DataLoader(data, batch_size=32, shuffle=True))
    for step in range(1200):
        if step == 500:
            for d in drops:
                d.p = 0.3
        if step == 800:
            loader = rnk_cycle(DataLoader(data, batch_size=64, shuffle=True))
        xb, yb = next(loader)
        opt.zero_grad()
        loss = crit(model(xb), yb)
        loss.backward()
        opt.step()
        rec.step(loss, (xb, yb))
        if (step + 1) % 60 == 0:
            rec.validation(rnk_evaluate(model, crit, x[10000:], y[10000:]))


@healthy("targets with heavy tails: single batches with a large loss throughout, and clipping that is switched on at step 700", steps=1500)
def rnk_heavy_tails(record):
    torch.manual_seed(46)
    x = torch.randn(30000, 8)
    y = x[:, :1] - 2 * x[:, 1:2].abs() + x[:, 2:3] * x[:, 3:4].sign()
    y = y + 0.5 * torch.distributions.StudentT(2.0).sample(y.shape)
    model = nn.Sequential(nn.Linear(8, 96), nn.ReLU(), nn.Linear(96, 1))
    crit = nn.L1Loss()
    opt = torch.optim.RMSprop(model.parameters(), lr=4e-3, alpha=0.95)
    sched = torch.optim.lr_scheduler.LinearLR(opt, 1.0, 0.05, total_iters=1500)
    rec = record(model, opt, crit)
    for step in range(1500):
        i = torch.randint(0, 27000, (16,))
        xb, yb = x[i], y[i]
        opt.zero_grad()
        loss = crit(model(xb), yb)
        loss.backward()
        if step >= 700:
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        opt.step()
        sched.step()
        rec.step(loss, (xb, yb))
        if (step + 1) % 100 == 0:
            rec.validation(rnk_evaluate(model, crit, x[27000:], y[27000:]))


@healthy("L-BFGS on the whole data: the same batch at each step, and a flat end", steps=1000)
def rnk_second_order(record):
    torch.manual_seed(47)
    x, y = rnk_teacher(600, d=4, hidden=4, noise=0.05, seed=27)
    xv, yv = x[500:], y[500:]
    x, y = x[:500], y[:500]
    model = nn.Sequential(nn.Linear(4, 12), nn.Tanh(), nn.Linear(12, 1))
    crit = nn.MSELoss()
    opt = torch.optim.LBFGS(model.parameters(), lr=0.5, max_iter=1, history_size=10)
    rec = record(model, opt, crit)

    def closure():
        opt.zero_grad()
        v = crit(model(x), y)
        v.backward()
        return v

    for step in range(1000):
        loss = opt.step(closure)
        rec.step(loss, (x, y))
        if (step + 1) % 100 == 0:
            rec.validation(rnk_evaluate(model, crit, xv, yv))


class rnk_Bags(nn.Module):
    def __init__(self, n=2000, d=16):
        super().__init__()
        self.bag = nn.EmbeddingBag(n, d, mode="mean")
        self.fc = nn.Sequential(nn.Linear(d, 32), nn.ReLU(), nn.Linear(32, 2))

    def forward(self, ids):
        return self.fc(self.bag(ids))


@healthy("clicks with 2000 sparse ids, most of them rare, and Adagrad whose steps get smaller and smaller", steps=2000)
def rnk_sparse_ids(record):
    torch.manual_seed(48)
    p = 1 / torch.arange(1, 2001).float()
    ids = torch.multinomial(p, 40000 * 8, replacement=True).view(40000, 8)
    value = torch.randn(2000)
    y = (value[ids].sum(1) + 0.5 * torch.randn(40000) > 0).long()
    model, crit = rnk_Bags(), nn.CrossEntropyLoss()
    opt = torch.optim.Adagrad(model.parameters(), lr=0.08)
    rec = record(model, opt, crit)
    step = 0
    while step < 2000:
        for xb, yb in DataLoader(TensorDataset(ids[:38000], y[:38000]), batch_size=38, shuffle=True):
            if step == 2000:
                break
            opt.zero_grad()
            loss = crit(model(xb), yb)
            loss.backward()
            opt.step()
            rec.step(loss, (xb, yb))
            step += 1
            if step % 200 == 0:
                rec.validation(rnk_evaluate(model, crit, ids[38000:], y[38000:]))


class rnk_VAE(nn.Module):
    def __init__(self, z=6):
        super().__init__()
        self.enc = nn.Sequential(nn.Linear(64, 96), nn.ReLU())
        self.mu, self.lv = nn.Linear(96, z), nn.Linear(96, z)
        self.dec = nn.Sequential(nn.Linear(z, 96), nn.ReLU(), nn.Linear(96, 64))
        self.z = z

    def forward(self, x):
        h = self.enc(x)
        mu, lv = self.mu(h), self.lv(h)
        e = mu + torch.randn_like(mu) * torch.exp(0.5 * lv) if self.training else mu
        return torch.cat([self.dec(e), mu, lv], 1)


class rnk_Elbo(nn.Module):
    def __init__(self):
        super().__init__()
        self.beta = 0.0

    def forward(self, out, x):
        r, mu, lv = out[:, :64], out[:, 64:70], out[:, 70:]
        kl = 0.5 * (mu**2 + lv.exp() - 1 - lv).sum(1)
        return (2 * (r - x) ** 2).sum(1).mean() + self.beta * kl.mean()


@healthy("a variational autoencoder whose KL term is faded in from step 400 to 900, so that the total rises", steps=1300)
def rnk_vae(record):
    torch.manual_seed(49)
    xtr, _, xva, _ = rnk_digits(images=False, seed=29)
    model, crit = rnk_VAE(), rnk_Elbo()
    opt = torch.optim.Adam(model.parameters(), lr=2e-3)
    rec = record(model, opt, crit)
    loader = rnk_cycle(DataLoader(TensorDataset(xtr), batch_size=56, shuffle=True))
    for step in range(1300):
        crit.beta = min(1.0, max(0.0, (step - 400) / 500))
        (x,) = next(loader)
        opt.zero_grad()
        loss = crit(model(x), x)
        loss.backward()
        opt.step()
        rec.step(loss, (x, x))
        if (step + 1) % 50 == 0:
            rec.validation(rnk_evaluate(model, crit, xva, xva))
