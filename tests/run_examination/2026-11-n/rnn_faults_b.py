from __future__ import annotations

import math
from collections import deque

import torch
import torch.nn.functional as F
from program import fault
from torch import nn

from rnn_data import *


# ---------------------------------------------------------------- 7
def rnn_dropout_faded_loop(record, broken):
    rnn_seed(77)
    g = rnn_gen(77)
    x, y, vx, vy = rnn_digits(n_train=260)
    flip = torch.rand(len(y), generator=g) < 0.12
    y = torch.where(flip, torch.randint(0, 10, y.shape, generator=g), y)
    model = nn.Sequential(
        nn.Flatten(), nn.Linear(64, 128), nn.ReLU(), nn.Dropout(0.5), nn.Linear(128, 96), nn.ReLU(), nn.Dropout(0.5), nn.Linear(96, 10)
    )
    loss = nn.CrossEntropyLoss()
    opt = torch.optim.RMSprop(model.parameters(), lr=1e-3, alpha=0.99, weight_decay=0.01)
    rec = record(model, opt, loss)
    it = rnn_epochs(len(x), 32, g)
    keep, noise = 0.5, 0.8
    for step in range(1, 1601):
        if step > 500:
            f = max(0.0, 1 - (step - 500) / 400)
            if broken:
                noise = 0.8 * f
                for m in model:
                    if isinstance(m, nn.Dropout):
                        m.p = 0.5 * f
                opt.param_groups[0]["weight_decay"] = 0.01 * f
        rnn_set_lr(opt, 1e-3 if step < 1200 or broken else 2e-4)
        i = next(it)
        xb = x[i] + noise * torch.randn(x[i].shape, generator=g)
        opt.zero_grad()
        value = loss(model(xb), y[i])
        value.backward()
        opt.step()
        rec.step(value.item(), (xb, y[i]))
        if step % 40 == 0:
            rec.validation(rnn_eval(model, loss, vx, vy))
    return rnn_eval(model, loss, vx, vy)


@fault(
    "Dropout, noise and decay are faded out from step 500 on: 260 examples, some with wrong labels, are learned by heart.",
    rules=("overfitting",),
    step=920,
    steps=1600,
)
def rnn_dropout_faded(record):
    rnn_dropout_faded_loop(record, True)


# ---------------------------------------------------------------- 8
class RnnTcn(nn.Module):
    def __init__(self):
        super().__init__()
        self.c1 = nn.Conv1d(1, 24, 3, padding=1)
        self.c2 = nn.Conv1d(24, 24, 3, padding=2, dilation=2)
        self.c3 = nn.Conv1d(24, 24, 3, padding=4, dilation=4)
        self.head = nn.Linear(24 * 20, 1)

    def forward(self, x):
        h = F.relu(self.c1(x.transpose(1, 2)))
        h = h + F.relu(self.c2(h))
        h = h + F.relu(self.c3(h))
        return self.head(h.flatten(1))


def rnn_sentinel_rows_loop(record, broken):
    rnn_seed(88)
    g = rnn_gen(88)
    x, y = rnn_forecast(4000, g)
    vx, vy = rnn_forecast(600, g)
    model = RnnTcn()
    loss = nn.MSELoss()
    opt = torch.optim.RMSprop(model.parameters(), lr=5e-4, alpha=0.98)
    rec = record(model, opt, loss)
    it = rnn_epochs(len(x), 48, g)
    for step in range(1, 1301):
        i = next(it)
        xb, yb = x[i].clone(), y[i]
        if broken and step == 703:
            # a stretch of the file where the logger was down: the marker -999 was never replaced
            xb[5:23, 12:17] = -99.9
        opt.zero_grad()
        value = loss(model(xb), yb)
        value.backward()
        opt.step()
        rec.step(value.item(), (xb, yb))
        if step % 25 == 0:
            rec.validation(rnn_eval(model, loss, vx, vy))
    return rnn_eval(model, loss, vx, vy)


@fault(
    "One batch holds the marker for missing readings as if it were a reading; its loss throws the weights off for a while.",
    rules=("loss-spike",),
    step=703,
    steps=1300,
)
def rnn_sentinel_rows(record):
    rnn_sentinel_rows_loop(record, True)


# ---------------------------------------------------------------- 9
class RnnRecNet(nn.Module):
    def __init__(self, users=120, items=80, d=16):
        super().__init__()
        self.user = nn.Embedding(users, d)
        self.item = nn.Embedding(items, d)
        nn.init.normal_(self.user.weight, std=0.3)
        nn.init.normal_(self.item.weight, std=0.3)
        self.fc1 = nn.Linear(3 * d, 64)
        self.fc2 = nn.Linear(64, 32)
        self.out = nn.Linear(32, 1)

    def forward(self, x):
        u, v = self.user(x[:, 0]), self.item(x[:, 1])
        h = torch.cat([u, v, u * v], 1)
        return self.out(F.relu(self.fc2(F.relu(self.fc1(h))))).squeeze(1)


def rnn_decay_per_rate_loop(record, broken):
    rnn_seed(99)
    g = rnn_gen(99)
    x, y = rnn_ratings(30000, g)
    vx, vy = rnn_ratings(3000, g)
    model = RnnRecNet()
    loss = nn.MSELoss()
    lr0, wd0, total = 3e-3, 0.4, 1600
    opt = torch.optim.AdamW(model.parameters(), lr=lr0, weight_decay=wd0)
    rec = record(model, opt, loss)
    it = rnn_epochs(len(x), 128, g)
    for step in range(1, total + 1):
        lr = rnn_cosine(step, total, lr0, end=3e-5)
        for group in opt.param_groups:
            group["lr"] = lr
            if broken:
                # "the decay must not fade with the rate"
                group["weight_decay"] = wd0 * lr0 / lr
        i = next(it)
        opt.zero_grad()
        value = loss(model(x[i]), y[i])
        value.backward()
        opt.step()
        rec.step(value.item(), (x[i], y[i]))
        if step % 50 == 0:
            rec.validation(rnn_eval(model, loss, vx, vy))
    return rnn_eval(model, loss, vx, vy)


@fault(
    "Decoupled decay is divided by the falling rate, so that its pull per step stays while the gradient's push fades: late in the run the weights shrink away.",
    rules=("weight-decay-dominates",),
    step=1050,
    steps=1600,
)
def rnn_decay_per_rate(record):
    rnn_decay_per_rate_loop(record, True)


# ---------------------------------------------------------------- 10
class RnnDocs(nn.Module):
    """Mean of word vectors, put to length one, then a small MLP."""

    def __init__(self, vocab=200, d=24, classes=8):
        super().__init__()
        self.emb = nn.Embedding(vocab, d)
        self.fc1 = nn.Linear(d, 48)
        self.fc2 = nn.Linear(48, classes)

    def forward(self, x):
        h = (self.emb(x) * (x > 0).unsqueeze(-1)).sum(1)
        h = h / ((h * h).sum(1, keepdim=True).sqrt() + 1e-6) * 5
        return self.fc2(torch.tanh(self.fc1(h)))


def rnn_docs(n, g, empty=0.0):
    t = rnn_gen(555)
    topic = torch.softmax(1.3 * torch.randn(8, 199, generator=t), 1)
    y = torch.randint(0, 8, (n,), generator=g)
    x = torch.multinomial(topic[y], 14, replacement=True, generator=g) + 1
    x[torch.rand(n, generator=g) < empty] = 0
    return x, y


def rnn_empty_documents_loop(record, broken):
    rnn_seed(110)
    g = rnn_gen(110)
    x, y = rnn_docs(4000, g)
    x2, y2 = rnn_docs(4000, g, empty=0.01)
    if not broken:
        keep = (x2 > 0).any(1)
        x2, y2 = x2[keep], y2[keep]
    vx, vy = rnn_docs(800, g)
    model = RnnDocs()
    loss = nn.CrossEntropyLoss()
    opt = torch.optim.SGD(model.parameters(), lr=0.008, momentum=0.9)
    rec = record(model, opt, loss)
    a, b = rnn_epochs(len(x), 32, g), rnn_epochs(len(x2), 32, g)
    scale, good, step = 2.0**14, 0, 0
    while step < 1200:
        i = next(a) if step < 400 else next(b)
        xb, yb = (x[i], y[i]) if step < 400 else (x2[i], y2[i])
        opt.zero_grad()
        value = loss(model(xb), yb)
        (value * scale).backward()
        finite = True
        for p in model.parameters():
            half = p.grad.half()  # gradients travel as float16
            finite = finite and bool(torch.isfinite(half).all())
            p.grad = half.float() / scale
        if not finite:
            scale, good = max(scale / 2, 2.0**-24), 0
            continue
        good += 1
        if good == 200:
            scale, good = min(scale * 2, 2.0**15), 0
        opt.step()
        step += 1
        rec.step(value.item(), (xb, yb))
        if step % 50 == 0:
            rec.validation(rnn_eval(model, loss, vx, vy))
    return rnn_eval(model, loss, vx, vy)


@fault(
    "Empty documents of a new file have NaN gradients at every loss scale: the scaler skips and halves until float16 gradients are zero.",
    rules=("gradient-underflow", "no-gradient"),
    step=480,
    steps=1200,
)
def rnn_empty_documents(record):
    rnn_empty_documents_loop(record, True)


# ---------------------------------------------------------------- 11
class RnnResMlp(nn.Module):
    def __init__(self, d=20, width=64, classes=12):
        super().__init__()
        self.inp = nn.Linear(d, width)
        self.blocks = nn.ModuleList(nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), nn.GELU(), nn.Linear(width, width)) for _ in range(3))
        self.out = nn.Linear(width, classes)

    def forward(self, x):
        h = self.inp(x)
        for b in self.blocks:
            h = h + b(h)
        return self.out(h)


def rnn_string_sorted_classes_loop(record, broken):
    rnn_seed(121)
    g = rnn_gen(121)
    x, y = rnn_teacher(12000, g, classes=12)
    x2, y2 = rnn_teacher(12000, g, classes=12)
    vx, vy = rnn_teacher(1500, g, classes=12)
    if broken:
        # the second file's classes were numbered in the order of their names as strings
        order = sorted(str(k) for k in range(12))
        y2 = torch.tensor([order.index(str(k)) for k in range(12)])[y2]
    model = RnnResMlp()
    loss = nn.CrossEntropyLoss()
    opt = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.01)
    rec = record(model, opt, loss)
    a, b = rnn_epochs(len(x), 64, g), rnn_epochs(len(x2), 32, g)
    for step in range(1, 1601):
        rnn_set_lr(opt, 2e-3 if step < 1200 else 5e-4)
        i = next(a)
        xb, yb = x[i], y[i]
        if step > 800:
            j = next(b)
            xb, yb = torch.cat([xb[:32], x2[j]]), torch.cat([yb[:32], y2[j]])
        opt.zero_grad()
        value = loss(model(xb), yb)
        value.backward()
        opt.step()
        rec.step(value.item(), (xb, yb))
        if step % 100 == 0:
            rec.validation(rnn_eval(model, loss, vx, vy))
    return rnn_eval(model, loss, vx, vy)


@fault(
    "From step 801 half of each batch comes from a file whose classes are numbered otherwise: wrong labels.",
    rules=("data-changed", "labels-unrelated"),
    step=801,
    steps=1600,
)
def rnn_string_sorted_classes(record):
    rnn_string_sorted_classes_loop(record, True)


# ---------------------------------------------------------------- 12
class RnnCharLstm(nn.Module):
    def __init__(self, vocab=20, d=16, hidden=48):
        super().__init__()
        self.emb = nn.Embedding(vocab, d)
        self.rnn = nn.LSTM(d, hidden, batch_first=True)
        self.head = nn.Linear(hidden, vocab)

    def forward(self, x):
        return self.head(self.rnn(self.emb(x))[0])


def rnn_ring_buffer_loop(record, broken):
    rnn_seed(132)
    g = rnn_gen(132)
    text, held = rnn_text(40000, 5), rnn_text(4000, 6)
    vx, vy = rnn_windows(held, 100, 20, g)
    model = RnnCharLstm()
    opt = torch.optim.Adam(model.parameters(), lr=4e-3)
    rec = record(model, opt, rnn_lm_loss)
    ring = deque(maxlen=7)
    for _ in range(7):
        ring.append(rnn_windows(text, 16, 20, g))
    for step in range(1, 1401):
        x, y = ring.popleft()
        # the producer ends after its file is read once; the consumer puts back what it took
        if broken and step > 700 - 7:
            ring.append((x, y))
        else:
            ring.append(rnn_windows(text, 16, 20, g))
        opt.zero_grad()
        value = rnn_lm_loss(model(x), y)
        value.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 2.0)
        opt.step()
        rec.step(value.item(), (x, y))
        if step % 50 == 0:
            rec.validation(rnn_eval(model, rnn_lm_loss, vx, vy))
    return rnn_eval(model, rnn_lm_loss, vx, vy)


@fault(
    "A prefetch ring whose producer has ended goes on serving its last seven batches.",
    rules=("repeated-batches", "overfitting"),
    step=701,
    steps=1400,
)
def rnn_ring_buffer(record):
    rnn_ring_buffer_loop(record, True)
