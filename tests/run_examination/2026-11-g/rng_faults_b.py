"""Faults of recorded runs: data, terms and limits."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from program import fault


@fault(
    "One batch of a regression comes from a file in other units, sixty times too large; the network is thrown off and "
    "needs many steps to come back",
    rules=("loss-spike", "unscaled-target"),
    step=620,
    steps=1200,
)
def rng_other_units(record, broken=True):
    torch.manual_seed(51)
    points = torch.randn(5000, 10)
    mix = torch.randn(10, 3) / 3
    values = (torch.sin(points @ mix).sum(1, keepdim=True) + 0.5 * points[:, :1]) / 1.2 + 0.1 * torch.randn(5000, 1)
    train_points, train_values, held_points, held_values = points[:4500], values[:4500], points[4500:], values[4500:]
    model = nn.Sequential(nn.Linear(10, 48), nn.GELU(), nn.Linear(48, 48), nn.GELU(), nn.Linear(48, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    recorder = record(model, optimizer, F.mse_loss)
    for step in range(1200):
        rows = torch.randint(4500, (32,))
        inputs, targets = train_points[rows], train_values[rows]
        if broken and step == 620:
            targets = targets * 60
        optimizer.zero_grad()
        loss = F.mse_loss(model(inputs), targets)
        loss.backward()
        optimizer.step()
        recorder.step(loss.item(), (inputs, targets))
        if step % 60 == 59:
            with torch.no_grad():
                recorder.validation(F.mse_loss(model(held_points), held_values).item())


@fault(
    "A cosine schedule of weight decay ends at 30 in place of 0.3: from the middle on, decay takes back more than the "
    "gradients give",
    rules=("weight-decay-dominates", "rank-collapse"),
    step=500,
    steps=1200,
)
def rng_decay_schedule(record, broken=True):
    torch.manual_seed(52)
    centres = torch.randn(8, 2, 16)

    def draw(count):
        labels = torch.randint(8, (count,))
        return centres[labels, torch.randint(2, (count,))] + 0.6 * torch.randn(count, 16), labels

    points, labels = draw(5000)
    held_points, held_labels = draw(800)
    model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 8))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.04)
    begin, end, hold = 0.04, 30.0 if broken else 0.3, 400
    recorder = record(model, optimizer, F.cross_entropy)
    for step in range(1200):
        progress = max(0, step - hold) / (1200 - hold)
        decay = end + (begin - end) * 0.5 * (1 + math.cos(math.pi * progress))
        for group in optimizer.param_groups:
            group["weight_decay"] = decay
        rows = torch.randint(5000, (48,))
        inputs, targets = points[rows], labels[rows]
        optimizer.zero_grad()
        loss = F.cross_entropy(model(inputs), targets)
        loss.backward()
        optimizer.step()
        recorder.step(loss.item(), (inputs, targets))
        if step % 60 == 59:
            with torch.no_grad():
                recorder.validation(F.cross_entropy(model(held_points), held_labels).item())


class _Ratings(nn.Module):
    def __init__(self, words: int, width: int, classes: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(words, width)
        self.hidden = nn.Linear(width, 32)
        self.head = nn.Linear(32, classes)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(torch.relu(self.hidden(self.embed(tokens).mean(1) * 3)))


@fault(
    "After two thirds of the run the loader reaches a shard that another vendor labelled; half of its labels are random",
    rules=("data-changed", "labels-unrelated"),
    step=700,
    steps=1100,
)
def rng_other_vendor(record, broken=True):
    torch.manual_seed(53)
    mood = torch.randint(5, (300,))

    def draw(count):
        labels = torch.randint(5, (count,))
        tokens = torch.randint(300, (count, 10))
        own = torch.stack([(mood == kind).nonzero()[:, 0][torch.randint(int((mood == kind).sum()), (10,))] for kind in labels])
        return torch.where(torch.rand(count, 10) < 0.5, own, tokens), labels

    tokens, labels = draw(6000)
    held_tokens, held_labels = draw(600)
    model = _Ratings(300, 24, 5)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    recorder = record(model, optimizer, F.cross_entropy)
    for step in range(1100):
        rows = torch.randint(6000, (48,))
        inputs, targets = tokens[rows], labels[rows]
        if broken and step >= 700:
            targets = torch.where(torch.rand(48) < 0.5, torch.randint(5, (48,)), targets)
        loss = F.cross_entropy(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        recorder.step(loss.item(), (inputs, targets))
        if step % 50 == 49:
            with torch.no_grad():
                recorder.validation(F.cross_entropy(model(held_tokens), held_labels).item())


@fault(
    "After its first epochs a loop takes next(iter(loader)) of a loader whose generator is seeded anew each time, "
    "so every step sees the same first batch",
    rules=("repeated-batches", "overfitting"),
    step=375,
    steps=900,
)
def rng_first_batch(record, broken=True):
    torch.manual_seed(54)
    points = torch.randn(4600, 14)
    teacher = nn.Sequential(nn.Linear(14, 24), nn.Tanh(), nn.Linear(24, 4))
    with torch.no_grad():
        labels = (teacher(points) * 6 + 0.4 * torch.randn(4600, 4)).argmax(1)
    data = TensorDataset(points[:4000], labels[:4000])
    held_points, held_labels = points[4000:], labels[4000:]
    model = nn.Sequential(nn.Linear(14, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 4))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    recorder = record(model, optimizer, F.cross_entropy)
    done = 0

    def train_on(inputs, targets):
        nonlocal done
        optimizer.zero_grad()
        loss = F.cross_entropy(model(inputs), targets)
        loss.backward()
        optimizer.step()
        recorder.step(loss.item(), (inputs, targets))
        done += 1
        if done % 45 == 0:
            with torch.no_grad():
                recorder.validation(F.cross_entropy(model(held_points), held_labels).item())

    for _ in range(3):
        for inputs, targets in DataLoader(data, batch_size=32, shuffle=True):
            train_on(inputs, targets)
    while done < 900:  # by steps from here on
        seed = 7 if broken else done
        loader = DataLoader(data, batch_size=32, shuffle=True, generator=torch.Generator().manual_seed(seed))
        train_on(*next(iter(loader)))


class _Signals(nn.Module):
    def __init__(self, classes: int) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv1d(2, 12, 5, padding=2), nn.ReLU(), nn.MaxPool1d(2), nn.Conv1d(12, 16, 5, padding=2), nn.ReLU()
        )
        self.head = nn.Linear(16, classes)

    def forward(self, waves: torch.Tensor) -> torch.Tensor:
        return self.head(self.net(waves).mean(2))


@fault(
    "From the second phase on, clip_grad_norm_ is called with the config's epsilon (1e-7) in place of its norm: "
    "steps are next to nothing and the loss stays where it is",
    rules=("learning-rate-too-low", "lost-updates", "vanishing-gradient", "loss-not-decreasing", "no-gradient"),
    step=150,
    steps=1000,
)
def rng_clip_epsilon(record, broken=True):
    torch.manual_seed(55)
    time = torch.arange(32) / 32

    def draw(count):
        labels = torch.randint(5, (count,))
        pitch = (labels + 2).unsqueeze(1) * 1.3
        phase = 6.28 * torch.rand(count, 1)
        first = torch.sin(6.28 * pitch * time + phase)
        second = torch.cos(6.28 * pitch * time * 0.5 + phase)
        return torch.stack([first, second], 1) * 1.4 + 2.0 * torch.randn(count, 2, 32), labels

    waves, labels = draw(4000)
    held_waves, held_labels = draw(500)
    model = _Signals(5)
    config = {"max_norm": 1.0, "eps": 1e-7}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    recorder = record(model, optimizer, F.cross_entropy)
    for step in range(1000):
        rows = torch.randint(4000, (32,))
        inputs, targets = waves[rows], labels[rows]
        optimizer.zero_grad()
        loss = F.cross_entropy(model(inputs), targets)
        loss.backward()
        limit = config["max_norm"] if step < 150 or not broken else config["eps"]
        nn.utils.clip_grad_norm_(model.parameters(), limit)
        optimizer.step()
        recorder.step(loss.item(), (inputs, targets))
        if step % 50 == 49:
            with torch.no_grad():
                recorder.validation(F.cross_entropy(model(held_waves), held_labels).item())


@fault(
    "A new version of the cache divides images that are scaled already by 255 once more: from step 560 on inputs are "
    "close to one and the same value",
    rules=("data-changed", "unscaled-input"),
    step=560,
    steps=1000,
)
def rng_scaled_twice(record, broken=True):
    torch.manual_seed(56)
    patterns = torch.randn(8, 8, 8)

    def draw(count):
        labels = torch.randint(8, (count,))
        images = patterns[labels] + 2.2 * torch.randn(count, 8, 8)
        return images.unsqueeze(1), labels

    images, labels = draw(12000)
    held_images, held_labels = draw(500)
    model = nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.AvgPool2d(2), nn.Conv2d(8, 12, 3, padding=1), nn.ReLU(),
        nn.Flatten(), nn.Linear(192, 8),
    )  # fmt: skip
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    recorder = record(model, optimizer, F.cross_entropy)
    for step in range(1000):
        rows = torch.randint(12000, (32,))
        inputs, targets = images[rows], labels[rows]
        if broken and step >= 560:
            inputs = inputs / 255
        optimizer.zero_grad()
        loss = F.cross_entropy(model(inputs), targets)
        loss.backward()
        optimizer.step()
        recorder.step(loss.item(), (inputs, targets))
        if step % 50 == 49:
            with torch.no_grad():
                recorder.validation(F.cross_entropy(model(held_images), held_labels).item())


class _Vae(nn.Module):
    def __init__(self, features: int, latent: int) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(features, 48), nn.ReLU())
        self.mean = nn.Linear(48, latent)
        self.spread = nn.Linear(48, latent)
        self.decoder = nn.Sequential(nn.Linear(latent, 48), nn.ReLU(), nn.Linear(48, features))

    def forward(self, inputs: torch.Tensor):
        hidden = self.encoder(inputs)
        mean, spread = self.mean(hidden), self.spread(hidden)
        code = mean + torch.randn_like(mean) * torch.exp(0.5 * spread)
        return self.decoder(code), mean, spread


@fault(
    "The weight of the KL term rises per step in place of per epoch and has no limit; it outgrows the reconstruction, "
    "and the codes of the autoencoder say nothing any more",
    rules=("term-dominates", "rank-collapse"),
    step=100,
    steps=1400,
)
def rng_beta_grows(record, broken=True):
    torch.manual_seed(57)
    mix = torch.randn(4, 24)
    points = torch.tanh(torch.randn(5000, 4) @ mix * 0.6) * 1.4 + 0.1 * torch.randn(5000, 24)
    train, held = points[:4500], points[4500:]
    model = _Vae(24, 4)
    weight = {"beta": 0.0}

    def loss_function(outputs, targets):
        rebuilt, mean, spread = outputs
        error = ((rebuilt - targets) ** 2).sum(1).mean()
        divergence = 0.5 * (mean**2 + spread.exp() - 1 - spread).sum(1).mean()
        return error + weight["beta"] * divergence

    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    recorder = record(model, optimizer, loss_function)
    for step in range(1400):
        weight["beta"] = step / 100 if broken else min(1.0, step / 300)
        inputs = train[torch.randint(4500, (48,))]
        optimizer.zero_grad()
        loss = loss_function(model(inputs), inputs)
        loss.backward()
        optimizer.step()
        recorder.step(loss.item(), (inputs, inputs))
        if step % 70 == 69:
            model.eval()
            with torch.no_grad():
                recorder.validation(((model(held)[0] - held) ** 2).sum(1).mean().item())
            model.train()
