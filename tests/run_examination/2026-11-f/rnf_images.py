"""Loops over small images."""

import copy
import math

import torch
from program import fault, healthy
from rnf_data import digits, shifted
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset


class Net(nn.Module):
    def __init__(self, classes=10, width=12):
        super().__init__()
        self.conv1 = nn.Conv2d(1, width, 3, padding=1)
        self.conv2 = nn.Conv2d(width, 2 * width, 3, padding=1)
        self.head = nn.Linear(2 * width * 4, classes)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        return self.head(x.flatten(1))


@fault(
    "From step 731 on, zero_grad is skipped (an accumulation branch that is never left).",
    rules=("gradients-not-cleared",),
    step=731,
    steps=1400,
)
def cnn_branch(record, bad=True):
    torch.manual_seed(101)
    x, y, _, _ = digits()
    model = Net()
    opt = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.8)
    loss_fn = nn.CrossEntropyLoss()
    recorder = record(model, opt, loss_fn)
    g = torch.Generator().manual_seed(1)
    accumulate = False
    for step in range(1400):
        if step == 731 and bad:
            accumulate = True
        index = torch.randint(0, len(x), (32,), generator=g)
        xb, yb = shifted(x[index], g), y[index]
        if not accumulate:
            opt.zero_grad()
        loss = loss_fn(model(xb), yb)
        loss.backward()
        opt.step()
        recorder.step(loss.item(), (xb, yb))


@fault(
    "Augmentation is switched off at step 600 on a training set of 120 images with some wrong labels; the network learns it by heart.",
    rules=("overfitting", "data-changed"),
    step=600,
    steps=1800,
)
def augment_off(record, bad=True):
    torch.manual_seed(102)
    x, y, vx, vy = digits()
    x, y = x[:120], y[:120].clone()
    g = torch.Generator().manual_seed(5)
    y[:18] = torch.randint(0, 10, (18,), generator=g)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 96), nn.ReLU(), nn.Linear(96, 96), nn.ReLU(), nn.Linear(96, 10))
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    recorder = record(model, opt, F.cross_entropy)
    for step in range(1800):
        model.train()
        index = torch.randint(0, len(x), (24,), generator=g)
        xb, yb = x[index], y[index]
        if step < 600 or not bad:
            xb = xb + 1.5 * torch.randn(xb.shape, generator=g)
        loss = F.cross_entropy(model(xb), yb)
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
        recorder.step(loss.item(), (xb, yb))
        if step % 30 == 29:
            model.eval()
            with torch.no_grad():
                recorder.validation(F.cross_entropy(model(vx), vy).item())


class TwoParts(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.backbone = nn.Sequential(
            nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Conv2d(8, 16, 3), nn.ReLU(), nn.Flatten(), nn.Linear(256, 48), nn.ReLU()
        )
        self.head = nn.Linear(48, classes)

    def forward(self, x):
        return self.head(self.backbone(x))


def pretrained(seed, classes=5):
    """A network that has learned the digits 0 to 4."""
    torch.manual_seed(seed)
    x, y, _, _ = digits()
    x, y = x[y < 5], y[y < 5]
    model = TwoParts(classes)
    opt = torch.optim.Adam(model.parameters(), lr=2e-3)
    for _ in range(150):
        index = torch.randint(0, len(x), (32,))
        opt.zero_grad()
        F.cross_entropy(model(x[index]), y[index]).backward()
        opt.step()
    return model


@fault(
    "A helper that runs at step 643 sets requires_grad on everything: the frozen backbone learns, at the rate of the head.",
    rules=("layer-thawed",),
    layers=("backbone",),
    step=643,
    steps=1500,
)
def helper_thaws(record, bad=True):
    model = pretrained(103)
    x, y, _, _ = digits()
    keep = y >= 5
    x, y = x[keep], y[keep] - 5
    model.head = nn.Sequential(nn.LayerNorm(48), nn.Linear(48, 5))
    for p in model.backbone.parameters():
        p.requires_grad_(False)
    opt = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    loss_fn = nn.CrossEntropyLoss()
    recorder = record(model, opt, loss_fn)
    g = torch.Generator().manual_seed(2)
    for step in range(1500):
        if step == 643 and bad:
            for p in model.parameters():
                p.requires_grad = True
        index = torch.randint(0, len(x), (32,), generator=g)
        xb, yb = shifted(x[index], g), y[index]
        opt.zero_grad()
        loss = loss_fn(model(xb), yb)
        loss.backward()
        opt.step()
        recorder.step(loss.item(), (xb, yb))


@fault(
    "From step 160 on the momentum of both BatchNorms is 0: their running statistics stay where they were.",
    rules=("stale-statistics", "batchnorm-mode-gap"),
    layers=("bn1", "bn2"),
    step=160,
    steps=1400,
)
def norm_stops(record, bad=True):
    class Normed(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc1, self.bn1 = nn.Linear(64, 64), nn.BatchNorm1d(64)
            self.fc2, self.bn2 = nn.Linear(64, 64), nn.BatchNorm1d(64)
            self.out = nn.Linear(64, 10)

        def forward(self, x):
            x = F.relu(self.bn1(self.fc1(x.flatten(1))))
            return self.out(F.relu(self.bn2(self.fc2(x))))

    torch.manual_seed(104)
    x, y, vx, vy = digits()
    model = Normed()
    opt = torch.optim.Adam(model.parameters(), lr=4e-3)
    recorder = record(model, opt, F.cross_entropy)
    g = torch.Generator().manual_seed(3)
    for step in range(1400):
        model.train()
        if step == 160 and bad:
            for m in model.modules():
                if isinstance(m, nn.BatchNorm1d):
                    m.momentum = 0.0
        index = torch.randint(0, len(x), (48,), generator=g)
        xb, yb = shifted(x[index], g), y[index]
        loss = F.cross_entropy(model(xb), yb)
        opt.zero_grad()
        loss.backward()
        opt.step()
        recorder.step(loss.item(), (xb, yb))
        if step % 40 == 39:
            model.eval()
            with torch.no_grad():
                recorder.validation(F.cross_entropy(model(vx), vy).item())


@fault(
    "From step 1111 on a second annotation file is read, in which 4 of 10 labels are random.",
    rules=("data-changed", "labels-unrelated"),
    step=1111,
    steps=1900,
)
def second_file(record, bad=True):
    torch.manual_seed(105)
    x, y, _, _ = digits()
    g = torch.Generator().manual_seed(4)
    model = Net(width=10)
    opt = torch.optim.AdamW(model.parameters(), lr=1.5e-3, weight_decay=0.01)
    recorder = record(model, opt, F.cross_entropy)
    for step in range(1900):
        index = torch.randint(0, len(x), (32,), generator=g)
        xb, yb = shifted(x[index], g), y[index].clone()
        wrong = torch.rand(32, generator=g) < 0.4
        other = torch.randint(0, 10, (32,), generator=g)
        if bad and step >= 1111:
            yb[wrong] = other[wrong]
        opt.zero_grad()
        loss = F.cross_entropy(model(xb), yb)
        loss.backward()
        opt.step()
        recorder.step(loss.item(), (xb, yb))


@fault(
    "After 9 epochs (step 495) the loader is made anew, without shuffle, of a set that is sorted by class.",
    rules=("sorted-batches",),
    step=495,
    steps=1320,
)
def unshuffled(record, bad=True):
    torch.manual_seed(106)
    x, y, vx, vy = digits()
    order = torch.argsort(y, stable=True)[: 55 * 25]
    data = TensorDataset(x[order], y[order])
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 80), nn.GELU(), nn.Linear(80, 40), nn.GELU(), nn.Linear(40, 10))
    opt = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    loss_fn = nn.CrossEntropyLoss()
    recorder = record(model, opt, loss_fn)
    for epoch in range(24):
        for xb, yb in DataLoader(data, batch_size=25, shuffle=epoch < 9 or not bad):
            xb = xb + 0.5 * torch.randn_like(xb)
            loss = loss_fn(model(xb), yb)
            opt.zero_grad()
            loss.backward()
            opt.step()
            recorder.step(loss.item(), (xb, yb))
        with torch.no_grad():
            recorder.validation(loss_fn(model(vx), vy).item())


@fault(
    "A blank image comes at step 1203; images are divided by their norm, 0 by 0.",
    rules=("non-finite",),
    step=1203,
    steps=1600,
)
def blank_image(record, bad=True):
    class UnitNorm(nn.Module):
        def forward(self, x):
            x = x.flatten(1)
            return 8 * x / x.norm(dim=1, keepdim=True)

    torch.manual_seed(107)
    x, y, _, _ = digits()
    model = nn.Sequential(UnitNorm(), nn.Linear(64, 64), nn.SiLU(), nn.Linear(64, 10))
    opt = torch.optim.RMSprop(model.parameters(), lr=5e-4)
    recorder = record(model, opt, F.cross_entropy)
    g = torch.Generator().manual_seed(8)
    for step in range(1600):
        index = torch.randint(0, len(x), (40,), generator=g)
        xb, yb = shifted(x[index], g), y[index]
        if step == 1203 and bad:
            xb[17] = 0
        opt.zero_grad()
        loss = F.cross_entropy(model(xb), yb)
        loss.backward()
        opt.step()
        recorder.step(loss.item(), (xb, yb))


# ------------------------------------------------------------------ healthy


@healthy("Cosine schedule with warm restarts: the loss rises at each restart.", steps=1800)
def restarts(record):
    torch.manual_seed(201)
    x, y, vx, vy = digits()
    model = Net()
    opt = torch.optim.SGD(model.parameters(), lr=0.04, momentum=0.9)
    schedule = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(opt, T_0=300)
    loss_fn = nn.CrossEntropyLoss()
    recorder = record(model, opt, loss_fn)
    g = torch.Generator().manual_seed(11)
    for step in range(1800):
        index = torch.randint(0, len(x), (32,), generator=g)
        xb, yb = shifted(x[index], g), y[index]
        opt.zero_grad()
        loss = loss_fn(model(xb), yb)
        loss.backward()
        opt.step()
        schedule.step()
        recorder.step(loss.item(), (xb, yb))
        if step % 60 == 59:
            with torch.no_grad():
                recorder.validation(loss_fn(model(vx), vy).item())


@healthy("Dropout of a half in two layers; the training loss lies above the validation loss.", steps=1600)
def strong_dropout(record):
    torch.manual_seed(202)
    x, y, vx, vy = digits()
    model = nn.Sequential(
        nn.Flatten(), nn.Linear(64, 160), nn.ReLU(), nn.Dropout(0.5), nn.Linear(160, 160), nn.ReLU(), nn.Dropout(0.5), nn.Linear(160, 10)
    )
    opt = torch.optim.Adam(model.parameters(), lr=8e-4)
    recorder = record(model, opt, F.cross_entropy)
    g = torch.Generator().manual_seed(12)
    for step in range(1600):
        model.train()
        index = torch.randint(0, len(x), (32,), generator=g)
        xb, yb = shifted(x[index], g), y[index]
        opt.zero_grad()
        loss = F.cross_entropy(model(xb), yb)
        loss.backward()
        opt.step()
        recorder.step(loss.item(), (xb, yb))
        if step % 50 == 49:
            model.eval()
            with torch.no_grad():
                recorder.validation(F.cross_entropy(model(vx), vy).item())


@healthy("Fine-tuning of a head; the backbone is frozen on purpose and not in the optimizer.", steps=1500)
def frozen_backbone(record):
    model = pretrained(203)
    x, y, vx, vy = digits()
    model.head = nn.Linear(48, 10)
    model.backbone.requires_grad_(False)
    opt = torch.optim.Adam(model.head.parameters(), lr=1e-3)
    recorder = record(model, opt, F.cross_entropy)
    g = torch.Generator().manual_seed(13)
    for step in range(1500):
        index = torch.randint(0, len(x), (32,), generator=g)
        xb, yb = x[index] + 0.1 * torch.randn((32, 1, 8, 8), generator=g), y[index]
        opt.zero_grad()
        loss = F.cross_entropy(model(xb), yb)
        loss.backward()
        opt.step()
        recorder.step(loss.item(), (xb, yb))
        if step % 75 == 74:
            with torch.no_grad():
                recorder.validation(F.cross_entropy(model(vx), vy).item())


@healthy("Mixup: soft targets, so the loss stays far from 0.", steps=1600)
def mixup(record):
    torch.manual_seed(204)
    x, y, vx, vy = digits()
    soft = F.one_hot(y, 10).float()
    model = Net()
    opt = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.05)
    loss_fn = nn.CrossEntropyLoss()
    recorder = record(model, opt, loss_fn)
    beta = torch.distributions.Beta(0.6, 0.6)
    for step in range(1600):
        a, b = torch.randint(0, len(x), (2, 32))
        lam = beta.sample((32,))
        xb = lam.view(-1, 1, 1, 1) * x[a] + (1 - lam).view(-1, 1, 1, 1) * x[b]
        yb = lam.view(-1, 1) * soft[a] + (1 - lam).view(-1, 1) * soft[b]
        opt.zero_grad()
        loss = loss_fn(model(xb), yb)
        loss.backward()
        opt.step()
        recorder.step(loss.item(), (xb, yb))
        if step % 80 == 79:
            with torch.no_grad():
                recorder.validation(loss_fn(model(vx), vy).item())


@healthy("Gradients of four small batches are summed on purpose before each step.", steps=1500)
def accumulation(record):
    torch.manual_seed(205)
    x, y, _, _ = digits()
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 10))
    opt = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, nesterov=True)
    loss_fn = nn.CrossEntropyLoss()
    recorder = record(model, opt, loss_fn)
    g = torch.Generator().manual_seed(15)
    for step in range(1500):
        opt.zero_grad()
        total, inputs, targets = 0.0, [], []
        for _ in range(4):
            index = torch.randint(0, len(x), (8,), generator=g)
            xb, yb = shifted(x[index], g), y[index]
            loss = loss_fn(model(xb), yb) / 4
            loss.backward()
            total += loss.item()
            inputs.append(xb)
            targets.append(yb)
        opt.step()
        recorder.step(total, (torch.cat(inputs), torch.cat(targets)))


@healthy("Half of the pixels are masked; reconstruction never gets near 0.", steps=1600)
def masked_pixels(record):
    torch.manual_seed(206)
    x, _, vx, _ = digits()
    model = nn.Sequential(nn.Linear(64, 96), nn.GELU(), nn.LayerNorm(96), nn.Linear(96, 96), nn.GELU(), nn.Linear(96, 64))
    opt = torch.optim.Adam(model.parameters(), lr=1e-3, betas=(0.9, 0.95))
    recorder = record(model, opt, F.mse_loss)
    g = torch.Generator().manual_seed(16)
    flat, vflat = x.flatten(1), vx.flatten(1)
    vmask = (torch.rand(vflat.shape, generator=g) < 0.5).float()
    for step in range(1600):
        yb = flat[torch.randint(0, len(flat), (32,), generator=g)]
        xb = yb * (torch.rand(yb.shape, generator=g) < 0.5)
        loss = F.mse_loss(model(xb), yb)
        opt.zero_grad()
        loss.backward()
        opt.step()
        recorder.step(loss.item(), (xb, yb))
        if step % 100 == 99:
            with torch.no_grad():
                recorder.validation(F.mse_loss(model(vflat * vmask), vflat).item())


@healthy("BatchNorm with falling step rates; validation is rough early.", steps=1500)
def normed_milestones(record):
    torch.manual_seed(207)
    x, y, vx, vy = digits()
    model = nn.Sequential(
        nn.Conv2d(1, 12, 3, padding=1, bias=False), nn.BatchNorm2d(12), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(12, 24, 3, padding=1, bias=False), nn.BatchNorm2d(24), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(24, 10),
    )
    opt = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9, weight_decay=1e-3)
    schedule = torch.optim.lr_scheduler.MultiStepLR(opt, [800, 1200], gamma=0.1)
    recorder = record(model, opt, F.cross_entropy)
    g = torch.Generator().manual_seed(18)
    for step in range(1500):
        model.train()
        index = torch.randint(0, len(x), (32,), generator=g)
        xb, yb = shifted(x[index], g), y[index]
        opt.zero_grad()
        loss = F.cross_entropy(model(xb), yb)
        loss.backward()
        opt.step()
        schedule.step()
        recorder.step(loss.item(), (xb, yb))
        if step % 50 == 49:
            model.eval()
            with torch.no_grad():
                recorder.validation(F.cross_entropy(model(vx), vy).item())


@healthy("Curriculum: the noise on the images grows step by step, so the loss climbs slowly late.", steps=1800)
def noise_curriculum(record):
    torch.manual_seed(208)
    x, y, _, _ = digits()
    model = Net()
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    recorder = record(model, opt, F.cross_entropy)
    g = torch.Generator().manual_seed(19)
    for step in range(1800):
        index = torch.randint(0, len(x), (32,), generator=g)
        xb = x[index] + (0.2 + 0.6 * step / 1800) * torch.randn((32, 1, 8, 8), generator=g)
        yb = y[index]
        loss = F.cross_entropy(model(xb), yb)
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        opt.step()
        recorder.step(loss.item(), (xb, yb))


@healthy("A student that learns soft outputs of a teacher of momentum-averaged weights and labels.", steps=1500)
def average_teacher(record):
    torch.manual_seed(209)
    x, y, _, _ = digits()
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    teacher = copy.deepcopy(model).requires_grad_(False)
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    recorder = record(model, opt, F.cross_entropy)
    g = torch.Generator().manual_seed(20)
    hot = F.one_hot(y, 10).float()
    for step in range(1500):
        index = torch.randint(0, len(x), (32,), generator=g)
        xb = shifted(x[index], g)
        share = 0.5 * (1 - math.exp(-step / 300))
        with torch.no_grad():
            yb = (1 - share) * hot[index] + share * teacher(x[index]).softmax(1)
        loss = F.cross_entropy(model(xb), yb)
        opt.zero_grad()
        loss.backward()
        opt.step()
        with torch.no_grad():
            for p, q in zip(teacher.parameters(), model.parameters()):
                p.lerp_(q, 0.02)
        recorder.step(loss.item(), (xb, yb))
