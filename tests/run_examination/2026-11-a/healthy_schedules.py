"""Healthy runs whose rates or data move."""

from __future__ import annotations

import math

import data
import torch
import torch.nn.functional as F
from program import Record, healthy
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 3 * width), nn.GELU(), nn.Linear(3 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, t, c = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, t, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).reshape(b, t, c))
        return x + self.mlp(self.norm2(x))


class TinyGPT(nn.Module):
    def __init__(self, width: int = 32, length: int = 24) -> None:
        super().__init__()
        self.tokens = nn.Embedding(len(data.ALPHABET), width)
        self.places = nn.Embedding(length, width)
        self.blocks = nn.ModuleList([Block(width, 2) for _ in range(2)])
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, len(data.ALPHABET), bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.tokens(x) + self.places(torch.arange(x.shape[1]))
        for block in self.blocks:
            h = block(h)
        return self.head(self.norm(h)).transpose(1, 2)


@healthy("Tiny language model, warm-up and cosine to zero, clipping, decay; the rate is near nothing at the end", steps=2000)
def warmup_cosine_gpt(record: Record) -> None:
    torch.manual_seed(101)
    g = torch.Generator().manual_seed(101)
    text, held = data.corpus(60000, 41), data.corpus(5000, 42)
    model = TinyGPT()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, betas=(0.9, 0.95), weight_decay=0.1)

    def rate(step: int) -> float:
        if step < 150:
            return (step + 1) / 150
        return 0.5 * (1 + math.cos(math.pi * (step - 150) / (2000 - 150)))

    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, rate)
    recorder = record(model, optimizer, F.cross_entropy)
    held_inputs, held_targets = data.windows(held, 96, 24, g)
    value = 0.0
    for step in range(2000):
        inputs, targets = data.windows(text, 8, 24, g)
        loss = F.cross_entropy(model(inputs), targets)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        recorder.step(loss.item(), (inputs, targets))
        if step % 200 == 199:
            model.eval()
            with torch.no_grad():
                value = F.cross_entropy(model(held_inputs), held_targets).item()
            model.train()
            recorder.validation(value)
    data.SCORES["warmup_cosine_gpt"] = value


@healthy("One cycle up to a high rate with BatchNorm; the loss stalls and wavers at the top of the cycle", steps=2000)
def one_cycle_cnn(record: Record) -> None:
    torch.manual_seed(102)
    images, labels = data.digits(6400, 43)
    held, held_labels = data.digits(600, 44)
    loader = DataLoader(TensorDataset(images, labels), batch_size=32, shuffle=True)
    model = nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU(),
        nn.Conv2d(8, 16, 3, padding=1, stride=2, bias=False), nn.BatchNorm2d(16), nn.ReLU(),
        nn.Flatten(), nn.Linear(16 * 36, 10),
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=5e-4)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.2, total_steps=2000)
    criterion = nn.CrossEntropyLoss()
    recorder = record(model, optimizer, criterion)
    value = 0.0
    for _ in range(10):
        model.train()
        for inputs, targets in loader:
            optimizer.zero_grad()
            loss = criterion(model(inputs), targets)
            loss.backward()
            optimizer.step()
            scheduler.step()
            recorder.step(loss.item(), (inputs, targets))
        model.eval()
        with torch.no_grad():
            value = criterion(model(held), held_labels).item()
        recorder.validation(value)
    data.SCORES["one_cycle_cnn"] = value


@healthy("Cosine with warm restarts: at every restart the rate leaps from nothing to its top and the loss with it", steps=2000)
def warm_restarts(record: Record) -> None:
    torch.manual_seed(103)
    x, y = data.tabular(128000, 45, noise=0.2)
    held_x, held_y = data.tabular(2000, 46, noise=0.2)
    model = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 5))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9, nesterov=True)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(optimizer, T_0=400)
    recorder = record(model, optimizer, F.cross_entropy)
    for step in range(2000):
        pick = torch.randint(128000, (64,))
        loss = F.cross_entropy(model(x[pick]), y[pick])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        scheduler.step()
        recorder.step(loss.item(), (x[pick], y[pick]))
        if step % 400 == 399:
            with torch.no_grad():
                recorder.validation(F.cross_entropy(model(held_x), held_y).item())
    with torch.no_grad():
        data.SCORES["warm_restarts"] = F.cross_entropy(model(held_x), held_y).item()


class DropoutNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 12, 3, padding=1)
        self.fc1 = nn.Linear(12 * 36, 64)
        self.drop = nn.Dropout(0.5)
        self.fc2 = nn.Linear(64, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.max_pool2d(F.relu(self.conv(x)), 2).flatten(1)
        return self.fc2(self.drop(F.relu(self.fc1(x))))


@healthy("Dropout of one half (held-out loss far below the training loss) and rate drops by ten at 1000 and 1600", steps=2000)
def step_decay_dropout(record: Record) -> None:
    torch.manual_seed(104)
    images, labels = data.digits(8000, 47, size=12, noise=0.12)
    held, held_labels = data.digits(600, 48, size=12, noise=0.12)
    model = DropoutNet()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.03, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, milestones=[1000, 1600], gamma=0.1)
    criterion = nn.CrossEntropyLoss()
    recorder = record(model, optimizer, criterion)
    value = 0.0
    for step in range(1, 2001):
        model.train()
        pick = torch.randint(8000, (32,))
        optimizer.zero_grad()
        loss = criterion(model(images[pick]), labels[pick])
        loss.backward()
        optimizer.step()
        scheduler.step()
        recorder.step(loss.item(), (images[pick], labels[pick]))
        if step % 100 == 0:
            model.eval()
            with torch.no_grad():
                value = criterion(model(held), held_labels).item()
            recorder.validation(value)
    data.SCORES["step_decay_dropout"] = value


@healthy("Full-batch gradient descent at the edge of stability: the loss goes up and down from step to step and yet falls", steps=2000)
def edge_of_stability(record: Record) -> None:
    torch.manual_seed(105)
    x, y = data.friedman(256, 49, noise=0.1)
    held_x, held_y = data.friedman(500, 50, noise=0.1)
    model = nn.Sequential(nn.Linear(10, 48), nn.Tanh(), nn.Linear(48, 48), nn.Tanh(), nn.Linear(48, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    criterion = nn.MSELoss()
    recorder = record(model, optimizer, criterion)
    for _ in range(2000):
        optimizer.zero_grad()
        loss = criterion(model(x), y)
        loss.backward()
        optimizer.step()
        recorder.step(loss.item(), (x, y))
    with torch.no_grad():
        data.SCORES["edge_of_stability"] = criterion(model(held_x), held_y).item()


@healthy("A curriculum: every 500 steps the images get noisier, the loss steps up and comes down again", steps=2000)
def curriculum_gets_harder(record: Record) -> None:
    torch.manual_seed(106)
    levels = [data.digits(8000, 51 + k, noise=0.05 + 0.1 * k) for k in range(4)]
    held, held_labels = data.digits(800, 60, noise=0.35)
    model = nn.Sequential(
        nn.Conv2d(1, 12, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(12 * 36, 48), nn.GELU(),
        nn.Linear(48, 10),
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    recorder = record(model, optimizer, F.cross_entropy)
    for step in range(2000):
        images, labels = levels[step // 500]
        pick = torch.randint(8000, (32,))
        loss = F.cross_entropy(model(images[pick]), labels[pick])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        recorder.step(loss.item(), (images[pick], labels[pick]))
    with torch.no_grad():
        data.SCORES["curriculum_gets_harder"] = F.cross_entropy(model(held), held_labels).item()
