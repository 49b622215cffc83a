from __future__ import annotations

import copy
import math

import torch
import torch.nn.functional as F
from program import fault
from torch import nn

from rnn_data import *


# ---------------------------------------------------------------- 1
class RnnGruNet(nn.Module):
    def __init__(self, classes=5, hidden=32):
        super().__init__()
        self.rnn = nn.GRU(1, hidden, batch_first=True)
        self.head = nn.Linear(hidden, classes)

    def forward(self, x):
        return self.head(self.rnn(x)[0].mean(1))


def rnn_shadowed_net_loop(record, broken):
    rnn_seed(11)
    g = rnn_gen(11)
    x, y = rnn_waves(3000, g)
    vx, vy = rnn_waves(800, g)
    model = RnnGruNet()
    ema = copy.deepcopy(model)
    loss = nn.CrossEntropyLoss()
    opt = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    rec = record(model, opt, loss)
    net = model
    it = rnn_epochs(len(x), 32, g)
    for step in range(1, 1501):
        i = next(it)
        net.zero_grad()
        value = loss(model(x[i]), y[i])
        value.backward()
        opt.step()
        with torch.no_grad():
            for a, b in zip(ema.parameters(), model.parameters()):
                a.lerp_(b, 0.02)
        rec.step(value.item(), (x[i], y[i]))
        if step % 100 == 0:
            if step >= 600:
                # from here on the averaged weights are the ones that are reported
                if broken:
                    net = ema
                    rec.validation(rnn_eval(net, loss, vx, vy))
                else:
                    rec.validation(rnn_eval(ema, loss, vx, vy))
            else:
                rec.validation(rnn_eval(net, loss, vx, vy))
    return rnn_eval(model, loss, vx, vy)


@fault(
    "The evaluation of averaged weights rebinds the name `net`, so that net.zero_grad() clears the copy and the trained net's gradients add up.",
    rules=("gradients-not-cleared",),
    step=601,
    steps=1500,
)
def rnn_shadowed_net(record):
    rnn_shadowed_net_loop(record, True)


# ---------------------------------------------------------------- 2
def rnn_teacher_momentum_loop(record, broken):
    rnn_seed(22)
    g = rnn_gen(22)
    x, y = rnn_images(3000, g)
    vx, vy = rnn_images(600, g)
    model = nn.Sequential(
        nn.Conv2d(1, 12, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(12, 24, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(24 * 9, 48), nn.ReLU(), nn.Linear(48, 6),
    )
    teacher = copy.deepcopy(model)
    loss = nn.CrossEntropyLoss()
    opt = torch.optim.SGD(model.parameters(), lr=0.03, momentum=0.9, weight_decay=1e-4)
    rec = record(model, opt, loss)
    it = rnn_epochs(len(x), 32, g)
    momentum = 0.9
    total = 1000
    for step in range(1, total + 1):
        if step >= 300:
            # teacher momentum 0.995 -> 1 on a cosine
            momentum = 1 - 0.005 * 0.5 * (1 + math.cos(math.pi * min(1, (step - 300) / 400)))
            if broken:
                for group in opt.param_groups:
                    if "momentum" in group:
                        group["momentum"] = momentum
        i = next(it)
        opt.zero_grad()
        value = loss(model(x[i]), y[i])
        value.backward()
        opt.step()
        with torch.no_grad():
            for a, b in zip(teacher.parameters(), model.parameters()):
                a.mul_(momentum).add_(b, alpha=1 - momentum)
        rec.step(value.item(), (x[i], y[i]))
        if step % 50 == 0:
            rec.validation(rnn_eval(model, loss, vx, vy))
    return rnn_eval(model, loss, vx, vy)


@fault(
    "The momentum schedule of a mean teacher (0.995 to 1) is written into the optimizer's momentum; the loss diverges.",
    rules=("diverging", "learning-rate-too-high", "optimizer-setting"),
    step=310,
    steps=1000,
)
def rnn_teacher_momentum(record):
    rnn_teacher_momentum_loop(record, True)


# ---------------------------------------------------------------- 3
def rnn_late_warmup_check_loop(record, broken):
    rnn_seed(33)
    g = rnn_gen(33)
    text, held = rnn_text(20000, 1), rnn_text(3000, 2)
    vx, vy = rnn_windows(held, 100, 24, g)
    model = RnnLM(20, d=32, heads=4, layers=2)
    opt = torch.optim.AdamW(model.parameters(), lr=2e-5, weight_decay=0.01)
    rec = record(model, opt, rnn_lm_loss)
    target, lr, warming, epoch = 3e-3, 2e-5, True, 800
    for step in range(1, 1601):
        if warming:
            lr *= 1.012
            if broken:
                if step % epoch == 0 and lr >= target:
                    warming = False
            elif lr >= target:
                lr, warming = target, False
        rnn_set_lr(opt, lr)
        x, y = rnn_windows(text, 16, 24, g)
        value = rnn_lm_loss(model(x), y)
        opt.zero_grad()
        value.backward()
        opt.step()
        rec.step(value.item(), (x, y))
        if step % 100 == 0:
            rec.validation(rnn_eval(model, rnn_lm_loss, vx, vy))
    return rnn_eval(model, rnn_lm_loss, vx, vy)


@fault(
    "An exponential warm-up that tests its end only at the end of an epoch: the rate runs far past its target and stays there.",
    rules=("learning-rate-too-high", "diverging"),
    step=600,
    steps=1600,
)
def rnn_late_warmup_check(record):
    rnn_late_warmup_check_loop(record, True)


# ---------------------------------------------------------------- 4
class RnnSparseNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(64, 96)
        self.act1 = nn.ReLU()
        self.fc2 = nn.Linear(96, 48)
        self.act2 = nn.ReLU()
        self.out = nn.Linear(48, 10)

    def forward(self, x):
        self.h1 = self.act1(self.fc1(x.flatten(1)))
        self.h2 = self.act2(self.fc2(self.h1))
        return self.out(self.h2)


def rnn_sparsity_phase_loop(record, broken):
    rnn_seed(44)
    g = rnn_gen(44)
    x, y, vx, vy = rnn_digits()
    model = RnnSparseNet()
    ce = nn.CrossEntropyLoss()
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    strength = [0.0]

    def objective(out, target):
        # cross-entropy and an activity penalty, meant for the mean and not for the sum over units
        if broken:
            activity = model.h1.sum(1).mean() + model.h2.sum(1).mean()
        else:
            activity = 0.3 * (model.h1.mean() + model.h2.mean())
        return ce(out, target) + strength[0] * activity

    rec = record(model, opt, objective)
    it = rnn_epochs(len(x), 64, g)
    for step in range(1, 1401):
        i = next(it)
        xb = x[i] + 0.3 * torch.randn(x[i].shape, generator=g)
        strength[0] = 0.2 * (step - 500) / 400 if 500 <= step < 900 else 0.0
        value = objective(model(xb), y[i])
        opt.zero_grad()
        value.backward()
        opt.step()
        rec.step(value.item(), (xb, y[i]))
        if step % 50 == 0:
            rec.validation(rnn_eval(model, ce, vx, vy))
    return rnn_eval(model, ce, vx, vy)


@fault(
    "A ramped activity penalty, summed over units, drives ReLUs below zero for good; after it is off they stay dead.",
    rules=("dying-neurons", "term-dominates"),
    layers=("act1", "fc1"),
    step=600,
    steps=1400,
)
def rnn_sparsity_phase(record):
    rnn_sparsity_phase_loop(record, True)


# ---------------------------------------------------------------- 5
class RnnTransfer(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2))
        self.body = nn.Sequential(nn.Conv2d(16, 24, 3, padding=1), nn.GroupNorm(4, 24), nn.ReLU(), nn.MaxPool2d(2))
        self.head = nn.Sequential(nn.Flatten(), nn.Linear(24 * 4, 32), nn.Tanh(), nn.Linear(32, classes))

    def forward(self, x):
        return self.head(self.body(self.stem(x)))


def rnn_inverted_layer_rates_loop(record, broken):
    rnn_seed(55)
    g = rnn_gen(55)
    x, y, vx, vy = rnn_digits()
    loss = nn.CrossEntropyLoss()
    old = RnnTransfer(5)
    few = (y < 5).nonzero().flatten()
    pre = torch.optim.Adam(old.parameters(), lr=2e-3)
    it = rnn_epochs(len(few), 64, g)
    for _ in range(250):
        i = few[next(it)]
        pre.zero_grad()
        loss(old(x[i]), y[i]).backward()
        pre.step()
    model = RnnTransfer(10)
    model.stem.load_state_dict(old.stem.state_dict())
    model.body.load_state_dict(old.body.state_dict())
    for p in model.stem.parameters():
        p.requires_grad_(False)
    decay = 0.1
    opt = torch.optim.SGD(
        [
            {"params": model.head.parameters(), "lr": 0.05},
            {"params": model.body.parameters(), "lr": 0.01},
            {"params": model.stem.parameters(), "lr": 0.05 / decay**2 if broken else 0.05 * decay},
        ],
        lr=0.05, momentum=0.9,
    )
    rec = record(model, opt, loss)
    it = rnn_epochs(len(x), 32, g)
    for step in range(1, 1101):
        if step == 700:
            for p in model.stem.parameters():
                p.requires_grad_(True)
        i = next(it)
        xb = x[i] + 0.2 * torch.randn(x[i].shape, generator=g)
        opt.zero_grad()
        value = loss(model(xb), y[i])
        value.backward()
        opt.step()
        rec.step(value.item(), (xb, y[i]))
        if step % 50 == 0:
            rec.validation(rnn_eval(model, loss, vx, vy))
    return rnn_eval(model, loss, vx, vy)


@fault(
    "Layer-wise rates the wrong way round: the pretrained stem, frozen until step 700, is thawed at a hundred times the head's rate.",
    rules=("layer-thawed", "learning-rate-too-high"),
    layers=("stem",),
    step=700,
    steps=1100,
)
def rnn_inverted_layer_rates(record):
    rnn_inverted_layer_rates_loop(record, True)


# ---------------------------------------------------------------- 6
class RnnPointNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.c1 = nn.Conv1d(3, 24, 1)
        self.b1 = nn.BatchNorm1d(24)
        self.c2 = nn.Conv1d(24, 48, 1)
        self.b2 = nn.BatchNorm1d(48)
        self.f1 = nn.Linear(48, 32)
        self.b3 = nn.BatchNorm1d(32)
        self.f2 = nn.Linear(32, 4)

    def forward(self, x):
        h = F.relu(self.b1(self.c1(x.transpose(1, 2))))
        h = F.relu(self.b2(self.c2(h))).amax(2)
        return self.f2(F.relu(self.b3(self.f1(h))))


def rnn_unfloored_bn_momentum_loop(record, broken):
    rnn_seed(66)
    g = rnn_gen(66)
    x, y = rnn_cloud(3000, g)
    vx, vy = rnn_cloud(800, g)
    model = RnnPointNet()
    loss = nn.CrossEntropyLoss()
    opt = torch.optim.Adam(model.parameters(), lr=3e-3)
    rec = record(model, opt, loss)
    it = rnn_epochs(len(x), 32, g)
    for step in range(1, 1501):
        m = 0.5 * 0.5 ** (step / 60)
        if not broken:
            m = max(m, 0.05)
        for b in (model.b1, model.b2, model.b3):
            b.momentum = m
        if step in (900, 1200):
            rnn_set_lr(opt, opt.param_groups[0]["lr"] / 2)
        i = next(it)
        opt.zero_grad()
        value = loss(model(x[i]), y[i])
        value.backward()
        opt.step()
        rec.step(value.item(), (x[i], y[i]))
        if step % 50 == 0:
            rec.validation(rnn_eval(model, loss, vx, vy))
    return rnn_eval(model, loss, vx, vy)


@fault(
    "The decay of BatchNorm's momentum has lost its floor: it goes to nothing, and the running statistics stay behind the weights.",
    rules=("stale-statistics", "batchnorm-mode-gap"),
    layers=("b1", "b2", "b3"),
    step=500,
    steps=1500,
)
def rnn_unfloored_bn_momentum(record):
    rnn_unfloored_bn_momentum_loop(record, True)
