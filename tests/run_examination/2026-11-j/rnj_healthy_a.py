"""Healthy loops, first half."""
import copy

import torch
from torch import nn
from torch.nn import functional as F

from program import healthy
from rnj_data import rnj_digits, rnj_house_tables, rnj_houses, rnj_queries, rnj_shapes
from rnj_faults_a import RnjConv, RnjResNet


@healthy("Batches of four with one label in five wrong: a noisy loss that stays at its floor.", steps=1500)
def rnj_tiny_batches(record):
    torch.manual_seed(301)
    model = nn.Sequential(nn.Linear(5, 24), nn.Tanh(), nn.Linear(24, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.5)
    scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, [800, 1200], 0.3)
    loss = nn.BCEWithLogitsLoss()
    w = torch.randn(5)

    def rnj_draw(n):
        x = torch.randn(n, 5)
        y = (x @ w > 0).float()
        return x, torch.where(torch.rand(n) < 0.2, 1 - y, y)[:, None]

    xv, yv = rnj_draw(2000)
    rec = record(model, optimizer, loss)
    for step in range(1500):
        x, y = rnj_draw(4)
        optimizer.zero_grad()
        value = loss(model(x), y)
        value.backward()
        optimizer.step()
        scheduler.step()
        rec.step(value, (x, y))
        if step % 150 == 149:
            with torch.no_grad():
                rec.validation(loss(model(xv), yv).item())


@healthy("Warm restarts of the rate, with bumps of the loss, and a weight decay that grows a little each cycle.",
         steps=1200)
def rnj_restarts(record):
    torch.manual_seed(302)
    model = RnjConv()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.03, momentum=0.9, weight_decay=1e-4)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(optimizer, 171, 2, eta_min=1e-4)
    loss = nn.CrossEntropyLoss()
    xv, yv = rnj_shapes(512)
    rec = record(model, optimizer, loss)
    for step in range(1200):
        if step in (171, 513):
            optimizer.param_groups[0]["weight_decay"] *= 2
        x, y = rnj_shapes(24)
        optimizer.zero_grad()
        value = loss(model(x), y)
        value.backward()
        optimizer.step()
        scheduler.step()
        rec.step(value, (x, y))
        if step % 100 == 99:
            with torch.no_grad():
                rec.validation(loss(model(xv), yv).item())


@healthy("One-cycle schedule of a small ResNet, whose rate ends at nearly zero.", steps=1000)
def rnj_onecycle(record):
    torch.manual_seed(303)
    model = RnjResNet()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.02)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 8e-3, total_steps=1000, final_div_factor=1e4)
    loss = nn.CrossEntropyLoss()
    xv, yv = rnj_shapes(400, noise=0.45)
    rec = record(model, optimizer, loss)
    for step in range(1000):
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
                rec.validation(loss(model(xv), yv).item())
            model.train()


class RnjDropReader(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(20, 32)
        self.place = nn.Parameter(torch.randn(12, 32) * 0.3)
        layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.2, batch_first=True, norm_first=True,
                                           activation="gelu")
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(32)
        self.out = nn.Linear(32, 4)

    def forward(self, x):
        return self.out(self.norm(self.encoder(self.embed(x) + self.place)).mean(1))


@healthy("Dropout and label smoothing keep the training loss above that on held-out data; warm-up, then 1/sqrt.",
         steps=1100)
def rnj_smoothing(record):
    torch.manual_seed(304)
    model = RnjDropReader()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, betas=(0.9, 0.98), weight_decay=0.01)
    scheduler = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda s: min((s + 1) / 100, (100 / (s + 1)) ** 0.5))
    loss = nn.CrossEntropyLoss(label_smoothing=0.1)
    xv, yv = rnj_queries(400)
    rec = record(model, optimizer, loss)
    for step in range(1100):
        x, y = rnj_queries(40)
        optimizer.zero_grad()
        value = loss(model(x), y)
        value.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        rec.step(value, (x, y))
        if step % 100 == 99:
            model.eval()
            with torch.no_grad():
                rec.validation(F.cross_entropy(model(xv), yv).item())
            model.train()


class RnjClicks(nn.Module):
    def __init__(self):
        super().__init__()
        self.user = nn.Embedding(50, 8)
        self.item = nn.Embedding(40, 8)
        self.mlp = nn.Sequential(nn.Linear(24, 32), nn.ReLU(), nn.Linear(32, 1))

    def forward(self, x):
        u, i = self.user(x[:, 0]), self.item(x[:, 1])
        return self.mlp(torch.cat([u, i, u * i], 1))


@healthy("Clicks of which a few in a hundred are positive, so that batches differ much.", steps=1600)
def rnj_clicks(record):
    torch.manual_seed(305)
    taste, kind = torch.randn(50, 3), torch.randn(40, 3)
    bias = torch.randn(40)
    model = RnjClicks()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    loss = nn.BCEWithLogitsLoss()

    def rnj_draw(n):
        u, i = torch.randint(0, 50, (n,)), torch.randint(0, 40, (n,))
        p = torch.sigmoid(2.0 * (taste[u] * kind[i]).sum(1) + bias[i] - 6.0)
        return torch.stack([u, i], 1), (torch.rand(n) < p).float()[:, None]

    xv, yv = rnj_draw(6000)
    rec = record(model, optimizer, loss)
    for step in range(1600):
        x, y = rnj_draw(128)
        optimizer.zero_grad()
        value = loss(model(x), y)
        value.backward()
        optimizer.step()
        rec.step(value, (x, y))
        if step % 160 == 159:
            with torch.no_grad():
                rec.validation(loss(model(xv), yv).item())


class RnjGauss(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(3, 40), nn.SiLU(), nn.Linear(40, 40), nn.SiLU())
        self.mean = nn.Linear(40, 1)
        self.spread = nn.Linear(40, 1)

    def forward(self, x):
        h = self.body(x)
        return torch.cat([self.mean(h), self.spread(h)], 1)


def rnj_gauss_nll(outputs, targets):
    mean, log_var = outputs[:, :1], outputs[:, 1:].clamp(-8, 8)
    return (0.5 * (log_var + (targets - mean) ** 2 * torch.exp(-log_var))).mean()


@healthy("A Gaussian likelihood that goes below zero, with noise that depends on the input.", steps=1300)
def rnj_negative(record):
    torch.manual_seed(306)
    model = RnjGauss()
    optimizer = torch.optim.RAdam(model.parameters(), lr=4e-3)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 1300, 2e-5)

    def rnj_draw(n):
        x = torch.rand(n, 3) * 2 - 1
        return x, torch.sin(3 * x[:, :1]) * x[:, 1:2] + torch.exp(x[:, 2:] - 2.2) * torch.randn(n, 1)

    xv, yv = rnj_draw(2000)
    rec = record(model, optimizer, rnj_gauss_nll)
    for step in range(1300):
        x, y = rnj_draw(64)
        optimizer.zero_grad()
        value = rnj_gauss_nll(model(x), y)
        value.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimizer.step()
        scheduler.step()
        rec.step(value, (x, y))
        if step % 130 == 129:
            with torch.no_grad():
                rec.validation(rnj_gauss_nll(model(xv), yv).item())


class RnjTuned(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(64, 48), nn.ReLU(), nn.Linear(48, 24), nn.ReLU())
        self.head = nn.Linear(24, 10)

    def forward(self, x):
        return self.head(self.body(x))


@healthy("Gradual unfreezing: a pretrained body joins on purpose, at a tenth of the head's rate.", steps=1000)
def rnj_unfreezing(record):
    torch.manual_seed(307)
    xt, yt, xv, yv = rnj_digits(1400)
    old = nn.Linear(24, 2)
    model = RnjTuned()
    before = torch.optim.Adam([*model.body.parameters(), *old.parameters()], lr=2e-3)
    for _ in range(200):  # pretraining on another question: which digits have a loop or are even
        at = torch.randint(0, 1400, (64,))
        target = torch.stack([(yt[at] % 2 == 0), (yt[at] == 0) | (yt[at] >= 6)], 1).float()
        value = F.binary_cross_entropy_with_logits(old(model.body(xt[at])), target)
        before.zero_grad()
        value.backward()
        before.step()
    for p in model.body.parameters():
        p.requires_grad_(False)
    optimizer = torch.optim.Adam([{"params": model.head.parameters(), "lr": 5e-3}])
    loss = nn.CrossEntropyLoss()
    rec = record(model, optimizer, loss)
    for step in range(1000):
        if step == 300:
            for p in model.body[2].parameters():
                p.requires_grad_(True)
            optimizer.add_param_group({"params": model.body[2].parameters(), "lr": 5e-4})
        if step == 550:
            for p in model.body[0].parameters():
                p.requires_grad_(True)
            optimizer.add_param_group({"params": model.body[0].parameters(), "lr": 2e-4})
        at = torch.randint(0, 1400, (48,))
        x = xt[at] + 0.3 * torch.randn(48, 64)
        optimizer.zero_grad()
        value = loss(model(x), yt[at])
        value.backward()
        optimizer.step()
        rec.step(value, (x, yt[at]))
        if step % 100 == 99:
            with torch.no_grad():
                rec.validation(loss(model(xv), yv).item())


@healthy("Values learned from a target network: targets that move with every copy.", steps=1500)
def rnj_bootstrap(record):
    torch.manual_seed(308)
    model = nn.Sequential(nn.Linear(4, 48), nn.ELU(), nn.Linear(48, 48), nn.ELU(), nn.Linear(48, 1))
    frozen = copy.deepcopy(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=1.5e-3)
    loss = nn.SmoothL1Loss()
    turn = torch.linalg.qr(torch.randn(4, 4))[0]

    def rnj_reward(s):
        return torch.tanh(s[:, :1] + 0.5 * s[:, 1:2] * s[:, 2:3])

    rec = record(model, optimizer, loss)
    held = torch.randn(800, 4)
    truth = torch.zeros(800, 1)
    s = held
    for k in range(60):
        truth = truth + 0.8 ** k * rnj_reward(s)
        s = s @ turn
    for step in range(1500):
        if step % 75 == 0:
            frozen.load_state_dict(model.state_dict())
        x = torch.randn(64, 4)
        with torch.no_grad():
            y = rnj_reward(x) + 0.1 * torch.randn(64, 1) + 0.8 * frozen(x @ turn)
        optimizer.zero_grad()
        value = loss(model(x), y)
        value.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 10.0)
        optimizer.step()
        rec.step(value, (x, y))
        if step % 150 == 149:
            with torch.no_grad():
                rec.validation(loss(model(held), truth).item())


class RnjAdder(nn.Module):
    def __init__(self):
        super().__init__()
        self.gru = nn.GRU(2, 32, batch_first=True)
        self.out = nn.Linear(32, 1)

    def forward(self, x):
        return self.out(self.gru(x)[0][:, -1])


@healthy("A curriculum: sequences get longer in four stages, and the loss goes up at each before it falls.",
         steps=1200)
def rnj_curriculum(record):
    torch.manual_seed(309)
    model = RnjAdder()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, 1200)
    loss = nn.MSELoss()

    def rnj_draw(n, length):
        v = torch.rand(n, length) * 2 - 1
        marks = torch.zeros(n, length)
        a = torch.randint(0, length // 2, (n,))
        b = torch.randint(length // 2, length, (n,))
        marks[torch.arange(n), a] = 1
        marks[torch.arange(n), b] = 1
        return torch.stack([v, marks], 2), (v * marks).sum(1, keepdim=True)

    xv, yv = rnj_draw(500, 18)
    rec = record(model, optimizer, loss)
    for step in range(1200):
        length = (4, 8, 12, 18)[min(step // 280, 3)]
        x, y = rnj_draw(48, length)
        optimizer.zero_grad()
        value = loss(model(x), y)
        value.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        rec.step(value, (x, y))
        if step % 120 == 119:
            with torch.no_grad():
                rec.validation(loss(model(xv), yv).item())
