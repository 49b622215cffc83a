"""Healthy runs: ordinary ones."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from program import healthy


@healthy("Ordinary: a classifier of table rows with Adam", steps=1000)
def rng_plain_rows(record):
    torch.manual_seed(81)
    points = torch.randn(7000, 16)
    teacher = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 5))
    with torch.no_grad():
        labels = (teacher(points) * 6 + 0.3 * torch.randn(7000, 5)).argmax(1)
    loader = DataLoader(TensorDataset(points[:6000], labels[:6000]), batch_size=64, shuffle=True, drop_last=True)
    held_points, held_labels = points[6000:], labels[6000:]
    model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 5))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    recorder = record(model, optimizer, F.cross_entropy)
    step = 0
    while step < 1000:
        for inputs, targets in loader:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(inputs), targets)
            loss.backward()
            optimizer.step()
            recorder.step(loss.item(), (inputs, targets))
            step += 1
            if step == 1000:
                break
        model.eval()
        with torch.no_grad():
            recorder.validation(F.cross_entropy(model(held_points), held_labels).item())
        model.train()


@healthy("Ordinary: a convolutional network with BatchNorm, SGD with momentum and two cuts of the rate", steps=1200)
def rng_plain_images(record):
    torch.manual_seed(82)
    patterns = torch.randn(6, 8, 8)

    def draw(count):
        labels = torch.randint(6, (count,))
        shift = torch.randint(0, 8, (count,)).tolist()
        images = torch.stack([patterns[label].roll(by, 1) for label, by in zip(labels.tolist(), shift)])
        return (images + 1.5 * torch.randn(count, 8, 8)).unsqueeze(1), labels

    images, labels = draw(6000)
    held_images, held_labels = draw(600)
    model = nn.Sequential(
        nn.Conv2d(1, 12, 3, padding=1, bias=False), nn.BatchNorm2d(12), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(12, 24, 3, padding=1, bias=False), nn.BatchNorm2d(24), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(96, 6),
    )  # fmt: skip
    optimizer = torch.optim.SGD(model.parameters(), lr=0.03, momentum=0.9, weight_decay=5e-4)
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, [700, 1000], gamma=0.2)
    recorder = record(model, optimizer, F.cross_entropy)
    for step in range(1200):
        model.train()
        rows = torch.randint(6000, (48,))
        inputs, targets = images[rows], labels[rows]
        optimizer.zero_grad()
        loss = F.cross_entropy(model(inputs), targets)
        loss.backward()
        optimizer.step()
        schedule.step()
        recorder.step(loss.item(), (inputs, targets))
        if step % 100 == 99:
            model.eval()
            with torch.no_grad():
                recorder.validation(F.cross_entropy(model(held_images), held_labels).item())


@healthy("Ordinary: regression of standardised prices", steps=1200)
def rng_plain_prices(record):
    torch.manual_seed(83)
    area, age, rooms = torch.rand(5000, 1) * 150 + 30, torch.rand(5000, 1) * 80, torch.randint(1, 7, (5000, 1)).float()
    other = torch.randn(5000, 5)
    price = 3000 * area * (1 - age / 160) + 15000 * rooms + 20000 * other[:, :1] * other[:, 1:2] + 15000 * torch.randn(5000, 1)
    features = torch.cat([area, age, rooms, other], 1)
    features = (features - features[:4400].mean(0)) / features[:4400].std(0)
    price = (price - price[:4400].mean()) / price[:4400].std()
    held_features, held_price = features[4400:], price[4400:]
    model = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=1e-2)
    recorder = record(model, optimizer, F.mse_loss)
    for step in range(1200):
        rows = torch.randint(4400, (64,))
        inputs, targets = features[rows], price[rows]
        optimizer.zero_grad()
        loss = F.mse_loss(model(inputs), targets)
        loss.backward()
        optimizer.step()
        recorder.step(loss.item(), (inputs, targets))
        if step % 100 == 99:
            with torch.no_grad():
                recorder.validation(F.mse_loss(model(held_features), held_price).item())


class _Counter(nn.Module):
    def __init__(self, vocabulary: int, width: int, classes: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.gru = nn.GRU(width, width, batch_first=True)
        self.head = nn.Linear(width, classes)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.gru(self.embed(tokens))[0][:, -1])


@healthy("Ordinary: a GRU that says which of two tokens came last in a sequence, and whether a third one did at all", steps=1000)
def rng_plain_sequences(record):
    torch.manual_seed(84)
    tokens = torch.randint(9, (6000, 10))
    place = torch.arange(10)
    last_a = torch.where(tokens == 0, place, -1).max(1).values
    last_b = torch.where(tokens == 1, place, -1).max(1).values
    labels = (last_a > last_b).long() * 2 + (tokens == 2).any(1).long()
    held_tokens, held_labels = tokens[5400:], labels[5400:]
    model = _Counter(9, 32, 4)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    recorder = record(model, optimizer, F.cross_entropy)
    for step in range(1000):
        rows = torch.randint(5400, (48,))
        inputs, targets = tokens[rows], labels[rows]
        optimizer.zero_grad()
        loss = F.cross_entropy(model(inputs), targets)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        recorder.step(loss.item(), (inputs, targets))
        if step % 100 == 99:
            with torch.no_grad():
                recorder.validation(F.cross_entropy(model(held_tokens), held_labels).item())


class _Tagger(nn.Module):
    def __init__(self, vocabulary: int, length: int, width: int, tags: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.position = nn.Embedding(length, width)
        block = nn.TransformerEncoderLayer(width, 4, 2 * width, dropout=0.1, batch_first=True, activation="gelu")
        self.blocks = nn.TransformerEncoder(block, 1, enable_nested_tensor=False)
        self.head = nn.Linear(width, tags)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.blocks(self.embed(tokens) + self.position(torch.arange(tokens.shape[1]))))


def _tag_loss(logits: torch.Tensor, tags: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(logits.flatten(0, 1), tags.flatten())


@healthy("Ordinary: a tagger with one block of attention, whose tags depend on both neighbours", steps=1200)
def rng_plain_tags(record):
    torch.manual_seed(85)
    tokens = torch.randint(12, (5500, 12))
    left, right = tokens.roll(1, 1), tokens.roll(-1, 1)
    left[:, 0], right[:, -1] = 0, 0
    tags = (left > tokens).long() + 2 * (right % 2)
    held_tokens, held_tags = tokens[5000:], tags[5000:]
    model = _Tagger(12, 12, 32, 4)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.01)
    recorder = record(model, optimizer, _tag_loss)
    for step in range(1200):
        model.train()
        rows = torch.randint(5000, (32,))
        inputs, targets = tokens[rows], tags[rows]
        optimizer.zero_grad()
        loss = _tag_loss(model(inputs), targets)
        loss.backward()
        optimizer.step()
        recorder.step(loss.item(), (inputs, targets))
        if step % 100 == 99:
            model.eval()
            with torch.no_grad():
                recorder.validation(_tag_loss(model(held_tokens), held_tags).item())


@healthy("Ordinary: a denoising autoencoder of short waves", steps=1000)
def rng_plain_waves(record):
    torch.manual_seed(86)
    time = torch.arange(32) / 32 * 6.283
    pitch, phase = torch.rand(5000, 1) * 2 + 1, torch.rand(5000, 1) * 6.283
    clean = torch.sin(pitch * time + phase) * 1.4
    noisy = clean + 0.4 * torch.randn(5000, 32)
    held_noisy, held_clean = noisy[4500:], clean[4500:]
    model = nn.Sequential(
        nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 12), nn.ReLU(), nn.Linear(12, 64), nn.ReLU(), nn.Linear(64, 32)
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    recorder = record(model, optimizer, F.mse_loss)
    for step in range(1000):
        rows = torch.randint(4500, (64,))
        inputs, targets = noisy[rows], clean[rows]
        optimizer.zero_grad()
        loss = F.mse_loss(model(inputs), targets)
        loss.backward()
        optimizer.step()
        recorder.step(loss.item(), (inputs, targets))
        if step % 100 == 99:
            with torch.no_grad():
                recorder.validation(F.mse_loss(model(held_noisy), held_clean).item())


class _Taste(nn.Module):
    def __init__(self, users: int, films: int, width: int) -> None:
        super().__init__()
        self.users = nn.Embedding(users, width)
        self.films = nn.Embedding(films, width)
        self.user_level = nn.Embedding(users, 1)
        self.film_level = nn.Embedding(films, 1)
        for table in (self.users, self.films, self.user_level, self.film_level):
            nn.init.normal_(table.weight, std=0.3)

    def forward(self, pairs: torch.Tensor) -> torch.Tensor:
        user, film = pairs[:, 0], pairs[:, 1]
        match = (self.users(user) * self.films(film)).sum(1)
        return match + self.user_level(user)[:, 0] + self.film_level(film)[:, 0]


@healthy("Ordinary: ratings from embeddings of users and films", steps=1500)
def rng_plain_ratings(record):
    torch.manual_seed(87)
    tastes, traits, level = torch.randn(60, 3), torch.randn(50, 3), torch.randn(50) * 0.5
    pairs = torch.stack([torch.randint(60, (16000,)), torch.randint(50, (16000,))], 1)
    ratings = (tastes[pairs[:, 0]] * traits[pairs[:, 1]]).sum(1) / 1.7 + level[pairs[:, 1]] + 0.3 * torch.randn(16000)
    held_pairs, held_ratings = pairs[15000:], ratings[15000:]
    model = _Taste(60, 50, 6)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3, weight_decay=1e-5)
    recorder = record(model, optimizer, F.mse_loss)
    step = 0
    loader = DataLoader(TensorDataset(pairs[:15000], ratings[:15000]), batch_size=100, shuffle=True)
    for _ in range(10):
        for inputs, targets in loader:
            optimizer.zero_grad()
            loss = F.mse_loss(model(inputs), targets)
            loss.backward()
            optimizer.step()
            recorder.step(loss.item(), (inputs, targets))
            step += 1
        with torch.no_grad():
            recorder.validation(F.mse_loss(model(held_pairs), held_ratings).item())
