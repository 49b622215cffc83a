"""Faults of recorded runs: loops, steps and states."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from program import fault


def _markov(count: int, length: int, vocabulary: int, order_scale: float = 2.0) -> torch.Tensor:
    table = torch.softmax(torch.randn(vocabulary, vocabulary, vocabulary) * order_scale, -1)
    text = torch.randint(vocabulary, (count, 2))
    for _ in range(length - 2):
        probability = table[text[:, -2], text[:, -1]]
        text = torch.cat([text, torch.multinomial(probability, 1)], 1)
    return text


class _GruText(nn.Module):
    def __init__(self, vocabulary: int, width: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.gru = nn.GRU(width, width, batch_first=True)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.gru(self.embed(tokens))[0])


def _token_loss(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


@fault(
    "The second stage of a trainer was copied without zero_grad, so each step adds to the gradients of all earlier ones",
    rules=("gradients-not-cleared", "diverging", "learning-rate-too-high"),
    step=450,
    steps=900,
)
def rng_second_stage(record, broken=True):
    torch.manual_seed(41)
    text = _markov(3000, 13, 12)
    train, held = text[:2600], text[2600:]
    model = _GruText(12, 40)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.9)
    recorder = record(model, optimizer, _token_loss)

    def evaluate():
        model.eval()
        with torch.no_grad():
            value = _token_loss(model(held[:, :-1]), held[:, 1:]).item()
        model.train()
        recorder.validation(value)

    # stage 1: from scratch
    for step in range(450):
        rows = train[torch.randint(len(train), (32,))]
        inputs, targets = rows[:, :-1], rows[:, 1:]
        optimizer.zero_grad()
        loss = _token_loss(model(inputs), targets)
        loss.backward()
        optimizer.step()
        recorder.step(loss.item(), (inputs, targets))
        if step % 50 == 49:
            evaluate()

    # stage 2: lower rate
    for group in optimizer.param_groups:
        group["lr"] = 0.15
    for step in range(450):
        rows = train[torch.randint(len(train), (32,))]
        inputs, targets = rows[:, :-1], rows[:, 1:]
        if not broken:
            optimizer.zero_grad()
        loss = _token_loss(model(inputs), targets)
        loss.backward()
        optimizer.step()
        recorder.step(loss.item(), (inputs, targets))
        if step % 50 == 49:
            evaluate()


class _Decoder(nn.Module):
    def __init__(self, vocabulary: int, width: int, length: int, layers: int = 2) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.position = nn.Parameter(torch.randn(length, width) * 0.1)
        block = nn.TransformerEncoderLayer(width, 4, 2 * width, dropout=0.0, batch_first=True)
        self.blocks = nn.TransformerEncoder(block, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, vocabulary)
        self.register_buffer("mask", torch.triu(torch.full((length, length), -math.inf), 1))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        hidden = self.embed(tokens) + self.position[: tokens.shape[1]]
        return self.head(self.blocks(hidden, mask=self.mask))


@fault(
    "A linear warm-up climbs to a peak rate thirty times what this network bears, and the loss turns on the way",
    rules=("learning-rate-too-high", "diverging"),
    step=180,
    steps=700,
)
def rng_warmup_peak(record, broken=True):
    torch.manual_seed(42)
    text = _markov(3000, 13, 10, 2.5)
    train, held = text[:2700], text[2700:]
    model = _Decoder(10, 32, 12)
    peak = 0.09 if broken else 0.003
    optimizer = torch.optim.AdamW(model.parameters(), lr=peak, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 500))
    recorder = record(model, optimizer, _token_loss)
    for step in range(700):
        rows = train[torch.randint(len(train), (24,))]
        inputs, targets = rows[:, :-1], rows[:, 1:]
        loss = _token_loss(model(inputs), targets)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        schedule.step()
        recorder.step(loss.item(), (inputs, targets))
        if (step + 1) % 70 == 0:
            model.eval()
            with torch.no_grad():
                recorder.validation(_token_loss(model(held[:, :-1]), held[:, 1:]).item())
            model.train()


def _blobs(count: int, classes: int, features: int, centres: torch.Tensor, spread: float):
    labels = torch.randint(classes, (count,))
    points = centres[labels, torch.randint(centres.shape[1], (count,))] + spread * torch.randn(count, features)
    return points, labels


@fault(
    "A piece of the rate's table says 2.0 where 0.02 was meant; eight such steps switch most ReLUs of the second layer off for good",
    rules=("dying-neurons", "learning-rate-too-high", "loss-spike"),
    layers=("2", "3"),
    step=500,
    steps=1100,
)
def rng_rate_table(record, broken=True):
    torch.manual_seed(43)
    centres = torch.randn(6, 3, 12) * 0.8
    points, labels = _blobs(4000, 6, 12, centres, 0.9)
    held_points, held_labels = _blobs(800, 6, 12, centres, 0.9)
    loader = DataLoader(TensorDataset(points, labels), batch_size=64, shuffle=True, drop_last=True)
    model = nn.Sequential(nn.Linear(12, 48), nn.ReLU(), nn.Linear(48, 48), nn.ReLU(), nn.Linear(48, 6))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    table = [(0, 0.05), (500, 2.0 if broken else 0.02), (508, 0.02), (800, 0.01)]
    recorder = record(model, optimizer, F.cross_entropy)
    step = 0
    while step < 1100:
        for inputs, targets in loader:
            for begin, rate in table:
                if step == begin:
                    for group in optimizer.param_groups:
                        group["lr"] = rate
            optimizer.zero_grad()
            loss = F.cross_entropy(model(inputs), targets)
            loss.backward()
            optimizer.step()
            recorder.step(loss.item(), (inputs, targets))
            step += 1
            if step % 50 == 0:
                with torch.no_grad():
                    recorder.validation(F.cross_entropy(model(held_points), held_labels).item())
            if step == 1100:
                break


class _Transfer(nn.Module):
    def __init__(self, features: int, width: int, classes: int) -> None:
        super().__init__()
        self.backbone = nn.Sequential(
            nn.Linear(features, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width), nn.Tanh()
        )
        self.head = nn.Linear(width, classes)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.head(self.backbone(inputs))


@fault(
    "A frozen, pretrained backbone: the helper that evaluates ends with requires_grad_(True) for all weights, "
    "so the backbone learns at the head's high rate and loses what it knew",
    rules=("layer-thawed", "overfitting"),
    layers=("backbone",),
    step=400,
    steps=1000,
)
def rng_evaluate_helper(record, broken=True):
    torch.manual_seed(44)
    centres = torch.randn(8, 2, 20)
    many, many_labels = _blobs(4000, 8, 20, centres, 0.9)
    model = _Transfer(20, 48, 8)
    first = torch.optim.Adam(model.parameters(), lr=2e-3)
    for _ in range(400):
        rows = torch.randint(4000, (64,))
        first.zero_grad()
        F.cross_entropy(model(many[rows]), many_labels[rows]).backward()
        first.step()

    # the new task: pairs of old classes, few examples, some of them labelled wrongly
    points, labels = _blobs(240, 8, 20, centres, 0.9)
    held_points, held_labels = _blobs(1000, 8, 20, centres, 0.9)
    labels, held_labels = labels // 2, held_labels // 2
    wrong = torch.rand(240) < 0.15
    labels = torch.where(wrong, torch.randint(4, (240,)), labels)
    model.head = nn.Linear(48, 4)
    for weight in model.backbone.parameters():
        weight.requires_grad_(False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-3)
    recorder = record(model, optimizer, F.cross_entropy)

    def evaluate(step):
        model.eval()
        for weight in model.parameters():
            weight.requires_grad_(False)
        value = F.cross_entropy(model(held_points), held_labels).item()
        model.train()
        for name, weight in model.named_parameters():
            weight.requires_grad_(name.startswith("head") or (broken and step >= 400))
        recorder.validation(value)

    for step in range(1, 1001):
        rows = torch.randint(240, (32,))
        inputs, targets = points[rows], labels[rows]
        optimizer.zero_grad()
        loss = F.cross_entropy(model(inputs), targets)
        loss.backward()
        optimizer.step()
        recorder.step(loss.item(), (inputs, targets))
        if step % 40 == 0:
            evaluate(step)


class _Shapes(nn.Module):
    def __init__(self, classes: int, norm: bool = False) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 8, 3, padding=1),
            nn.BatchNorm2d(8) if norm else nn.Identity(),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(8, 16, 3, padding=1),
            nn.BatchNorm2d(16) if norm else nn.Identity(),
            nn.ReLU(),
            nn.MaxPool2d(2),
        )
        self.head = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, classes))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.head(self.features(images))


def _images(count: int, patterns: torch.Tensor, noise: float):
    labels = torch.randint(len(patterns), (count,))
    images = patterns[labels].clone()
    shift = torch.randint(0, 8, (count,))
    images = torch.stack([image.roll(int(by), 1) for image, by in zip(images, shift)])
    return (images + noise * torch.randn_like(images)).unsqueeze(1), labels


@fault(
    "A saliency map is drawn at step 100: it freezes the feature layers for speed and never gives them back",
    rules=("no-gradient",),
    layers=("features",),
    step=100,
    steps=1000,
)
def rng_saliency_map(record, broken=True):
    torch.manual_seed(45)
    patterns = torch.randn(10, 8, 8)
    images, labels = _images(4000, patterns, 0.7)
    held_images, held_labels = _images(600, patterns, 0.7)
    model = _Shapes(10)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    recorder = record(model, optimizer, F.cross_entropy)

    def saliency():
        for weight in model.features.parameters():
            weight.requires_grad_(False)
        image = held_images[:4].clone().requires_grad_(True)
        score = model(image).max(1).values.sum()
        torch.autograd.grad(score, image)
        if not broken:
            for weight in model.features.parameters():
                weight.requires_grad_(True)

    for step in range(1000):
        if step == 100:
            saliency()
        rows = torch.randint(4000, (32,))
        inputs, targets = images[rows], labels[rows]
        optimizer.zero_grad()
        loss = F.cross_entropy(model(inputs), targets)
        loss.backward()
        optimizer.step()
        recorder.step(loss.item(), (inputs, targets))
        if step % 50 == 49:
            model.eval()
            with torch.no_grad():
                recorder.validation(F.cross_entropy(model(held_images), held_labels).item())
            model.train()


@fault(
    "To 'freeze' BatchNorm from step 120 on, its momentum is set to 0 while it stays in train mode: the running "
    "statistics stay behind the weights, and validation goes wrong while the training loss falls",
    rules=("stale-statistics", "batchnorm-mode-gap"),
    layers=("features.1", "features.5"),
    step=120,
    steps=1000,
)
def rng_norm_frozen(record, broken=True):
    torch.manual_seed(46)
    patterns = torch.randn(8, 8, 8)
    images, labels = _images(4000, patterns, 1.1)
    held_images, held_labels = _images(600, patterns, 1.1)
    model = _Shapes(8, norm=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    recorder = record(model, optimizer, F.cross_entropy)
    for step in range(1000):
        if step == 120 and broken:
            for module in model.modules():
                if isinstance(module, nn.BatchNorm2d):
                    module.momentum = 0.0
        model.train()
        rows = torch.randint(4000, (32,))
        inputs, targets = images[rows], labels[rows]
        optimizer.zero_grad()
        loss = F.cross_entropy(model(inputs), targets)
        loss.backward()
        optimizer.step()
        recorder.step(loss.item(), (inputs, targets))
        if step % 50 == 49:
            model.eval()
            with torch.no_grad():
                recorder.validation(F.cross_entropy(model(held_images), held_labels).item())


@fault(
    "A wide network on 150 examples with some wrong labels, trained long after the validation loss has turned",
    rules=("overfitting",),
    step=60,
    steps=1000,
)
def rng_few_patients(record, broken=True):
    torch.manual_seed(47)
    count = 150 if broken else 20000
    points = torch.randn(count + 1500, 25)
    score = points[:, 0] + points[:, 1] * points[:, 2] - 0.8 * points[:, 3] + 0.7 * torch.randn(count + 1500)
    labels = (score > 0).float().unsqueeze(1)
    train_points, train_labels = points[:count], labels[:count]
    held_points, held_labels = points[count:], labels[count:]
    model = nn.Sequential(nn.Linear(25, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    recorder = record(model, optimizer, F.binary_cross_entropy_with_logits)
    step = 0
    while step < 1000:
        order = torch.randperm(count)
        for begin in range(0, count - 29, 30):
            rows = order[begin : begin + 30]
            inputs, targets = train_points[rows], train_labels[rows]
            optimizer.zero_grad()
            loss = F.binary_cross_entropy_with_logits(model(inputs), targets)
            loss.backward()
            optimizer.step()
            recorder.step(loss.item(), (inputs, targets))
            step += 1
            if step % 20 == 0:
                model.eval()
                with torch.no_grad():
                    recorder.validation(F.binary_cross_entropy_with_logits(model(held_points), held_labels).item())
                model.train()
            if step == 1000:
                break
