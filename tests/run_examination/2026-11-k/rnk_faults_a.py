"""Faults that only training shows, first part."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from program import fault
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from rnk_data import rnk_clusters, rnk_cycle, rnk_digits, rnk_evaluate, rnk_table, rnk_teacher, rnk_waves


class rnk_SmallCNN(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 8, 3, padding=1)
        self.conv2 = nn.Conv2d(8, 16, 3, padding=1)
        self.fc = nn.Linear(16 * 4, 10)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        return self.fc(x.flatten(1))


def rnk_finetune_phase_loop(record, broken):
    torch.manual_seed(11)
    xtr, ytr, xva, yva = rnk_digits()
    loader = DataLoader(TensorDataset(xtr, ytr), batch_size=32, shuffle=True)
    model, criterion = rnk_SmallCNN(), nn.CrossEntropyLoss()
    opt = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    rec = record(model, opt, criterion)
    step = 0
    while step < 900:
        for x, y in loader:
            if step == 900:
                break
            if step < 400:
                opt.zero_grad()
                loss = criterion(model(x), y)
                loss.backward()
            else:  # second phase: with augmentation
                x = x + 0.05 * torch.randn_like(x)
                if not broken:
                    opt.zero_grad()
                loss = criterion(model(x), y)
                loss.backward()
            opt.step()
            rec.step(loss, (x, y))
            step += 1
            if step % 50 == 0:
                rec.validation(rnk_evaluate(model, criterion, xva, yva))
    return rnk_evaluate(model, criterion, xva, yva)


@fault("the second phase of training forgets zero_grad", rules=["gradients-not-cleared"], step=400, steps=900)
def rnk_finetune_phase(record):
    rnk_finetune_phase_loop(record, True)


class rnk_Transfer(nn.Module):
    def __init__(self, d, classes):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(d, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU())
        self.head = nn.Linear(64, classes)

    def forward(self, x):
        return self.head(self.encoder(x))


def rnk_unfreeze_loop(record, broken):
    torch.manual_seed(12)
    x, y = rnk_clusters(5000, d=16, classes=12, per=2, noise=1.0, seed=3)
    model, criterion = rnk_Transfer(16, 12), nn.CrossEntropyLoss()
    pre = torch.optim.Adam(model.parameters(), lr=2e-3)
    for _ in range(400):  # pretraining on the wide task
        i = torch.randint(0, 3000, (64,))
        pre.zero_grad()
        criterion(model(x[i]), y[i]).backward()
        pre.step()
    model.head = nn.Linear(64, 4)
    y = y // 3
    for p in model.encoder.parameters():
        p.requires_grad = False
    opt = torch.optim.SGD(model.head.parameters(), lr=0.05, momentum=0.9)
    rec = record(model, opt, criterion)
    loader = rnk_cycle(DataLoader(TensorDataset(x[3000:4200], y[3000:4200]), batch_size=48, shuffle=True))
    for step in range(1000):
        if step == 450:
            for p in model.encoder.parameters():
                p.requires_grad = True
            opt.add_param_group({"params": model.encoder.parameters(), "lr": 1.5 if broken else 0.005})
        xb, yb = next(loader)
        loss = criterion(model(xb), yb)
        opt.zero_grad()
        loss.backward()
        opt.step()
        rec.step(loss, (xb, yb))
        if (step + 1) % 50 == 0:
            rec.validation(rnk_evaluate(model, criterion, x[4200:], y[4200:]))
    return rnk_evaluate(model, criterion, x[4200:], y[4200:])


@fault("the encoder is unfrozen at a rate far too high for it", rules=["learning-rate-too-high", "layer-thawed", "dying-neurons"],
       step=450, steps=1000)
def rnk_unfreeze(record):
    rnk_unfreeze_loop(record, True)


def rnk_bad_file_loop(record, broken):
    torch.manual_seed(13)
    xtr, ytr, xva, yva = rnk_table("cancer", seed=2)
    net = nn.Sequential(nn.Linear(30, 32), nn.GELU(), nn.Dropout(0.1), nn.Linear(32, 2))
    criterion = nn.CrossEntropyLoss()
    opt = torch.optim.AdamW(net.parameters(), lr=5e-4)
    rec = record(net, opt, criterion)
    for step in range(700):
        i = torch.randint(0, len(xtr), (32,))
        x, y = xtr[i].clone(), ytr[i]
        if broken and step == 411:
            x[5, 17] = float("nan")  # the file with an empty field
        opt.zero_grad()
        loss = criterion(net(x), y)
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 5.0)
        opt.step()
        rec.step(loss, (x, y))
        if (step + 1) % 50 == 0:
            rec.validation(rnk_evaluate(net, criterion, xva, yva))
    return rnk_evaluate(net, criterion, xva, yva)


@fault("one file has an empty field, and its NaN goes into all weights", rules=["non-finite"], step=411, steps=700)
def rnk_bad_file(record):
    rnk_bad_file_loop(record, True)


def rnk_resumed_sampler_loop(record, broken):
    torch.manual_seed(14)
    x, y = rnk_clusters(6000, d=20, classes=6, per=4, noise=1.5, seed=5)
    xtr, ytr, xva, yva = x[:4500], y[:4500], x[4500:], y[4500:]
    model = nn.Sequential(nn.Linear(20, 96), nn.ReLU(), nn.Linear(96, 96), nn.ReLU(), nn.Linear(96, 6))
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    rec = record(model, opt, F.cross_entropy)
    gen = torch.Generator().manual_seed(0)
    for step in range(1200):
        if step >= 500 and broken and step % 6 == 0:
            gen.manual_seed(7)  # after the restart, each chunk of 6 batches seeds the sampler anew
        i = torch.randint(0, len(xtr), (32,), generator=gen)
        xb, yb = xtr[i], ytr[i]
        loss = F.cross_entropy(model(xb), yb)
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
        rec.step(loss, (xb, yb))
        if (step + 1) % 40 == 0:
            rec.validation(rnk_evaluate(model, F.cross_entropy, xva, yva))
    return rnk_evaluate(model, F.cross_entropy, xva, yva)


@fault("after a restart the sampler gives the same six batches for ever", rules=["repeated-batches", "overfitting"], step=500, steps=1200)
def rnk_resumed_sampler(record):
    rnk_resumed_sampler_loop(record, True)


class rnk_Regressor(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(12, 64)
        self.fc2 = nn.Linear(64, 48)
        self.out = nn.Linear(48, 1)

    def forward(self, x):
        x = torch.relu(self.fc1(x))
        x = torch.relu(self.fc2(x))
        return self.out(x)


def rnk_unit_mistake_loop(record, broken):
    torch.manual_seed(15)
    x, y = rnk_teacher(5000, seed=8)
    xtr, ytr, xva, yva = x[:4000], y[:4000], x[4000:], y[4000:]
    model, criterion = rnk_Regressor(), nn.SmoothL1Loss()
    opt = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    rec = record(model, opt, criterion)
    loader = rnk_cycle(DataLoader(TensorDataset(xtr, ytr), batch_size=64, shuffle=True))
    for step in range(1000):
        xb, yb = next(loader)
        if broken and step == 380:
            xb = xb.abs() * 150  # one batch in other units
        loss = criterion(model(xb), yb)
        opt.zero_grad()
        loss.backward()
        opt.step()
        rec.step(loss, (xb, yb))
        if step % 50 == 49:
            rec.validation(rnk_evaluate(model, criterion, xva, yva))
    return rnk_evaluate(model, criterion, xva, yva)


@fault("one batch in other units kills the ReLUs", rules=["dying-neurons", "loss-spike"], step=380, steps=1000)
def rnk_unit_mistake(record):
    rnk_unit_mistake_loop(record, True)


def rnk_new_loader_loop(record, broken):
    torch.manual_seed(16)
    xtr, ytr, xva, yva = rnk_digits(images=False, seed=3)
    order = ytr.argsort(stable=True)
    xs, ys = xtr[order], ytr[order]  # the folder lists class after class
    model = nn.Sequential(nn.Linear(64, 48), nn.ReLU(), nn.Linear(48, 10))
    criterion = nn.CrossEntropyLoss()
    opt = torch.optim.RMSprop(model.parameters(), lr=3e-3)
    rec = record(model, opt, criterion)
    step, epoch = 0, 0
    while step < 1000:
        shuffle = epoch < 10 or not broken
        for xb, yb in DataLoader(TensorDataset(xs, ys), batch_size=32, shuffle=shuffle):
            if step == 1000:
                break
            opt.zero_grad()
            loss = criterion(model(xb), yb)
            loss.backward()
            opt.step()
            rec.step(loss, (xb, yb))
            step += 1
            if step % 25 == 0:
                rec.validation(rnk_evaluate(model, criterion, xva, yva))
        epoch += 1
    return rnk_evaluate(model, criterion, xva, yva)


@fault("a loader that was rebuilt in epoch 10 no longer shuffles, and the files lie class by class", rules=["sorted-batches"],
       step=440, steps=1000)
def rnk_new_loader(record):
    rnk_new_loader_loop(record, True)


class rnk_WaveGRU(nn.Module):
    def __init__(self):
        super().__init__()
        self.gru = nn.GRU(1, 24, batch_first=True)
        self.fc = nn.Linear(24, 4)

    def forward(self, x):
        h, _ = self.gru(x)
        return self.fc(h.mean(1))


def rnk_second_delivery_loop(record, broken):
    torch.manual_seed(17)
    x, y = rnk_waves(6000, seed=4)
    xva, yva = x[5000:], y[5000:]
    model = rnk_WaveGRU()
    opt = torch.optim.Adam(model.parameters(), lr=5e-3)
    crit = nn.CrossEntropyLoss()
    rec = record(model, opt, crit)
    y2 = y.roll(1) if broken else y  # the label file of the second delivery is off by one row
    for step in range(900):
        i = torch.randint(0, 2500, (32,))
        if step >= 480:
            i = i + 2500
            xb, yb = x[i], y2[i]
        else:
            xb, yb = x[i], y[i]
        opt.zero_grad()
        loss = crit(model(xb), yb)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        rec.step(loss, (xb, yb))
        if (step + 1) % 60 == 0:
            rec.validation(rnk_evaluate(model, crit, xva, yva))
    return rnk_evaluate(model, crit, xva, yva)


@fault("the labels of the second delivery are shifted by one row", rules=["data-changed", "labels-unrelated"], step=480, steps=900)
def rnk_second_delivery(record):
    rnk_second_delivery_loop(record, True)
