"""Faults: running statistics, augmentation that ends, a bad batch, weight decay, a loss scale."""

from __future__ import annotations

import math

import torch
from program import fault
from torch import nn
from torch.nn import functional as F


def _conv_block(n_in, n_out):
    return nn.Sequential(nn.Conv2d(n_in, n_out, 3, padding=1, bias=False), nn.BatchNorm2d(n_out), nn.ReLU())


class BNMomentumScheduler:
    """Momentum of all BatchNorms, shrunk by `decay` every `every` steps."""

    def __init__(self, model, every, decay, floor):
        self.norms = [m for m in model.modules() if isinstance(m, nn.BatchNorm2d)]
        self.every, self.decay, self.floor = every, decay, floor

    def step(self, step):
        for norm in self.norms:
            norm.momentum = max(0.1 * self.decay ** (step // self.every), self.floor)


@fault(
    "A schedule for the momentum of BatchNorm has no floor: from step 400 on it is 1e-4, later 1e-7, and the running "
    "statistics stay where they are while weights go on",
    rules=["stale-statistics", "batchnorm-mode-gap"],
    layers=["features"],
    step=400,
    steps=1400,
)
def cnn_batchnorm_momentum_decays_to_nothing(record, broken=True):
    torch.manual_seed(21)
    prototypes = torch.randn(8, 3, 10, 10)

    def draw(n):
        y = torch.randint(0, 8, (n,))
        gain = 0.5 + torch.rand(n, 1, 1, 1)
        return (gain * prototypes[y] + 1.5 * torch.randn(n, 3, 10, 10)) / 1.9, y

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.features = nn.Sequential(
                _conv_block(3, 12), nn.MaxPool2d(2), _conv_block(12, 24), _conv_block(24, 24), nn.AdaptiveAvgPool2d(2)
            )
            self.classifier = nn.Linear(96, 8)

        def forward(self, x):
            return self.classifier(self.features(x).flatten(1))

    net = Net()
    opt = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    criterion = nn.CrossEntropyLoss()
    bn_scheduler = BNMomentumScheduler(net, every=400, decay=1e-3, floor=0.0 if broken else 0.01)
    lr_scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(opt, 1400)
    x_val, y_val = draw(400)
    recorder = record(net, opt, criterion)
    for step in range(1400):
        net.train()
        bn_scheduler.step(step)
        xb, yb = draw(32)
        opt.zero_grad()
        loss = criterion(net(xb), yb)
        loss.backward()
        opt.step()
        lr_scheduler.step()
        recorder.step(loss.item(), (xb, yb))
        if step % 100 == 99:
            net.eval()
            with torch.no_grad():
                recorder.validation(criterion(net(x_val), y_val))


@fault(
    "Augmentation is switched off at step 500 ('only for the first epochs'), and the network learns its 240 noisy signals "
    "by heart",
    rules=["overfitting"],
    step=500,
    steps=1500,
)
def signals_augmentation_ends(record, broken=True):
    torch.manual_seed(22)
    t = torch.linspace(0, 6.28, 48)

    def signals(n):
        y = torch.randint(0, 3, (n,))
        phase = 6.28 * torch.rand(n, 1)
        wave = torch.sin((y[:, None] + 2) * t + phase)
        flip = torch.rand(n) < 0.1
        return (wave + 0.8 * torch.randn(n, 48))[:, None], torch.where(flip, torch.randint(0, 3, (n,)), y)

    x_train, y_train = signals(240)
    x_val, y_val = signals(800)

    def loader(step):
        index = torch.randperm(240)[:48]
        x, y = x_train[index], y_train[index]
        if step < 500 or not broken:
            shift = int(torch.randint(0, 48, ()))
            x = torch.roll(x, shift, 2) + 0.8 * torch.randn_like(x)
        return x, y

    model = nn.Sequential(
        nn.Conv1d(1, 24, 7, padding=3), nn.ReLU(), nn.AvgPool1d(2),
        nn.Conv1d(24, 32, 5, padding=2), nn.ReLU(), nn.AvgPool1d(2),
        nn.Flatten(), nn.Linear(32 * 12, 64), nn.ReLU(), nn.Linear(64, 3),
    )  # fmt: skip
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    recorder = record(model, optimizer, F.cross_entropy)
    for step in range(1500):
        x, y = loader(step)
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        recorder.step(loss.item(), (x, y))
        if step % 50 == 0:
            with torch.no_grad():
                recorder.validation(F.cross_entropy(model(x_val), y_val).item())


class _SensorGRU(nn.Module):
    def __init__(self):
        super().__init__()
        self.gru = nn.GRU(4, 32, batch_first=True)
        self.skip = nn.Linear(4, 16)
        self.out = nn.Sequential(nn.Linear(48, 32), nn.ReLU(), nn.Linear(32, 1))

    def forward(self, x):
        h = self.gru(x)[0][:, -1]
        return self.out(torch.cat([h, self.skip(x[:, -1])], 1)).squeeze(1)


@fault(
    "One file of the sensor log, at step 800, is in raw counts instead of standardised units, inputs and targets",
    rules=["loss-spike", "unscaled-target", "unscaled-input"],
    step=800,
    steps=1300,
)
def sensor_gru_one_file_in_raw_counts(record, broken=True):
    torch.manual_seed(23)

    def read(number):
        g = torch.Generator().manual_seed(1000 + number)
        x = torch.randn(32, 12, 4, generator=g)
        y = x[:, -1, 0] + 0.8 * torch.tanh(x[:, -4:, 1].sum(1)) - x[:, -2, 2] + 0.2 * torch.randn(32, generator=g)
        if number == 800 and broken:
            x, y = 8.0 * x + 20.0, 8.0 * y + 20.0
        return x, y

    model = _SensorGRU()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.8)
    mse = nn.MSELoss()
    recorder = record(model, optimizer, mse)
    for number in range(1300):
        x, y = read(number)
        optimizer.zero_grad(set_to_none=True)
        loss = mse(model(x), y)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 20.0)
        optimizer.step()
        recorder.step(loss.item(), (x, y))


class _TinyTransformer(nn.Module):
    def __init__(self, vocabulary=20, length=12, width=32, classes=4):
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.places = nn.Parameter(0.1 * torch.randn(length, width))
        layer = nn.TransformerEncoderLayer(width, 4, 64, dropout=0.0, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.head = nn.Linear(width, classes)

    def forward(self, x):
        return self.head(self.encoder(self.tokens(x) + self.places).mean(1))


PHASES = {
    0: {"lr": 1e-3, "weight_decay": 0.01},
    300: {"lr": 2e-3, "weight_decay": 0.05},
    900: {"lr": 1e-3, "weight_decay": 50.0},  # in per cent ...
}


@fault(
    "The table of phases gives the weight decay of the last one in per cent: AdamW takes 5% of every weight at each step "
    "from step 900 on",
    rules=["weight-decay-dominates", "rank-collapse"],
    step=900,
    steps=1500,
)
def transformer_weight_decay_in_percent(record, broken=True):
    torch.manual_seed(24)
    model = _TinyTransformer()
    optimizer = torch.optim.AdamW(model.parameters())
    loss_fn = nn.CrossEntropyLoss()
    recorder = record(model, optimizer, loss_fn)
    for step in range(1500):
        for group in optimizer.param_groups:
            group.update(PHASES.get(step, {}))
            if not broken:
                group["weight_decay"] = min(group["weight_decay"], 0.5)
        x = torch.randint(0, 20, (48, 12))
        counts = torch.stack([(x % 4 == k).sum(1) for k in range(4)], 1)
        y = (counts + 0.01 * torch.arange(4)).argmax(1)
        optimizer.zero_grad()
        loss = loss_fn(model(x), y)
        loss.backward()
        optimizer.step()
        recorder.step(loss, (x, y))


class HalfReducer:
    """Gradients as they come back from an all-reduce in float16, with a dynamic loss scale."""

    def __init__(self, model, reset):
        self.parameters = list(model.parameters())
        self.scale, self.overflow, self.good, self.reset = 2.0**14, False, 0, reset

    def reduce(self):
        halves = [p.grad.half() for p in self.parameters]
        finite = all(bool(h.isfinite().all()) for h in halves)
        for p, h in zip(self.parameters, halves, strict=True):
            p.grad = h.float() / self.scale if finite else torch.zeros_like(p)
        return finite

    def update(self, finite):
        if not finite:
            self.overflow = True
        if self.overflow:
            self.scale, self.good = max(self.scale / 2, 2.0**-30), 0
            if self.reset:
                self.overflow = False
        else:
            self.good += 1
            if self.good % 60 == 0:
                self.scale *= 2


@fault(
    "The flag of an overflow is never taken back: after the first one the loss scale halves at every step, until no "
    "gradient is left in float16",
    rules=["gradient-underflow", "no-gradient", "vanishing-gradient"],
    step=734,
    steps=2000,
)
def denoiser_loss_scale_collapses(record, broken=True):
    torch.manual_seed(25)
    mixing = torch.randn(8, 64) / math.sqrt(8)
    model = nn.Sequential(
        nn.Linear(64, 192), nn.Tanh(), nn.Linear(192, 32), nn.Tanh(), nn.Linear(32, 192), nn.Tanh(), nn.Linear(192, 64)
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.03, momentum=0.9)
    reducer = HalfReducer(model, reset=not broken)
    criterion = nn.MSELoss()
    recorder = record(model, optimizer, criterion)
    for _ in range(2000):
        clean = torch.sin(2 * torch.randn(192, 8)) @ mixing
        noisy = clean + 0.1 * torch.randn_like(clean)
        optimizer.zero_grad()
        loss = criterion(model(noisy), clean)
        (loss * reducer.scale).backward()
        finite = reducer.reduce()
        if finite:
            optimizer.step()
        reducer.update(finite)
        recorder.step(loss.item(), (noisy, clean))
