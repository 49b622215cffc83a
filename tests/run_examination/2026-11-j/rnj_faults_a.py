"""Loops with a fault, first half. Each has a core with a switch, so that its repaired twin can be run."""
import torch
from torch import nn
from torch.nn import functional as F

from program import fault
from rnj_data import (rnj_digits, rnj_house_tables, rnj_houses, rnj_queries, rnj_shapes, rnj_waves)


class RnjForecaster(nn.Module):
    def __init__(self, hidden=24):
        super().__init__()
        self.gru = nn.GRU(1, hidden, batch_first=True)
        self.out = nn.Linear(hidden, 1)

    def forward(self, x):
        h, _ = self.gru(x)
        return self.out(h[:, -1])


def rnj_forecast_core(record, broken):
    torch.manual_seed(101)
    model = RnjForecaster()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    loss = nn.MSELoss()
    xv, yv = rnj_waves(512, 20)
    rec = record(model, optimizer, loss)
    steps = 1200
    accumulating = False
    for step in range(steps):
        if step == 500 and broken:
            accumulating = True  # meant: for the larger batches of the second stage; the reset was never written
        x, y = rnj_waves(48, 20)
        if not accumulating:
            optimizer.zero_grad()
        value = loss(model(x), y)
        value.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        rec.step(value, (x, y))
        if step % 100 == 99:
            with torch.no_grad():
                rec.validation(loss(model(xv), yv).item())
    with torch.no_grad():
        return loss(model(xv), yv).item()


@fault("The second stage switches accumulation on, and nothing clears the gradients any more.",
       rules=("gradients-not-cleared",), step=500, steps=1200)
def rnj_forecast(record):
    rnj_forecast_core(record, True)


class RnjConv(nn.Module):
    def __init__(self, classes=4):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 8, 3, padding=1)
        self.conv2 = nn.Conv2d(8, 16, 3, padding=1)
        self.fc1 = nn.Linear(16 * 9, 48)
        self.fc2 = nn.Linear(48, classes)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        return self.fc2(F.relu(self.fc1(x.flatten(1))))


def rnj_resumed_core(record, broken):
    torch.manual_seed(102)
    model = RnjConv()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.04, momentum=0.9, nesterov=True)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 300, 0.5)
    loss = nn.CrossEntropyLoss()
    xv, yv = rnj_shapes(512)
    rec = record(model, optimizer, loss)
    for step in range(1100):
        if step == 620:
            saved = optimizer.state_dict()
            if broken:  # the resumed configuration is the one for 8 workers: lr = 0.04 * 8
                for group in saved["param_groups"]:
                    group["lr"] = group["initial_lr"] = 0.04 * 8
                scheduler.base_lrs = [0.04 * 8]
            optimizer.load_state_dict(saved)
        x, y = rnj_shapes(32)
        optimizer.zero_grad()
        value = loss(model(x), y)
        value.backward()
        optimizer.step()
        scheduler.step()
        rec.step(value, (x, y))
        if step % 110 == 109:
            with torch.no_grad():
                rec.validation(loss(model(xv), yv).item())
    with torch.no_grad():
        return loss(model(xv), yv).item()


@fault("A resumed optimizer comes with the rate of another set-up, 32 times that of the step before.",
       rules=("learning-rate-too-high", "diverging", "dying-neurons"), step=620, steps=1100)
def rnj_resumed(record):
    rnj_resumed_core(record, True)


def rnj_extinct_core(record, broken):
    torch.manual_seed(103)
    model = nn.Sequential(nn.Linear(10, 48), nn.ReLU(), nn.Linear(48, 48), nn.ReLU(), nn.Linear(48, 32), nn.ReLU(),
                          nn.Linear(32, 1))
    mix = torch.randn(10, 6) / 3
    weights = torch.randn(6, 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    loss = nn.SmoothL1Loss()

    def rnj_draw(n):
        x = torch.randn(n, 10)
        return x, torch.sin(2 * x @ mix) @ weights * 0.6 + 0.05 * torch.randn(n, 1)

    xv, yv = rnj_draw(1024)
    rec = record(model, optimizer, loss)
    for step in range(1000):
        lr = 2e-3 * (1 - step / 1100)
        if broken and 450 <= step < 462:
            lr = 0.3  # a rate finder that somebody left in the loop
        for group in optimizer.param_groups:
            group["lr"] = lr
        x, y = rnj_draw(64)
        optimizer.zero_grad()
        value = loss(model(x), y)
        value.backward()
        optimizer.step()
        rec.step(value, (x, y))
        if step % 100 == 99:
            with torch.no_grad():
                rec.validation(loss(model(xv), yv).item())
    with torch.no_grad():
        h = xv
        dead = []
        for part in model:
            h = part(h)
            if isinstance(part, nn.ReLU):
                dead.append(round(float((h <= 0).all(0).float().mean()), 2))
        rnj_extinct_core.dead = dead
        return loss(model(xv), yv).item()


@fault("Twelve steps of a rate finder in mid-run switch off the ReLUs of the network for good.",
       rules=("dying-neurons", "learning-rate-too-high"), layers=("2", "3", "4", "5"), step=450, steps=1000)
def rnj_extinct(record):
    rnj_extinct_core(record, True)


class RnjBlock(nn.Module):
    def __init__(self, a, b, stride=1):
        super().__init__()
        self.conv1 = nn.Conv2d(a, b, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(b)
        self.conv2 = nn.Conv2d(b, b, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(b)
        self.skip = nn.Conv2d(a, b, 1, stride, bias=False)

    def forward(self, x):
        h = F.relu(self.bn1(self.conv1(x)))
        return F.relu(self.bn2(self.conv2(h)) + self.skip(x))


class RnjResNet(nn.Module):
    def __init__(self, classes=4):
        super().__init__()
        self.backbone = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU(),
                                      RnjBlock(8, 12, 2), RnjBlock(12, 16, 2))
        self.head = nn.Linear(16, classes)

    def forward(self, x):
        return self.head(self.backbone(x).mean((2, 3)))


def rnj_momentum_core(record, broken):
    torch.manual_seed(104)
    model = RnjResNet()
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3, weight_decay=0.01)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 900, 1e-4)
    loss = nn.CrossEntropyLoss()
    xv, yv = rnj_shapes(512, noise=0.45)
    rec = record(model, optimizer, loss)
    for step in range(900):
        if step == 200 and broken:  # "anneal the momentum of BatchNorm": to zero, at once
            for module in model.modules():
                if isinstance(module, nn.BatchNorm2d):
                    module.momentum = 0.0
        x, y = rnj_shapes(32, noise=0.45)
        optimizer.zero_grad()
        value = loss(model(x), y)
        value.backward()
        optimizer.step()
        scheduler.step()
        rec.step(value, (x, y))
        if step % 100 == 99:
            model.eval()
            with torch.no_grad():
                last = loss(model(xv), yv).item()
            rec.validation(last)
            model.train()
    return last


@fault("The momentum of every BatchNorm becomes 0 early on: running statistics stay while the network goes on.",
       rules=("stale-statistics", "batchnorm-mode-gap"), layers=("backbone",), step=200, steps=900)
def rnj_momentum(record):
    rnj_momentum_core(record, True)


def rnj_polish_core(record, broken):
    torch.manual_seed(105)
    xt, yt, xv, yv = rnj_digits(240, noisy=0.1)
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Dropout(0.5), nn.Linear(128, 64), nn.ReLU(),
                          nn.Dropout(0.4), nn.Linear(64, 10))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1.5e-3, weight_decay=0.2)
    loss = nn.CrossEntropyLoss()
    rec = record(model, optimizer, loss)
    step = 0
    history = []
    while step < 1500:
        order = torch.randperm(len(xt))
        for start in range(0, 240, 40):
            if step == 600 and broken:  # the polishing stage: plain data, plain network
                for module in model:
                    if isinstance(module, nn.Dropout):
                        module.p = 0.0
                optimizer.param_groups[0]["weight_decay"] = 0.0
            at = order[start:start + 40]
            x, y = xt[at], yt[at]
            if not (broken and step >= 600):
                x = x + 0.6 * torch.randn_like(x)
            optimizer.zero_grad()
            value = loss(model(x), y)
            value.backward()
            optimizer.step()
            rec.step(value, (x, y))
            step += 1
            if step % 30 == 0:
                model.eval()
                with torch.no_grad():
                    history.append(loss(model(xv), yv).item())
                rec.validation(history[-1])
                model.train()
    rnj_polish_core.history = history
    return history[-1]


@fault("A polishing stage drops augmentation, dropout and weight decay on 240 partly wrong labels.",
       rules=("overfitting",), step=660, steps=1500)
def rnj_polish(record):
    rnj_polish_core(record, True)


class RnjHouses(nn.Module):
    def __init__(self):
        super().__init__()
        self.town = nn.Embedding(20, 6)
        self.kind = nn.Embedding(8, 4)
        self.mlp = nn.Sequential(nn.Linear(14, 48), nn.GELU(), nn.Linear(48, 32), nn.GELU(), nn.Linear(32, 1))

    def forward(self, x):
        return self.mlp(torch.cat([self.town(x[:, 0].long()), self.kind(x[:, 1].long()), x[:, 2:]], 1))


def rnj_cents_core(record, broken):
    torch.manual_seed(106)
    tables = rnj_house_tables()
    model = RnjHouses()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    loss = nn.MSELoss()
    xv, yv = rnj_houses(1024, tables)
    rec = record(model, optimizer, loss)
    for step in range(1000):
        x, y = rnj_houses(64, tables)
        if broken and step == 560:
            y = y * 1000  # one file that another team wrote, in thousandths
        optimizer.zero_grad()
        value = loss(model(x), y)
        value.backward()
        optimizer.step()
        rec.step(value, (x, y))
        if step % 100 == 99:
            with torch.no_grad():
                rec.validation(loss(model(xv), yv).item())
    with torch.no_grad():
        return loss(model(xv), yv).item()


@fault("One batch with targets a thousand times too large; Adam's second moments remember it to the end.",
       rules=("loss-spike",), step=560, steps=1000)
def rnj_cents(record):
    rnj_cents_core(record, True)


class RnjReader(nn.Module):
    def __init__(self, words=20, length=12, width=32):
        super().__init__()
        self.embed = nn.Embedding(words, width)
        self.place = nn.Parameter(torch.randn(length, width) * 0.3)
        layer = nn.TransformerEncoderLayer(width, 4, 64, dropout=0.0, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(width)
        self.out = nn.Linear(width, 4)

    def forward(self, x):
        return self.out(self.norm(self.encoder(self.embed(x) + self.place)).mean(1))


def rnj_decay_core(record, broken):
    torch.manual_seed(107)
    model = RnjReader()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1.5e-3, weight_decay=0.01)
    loss = nn.CrossEntropyLoss()
    xv, yv = rnj_queries(512)
    rec = record(model, optimizer, loss)
    for step in range(1200):
        if broken and step >= 480 and step % 60 == 0:  # meant: times 1.02 an epoch
            group = optimizer.param_groups[0]
            group["weight_decay"] = min(group["weight_decay"] * 4, 60.0)
        x, y = rnj_queries(40)
        optimizer.zero_grad()
        value = loss(model(x), y)
        value.backward()
        optimizer.step()
        rec.step(value, (x, y))
        if step % 60 == 59:
            with torch.no_grad():
                last = loss(model(xv), yv).item()
            rec.validation(last)
    return last


@fault("A schedule multiplies the weight decay every 60 steps, until it outweighs what the gradients say.",
       rules=("weight-decay-dominates",), step=660, steps=1200)
def rnj_decay(record):
    rnj_decay_core(record, True)
