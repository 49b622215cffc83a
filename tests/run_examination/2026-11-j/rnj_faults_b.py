"""Loops with a fault, second half."""
import torch
from torch import nn
from torch.nn import functional as F

from program import fault
from rnj_data import rnj_cells, rnj_digits, rnj_docs, rnj_lowrank, rnj_sensors


def rnj_scaler_core(record, broken):
    torch.manual_seed(201)
    basis = torch.randn(5, 24) * 0.6
    model = nn.Sequential(nn.Linear(24, 40), nn.Tanh(), nn.Linear(40, 5), nn.Linear(5, 40), nn.Tanh(),
                          nn.Linear(40, 24))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.15, momentum=0.9)
    loss = nn.MSELoss()
    xv = rnj_lowrank(512, basis)
    scale = 2.0 ** 12
    rec = record(model, optimizer, loss)
    zeros = []
    for step in range(1300):
        if broken and step >= 300 and step % 8 == 0:
            scale = max(scale / 2, 2.0 ** -18)  # every check reports an overflow, as its threshold is wrong
        x = rnj_lowrank(64, basis)
        optimizer.zero_grad()
        value = loss(model(x), x)
        (value * scale).backward()
        for p in model.parameters():
            p.grad = p.grad.clamp(-65504, 65504).half().float() / scale
        zeros.append(sum(int((p.grad == 0).sum()) for p in model.parameters()) / sum(
            p.numel() for p in model.parameters()))
        optimizer.step()
        rec.step(value, (x, x))
        if step % 100 == 99:
            with torch.no_grad():
                rec.validation(loss(model(xv), xv).item())
    rnj_scaler_core.zeros = zeros
    with torch.no_grad():
        return loss(model(xv), xv).item()


@fault("A loss scale that collapses, so that half precision's gradients become 0.",
       rules=("gradient-underflow", "no-gradient"), step=480, steps=1300)
def rnj_scaler(record):
    rnj_scaler_core(record, True)


class RnjUNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.down1 = nn.Conv2d(1, 8, 3, padding=1)
        self.down2 = nn.Conv2d(8, 16, 3, padding=1)
        self.middle = nn.Conv2d(16, 16, 3, padding=1)
        self.up = nn.Conv2d(24, 8, 3, padding=1)
        self.out = nn.Conv2d(8, 1, 1)

    def forward(self, x):
        a = F.relu(self.down1(x))
        b = F.relu(self.down2(F.max_pool2d(a, 2)))
        b = F.relu(self.middle(b))
        b = F.interpolate(b, scale_factor=2)
        return self.out(F.relu(self.up(torch.cat([a, b], 1))))


def rnj_early_core(record, broken):
    torch.manual_seed(202)
    model = RnjUNet()
    optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.85)
    loss = nn.BCEWithLogitsLoss()
    xv, yv = rnj_cells(200)
    rec = record(model, optimizer, loss)
    for epoch in range(15):
        for _ in range(50):
            x, y = rnj_cells(16)
            optimizer.zero_grad()
            value = loss(model(x), y)
            value.backward()
            optimizer.step()
            if broken:
                scheduler.step()
            rec.step(value, (x, y))
        if not broken:
            scheduler.step()
        with torch.no_grad():
            last = loss(model(xv), yv).item()
        rec.validation(last)
    return last


@fault("A decay meant for epochs is stepped with every batch, and the rate is gone after a few dozen steps.",
       rules=("learning-rate-too-low", "lost-updates"), step=40, steps=750)
def rnj_early(record):
    rnj_early_core(record, True)


class RnjSensorNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(3, 24, batch_first=True)
        self.out = nn.Linear(48, 6)

    def forward(self, x):
        h, _ = self.lstm(x)
        return self.out(torch.cat([h.mean(1), h.amax(1)], 1))


def rnj_worker_core(record, broken):
    torch.manual_seed(203)
    model = RnjSensorNet()
    optimizer = torch.optim.Adam(model.parameters(), lr=4e-3, betas=(0.9, 0.98))
    loss = nn.CrossEntropyLoss()
    centre, spread = torch.tensor([20.0, -3.0, 95.0]), torch.tensor([8.0, 15.0, 30.0])
    xv, yv = rnj_sensors(512)
    rec = record(model, optimizer, loss)
    for step in range(900):
        x, y = rnj_sensors(32)
        raw = x * spread + centre
        if broken and step >= 520:
            x = raw  # the worker that took over was started without the normaliser
        else:
            x = (raw - centre) / spread
        optimizer.zero_grad()
        value = loss(model(x), y)
        value.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        rec.step(value, (x, y))
        if step % 60 == 59:
            with torch.no_grad():
                last = loss(model(xv), yv).item()
            rec.validation(last)
    return last


@fault("From some step on the inputs come without their normalisation.",
       rules=("data-changed", "unscaled-input"), step=520, steps=900)
def rnj_worker(record):
    rnj_worker_core(record, True)


class RnjTwoBranch(nn.Module):
    def __init__(self):
        super().__init__()
        self.profile = nn.Sequential(nn.Linear(6, 24), nn.ReLU(), nn.Linear(24, 16))
        self.context = nn.Sequential(nn.Linear(8, 40), nn.SiLU(), nn.Linear(40, 40), nn.SiLU(), nn.Linear(40, 4))
        self.head = nn.Sequential(nn.Linear(20, 24), nn.ReLU(), nn.Linear(24, 1))
        self.cached = False

    def forward(self, x):
        a = self.profile(x[:, :6])
        if self.cached:
            with torch.no_grad():
                b = self.context(x[:, 6:])
        else:
            b = self.context(x[:, 6:])
        return self.head(torch.cat([a, b], 1))


def rnj_branch_core(record, broken):
    torch.manual_seed(204)
    model = RnjTwoBranch()
    optimizer = torch.optim.NAdam(model.parameters(), lr=2e-3)
    loss = nn.MSELoss()
    u = torch.randn(6, 1) * 0.4

    def rnj_draw(n):
        x = torch.randn(n, 14)
        c = x[:, 6:]
        y = torch.tanh(x[:, :6] @ u) + 0.7 * c[:, :1] * c[:, 1:2] + 0.7 * c[:, 2:3] * c[:, 3:4] + torch.sin(
            2 * c[:, 4:5])
        return x, y * 0.7 + 0.05 * torch.randn(n, 1)

    xv, yv = rnj_draw(1024)
    rec = record(model, optimizer, loss)
    for step in range(1200):
        if broken and step == 300:
            model.cached = True  # "the context hardly changes any more, no need for its graph"
        x, y = rnj_draw(64)
        optimizer.zero_grad()
        value = loss(model(x), y)
        value.backward()
        optimizer.step()
        rec.step(value, (x, y))
        if step % 100 == 99:
            with torch.no_grad():
                last = loss(model(xv), yv).item()
            rec.validation(last)
    return last


@fault("One branch runs under no_grad from step 300 on and learns nothing more.",
       rules=("no-gradient",), layers=("context",), step=300, steps=1200)
def rnj_branch(record):
    rnj_branch_core(record, True)


class RnjDigitNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(1, 12, 3, padding=1), nn.ReLU(), nn.Conv2d(12, 24, 3, 2, 1), nn.ReLU())
        self.classifier = nn.Linear(24 * 16, 10)

    def forward(self, x):
        return self.classifier(self.features(x.view(-1, 1, 8, 8)).flatten(1))


def rnj_cupboard_core(record, broken):
    torch.manual_seed(205)
    xt, yt, xv, yv = rnj_digits(1280)
    model = RnjDigitNet()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.03, momentum=0.8, weight_decay=1e-4)
    loss = nn.CrossEntropyLoss()
    rec = record(model, optimizer, loss)
    for epoch in range(25):
        order = torch.randperm(1280)
        if broken and epoch >= 17:  # the new loader reads the files folder by folder
            order = order[torch.argsort(yt[order], stable=True)]
        for start in range(0, 1280, 32):
            at = order[start:start + 32]
            optimizer.zero_grad()
            value = loss(model(xt[at]), yt[at])
            value.backward()
            optimizer.step()
            rec.step(value, (xt[at], yt[at]))
        with torch.no_grad():
            last = loss(model(xv), yv).item()
        rec.validation(last)
    return last


@fault("From the eighteenth epoch on the loader reads class after class.",
       rules=("sorted-batches",), step=680, steps=1000)
def rnj_cupboard(record):
    rnj_cupboard_core(record, True)


class RnjCritic(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 40), nn.Tanh(), nn.Linear(40, 40), nn.Tanh())
        self.value = nn.Linear(40, 1)

    def forward(self, x):
        return self.value(self.body(x))


def rnj_unscaled_core(record, broken):
    torch.manual_seed(206)
    model = RnjCritic()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.08, momentum=0.0)
    loss = nn.MSELoss()
    goal = torch.randn(6) * 0.5

    def rnj_states(n):
        s = torch.randn(n, 6)
        d = ((s - goal) ** 2).mean(1, keepdim=True)
        return s, 2 * torch.exp(-d) - 0.7 + 0.3 * torch.sin(2 * s[:, :1]) + 0.05 * torch.randn(n, 1)

    xv, yv = rnj_states(1024)
    rec = record(model, optimizer, loss)
    for step in range(1100):
        x, y = rnj_states(48)
        optimizer.zero_grad()
        value = loss(model(x), y)
        value.backward()
        if broken and step == 480:  # this one step came between scale and unscale
            for p in model.body.parameters():
                p.grad.mul_(4096)
        optimizer.step()
        rec.step(value, (x, y))
        if step % 100 == 99:
            with torch.no_grad():
                last = loss(model(xv), yv).item()
            rec.validation(last)
    with torch.no_grad():
        h = model.body(xv)
        rnj_unscaled_core.flat = float((h.abs() > 0.97).float().mean()), float(
            (model.body[:2](xv).abs() > 0.97).float().mean())
    return last


@fault("One step with gradients that were not unscaled blows up the weights of the body, whose tanhs stay flat.",
       rules=("saturated-activation", "loss-spike"), layers=("body",), step=480, steps=1100)
def rnj_unscaled(record):
    rnj_unscaled_core(record, True)


class RnjPool(nn.Module):
    def __init__(self, safe):
        super().__init__()
        self.safe = safe

    def forward(self, vectors, real):
        total = (vectors * real[..., None]).sum(1)
        count = real.sum(1, keepdim=True)
        return total / (count.clamp(min=1) if self.safe else count)


class RnjDocs(nn.Module):
    def __init__(self, safe):
        super().__init__()
        self.embed = nn.Embedding(60, 16)
        self.pool = RnjPool(safe)
        self.hidden = nn.Linear(16, 32)
        self.out = nn.Linear(32, 1)

    def forward(self, x):
        return self.out(F.relu(self.hidden(self.pool(self.embed(x), (x > 0).float()))))


def rnj_empty_core(record, broken):
    torch.manual_seed(207)
    good = torch.randn(60)
    model = RnjDocs(not broken)
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.05)
    loss = nn.BCEWithLogitsLoss()
    xv, yv = rnj_docs(512, good)
    rec = record(model, optimizer, loss)
    for step in range(800):
        x, y = rnj_docs(48, good)
        if step >= 390:
            x, y = rnj_docs(48, good, empty=0.08)
            if step == 390:
                x[5] = 0
        optimizer.zero_grad()
        value = loss(model(x), y)
        value.backward()
        optimizer.step()
        rec.step(value, (x, y))
        if step % 80 == 79:
            with torch.no_grad():
                last = loss(model(xv), yv).item()
            rec.validation(last)
    return last


@fault("The mean over a document's words divides by 0 at the first empty document.",
       rules=("non-finite",), layers=("pool",), step=390, steps=800)
def rnj_empty(record):
    rnj_empty_core(record, True)
