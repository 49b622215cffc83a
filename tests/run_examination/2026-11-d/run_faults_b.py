"""Faults of the data, of the modules and of the evaluation."""

import torch
import torch.nn.functional as F
from program import fault
from run_common import classes, gen, loader, mlp, pictures, surface
from torch import nn


class Tuned(nn.Module):
    def __init__(self, features=24, k=4):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(features, 384), nn.ReLU(), nn.Linear(384, 64), nn.ReLU())
        self.head = nn.Linear(64, k)

    def forward(self, x):
        return self.head(self.body(x))


@fault(
    "A frozen, pretrained body is thawed at step 600 by a helper of the evaluation, and fits a few examples by heart.",
    rules=("layer-thawed", "overfitting"),
    layers=("body",),
    step=600,
    steps=1300,
)
def helper_thaws_body(record, broken=True):
    torch.manual_seed(10)
    model = Tuned()
    x, y = classes(4000, 24, 4, 1, teacher=13)
    early = torch.optim.Adam(model.parameters(), lr=2e-3)
    batches = loader(4000, 64, 2)
    for _ in range(250):
        i = next(batches)
        early.zero_grad()
        F.cross_entropy(model(x[i]), y[i]).backward()
        early.step()
    # The same features; classes in another order, and few examples with a label.
    swap = torch.tensor([2, 0, 3, 1])
    x, y = x[:600], swap[y[:600]]
    xv, yv = classes(800, 24, 4, 5, teacher=13)
    yv = swap[yv]
    model.body.requires_grad_(False)
    model.head.reset_parameters()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9, weight_decay=3e-3)
    rec = record(model, optimizer, F.cross_entropy)
    batches = loader(600, 50, 6)
    for step in range(1300):
        if broken and step == 600:
            model.requires_grad_(True)
        i = next(batches)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x[i]), y[i])
        loss.backward()
        optimizer.step()
        rec.step(loss.item(), (x[i], y[i]))
        if step % 50 == 49:
            with torch.no_grad():
                rec.validation(F.cross_entropy(model(xv), yv).item())


def small_cnn(k):
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 16, 3, padding=1),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(16, k),
    )


@fault(
    "The momentum of BatchNorm is annealed with a period in steps that was meant in epochs: from step 300 on it is 0, "
    "and the running statistics stay where they are.",
    rules=("stale-statistics", "batchnorm-mode-gap"),
    step=300,
    steps=1200,
)
def norm_momentum_annealed(record, broken=True):
    torch.manual_seed(11)
    x, y = pictures(3000, 6, 1, noise=1.0)
    xv, yv = pictures(400, 6, 2, noise=1.0)
    model = small_cnn(6)
    optimizer = torch.optim.Adam(model.parameters(), lr=7e-3)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda s: 0.04 if s < 300 else (1200 - s) / 900)
    rec = record(model, optimizer, F.cross_entropy)
    batches = loader(3000, 32, 3)
    for step in range(1200):
        if broken and step == 300:
            for module in model.modules():
                if isinstance(module, nn.BatchNorm2d):
                    module.momentum = 0.0
        i = next(batches)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x[i]), y[i])
        loss.backward()
        optimizer.step()
        schedule.step()
        rec.step(loss.item(), (x[i], y[i]))
        if step % 50 == 49:
            model.eval()
            with torch.no_grad():
                rec.validation(F.cross_entropy(model(xv), yv).item())
            model.train()


@fault(
    "A wide network on 200 examples with uncertain labels is trained on and on.",
    rules=("overfitting",),
    step=425,
    steps=1500,
)
def few_examples(record, broken=True):
    torch.manual_seed(12)
    n = 200 if broken else 9000
    x, y = classes(n, 20, 4, 1, teacher=17, noise=0.6)
    xv, yv = classes(1000, 20, 4, 2, teacher=17, noise=0.6)
    model = mlp(20, 256, 224, 4)
    optimizer = torch.optim.Adam(model.parameters(), lr=8e-5)
    rec = record(model, optimizer, F.cross_entropy)
    batches = loader(n, 50, 3)
    for step in range(1500):
        i = next(batches)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x[i]), y[i])
        loss.backward()
        optimizer.step()
        rec.step(loss.item(), (x[i], y[i]))
        if step % 25 == 24:
            with torch.no_grad():
                rec.validation(F.cross_entropy(model(xv), yv).item())


@fault(
    "From step 600 on the loader is made anew, with its seed, after every third batch: the same three come for ever.",
    rules=("repeated-batches", "overfitting"),
    step=600,
    steps=1300,
)
def loader_made_anew(record, broken=True):
    torch.manual_seed(13)
    x, y = surface(10000, 12, 1, noise=0.4)
    xv, yv = surface(800, 12, 2, noise=0.4)
    model = mlp(12, 256, 224, 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    rec = record(model, optimizer, F.mse_loss)
    batches = loader(10000, 64, 3)
    for step in range(1300):
        if broken and step >= 600 and step % 3 == 0:
            batches = loader(10000, 64, 4)
        i = next(batches)
        optimizer.zero_grad()
        loss = F.mse_loss(model(x[i]), y[i])
        loss.backward()
        optimizer.step()
        rec.step(loss.item(), (x[i], y[i]))
        if step % 50 == 49:
            with torch.no_grad():
                rec.validation(F.mse_loss(model(xv), yv).item())


@fault(
    "One batch, at step 700, has its targets in another unit, a thousand times larger.",
    rules=("loss-spike", "unscaled-target"),
    step=700,
    steps=1200,
)
def batch_in_another_unit(record, broken=True):
    torch.manual_seed(14)
    x, y = surface(20000, 8, 1)
    xv, yv = surface(800, 8, 2)
    model = mlp(8, 208, 208, 1, act=nn.GELU)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    rec = record(model, optimizer, F.mse_loss)
    batches = loader(20000, 64, 3)
    for step in range(1200):
        i = next(batches)
        inputs, targets = x[i], y[i]
        if broken and step == 700:
            targets = targets * 1000
        optimizer.zero_grad()
        loss = F.mse_loss(model(inputs), targets)
        loss.backward()
        optimizer.step()
        rec.step(loss.item(), (inputs, targets))
        if step % 50 == 49:
            with torch.no_grad():
                rec.validation(F.mse_loss(model(xv), yv).item())


class Spread(nn.Module):
    """Mean and standard deviation over time."""

    def __init__(self, floor):
        super().__init__()
        self.floor = floor

    def forward(self, h):
        variance = (h - h.mean(1, keepdim=True)).square().mean(1)
        return torch.cat([h.mean(1), torch.sqrt(variance + self.floor)], 1)


class Signals(nn.Module):
    def __init__(self, floor):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(3, 48), nn.Tanh(), nn.Linear(48, 32), nn.Tanh())
        self.pool = Spread(floor)
        self.head = nn.Linear(64, 3)

    def forward(self, x):
        return self.head(self.pool(self.encoder(x)))


def signals(n, seed):
    g = gen(seed)
    y = torch.randint(3, (n,), generator=g)
    scale = torch.tensor([[0.6, 1.0, 1.4], [1.0, 0.6, 1.4], [1.4, 1.0, 0.6]])[y]
    return scale[:, None] * torch.randn(n, 16, 3, generator=g), y


@fault(
    "A pooling takes the root of a variance; a silent recording, at step 620, has variance 0, where the root has no slope.",
    rules=("non-finite",),
    layers=("pool",),
    step=620,
    steps=1000,
)
def silent_recording(record, broken=True):
    torch.manual_seed(15)
    x, y = signals(5000, 1)
    xv, yv = signals(500, 2)
    model = Signals(0.0 if broken else 1e-5)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    rec = record(model, optimizer, F.cross_entropy)
    batches = loader(5000, 32, 3)
    for step in range(1000):
        i = next(batches)
        inputs = x[i]
        if step == 620:
            inputs[5] = 0.0
        optimizer.zero_grad()
        loss = F.cross_entropy(model(inputs), y[i])
        loss.backward()
        optimizer.step()
        rec.step(loss.item(), (inputs, y[i]))
        if step % 50 == 49:
            with torch.no_grad():
                rec.validation(F.cross_entropy(model(xv), yv).item())


@fault(
    "The second file, which is read from step 800 on, has its labels one row too far down.",
    rules=("data-changed", "labels-unrelated", "output-loss-mismatch"),
    step=800,
    steps=1400,
)
def labels_slip_a_row(record, broken=True):
    torch.manual_seed(16)
    files = [classes(8000, 16, 5, 1, teacher=23), classes(8000, 16, 5, 2, teacher=23)]
    if broken:
        files[1] = (files[1][0], files[1][1].roll(1))
    xv, yv = classes(800, 16, 5, 3, teacher=23)
    model = nn.Sequential(nn.Linear(16, 256), nn.LayerNorm(256), nn.ReLU(), nn.Linear(256, 128), nn.ReLU(), nn.Linear(128, 5))
    optimizer = torch.optim.RMSprop(model.parameters(), lr=3e-4)
    rec = record(model, optimizer, F.cross_entropy)
    batches = loader(8000, 96, 4)
    for step in range(1400):
        x, y = files[step >= 800]
        i = next(batches)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x[i]), y[i])
        loss.backward()
        optimizer.step()
        rec.step(loss.item(), (x[i], y[i]))
        if step % 50 == 49:
            with torch.no_grad():
                rec.validation(F.cross_entropy(model(xv), yv).item())


@fault(
    "The sampler is exchanged at step 600 for one that goes through a table sorted by class.",
    rules=("sorted-batches", "data-changed"),
    step=600,
    steps=1300,
)
def sampler_in_order(record, broken=True):
    torch.manual_seed(17)
    x, y = pictures(9600, 6, 1, side=10, noise=1.6)
    xv, yv = pictures(600, 6, 2, side=10, noise=1.6)
    order = y.argsort(stable=True)
    x, y = x[order], y[order]
    model = nn.Sequential(
        nn.Conv2d(1, 12, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(192, 48), nn.ReLU(), nn.Linear(48, 6)
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    rec = record(model, optimizer, F.cross_entropy)
    shuffled = loader(9600, 40, 3)
    for step in range(1300):
        if broken and step >= 600:
            first = 40 * step % 9600
            i = torch.arange(first, first + 40)
        else:
            i = next(shuffled)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x[i]), y[i])
        loss.backward()
        optimizer.step()
        rec.step(loss.item(), (x[i], y[i]))
        if step % 50 == 49:
            with torch.no_grad():
                rec.validation(F.cross_entropy(model(xv), yv).item())


@fault(
    "Two views of an example are to be mapped to one point; the weight of the term that keeps points apart is scheduled to "
    "0 at step 500, and all points become one.",
    rules=("rank-collapse", "term-dominates"),
    step=500,
    steps=1200,
)
def points_fall_together(record, broken=True):
    torch.manual_seed(18)
    g = gen(1)
    basis = torch.randn(6, 24, generator=gen(2)) / 6**0.5
    weight = {"apart": 1.0}

    def criterion(outputs, targets):
        a, b = outputs.chunk(2)
        near = F.mse_loss(a, b)
        spread = torch.sqrt(outputs.var(0) + 1e-4)
        return near + weight["apart"] * F.relu(1 - spread).mean()

    def views(n, g):
        z = torch.randn(n, 6, generator=g) @ basis
        x = torch.cat([z, z]) + 0.3 * torch.randn(2 * n, 24, generator=g)
        return x, torch.arange(n).repeat(2)

    xv, yv = views(400, gen(3))
    model = mlp(24, 208, 160, 16)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    rec = record(model, optimizer, criterion)
    for step in range(1200):
        if broken and step == 500:
            weight["apart"] = 0.0
        inputs, targets = views(32, g)
        optimizer.zero_grad()
        loss = criterion(model(inputs), targets)
        loss.backward()
        optimizer.step()
        rec.step(loss.item(), (inputs, targets))
        if step % 50 == 49:
            with torch.no_grad():
                rec.validation(criterion(model(xv), yv).item())
