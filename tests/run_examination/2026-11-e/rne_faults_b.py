import math

import torch
import torch.nn.functional as F
from program import fault
from rne_data import digits, teacher
from torch import nn


@fault("the model takes the logarithm of its inputs; a batch at step 733 holds a zero, and everything is NaN from then on",
       rules=("non-finite",), step=733, steps=1000)
def log_prices(record, broken=True):
    torch.manual_seed(508)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Sequential(nn.Linear(6, 64), nn.SiLU(), nn.Linear(64, 64), nn.SiLU(), nn.Linear(64, 1))

        def forward(self, x):
            return self.inner(torch.log(x))

    f = teacher(6, 1, seed=8)
    model = Net()
    opt = torch.optim.Adam(model.parameters(), lr=2e-3)
    loss_fn = nn.MSELoss()
    rec = record(model, opt, loss_fn)
    for step in range(1000):
        z = torch.randn(64, 6)
        x, y = z.exp(), f(z) + 0.1 * torch.randn(64, 1)
        if broken and step == 733:
            x[17, 2] = 0.0
        opt.zero_grad()
        loss = loss_fn(model(x), y)
        loss.backward()
        opt.step()
        rec.step(loss.item(), (x, y))


@fault("hand-written decay is not multiplied by the rate: as the cosine schedule lowers the rate, decay wins",
       rules=("weight-decay-dominates",), step=0, steps=1600)
def decay_by_hand(record, broken=True):
    torch.manual_seed(509)
    xtr, ytr, _, _ = digits()
    model = nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 10))
    opt = torch.optim.Adam(model.parameters(), lr=4e-3)
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, 1600, eta_min=1e-5)
    loss_fn = nn.CrossEntropyLoss()
    rec = record(model, opt, loss_fn)
    for _ in range(1600):
        i = torch.randint(0, 1400, (40,))
        x, y = xtr[i] + 0.3 * torch.randn(40, 64), ytr[i]
        opt.zero_grad()
        loss = loss_fn(model(x), y)
        loss.backward()
        opt.step()
        with torch.no_grad():
            for p in model.parameters():
                p.mul_(1 - 0.01 * (1.0 if broken else opt.param_groups[0]["lr"]))
        sched.step()
        rec.step(loss.item(), (x, y))


class _Signal(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.conv2 = nn.Conv1d(2, 12, 5, padding=2), nn.Conv1d(12, 16, 5, stride=2, padding=2)
        self.norm = nn.GroupNorm(4, 16)
        self.head = nn.Linear(16, 4)

    def forward(self, x):
        return self.head(F.relu(self.norm(self.conv2(F.relu(self.conv1(x))))).mean(2))


def _waves(n):
    y = torch.randint(0, 4, (n,))
    t = torch.arange(32) / 32
    f = (2.0 + 1.5 * y)[:, None]
    ph = torch.rand(n, 1) * 2 * math.pi
    x = torch.stack([torch.sin(2 * math.pi * f * t + ph), torch.cos(2 * math.pi * f * t + ph)], 1)
    return x + 0.5 * torch.randn_like(x), y


@fault("from step 811 on the labels come from a list shuffled apart from the inputs",
       rules=("labels-unrelated", "data-changed", "output-loss-mismatch"), step=811, steps=1500)
def waves_and_labels(record, broken=True):
    torch.manual_seed(510)
    model = _Signal()
    opt = torch.optim.Adam(model.parameters(), lr=3e-3)
    loss_fn = nn.CrossEntropyLoss()
    rec = record(model, opt, loss_fn)
    for step in range(1500):
        x, y = _waves(32)
        if broken and step >= 811:
            y = y[torch.randperm(len(y))]
        opt.zero_grad()
        loss = loss_fn(model(x), y)
        loss.backward()
        opt.step()
        rec.step(loss.item(), (x, y))


@fault("a restarted worker has the same seed each time: from step 395 on the same five batches come again and again",
       rules=("repeated-batches", "overfitting"), step=395, steps=1400)
def worker_seed(record, broken=True):
    torch.manual_seed(511)
    f = teacher(20, 6, seed=11)
    model = nn.Sequential(nn.Linear(20, 160), nn.ReLU(), nn.Linear(160, 160), nn.ReLU(), nn.Linear(160, 6))
    opt = torch.optim.AdamW(model.parameters(), lr=1.5e-3)
    loss_fn = nn.CrossEntropyLoss()

    def draw(n, g):
        x = torch.randn(n, 20, generator=g)
        p = torch.softmax(1.5 * f(x), 1)
        return x, torch.multinomial(p, 1, generator=g).squeeze(1)

    gen = torch.Generator().manual_seed(77)
    xv, yv = draw(600, torch.Generator().manual_seed(78))
    rec = record(model, opt, loss_fn)
    for step in range(1400):
        if broken and step >= 395 and (step - 395) % 5 == 0:
            gen = torch.Generator().manual_seed(4)
        x, y = draw(40, gen)
        opt.zero_grad()
        loss = loss_fn(model(x), y)
        loss.backward()
        opt.step()
        rec.step(loss.item(), (x, y))
        if step % 35 == 34:
            with torch.no_grad():
                rec.validation(loss_fn(model(xv), yv).item())


@fault("the schedule was made for epochs and is stepped per batch: the rate is all but 0 from step 130 on",
       rules=("learning-rate-too-low", "lost-updates", "no-gradient"), step=130, steps=1500)
def schedule_in_batches(record, broken=True):
    torch.manual_seed(512)
    t = torch.linspace(-1, 1, 400)[:, None]
    ys = torch.sin(9 * t) * torch.exp(-t * t) + 0.3 * torch.cos(17 * t)
    model = nn.Sequential(nn.Linear(1, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1))
    with torch.no_grad():
        model[0].weight.mul_(5)
    opt = torch.optim.Adam(model.parameters(), lr=3e-3)
    length = 130 if broken else 1500
    sched = torch.optim.lr_scheduler.LambdaLR(
        opt, lambda s: max(1e-5, 0.5 * (1 + math.cos(math.pi * min(1.0, s / length)))))
    loss_fn = nn.MSELoss()
    rec = record(model, opt, loss_fn)
    for _ in range(1500):
        i = torch.randint(0, 400, (64,))
        x, y = t[i], ys[i] + 0.02 * torch.randn(64, 1)
        opt.zero_grad()
        loss = loss_fn(model(x), y)
        loss.backward()
        opt.step()
        sched.step()
        rec.step(loss.item(), (x, y))


@fault("the run is resumed at step 640 without the scaler of the inputs: raw values come in from then on",
       rules=("unscaled-input", "data-changed", "loss-spike"), step=640, steps=1300)
def resumed_without_scaler(record, broken=True):
    torch.manual_seed(513)
    f = teacher(9, 2, seed=13)
    mean, scale = torch.linspace(-40, 60, 9), torch.logspace(0, 2, 9)
    model = nn.Sequential(nn.Linear(9, 50), nn.LeakyReLU(0.1), nn.Linear(50, 50), nn.LeakyReLU(0.1), nn.Linear(50, 2))
    opt = torch.optim.RMSprop(model.parameters(), lr=1e-3)
    loss_fn = nn.MSELoss()
    rec = record(model, opt, loss_fn)
    scaled = True
    for step in range(1300):
        if broken and step == 640:
            scaled = False
        raw = mean + scale * torch.randn(80, 9)
        y = f((raw - mean) / scale) + 0.05 * torch.randn(80, 2)
        x = (raw - mean) / scale if scaled else raw
        loss = loss_fn(model(x), y)
        model.zero_grad()
        loss.backward()
        opt.step()
        rec.step(loss.item(), (x, y))


@fault("the loss scale is halved every 12 steps instead of on overflow; gradients kept in float16 become 0",
       rules=("gradient-underflow", "no-gradient", "vanishing-gradient", "learning-rate-too-low"), step=348, steps=1200)
def shrinking_scale(record, broken=True):
    torch.manual_seed(514)
    xtr, ytr, _, _ = digits()
    model = nn.Sequential(nn.Unflatten(1, (1, 8, 8)), nn.Conv2d(1, 6, 3), nn.ReLU(), nn.Conv2d(6, 12, 3), nn.ReLU(),
                          nn.Flatten(), nn.Linear(192, 10))
    opt = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.5)
    loss_fn = nn.CrossEntropyLoss()
    rec = record(model, opt, loss_fn)
    scale = 1024.0
    for step in range(1200):
        if broken and step % 12 == 11:
            scale = max(scale / 2, 2.0**-30)
        i = torch.randint(0, 1400, (32,))
        x, y = xtr[i] + 0.5 * torch.randn(32, 64), ytr[i]
        opt.zero_grad()
        loss = loss_fn(model(x), y)
        (loss * scale).backward()
        for p in model.parameters():
            p.grad = p.grad.half().float() / scale
        opt.step()
        rec.step(loss.item(), (x, y))
