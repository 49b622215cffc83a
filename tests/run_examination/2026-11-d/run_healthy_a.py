"""Healthy runs: tables, pictures, sequences, and loops of ordinary make."""

import copy
import math

import torch
import torch.nn.functional as F
from program import healthy
from run_common import classes, gen, loader, mlp, pictures, surface, tokens
from torch import nn


@healthy("Ordinary: a table, AdamW, a rate that falls to nothing, so that the last steps change nothing.", steps=1500)
def table_rate_to_zero(record):
    torch.manual_seed(100)
    x, y = classes(20000, 24, 6, 1, teacher=31)
    xv, yv = classes(1000, 24, 6, 2, teacher=31)
    model = mlp(24, 192, 192, 6)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.05)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda s: max(0.0, 1 - s / 1500))
    rec = record(model, optimizer, F.cross_entropy)
    batches = loader(20000, 96, 3)
    for step in range(1500):
        i = next(batches)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x[i]), y[i])
        loss.backward()
        optimizer.step()
        schedule.step()
        rec.step(loss.item(), (x[i], y[i]))
        if step % 50 == 49:
            with torch.no_grad():
                rec.validation(F.cross_entropy(model(xv), yv).item())


@healthy("Ordinary: pictures, convolutions with BatchNorm, SGD with momentum.", steps=1500)
def pictures_batchnorm(record):
    torch.manual_seed(101)
    x, y = pictures(6000, 6, 1, noise=1.3)
    xv, yv = pictures(400, 6, 2, noise=1.3)
    model = nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(8, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU(), nn.AdaptiveAvgPool2d(2),
        nn.Flatten(), nn.Linear(64, 6),
    )  # fmt: skip
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 1500)
    rec = record(model, optimizer, F.cross_entropy)
    batches = loader(6000, 32, 3)
    for step in range(1500):
        i = next(batches)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x[i]), y[i])
        loss.backward()
        optimizer.step()
        schedule.step()
        rec.step(loss.item(), (x[i], y[i]))
        if step % 75 == 74:
            model.eval()
            with torch.no_grad():
                rec.validation(F.cross_entropy(model(xv), yv).item())
            model.train()


class Language(nn.Module):
    def __init__(self, vocabulary, width):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, 24)
        self.gru = nn.GRU(24, width, batch_first=True)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, t):
        return self.head(self.gru(self.embedding(t))[0])


def next_token(outputs, targets):
    return F.cross_entropy(outputs.flatten(0, 1), targets.flatten())


@healthy("Ordinary: a small language model with a GRU, whose gradients are clipped at most steps.", steps=1500)
def language_clipped(record):
    torch.manual_seed(102)
    x, v = tokens(8000, 13, 12, 1), tokens(400, 13, 12, 2)
    model = Language(12, 48)
    optimizer = torch.optim.Adam(model.parameters(), lr=4e-3)
    rec = record(model, optimizer, next_token)
    batches = loader(8000, 24, 3)
    for step in range(1500):
        i = next(batches)
        inputs, targets = x[i][:, :-1], x[i][:, 1:]
        optimizer.zero_grad()
        loss = next_token(model(inputs), targets)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.3)
        optimizer.step()
        rec.step(loss.item(), (inputs, targets))
        if step % 75 == 74:
            with torch.no_grad():
                rec.validation(next_token(model(v[:, :-1]), v[:, 1:]).item())


@healthy("Restarts of the rate, after which the loss rises for a while.", steps=1600)
def warm_restarts(record):
    torch.manual_seed(103)
    x, y = surface(20000, 10, 1, teacher=33)
    xv, yv = surface(1000, 10, 2, teacher=33)
    model = mlp(10, 224, 224, 1, act=nn.Tanh)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    schedule = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(optimizer, 400)
    rec = record(model, optimizer, F.mse_loss)
    batches = loader(20000, 64, 3)
    for step in range(1600):
        i = next(batches)
        optimizer.zero_grad()
        loss = F.mse_loss(model(x[i]), y[i])
        loss.backward()
        optimizer.step()
        schedule.step()
        rec.step(loss.item(), (x[i], y[i]))
        if step % 40 == 39:
            with torch.no_grad():
                rec.validation(F.mse_loss(model(xv), yv).item())


@healthy("Ordinary: dropout of one half, with which the training loss lies above that of the held-out data.", steps=1500)
def half_dropped(record):
    torch.manual_seed(104)
    x, y = classes(12000, 20, 4, 1, teacher=35)
    xv, yv = classes(1000, 20, 4, 2, teacher=35)
    model = nn.Sequential(
        nn.Linear(20, 192), nn.ReLU(), nn.Dropout(0.5), nn.Linear(192, 192), nn.ReLU(), nn.Dropout(0.5), nn.Linear(192, 4)
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    rec = record(model, optimizer, F.cross_entropy)
    batches = loader(12000, 64, 3)
    for step in range(1500):
        i = next(batches)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x[i]), y[i])
        loss.backward()
        optimizer.step()
        rec.step(loss.item(), (x[i], y[i]))
        if step % 50 == 49:
            model.eval()
            with torch.no_grad():
                rec.validation(F.cross_entropy(model(xv), yv).item())
            model.train()


@healthy("Pictures that the loader flips, shifts and mixes by pairs: a training loss that stays high.", steps=1500)
def mixed_pictures(record):
    torch.manual_seed(105)
    x, y = pictures(2000, 5, 1, noise=0.6)
    xv, yv = pictures(400, 5, 2, noise=0.6)
    hot = F.one_hot(y, 5).float()
    g = gen(4)
    model = nn.Sequential(
        nn.Conv2d(1, 10, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(10, 16, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 5)
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    rec = record(model, optimizer, F.cross_entropy)
    batches = loader(2000, 32, 3)
    for step in range(1500):
        i = next(batches)
        inputs = x[i]
        if torch.rand((), generator=g) < 0.5:
            inputs = inputs.flip(2, 3)
        inputs = inputs.roll(int(torch.randint(-2, 3, (), generator=g)), 3)
        share = float(torch.rand((), generator=g))
        other = torch.randperm(len(i), generator=g)
        inputs = share * inputs + (1 - share) * inputs[other]
        targets = share * hot[i] + (1 - share) * hot[i][other]
        optimizer.zero_grad()
        loss = F.cross_entropy(model(inputs), targets)
        loss.backward()
        optimizer.step()
        rec.step(loss.item(), (inputs, targets))
        if step % 50 == 49:
            with torch.no_grad():
                rec.validation(F.cross_entropy(model(xv), yv).item())


@healthy("Two examples in a hundred are positive: many batches hold one or none, and the loss starts low and jumps.", steps=1500)
def rare_class(record):
    torch.manual_seed(106)

    def table(n, seed):
        g = gen(seed)
        x = torch.randn(n, 16, generator=g)
        score = 1.6 * x[:, :2].sum(1) + x[:, 2] * x[:, 3] - 6.3
        return x, (torch.rand(n, generator=g) < torch.sigmoid(score)).float()[:, None]

    x, y = table(40000, 1)
    xv, yv = table(4000, 2)
    model = mlp(16, 224, 224, 1)
    with torch.no_grad():
        model[-1].bias.fill_(math.log(0.03))
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-4)
    rec = record(model, optimizer, F.binary_cross_entropy_with_logits)
    batches = loader(40000, 48, 3)
    for step in range(1500):
        i = next(batches)
        optimizer.zero_grad()
        loss = F.binary_cross_entropy_with_logits(model(x[i]), y[i])
        loss.backward()
        optimizer.step()
        rec.step(loss.item(), (x[i], y[i]))
        if step % 50 == 49:
            with torch.no_grad():
                rec.validation(F.binary_cross_entropy_with_logits(model(xv), yv).item())


@healthy("Gradients of four parts of a batch are added up before every step, as they should be.", steps=1500)
def four_parts(record):
    torch.manual_seed(107)
    x, y = surface(16000, 9, 1, teacher=37, noise=0.2)
    xv, yv = surface(1000, 9, 2, teacher=37, noise=0.2)
    model = mlp(9, 128, 128, 1, act=nn.SiLU)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.08, momentum=0.9, nesterov=True)
    rec = record(model, optimizer, F.mse_loss)
    batches = loader(16000, 64, 3)
    for step in range(1500):
        i = next(batches)
        inputs, targets = x[i], y[i]
        total = 0.0
        optimizer.zero_grad()
        for a, b in zip(inputs.chunk(4), targets.chunk(4)):
            loss = F.mse_loss(model(a), b) / 4
            loss.backward()
            total += loss.item()
        optimizer.step()
        rec.step(total, (inputs, targets))
        if step % 50 == 49:
            with torch.no_grad():
                rec.validation(F.mse_loss(model(xv), yv).item())


@healthy("Held-out data are seen by a slow average of the weights, which lags far behind at first.", steps=1600)
def slow_average(record):
    torch.manual_seed(108)
    x, y = classes(16000, 18, 5, 1, teacher=39)
    xv, yv = classes(1000, 18, 5, 2, teacher=39)
    model = mlp(18, 224, 224, 5, act=nn.GELU)
    average = copy.deepcopy(model).requires_grad_(False)
    optimizer = torch.optim.Adam(model.parameters(), lr=1.5e-3)
    rec = record(model, optimizer, F.cross_entropy)
    batches = loader(16000, 48, 3)
    for step in range(1600):
        i = next(batches)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x[i]), y[i])
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            for slow, fast in zip(average.parameters(), model.parameters()):
                slow.lerp_(fast, 0.005)
        rec.step(loss.item(), (x[i], y[i]))
        if step % 40 == 39:
            with torch.no_grad():
                rec.validation(F.cross_entropy(average(xv), yv).item())


@healthy("A curriculum: the noise of the inputs grows bit by bit, and the training loss with it.", steps=1800)
def growing_noise(record):
    torch.manual_seed(109)
    x, y = pictures(12000, 6, 1, side=10, noise=0.0)
    xv, yv = pictures(600, 6, 2, side=10, noise=1.6)
    g = gen(4)
    model = nn.Sequential(nn.Flatten(), *mlp(100, 224, 128, 6))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    rec = record(model, optimizer, F.cross_entropy)
    batches = loader(12000, 48, 3)
    for step in range(1800):
        i = next(batches)
        inputs = x[i] + min(1.6, 0.7 + step / 1000) * torch.randn(48, 1, 10, 10, generator=g)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(inputs), y[i])
        loss.backward()
        optimizer.step()
        rec.step(loss.item(), (inputs, y[i]))
        if step % 50 == 49:
            with torch.no_grad():
                rec.validation(F.cross_entropy(model(xv), yv).item())
