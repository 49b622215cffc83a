"""Loops over sequences."""

import math

import torch
from program import fault, healthy
from rnf_data import chain, windows
from torch import nn
from torch.nn import functional as F


def token_loss(logits, targets):
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


class Gru(nn.Module):
    def __init__(self, vocabulary, width=32):
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.gru = nn.GRU(width, width, batch_first=True)
        self.out = nn.Linear(width, vocabulary)

    def forward(self, x):
        return self.out(self.gru(self.embed(x))[0])


@fault(
    "The warm-up has no end: the factor (step + 1) / 120 is not held at 1.",
    rules=("learning-rate-too-high",),
    step=120,
    steps=1500,
)
def endless_warmup(record, bad=True):
    torch.manual_seed(111)
    stream = chain(8000, 8, 71)
    model = Gru(8)
    opt = torch.optim.Adam(model.parameters(), lr=1e-2)
    factor = (lambda s: (s + 1) / 120) if bad else (lambda s: min(1.0, (s + 1) / 120))
    schedule = torch.optim.lr_scheduler.LambdaLR(opt, factor)
    recorder = record(model, opt, token_loss)
    g = torch.Generator().manual_seed(1)
    for step in range(1500):
        xb, yb = windows(stream, 16, 12, g)
        opt.zero_grad()
        loss = token_loss(model(xb), yb)
        loss.backward()
        opt.step()
        schedule.step()
        recorder.step(loss.item(), (xb, yb))


class Tagger(nn.Module):
    """Gives each place of a sequence one of three classes."""

    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Conv1d(4, 32, 5, padding=2), nn.ReLU(), nn.Conv1d(32, 32, 5, padding=2), nn.ReLU())
        self.head = nn.Conv1d(32, 3, 1)

    def forward(self, x):
        return self.head(self.encoder(x))


@fault(
    "At step 307 averaged weights are put into the encoder and its own are put back with assign=True: new tensors that the optimizer does not hold.",
    rules=("no-gradient", "gradients-not-cleared"),
    layers=("encoder",),
    step=307,
    steps=1600,
)
def assigned_weights(record, bad=True):
    torch.manual_seed(112)
    model = Tagger()
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    loss_fn = nn.CrossEntropyLoss()
    recorder = record(model, opt, loss_fn)
    kernel = torch.randn(3, 4, 7)
    second = torch.randn(3, 3, 3)
    average = {k: v.clone() for k, v in model.encoder.state_dict().items()}
    for step in range(1600):
        if step == 307:
            saved = {k: v.clone() for k, v in model.encoder.state_dict().items()}
            model.encoder.load_state_dict(average)
            with torch.no_grad():
                loss_fn(model(xb), yb)
            model.encoder.load_state_dict(saved, assign=bad)
        xb = torch.randn(24, 4, 24)
        yb = F.conv1d(torch.tanh(F.conv1d(xb, kernel, padding=3)), second, padding=1).argmax(1)
        loss = loss_fn(model(xb), yb)
        opt.zero_grad()
        loss.backward()
        opt.step()
        for k, v in model.encoder.state_dict().items():
            average[k].lerp_(v, 0.05)
        recorder.step(loss.item(), (xb, yb))


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, x):
        b, t, w = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, t, 3, 2, w // 2).permute(2, 0, 3, 1, 4)
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(a.transpose(1, 2).reshape(b, t, w))
        return x + self.mlp(self.norm2(x))


class Small(nn.Module):
    def __init__(self, vocabulary, length, width=32, blocks=1):
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.place = nn.Parameter(0.02 * torch.randn(length, width))
        self.blocks = nn.Sequential(*[Block(width) for _ in range(blocks)])
        self.norm = nn.LayerNorm(width)
        self.out = nn.Linear(width, vocabulary)

    def forward(self, x):
        return self.out(self.norm(self.blocks(self.embed(x) + self.place)))


@fault(
    "Milestones of epochs, 40, 70 and 90, with a schedule that steps after every batch: from step 90 on the rate is a thousandth.",
    rules=("learning-rate-too-low",),
    step=40,
    steps=1400,
)
def batch_milestones(record, bad=True):
    torch.manual_seed(113)
    stream = chain(9000, 10, 72, 3.0)
    model = Small(10, 12)
    opt = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.MultiStepLR(opt, [40, 70, 90], gamma=0.1)
    recorder = record(model, opt, token_loss)
    g = torch.Generator().manual_seed(3)
    for step in range(1400):
        xb, yb = windows(stream, 16, 12, g)
        loss = token_loss(model(xb), yb)
        opt.zero_grad()
        loss.backward()
        opt.step()
        if bad or step % 100 == 99:
            schedule.step()
        recorder.step(loss.item(), (xb, yb))


@healthy("A small language model with warm-up, cosine and label smoothing: the loss has a high floor.", steps=1500)
def smoothed_language(record):
    torch.manual_seed(211)
    stream = chain(9000, 10, 73, 3.0)
    model = Small(10, 12)
    opt = torch.optim.AdamW(model.parameters(), lr=3e-3, betas=(0.9, 0.98), weight_decay=0.1)
    schedule = torch.optim.lr_scheduler.LambdaLR(opt, lambda s: min(1, (s + 1) / 150) * (0.55 + 0.45 * math.cos(math.pi * s / 1500)))

    def loss_fn(logits, targets):
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), label_smoothing=0.1)

    recorder = record(model, opt, loss_fn)
    g = torch.Generator().manual_seed(4)
    for step in range(1500):
        xb, yb = windows(stream, 16, 12, g)
        loss = loss_fn(model(xb), yb)
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        schedule.step()
        recorder.step(loss.item(), (xb, yb))


@healthy("A recurrent network with a tied embedding, tight gradient clipping and tiny batches.", steps=1500)
def tied_recurrent(record):
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(8, 24)
            self.rnn = nn.GRU(24, 24, batch_first=True)
            self.bias = nn.Parameter(torch.zeros(8))

        def forward(self, x):
            return F.linear(self.rnn(self.embed(x))[0], self.embed.weight, self.bias)

    torch.manual_seed(212)
    stream = chain(8000, 8, 74)
    model = Tied()
    opt = torch.optim.Adam(model.parameters(), lr=3e-3)
    recorder = record(model, opt, token_loss)
    g = torch.Generator().manual_seed(5)
    for step in range(1500):
        xb, yb = windows(stream, 4, 12, g)
        opt.zero_grad()
        loss = token_loss(model(xb), yb)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.25)
        opt.step()
        recorder.step(loss.item(), (xb, yb))


@healthy("Forecasts of a noisy wave with a seasonal level; the loss swings with the season.", steps=1800)
def seasonal_forecast(record):
    torch.manual_seed(213)
    model = nn.Sequential(nn.Conv1d(1, 16, 5, padding=2), nn.ReLU(), nn.Conv1d(16, 16, 5, padding=2), nn.ReLU(), nn.Flatten(), nn.Linear(16 * 20, 4))
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    recorder = record(model, opt, F.smooth_l1_loss)
    for step in range(1800):
        season = 0.15 + 0.12 * math.sin(2 * math.pi * step / 400)
        phase, rate = 6.28 * torch.rand(24, 1), 0.2 + 0.5 * torch.rand(24, 1)
        wave = torch.sin(phase + rate * torch.arange(24.0)) + season * torch.randn(24, 24)
        xb, yb = wave[:, None, :20].contiguous(), wave[:, 20:].contiguous()
        loss = F.smooth_l1_loss(model(xb), yb)
        opt.zero_grad()
        loss.backward()
        opt.step()
        recorder.step(loss.item(), (xb, yb))


@healthy("Copying of an early token, with lengths that grow: a curriculum with small rises.", steps=1600)
def growing_lengths(record):
    torch.manual_seed(214)
    model = Gru(6, 32)
    opt = torch.optim.Adam(model.parameters(), lr=4e-3)
    recorder = record(model, opt, token_loss)
    for step in range(1600):
        length = 4 + step // 250
        xb = torch.randint(0, 6, (16, length))
        yb = torch.cat([xb[:, :2], (xb[:, :-2] + xb[:, 1:-1]) % 6], 1)
        loss = token_loss(model(xb), yb)
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        recorder.step(loss.item(), (xb, yb))
