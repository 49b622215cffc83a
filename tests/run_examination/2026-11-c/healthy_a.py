"""Healthy runs of the ordinary kind."""

from __future__ import annotations

import torch
from program import healthy
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset


@healthy("A regression with Adam on a table", steps=1200)
def table_regression_adam(record):
    torch.manual_seed(101)
    x = torch.randn(20000, 12)
    y = (x[:, 0] * x[:, 1] + torch.sin(2 * x[:, 2]) + 0.5 * x[:, 3:6].sum(1) + 0.2 * torch.randn(20000))[:, None]
    y = (y - y.mean()) / y.std()
    x_val, y_val = x[18000:], y[18000:]
    loader = DataLoader(TensorDataset(x[:18000], y[:18000]), batch_size=120, shuffle=True)
    model = nn.Sequential(nn.Linear(12, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    criterion = nn.MSELoss()
    recorder = record(model, optimizer, criterion)
    for _ in range(8):
        for inputs, targets in loader:
            optimizer.zero_grad()
            loss = criterion(model(inputs), targets)
            loss.backward()
            optimizer.step()
            recorder.step(loss.item(), (inputs, targets))
        with torch.no_grad():
            recorder.validation(criterion(model(x_val), y_val).item())


@healthy("A convolutional network with BatchNorm, SGD and a cosine schedule", steps=1200)
def cnn_batchnorm_sgd_cosine(record):
    torch.manual_seed(102)
    prototypes = F.interpolate(torch.randn(6, 3, 5, 5), size=(14, 14), mode="bilinear")

    def sample(n):
        labels = torch.randint(0, 6, (n,))
        images = torch.roll(prototypes[labels], int(torch.randint(-2, 3, ())), 3) + 3.5 * torch.randn(n, 3, 14, 14)
        return images / 3.6, labels

    net = nn.Sequential(
        nn.Conv2d(3, 12, 3, padding=1), nn.BatchNorm2d(12), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(12, 24, 3, padding=1), nn.BatchNorm2d(24), nn.ReLU(), nn.AdaptiveAvgPool2d(3),
        nn.Flatten(), nn.Linear(216, 6),
    )  # fmt: skip
    opt = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(opt, T_max=1200)
    ce = nn.CrossEntropyLoss()
    held_out = sample(400)
    rec = record(net, opt, ce)
    for it in range(1, 1201):
        net.train()
        images, labels = sample(48)
        loss = ce(net(images), labels)
        opt.zero_grad()
        loss.backward()
        opt.step()
        schedule.step()
        rec.step(loss, (images, labels))
        if it % 150 == 0:
            net.eval()
            with torch.no_grad():
                rec.validation(ce(net(held_out[0]), held_out[1]).item())


class _Tracker(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(2, 48, batch_first=True)
        self.out = nn.Linear(48, 1)

    def forward(self, x):
        return self.out(self.lstm(x)[0])[..., 0]


@healthy("An LSTM that keeps a running, gated sum; clipped at 1 as usual", steps=1300)
def lstm_gated_sum(record):
    torch.manual_seed(103)
    model = _Tracker()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    loss_fn = nn.MSELoss()
    recorder = record(model, optimizer, loss_fn)
    for _ in range(1300):
        values = torch.randn(32, 16)
        gates = (torch.rand(32, 16) < 0.4).float()
        x = torch.stack([values, 2 * gates - 1], -1)
        y = (values * gates).cumsum(1) / 2
        optimizer.zero_grad()
        loss = loss_fn(model(x), y)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        recorder.step(loss.item(), (x, y))


class _CausalLM(nn.Module):
    def __init__(self, vocabulary=16, length=16, width=48):
        super().__init__()
        self.tok = nn.Embedding(vocabulary, width)
        self.pos = nn.Embedding(length, width)
        block = nn.TransformerEncoderLayer(width, 4, 96, dropout=0.0, batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(block, 2, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(width)
        self.lm_head = nn.Linear(width, vocabulary)

    def forward(self, ids):
        n = ids.shape[1]
        mask = torch.triu(torch.full((n, n), float("-inf")), 1)
        h = self.tok(ids) + self.pos(torch.arange(n))
        return self.lm_head(self.norm(self.blocks(h, mask=mask, is_causal=True)))


def _next_token_loss(logits, targets):
    return F.cross_entropy(logits.transpose(1, 2), targets)


@healthy("A small causal transformer on sequences of a noisy recurrence, AdamW with warm-up", steps=1000)
def transformer_next_token(record):
    torch.manual_seed(104)
    model = _CausalLM()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.01)
    warmup = torch.optim.lr_scheduler.LinearLR(optimizer, 0.05, 1.0, total_iters=100)
    recorder = record(model, optimizer, _next_token_loss)
    n = 24000
    corpus = torch.empty(n, 17, dtype=torch.long)
    corpus[:, :2] = torch.randint(0, 16, (n, 2))
    for i in range(2, 17):
        noise = torch.where(torch.rand(n) < 0.1, torch.randint(0, 16, (n,)), torch.zeros(n, dtype=torch.long))
        corpus[:, i] = (corpus[:, i - 1] + 3 * corpus[:, i - 2] + noise) % 16
    for ids in corpus.split(24):
        x, y = ids[:, :-1], ids[:, 1:]
        optimizer.zero_grad()
        loss = _next_token_loss(model(x), y)
        loss.backward()
        optimizer.step()
        warmup.step()
        recorder.step(loss.item(), (x, y))


@healthy("A convolutional autoencoder", steps=1000)
def conv_autoencoder(record):
    torch.manual_seed(105)
    grid = torch.stack(torch.meshgrid(torch.linspace(-1, 1, 16), torch.linspace(-1, 1, 16), indexing="ij"))

    def blobs(n):
        centre = 1.2 * torch.rand(n, 2, 1, 1) - 0.6
        radius = 0.2 + 0.3 * torch.rand(n, 1, 1)
        image = torch.exp(-((grid - centre) ** 2).sum(1) / (2 * radius**2))
        return ((image - 0.3) / 0.3)[:, None]

    model = nn.Sequential(
        nn.Conv2d(1, 12, 4, stride=2, padding=1), nn.LeakyReLU(0.1),
        nn.Conv2d(12, 16, 4, stride=2, padding=1), nn.LeakyReLU(0.1),
        nn.Flatten(), nn.Linear(256, 12), nn.Linear(12, 256), nn.LeakyReLU(0.1), nn.Unflatten(1, (16, 4, 4)),
        nn.ConvTranspose2d(16, 12, 4, stride=2, padding=1), nn.LeakyReLU(0.1),
        nn.ConvTranspose2d(12, 1, 4, stride=2, padding=1),
    )  # fmt: skip
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    recorder = record(model, optimizer, F.mse_loss)
    held_out = blobs(200)
    for step in range(1000):
        x = blobs(32)
        loss = F.mse_loss(model(x), x)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        recorder.step(loss.item(), (x, x))
        if step % 100 == 99:
            with torch.no_grad():
                recorder.validation(F.mse_loss(model(held_out), held_out).item())


class _Intent(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(50, 24)
        self.gru = nn.GRU(24, 48, batch_first=True)
        self.head = nn.Linear(48, 4)

    def forward(self, x):
        return self.head(self.gru(self.embed(x))[1][-1])


@healthy("A GRU that classifies sentences, RMSprop and step decay, four passes over the data", steps=1000)
def gru_sentences_rmsprop(record):
    torch.manual_seed(106)
    x = torch.randint(0, 50, (8000, 12))
    y = ((x < 12).sum(1) > 2).long() + 2 * ((x > 37).sum(1) > 2).long()
    data = TensorDataset(x, y)
    train, held_out = torch.utils.data.random_split(data, [7500, 500])
    model = _Intent()
    optimizer = torch.optim.RMSprop(model.parameters(), lr=2e-3)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.6)
    criterion = nn.CrossEntropyLoss()
    recorder = record(model, optimizer, criterion)
    x_val, y_val = held_out[:]
    for _ in range(4):
        for batch in DataLoader(train, batch_size=30, shuffle=True):
            optimizer.zero_grad()
            loss = criterion(model(batch[0]), batch[1])
            loss.backward()
            optimizer.step()
            recorder.step(loss.item(), batch)
        schedule.step()
        with torch.no_grad():
            recorder.validation(criterion(model(x_val), y_val).item())


class _WideAndDeep(nn.Module):
    def __init__(self):
        super().__init__()
        self.categories = nn.ModuleList([nn.Embedding(20, 8) for _ in range(3)])
        self.wide = nn.Linear(10, 1)
        self.deep = nn.Sequential(
            nn.Linear(34, 128), nn.LayerNorm(128), nn.GELU(), nn.Dropout(0.1), nn.Linear(128, 64), nn.GELU(), nn.Linear(64, 1)
        )

    def forward(self, inputs):
        numbers, codes = inputs[:, :10], inputs[:, 10:].long()
        embedded = [table(codes[:, i]) for i, table in enumerate(self.categories)]
        return (self.wide(numbers) + self.deep(torch.cat([numbers, *embedded], 1)))[:, 0]


@healthy("A wide-and-deep model for clicks, with dropout, AdamW and BCE", steps=1000)
def wide_and_deep_clicks(record):
    torch.manual_seed(107)
    effects = torch.randn(3, 20)

    def impressions(n):
        numbers, codes = torch.randn(n, 10), torch.randint(0, 20, (n, 3))
        score = 1.5 * numbers[:, 0] - numbers[:, 1] * numbers[:, 2] + effects[torch.arange(3), codes].sum(1)
        return torch.cat([numbers, codes.float()], 1), (torch.rand(n) < torch.sigmoid(1.5 * score)).float()

    model = _WideAndDeep()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.02)
    bce = nn.BCEWithLogitsLoss()
    recorder = record(model, optimizer, bce)
    x_val, y_val = impressions(2000)
    for step in range(1, 1001):
        model.train()
        x, y = impressions(128)
        optimizer.zero_grad(set_to_none=True)
        loss = bce(model(x), y)
        loss.backward()
        optimizer.step()
        recorder.step(loss.detach(), (x, y))
        if step % 100 == 0:
            model.eval()
            with torch.no_grad():
                recorder.validation(bce(model(x_val), y_val).item())
