"""Healthy runs, first half."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from program import healthy
from rnm_data import (
    rnm_digits,
    rnm_ratings,
    rnm_score,
    rnm_seed,
    rnm_signals,
    rnm_tabular,
    rnm_text,
    rnm_waves,
)
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


# ---------------------------------------------------------------- 1 warm restarts
@healthy("Warm restarts lift the loss a little at the begin of each cycle.", steps=1400)
def rnm_restarts(record):
    rnm_seed(101)
    x, y = rnm_tabular(12000, 10, 101, noise=0.2)
    held_x, held_y = x[10000:], y[10000:]
    model = nn.Sequential(nn.Linear(10, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))
    criterion = nn.MSELoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    schedule = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(optimizer, 200, T_mult=2, eta_min=5e-4)
    rec = record(model, optimizer, criterion)
    for step in range(1, 1401):
        rows = torch.randint(10000, (64,))
        optimizer.zero_grad()
        loss = criterion(model(x[rows]), y[rows])
        loss.backward()
        optimizer.step()
        schedule.step()
        rec.step(loss.item(), (x[rows], y[rows]))
        if step % 100 == 0:
            rec.validation(rnm_score(model, criterion, held_x, held_y))


# ---------------------------------------------------------------- 2 BatchNorm, warm-up, steps of the rate
class RnmDigitNet(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(1, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU())
        self.body = nn.Sequential(
            nn.Conv2d(width, 2 * width, 3, padding=1, bias=False),
            nn.BatchNorm2d(2 * width),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(2 * width, 2 * width, 3, padding=1, bias=False),
            nn.BatchNorm2d(2 * width),
            nn.ReLU(),
        )
        self.fc = nn.Linear(2 * width, 10)

    def forward(self, x):
        return self.fc(self.body(self.stem(x)).mean((2, 3)))


@healthy("The loss falls at once when the rate drops by ten, after a linear warm-up.", steps=1120)
def rnm_step_decay(record):
    rnm_seed(102)
    (x, y), (held_x, held_y) = rnm_digits(102)
    model = RnmDigitNet()
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.06, momentum=0.9, weight_decay=5e-4)

    def factor(step):
        return min(1.0, (step + 1) / 100) * (1.0 if step < 560 else 0.1 if step < 840 else 0.01)

    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, factor)
    rec = record(model, optimizer, criterion)
    loader = DataLoader(TensorDataset(x, y), batch_size=50, shuffle=True, drop_last=True)  # 28 batches
    for _ in range(40):
        model.train()
        for batch, target in loader:
            batch = batch + 0.6 * torch.randn_like(batch)
            optimizer.zero_grad()
            loss = criterion(model(batch), target)
            loss.backward()
            optimizer.step()
            schedule.step()
            rec.step(loss.item(), (batch, target))
        rec.validation(rnm_score(model, criterion, held_x, held_y))


# ---------------------------------------------------------------- 3 LSTM with clipping
class RnmLstm(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(1, 32, 2, batch_first=True, dropout=0.1)
        self.out = nn.Linear(32, 1)

    def forward(self, x):
        return self.out(self.lstm(x)[0])


@healthy("Gradients are clipped in most early steps; a plateau at the noise.", steps=1200)
def rnm_lstm_clipped(record):
    rnm_seed(103)
    x, y = rnm_waves(4000, 24, 103, noise=0.15)
    held_x, held_y = rnm_waves(400, 24, 104, noise=0.15)
    model = RnmLstm()
    criterion = nn.SmoothL1Loss()
    optimizer = torch.optim.Adam(model.parameters(), lr=4e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 1200)
    rec = record(model, optimizer, criterion)
    loader = DataLoader(TensorDataset(x, y), batch_size=40, shuffle=True)  # 100 batches
    for _ in range(12):
        model.train()
        for batch, target in loader:
            optimizer.zero_grad()
            loss = criterion(model(batch), target)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            optimizer.step()
            schedule.step()
            rec.step(loss.item(), (batch, target))
        rec.validation(rnm_score(model, criterion, held_x, held_y))


# ---------------------------------------------------------------- 4 GRU tagger, RMSprop
class RnmTagger(nn.Module):
    def __init__(self, vocabulary=20):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, 16)
        self.gru = nn.GRU(16, 24, batch_first=True, bidirectional=True)
        self.out = nn.Linear(48, 3)

    def forward(self, tokens):
        return self.out(self.gru(self.embedding(tokens))[0]).transpose(1, 2)


@healthy("RMSprop with a rate that falls exponentially; small batches of tokens.", steps=1250)
def rnm_tagger(record):
    rnm_seed(104)

    def make(count):
        tokens = torch.randint(20, (count, 16))
        shifted = F.pad(tokens, (1, 1), value=0)
        before, after = shifted[:, :-2], shifted[:, 2:]
        return tokens, torch.where(tokens > before, torch.where(tokens > after, 2, 1), 0)

    held_x, held_y = make(500)
    model = RnmTagger()
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.RMSprop(model.parameters(), lr=2e-3, alpha=0.98)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.8)
    rec = record(model, optimizer, criterion)
    for step in range(1, 1251):
        x, y = make(16)
        optimizer.zero_grad()
        loss = criterion(model(x), y)
        loss.backward()
        optimizer.step()
        rec.step(loss.item(), (x, y))
        if step % 125 == 0:
            rec.validation(rnm_score(model, criterion, held_x, held_y))
            schedule.step()


# ---------------------------------------------------------------- 5 language model, tied weights
class RnmLanguageModel(nn.Module):
    def __init__(self, vocabulary=16, width=32, length=24):
        super().__init__()
        self.token = nn.Embedding(vocabulary, width)
        self.place = nn.Embedding(length, width)
        nn.init.normal_(self.token.weight, std=0.05)
        nn.init.normal_(self.place.weight, std=0.05)
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, 0.0, "gelu", batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.token.weight

    def forward(self, tokens):
        size = tokens.shape[1]
        mask = torch.full((size, size), float("-inf")).triu(1)
        h = self.token(tokens) + self.place(torch.arange(size))
        return self.head(self.norm(self.blocks(h, mask=mask)))


@healthy("Tied weights, a warm-up, a plateau before the second token back is used.", steps=1500)
def rnm_language_model(record):
    rnm_seed(105)
    text = rnm_text(6000, 25, 16, 105)
    held = rnm_text(300, 25, 16, 106)
    model = RnmLanguageModel()

    def criterion(logits, target):
        return F.cross_entropy(logits.flatten(0, 1), target.flatten())

    decay = [p for p in model.parameters() if p.ndim > 1]
    rest = [p for p in model.parameters() if p.ndim < 2]
    optimizer = torch.optim.AdamW(
        [{"params": decay, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}], lr=3e-3, betas=(0.9, 0.95)
    )
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, 3e-3, total_steps=1500, pct_start=0.1, cycle_momentum=False
    )
    rec = record(model, optimizer, criterion)
    for step in range(1, 1501):
        rows = torch.randint(len(text), (16,))
        x, y = text[rows, :-1], text[rows, 1:]
        optimizer.zero_grad()
        loss = criterion(model(x), y)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        rec.step(loss.item(), (x, y))
        if step % 100 == 0:
            rec.validation(rnm_score(model, criterion, held[:, :-1], held[:, 1:]))


# ---------------------------------------------------------------- 6 VAE, annealed KL
class RnmVae(nn.Module):
    def __init__(self, latent=6):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(64, 96), nn.ReLU(), nn.Linear(96, 2 * latent))
        self.decoder = nn.Sequential(nn.Linear(latent, 96), nn.ReLU(), nn.Linear(96, 64))

    def forward(self, x):
        mean, log_variance = self.encoder(x).chunk(2, 1)
        z = mean + torch.randn_like(mean) * (0.5 * log_variance).exp() if self.training else mean
        return self.decoder(z), mean, log_variance


@healthy("The weight of the KL term is annealed in, so that the loss rises for a while.", steps=1500)
def rnm_vae(record):
    rnm_seed(106)
    (x, _), (held, _) = rnm_digits(106)
    x, held = x.flatten(1), held.flatten(1)
    model = RnmVae()
    annealed = {"beta": 0.0}

    def elbo(outputs, target):
        image, mean, log_variance = outputs
        kl = -0.5 * (1 + log_variance - mean.pow(2) - log_variance.exp()).sum(1).mean()
        return F.mse_loss(image, target) + annealed["beta"] * kl

    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    rec = record(model, optimizer, elbo)
    loader = DataLoader(TensorDataset(x), batch_size=28, shuffle=True)  # 50 batches
    step = 0
    for _ in range(30):
        model.train()
        for (batch,) in loader:
            step += 1
            annealed["beta"] = 0.01 * min(1.0, max(0.0, (step - 200) / 500))
            optimizer.zero_grad()
            loss = elbo(model(batch), batch)
            loss.backward()
            optimizer.step()
            rec.step(loss.item(), (batch, batch))
        model.eval()
        with torch.no_grad():
            rec.validation(F.mse_loss(model(held)[0], held).item())


# ---------------------------------------------------------------- 7 strong dropout, few positives
@healthy("Half of the units dropped; one example in eight is positive and weighs more; batches of 16.", steps=1600)
def rnm_dropout_rare(record):
    rnm_seed(107)
    x, score = rnm_tabular(14000, 12, 107, noise=0.3, sharp=1.0)
    y = (score > 1.2).float()
    held_x, held_y = x[12000:], y[12000:]
    model = nn.Sequential(
        nn.Linear(12, 128), nn.ReLU(), nn.Dropout(0.5), nn.Linear(128, 64), nn.ReLU(), nn.Dropout(0.5), nn.Linear(64, 1)
    )
    criterion = nn.BCEWithLogitsLoss(pos_weight=torch.tensor([4.0]))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=1e-2)
    rec = record(model, optimizer, criterion)
    for step in range(1, 1601):
        rows = torch.randint(12000, (16,))
        optimizer.zero_grad()
        loss = criterion(model(x[rows]), y[rows])
        loss.backward()
        optimizer.step()
        rec.step(loss.item(), (x[rows], y[rows]))
        if step % 100 == 0:
            rec.validation(rnm_score(model, criterion, held_x, held_y))


# ---------------------------------------------------------------- 8 factorisation, sparse rows
class RnmFactors(nn.Module):
    def __init__(self, users=120, items=80, width=6):
        super().__init__()
        self.user, self.item = nn.Embedding(users, width), nn.Embedding(items, width)
        self.user_bias, self.item_bias = nn.Embedding(users, 1), nn.Embedding(items, 1)
        for table in (self.user, self.item):
            nn.init.normal_(table.weight, std=0.3)
        for table in (self.user_bias, self.item_bias):
            nn.init.zeros_(table.weight)

    def forward(self, pair):
        u, i = pair.unbind(1)
        return (self.user(u) * self.item(i)).sum(1) + (self.user_bias(u) + self.item_bias(i)).squeeze(1)


@healthy("Most rows of the embeddings get no gradient in a step; Adagrad; an epoch of many batches.", steps=1872)
def rnm_factors(record):
    rnm_seed(108)
    x, y = rnm_ratings(40000, 120, 80, 108)
    held_x, held_y = rnm_ratings(3000, 120, 80, 109)
    model = RnmFactors()
    criterion = nn.MSELoss()
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.15)
    rec = record(model, optimizer, criterion)
    loader = DataLoader(TensorDataset(x, y), batch_size=128, shuffle=True, drop_last=True)  # 312 batches
    step = 0
    for _ in range(6):
        for batch, target in loader:
            step += 1
            model.train()
            optimizer.zero_grad()
            loss = criterion(model(batch), target)
            loss.backward()
            optimizer.step()
            rec.step(loss.item(), (batch, target))
            if step % 104 == 0:
                rec.validation(rnm_score(model, criterion, held_x, held_y))


# ---------------------------------------------------------------- 9 contrastive, two views
class RnmProjector(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Conv1d(1, 16, 7, stride=2, padding=3), nn.ReLU(), nn.Conv1d(16, 32, 5, stride=2, padding=2), nn.ReLU()
        )
        self.projector = nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 16))

    def forward(self, x):
        return F.normalize(self.projector(self.encoder(x).mean(2)), dim=1)


@healthy("Two noisy views and a loss over the pairs of a batch, without labels.", steps=1100)
def rnm_two_views(record):
    rnm_seed(109)
    x, _ = rnm_signals(5000, 64, 109, classes=40, noise=0.2)
    held, _ = rnm_signals(64, 64, 110, classes=40, noise=0.2)

    def views(signals):
        both = []
        for _ in range(2):
            scale = 0.8 + 0.4 * torch.rand(len(signals), 1, 1)
            both.append(signals.roll(int(torch.randint(-6, 7, ())), 2) * scale + 0.1 * torch.randn_like(signals))
        return torch.cat(both), torch.arange(len(signals)).repeat(2)

    def criterion(z, partner):
        count = len(z)
        likeness = (z @ z.T / 0.2).masked_fill(torch.eye(count, dtype=torch.bool), -1e9)
        return F.cross_entropy(likeness, torch.arange(count).roll(count // 2))

    model = RnmProjector()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=1e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 1100)
    rec = record(model, optimizer, criterion)
    held_views = views(held)
    for step in range(1, 1101):
        batch, partner = views(x[torch.randint(len(x), (64,))])
        optimizer.zero_grad()
        loss = criterion(model(batch), partner)
        loss.backward()
        optimizer.step()
        schedule.step()
        rec.step(loss.item(), (batch, partner))
        if step % 100 == 0:
            rec.validation(rnm_score(model, criterion, *held_views))
